"""A part of ours that has died: the rest does not wait hours for it."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.config import resolve as config
from steadyworker.ledger.base import Ledger
from steadyworker.lifecycle import Stage
from steadyworker.runner.causes import Cause
from steadyworker.runner.consumer_audit import AuditResult
from steadyworker.runner.state import Inbox
from steadyworker.service.assemble import Assembly
from steadyworker.service.broker_recheck import BrokerRecheck
from steadyworker.service.dead_calls import DeadCalls
from steadyworker.service.monitor import Monitor
from steadyworker.service.service import Service
from steadyworker.slots.guard import Guard
from steadyworker.telemetry.field_logger import FieldLogger
from steadyworker.testing.clock import FakeClock
from tests.support.limits import no_further_thread

pytestmark = pytest.mark.long


class HastyClock(SystemClock):
    """Each reading takes a tenth of a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.1
        return self.now


class DeadRunner:
    """A runner whose thread dies at once."""

    killed = finished = idle = waiting = False
    final = pause = None
    slot_health = SimpleNamespace(setup_failures=0)
    audit_result = AuditResult()

    def __init__(self) -> None:
        self.deps = SimpleNamespace(spec=SimpleNamespace(queue="exports", isolation="process"), slots=[], adapter=self)
        self.inbox: Inbox[Any] = Inbox()
        self.stopped = False

    def start(self) -> None: ...

    def run(self) -> None:
        """Come to an end, as no runner's loop does by itself."""

    def not_ready(self) -> dict[str, Cause]:
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
    """Nothing receives the events of its jobs any more, and their leases would be renewed for hours."""
    clock, runner = HastyClock(), DeadRunner()

    service, _ = service_of(tmp_path, clock, [runner])

    assert service.run() == 70
    assert service.reasons[0] == "a thread of the worker process has died"
    assert runner.stopped
    assert clock.now < 60


def test_a_start_that_fails_half_way_is_reported_as_what_it_is(tmp_path: Path) -> None:
    """The stop behind it meets threads that were never started."""
    runner = DeadRunner()
    service, _ = service_of(tmp_path, HastyClock(), [runner])
    runner.start = refuse  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Too many open files"):
        service.run()
    assert runner.stopped


def refuse() -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_the_ledger_is_purged_soon_after_the_start_and_then_every_hour(tmp_path: Path) -> None:
    """A worker process that lives for seconds purges too: else rows and lock files pile up where only such ones run."""
    clock, purged = HastyClock(), list[float]()
    service, assembly = service_of(tmp_path, clock, [], purge=lambda: purged.append(clock.now))

    seconds = [1.0] * 10
    for step in [*seconds, *[60.0] * 210]:
        clock.now += step
        service._check(assembly)
        for thread in threading.enumerate():
            if thread.name == "purge":
                thread.join()

    assert len(purged) == 4
    assert purged[0] < 3 + 1 + 0.3, "at most three seconds after the start, and the next check"
    assert all(3600 <= later - earlier < 3670 for earlier, later in pairwise(purged))


def service_of(
    tmp_path: Path, clock: HastyClock, runners: list[Any], purge: Callable[[], None] = lambda: None
) -> tuple[Service, Assembly]:
    options = config.load({"state_dir": tmp_path, "stop_within": 7200}, os.environ, tmp_path)
    parts = SimpleNamespace(
        runners=runners,
        keeper=IdleKeeper(),
        repeated=[],
        recheck=BrokerRecheck([]),
        services={},
        pools=[],
        commands=deque(),
        dead_calls=DeadCalls([], cast(Ledger, None), clock),
        owner="me",
        guard=SimpleNamespace(check=lambda: None),
        ledger=SimpleNamespace(url="sqlite:ledger.db"),
        close=lambda: None,
        purge=purge,
    )
    monitor = SimpleNamespace(
        **dict.fromkeys(("open", "wait", "waits", "begin", "check", "end"), lambda *_: None), stuck=()
    )
    assembly = cast(Assembly, parts)
    return Service(options, clock, lambda: assembly, cast(Monitor, monitor)), assembly


