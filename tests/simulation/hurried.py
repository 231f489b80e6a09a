"""Histories in which an operator also lets waiting jobs run now or at another time, and undoes cancels; the command may die at each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from steadyworker.actions.jobs import JobActions
from steadyworker.adapter import Capabilities
from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.delivery import HOP, OutgoingMessage
from steadyworker.events import MessageLost
from steadyworker.ledger.base import JobId, State
from steadyworker.testing.queues import QueuedMessage
from tests.simulation.lossy import LossyWorld
from tests.simulation.world import CALM, NAMESPACE, QUEUE, Faults, Killed, history

CHANCE = 0.05
"""The chance of an action, at each step of a history."""


@dataclass
class OperatorLinks:
    """The connections of an operator's command, which may die before or after it publishes."""

    world: LossyWorld

    def ledger(self) -> Any:
        return self.world.ledger

    def namespace(self, _: JobQueue) -> str:
        return NAMESPACE

    def adapter(self, _: JobQueue) -> OperatorLinks:
        return self

    @property
    def capabilities(self) -> Capabilities:
        return self.world.operator.capabilities

    def publish(self, message: OutgoingMessage) -> None:
        drawn = self.world.rng.random()
        if drawn < 0.1:
            raise Killed
        self.world.operator.publish(message)
        if drawn > 0.9:
            raise Killed


class HurriedWorld(LossyWorld):
    """The operator acts on jobs that wait."""

    retried = rescheduled = undone = died_at_once = 0

    def _fault(self) -> None:
        super()._fault()
        if self.faults is not CALM and not self.ledger_out and self.rng.random() < CHANCE:
            self._act()

    def _act(self) -> None:
        waiting = [row.id for row in self.rows() if row.state in (State.MOVED, State.INTERRUPTED)]
        if not waiting:
            return
        id_ = self.rng.choice(waiting)
        actions = JobActions(cast(Connections, OperatorLinks(self)), JobQueue(QUEUE, QUEUE, None, Any), "operator")
        try:
            self._acted(actions, id_)
        except Killed:
            self.died_at_once += 1

    def _acted(self, actions: JobActions, id_: JobId) -> None:
        drawn = self.rng.random()
        if drawn < 0.4:
            self.retried += len(actions.retry([id_]).checked().changed)
        elif drawn < 0.8:
            delay = self.rng.choice((0.0, 5.0, 60.0, 900.0))
            self.rescheduled += len(actions.reschedule([id_], delay).checked().changed)
        else:
            self.undone += len(actions.undo([id_]).checked().changed)

    def _of(self, event: MessageLost) -> Iterator[QueuedMessage]:
        """A message that was sent for a retry, before that retry got another time, is a duplicate."""
        row = self.ledger.read(self.ids[event.fence])
        for message in super()._of(event):
            if row is None or event.state != "moved" or int(message.headers.get(HOP, 0)) > row.hop:
                yield message


def hurried(seed: int, faults: Faults, **options: Any) -> HurriedWorld:
    """Play one history with these faults and this operator to its end, and judge it."""
    world = history(seed, HurriedWorld, faults=faults, **options)
    assert isinstance(world, HurriedWorld)
    return world
