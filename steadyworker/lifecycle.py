"""
The stages of a worker process, and the legal ways between them.

::

    running ⇄ quiet ──→ draining ──→ cancelling ──→ stopped
       └────────────────────↑  ↑─────────┘ (a second signal skips ahead)

Stages only go forward, but for `quiet`, which is left again; `advance` to a stage that lies behind is ignored, so that
signals, budgets and failures may ask in any order and any number of times.
"""

from __future__ import annotations

from enum import IntEnum


class Stage(IntEnum):
    """How far a worker process is on its way out."""

    RUNNING = 0
    QUIET = 1
    DRAINING = 2
    CANCELLING = 3
    STOPPED = 4


_LEGAL: dict[Stage, frozenset[Stage]] = {
    Stage.RUNNING: frozenset({Stage.QUIET, Stage.DRAINING, Stage.CANCELLING, Stage.STOPPED}),
    Stage.QUIET: frozenset({Stage.RUNNING, Stage.DRAINING, Stage.CANCELLING, Stage.STOPPED}),
    Stage.DRAINING: frozenset({Stage.CANCELLING, Stage.STOPPED}),
    Stage.CANCELLING: frozenset({Stage.STOPPED}),
    Stage.STOPPED: frozenset(),
}


def advance(now: Stage, to: Stage) -> Stage:
    """The stage after asking for `to`: itself when the way is legal, else the stage that we are in."""
    return to if to in _LEGAL[now] else now
