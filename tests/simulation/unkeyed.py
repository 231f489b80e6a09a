"""
Histories of equal messages without a key, in a work queue that is full at times, or to the end.

No message has a name here, so only counts can be judged: as many jobs end as there were messages, and no fewer.
One worker process, and faults that leave no doubt about an acknowledgement: exactly as many.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from steadyworker.adapter import QueueSpec
from steadyworker.delivery import OutgoingMessage, Target
from steadyworker.ledger.base import JobFilter, Row, State
from tests.simulation.world import CONNECTIONS_ONLY, QUEUE, SPEC, Faults, Violation, World

SOME = Faults(duplicate=0, early=0, cancel=0)
"""All but a sender's duplicate, which is one message more here, and what needs the key of a job."""

WITHOUT_DOUBT = replace(CONNECTIONS_ONLY, lost_ack=0, early=0, redeliver=0)
"""Cuts and lost confirms: each acknowledgement was read by the broker, or was never sent."""


class UnkeyedWorld(World):
    """One history of a few equal messages."""

    names = ("",)

    def __init__(self, seed: int, **options: Any) -> None:
        self.count = 1 + seed % 4
        self.full_at_the_end = seed % 3 == 0
        self.fences: dict[str, int] = {}
        self.healing = False
        super().__init__(seed, **options)

    def send(self) -> None:
        """Send them, and fill the queue or not."""
        sender = self.broker.adapter(QueueSpec(QUEUE, SPEC.dead_letter_queue))
        for _ in range(self.count):
            sender.publish(OutgoingMessage(Target.WORK, b"{}", {}))
            self.broker.messages(QUEUE)[-1].message_id = ""
        self._fill(full=self.rng.random() < 0.5)

    def _fill(self, *, full: bool) -> None:
        (self.broker.fill_queue if full else self.broker.make_room)(QUEUE)

    def step(self) -> None:
        """One step, before which the queue may fill up or drain, until all heals."""
        if not self.healing and self.rng.random() < 0.05:
            self._fill(full=self.rng.random() < 0.5)
        super().step()

    def heal(self) -> None:
        """Every fault ends, but the queue may stay full."""
        self.healing = True
        self._fill(full=self.full_at_the_end)
        super().heal()

    def _move_letters(self) -> None:
        """Do nothing, so that a row is a message: the histories of a message with a key have this fault."""

    def observed(self, name: str, arguments: tuple[Any, ...], answer: Any) -> None:
        """Judge every write by its own job's latest fence."""
        if name in ("claim", "take_over", "lose") and isinstance(answer, Row):
            self.fences[answer.uid] = answer.fence
        elif name in ("checkpoint", "done", "interrupted", "moving", "moved") and answer:
            token = arguments[0]
            if token.fence != self.fences[token.uid]:
                raise Violation(
                    f"{name} was accepted under fence {token.fence}; the latest is {self.fences[token.uid]}"
                )

    def describe(self) -> str:
        """Where everything stands, for the report of a violation."""
        rows = [(row.id.key[:6], row.state.value, row.hop) for row in self.rows()]
        left = [(message.headers, message.due) for message in self.broker.messages(QUEUE)]
        return f"seed {self.seed}: {self.count} sent, rows={rows} work={left} dead={len(self.broker.dead(QUEUE))}"

    def rows(self) -> list[Row]:
        return [row for row, _ in self.ledger.jobs(JobFilter(queue=QUEUE))]

    def judge(self) -> None:
        """As many jobs ended as there were messages, at least, and no row waits for a message that never comes."""
        rows = self.rows()
        if any(row.state not in (State.DONE, State.DEAD) for row in rows):
            raise Violation("lost: no message is left, and a job has not ended: " + self.describe())
        if len(rows) < self.count:
            raise Violation(f"lost: {self.count} messages ended as {len(rows)} jobs: " + self.describe())
        if self.faults_were == WITHOUT_DOUBT and self.fleet == 1 and len(rows) > self.count:
            raise Violation(f"repeated: {self.count} messages ended as {len(rows)} jobs: " + self.describe())

    def play(self, steps: int) -> None:
        """The stormy part."""
        self.faults_were = self.faults
        super().play(steps)


class LonelyWorld(UnkeyedWorld):
    """The same with one worker process."""

    fleet = 1
