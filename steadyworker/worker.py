"""
The class that users subclass, and the function that imports a subclass by its name.

`Worker` has attributes that describe the job, and three methods.
`spec.py` reads and checks the attributes.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, Literal

from typing_extensions import TypeVar

from steadyworker.errors import ConfigError
from steadyworker.job import Job
from steadyworker.retry import RetryPolicy

P = TypeVar("P")
C = TypeVar("C", default=Any)


class Worker(Generic[P, C]):
    """
    One kind of job: subclass `Worker`, name the queue, and write `handle`.

    The type arguments are the payload's type and, optionally, the checkpoint's type.
    Each slot makes one instance without arguments, in the process or thread of the handler, and uses this instance for all jobs of the slot.
    A subclass without a `queue` is abstract: such a class can be a common base of your own Workers.

    Attributes:
        queue: The queue whose messages are this Worker's jobs.
        time_limit: The longest time of one run: seconds, a timedelta, or a text such as "3h".
            This attribute is required; None means no limit.
            From 10 s before the limit, but not before 80 % of the limit has passed, `Job` calls raise `Interrupt`.
            At the limit, the slot kills the run.
        concurrency: The number of slots, which is the number of jobs that one worker process runs at a time.
        retry: The policy for retries.
        stall_limit: The time without progress or checkpoint after which the slot ends the run: at least 1 s; by default no limit.
        memory_limit: The memory for one slot's processes: bytes, a size like "2 GiB", or None for no limit.
            "auto" divides 80 % of the cgroup's limit among the slots.
        isolation: "process" (a child process per slot), or "thread" for light jobs: a thread cannot be killed.
        jobs_per_child: The number of jobs after which a slot replaces its child process.
        key_header: The header that holds the job's key, if the sender does not use the header `sw-job-key` for the key.
        unkeyed: The action on a message without a key: "generate" gives the message a new key, "reject" makes the message a dead letter.
        keep_message: True if the ledger keeps the message of a claimed job, so that the job ends even if the broker loses the message.
        keep_done: How long the ledger keeps a done job after the broker has confirmed the acknowledgement.
            Without this confirm, the ledger keeps the job for at least 14 days.
            A key protects for this time: later, a second message with the same key is a new job.
            This time is at least 1 h, because a delayed copy of the message can still be under way.
        keep_dead: How long the ledger keeps a dead job, unless its dead letter is replayed or dropped.
        keep_cancelled: The same for a job that a cancel ended.
        keep_attempts: How long the ledger keeps the record of a run, with its traceback, but never longer than the job.
        dead_letter_queue: The queue for dead letters, `<queue>.dead` by default.
            Workers of different processes can share a dead-letter queue: each letter names its work queue, and `steadyworker dead`
            shows only the letters of one Worker.

    Raises:
        TypeError: A subclass is defined with a `queue` but without a `time_limit`.
    """

    queue: ClassVar[str]
    time_limit: ClassVar[float | timedelta | str | None]
    concurrency: ClassVar[int] = 1
    retry: ClassVar[RetryPolicy] = RetryPolicy()
    stall_limit: ClassVar[float | timedelta | str | None] = None
    memory_limit: ClassVar[int | str | None] = "auto"
    isolation: ClassVar[Literal["process", "thread"]] = "process"
    jobs_per_child: ClassVar[int | None] = None
    key_header: ClassVar[str | None] = None
    unkeyed: ClassVar[Literal["generate", "reject"]] = "generate"
    keep_message: ClassVar[bool] = True
    keep_done: ClassVar[float | timedelta | str] = "1d"
    keep_dead: ClassVar[float | timedelta | str] = "90d"
    keep_cancelled: ClassVar[float | timedelta | str] = "7d"
    keep_attempts: ClassVar[float | timedelta | str] = "7d"
    dead_letter_queue: ClassVar[str | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if hasattr(cls, "queue") and not hasattr(cls, "time_limit"):
            raise TypeError(
                f"{cls.__qualname__} has a queue but no time_limit: set `time_limit = <seconds>`, "
                "or `time_limit = None` for no limit."
            )

    def setup(self) -> object:
        """
        Prepare the objects that the slot's jobs share, such as pools and clients.

        The slot calls `setup` once, in the process or thread of the handler; `setup` can be async.
        """
        return None

    def handle(self, job: Job[P, C]) -> object:
        """
        Do one job: return when the job is done, or raise.

        `handle` can be async; its return value is ignored.
        """
        raise NotImplementedError(f"{type(self).__qualname__}.handle")

    def on_dead(self, job: Job[P, C], reason: str) -> object:  # noqa: ARG002 - a subclass uses them
        """
        Receive a job that was given up, for example to alert people; a Worker without this method has no extra cost.

        A worker process of the queue calls `on_dead` after it has recorded the dead letter: at least once for each such job.
        The call has a slot of its own, with `setup` and `teardown`, and may take 60 s; `on_dead` can be async.
        If the call raises, dies or takes longer, a worker process repeats it after 10 s, 1, 5 and 15 min, and then gives up.
        If the worker process dies during the call, another worker process repeats the call 90 s after the call began.
        `job` shows the last run; the job has ended, so its `checkpoint` and `export` raise Interrupt.
        If the payload does not decode, or the ledger has no copy of the message (`keep_message`), `job.payload` is None.
        There is no call for a job that a person cancelled, and none for a dead letter that the broker made by itself.
        """
        return None

    def teardown(self) -> object:
        """Undo `setup` when the slot ends without a failure; `teardown` can be async."""
        return None


WORKER = re.compile(r"[^:]+:[A-Z]\w*(?:\.\w+)*")
"""A text that names a Worker as module:Class, and not a queue such as `orders:eu`."""


def load_worker(target: str) -> type[Worker[Any, Any]]:
    """
    Import "module:Class" or "path/to/module.py:Class", and return the Worker class.

    For a module, the working directory is searched too, as with `python -m`.
    For a file, the folder of the file is searched first, as with `python path/to/module.py`.

    Raises:
        ConfigError: The target is wrong; the text gives a similar name, or lists the module's Workers.
        Exception: The module's own code raised an exception during the import.
    """
    module_name, colon, name = target.partition(":")
    if colon and name and module_name.endswith(".py"):
        return _worker_in(Path(module_name), name)
    written = _as_module(target)
    if not (module_name and colon and name) or module_name.startswith(".") or written != target:
        hint = f"did you mean {written}?" if written != target else "for example `app:PaymentExports`."
        raise ConfigError(f"Expected a Worker as module:Class, got {target!r}: {hint}", id="config.worker")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise  # the module exists, but a module that it imports does not
        near = difflib.get_close_matches(module_name, [path.stem for path in Path(here).glob("*.py")], n=1)
        hint = f"did you mean {near[0]}:{name}?" if near else "run from the folder that contains it, or install it."
        raise ConfigError(
            f"There is no module {error.name!r} (for {target!r}) in {here} or on the Python path: {hint}",
            id="config.worker",
        ) from None
    return _worker_named(name, module, target)


def importable_name(file: Path) -> str:
    """
    Return the name under which a process imports this file when the file's folder is on its path.

    Raises:
        ConfigError: The file's name is not a valid module name, or Python itself has a module of that name.
    """
    if not file.stem.isidentifier() or file.stem in sys.stdlib_module_names:
        why = "Python has a module of that name" if file.stem.isidentifier() else "it is no name of a module"
        raise ConfigError(
            f"Expected a file that a child process can import, got {file.name!r}: rename it, because {why}.",
            id="config.worker",
        )
    return file.stem


def _worker_in(file: Path, name: str) -> type[Worker[Any, Any]]:
    """Import this file and return its Worker; raise as `load_worker` does."""
    if not file.is_file():
        near = difflib.get_close_matches(file.name, [path.name for path in file.parent.glob("*.py")], n=1)
        hint = f"did you mean {file.parent / near[0]}:{name}?" if near else "name a file that exists."
        raise ConfigError(f"There is no file {str(file)!r}: {hint}", id="config.worker")
    module_name = importable_name(file)
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(module_name)
    imported = getattr(module, "__file__", None)
    if imported is None or not file.samefile(imported):
        raise ConfigError(
            f"Expected {str(file)!r} to be the module {module_name!r}, got {imported}, which comes first on the Python path: rename one.",
            id="config.worker",
        )
    return _worker_named(name, module, f"{module_name}:{name}")


def _worker_named(name: str, module: ModuleType, target: str) -> type[Worker[Any, Any]]:
    """Return the Worker of this name in a module; raise ConfigError, with a similar name, if there is none."""
    module_name = module.__name__
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        workers = [key for key, value in vars(module).items() if is_worker(value) and value is not Worker]
        near = difflib.get_close_matches(name, workers, n=1)
        hint = f"it has {', '.join(workers)}." if workers else "it has no Worker at all."
        hint = f"did you mean {module_name}:{near[0]}?" if near else hint
        raise ConfigError(f"Module {module_name!r} has no {name!r}: {hint}", id="config.worker")
    if not is_worker(found):
        raise ConfigError(
            f"Expected {target!r} to be a subclass of steadyworker.Worker, got {found!r:.100}: name a Worker class.",
            id="config.worker",
        )
    worker: type[Worker[Any, Any]] = found
    return worker


def _as_module(target: str) -> str:
    """Return a target such as `app/main:Class` or `app.Class` as module:Class, and any other target unchanged."""
    module_name, colon, name = target.partition(":")
    if not colon and "/" not in target and not target.endswith(".py"):
        module_name, dot, name = target.rpartition(".")
        return f"{module_name}:{name}" if dot and module_name and name[:1].isupper() else target
    if colon and "/" in module_name:
        path = Path(os.path.relpath(module_name))
        return f"{path.name if '..' in path.parts else '.'.join(path.parts)}:{name}"
    return target


def is_worker(value: object) -> bool:
    """Return whether the value is `Worker` or a subclass of it."""
    return isinstance(value, type) and issubclass(value, Worker)
