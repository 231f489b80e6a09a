"""
The renewal of leases, in the keeper's thread.

A run may commit for some time after a renewal; this time counts from the *start* of the last renewal that the ledger granted.
So a slow reply of the ledger does not make a lease seem longer than it is.
One keeper serves every Worker of the process, so that one transaction renews all leases.
Between renewals, the keeper reads the orders of people, with one query: cancel marks of the jobs that run here, pauses, commands.
While no job runs here, the keeper reads half as often.
After each renewal, the keeper lets the process write its facts; if the ledger does not respond then, these facts are lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from steadyworker.clock import Clock, Times
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Ledger, Orders, Renewal, Token
from steadyworker.ledger.facts import Facts, OwnerCommand, OwnerReport, Pause

_HURRY_WHEN_AWAY = 15
"""
The divisor that gives the shortest time between two renewals: the usual time divided by this number.

While the ledger is unreachable, the keeper renews after the shortest time, because jobs wait for the ledger.
Even after `hurry`, the time between two renewals is not shorter.
"""


_FACTS_WITHIN = 1.0
"""Seconds after which a turn writes no facts, so that a slow ledger does not delay the next renewal further."""

QUIET = " (quiet)"
"""The suffix of a registered queue's name while its owner lives, but consumes no messages from the queue."""


def registered_name(namespace: str, queue: str) -> str:
    """Return the name under which owners register a queue, including the namespace, because queues of two brokers can have equal names."""
    return f"{namespace}/{queue}"


def attended(names: Sequence[str]) -> list[str]:
    """Return the queues that an owner registered under these names, with or without the suffix `QUIET`, each once, in order."""
    return sorted({name.removesuffix(QUIET) for name in names})


