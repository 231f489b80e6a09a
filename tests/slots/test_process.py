"""What only a child process can promise: it dies in any way, and the worker process and the next run do not care."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.outcome import Crashed, Done, Failed, Interrupted, Outcome, Rejected
from steadyworker.slots import child_process, spawn
from steadyworker.slots import process as process_module
from steadyworker.slots.base import Ended, Progressed, Ready, Unready
from steadyworker.slots.frames import PROTOCOL
from steadyworker.slots.process import ProcessSlot
from steadyworker.system.procfs import kill_sessions
from tests.conftest import Eventually
from tests.slots.conftest import MakeRig
from tests.slots.kit import SOON, Rig

pytestmark = pytest.mark.processes


def pid_of(rig: Rig) -> int:
    assert isinstance(rig.slot, ProcessSlot)
    assert rig.slot.pid is not None
    return rig.slot.pid


def open_descriptors() -> int:
    return int(psutil.Process().num_fds())


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("do", "outcome"),
    [
        ("segfault", Crashed("SIGSEGV")),
        ("leave_silently", Crashed("exit 0")),
        ("leave_with_three", Crashed("exit 3")),
        ("kill_itself", Crashed("SIGKILL")),
    ],
)
def test_a_child_that_dies_is_an_outcome_and_is_replaced_at_once(rig: MakeRig, do: str, outcome: Outcome) -> None:
    slot = rig().start()
    ended = slot.ended(do)
    assert (ended.outcome, ended.killed) == (outcome, False)
    slot.next(Ready, within=SOON)
    assert slot.ended().outcome == Done()


def test_the_memory_of_the_whole_group_is_limited(rig: MakeRig) -> None:
    slot = rig(memory_limit="150 MiB").start()
    for do in ("eat_memory", "eat_memory_in_a_grandchild"):
        outcome = slot.ended(do).outcome
        assert isinstance(outcome, Crashed)
        assert outcome.cause.startswith("memory-limit: ")
        assert outcome.cause.endswith(" MiB of 150.0 MiB")
        slot.next(Ready, within=SOON)


@pytest.mark.parametrize("do", ["sleep", "hold_gil", "hang_in_c"])
def test_the_time_limit_first_interrupts(rig: MakeRig, do: str) -> None:
    """All three return to Python at the signal, and find an Interrupt there."""
    slot = rig().start()
    pid = pid_of(slot)
    ended = slot.ended(do, time_limit=0.5)
    assert ended.outcome == Failed("time-limit")
    assert 0.4 <= ended.seconds < 0.4 + SOON
    if not ended.killed:
        assert pid_of(slot) == pid


@pytest.mark.parametrize("target", ["Modes", "Asynchronous"])
def test_the_time_limit_then_kills(rig: MakeRig, target: str) -> None:
    slot = rig(target).start()
    ended = slot.ended("deaf" if target == "Modes" else "block", time_limit=0.5)
    assert (ended.outcome, ended.killed) == (Failed("time-limit"), True)
    assert 0.5 <= ended.seconds < 0.5 + SOON
    slot.next(Ready, within=SOON)
    assert slot.ended().outcome == Done()


def test_a_stalled_child_writes_its_stacks_and_is_killed(rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    slot = rig().start()
    ended = slot.ended("hold_gil", stall_limit=0.3)
    assert (ended.outcome, ended.killed) == (Failed("stalled"), True)
    assert "in hold_gil" in caplog.text


def test_progress_is_no_stall(rig: MakeRig) -> None:
    slot = rig().start()
    fence = slot.begin("until_progress_raises", stall_limit=0.6)
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        slot.next(Progressed)
    slot.slot.interrupt(fence, "shutdown", hard=True)
    assert slot.next(Ended).outcome == Interrupted()


def test_interrupt_is_raised_once_so_that_cleaning_up_is_left_in_peace(rig: MakeRig, tmp_path: Path) -> None:
    slot = rig().start()
    fence = slot.begun("cleans_up_in_peace", file=str(tmp_path / "file"))
    slot.slot.interrupt(fence, "shutdown", hard=True)
    assert slot.next(Ended).outcome == Interrupted()
    assert (tmp_path / "file").read_text(encoding="utf-8") == "clean"


def test_an_interrupt_that_python_swallows_is_raised_again(rig: MakeRig) -> None:
    slot = rig().start()
    pid = pid_of(slot)
    fence = slot.begun("is_interrupted_in_del")
    slot.slot.interrupt(fence, "shutdown", hard=True)
    ended = slot.next(Ended)
    assert (ended.outcome, ended.killed) == (Interrupted(), False)
    assert pid_of(slot) == pid


@pytest.mark.parametrize(
    "do", ["fork_and_return", "fork_and_raise", "fork_and_use_job", "fork_and_terminate", "multiprocess"]
)
def test_a_handler_may_fork(rig: MakeRig, do: str) -> None:
    """A copy that comes back from the handler ends there: one run, one outcome, one process that reports it."""
    slot = rig().start()
    assert slot.ended(do).outcome == Done()
    assert slot.ended().outcome == Done()
    assert sum(isinstance(event, Ended) for event in slot.received) == 2
    assert psutil.Process(pid_of(slot)).children() == []


def test_a_fork_of_a_fork_has_every_file_that_the_fork_has_opened(rig: MakeRig) -> None:
    """The number of the owner's lock, which every fork closes, is another file's by then."""
    with Path(os.devnull).open("rb") as first, Path(os.devnull).open("rb") as second:
        slot = rig(held=(first.fileno(), second.fileno())).start()
        assert slot.ended("fork_a_fork").outcome == Done()


@pytest.mark.parametrize(
    ("do", "cause"),
    [
        ("close_everything", "the child closed its socket to the worker process"),
        ("babble", "the child wrote invalid bytes to its socket: "),
    ],
)
def test_a_handler_that_breaks_the_socket_is_a_crash(rig: MakeRig, do: str, cause: str) -> None:
    slot = rig(ping=0.2).start()
    outcome = slot.ended(do).outcome
    assert isinstance(outcome, Crashed)
    assert outcome.cause.startswith(cause)
    slot.next(Ready, within=SOON)
    assert slot.ended().outcome == Done()


def test_kill_ends_the_group_and_what_has_left_it(rig: MakeRig, eventually: Eventually) -> None:
    slot = rig().start()
    fence = slot.begin("grandchildren")
    report = slot.next(Progressed)
    slot.slot.kill(fence, Rejected("cancelled: by hand"))
    ended = slot.next(Ended)
    assert (ended.outcome, ended.killed) == (Rejected("cancelled: by hand"), True)
    assert report.done is not None
    assert report.total is not None
    eventually(lambda: not alive(int(report.done or 0)) and not alive(int(report.total or 0)))


def test_kill_before_the_child_is_warm_ends_the_run_only(rig: MakeRig) -> None:
    slot = rig()
    slot.open()
    fence = slot.begin()
    slot.slot.kill(fence, Failed("time-limit"))
    assert slot.next(Ended).outcome == Failed("time-limit")
    slot.next(Ready)
    assert slot.ended().outcome == Done()


def test_a_kill_decides_even_when_the_handler_returns_at_that_moment(rig: MakeRig) -> None:
    slot = rig().start()
    for _ in range(5):
        fence = slot.begin()
        slot.slot.kill(fence, Failed("late"))
        ended = slot.next(Ended)
        assert ended.outcome in {Done(), Failed("late")}
        if ended.killed:
            assert ended.outcome == Failed("late")
            slot.next(Ready, within=SOON)


def test_stop_signals_from_others_do_nothing_until_the_run_has_to_end(rig: MakeRig) -> None:
    slot = rig().start()
    fence = slot.begun("until_progress_raises")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.killpg(pid_of(slot), number)
        slot.next(Progressed)
    slot.slot.interrupt(fence, "shutdown", hard=True)
    assert slot.next(Ended).outcome == Interrupted()


def test_what_a_job_does_to_signals_ends_with_it(rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    slot = rig().start()
    assert slot.ended("leave_signals").outcome == Done()
    assert slot.ended("find_signals").outcome == Done()
    assert "most recent call first" in caplog.text
    fence = slot.begun("sleep")
    slot.slot.interrupt(fence, "shutdown", hard=True)
    assert slot.next(Ended).outcome == Interrupted()


@pytest.mark.parametrize("every", [0, 200e-6])
def test_a_timer_that_a_job_has_forgotten_changes_no_outcome(rig: MakeRig, every: float) -> None:
    """Its handler raises wherever the child is by then."""
    slot = rig().start()
    child = pid_of(slot)
    outcomes = [slot.ended("leave_alarm", after=number * 5e-6, every=every).outcome for number in range(1, 100)]
    in_the_handler = [each for each in outcomes if each != Done()]
    assert all(each == Failed("ValueError: in time", "ValueError") for each in in_the_handler), Counter(outcomes)
    assert len(in_the_handler) < 50
    assert slot.ended().outcome == Done()
    assert pid_of(slot) == child


def test_a_signal_that_a_job_has_blocked_neither_ends_its_child_nor_the_next_job(rig: MakeRig) -> None:
    slot = rig().start()
    child = pid_of(slot)
    assert slot.ended("wait_for_ticks").outcome == Done()
    assert slot.ended("find_signals").outcome == Done()
    assert pid_of(slot) == child


def test_what_a_job_does_to_signals_where_python_does_not_see_it_ends_with_it(rig: MakeRig) -> None:
    slot = rig().start()
    assert slot.ended("leave_deaf").outcome == Done()
    fence = slot.begun("find_none_deaf")
    slot.slot.interrupt(fence, "shutdown", hard=True)
    assert slot.next(Ended, within=SOON).outcome == Interrupted()


def test_after_stopping_a_death_by_signal_is_interrupted_and_an_exit_is_not(rig: MakeRig) -> None:
    slot = rig().start()
    slot.slot.stopping()
    fence = slot.begun("sleep")
    os.kill(pid_of(slot), signal.SIGKILL)
    assert slot.next(Ended).outcome == Interrupted()
    assert fence == 1
    slot.next(Ready)
    assert slot.ended("leave_silently").outcome == Crashed("exit 0")


def test_a_child_that_dies_idle_is_replaced_without_an_outcome(rig: MakeRig) -> None:
    slot = rig().start()
    slot.ended()
    old = pid_of(slot)
    os.kill(old, signal.SIGKILL)
    slot.next(Ready, within=SOON)
    assert pid_of(slot) != old
    assert slot.ended().outcome == Done()
    assert sum(isinstance(event, Ended) for event in slot.received) == 2


def test_a_child_that_dies_before_its_first_run_makes_the_slot_unready(rig: MakeRig) -> None:
    """A child that dies so again and again is not replaced at once: the runner waits."""
    slot = rig().start()
    os.kill(pid_of(slot), signal.SIGKILL)
    assert slot.next(Unready) == Unready(0, "the child died just after its setup: SIGKILL", after_setup=True)
    slot.start()
    assert slot.ended().outcome == Done()


def test_jobs_per_child_replaces_the_child_after_its_teardown(rig: MakeRig, tmp_path: Path) -> None:
    slot = rig("Tidy", jobs_per_child=2).start()
    file = tmp_path / "file"
    first = pid_of(slot)
    slot.ended(file=str(file))
    assert pid_of(slot) == first
    slot.ended(file=str(file))
    slot.next(Ready, within=SOON)
    assert pid_of(slot) != first
    assert file.read_text(encoding="utf-8") == f"torn down by {first}"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "setup raised ValueError: no database"),
        ("exit", "setup raised SystemExit: 1"),
        ("hang", "setup took more than 3 s"),
        ("die", "the child died before it was ready: SIGKILL"),
    ],
)
def test_a_setup_that_fails_is_not_the_jobs_fault(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch, how: str, reason: str
) -> None:
    monkeypatch.setenv("STEADYWORKER_TEST", how)
    slot = rig("Broken", setup_limit=3 if how == "hang" else 60)
    slot.open()
    fence = slot.begin()
    unready = slot.next(Unready)
    assert unready.reason == reason
    assert slot.received == [Ended(0, fence, Interrupted(), slot.received[0].seconds), unready]  # type: ignore[union-attr]
    monkeypatch.delenv("STEADYWORKER_TEST")
    slot.start()
    assert slot.ended().outcome == Done()


def test_a_child_of_another_version_of_the_package_makes_the_slot_unready(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone has replaced the package under a live worker process: no job fails, and the reason names the remedy."""
    monkeypatch.setattr(spawn, "PROTOCOL", PROTOCOL + 1)
    slot = rig()
    slot.open()
    fence = slot.begin()
    unready = slot.next(Unready)
    why = "the installed SteadyWorker has another version than this worker process: restart the worker process"
    assert (unready.reason, unready.after_setup) == (why, False)
    assert slot.received == [Ended(0, fence, Interrupted(), slot.received[0].seconds), unready]  # type: ignore[union-attr]


