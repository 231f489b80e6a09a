"""
A trace: the relay in a thread, and the reader of the relay's records in the caller's thread.

    with Tracing(listener, target, conversations, clock) as tracing:
        while tracing.step():
            ...

`step` returns after some records, or after a short time without records, so that the caller can check its own limits.
"""

from __future__ import annotations

import asyncio
import queue
import resource
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from steadyworker.clock import Clock
from steadyworker.diagnosis.conversation import NOT_READ, Conversation, Known
from steadyworker.diagnosis.relay import BrokerTarget, Relay, text_of_mistake
from steadyworker.diagnosis.tap import MOST_WAITING, Tap, TapRecord, What
from steadyworker.diagnosis.wire import Wire

TICK = 0.25
"""The longest time in seconds between two checks of silences."""

_SWITCH = 0.0002  # seconds for which the reader may keep the interpreter while a byte waits for the relay
_ACTIONS: Mapping[What, Callable[[Conversation, TapRecord], None]] = {
    What.DATA: lambda it, record: it.data(record.t, record.side, record.data),
    What.SKIPPED: lambda it, record: it.missed(record.t, record.side, record.size, record.facts.get("why", NOT_READ)),
    What.CONNECTED: lambda it, record: it.connected(record.t, record.facts),
    What.FAILED: lambda it, record: it.failed(record.t, record.side, record.facts["error"]),
    What.ENDED: lambda it, record: it.ended(record.t, record.side, "fin"),
    What.RESET: lambda it, record: it.ended(record.t, record.side, "reset", record.facts.get("error")),
    What.BLOCKED: lambda it, record: it.blocked(
        record.t, record.side, blocked=record.facts["blocked"], waiting=record.facts["bytes"]
    ),
    What.CLOSED: lambda it, record: it.closed(record.t, by_trace=record.facts["by_trace"]),
}


class Conversations:
    """All connections of a trace, by number; this object receives records in the order of their time."""

    def __init__(self, wire: Wire, known: Known) -> None:
        self._wire = wire
        self._known = known
        self._open: dict[int, Conversation] = {}
        self._next_tick = 0.0

    def receive(self, record: TapRecord) -> None:
        """Receive the next record."""
        if record.t >= self._next_tick:
            self.tick(record.t)
        if record.what is What.OPENED:
            conversation = self._open[record.link] = Conversation(self._wire, record.link, self._known)
            conversation.opened(record.t, record.facts)
        elif record.what is What.TROUBLE:
            self._wire.event(record.t, record.link or None, "trace", "trouble", **record.facts)
        else:
            conversation = self._open[record.link]
            try:
                _ACTIONS[record.what](conversation, record)
            except Exception as error:  # noqa: BLE001 - no bytes of one connection may end all others
                conversation.give_up(record.t)
                text = f"{text_of_mistake(error)}: this connection is no longer read"
                self._wire.event(record.t, record.link, "trace", "trouble", error=text)
            if record.what is What.CLOSED:
                del self._open[record.link]

    def tick(self, t: float) -> None:
        """Check the silences of all connections."""
        self._next_tick = t + TICK
        for conversation in self._open.values():
            if conversation.due() <= t:
                conversation.tick(t)


class Tracing:
    """
    The relay's thread, and the reader of its records.

    `most` is the number of bytes that may wait for the reader.

    Raises:
        RelayFailed: An error ended the relay.
    """

    def __init__(
        self,
        listener: socket.socket,
        target: BrokerTarget,
        conversations: Conversations,
        clock: Clock,
        *,
        most: int = MOST_WAITING,
    ) -> None:
        self._conversations = conversations
        self._clock = clock
        self._tap = Tap(most)
        self._relay = Relay(listener, target, self._tap, clock.monotonic)
        self._loop = asyncio.new_event_loop()
        self._failure: BaseException | None = None
        self._ended = False
        self._task = self._loop.create_task(self._relay.run())
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        self._switch = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def step(self) -> bool:
        """Read the records that have come, after a wait of at most `TICK`; return whether the relay still runs."""
        try:
            for record in self._tap.records(TICK):
                self._conversations.receive(record)
        except queue.Empty:
            self._conversations.tick(self._clock.monotonic())
        except EOFError:
            self._ended = True
        return not self._ended

    def stop(self) -> None:
        """End the relay, which closes all connections, and read its last records."""
        with suppress(RuntimeError):  # the loop is closed if the relay has failed
            self._loop.call_soon_threadsafe(self._task.cancel)
        while not self._ended:
            self.step()
        self._thread.join()
        sys.setswitchinterval(self._switch)
        if self._failure is not None:
            raise RelayFailed("the relay failed, and all connections with it") from self._failure

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - `stop` raises it in the other thread
            self._failure = error
        finally:
            self._loop.close()


class RelayFailed(RuntimeError):
    """The error if an error ended the relay, which is its cause."""
