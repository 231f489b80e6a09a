"""A part of ours that has died: the rest does not wait hours for it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from steadyworker import config
from steadyworker.clock import SystemClock
from steadyworker.runner.consumer_audit import AuditResult, AuditThread
from steadyworker.service.assemble import Assembly
from steadyworker.service.monitor import Monitor
from steadyworker.service.service import Service


class HastyClock(SystemClock):
    """Each look at it takes a tenth of a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.1
        return self.now


class DeadRunner:
    """A runner whose thread dies at once."""

    killed = finished = idle = waiting = False
    final = None
    slot_health = SimpleNamespace(setup_failures=0)
    audit_result = AuditResult()

    def __init__(self) -> None:
        self.deps = SimpleNamespace(spec=SimpleNamespace(queue="exports"), slots=[], adapter=self)
        self.stopped = False

    def start(self) -> None: ...

    def run(self) -> None:
        """Come to an end, as no runner's loop does by itself."""

    def not_ready(self) -> dict[str, str]:
        return {}

    def post(self, event: Any) -> None: ...

    def end(self) -> None: ...

    def stop(self, within: float) -> None:
        self.stopped = True


class IdleKeeper:
    """A keeper with nothing to renew."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def turn(self) -> None: ...

    def run(self) -> None:
        self._ended.wait()

    def end(self) -> None:
        self._ended.set()


def test_a_runner_whose_thread_has_died_is_not_waited_for_until_the_end_of_a_long_stop(tmp_path: Path) -> None:
    """Nobody hears its jobs any more, and their leases would be renewed for hours."""
    clock, runner = HastyClock(), DeadRunner()
    options = config.load({"state_dir": tmp_path, "stop_within": 7200}, os.environ, tmp_path)
    assembly = SimpleNamespace(
        runners=[runner],
        keeper=IdleKeeper(),
        audit_thread=AuditThread({}),
        services={},
        pools=[],
        owner="me",
        guard=SimpleNamespace(check=lambda: None),
        ledger=SimpleNamespace(url="memory:"),
        close=lambda: None,
        purge=lambda: None,
    )
    monitor = SimpleNamespace(
        **dict.fromkeys(("open", "wait", "waits", "begin", "look", "end"), lambda *_: None), stuck=()
    )

    service = Service(options, clock, lambda: cast(Assembly, assembly), cast(Monitor, monitor))

    assert service.run() == 70
    assert service.reasons[0] == "a thread of the worker process has died"
    assert runner.stopped
    assert clock.now < 60
