"""
Prints where the minutes of a test run went, at its end: by folder, the slowest tests, and the processes that were started.

Seconds are setup, call and teardown of each test, summed over the workers of xdist.
CPU seconds are those of the test process and of the children that it has waited for.
A folder whose seconds are far above its CPU seconds waits: more workers make it faster.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from pathlib import PurePath

import pytest

SLOWEST = 15
"""So many tests are named."""

PROGRAMS = {"rabbitmq-server": "RabbitMQ", "postgres": "PostgreSQL", "java": "JVM", "erl_call": "erl_call"}
"""Programs that are counted by a name of their own, also where `unshare` or `setpriv` starts them."""


def folder(nodeid: str) -> str:
    """Return the folder of a test, below `tests`; a file directly in `tests` counts for itself."""
    path = PurePath(nodeid.partition("::")[0])
    below = path.parts[path.parts[:1] == ("tests",) :]
    return "/".join(below[:-1]) or path.name


def program(arguments: object) -> str:
    """Return what a started process is counted as."""
    given = arguments if isinstance(arguments, (list, tuple)) else [arguments]
    names = [PurePath(os.fsdecode(part)).name for part in given if isinstance(part, (str, bytes, os.PathLike))]
    known = next((PROGRAMS[name] for name in names if name in PROGRAMS), "")
    return known or (names[0].rstrip("0123456789.") if names else "?")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


class Minutes:
    """Collects seconds, CPU seconds and starts; the controller of xdist receives them from its workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._worker_output: dict[str, object] | None = getattr(config, "workeroutput", None)
        self._started = time.monotonic()
        self._cpu = cpu_seconds()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._cpu_of: dict[str, float] = {}
        self._starts: Counter[str] = Counter()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, given: tuple[object, ...]) -> None:
        if event == "subprocess.Popen":
            self._starts[program(given[1])] += 1

    # --- In the process that runs the tests ---------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
        if call.when == "teardown":
            now = cpu_seconds()
            item.user_properties.append(("cpu_seconds", now - self._cpu))
            self._cpu = now
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if self._worker_output is not None:
            self._worker_output["starts"] = dict(self._starts)

    # --- In the process that reports ----------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._starts.update(getattr(node, "workeroutput", {}).get("starts", {}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.when == "teardown":
            self._cpu_of[report.nodeid] = sum(
                float(value)
                for name, value in report.user_properties
                if name == "cpu_seconds" and isinstance(value, float)
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        say = terminalreporter
        say.section("minutes by folder")
        rows: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        for nodeid, seconds in self._seconds.items():
            for name in (folder(nodeid), "all"):
                row = rows[name]
                row[0] += 1
                row[1] += seconds
                row[2] += self._cpu_of.get(nodeid, 0.0)
        say.write_line(f"{'folder':<28}{'tests':>7}{'seconds':>10}{'CPU':>8}")
        for name, (tests, seconds, cpu) in sorted(rows.items(), key=lambda row: -row[1][1]):
            if name == "all" or seconds >= 1:
                say.write_line(f"{name:<28}{tests:>7.0f}{seconds:>10.1f}{cpu:>8.1f}")
        for nodeid in sorted(self._seconds, key=lambda nodeid: -self._seconds[nodeid])[:SLOWEST]:
            say.write_line(f"{self._seconds[nodeid]:>8.1f} s {self._cpu_of.get(nodeid, 0.0):>6.1f} CPU  {nodeid}")
        starts = ", ".join(f"{count} {name}" for name, count in self._starts.most_common())
        say.write_line(f"started by the tests: {starts or 'no process'}")
        say.write_line(f"wall time: {time.monotonic() - self._started:.0f} s")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Minutes(config), "minutes")
