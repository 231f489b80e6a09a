"""The state of an existing queue, and its differences from the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from steadyworker_rabbitmq.topology import PlannedQueue

QueueType = Literal["quorum", "classic", "stream"]
Values = Mapping[str, object]

UNREACHABLE = ("down", "stopped", "crashed", "minority")
"""The states in which the broker cannot reach a queue, as the management API names them."""

_TYPES: Mapping[object, QueueType] = {"quorum": "quorum", "classic": "classic", "stream": "stream"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One argument that differs from the plan; None means not set."""

    argument: str
    expected: object = None
    got: object = None

    def __str__(self) -> str:
        return f"{self.argument}: expected {_shown(self.expected)}, got {_shown(self.got)}"


@dataclass(frozen=True, slots=True)
class ExistingQueue:
    """
    A queue that exists.

    Attributes:
        name: The queue's name.
        arguments: The arguments of the queue's declaration, or None if unknown.
        policy: The settings that policies add, or None if unknown, because only the management API reports policies.
        policy_name: The user policy that applies to the queue, or None; at most one can apply.
        durable: True if the queue survives a restart of the broker.
        auto_delete: True if the broker deletes the queue, with its messages, when the last consumer leaves.
        type: The queue's type, or None if unknown.
        consumer_timeout: The delivery timeout of the queue's present consumers, in ms; None if the management API reports none.
        state: The queue's state in the management API, such as `running` or `down`; empty if unknown.
        messages, message_bytes: The number of the queue's messages, and the bytes of their bodies, some seconds ago; 0 if unknown.
        difference: The first difference from the plan, if the arguments are unknown, and the broker refused the planned arguments.
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
    difference: Difference | None = None

    @classmethod
    def as_planned(cls, planned: PlannedQueue) -> ExistingQueue:
        """Return the state of a queue that the broker has just confirmed to match the plan; its policy is unknown."""
        return cls(planned.name, planned.arguments, type=queue_type(planned.arguments))

    def number(self, key: str) -> int | None:
        """
        Return the number in force.

        If the queue and its policy both set a number, the lower number is in force, as in the broker.
        """
        values = [value for value in self._both(key) if isinstance(value, int)]
        return min(values, default=None)

    def text(self, key: str) -> str | None:
        """Return the text in force; if the queue and its policy both set a text, the queue's own text is in force."""
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


def differences(planned: PlannedQueue, queue: ExistingQueue) -> list[Difference]:
    """
    Return every argument that the queue lacks, has in addition, or has with another value.

    If the queue's arguments are unknown, the list has at most the first difference.

    A value from a policy counts as a value of an argument.
    """
    if queue.arguments is None:
        return [queue.difference] if queue.difference is not None else []
    names = {**planned.arguments, **queue.arguments}
    policies = {f"x-{key}": value for key, value in (queue.policy or {}).items()}
    pairs = [(name, planned.arguments.get(name), {**policies, **queue.arguments}.get(name)) for name in names]
    return [Difference(name, expected, got) for name, expected, got in pairs if expected != got]


def _shown(value: object) -> str:
    return "none" if value is None else repr(value)