def test_a_module_that_cannot_be_imported_makes_the_slot_unready(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slot = rig()
    monkeypatch.chdir(tmp_path)
    here = Path(__file__).parents[2]
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry).resolve() != here])
    slot.open()
    assert "There is no module 'tests'" in slot.next(Unready).reason


def test_the_child_has_an_environment_of_its_own(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("STEADYWORKER_TEST", "kept")
    assert rig().start().ended("environment").outcome == Done()


def test_close_tears_down_and_by_force_when_it_must(rig: MakeRig, tmp_path: Path) -> None:
    slot = rig("Tidy").start()
    slot.ended(file=str(tmp_path / "file"))
    pid = pid_of(slot)
    slot.close(SOON)
    assert (tmp_path / "file").read_text(encoding="utf-8") == f"torn down by {pid}"
    slot.close(SOON)

    slot = rig("Tidy").start()
    fence = slot.begin(file=str(tmp_path / "other"), hang=True)
    began = time.monotonic()
    slot.close(0.3)
    assert time.monotonic() - began < SOON
    ended = slot.next(Ended)
    assert ended == Ended(0, fence, Interrupted(), ended.seconds, killed=True, peak_memory=ended.peak_memory)
    assert not (tmp_path / "other").exists()


def test_a_thread_that_a_job_has_left_behind_is_named_and_does_not_delay_a_stop(
    rig: MakeRig, capfd: pytest.CaptureFixture[str]
) -> None:
    slot = rig().start()
    assert slot.ended("leave_threads").outcome == Done()
    began = time.monotonic()
    slot.close(20)
    assert time.monotonic() - began < 10
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "threads_left_behind" in line]
    assert json.loads(line)["threads"] == ["the users own"]


