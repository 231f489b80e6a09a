"""A Worker whose handler runs the Python of its payload, and the odd things that it may raise, return, print and report."""

# ruff: noqa: F401 - a payload names what is imported here
from __future__ import annotations

import contextlib
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

from steadyworker import Interrupt, Job, Reject, Retry, RetryPolicy, Snooze, Worker
from steadyworker.errors import BadPayload, TargetExists

Asked = dict[str, Any]


class Unwelcome(Exception):
    pass


def refuse(*_arguments: object) -> NoReturn:
    raise RuntimeError("refused")


# Made by `type`, because no type checker accepts such a class.
Refusing: Any = type(
    "Refusing",
    (),
    {
        **dict.fromkeys(("__str__", "__repr__", "__bool__", "__float__", "__eq__"), refuse),
        "__class__": property(refuse),
    },
)
RefusingError: Any = type("RefusingError", (Refusing, Exception), {})
Text: Any = type(
    "Text",
    (str,),
    {
        **dict.fromkeys(("encode", "replace", "lower", "strip", "__len__", "__getitem__"), refuse),
        "__str__": lambda self: self,
    },
)


class Leaving:
    """To print it ends the process, if it can."""

    def __str__(self) -> str:
        raise SystemExit(4)


class LeavingError(Leaving, Exception):
    pass


class RefusingType(type):
    """A class that raises when it is asked for its name, or for its instances."""

    def __getattribute__(cls, name: str) -> Any:
        if name in {"__name__", "__qualname__", "__module__"}:
            raise RuntimeError(name)
        return super().__getattribute__(name)

    def __instancecheck__(cls, instance: object) -> NoReturn:
        raise SystemExit(5)


class Nameless(Exception, metaclass=RefusingType):
    pass


class SilentRetry(Retry):
    """Skips `super().__init__`."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments


class SilentReject(Reject):
    """Skips `super().__init__`."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments


class SilentSnooze(Snooze):
    """Skips `super().__init__`."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments


def having(kind: type[BaseException], **attributes: object) -> BaseException:
    """Return an exception with attributes of any type, made without its `__init__`."""
    made = kind.__new__(kind)
    made.__dict__.update(attributes)
    return made


class Anything(Worker[Asked]):
    """Runs the payload's `do`, which is Python, and returns what that names `result`."""

    queue = "anything"
    time_limit = 60
    retry = RetryPolicy(dont_retry_on=[Unwelcome, KeyError])

    def handle(self, job: Job[Asked]) -> object:
        names = {**globals(), "job": job}
        exec(job.payload["do"], names)
        return names.get("result")


class AnyRefusal(Anything):
    """Its policy asks a class that raises."""

    queue = "any-refusal"
    retry = RetryPolicy(dont_retry_on=Nameless)
