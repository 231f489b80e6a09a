"""
The policy that will apply to a queue, worked out from the list of all policies; pure.

The management API reports a queue's policy only with the queue's first statistics.
Until then, for 6 to 8 s after its declaration, the API omits the policy, which is no proof that there is none.
For a queue that does not exist yet, nothing but this list can say which policy it will get.

At most one policy applies to a queue, the one with the highest priority; and at most one operator policy beside it.
If both set a number, the lower one counts; of two other values, the operator policy's counts.
A policy with a key that a quorum queue does not support does not apply to any quorum queue, with none of its keys.
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
        name: Its name.
        pattern: The pattern of the names that it applies to (PCRE); it may match anywhere in a name.
        definition: What it sets.
        apply_to: The kind of queue or exchange that it applies to.
        priority: Of two policies for one queue, the one with the higher priority applies.
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
        Return whether it applies to a queue of this name and type.

        Raises:
            ValueError: Python cannot read the pattern, which Erlang can.
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
    Return the name of the user policy for this queue, and all that the policies set for it.

    Raises:
        ValueError: A pattern cannot be read here, so the result is unknown.
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
