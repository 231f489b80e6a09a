"""
The Workers of `noop`, in a process whose ledger keeps neither the messages of jobs nor their attempts: only for a comparison.

A user can switch off the messages (`keep_message`), but not the attempts, so this module replaces what makes them.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.benchmarks import noop


class Threads(noop.Threads):
    keep_message = False


class Processes(noop.Processes):
    keep_message = False


def _nothing(*_: Any, **__: Any) -> None:
    """Be what records nothing."""


if (child := sys.modules.get("steadyworker.slots.child") or sys.modules.get("__main__")) and hasattr(
    child, "reset_peak_memory"
):
    child.reset_peak_memory = child.peak_memory = _nothing  # type: ignore[attr-defined]
else:
    from steadyworker.runner import deliveries, report

    setattr(deliveries, "Began", _nothing)  # noqa: B010 - the type checker refuses an assignment to a class
    report.ending = _nothing  # type: ignore[assignment]
