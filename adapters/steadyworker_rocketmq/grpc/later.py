"""
Moves delayed messages that are due from the topic `<queue>-later` to the work topic: a copy first, then an acknowledgement.

Each worker that takes jobs does this, in a consumer group of its own, so that a moved message is in one place at any time.
If a worker ends between copy and acknowledgement, the message is moved twice; both copies have the same id, and are one job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from steadyworker.adapter import Clock
from steadyworker.errors import SteadyWorkerError
from steadyworker.network.backoff import Backoff
from steadyworker_rocketmq.errors import ProxyError, is_early
from steadyworker_rocketmq.grpc.client import Received, Session
from steadyworker_rocketmq.grpc.publisher import Publisher
from steadyworker_rocketmq.names import Names
from steadyworker_rocketmq.url import BrokerUrl

_MOST = 16
"""The largest number of messages that one poll receives."""

_INVISIBLE = 60
"""The seconds for which the messages of a poll are invisible; one that is not moved by then is delivered again, to any worker process."""

_EARLY = 0.5
"""Seconds between two polls of a session that the proxy does not know yet."""


class Mover:
    """
    The thread that moves delayed messages; every method may be called from any thread.

    Args:
        url: Returns the current URL.
        names: The names of topics and groups.
        publisher: Sends the copies.
        clock: The clock.
    """

    def __init__(self, url: Callable[[], BrokerUrl], names: Names, publisher: Publisher, clock: Clock) -> None:
        self._url = url
        self._names = names
        self._publisher = publisher
        self._clock = clock
        self._changed = threading.Condition()
        self._wanted = False
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._session: Session | None = None

    def wanted(self, *, wanted: bool) -> None:
        """Begin or end the moving."""
        with self._changed:
            if self._stopped or wanted == self._wanted:
                return
            self._wanted = wanted
            if wanted and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rocketmq, later", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def stop(self) -> None:
        """End the moving for good; returns at once."""
        with self._changed:
            self._stopped = True
            self._wanted = False
            self._changed.notify_all()
            session = self._session
        if session is not None:
            threading.Thread(target=session.close, name="rocketmq, close", daemon=True).start()

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff()
        while self._waited():
            began = self._clock.monotonic()
            try:
                self._move_all()
                continue
            except (ProxyError, SteadyWorkerError, OSError):
                pass  # the consumer's own connection says so
            finally:
                self._close()
            self._pause(backoff.cut(useful=self._clock.monotonic() - began > _INVISIBLE))

    def _waited(self) -> bool:
        """Wait until messages are to be moved; return False once that is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._stopped)
            return not self._stopped

    def _move_all(self) -> None:
        """Move messages until that is no longer wanted; raise the error of a call that failed."""
        session = Session(self._url(), self._names.later_group, self._names.later)
        with self._changed:
            if self._stopped:
                session.close()
                return
            self._session = session
        while self._wanted:
            try:
                found = session.receive(_MOST, _INVISIBLE)
            except ProxyError as error:
                if not is_early(error):
                    raise
                self._pause(_EARLY)
                continue
            for received in found:
                self._move(session, received)

    def _move(self, session: Session, received: Received) -> None:
        wire, id_ = received.wire, received.wire.original_id or received.id
        if wire.due > self._clock.wall() + 1:  # a delay that is longer than the broker's longest
            self._publisher.send_later(wire.copied(id_, received.born_at), wire.due)
        else:
            self._publisher.send(self._names.work, wire.copied(id_, received.born_at))
        session.ack(received)

    def _close(self) -> None:
        with self._changed:
            session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                session.close()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not self._wanted, seconds)
