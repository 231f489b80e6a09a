"""
The mover of delayed messages, which wait in the topic `<queue>-later`.

When a message is due, the mover sends a copy to the work topic. Then the mover acknowledges the original.

Each worker process that receives jobs has a mover. All movers are in one separate consumer group.
So each message is with only one mover at a time.
If a worker ends between copy and acknowledgement, the message is moved twice. Both copies have the same id, and are one job.

The broker may deliver a message before it is due, because the broker's clock may be ahead of the worker's clock.
The mover leaves such a message in its place, invisible until it is due. If the mover sent the message again, the broker would deliver it at once.
If a message must wait for longer than a broker's longest delay, the mover sends it again.

If each copy of a message is refused, the broker itself moves the message to the dead letters of the group, `%DLQ%<group>-later`.
If the message is also above the broker's own limit, the broker refuses to move the message, which stays in its place.
The message comes again after ten minutes, and then after longer and longer times, up to an hour.
A broker whose limit is too low then also tries to move the message.
Such a broker tries at least every two hours (`ckRewriteIntervalsInSeconds` of 5.4's PopReviveService).
In both cases, the mover moves other messages meanwhile.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from steadyworker.adapter import Clock
from steadyworker.errors import MessageRefused, PublishFailed
from steadyworker.network.backoff import Backoff
from steadyworker_rocketmq.errors import ProxyError, is_early
from steadyworker_rocketmq.grpc.client import EARLY_EVERY, EARLY_FOR, GrpcSession, Received
from steadyworker_rocketmq.grpc.publisher import LONGEST_DELAY, GrpcPublisher
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.url import LONGEST_INVISIBLE, SHORTEST_INVISIBLE, RocketmqUrl

_MOST = 16
"""The largest number of messages that one poll receives."""

_INVISIBLE = 60
"""Seconds for which the messages of a poll are invisible. A message that is not moved by then is delivered again, to any worker process."""

_EXACT = 1.0
"""A message is due if its time is at most this many seconds from now. A proxy delivers some 0.3 s early (tried with 5.4.0)."""

_PARKED_FOR, _PARKED_MOST = 600, 3600
"""Seconds for which a message that cannot be moved is invisible: the first time, and at most. After the n-th delivery, the message is invisible for n times the first number."""

_REMEMBERED = 1000
"""The number of messages that cannot be moved and that the mover remembers, so that it reports each of them once."""


class Mover:
    """
    The thread that moves delayed messages; every method may be called from any thread.

    Args:
        url: Returns the current URL.
        names: The names of topics and groups.
        publisher: Sends the copies.
        clock: The clock.
        report: Called in the thread with the error of each failed try after the first; called with None when messages are moved again.
        refused: Called in the thread once for each message that can never be moved, with its key or id, the cause, and its fate.
    """

    def __init__(
        self,
        url: Callable[[], RocketmqUrl],
        names: QueueNames,
        publisher: GrpcPublisher,
        clock: Clock,
        report: Callable[[Exception | None], None],
        refused: Callable[[str, MessageRefused, str], None],
    ) -> None:
        self._url = url
        self._names = names
        self._publisher = publisher
        self._clock = clock
        self._report = report
        self._refused = refused
        self._parked: deque[str] = deque(maxlen=_REMEMBERED)
        self._failed = 0
        self._changed = threading.Condition()
        self._wanted = False
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._session: GrpcSession | None = None

    def wanted(self, *, wanted: bool) -> None:
        """Begin or end the moving."""
        with self._changed:
            if self._stopped or wanted == self._wanted:
                return
            if wanted and self._thread is None:
                thread = threading.Thread(target=self._run, name="rocketmq, later", daemon=True)
                thread.start()
                self._thread = thread
            self._wanted = wanted
            self._changed.notify_all()

    def stop(self) -> None:
        """End the moving permanently, and return at once."""
        with self._changed:
            self._stopped = True
            self._wanted = False
            self._changed.notify_all()
            session = self._session
        if session is not None:
            with suppress(
                RuntimeError
            ):  # If no other thread can be started, the mover's own thread closes the session after its poll.
                threading.Thread(target=session.close, name="rocketmq, close", daemon=True).start()

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff()
        while self._waited():
            began = self._clock.monotonic()
            try:
                self._move_all()
                continue
            except Exception as error:  # noqa: BLE001 - whatever the error is, the next try may succeed
                self._failed += 1
                if self._failed > 1 and self._wanted:  # A single cut connection is not reported.
                    self._report(error)
            finally:
                self._close()
            self._pause(backoff.cut(useful=self._clock.monotonic() - began > _INVISIBLE))

    def _waited(self) -> bool:
        """Wait until messages are to be moved; return False when the mover was stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._stopped)
            return not self._stopped

    def _move_all(self) -> None:
        """Move messages while `_wanted` is true; raise the error of a call that failed."""
        self._publisher.reach(self._names.later)
        session = GrpcSession(self._url(), self._names.later_group, self._names.later)
        began = self._clock.monotonic()
        with self._changed:
            if self._stopped:
                session.close()
                return
            self._session = session
        while self._wanted:
            try:
                found = session.receive(_MOST, _INVISIBLE)
            except ProxyError as error:
                if not is_early(error) or self._clock.monotonic() - began > EARLY_FOR:
                    raise
                self._pause(EARLY_EVERY)
                continue
            failures = [failed for received in found if (failed := self._move(session, received)) is not None]
            if failures:
                raise failures[0]
            if self._failed:
                self._failed = 0
                self._report(None)

    def _move(self, session: GrpcSession, received: Received) -> PublishFailed | None:
        """Move a message. If no copy could be sent, return the error. The message then comes again, and other messages are moved."""
        copy, due = received.wire.copied(received.id, received.born_at), received.wire.due
        wait = due - self._clock.wall()
        try:
            if wait > LONGEST_DELAY:
                self._publisher.send_later(copy, due)
            elif wait > _EXACT:
                session.renew(received, max(SHORTEST_INVISIBLE, min(math.ceil(wait), LONGEST_INVISIBLE)))
                return None
            else:
                self._publisher.send(self._names.work, copy)
        except MessageRefused as error:
            self._give_up(session, received, error)
            return None
        except PublishFailed as error:
            return error
        session.ack(received)
        return None

    def _give_up(self, session: GrpcSession, received: Received, cause: MessageRefused) -> None:
        """
        Let the broker move a message whose copies are never accepted; raises ProxyError.

        If the broker refuses to move the message, keep the message invisible for a while.
        """
        dead = f"%DLQ%{self._names.later_group}"
        fate = f"the broker has moved it to the dead letters of its delayed messages, the topic {dead!r}"
        try:
            session.forward(received)
        except ProxyError as error:
            if not error.code or is_early(error):  # no reply
                raise
            session.renew(received, min(_PARKED_FOR * received.attempt, _PARKED_MOST))
            fate = (
                f"the broker does not move it to {dead!r} either ({error}), so it keeps the message, "
                "which is tried again within two hours after that cause has ended"
            )
            if received.id in self._parked:
                return
            self._parked.append(received.id)
        self._refused(received.wire.key or received.id, cause, fate)

    def _close(self) -> None:
        with self._changed:
            session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                session.close()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not self._wanted, seconds)
