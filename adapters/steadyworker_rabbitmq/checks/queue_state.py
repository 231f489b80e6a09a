"""The state of an existing queue, and its differences from the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from steadyworker_rabbitmq.topology import Wanted

QueueType = Literal["quorum", "classic", "stream"]
Values = Mapping[str, object]

_TYPES: Mapping[object, QueueType] = {"quorum": "quorum", "classic": "classic", "stream": "stream"}


@dataclass(frozen=True, slots=True)
class QueueState:
    """
    A queue that exists.

    Attributes:
        name: The queue's name.
        arguments: The arguments of the queue's declaration, or None if unknown.
        policy: The settings that policies add, or None if unknown: only the management API reports them.
        policy_name: The user policy that applies to the queue, or None; at most one can apply.
        durable: True if the queue survives a restart of the broker.
        auto_delete: True if the broker deletes the queue, with its messages, when its last consumer leaves.
        type: The queue's type, or None if unknown.
        consumer_timeout: The delivery timeout of its present consumers, in ms, if the management API reports one.
        state: The queue's state in the management API, such as `running` or `down`; empty if unknown.
        messages, message_bytes: The number of its messages, and the bytes of their bodies, as of some seconds ago; 0 if unknown.
    """

    name: str
    arguments: Values | None = None
    policy: Values | None = None
    policy_name: str | None = None
    durable: bool = True
    auto_delete: bool = False
    type: QueueType | None = None
    consumer_timeout: int | None = None
    state: str = ""
    messages: int = 0
    message_bytes: int = 0

    def number(self, key: str) -> int | None:
        """Return the number in force: as in the broker, the lower one if the queue and its policy both set it."""
        values = [value for value in self._both(key) if isinstance(value, int)]
        return min(values, default=None)

    def text(self, key: str) -> str | None:
        """Return the text in force: the queue's own if the queue and its policy both set it."""
        return next((value for value in self._both(key) if isinstance(value, str)), None)

    def sets(self, key: str) -> bool:
        """Return whether the queue's own arguments set this key; a policy can set it as well."""
        return f"x-{key}" in (self.arguments or {})

    def obeys_policy(self, key: str) -> bool:
        """Return whether the number in force comes from a policy."""
        return (self.policy or {}).get(key) == self.number(key) != (self.arguments or {}).get(f"x-{key}")

    def _both(self, key: str) -> Iterator[object]:
        yield (self.arguments or {}).get(f"x-{key}")
        yield (self.policy or {}).get(key)


def queue_type(arguments: Mapping[str, object]) -> QueueType:
    """Return the queue type that these arguments declare; the default is classic."""
    return _TYPES.get(arguments.get("x-queue-type"), "classic")


def as_wanted(wanted: Wanted) -> QueueState:
    """Return the state of a queue that the broker has just confirmed to match the plan."""
    return QueueState(wanted.name, wanted.arguments, type=queue_type(wanted.arguments))


@dataclass(frozen=True, slots=True)
class Difference:
    """One argument that differs from the plan; None means not set."""

    argument: str
    wanted: object = field(default=None)
    got: object = field(default=None)

    def __str__(self) -> str:
        return f"{self.argument}: expected {_shown(self.wanted)}, got {_shown(self.got)}"


def differences(wanted: Wanted, actual: QueueState) -> list[Difference]:
    """
    Return every argument that the queue lacks, has in addition, or has with another value.

    The list is empty if the queue's arguments are unknown.

    A value from a policy counts as if an argument set it.
    """
    if actual.arguments is None:
        return []
    names = {**wanted.arguments, **actual.arguments}
    policies = {f"x-{key}": value for key, value in (actual.policy or {}).items()}
    pairs = [(name, wanted.arguments.get(name), {**policies, **actual.arguments}.get(name)) for name in names]
    return [Difference(name, ours, theirs) for name, ours, theirs in pairs if ours != theirs]


def _shown(value: object) -> str:
    return "none" if value is None else repr(value)