class Holder(Protocol):
    """A holder of leases, such as a runner."""

    def tokens(self) -> Sequence[Token]:
        """Return the claims to renew; called from the keeper's thread."""
        ...

    def renewed(self, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        """Receive the ledger's replies to a renewal that started at `began` (boot time); called from the keeper's thread."""
        ...

    def cancelled(self, marks: Mapping[str, str]) -> None:
        """Receive the cancel marks of jobs that run in this process, by uid; called from the keeper's thread."""
        ...

    def paused(self, pauses: Sequence[Pause]) -> None:
        """Receive all pauses of queues, at each change of them; called from the keeper's thread."""
        ...

    def ledger_lost(self, cause: str, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        """
        Note that the ledger is unreachable; called from the keeper's thread.

        `answers` has the replies to a renewal that started at `began` (boot time), if the renewal still succeeded.
        """
        ...


class Keeper:
    """
    The renewal of all leases of this process.

    1. `turn` renews once and reports to each holder; if the ledger is unreachable, `turn` reports this, and raises nothing.
       Renewals that the ledger granted are reported even if a later call of the turn fails.
       `turn` also reads the orders, before the holders get their renewals, so that no process forgets a pause in an outage.
    2. `read_orders` reads the orders and reports them; if the ledger is unreachable, the next turn comes soon.
    3. `run` renews every `times.renew` seconds, and more often while the ledger is unreachable.
       `run` reads the orders every `times.cancel_poll` seconds, or every second time while no job runs here.
    4. `hurry` makes the next turn come soon; `end` makes `run` return.
    5. While this owner has `left` a queue, or is `quiet` there, the keeper registers the queue with the suffix `QUIET`.
       An owner that `holds` a delivery still counts as a consumer, so the keeper then registers the queue without the suffix.
    6. The broker can count one owner as several consumers of a queue (`consumers`); the keeper registers the queue that many times.
    7. The keeper calls `went_back` if `register` reports that the ledger went back in time.
    8. The keeper registers the owner together with the owner's `report`, and passes commands for the owner to `obey`.
       After each quick renewal, the keeper calls `write_facts`.
    """

    def __init__(
        self,
        ledger: Ledger,
        owner: str,
        host: str,
        queues: Sequence[str],
        holders: Sequence[Holder],
        clock: Clock,
        times: Times,
        quiet: Callable[[str], bool] = lambda _: False,
        holds: Callable[[str], bool] = lambda _: False,
        consumers: Callable[[str], int] = lambda _: 1,
        went_back: Callable[[], None] = lambda: None,
        report: Callable[[], OwnerReport | None] = lambda: None,
        obey: Callable[[Sequence[OwnerCommand]], None] = lambda _commands: None,
        write_facts: Callable[[Facts], None] = lambda _facts: None,
    ) -> None:
        self.last_turn = clock.monotonic()
        self.away = False
        self._ledger = ledger
        self._owner = owner
        self._host = host
        self._queues = queues
        self._left: frozenset[str] = frozenset()
        self._quiet = quiet
        self._holds = holds
        self._consumers = consumers
        self._went_back = went_back
        self._report = report
        self._obey = obey
        self._write_facts = write_facts
        self._pauses: tuple[Pause, ...] = ()
        self._holders = holders
        self._clock = clock
        self._times = times
        self._wake, self._over = threading.Event(), threading.Event()
        self._begun = False

    def turn(self) -> None:
        """Renew every lease once, register this owner, and report the result to the holders."""
        held = [(holder, list(holder.tokens())) for holder in self._holders]
        tokens = [token for _, theirs in held for token in theirs]
        began = self._clock.boottime()
        self._begun = True
        answers: Iterator[Renewal] = iter(())
        try:
            answers = iter(self._ledger.renew(tokens))
            names = [name for queue in self._queues for name in self._registered(queue)]
            whole = self._ledger.register(self._owner, self._host, names, self._report())
            orders = self._ledger.orders(self._owner)
        except LedgerUnavailable as error:
            self.away = True
            for holder, theirs in held:
                # Without its orders, this process takes no message, but its runs keep the leases that were granted.
                holder.ledger_lost(str(error), began, list(zip(theirs, answers, strict=False)))
        else:
            self.away = False
            if not whole:
                self._went_back()
            with suppress(LedgerUnavailable):
                self._pass_on(orders)
            for holder, theirs in held:
                holder.renewed(began, [(token, next(answers)) for token in theirs])
            if self._clock.boottime() - began < _FACTS_WITHIN:
                with suppress(LedgerUnavailable):
                    self._write_facts(self._ledger.facts)
        self.last_turn = self._clock.monotonic()

    def _registered(self, name: str) -> list[str]:
        """Return the names under which to register this queue."""
        away = name in self._left or self._quiet(name)
        return [f"{name}{QUIET}"] if away and not self._holds(name) else [name] * self._consumers(name)

    def read_orders(self) -> None:
        """Read the orders of people, and report them to the holders."""
        try:
            self._pass_on(self._ledger.orders(self._owner))
        except LedgerUnavailable:
            self.hurry()  # the turn reports it

    def _pass_on(self, orders: Orders) -> None:
        """Report orders: each cancel mark, each change of the pauses, and the commands; raise LedgerUnavailable if no command can be read."""
        if orders.cancels:
            for holder in self._holders:
                holder.cancelled(orders.cancels)
        if orders.pauses != self._pauses:
            self._pauses = orders.pauses
            for holder in self._holders:
                holder.paused(orders.pauses)
        if orders.commands:
            self._obey(self._ledger.facts.commands(self._owner))

    @property
    def _idle(self) -> bool:
        return not any(holder.tokens() for holder in self._holders)

    def run(self) -> None:
        """
        Renew leases, and read orders, until `end`; the body of the keeper's thread.

        The first turn comes at once.
        If `turn` was called before `run`, the first turn comes when it is due, or after `hurry`.
        """
        soon = self._times.renew / _HURRY_WHEN_AWAY
        due = self.last_turn + self._times.renew if self._begun else self._clock.monotonic()
        skipped = False
        while True:
            while not (self.away or self._wake.is_set()) and (left := due - self._clock.monotonic()) > 0:
                skipped = self._idle and not skipped
                if not skipped:
                    self.read_orders()
                self._wake.wait(min(left, self._times.cancel_poll))
            if self._over.is_set():
                return
            self._wake.clear()
            due = self._clock.monotonic() + self._times.renew
            self.turn()
            # Wait the full time; otherwise this would be a busy loop, because each failed write calls `hurry`.
            self._over.wait(soon)

    def hurry(self) -> None:
        """Renew soon, because a runner waits for the ledger."""
        self._wake.set()

    def left(self, queue: str, *, left: bool) -> None:
        """
        Set whether this owner has left one of its queues; an owner that has left a queue does not count as its consumer.

        Call this method from one thread only.
        The next turn comes soon.
        """
        self._left = self._left | {queue} if left else self._left - {queue}
        self.hurry()

    def end(self) -> None:
        """Make `run` return."""
        self._over.set()
        self._wake.set()
