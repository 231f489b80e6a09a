"""
The check of a Worker's attributes: only `spec_of` reads the attributes, and returns them as one value, the `WorkerSpec`.

A rule converts the value in the class or file to the value in the `WorkerSpec`, or raises ValueError.
`AttributeCheck` adds the attribute's name to that error.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from typing_extensions import TypeVar

from steadyworker import payload
from steadyworker.adapter import QueueSpec
from steadyworker.errors import ConfigError
from steadyworker.names import QUEUE_NAME
from steadyworker.retry import RetryPolicy
from steadyworker.system.procfs import cgroup_limit
from steadyworker.units import parse_seconds, parse_size
from steadyworker.worker import C, P, Worker, importable_name, is_worker

_AUTO_SHARE = 0.8
_METHODS = ("setup", "handle", "on_dead", "teardown")
_MISSPELT = 0.81  # `handel` is 0.83 similar to `handle`; a user's own `rate_limit` is 0.8 similar to `time_limit`
_SHORTEST_KEPT = 3600.0
_SHORTEST_STALL = 1.0
_OPEN = (typing.TypeVar, TypeVar)
_NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """
    A Worker's attributes, checked, with times in seconds and `memory_limit` in bytes.

    `target` is the name that a child process imports: "module:Class".
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
    unkeyed: Literal["generate", "reject"]
    keep_message: bool
    keep_done: float
    keep_dead: float
    keep_cancelled: float
    keep_attempts: float

    @property
    def has_on_dead(self) -> bool:
        """True if the Worker has an `on_dead`, which a worker process then calls for each job that is given up."""
        return self.cls.on_dead is not Worker.on_dead

    @property
    def queue_spec(self) -> QueueSpec:
        """The attributes that an adapter receives."""
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
    Read and check a Worker's attributes; `overrides` (a configuration file's `[workers.NAME]`) outrank the class's own attributes.

    Raises:
        ConfigError: An attribute is missing, unknown or not valid; the text names the attribute.
    """
    if not is_worker(cls):
        raise ConfigError(
            f"Expected a Worker class, got {cls!r}: pass the class itself, not an instance or a name.",
            id="config.worker",
        )
    known = _settable()
    for name in overrides:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}."
            raise ConfigError(f"{cls.__qualname__} has no attribute {name!r}: {hint}", id="config.worker")

    def given(name: str) -> Any:
        return overrides.get(name, getattr(cls, name, None))

    written = {meant: name for name, meant in misspelt(cls)}
    if given("queue") is None:
        hint = f"rename {written['queue']!r} to 'queue'" if "queue" in written else "run a subclass that sets `queue`"
        raise ConfigError(f"{cls.__qualname__} has no queue, so it is abstract: {hint}.", id="config.worker")
    if cls.handle is Worker.handle:
        hint = f"rename {written['handle']!r} to 'handle'" if "handle" in written else "write `def handle(self, job)`"
        raise ConfigError(f"{cls.__qualname__} has no handle: {hint}.", id="config.worker")
    _check_methods(cls)
    check = AttributeCheck(cls.__qualname__)
    queue = check("queue", given("queue"), queue_name)
    concurrency = check("concurrency", given("concurrency"), at_least_one)
    isolation = check("isolation", given("isolation"), one_of("process", "thread"))
    payload.decoder(payload_type(cls))  # raises ConfigError for a type that JSON cannot be decoded to
    return WorkerSpec(
        target=_target(cls, isolation),
        cls=cls,
        queue=queue,
        dead_letter_queue=check("dead_letter_queue", given("dead_letter_queue") or f"{queue}.dead", queue_name),
        time_limit=check("time_limit", given("time_limit"), duration),
        concurrency=concurrency,
        retry=check("retry", given("retry"), lambda value: policy(cls.retry, value)),
        stall_limit=check("stall_limit", given("stall_limit"), stall),
        memory_limit=check("memory_limit", given("memory_limit"), lambda value: memory(value, concurrency)),
        isolation=isolation,
        jobs_per_child=check("jobs_per_child", given("jobs_per_child"), optional(at_least_one)),
        key_header=check("key_header", given("key_header"), optional(text)),
        unkeyed=check("unkeyed", given("unkeyed"), one_of("generate", "reject")),
        keep_message=check("keep_message", given("keep_message"), true_or_false),
        keep_done=check("keep_done", given("keep_done"), kept_row),
        keep_dead=check("keep_dead", given("keep_dead"), kept_row),
        keep_cancelled=check("keep_cancelled", given("keep_cancelled"), kept_row),
        keep_attempts=check("keep_attempts", given("keep_attempts"), kept),
    )


def misspelt(cls: type[Worker[Any, Any]]) -> Iterator[tuple[str, str]]:
    """
    Yield each misspelt name in a Worker class, with the attribute or method of `Worker` that the name resembles.

    Ignore names with a leading underscore.
    Ignore a name, too, if the same class also sets the attribute or method that the name resembles.
    """
    known = _settable() | set(_METHODS)
    for base in cls.__mro__:
        if base in Worker.__mro__:
            continue
        for name in vars(base):
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_MISSPELT)
            if near and name not in known and not name.startswith("_") and near[0] not in vars(base):
                yield name, near[0]


def _settable() -> set[str]:
    """Return the names of the attributes that a Worker class or a configuration file can set."""
    return {field.name for field in fields(WorkerSpec)} - {"target", "cls"}


def _check_methods(cls: type[Worker[Any, Any]]) -> None:
    """Raise ConfigError for methods that a slot cannot call; without this check, only the first job would reveal the fault."""
    name = cls.__qualname__
    if not _accepts(cls):
        raise ConfigError(
            f"Expected {name} to be made without arguments, got __init__{inspect.signature(cls)}: "
            "prepare what its jobs share in `def setup(self)`.",
            id="config.worker",
        )
    for method, arguments in (
        ("handle", ("job",)),
        ("setup", ()),
        ("on_dead", ("job", "reason")),
        ("teardown", ()),
    ):
        function = inspect.getattr_static(cls, method)
        # Like a static method, an object that is not a descriptor, such as `functools.partial(...)`, gets no `self`.
        plain = hasattr(type(function), "__get__") and not isinstance(function, staticmethod | classmethod)
        called = getattr(cls, method)
        if not _accepts(called, *("self",) * plain, *arguments):
            wanted = ", ".join(("self", *arguments))
            raise ConfigError(
                f"Expected {name}.{method}({wanted}), got {method}{inspect.signature(called)}: write `def {method}({wanted})`.",
                id="config.worker",
            )
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise ConfigError(
                f"Expected {name}.{method} to be a function, got a generator, of which nothing would run: remove `yield`.",
                id="config.worker",
            )


def _accepts(function: Callable[..., object], *arguments: object) -> bool:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        # Written in C, or made by a decorator: only a call shows whether the function accepts the arguments.
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def payload_type(cls: type[Worker[Any, Any]]) -> Any:
    """Return the payload's declared type: Any for a bare `Worker`."""
    return _arguments(cls)[0]


