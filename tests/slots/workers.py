"""Workers that end in every way that a handler can; children import this module."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from steadyworker import Interrupt, Job, Reject, Retry, RetryPolicy, Snooze, Worker
from steadyworker.errors import ExportRejected, TargetExists

Asked = dict[str, Any]


class Unwelcome(Exception):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Modes(Worker[Asked, int]):
    """Does what the payload's `do` names."""

    queue = "modes"
    time_limit = 60
    retry = RetryPolicy(dont_retry_on=(Unwelcome,))

    def handle(self, job: Job[Asked, int]) -> object:
        return getattr(self, job.payload["do"])(job)

    def nothing(self, job: Job[Asked, int]) -> None:
        pass

    def value(self, job: Job[Asked, int]) -> int:
        return 42

    def result(self, job: Job[Asked, int]) -> None:
        """The last of two results counts; the return value never does."""
        job.result("the first")
        job.result({"rows": 17, "name": "café"})

    def result_no_json(self, job: Job[Asked, int]) -> None:
        job.result({1, object()})

    def result_too_large(self, job: Job[Asked, int]) -> None:
        job.result("x" * (64 << 10))

    def result_then_raises(self, job: Job[Asked, int]) -> None:
        job.result("lost")
        raise ValueError("boom")

    def generator(self, job: Job[Asked, int]) -> object:
        return (number for number in range(3))

    def awaitable(self, job: Job[Asked, int]) -> object:
        return asyncio.sleep(0)

    def raises(self, job: Job[Asked, int]) -> None:
        raise ValueError("boom")

    def unprintable(self, job: Job[Asked, int]) -> None:
        raise Unprintable

    def unwelcome(self, job: Job[Asked, int]) -> None:
        raise Unwelcome("of this kind")

    def retry_later(self, job: Job[Asked, int]) -> None:
        raise Retry("not yet", delay=7, fresh=True)

    def reject(self, job: Job[Asked, int]) -> None:
        raise Reject("never")

    def snooze(self, job: Job[Asked, int]) -> None:
        raise Snooze(30)

    def target_exists(self, job: Job[Asked, int]) -> None:
        raise TargetExists("target exists: out.csv")

    def export_rejected(self, job: Job[Asked, int]) -> None:
        raise ExportRejected("Expected plain files, got a Delta table")

    def system_exit(self, job: Job[Asked, int]) -> None:
        sys.exit(3)

    def keyboard_interrupt(self, job: Job[Asked, int]) -> None:
        raise KeyboardInterrupt

    def generator_exit(self, job: Job[Asked, int]) -> None:
        raise GeneratorExit

    def unasked_interrupt(self, job: Job[Asked, int]) -> None:
        raise Interrupt("shutdown")

    def checkpoint(self, job: Job[Asked, int]) -> None:
        job.checkpoint((job.last_checkpoint or 0) + 1)

    def progress(self, job: Job[Asked, int]) -> None:
        for number in range(1000):
            job.progress(number, 1000)

    def until_checked(self, job: Job[Asked, int]) -> None:
        job.progress(note="begun")
        while True:
            job.check()
            time.sleep(0.005)

    def until_progress_raises(self, job: Job[Asked, int]) -> None:
        while True:
            job.progress()
            time.sleep(0.005)

    def swallows(self, job: Job[Asked, int]) -> None:
        try:
            self.until_progress_raises(job)
        except Interrupt:
            return

    def fails_in_cleanup(self, job: Job[Asked, int]) -> None:
        try:
            self.until_progress_raises(job)
        finally:
            raise ValueError("clean-up")

    def ask_service(self, job: Job[Asked, int]) -> None:
        job.export(ServiceExport(), "out.csv", totals={"amount": "sum"})

    # --- What only a child process survives ---

    def sleep(self, job: Job[Asked, int]) -> None:
        job.progress(note="begun")
        time.sleep(60)

    def cleans_up_in_peace(self, job: Job[Asked, int]) -> None:
        try:
            self.sleep(job)
        finally:
            time.sleep(0.3)  # several pokes long
            Path(job.payload["file"]).write_text("clean", encoding="utf-8")

    def is_interrupted_in_del(self, job: Job[Asked, int]) -> None:
        """Is interrupted where Python swallows every exception, and makes no Job call after that."""

        class Closing:
            def __del__(self) -> None:
                job.progress(note="begun")
                time.sleep(0.5)

        Closing()
        while True:
            time.sleep(0.01)

    def hold_gil(self, job: Job[Asked, int]) -> None:
        job.progress(note="begun")
        library = ctypes.PyDLL(None)
        for _ in range(60):
            library.sleep(1)

    def hang_in_c(self, job: Job[Asked, int]) -> None:
        """A C call that no signal ends, without the GIL."""
        library = ctypes.CDLL(None)
        job.progress(note="begun")
        while True:
            library.sleep(60)

    def deaf(self, job: Job[Asked, int]) -> None:
        """Ignores TERM, and makes no Job call."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        job.progress(note="begun")
        time.sleep(60)

    def segfault(self, job: Job[Asked, int]) -> None:
        ctypes.string_at(0)

    def fork_crashes_then_killed(self, job: Job[Asked, int]) -> None:
        if (copy := os.fork()) == 0:
            ctypes.string_at(0)
        os.waitpid(copy, 0)
        os.kill(os.getpid(), signal.SIGKILL)

    def close_low_then_segfault(self, job: Job[Asked, int]) -> None:
        """Closes what a daemon closes, and opens a file under one of these numbers."""
        os.closerange(3, 100)
        for _ in range(8):
            os.open(os.devnull, os.O_WRONLY)
        ctypes.string_at(0)

    def eat_and_return(self, job: Job[Asked, int]) -> None:
        eaten = b"x" * (100 << 20)
        del eaten

    def leave_silently(self, job: Job[Asked, int]) -> None:
        os._exit(0)

    def leave_with_three(self, job: Job[Asked, int]) -> None:
        os._exit(3)

    def kill_itself(self, job: Job[Asked, int]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def eat_memory(self, job: Job[Asked, int]) -> None:
        eaten = b"x" * (512 << 20)
        time.sleep(60)
        del eaten

    def eat_memory_in_a_grandchild(self, job: Job[Asked, int]) -> None:
        eat = "x = b'x' * (512 << 20); import time; time.sleep(60)"
        subprocess.run([sys.executable, "-c", eat], check=True)

    def fork_and_return(self, job: Job[Asked, int]) -> None:
        """Both copies return from the handler."""
        if os.fork() == 0:
            return
        os.wait()

    def fork_and_raise(self, job: Job[Asked, int]) -> None:
        child = os.fork()
        if child == 0:
            sys.exit(1)
        os.waitpid(child, 0)

    def fork_and_use_job(self, job: Job[Asked, int]) -> None:
        child = os.fork()
        if child == 0:
            try:
                job.checkpoint(1)
            except RuntimeError:
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

    def fork_a_fork(self, job: Job[Asked, int]) -> None:
        """The fork opens files under the numbers that are free in it; its own fork has them, too."""
        if (fork := os.fork()) == 0:
            files = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
            if (second := os.fork()) == 0:
                for file in files:
                    os.fstat(file)
                os._exit(0)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]))
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0

    def fork_and_terminate(self, job: Job[Asked, int]) -> None:
        """Each copy gets its signal at its first moment."""
        for _ in range(20):
            if (copy := os.fork()) == 0:
                time.sleep(60)
            os.kill(copy, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == -signal.SIGTERM

    def multiprocess(self, job: Job[Asked, int]) -> None:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]

    def print_much(self, job: Job[Asked, int]) -> None:
        line = "x" * 9999
        for _ in range(10_000):
            print(line)

    def close_everything(self, job: Job[Asked, int]) -> None:
        os.closerange(3, 100)
        time.sleep(60)

    def babble(self, job: Job[Asked, int]) -> None:
        """Writes to a socket that is not its own."""
        os.write(int(sys.argv[1]), b"\xff" * 100)
        time.sleep(60)

    def grandchildren(self, job: Job[Asked, int]) -> None:
        """One in the group, one that has left it; their ids are the progress."""
        stay = subprocess.Popen(["sleep", "60"])
        move = subprocess.Popen(["sleep", "60"], process_group=0)
        job.progress(stay.pid, move.pid)
        time.sleep(60)

    def environment(self, job: Job[Asked, int]) -> None:
        assert "NOTIFY_SOCKET" not in os.environ
        assert os.environ["STEADYWORKER_TEST"] == "kept"
        assert Path("/proc/self/oom_score_adj").read_text(encoding="ascii").strip() == "1000"
        for stop in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            assert signal.getsignal(stop) not in {signal.SIG_IGN, signal.SIG_DFL}
            os.kill(os.getpid(), stop)
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def leave_signals(self, job: Job[Asked, int]) -> None:
        """Changes all that a process can change about signals, and does not tidy up."""
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGALRM, signal.SIGQUIT):
            signal.signal(number, lambda *_: sys.exit(9))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.setitimer(signal.ITIMER_REAL, 0.1)

    def find_signals(self, job: Job[Asked, int]) -> None:
        time.sleep(0.2)  # longer than the other's timer
        assert signal.getsignal(signal.SIGTERM) not in {signal.SIG_IGN, signal.SIG_DFL}
        assert subprocess.run(["false"], check=False).returncode == 1
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        os.kill(os.getpid(), signal.SIGQUIT)  # writes the stacks

    def leave_alarm(self, job: Job[Asked, int]) -> None:
        """Forgets a timer, whose handler raises; the text of its error depends on whether it came within this method."""

        def raises(_signal: int, frame: FrameType | None) -> None:
            while frame is not None and frame.f_code is not Modes.leave_alarm.__code__:
                frame = frame.f_back
            raise ValueError("too late" if frame is None else "in time")

        signal.signal(signal.SIGALRM, raises)
        signal.setitimer(signal.ITIMER_REAL, job.payload["after"], job.payload.get("every", 0))

    def wait_for_ticks(self, job: Job[Asked, int]) -> None:
        """Blocks a signal, gets ticks outside `sigwait` too, and leaves one that is pending."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        for _ in range(5):
            time.sleep(0.02)
            assert signal.sigwait({signal.SIGALRM}) == signal.SIGALRM
        time.sleep(0.02)
        assert signal.SIGALRM in signal.sigpending()

    def leave_deaf(self, job: Job[Asked, int]) -> None:
        """Changes what Python's `signal` does not show."""
        faulthandler.register(signal.SIGTERM, chain=False, file=sys.stdout)
        signal.siginterrupt(signal.SIGUSR1, True)
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        job.progress(reading)

    def find_none_deaf(self, job: Job[Asked, int]) -> None:
        assert signal.set_wakeup_fd(-1) == -1
        slow = ctypes.CDLL(None, use_errno=True)
        reading, _writing = os.pipe()
        threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1)).start()
        threading.Timer(0.3, os.write, (_writing, b"x")).start()
        assert slow.read(reading, ctypes.create_string_buffer(1), 1) == 1, "a pause signal cuts no call of a library"
        self.sleep(job)

    def leave_daemons(self, job: Job[Asked, int]) -> None:
        """Two that have left the session: a copy of this process, and a program that was started in C."""
        if (copy := os.fork()) == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(60)
            os._exit(0)
        os.waitpid(copy, 0)
        os.system("setsid sleep 60 &")

    def leave_threads(self, job: Job[Asked, int]) -> None:
        """One that Python waits for; and a pool without work, which ends by itself."""
        ThreadPoolExecutor(1).submit(abs, -1).result()
        threading.Thread(target=time.sleep, args=(60,), name="the users own").start()

    def log_line(self, job: Job[Asked, int]) -> None:
        job.log.info("hello", merchant="m-17")


