"""Translation of SQLite's errors into ours: what was expected, what was got, and what to do; the cause is kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steadyworker.errors import BrokerUnavailable, SteadyWorkerError


class Unusable(BrokerUnavailable):
    """The file can never be our broker (it is another program's, or has another schema): waiting cannot help."""


class Replaced(BrokerUnavailable):
    """The file that we have open is no longer at its path: no other process would see what we write to it."""


class Evicted(BrokerUnavailable):
    """Another process took us for dead, because we were silent too long, and released our messages."""


# Primary result codes; the extended ones add detail in their upper bytes, which the message names.
_REMEDIES = {
    sqlite3.SQLITE_BUSY: "another process has kept it locked: find the frozen or stuck process with `fuser`",
    sqlite3.SQLITE_FULL: "the disk is full: free space on its file system",
    sqlite3.SQLITE_READONLY: "it is read-only: give this user write permission on the file and its folder",
    sqlite3.SQLITE_IOERR: "the file system failed: look at the kernel's log",
    sqlite3.SQLITE_CORRUPT: "its content is damaged: restore it, or `sqlite3 FILE .recover` into a new file",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database: name another path",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: create its folder, and give this user permission on it",
}
_UNUSABLE = frozenset({sqlite3.SQLITE_NOTADB})


@contextmanager
def translated(path: Path, to: type[SteadyWorkerError] = BrokerUnavailable) -> Iterator[None]:
    """Raise `to` for whatever SQLite or the file system raises inside; `Unusable` if the file is not a broker file."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raised = Unusable if code in _UNUSABLE and to is BrokerUnavailable else to
        raise raised(_sentence(path, str(error), _REMEDIES.get(code, "see the cause of this error"))) from error
    except OSError as error:
        raise to(_sentence(path, error.strerror or str(error), "check that path and its permissions")) from error
    except BrokerUnavailable as error:
        if isinstance(error, to):
            raise
        raise to(str(error)) from error


def _sentence(path: Path, got: str, remedy: str) -> str:
    return f"Expected a usable broker file at {path}, got: {got}; {remedy}."