def checkpoint_type(cls: type[Worker[Any, Any]]) -> Any:
    """Return the checkpoint's declared type, or Any if none is declared."""
    return _arguments(cls)[1]


def _arguments(cls: type[Any]) -> tuple[Any, Any]:
    """
    Return the types that P and C have in this class, or Any for a type that is not declared.

    Generic bases are resolved.
    """
    bound: Mapping[Any, Any] = {}
    for ancestor in _lineage(cls):
        origin = get_origin(ancestor)
        if origin is None:  # a plain base has no type arguments
            bound = {}
            continue
        bound = {
            parameter: bound.get(argument, argument)
            for parameter, argument in zip(origin.__parameters__, get_args(ancestor), strict=True)
        }
    first, second = (bound.get(parameter, Any) for parameter in (P, C))
    return (Any if isinstance(first, _OPEN) else first, Any if isinstance(second, _OPEN) else second)


def _lineage(cls: type[Any]) -> list[Any]:
    """Return the bases from `cls` to Worker, nearest first, with their type arguments: `Worker[Request, int]`."""
    found: list[Any] = []
    while cls is not Worker:
        written = cls.__dict__.get("__orig_bases__", cls.__bases__)
        base = next(base for base in written if is_worker(get_origin(base) or base))
        found.append(base)
        cls = get_origin(base) or base
    return found


def _target(cls: type[Any], isolation: str) -> str:
    """Return the name by which a child process imports the class; raise ConfigError if a child cannot import it."""
    module = cls.__module__ if isolation == "thread" else _module_of(cls)
    if isolation == "process" and _being_imported(cls.__module__):
        raise ConfigError(
            f"{cls.__qualname__} is run while its module {cls.__module__!r} is being imported, and each child process would "
            "import it and run it again: put the call of run below `if __name__ == '__main__':`, or into another file.",
            id="config.worker",
        )
    if isolation == "process" and "<locals>" in cls.__qualname__:
        raise ConfigError(
            f"{cls.__qualname__} is defined inside a function, where a child process cannot find it: "
            "move it to the top of its module, or set isolation = 'thread'.",
            id="config.worker",
        )
    return f"{module}:{cls.__qualname__}"


