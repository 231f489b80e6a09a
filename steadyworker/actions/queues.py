"""Actions on a queue: pause, resume, purge."""

from __future__ import annotations

from dataclasses import dataclass

from steadyworker.actions.report import QueueActions
from steadyworker.adapter import Purges
from steadyworker.errors import SteadyWorkerError
from steadyworker.ledger.facts import Pause
from steadyworker.text.plain_text import plain_text


@dataclass(frozen=True, slots=True)
class OnQueue:
    """
    The result of an action on a queue.

    Attributes:
        changed: False if there was nothing to change.
        count: The number of messages that the action has deleted.
        unlogged: Why the log of actions has no entry of this action; empty if it has one, or if nothing was changed.
    """

    changed: bool
    count: int = 0
    unlogged: str = ""


class PauseActions(QueueActions):
    """
    The actions on one queue as a whole.

    Every method can raise UnknownQueue, ConfigError, BrokerUnavailable and LedgerUnavailable.
    """

    def pause(self, reason: str = "") -> OnQueue:
        """
        Pause the queue for the whole fleet, until `resume`; a second pause replaces person and reason.

        The ledger keeps the pause, so a worker process that starts later obeys it, too.
        """
        text = plain_text(reason)
        self._links.ledger().facts.pause(self._links.namespace(self._queue), self._queue.name, self._who, text)
        return OnQueue(changed=True, unlogged=self.record("pause", detail=reason))

    def resume(self) -> OnQueue:
        """End the pause of the queue."""
        if not self._links.ledger().facts.resume(self._links.namespace(self._queue, bind=False), self._queue.name):
            return OnQueue(changed=False)
        return OnQueue(changed=True, unlogged=self.record("resume"))

    def present(self) -> Pause | None:
        """Return the pause of the queue, or None if it is not paused."""
        here = self._links.namespace(self._queue, bind=False), self._queue.name
        return next(
            (each for each in self._links.ledger().facts.pauses() if (each.namespace, each.queue) == here), None
        )

    def check_purge(self) -> None:
        """Raise SteadyWorkerError if the adapter of this broker cannot purge a queue; change nothing."""
        self._purger()
        self._links.namespace(self._queue, bind=False)

    def purge(self) -> OnQueue:
        """
        Delete the messages that wait in the queue, and return their number.

        Delayed messages, messages of running jobs and dead letters stay.
        A job that a worker process has begun goes on from the ledger's copy of its message; only a cancel stops it.

        Raises SteadyWorkerError if the adapter of this broker cannot purge a queue.
        """
        purger = self._purger()
        self._links.namespace(self._queue)
        count = purger.purge()
        return OnQueue(changed=count > 0, count=count, unlogged=self.record("purge", count=count))

    def _purger(self) -> Purges:
        adapter = self._links.adapter(self._queue)
        if not isinstance(adapter, Purges):
            raise SteadyWorkerError(
                "Expected a broker whose adapter can purge a queue, got one that cannot: "
                "purge the queue with the broker's own console. Jobs that a worker has begun go on all the same; cancel them."
            )
        return adapter
