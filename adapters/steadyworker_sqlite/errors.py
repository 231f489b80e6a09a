"""
Translates SQLite's errors.

Each new error names what was expected, what was got, and what to do.
The new error keeps SQLite's error as its cause.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steadyworker.errors import BrokerUnavailable, SteadyWorkerError


class Unusable(BrokerUnavailable):
    """A file that belongs to another program, or has another schema, so a retry cannot help."""

    id = "embedded.unusable-file"


class FileReplaced(BrokerUnavailable):
    """An open file that is no longer at its path, so a new message in this file would reach no other process."""

    id = "embedded.file-replaced"


class Evicted(BrokerUnavailable):
    """An eviction: this consumer was silent too long, so another process released this consumer's messages."""

    id = "embedded.evicted"


# Primary result codes; extended codes add details in their upper bytes, and SQLite's message names these details.
_REMEDIES = {
    sqlite3.SQLITE_BUSY: (
        "another process has kept it locked: find the frozen or stuck process with `fuser`",
        "embedded.locked",
    ),
    sqlite3.SQLITE_FULL: ("the disk is full: free space on its file system", "embedded.disk-full"),
    sqlite3.SQLITE_READONLY: (
        "it is read-only: give this user write permission on the file and its folder",
        "embedded.read-only",
    ),
    sqlite3.SQLITE_IOERR: ("the file system failed: look at the kernel's log", "embedded.file-system-failed"),
    sqlite3.SQLITE_CORRUPT: (
        "its content is damaged: restore it, or `sqlite3 FILE .recover` into a new file",
        "embedded.damaged",
    ),
    sqlite3.SQLITE_NOTADB: ("it is not a SQLite database: name another path", "embedded.unusable-file"),
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened: create its folder, and give this user permission on it",
        "embedded.cannot-open",
    ),
}
"""The remedy for each result code, and the entry of the catalogue that explains the error."""
_UNUSABLE = frozenset({sqlite3.SQLITE_NOTADB})


@contextmanager
def translated(path: Path, to: type[SteadyWorkerError] = BrokerUnavailable) -> Iterator[None]:
    """In the `with` block, turn each error of SQLite or the file system into an error of the class `to`; raise `Unusable` if the file is not a broker file."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raised = Unusable if code in _UNUSABLE and to is BrokerUnavailable else to
        remedy, id_ = _REMEDIES.get(code, ("see the cause of this error", ""))
        raise raised(_sentence(path, str(error), remedy), id=id_) from error
    except OSError as error:
        raise to(_sentence(path, error.strerror or str(error), "check that path and its permissions")) from error
    except BrokerUnavailable as error:
        if isinstance(error, to):
            raise
        raise to(str(error), id=error.id) from error


def _sentence(path: Path, got: str, remedy: str) -> str:
    return f"Expected a usable broker file at {path}, got: {got}; {remedy}."