class ServiceExport:
    """Asks for everything that an export may ask for."""

    def write(self, services: Any, to: Path, **options: Any) -> Any:
        assert (str(to), options) == ("out.csv", {"format": None, "totals": {"amount": "sum"}, "by": ()})
        assert services.export_state() == b"before"
        services.save_export_state(b"after")
        assert services.export_state() == b"after"
        assert services.ended(["a", "b"]) == {"b"}
        services.may_commit()
        services.staged(Path(os.fsdecode(b"/out/\xe9")))
        events = list(services.call("echo", {"number": 1}))
        assert events == [{"echo": 1}, {"end": True}]
        endless = services.call("echo", {"number": 2})
        assert next(endless) == {"echo": 2}
        endless.close()
        return {"uid": services.uid, "fence": services.fence}


class Asynchronous(Worker[Asked]):
    queue = "asynchronous"
    time_limit = 60

    async def setup(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def handle(self, job: Job[Asked]) -> None:
        assert asyncio.get_running_loop() is self.loop
        match job.payload["do"]:
            case "sleep":
                job.progress(note="begun")
                await asyncio.sleep(60)
            case "swallow":
                job.progress(note="begun")
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    return
            case "block":
                job.progress(note="begun")
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(60)  # noqa: ASYNC251 - blocking is the point
            case "exit":
                sys.exit(3)
            case "cancel itself":
                raise asyncio.CancelledError
            case "checkpoint in a thread":
                await asyncio.to_thread(job.checkpoint, 1)
            case "nothing":
                pass

    async def teardown(self) -> None:
        assert asyncio.get_running_loop() is self.loop


class Broken(Worker[Asked]):
    """Its `setup` does what the environment names."""

    queue = "broken"
    time_limit = 60

    def setup(self) -> None:
        match os.environ.get("STEADYWORKER_TEST"):
            case "raise":
                raise ValueError("no database")
            case "leak":
                raise ValueError("no database at postgresql://shop:hunter2@db\udce9\0" + "x" * 5000)
            case "exit":
                sys.exit(1)
            case "hang":
                time.sleep(60)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)

    def handle(self, job: Job[Asked]) -> None:
        pass


class Tidy(Worker[Asked]):
    """Leaves a file when it was torn down."""

    queue = "tidy"
    time_limit = 60

    def handle(self, job: Job[Asked]) -> None:
        self.file = Path(job.payload["file"])
        if job.payload.get("hang"):
            time.sleep(60)

    def teardown(self) -> None:
        self.file.write_text(f"torn down by {os.getpid()}", encoding="utf-8")


async def far_away() -> None:
    await asyncio.sleep(0)
    raise ValueError("boom")


class AsyncFails(Worker[Asked, int]):
    """Raises in a coroutine that it awaits."""

    queue = "async-fails"
    time_limit = 60

    async def handle(self, job: Job[Asked, int]) -> None:
        await far_away()
