"""
The Worker whose handler runs the command of `steadyworker exec`.

The program gets these environment variables:

| variable | value |
|---|---|
| `SW_JOB_KEY` | the job's key, the same in every run |
| `SW_QUEUE` | the queue |
| `SW_ATTEMPT` | the number of the attempt, from 1 |
| `SW_FENCE` | the fencing token, greater than the token of every earlier run |
| `SW_DEADLINE` | the time at which the time limit ends, in seconds since 1970; not set without a limit |
| `SW_REDELIVERED` | `true` if the broker had delivered the message before, otherwise `false`; not set if the broker does not report this |
| `SW_CHECKPOINT` | the JSON of the last checkpoint; not set if there is none |
| `SW_META` | the path of a JSON file with these values (`key`, `queue`, …) and the message's `headers` |
"""

from __future__ import annotations

import errno
import faulthandler
import os
import resource
import signal
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NoReturn

import msgspec
from typing_extensions import override

from steadyworker.clock import SystemClock
from steadyworker.errors import BadPayload, HostUnfit, Interrupt, Reject, Retry
from steadyworker.job import Job
from steadyworker.programs.codes import Meaning, meaning
from steadyworker.programs.command import FILE, VARIABLE, inherited_command
from steadyworker.programs.pipes import Pipes
from steadyworker.programs.process import ProgramProcess
from steadyworker.text.plain_text import plain_text
from steadyworker.worker import Worker

_LONGEST_REASON = 300
_VARIABLES = {
    "key": "SW_JOB_KEY",
    "queue": "SW_QUEUE",
    "attempt": "SW_ATTEMPT",
    "fence": "SW_FENCE",
    "deadline": "SW_DEADLINE",
    "redelivered": "SW_REDELIVERED",
    "checkpoint": "SW_CHECKPOINT",
}


class _ExitCode(Retry):
    """A failed attempt of the program, with its exit code and its last line as the reason."""

    planned = False


class Program(Worker[bytes, Any]):
    """The Worker that runs the command once for each message; `steadyworker exec` sets its queue and limits."""

    def __init__(self) -> None:
        self._command = inherited_command()

    @override
    def handle(self, job: Job[bytes, Any]) -> None:
        process = ProgramProcess()
        with ExitStack() as opened:
            facts = _facts(job)
            body = _nameless_file(opened, job.payload)
            meta = _nameless_file(opened, msgspec.json.encode(facts | {"headers": job.headers}) + b"\n")
            environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
            environment |= {
                _VARIABLES[name]: _as_text(name, value) for name, value in facts.items() if value is not None
            }
            environment["SW_META"] = _path(meta)
            try:
                arguments = self._command.filled(job.payload, job.key, _path(body))
            except BadPayload as error:
                raise Reject(f"bad-payload: {error}") from None
            nothing = opened.enter_context(Path(os.devnull).open("rb"))
            stdin = nothing if self._command.has_body else body
            for shared in (meta, body) if self._command.has_file else (meta,):
                os.set_inheritable(shared.fileno(), True)  # noqa: FBT003 - its name in the standard library
            pipes = Pipes(job, job.log, SystemClock(), process.terminate)
            try:
                _until_its_end(process, lambda: process.run(arguments, environment, stdin.fileno(), pipes))
            except OSError as error:
                raise _not_started(arguments[0], error) from None
            finally:
                pipes.finish()
        self._judge(job, process.code, plain_text(pipes.output.last, _LONGEST_REASON))

    def _judge(self, job: Job[bytes, Any], code: int | None, last_line: str) -> None:
        """Return if the job is done, otherwise raise the exit code's exception; after an Interrupt, the slot ignores the result."""
        assert code is not None, "the program has ended"
        if code < 0:
            _die_by(-code)
        reason = f"exit code {code}{f': {last_line}' if last_line else ''}"
        match meaning(code, self._command.codes):
            case Meaning.DONE:
                return
            case Meaning.DEAD:
                raise Reject(reason)
            case Meaning.UNFIT:
                raise HostUnfit(f"{self._command.arguments[0]}: {reason}")
            case Meaning.INTERRUPTED:
                job.check()  # raises Interrupt if the worker process is stopping
                raise _ExitCode(f"{reason} (interrupted), but nothing had asked the program to stop")
            case Meaning.FAILED:
                raise _ExitCode(reason)


def _until_its_end(process: ProgramProcess, run: Callable[[], None]) -> None:
    """
    Call `run` in a thread, wait for its end, and raise what `run` raises.

    At an Interrupt, first ask the program to end.
    """
    ends: SimpleQueue[BaseException | None] = SimpleQueue()

    def call() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - raised again below
            ends.put(error)
        else:
            ends.put(None)

    threading.Thread(target=call, name="exec-program", daemon=True).start()
    try:
        error = ends.get()
    except Interrupt:
        process.terminate()
        ends.get()  # if the program does not end in time, the slot kills this process
        raise
    if error is not None:
        raise error


def _nameless_file(opened: ExitStack, content: bytes) -> IO[bytes]:
    """Return a file with this content and mode 0600; it has no name, so that nothing is left of the file at the end."""
    file = opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    file.write(content)
    file.flush()
    file.seek(0)
    return file


def _path(file: IO[bytes]) -> str:
    return f"/dev/fd/{file.fileno()}"


def _facts(job: Job[bytes, Any]) -> dict[str, object]:
    """Return the facts about the job that the program gets; a fact that the job does not have is None."""
    return {
        "key": job.key,
        "queue": job.queue,
        "attempt": job.attempt,
        "fence": job.fence,
        "deadline": None if job.time_left is None else round(SystemClock().wall() + job.time_left, 3),
        "redelivered": job.redelivered,
        "checkpoint": job.last_checkpoint,
    }


def _as_text(name: str, value: object) -> str:
    return str(value) if name in ("key", "queue") else msgspec.json.encode(value).decode()


def _not_started(program: str, error: OSError) -> Exception:
    """Return the exception for a program that the system did not start."""
    if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.ELOOP):
        return HostUnfit(f"{program} cannot be started: {os.strerror(error.errno)}")
    if error.errno == errno.E2BIG:
        return Reject(
            f"bad-payload: $: the arguments of {program} are too long for this system: pass the body by {FILE}"
        )
    return error


def _die_by(number: int) -> NoReturn:
    """
    End this child process by the signal that ended the program, so that the slot reports a crash by this signal.

    While the worker process stops, the slot reports an interruption instead.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.disable()
    if number != signal.SIGKILL:
        with suppress(RuntimeError):  # `faulthandler` was disabled above for the signals of errors, such as SIGSEGV
            faulthandler.unregister(number)
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(1)  # not reached, because a signal that has ended the program ends this process, too
