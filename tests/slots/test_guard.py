"""The guard process by itself: it ends the sessions that it knows, and is replaced when it cannot."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.clock import SystemClock
from steadyworker.ledger.owners import OwnerLock, is_dead, new_owner_id
from steadyworker.slots.guard import Guard
from tests.conftest import Eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a session of its own."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def test_it_ends_the_sessions_that_are_left_and_frees_the_lock_after_that(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    owner = new_owner_id()
    lock = OwnerLock(tmp_path, owner)
    guard = Guard([lock.fd], SystemClock())
    guard.watch(sleeper.pid)
    lock.release()
    assert not is_dead(tmp_path, owner)
    guard.close()
    assert is_dead(tmp_path, owner)
    assert sleeper.wait() == -signal.SIGKILL


def test_it_leaves_alone_what_it_was_asked_to_forget(sleeper: subprocess.Popen[bytes]) -> None:
    guard = Guard([], SystemClock())
    guard.watch(sleeper.pid)
    guard.forget(sleeper.pid)
    guard.close()
    assert sleeper.poll() is None


DIES_BEHIND_THE_START = """
import os, sys
from steadyworker.clock import SystemClock
from steadyworker.slots.guard import Guard

class Killed(Guard):
    def _started(self):
        super()._started()
        os.kill(os.getpid(), 9)

Killed([], SystemClock()).watch(int(sys.argv[1]))
"""


def test_it_knows_the_sessions_of_a_parent_that_is_killed_as_soon_as_it_has_started_it(
    sleeper: subprocess.Popen[bytes],
) -> None:
    parent = subprocess.run([sys.executable, "-c", DIES_BEHIND_THE_START, str(sleeper.pid)], check=False)
    assert parent.returncode == -signal.SIGKILL
    assert sleeper.wait(10) == -signal.SIGKILL


def test_one_that_is_stopped_is_replaced_and_never_waited_for(sleeper: subprocess.Popen[bytes]) -> None:
    guard = Guard([], SystemClock())
    guard.watch(sleeper.pid)
    first = guard.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    while guard.pid == first:  # until its pipe takes no more
        guard.forget(0)
    assert not psutil.pid_exists(first)
    assert sleeper.poll() is None
    guard.close()
    assert sleeper.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (errno.EMFILE, "raise this process's limit of open files (`ulimit -n`)"),
        (errno.EAGAIN, "allow this user one more process"),
    ],
    ids=["files", "processes"],
)
def test_one_that_cannot_be_started_is_reported_with_the_limit_that_was_reached(
    sleeper: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: int,
    remedy: str,
) -> None:
    guard = Guard([], SystemClock())
    if error == errno.EMFILE:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            guard.watch(sleeper.pid)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    else:  # root has no such limit
        monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=BlockingIOError(error, os.strerror(error))))
        guard.watch(sleeper.pid)
    (record,) = caplog.records
    assert isinstance(record.msg, dict)
    assert (record.msg["event"], record.msg["remedy"]) == ("guard_missing", remedy)


FORKED = """
import os, signal, sys, time
from steadyworker.clock import SystemClock
from steadyworker.slots.guard import Guard

guard = Guard([], SystemClock())
guard.watch(int(sys.argv[1]))
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


def test_a_fork_that_outlives_its_worker_process_holds_no_guard_back(
    sleeper: subprocess.Popen[bytes], eventually: Eventually
) -> None:
    process = subprocess.Popen([sys.executable, "-c", FORKED, str(sleeper.pid)], process_group=0)
    assert process.wait() == -signal.SIGKILL
    assert eventually(sleeper.poll, within=10) == -signal.SIGKILL
    os.killpg(process.pid, signal.SIGKILL)


LEADS = """
import os, subprocess, sys
from steadyworker.clock import SystemClock
from steadyworker.slots.guard import Guard

guard = Guard([], SystemClock())
guard.watch_own_session()
print(guard.pid, subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.readline()
if sys.argv[1] == "stopped" and guard.pid:
    os.kill(guard.pid, 19)
if sys.argv[1] != "left":
    guard.close()
sys.exit(5)
"""


@pytest.mark.parametrize("end", ["closed", "stopped", "left"])
@pytest.mark.parametrize("leads", [True, False], ids=["its own session", "a session of others"])
def test_a_process_ends_by_itself_and_its_session_is_ended_only_if_it_led_it_and_did_not_close_the_guard(
    eventually: Eventually, end: str, leads: bool
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEADS, end], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=leads
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        guard, started = process.stdout.readline().split()
        assert (guard != b"None") is leads
        sleeper = psutil.Process(int(started))
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(20) == 5
    if leads:
        if end == "stopped":
            os.kill(int(guard), signal.SIGCONT)
        eventually(lambda: not psutil.pid_exists(int(guard)), within=10)
    if leads and end == "left":
        eventually(lambda: not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE, within=10)
    else:
        assert sleeper.is_running()
        sleeper.kill()