class LivingRunner(DeadRunner):
    """A runner whose thread lives until its end, with one slot."""

    def __init__(self, slot: SimpleNamespace) -> None:
        super().__init__()
        self.deps = SimpleNamespace(
            spec=SimpleNamespace(queue="exports", isolation="process"), slots=[slot], adapter=self
        )
        self._ended = threading.Event()

    def run(self) -> None:
        self._ended.wait()

    def end(self) -> None:
        self._ended.set()


def test_a_keeper_whose_thread_has_died_ends_the_worker_process_with_70(tmp_path: Path) -> None:
    """Its leases would expire, and other worker processes would take its jobs over."""
    slot = SimpleNamespace(broken=False, stuck=False, close=lambda _within: None)
    service, assembly = service_of(tmp_path, HastyClock(), [LivingRunner(slot)])
    assembly.keeper.end()
    assert service.run() == 70
    assert service.reasons[0] == "a thread of the worker process has died"


def test_a_slot_whose_thread_has_died_ends_the_worker_process_with_70(tmp_path: Path) -> None:
    """It could not even report that it is unready."""
    slot = SimpleNamespace(broken=True, stuck=False, close=lambda _within: None)
    service, _ = service_of(tmp_path, HastyClock(), [LivingRunner(slot)])
    assert service.run() == 70
    assert service.reasons[0] == "a thread of the worker process has died"


def test_a_slot_whose_thread_hangs_fails_livez(tmp_path: Path) -> None:
    clock = FakeClock()
    slot = SimpleNamespace(id=3, last_turn=clock.monotonic())
    runner = LivingRunner(cast(Any, slot))
    runner.last_turn = None  # type: ignore[attr-defined]
    assembly = SimpleNamespace(
        runners=[runner],
        keeper=SimpleNamespace(last_turn=clock.monotonic(), hurry=lambda: None),
        reporter=SimpleNamespace(),
    )
    monitor = Monitor(clock, Times().scaled(0.001), None, {})
    monitor.begin(cast(Assembly, assembly))
    for _ in range(61):
        assert monitor.snapshot().unlive == ()
        clock.advance(1)
        monitor.check(cast(Assembly, assembly), Stage.RUNNING)
    assert monitor.snapshot().unlive == ("stuck: slot 3 of exports",)


def test_evidence_of_more_than_thirty_seconds_ago_fails_livez() -> None:
    """The main thread collects it; the thread that answers the probes sees that it is old, whatever the main thread waits for."""
    clock = FakeClock()
    monitor = Monitor(clock, Times().scaled(1000), None, {})
    turns: list[Callable[[], None]] = [
        lambda: monitor.wait("refused"),
        lambda: monitor.check(cast(Assembly, None), Stage.RUNNING),
    ]
    for turn in turns:
        turn()
        clock.advance(30)
        assert monitor.snapshot().unlive == ()
        clock.advance(1)
        assert monitor.snapshot().unlive == ("stuck: main thread, for 31 s",)
        assert monitor.state() == {"alive": False, "ready": False}


def monitored(
    changes: dict[int, set[str]], causes: dict[int, str] | None = None, hurried: list[int] | None = None
) -> list[tuple[int, str, str]]:
    """
    Check once a second a runner that is not ready for these reasons; return the second, the event and the reason of each line.

    `hurried` gets the seconds at which the monitor asked the keeper for a renewal.
    """
    hurries: list[int] = [] if hurried is None else hurried
    clock, lines = FakeClock(), list[tuple[int, str, str]]()
    unready: set[str] = changes[0]
    cause, second = "", 0
    runner = DeadRunner()
    extra: Any = runner
    extra.not_ready = lambda: dict.fromkeys(unready, Cause("why", cause))
    extra.last_turn = None
    assembly = cast(
        Assembly,
        SimpleNamespace(
            runners=[runner],
            keeper=SimpleNamespace(last_turn=clock.monotonic(), hurry=lambda: hurries.append(second)),
            reporter=SimpleNamespace(),
        ),
    )
    monitor = Monitor(clock, Times().scaled(1000), None, {})

    def line(event: str, *, part: str, **_: object) -> None:
        lines.append((second, event, part))

    monitor._log = cast(FieldLogger, SimpleNamespace(warning=line, info=line))
    monitor.begin(assembly)
    for second in range(max(changes) + 1):
        unready = changes.get(second, unready)
        cause = (causes or {}).get(second, cause)
        monitor.check(assembly, Stage.RUNNING)
        clock.advance(1)
    return lines


