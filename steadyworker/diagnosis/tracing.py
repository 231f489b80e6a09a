"""
A trace: the relay in a separate process, and the reader of the relay's records in this process.

    with Tracing(listener, target, conversations, clock) as tracing:
        while tracing.step():
            ...

`step` returns after some records, or after a short time without records, so that the caller can check its own limits.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from steadyworker.clock import Clock
from steadyworker.diagnosis.amqp import AmqpReader
from steadyworker.diagnosis.conversation import NOT_READ, Conversation, Known
from steadyworker.diagnosis.relay import BrokerTarget, Relay
from steadyworker.diagnosis.tap import Ring, TapReader, TapRecord, TapWriter, What, pipe
from steadyworker.diagnosis.wire import Wire

TICK = 0.25
"""The longest time in seconds between two checks of silences."""

_NICE = 10
_FAILED = 70
_ACTIONS: Mapping[What, Callable[[Conversation, TapRecord], None]] = {
    What.DATA: lambda it, record: it.data(record.t, record.side, record.data),
    What.SKIPPED: lambda it, record: it.missed(record.t, record.side, record.size, record.facts.get("why", NOT_READ)),
    What.CONNECTED: lambda it, record: it.connected(record.t, record.facts),
    What.FAILED: lambda it, record: it.failed(record.t, record.side, record.facts["error"]),
    What.ENDED: lambda it, record: it.ended(record.t, record.side, "fin"),
    What.RESET: lambda it, record: it.ended(record.t, record.side, "reset", record.facts.get("error")),
    What.QUEUE: lambda it, record: it.queue(
        record.t, record.side, waiting=record.facts["bytes"], since=record.facts["since"], stuck=record.facts["stuck"]
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
            self._wire.event(record.t, None, "trace", "trouble", **record.facts)
        else:
            _ACTIONS[record.what](self._open[record.link], record)
            if record.what is What.CLOSED:
                del self._open[record.link]

    def tick(self, t: float) -> None:
        """Check the silences of all connections."""
        self._next_tick = t + TICK
        for conversation in self._open.values():
            if conversation.due() <= t:
                conversation.tick(t)


def check_installed() -> None:
    """
    Check that connections can be read; this happens before the first connection comes.

    Raises:
        ConfigError: A library is not installed; the message names the extra.
    """
    AmqpReader(opening=True)


class Tracing:
    """
    The relay's process, and the reader of its records.

    Raises:
        RelayFailed: An error in the relay's process ended this process.
    """

    def __init__(
        self, listener: socket.socket, target: BrokerTarget, conversations: Conversations, clock: Clock
    ) -> None:
        self._conversations = conversations
        self._clock = clock
        ring = Ring()
        reads, writes = pipe()
        control, self._control = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if not self._pid:
            ring.populate()
            _be_relay(
                lambda: Relay(listener, target, TapWriter(ring, writes), control, clock.monotonic).run(),
                (reads, self._control),
            )
        for end in (writes, control):
            os.close(end)
        listener.close()
        self._pipe = reads
        self._reader = TapReader(ring, reads)
        with suppress(OSError):
            os.nice(_NICE)  # if there are few cores, the relay, the client and the broker come first
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # no preemption of these programs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def step(self) -> bool:
        """Read the records that have come, after a wait of at most `TICK`; return whether the relay still runs."""
        ready, _, _ = select.select([self._pipe], [], [], TICK)
        if ready:
            for record in self._reader.records():
                self._conversations.receive(record)
        else:
            self._conversations.tick(self._clock.monotonic())
        return not self._reader.at_end

    def stop(self) -> None:
        """End the relay, which closes all connections, and read its last records."""
        if self._control < 0:
            return
        os.close(self._control)
        self._control = -1
        try:
            while self.step():
                pass
        finally:
            os.close(self._pipe)
            _, status = os.waitpid(self._pid, 0)
        if code := os.waitstatus_to_exitcode(status):
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            raise RelayFailed(f"the process that passes the bytes {how}, and all connections with it")


class RelayFailed(RuntimeError):
    """The error if the relay's process was killed, or has ended with an error; standard error has that error's text."""


def _be_relay(run: Callable[[], None], not_mine: tuple[int, ...]) -> None:
    """Run the relay in this new process, and end the process; the other process decides when the relay ends."""
    code = _FAILED
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        for end in not_mine:
            os.close(end)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        run()
        code = 0
    except BrokenPipeError:
        code = 0  # the other process was killed
    except BaseException:  # noqa: BLE001 - the process ends here, and reports why
        traceback.print_exc()
    finally:
        os._exit(code)
