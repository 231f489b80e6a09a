"""A queue as it is on the broker, and where that differs from the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from steadyworker_rabbitmq.topology import Wanted

QueueType = Literal["quorum", "classic", "stream"]
Values = Mapping[str, str | int | float | bool | None]

_TYPES: Mapping[object, QueueType] = {"quorum": "quorum", "classic": "classic", "stream": "stream"}


@dataclass(frozen=True, slots=True)
class QueueState:
    """
    A queue that exists.

    Attributes:
        name: Its name.
        arguments: What it was declared with, or None where nobody could say.
        policy: What policies add to that, or None where nobody could say: only the management API knows.
        policy_name: The user policy that applies to it, if one does; at most one can.
        durable: Whether it survives a restart of the broker.
        type: Its type, or None where nobody could say.
        consumer_timeout: The delivery timeout of its present consumers, in ms, where the management API knows.
    """

    name: str
    arguments: Values | None = None
    policy: Values | None = None
    policy_name: str | None = None
    durable: bool = True
    type: QueueType | None = None
    consumer_timeout: int | None = None

    def number(self, key: str) -> int | None:
        """What applies of a number that the queue and its policy may both set: the lower one, as the broker takes it."""
        values = [value for value in self._both(key) if isinstance(value, int)]
        return min(values, default=None)

    def text(self, key: str) -> str | None:
        """What applies of a text that the queue and its policy may both set: the queue's own."""
        return next((value for value in self._both(key) if isinstance(value, str)), None)

    def sets(self, key: str) -> bool:
        """Whether the queue itself sets it; a policy may, too."""
        return f"x-{key}" in (self.arguments or {})

    def obeys_policy(self, key: str) -> bool:
        """Whether the number that applies is a policy's."""
        return (self.policy or {}).get(key) == self.number(key) != (self.arguments or {}).get(f"x-{key}")

    def _both(self, key: str) -> Iterator[str | float | bool | None]:
        yield (self.arguments or {}).get(f"x-{key}")
        yield (self.policy or {}).get(key)


def queue_type(arguments: Mapping[str, object]) -> QueueType:
    """The type that arguments ask for; none means classic."""
    return _TYPES.get(arguments.get("x-queue-type"), "classic")


def as_wanted(wanted: Wanted) -> QueueState:
    """A queue that the broker has just said to be as we want it."""
    return QueueState(wanted.name, wanted.arguments, type=queue_type(wanted.arguments))


@dataclass(frozen=True, slots=True)
class Difference:
    """One argument that is not as we want it; None: not set."""

    argument: str
    wanted: object = field(default=None)
    got: object = field(default=None)

    def __str__(self) -> str:
        return f"{self.argument}: expected {_shown(self.wanted)}, got {_shown(self.got)}"


def differences(wanted: Wanted, actual: QueueState) -> list[Difference]:
    """Every argument that differs, in both directions; a policy may stand in for one; nothing where they are not known."""
    if actual.arguments is None:
        return []
    names = {**wanted.arguments, **actual.arguments}
    policies = {f"x-{key}": value for key, value in (actual.policy or {}).items()}
    pairs = [(name, wanted.arguments.get(name), {**policies, **actual.arguments}.get(name)) for name in names]
    return [Difference(name, ours, theirs) for name, ours, theirs in pairs if ours != theirs]


def _shown(value: object) -> str:
    return "none" if value is None else repr(value)
