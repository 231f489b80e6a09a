"""A trace inside of the test's process, with its reader in another thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from steadyworker.clock import SystemClock
from steadyworker.diagnosis.conversation import Known
from steadyworker.diagnosis.relay import BrokerTarget
from steadyworker.diagnosis.tap import MOST_WAITING
from steadyworker.diagnosis.tracing import Conversations, Tracing
from steadyworker.diagnosis.wire import Event, Wire

WITHIN = 30.0


class Traced:
    """A trace in front of the server of a URL or of `HOST:PORT`; `events` are all that it wrote."""

    def __init__(self, to: str, *, target: BrokerTarget | None = None, most: int = MOST_WAITING) -> None:
        parts = urlsplit(to if "://" in to else f"//{to}")
        assert parts.hostname
        assert parts.port
        self._url = to
        self.events: list[Event] = []
        self.clock = SystemClock()
        self.wire = Wire(self.clock.monotonic(), [self._note])
        self._changed = threading.Condition()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        addresses = [(socket.AF_INET, (parts.hostname, parts.port))]
        target = replace(target, addresses=addresses) if target else BrokerTarget(addresses)
        self.conversations = Conversations(self.wire, Known.at(parts.port))
        self.reading = threading.Event()
        self.reading.set()
        self._stopped = False
        self._tracing = Tracing(listener, target, self.conversations, self.clock, most=most)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._stopped and self._tracing.step():
            self.reading.wait()
        self._tracing.stop()

    def through(self) -> str:
        """The URL of the server, through the trace."""
        parts = urlsplit(self._url)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}").geturl()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the trace; all events are there then."""
        self._stopped = True
        self._thread.join(WITHIN)
        assert not self._thread.is_alive()

    def _note(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def tick(self) -> None:
        """Look at the silences, as the command does when nothing passes."""
        self.conversations.tick(self.clock.monotonic())

    def wait(self, wanted: Callable[[Event], Any], within: float = WITHIN) -> Event:
        """Return the first event that is wanted, when it is there."""

        def found() -> Event | None:
            return next((event for event in self.events if wanted(event)), None)

        with self._changed:
            if not self._changed.wait_for(found, within):
                shown = "\n".join(map(str, self.events[-40:]))
                raise TimeoutError(f"no such event within {within:g} s; the last ones:\n{shown}")
            event = found()
            assert event is not None
            return event

    def wait_kind(self, kind: str, **fields: object) -> Event:
        """Return the first event of a kind with these fields, when it is there."""
        return self.wait(lambda event: event["kind"] == kind and fields.items() <= event.items())

    def wait_flag(self, flag: str, **fields: object) -> Event:
        """Return the first flag with this id, when it is there."""
        return self.wait_kind("flag", id=flag, **fields)

    def flags(self) -> list[str]:
        """The ids of all flags, in their order."""
        return [event["id"] for event in self.events if event["kind"] == "flag"]

    def of(self, kind: str, **fields: object) -> list[Event]:
        """All events of a kind with these fields."""
        return [event for event in self.events if event["kind"] == kind and fields.items() <= event.items()]
