"""
What a user subclasses, and what we read from it.

`Worker` is thin: attributes that say what the job is, and three methods.
`spec_of` turns its attributes into one checked value, the `WorkerSpec`; nothing else reads them.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, get_args, get_origin

from typing_extensions import TypeVar

from steadyworker import payload
from steadyworker.adapter import QueueSpec
from steadyworker.errors import ConfigError
from steadyworker.job import Job
from steadyworker.retry import RetryPolicy
from steadyworker.spec import Check, at_least_one, duration, memory, one_of, optional, policy, queue_name, text

P = TypeVar("P")
C = TypeVar("C", default=Any)

_OPEN = (typing.TypeVar, TypeVar)
_NOTHING: Mapping[str, object] = MappingProxyType({})


class Worker(Generic[P, C]):
    """
    One kind of job: subclass it, name its queue, write `handle`.

    The type arguments are the payload's type and, optionally, the checkpoint's.
    One instance is made per slot, without arguments, where the handler runs, and is reused for its jobs.
    A subclass without a `queue` is abstract: a shop's own base.

    Attributes:
        queue: The queue whose messages are this Worker's jobs.
        time_limit: Seconds (or a timedelta) that one run may take; required, None is a limit said out loud.
        concurrency: Slots: jobs at a time in one worker process.
        retry: When a job is tried again.
        stall_limit: Seconds without progress or checkpoint after which the run is ended; off by default.
        memory_limit: Of one slot's processes: bytes, "2 GiB", None for none, or "auto": 80 % of the cgroup's limit,
            shared by the slots.
        isolation: "process" (a child process per slot), or "thread" for light jobs: a thread cannot be killed.
        jobs_per_child: Replace a slot's child after so many jobs.
        key_header: The header that names the job, when a sender sets one of its own.
        unkeyed: What happens to a message without any key: "stamp" gives it one, "reject" makes it a dead letter.
        dead_letter_queue: `<queue>.dead` by default.

    Raises:
        TypeError: When the class is made: it has a `queue` but no `time_limit`.
    """

    queue: ClassVar[str]
    time_limit: ClassVar[float | timedelta | None]
    concurrency: ClassVar[int] = 1
    retry: ClassVar[RetryPolicy] = RetryPolicy()
    stall_limit: ClassVar[float | timedelta | None] = None
    memory_limit: ClassVar[int | str | None] = "auto"
    isolation: ClassVar[Literal["process", "thread"]] = "process"
    jobs_per_child: ClassVar[int | None] = None
    key_header: ClassVar[str | None] = None
    unkeyed: ClassVar[Literal["stamp", "reject"]] = "stamp"
    dead_letter_queue: ClassVar[str | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if hasattr(cls, "queue") and not hasattr(cls, "time_limit"):
            raise TypeError(
                f"{cls.__qualname__} has a queue but no time_limit: set `time_limit = <seconds>`, "
                "or `time_limit = None` to say that it may take for ever."
            )

    def setup(self) -> object:
        """Prepare what jobs share (pools, clients): once per slot, where the handler runs; may be async."""
        return None

    def handle(self, job: Job[P, C]) -> object:
        """Do one job: return, or raise; may be async; what it returns is ignored."""
        raise NotImplementedError(f"{type(self).__qualname__}.handle")

    def teardown(self) -> object:
        """Undo `setup` when the slot ends in good order; may be async."""
        return None


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """
    A Worker's attributes, checked, with times in seconds and `memory_limit` in bytes.

    `target` is what a child imports: "module:Class".
    """

    target: str
    cls: type[Worker[Any, Any]]
    queue: str
    dead_letter_queue: str
    time_limit: float | None
    concurrency: int
    retry: RetryPolicy
    stall_limit: float | None
    memory_limit: int | None
    isolation: Literal["process", "thread"]
    jobs_per_child: int | None
    key_header: str | None
    unkeyed: Literal["stamp", "reject"]

    @property
    def queue_spec(self) -> QueueSpec:
        """What an adapter is told of this Worker."""
        return QueueSpec(
            queue=self.queue,
            dead_letter_queue=self.dead_letter_queue,
            concurrency=self.concurrency,
            time_limit=self.time_limit,
            max_attempts=self.retry.max_attempts,
            key_header=self.key_header,
        )


def spec_of(cls: type[Worker[Any, Any]], overrides: Mapping[str, object] = _NOTHING) -> WorkerSpec:
    """
    Read and check a Worker's attributes; `overrides` (a configuration file's `[workers.NAME]`) outrank them.

    Raises:
        ConfigError: Names the attribute, what was expected, what was got, and the remedy.
    """
    if not _is_worker(cls):
        raise ConfigError(f"Expected a Worker class, got {cls!r}: pass the class itself, not an instance or a name.")
    known = {field.name for field in fields(WorkerSpec)} - {"target", "cls"}
    for name in overrides:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}."
            raise ConfigError(f"{cls.__qualname__} has no attribute {name!r}: {hint}")

    def given(name: str) -> Any:
        return overrides.get(name, getattr(cls, name, None))

    if given("queue") is None:
        raise ConfigError(f"{cls.__qualname__} has no queue, so it is abstract: run a subclass that sets `queue`.")
    if cls.handle is Worker.handle:
        raise ConfigError(f"{cls.__qualname__} has no handle: write `def handle(self, job)`.")
    check = Check(cls.__qualname__)
    queue = check("queue", given("queue"), queue_name)
    concurrency = check("concurrency", given("concurrency"), at_least_one)
    isolation = check("isolation", given("isolation"), one_of("process", "thread"))
    payload.decoder(payload_type(cls))  # raises for a type that nothing can be decoded to
    return WorkerSpec(
        target=_target(cls, isolation),
        cls=cls,
        queue=queue,
        dead_letter_queue=check("dead_letter_queue", given("dead_letter_queue") or f"{queue}.dead", queue_name),
        time_limit=check("time_limit", given("time_limit"), duration),
        concurrency=concurrency,
        retry=check("retry", given("retry"), lambda value: policy(cls.retry, value)),
        stall_limit=check("stall_limit", given("stall_limit"), duration),
        memory_limit=check("memory_limit", given("memory_limit"), lambda value: memory(value, concurrency)),
        isolation=isolation,
        jobs_per_child=check("jobs_per_child", given("jobs_per_child"), optional(at_least_one)),
        key_header=check("key_header", given("key_header"), optional(text)),
        unkeyed=check("unkeyed", given("unkeyed"), one_of("stamp", "reject")),
    )


def load_worker(target: str) -> type[Worker[Any, Any]]:
    """
    Import "module:Class"; modules are looked for in the working directory too, as `python -m` does.

    Raises:
        ConfigError: What is wrong with the target, and what the module has instead.
        Exception: Whatever the module itself raises when it is imported, as it is.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"Expected a Worker as module:Class, got {target!r}: for example `app:PaymentExports`.")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise  # the module is there; something that it imports is not
        raise ConfigError(
            f"There is no module {error.name!r} (for {target!r}) in {here} or on the Python path: "
            "run from the folder that holds it, or install it."
        ) from None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        workers = [key for key, value in vars(module).items() if _is_worker(value) and value is not Worker]
        near = difflib.get_close_matches(name, workers, n=1) or workers
        hint = f"it has {', '.join(near)}." if near else "it has no Worker at all."
        raise ConfigError(f"Module {module_name!r} has no {name!r}: {hint}")
    if not _is_worker(found):
        raise ConfigError(f"Expected {target!r} to be a subclass of steadyworker.Worker, got {found!r}.")
    worker: type[Worker[Any, Any]] = found
    return worker


