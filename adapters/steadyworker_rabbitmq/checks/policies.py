"""
Computes the policy that will apply to a queue from the list of all policies; pure functions.

The management API reports a queue's policy only with the queue's first statistics.
Until then, for 6 to 8 s after the queue's declaration, the API omits the policy, even if the queue has one.
For a queue that does not exist yet, only this list shows which policy the queue will get.

At most one user policy and one operator policy apply to a queue: those with the highest priority.
If both set a number, the lower number counts; for other values, the value of the operator policy counts.
If a policy has a key that quorum queues do not support, none of its keys applies to a quorum queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from steadyworker_rabbitmq.checks.queue_state import QueueType

_APPLY_TO_ALL = ("all", "queues")
_APPLY_TO_TYPE: Mapping[QueueType, str] = {
    "quorum": "quorum_queues",
    "classic": "classic_queues",
    "stream": "streams",
}
_UNFIT_FOR_QUORUM = frozenset(
    (
        *("ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown"),
        *("ha-promote-on-failure", "queue-mode", "queue-master-locator", "max-priority", "single-active-consumer"),
    )
)


@dataclass(frozen=True, slots=True)
class Policy:
    """
    One policy of a virtual host.

    Attributes:
        name: The policy's name.
        pattern: A regular expression (PCRE); the policy applies to a name in which the pattern matches anywhere.
        definition: The keys and values that the policy sets.
        apply_to: The kind of queue or exchange to which the policy applies.
        priority: Of two policies for one queue, the policy with the higher priority applies.
        operators: True for an operator policy.
    """

    name: str
    pattern: str
    definition: Mapping[str, Any]
    apply_to: str = "queues"
    priority: int = 0
    operators: bool = False

    def matches(self, queue: str, type_: QueueType) -> bool:
        """
        Return whether the policy applies to a queue of this name and type.

        Raises:
            ValueError: Python cannot read the pattern, although Erlang can.
        """
        if self.apply_to not in (*_APPLY_TO_ALL, _APPLY_TO_TYPE[type_]):
            return False
        if type_ == "quorum" and _UNFIT_FOR_QUORUM & self.definition.keys():
            return False
        if "[:" in self.pattern:  # a class such as [[:alpha:]], which means something else in Python
            raise ValueError(f"policy {self.name!r} has the pattern {self.pattern!r}")
        try:
            return re.search(self.pattern, queue) is not None
        except re.error as error:
            raise ValueError(f"policy {self.name!r} has the pattern {self.pattern!r} ({error})") from error


def in_force(policies: Iterable[Policy], queue: str, type_: QueueType) -> tuple[str | None, Mapping[str, Any]]:
    """
    Return the name of the user policy for this queue, and all values that policies set for the queue.

    Raises:
        ValueError: Python cannot read a pattern, so the result is unknown.
    """
    fitting = sorted(
        (policy for policy in policies if policy.matches(queue, type_)), key=lambda policy: policy.priority
    )
    user = next((policy for policy in reversed(fitting) if not policy.operators), None)
    operators = next((policy for policy in reversed(fitting) if policy.operators), None)
    found = dict(user.definition) if user is not None else {}
    for key, value in operators.definition.items() if operators is not None else ():
        theirs = found.get(key)
        found[key] = min(theirs, value) if isinstance(theirs, int) and isinstance(value, int) else value
    return user.name if user is not None else None, found