def test_a_process_that_is_ready_for_the_first_time_is_reported_at_once() -> None:
    """Otherwise `workers` shows a process as starting up to the next renewal, while its slots run jobs."""
    hurried: list[int] = []
    monitored({0: {"broker"}, 3: set(), 5: {"broker"}, 7: set(), 9: set()}, hurried=hurried)
    assert hurried == [3]


def test_another_cause_of_the_same_reason_is_logged_once_it_lasts() -> None:
    """A broker that starts again refuses connections first, and then the certificate: only the second one needs a person."""
    causes = {
        0: "network.connection-refused",
        20: "tls.untrusted",
        22: "network.connection-refused",
        24: "tls.untrusted",
    }
    lines = monitored({0: {"broker"}, 60: set()}, causes)
    assert lines == [
        (5, "not_ready", "exports: broker"),
        (34, "not_ready", "exports: broker"),
        (60, "ready_again", "exports: broker"),
    ]


def test_causes_that_alternate_are_one_line() -> None:
    """Two hosts of one cluster can fail in two ways."""
    causes = {second: ("network.connection-refused", "network.silent")[second % 2] for second in range(60)}
    assert monitored({0: {"broker"}, 59: {"broker"}}, causes) == [(5, "not_ready", "exports: broker")]


def test_a_start_that_takes_some_seconds_is_no_warning() -> None:
    assert monitored({0: {"broker", "setup"}, 2: {"setup"}, 4: set(), 9: set()}) == []


def test_a_start_that_takes_longer_is_a_warning() -> None:
    lines = monitored({0: {"setup"}, 9: set()})
    assert lines == [(5, "not_ready", "exports: setup"), (9, "ready_again", "exports: setup")]


def test_an_outage_right_behind_the_start_is_a_warning_as_any_other() -> None:
    lines = monitored({0: set(), 1: {"broker"}, 4: set()})
    assert lines == [(2, "not_ready", "exports: broker"), (4, "ready_again", "exports: broker")]


def test_a_purge_that_gets_no_thread_ends_no_job(tmp_path: Path) -> None:
    clock = HastyClock()
    service, assembly = service_of(tmp_path, clock, [])
    clock.now += 60
    with no_further_thread():
        service._check(assembly)
    assert service.reasons == []


def test_a_stop_that_gets_no_thread_closes_every_part_all_the_same(tmp_path: Path) -> None:
    closed = list[int]()
    slots = [SimpleNamespace(close=lambda _within, n=number: closed.append(n)) for number in range(3)]
    service, assembly = service_of(tmp_path, HastyClock(), [])
    with no_further_thread():
        service._close(assembly, [slot.close for slot in slots], 5.0)
    assert closed == [0, 1, 2]


def test_the_guard_is_checked_once_a_second_in_a_stop_too(tmp_path: Path) -> None:
    clock, checked = FakeClock(), list[float]()
    service, assembly = service_of(tmp_path, cast(HastyClock, clock), [])
    assembly.guard = cast(Guard, SimpleNamespace(check=lambda: checked.append(clock.monotonic())))
    service.drain("a test")
    for _ in range(200):
        service._check(assembly)
        clock.advance(0.02)
    assert len(checked) == 4
