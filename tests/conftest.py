"""What every test gets: an environment of its own, a poll with a deadline, and the rules for missing tools."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.adapters.fault_suite", "tests.adapters.fault_suite_network")
pytest_plugins = ["tests.brokers.fixtures", "tests.brokers.place_fixtures", "tests.minutes", "tests.scheduling"]

WHOLE = {"fleet", "house", "shell", "stage", "wheel"}
"""The fixtures by which tests start worker processes and commands: they mark a test, and `make test-fast` leaves it out."""

Value = TypeVar("Value")

_NUMBERS = itertools.count()


class Eventually(Protocol):
    def __call__(self, probe: Callable[[], Value], *, within: float = 60.0) -> Value: ...


def pytest_configure() -> None:
    # A script that starts the tests with `&` lets them, and all that they start, ignore interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # In CI a failure must be found again by the next run; on two busy cores a deadline per example is noise.
    settings.register_profile("ci", derandomize=True, deadline=None)
    settings.register_profile("here", deadline=None)
    settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.hookimpl(tryfirst=True)  # before `-m` is judged
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if WHOLE & set(getattr(item, "fixturenames", ())):
            item.add_marker("processes")
        if item.get_closest_marker("timeout"):
            item.add_marker("long")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark") and not has_java():
        missing = "Java 17 or newer was not found on PATH or in JAVA_HOME: run `make java`"
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)


@cache
def has_java() -> bool:
    """Whether the Java that Spark would start is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if not java or not Path(java).exists():
        return False
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    return version is not None and int(version[1]) >= 17


@pytest.fixture(autouse=True)
def own_environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    No setting of the developer's machine reaches a test, and no state of a test stays on the machine.

    Variables of the tests themselves stay: they name servers and the cache folder, and no setting is read from them.
    A folder is made for those alone that ask for one: it takes a fifth of the time of a quick test, and there are thousands.
    """
    if "tmp_path" in request.fixturenames:
        folder: Path = request.getfixturevalue("tmp_path")
    else:
        folder = tmp_path_factory.getbasetemp() / f"unmade-{next(_NUMBERS)}"
    for name in list(os.environ):
        ours = name.startswith("STEADYWORKER_") and not name.startswith("STEADYWORKER_TEST_")
        if ours or name in {"STATE_DIRECTORY", "NOTIFY_SOCKET", "FORCE_COLOR", "NO_COLOR"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))


@pytest.fixture
def eventually() -> Eventually:
    """
    Wait for an event: ask `probe` until it answers something true, and return that.

    Fails after `within` seconds, with the last answer.
    """

    def wait(probe: Callable[[], Value], *, within: float = 60.0) -> Value:
        deadline = time.monotonic() + within
        while not (answer := probe()):
            if time.monotonic() > deadline:
                pytest.fail(f"not within {within:g} s; the last answer was {answer!r}")
            time.sleep(0.01)
        return answer

    return wait
