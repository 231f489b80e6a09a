"""Starts and stops of a whole worker process in one Python process leave nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker import Client
from steadyworker.clock import SystemClock, Times
from steadyworker.config import resolve as config
from steadyworker.events import Event, JobSettled
from steadyworker.service.assemble import Assembly, assemble, plan
from steadyworker.service.monitor import Monitor
from steadyworker.service.service import Service
from steadyworker.worker import load_worker
from tests.support.stage import ROOT, eventually

pytestmark = pytest.mark.processes


def left_behind() -> tuple[set[threading.Thread], int, int]:
    """The threads, open descriptors and children of this process."""
    me = psutil.Process()
    return set(threading.enumerate()), me.num_fds(), len(me.children(recursive=True))


def no_more_than(before: tuple[set[threading.Thread], int, int]) -> bool:
    """What an earlier test has left may end meanwhile: fewer is fine."""
    threads, descriptors, children = left_behind()
    return threads <= before[0] and descriptors <= before[1] and children <= before[2]


def cycle(target: str, folder: Path, number: int) -> int:
    """Start, run one job, and stop by a signal; return the exit code."""
    broker, ledger = f"sqlite:{folder / 'broker.db'}", f"sqlite:{folder / 'ledger.db'}"
    worker = load_worker(target)
    with Client(broker, ledger=ledger) as client:
        client.send(worker, {}, key=f"job-{number}")
    given = {"broker": broker, "ledger": ledger, "health": "127.0.0.1:0", "state_dir": str(folder)}
    options = config.load(given, {}, folder)

    def stop(event: Event) -> None:
        if isinstance(event, JobSettled):
            os.kill(os.getpid(), signal.SIGTERM)

    def wired() -> Assembly:
        return assemble(planned, [stop])

    planned = plan([worker], options)
    clock = SystemClock()
    return Service(options, clock, wired, Monitor(clock, Times(), options.health, {})).run()


@pytest.mark.parametrize(("target", "cycles"), [("Threaded", 50), ("Slow", 10)], ids=["threads", "processes"])
def test_starts_and_stops_leave_no_thread_descriptor_or_child(
    target: str, cycles: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGE_FOLDER", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)]
    assert cycle(f"tests.support.jobs:{target}", tmp_path, 0) == 0  # whatever is made once is made now
    before = left_behind()
    for number in range(1, cycles + 1):
        assert cycle(f"tests.support.jobs:{target}", tmp_path, number) == 0
    eventually(lambda: no_more_than(before), f"{left_behind()}, no more than before: {before}", within=5)
    assert handlers == [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    ]
    assert [path.name for path in tmp_path.glob("*.consumers/*")] == []