def payload_type(cls: type[Worker[Any, Any]]) -> Any:
    """The payload's declared type: Any for a bare `Worker`."""
    return _arguments(cls)[0]


def checkpoint_type(cls: type[Worker[Any, Any]]) -> Any:
    """The checkpoint's declared type: Any when none is declared."""
    return _arguments(cls)[1]


def _is_worker(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Worker)


def _arguments(cls: type[Any]) -> tuple[Any, Any]:
    """What P and C stand for in this class, through bases that are generic themselves; Any where nothing is said."""
    bound: Mapping[Any, Any] = {}
    for ancestor in _lineage(cls):
        origin = get_origin(ancestor)
        if origin is None:  # a plain base says nothing of its parameters
            bound = {}
            continue
        bound = {
            parameter: bound.get(argument, argument)
            for parameter, argument in zip(origin.__parameters__, get_args(ancestor), strict=True)
        }
    first, second = (bound.get(parameter, Any) for parameter in (P, C))
    return (Any if isinstance(first, _OPEN) else first, Any if isinstance(second, _OPEN) else second)


def _lineage(cls: type[Any]) -> list[Any]:
    """The bases from `cls` to Worker, nearest first, as they are written: `Worker[Request, int]`."""
    found: list[Any] = []
    while cls is not Worker:
        written = cls.__dict__.get("__orig_bases__", cls.__bases__)
        base = next(base for base in written if _is_worker(get_origin(base) or base))
        found.append(base)
        cls = get_origin(base) or base
    return found


def _target(cls: type[Any], isolation: str) -> str:
    """How a child finds the class; a thread needs no way to it."""
    if isolation == "process" and cls.__module__ == "__main__":
        raise ConfigError(
            f"{cls.__qualname__} is defined in __main__, which a child process cannot import. "
            "In a notebook use steadyworker.testing.run_one(Worker, payload) to try it; "
            "to run it put it into a module and start `steadyworker run module:Class`."
        )
    if isolation == "process" and "<locals>" in cls.__qualname__:
        raise ConfigError(
            f"{cls.__qualname__} is defined inside a function, where a child process cannot find it: "
            "move it to the top of its module, or set isolation = 'thread'."
        )
    return f"{cls.__module__}:{cls.__qualname__}"
