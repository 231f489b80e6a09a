"""
The remedies for the log of a worker process, found by the entry-point group `steadyworker.remedies`.

An entry point of this group names a function without arguments that returns a `RemedyOf`.
The `RemedyOf` receives each line of the log that has a cause (the field `explain`).
It returns what to do, or an empty text.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from steadyworker.errors import ConfigError
from steadyworker.system.entry_points import Extension, broken, installed, load
from steadyworker.telemetry.logs import RemedyOf

GROUP = "steadyworker.remedies"


class InstalledRemedies:
    """
    A function for `steadyworker.telemetry.logs.configure`, which returns the first remedy of an installed package for a line.

    The packages are imported at the first line that has a cause, so a start without an error imports no such package.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._remedies: list[RemedyOf] | None = None

    def __call__(self, line: Mapping[str, Any]) -> str:
        """
        Return the remedy for a line, or an empty text.

        If an entry point is broken, return once the error that names this entry point.
        """
        with self._lock:
            if self._remedies is None:
                self._remedies = []  # an import can log a line, too
                self._remedies = [_made(extension) for extension in installed(GROUP).values()]
        return next(filter(None, (_remedy(each, line) for each in self._remedies)), "")


def _remedy(remedy_of: RemedyOf, line: Mapping[str, Any]) -> str:
    try:
        return remedy_of(line)
    except Exception:  # noqa: BLE001 - any code can run here, and no line may be lost for its remedy
        return ""


def _made(extension: Extension) -> RemedyOf:
    try:
        remedy_of: RemedyOf = load(extension)()
    except ConfigError as error:
        return _once(str(error))
    except Exception as error:  # noqa: BLE001 - any code can run here, and no line may be lost for its remedy
        return _once(str(broken(extension, error)))
    return remedy_of


def _once(text: str) -> RemedyOf:
    """Return a function that returns this text for the first line."""
    left = [text]
    return lambda _line: left.pop() if left else ""
