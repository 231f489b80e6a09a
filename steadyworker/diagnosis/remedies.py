"""The remedies of the catalogue for the log of a worker process, which reads the catalogue at its first error."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from steadyworker.diagnosis.catalogue import Entry, load
from steadyworker.telemetry.logs import EXPLAIN


class Remedies:
    """
    Returns the first remedy of the entry that a line names; for `steadyworker.telemetry.logs.configure`.

    The catalogue is read once, at the first line that names an entry: a start without an error does not need it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: Mapping[str, Entry] | None = None

    def __call__(self, line: Mapping[str, Any]) -> str:
        """Return the remedy, or an empty text if there is no such entry, or the line has the remedy already."""
        id_ = line.get(EXPLAIN)
        entry = self._catalogue().get(id_) if isinstance(id_, str) else None
        if entry is None or entry.speaks_for_itself:
            return ""
        remedy = entry.filled(
            entry.remedies[0], {name: value for name, value in line.items() if isinstance(value, str)}
        )
        said = any(isinstance(value, str) and remedy.rstrip(".") in value for value in line.values())
        return "" if said else remedy

    def _catalogue(self) -> Mapping[str, Entry]:
        with self._lock:
            if self._entries is None:
                try:
                    self._entries = load()
                except Exception:  # noqa: BLE001 - a line that reports an error must not be lost for its remedy
                    self._entries = {}
            return self._entries