def test_close_is_safe_before_start_and_while_warming(rig: MakeRig) -> None:
    rig().close(1)
    warming = rig()
    warming.open()
    warming.close(SOON)
    warming.open()
    assert not warming.inbox


def test_a_path_of_any_type_and_encoding_is_no_obstacle_to_a_child(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A user's program has put them on `sys.path`; Python itself ignores what is no text."""
    monkeypatch.setattr(sys, "path", [tmp_path, os.fsdecode(b"/caf\xe9"), b"/bytes", 17, None, *sys.path])
    assert rig().start().ended().outcome == Done()


@pytest.mark.long
def test_fifty_slots_leave_nothing_behind(rig: MakeRig) -> None:
    """No thread, no descriptor, no child; every fifth is closed in the middle of a run."""
    rig().close(0)
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    children = set(psutil.Process().children(recursive=True))
    for number in range(50):
        slot = rig()
        slot.open()
        if number % 5 == 0:
            slot.begun("sleep")
        elif number % 4 == 1:
            slot.next(Ready)
        assert set(threading.enumerate()) <= threads
        slot.close(0.2)
    # What an earlier test has left may end meanwhile: fewer is fine.
    assert set(threading.enumerate()) <= threads
    assert open_descriptors() <= descriptors
    assert set(psutil.Process().children(recursive=True)) <= children


def test_a_child_that_reads_nothing_blocks_no_call(rig: MakeRig) -> None:
    """The runner's thread serves every slot, so it must not wait for a socket that is full."""
    slot = rig().start()
    os.kill(pid_of(slot), signal.SIGSTOP)
    fence = slot.begin("nothing", pad="x" * 5_000_000)
    for number in range(100):
        slot.slot.reply(fence, number, "x" * 10_000)
    slot.inbox.wait(0.1)
    assert not slot.inbox
    os.kill(pid_of(slot), signal.SIGCONT)
    assert slot.next(Ended).outcome == Done()
    assert slot.ended().outcome == Done()


def test_a_child_that_reads_nothing_can_be_killed(rig: MakeRig) -> None:
    slot = rig().start()
    os.kill(pid_of(slot), signal.SIGSTOP)
    fence = slot.begin("nothing", pad="x" * 5_000_000)
    slot.slot.kill(fence, Failed("late"))
    assert slot.next(Ended).outcome == Failed("late")
    slot.next(Ready, within=SOON)
    assert slot.ended().outcome == Done()


def test_a_child_that_dies_idle_just_before_a_run_is_replaced_and_the_run_waits(rig: MakeRig) -> None:
    """The runner claims a job for up to ten seconds after it has found the slot warm, and the slot has no turn meanwhile."""
    slot = rig().start()
    slot.ended()
    old = pid_of(slot)
    os.kill(old, signal.SIGKILL)
    os.waitid(os.P_PID, old, os.WEXITED | os.WNOWAIT)  # a zombie, which the slot has not reaped yet
    assert slot.slot.warm
    assert slot.ended().outcome == Done()
    assert pid_of(slot) != old


def test_what_is_left_of_a_session_delays_no_other_slot(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process can need seconds to die; the two slots share a thread."""
    first, second = rig().start(), rig()
    second.inbox = first.inbox
    second.start()
    left = [True]
    monkeypatch.setattr(child_process, "kill_sessions", lambda leaders: kill_sessions(leaders) or left[0])
    fence = first.begun("sleep")
    first.slot.kill(fence, Failed("late"))
    for _ in range(3):
        assert second.ended().outcome == Done()
    left[0] = False
    assert first.next(Ended).outcome == Failed("late")


def test_without_a_pidfd_the_death_of_a_child_is_found_too(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "pidfd_open")
    slot = rig().start()
    fence = slot.begun("sleep")
    os.kill(pid_of(slot), signal.SIGKILL)
    ended = slot.next(Ended, within=SOON)
    assert (ended.fence, ended.outcome) == (fence, Crashed("SIGKILL"))
    slot.next(Ready, within=SOON)


def test_a_child_that_cannot_be_started_makes_the_slot_unready(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_given: object) -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    slot = rig()
    with monkeypatch.context() as patch:
        patch.setattr(process_module, "start_child", refuse)
        slot.open()
        reason = "a child could not be started: [Errno 11] Resource temporarily unavailable"
        assert slot.next(Unready) == Unready(0, reason)
    assert slot.start().ended().outcome == Done()


def test_a_start_that_fails_after_hello_leaves_no_process_behind(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then, the child can have started processes of its own."""
    before = set(psutil.Process().children(recursive=True))

    def refuse(pid: int) -> NoReturn:
        spawned.append(psutil.Process(pid))
        raise OSError(errno.EMFILE, "Too many open files")

    spawned: list[Any] = []
    slot = rig()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", refuse)
        slot.open()
        assert slot.next(Unready).reason == "a child could not be started: [Errno 24] Too many open files"
    assert len(spawned) == 1
    assert set(psutil.Process().children(recursive=True)) <= before
    assert slot.start().ended().outcome == Done()


WORKER_PROCESS = """
import sys, threading
from steadyworker.clock import SystemClock
from steadyworker.slots.process import ProcessSlot
from tests.slots.kit import Rig
from steadyworker.spec import spec_of
from steadyworker.worker import load_worker

spec = spec_of(load_worker("tests.slots.workers:Modes"), {"memory_limit": None})
rig = Rig(ProcessSlot(0, spec, clock=SystemClock(), ping=0.2, silence=float(sys.argv[2]))).start()
rig.begun(sys.argv[1])
print(rig.slot.pid, *(int(event.done) for event in rig.received if getattr(event, "done", None)), flush=True)
ended = rig.event()
print(ended.outcome, flush=True)
threading.Event().wait()
"""


@pytest.fixture
def worker_process() -> Any:
    started: list[subprocess.Popen[str]] = []

    def start(do: str, silence: float = 60.0) -> tuple[subprocess.Popen[str], list[int]]:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER_PROCESS, do, str(silence)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        started.append(process)
        assert process.stdout is not None
        return process, [int(pid) for pid in process.stdout.readline().split()]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


StartWorker = Callable[..., tuple["subprocess.Popen[str]", list[int]]]


@pytest.mark.parametrize("do", ["sleep", "hold_gil", "deaf", "hang_in_c"])
def test_a_child_dies_with_its_worker_process(worker_process: StartWorker, eventually: Eventually, do: str) -> None:
    process, (child,) = worker_process(do)
    assert alive(child)
    process.kill()
    eventually(lambda: not alive(child), within=SOON)


def test_a_child_whose_worker_process_is_frozen_ends_as_interrupted(
    worker_process: StartWorker, eventually: Eventually
) -> None:
    process, (child, *grandchildren) = worker_process("grandchildren", 1.0)
    time.sleep(1.5)  # longer than the silence: the pings hold it
    assert alive(child)
    process.send_signal(signal.SIGSTOP)
    eventually(lambda: not alive(child), within=SOON)
    eventually(lambda: not alive(grandchildren[0]), within=SOON)
    process.send_signal(signal.SIGCONT)
    assert process.stdout is not None
    assert process.stdout.readline() == f"{Interrupted()}\n"


def test_a_runner_that_waits_for_a_slow_ledger_costs_no_child(rig: MakeRig) -> None:
    """The slot gets no turn for longer than the child bears silence; another thread sends the Pings that are overdue."""
    slot = rig(silence=3.0, ping=0.5).start()
    slot.begun("until_checked")
    until = time.monotonic() + 5
    while time.monotonic() < until:
        slot.inbox.ping_if_late()
        time.sleep(0.1)  # as the main thread does between two checks
    assert isinstance(slot.slot, ProcessSlot)
    assert slot.slot.pid is not None
    assert alive(slot.slot.pid)


def test_a_child_that_another_part_of_the_process_has_reaped_is_replaced(rig: MakeRig) -> None:
    slot = rig().start()
    assert slot.ended().outcome == Done()
    assert isinstance(slot.slot, ProcessSlot)
    child = slot.slot.pid
    assert child is not None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert slot.ended().outcome == Done()
    assert slot.slot.pid not in {None, child}


def test_a_child_that_cannot_get_the_owners_lock_gets_no_run(rig: MakeRig) -> None:
    """The descriptor of the lock is closed: without the lock, the child would look dead to other worker processes."""
    slot = rig(held=(10_000,))
    slot.open()
    assert "could not be started" in slot.next(Unready).reason
