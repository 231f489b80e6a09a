"""From SQLite's errors to ours: what was expected, what was got, and what to do; the cause is kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steadyworker.errors import BrokerUnavailable, SteadyWorkerError


class Unusable(BrokerUnavailable):
    """The file can never be our broker (another program's, or a newer version's): no waiting heals it."""


class Replaced(BrokerUnavailable):
    """The file that we have open is no longer the one at its path: what is written to it, nobody will read."""


class Evicted(BrokerUnavailable):
    """Another process thought us dead, for we were silent too long, and gave our messages back."""


# Primary result codes; the extended ones add detail in their upper bytes, which the message names.
_REMEDIES = {
    sqlite3.SQLITE_BUSY: "another process has kept it locked: find it with `fuser`, it is frozen or stuck",
    sqlite3.SQLITE_FULL: "there is no room left: free some on its file system",
    sqlite3.SQLITE_READONLY: "it may not be written: give this user write permission on the file and its folder",
    sqlite3.SQLITE_IOERR: "the file system failed: look at the kernel's log",
    sqlite3.SQLITE_CORRUPT: "its content is damaged: restore it, or `sqlite3 FILE .recover` into a new file",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database: name another path",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: make its folder, and give this user permission on it",
}
_UNUSABLE = frozenset({sqlite3.SQLITE_NOTADB})


@contextmanager
def translated(path: Path, to: type[SteadyWorkerError] = BrokerUnavailable) -> Iterator[None]:
    """Raise `to`, or `Unusable` for a file that is no broker's, for whatever SQLite or the file system raises inside."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raised = Unusable if code in _UNUSABLE and to is BrokerUnavailable else to
        raise raised(_sentence(path, str(error), _REMEDIES.get(code, "see the cause"))) from error
    except OSError as error:
        raise to(_sentence(path, error.strerror or str(error), "see to that path and its permissions")) from error
    except BrokerUnavailable as error:
        if isinstance(error, to):
            raise
        raise to(str(error)) from error


def _sentence(path: Path, got: str, remedy: str) -> str:
    return f"Expected a broker file at {path} that answers, got: {got}; {remedy}."
