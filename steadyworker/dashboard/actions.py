"""The page of the log of actions: what people did, newest first."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from steadyworker.dashboard.addresses import job_path
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.facts import Action
from steadyworker.text.redaction import redact
from steadyworker.units import count_text

MOST_ACTIONS = 200
"""The number of actions on the page."""

_MOST_KEYS = 3


class ActionLine(Struct, frozen=True):
    """An action as a row; `keys` has at most three keys with their addresses, and `others` the number of the other jobs."""

    at: float
    who: str
    what: str
    namespace: str
    queue: str
    count: int
    keys: Sequence[tuple[str, str]]
    others: int
    detail: str


class ActionsPage(Struct, frozen=True):
    """The content of the page; `more` is true if older actions are left out."""

    headline: str
    actions: Sequence[ActionLine]
    more: bool


def actions_page(once: ReadOnce, namespace: str | None) -> ActionsPage:
    """Return the content of the page of the log of actions."""
    found = once.as_ledger.facts.actions(None, namespace, limit=MOST_ACTIONS + 1)
    lines = [_line(action) for action in found[:MOST_ACTIONS]]
    more = len(found) > MOST_ACTIONS
    if not lines:
        return ActionsPage("No person has done anything within 90 days", lines, more)
    return ActionsPage(
        f"The last {count_text(len(lines), 'action')}" if more else count_text(len(lines), "action"), lines, more
    )


def _line(action: Action) -> ActionLine:
    keys = [(key, job_path(action.namespace, action.queue, key)) for key in action.keys[:_MOST_KEYS] if action.queue]
    return ActionLine(
        action.at,
        action.who,
        action.what,
        action.namespace,
        action.queue,
        action.count,
        keys,
        max(0, action.count - len(keys)),
        redact(action.detail),
    )