def _module_of(cls: type[Any]) -> str:
    """
    Return the name of the module that a child process imports for this class.

    For a class in the file that Python executes (`__main__`), this is the file's own name: the child imports the file again.
    Raise ConfigError if there is no such file, as in a notebook.
    """
    if cls.__module__ != "__main__":
        return str(cls.__module__)
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:  # python -m package.module
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file() or Path(file).suffix != ".py":
        raise ConfigError(
            f"{cls.__qualname__} is defined in __main__, which a child process cannot import. "
            "To try it in a notebook, use steadyworker.testing.run_one(Worker, payload). "
            "To run it, put it into a file such as app.py and start `steadyworker run app.py:Class`.",
            id="config.worker",
        )
    return importable_name(Path(file))


def _being_imported(module: str) -> bool:
    """Return whether this module's own code is still running; importlib has no public name for that."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


# --- The rules ---------------------------------------------------------------------------------------------------------


class AttributeCheck:
    """
    The check of one Worker's attributes by rules; its errors name the Worker and the attribute.

    A rule's error names the expectation; the check adds the value, unless the rule's error already names the value.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def __call__(self, name: str, value: Any, rule: Callable[[Any], Any]) -> Any:
        """Apply the rule; raise ConfigError with the attribute, the expectation and the value."""
        try:
            return rule(value)
        except (ValueError, TypeError) as error:
            problem = str(error)
            got = "" if ", got " in problem else f" Got {value!r}."
            raise ConfigError(f"{self._owner}.{name}: {problem}{got}", id="config.worker") from None


def duration(value: Any) -> float | None:
    """Return seconds above 0 from seconds, a timedelta, or a text such as "3h"; None means no limit."""
    if value is None:
        return None
    try:
        number = parse_seconds(value)
    except ValueError:
        number = 0.0
    if number <= 0:
        raise ValueError("Expected seconds above 0, a timedelta, a text such as '3h', or None.")
    return number


def kept_row(value: Any) -> float:
    """Return seconds of at least an hour, because a delayed copy of an ended job's message can still be under way."""
    number = kept(value)
    if number < _SHORTEST_KEPT:
        raise ValueError(
            "Expected at least 1h, because a delayed copy of the message that comes later would run the job again."
        )
    return number


def kept(value: Any) -> float:
    """Return seconds above 0 from seconds, a timedelta, or a text such as "7d"."""
    if value is None or (number := duration(value)) is None:
        raise ValueError("Expected seconds above 0, a timedelta, or a text such as '7d'.")
    return number


def stall(value: Any) -> float | None:
    """Return seconds of at least 1, because a slot passes on only five reports of progress a second."""
    number = duration(value)
    if number is not None and number < _SHORTEST_STALL:
        raise ValueError("Expected at least 1 second, because progress is passed on only five times a second.")
    return number


def at_least_one(value: Any) -> int:
    """Return a count of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("Expected a whole number of at least 1.")
    return value


def text(value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("Expected a text that is not empty.")
    return value


def queue_name(value: Any) -> str:
    """Return a valid queue name; the adapter also checks it against the rules of its broker."""
    if problem := QUEUE_NAME.problem(text(value)):
        raise ValueError(problem)
    return str(value)


def true_or_false(value: object) -> bool:
    """Return True or False; raise ValueError for any other value."""
    if not isinstance(value, bool):
        raise ValueError("Expected True or False.")  # noqa: TRY004 - `AttributeCheck` catches ValueError
    return value


def one_of(*choices: str) -> Callable[[Any], Any]:
    """Return a rule that accepts one of these words."""

    def rule(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"Expected one of {', '.join(map(repr, choices))}.")
        return value

    return rule


def optional(rule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a rule that also accepts None."""
    return lambda value: None if value is None else rule(value)


def policy(ours: RetryPolicy, value: Any) -> RetryPolicy:
    """Return a RetryPolicy unchanged; for a configuration file's table, return the class's policy with the table's numbers."""
    if isinstance(value, RetryPolicy):
        return value
    if not isinstance(value, Mapping) or not set(value) <= {"max_attempts", "max_crashes", "max_losses"}:
        raise ValueError("Expected a RetryPolicy, or a table with some of max_attempts, max_crashes, max_losses.")
    return replace(
        ours,
        max_attempts=at_least_one(value.get("max_attempts", ours.max_attempts)),
        max_crashes=at_least_one(value.get("max_crashes", ours.max_crashes)),
        max_losses=at_least_one(value.get("max_losses", ours.max_losses)),
    )


def memory(value: Any, concurrency: int) -> int | None:
    """
    Return the bytes of a number or of a text such as "2 GiB".

    For `auto`, return one slot's share of 80 % of the cgroup's memory limit, or None without such a limit.
    """
    if value is None:
        return None
    if value == "auto":
        limit = cgroup_limit()
        return None if limit is None else int(limit * _AUTO_SHARE / concurrency)
    size = parse_size(value) if isinstance(value, str) else value
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError("Expected bytes, a size such as '2 GiB', 'auto' or None.")
    return size
