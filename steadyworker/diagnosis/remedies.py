"""The remedies of the catalogue, for the log of a worker process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from steadyworker.diagnosis.catalogue import Entry, find
from steadyworker.telemetry.logs import EXPLAIN

_MOST = 1000
"""The largest number of ids that are kept, because a user's own line can have any text as its id."""


class Remedies:
    """
    A function that returns the first remedy of the entry that a line names.

    This class is the entry point `catalogue` of the group `steadyworker.remedies`.
    An entry is read when the first line names it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Entry | None] = {}

    def __call__(self, line: Mapping[str, Any]) -> str:
        """Return the remedy, or an empty text if there is no such entry, or if the line already has the remedy."""
        entry = self._entry(str(line.get(EXPLAIN)))
        if entry is None or entry.speaks_for_itself:
            return ""
        texts = {name: value for name, value in line.items() if isinstance(value, str)}
        groups = texts | {"message": texts.get("key", "")}  # an entry's texts call the job's key `message`
        remedy = entry.filled(entry.remedies[0] if entry.worker is None else entry.worker, groups)
        return "" if any(remedy.rstrip(".") in text for text in texts.values()) else remedy

    def _entry(self, id: str) -> Entry | None:
        with self._lock:
            if id not in self._known and len(self._known) < _MOST:
                try:
                    self._known[id] = find(id)
                except Exception:  # noqa: BLE001 - a line that reports an error must not be lost because of its remedy
                    self._known[id] = None
            return self._known.get(id)
