"""Worker processes as small as they can be: each plays one part of a ledger test, and is killed in the middle of it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import Claimed, JobId, Ledger, Moving, Verdict
from steadyworker.ledger.owners import OwnerLock, new_owner_id
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters

JOB = JobId("shop", "exports", "m-17")
BODY = b"\x01" * 32


def report(*words: object) -> None:
    """One write, or a kill leaves half a line where Python does not buffer (PYTHONUNBUFFERED)."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def open_ledger(place: str) -> Ledger:
    """A ledger in a file, or that of a `postgresql:` URL."""
    if place.startswith("postgresql:"):
        owners = Path(tempfile.gettempdir(), "owners")
        return PostgresLedger(lambda: place, owners_dir=owners, clock=SystemClock(), times=Times())
    return SqliteLedger(Path(place), clock=SystemClock(), times=Times())


def race(path: str, name: str) -> None:
    """Claim one row as often as it can be seen, and say which version of it was won."""
    ledger = open_ledger(path)
    report("ready")
    sys.stdin.readline()
    for _ in range(1000):
        seen = ledger.read(JOB)
        won = ledger.claim(Claimed(JOB, seen, name, 0, BODY, Counters()))
        if won is not None:
            report(seen.fence if seen else 0, won.fence)
    ledger.close()


def live(path: str) -> None:
    """Live job after job, and say what is committed, after it is."""
    ledger = open_ledger(path)
    owner = new_owner_id()
    number = 0
    while True:
        number += 1
        job = JobId("shop", "exports", f"m-{number}")
        row = ledger.read(job)
        if row is not None and row.state != "running":
            continue
        row = ledger.claim(Claimed(job, row, owner, 0, BODY, Counters()))
        assert row is not None
        report(job.key, "running", row.fence)
        ledger.checkpoint(row.token, b"x" * 5000)
        ledger.moving(row.token, Verdict(Moving.DEAD, "no", Counters(attempts=1)))
        report(job.key, "moving", row.fence)
        ledger.moved(row.token)
        report(job.key, "dead", row.fence)


def hold(path: str) -> None:
    """Own a running job, with a child that has the owner's lock too."""
    ledger = SqliteLedger(Path(path), clock=SystemClock(), times=Times())
    ledger.ledger_id()  # creates the file, which no process may do while an owner holds its lock
    lock = OwnerLock(ledger.owners_dir, new_owner_id())
    ledger.register(lock.owner, "host", ["exports"])
    ledger.claim(Claimed(JOB, None, lock.owner, 0, BODY, Counters()))
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=[lock.fd])
    report(lock.owner, child.pid)
    child.wait()


def write(path: str) -> None:
    """Write more checkpoints than there is room for, and say what happens to each."""
    ledger = open_ledger(path)
    row = ledger.claim(Claimed(JOB, None, "me", 0, BODY, Counters()))
    assert row is not None
    kept = b""
    for _ in range(20):
        value = os.urandom(60_000)
        try:
            report("ok", ledger.checkpoint(row.token, value))
            kept = value
        except Exception as error:  # noqa: BLE001 - which one it is, is what the test asks
            report(type(error).__name__, error)
            seen = ledger.read(JOB)
            assert seen is not None
            assert seen.checkpoint == kept


class Mortal(sqlite3.Connection):
    """A connection that kills its process before the n-th statement from the first BEGIN on; never if that is 0."""

    left = 0
    began = changed = False

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        Mortal.changed = Mortal.changed or statement.startswith("ALTER")
        Mortal.began = Mortal.began or statement.startswith("BEGIN")
        if Mortal.began:
            Mortal.left -= 1
            if Mortal.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(statement, *values)


def migrate(path: str) -> None:
    """Open a ledger of an earlier version in a process for each line, which says at which statement that process dies."""
    for words in sys.stdin:
        if not words.strip().isdigit():
            report("ready")
            continue
        child = os.fork()
        if not child:
            Mortal.left = int(words)
            with (
                patch("sqlite3.connect", partial(sqlite3.connect, factory=Mortal)),
                closing(open_ledger(path)) as ledger,
            ):
                ledger.ledger_id()
            os._exit(Mortal.changed)
        _, status = os.waitpid(child, 0)
        report(*(("killed", int(words)) if os.WIFSIGNALED(status) else ("ended", bool(os.WEXITSTATUS(status)))))


def turn(path: str) -> None:
    """
    Record a turn in a process for each line, which says at which statement that process dies.

    The turn claims two jobs, and ends the two that the turn before has claimed.
    """
    for number, words in enumerate(sys.stdin):
        child = os.fork()
        if not child:
            with patch("sqlite3.connect", partial(sqlite3.connect, factory=Mortal)):
                ledger = open_ledger(path)
                owned = [(row.token, None) for row, _ in ledger.jobs() if row.state == "running"]
            claims = [
                Claimed(JobId("shop", "exports", f"m-{number}-{at}"), None, "me", 0, BODY, Counters()) for at in (1, 2)
            ]
            Mortal.began, Mortal.left = True, int(words)
            ledger.record(claims, owned)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        report("killed" if os.WIFSIGNALED(status) else "ended")


def migrate_full(path: str, room: str) -> None:
    """Open a copy of a ledger of an earlier version where there is no room, and again where there is some."""
    copy, ballast = Path(room, "ledger.db"), Path(room, "ballast")
    shutil.copy(path, copy)
    with suppress(OSError), ballast.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(4096))
    os.truncate(ballast, ballast.stat().st_size - (48 << 10))  # the log's index has room, and a little of the log

    def report_rows() -> None:
        with closing(sqlite3.connect(copy)) as db:
            (schema,), (rows,) = (
                db.execute(f"SELECT {what}").fetchone() for what in ("schema FROM meta", "count(*) FROM jobs")
            )
        report("schema", schema, "rows", rows)

    try:
        with closing(open_ledger(str(copy))) as ledger:
            report("opened", ledger.ledger_id())
    except Exception as error:  # noqa: BLE001 - which one it is, is what the test asks
        report(type(error).__name__, error)
    ballast.unlink()
    report_rows()
    with closing(open_ledger(str(copy))) as ledger:
        ledger.ledger_id()
    report_rows()


if __name__ == "__main__":
    parts: dict[str, Callable[..., None]] = {
        "race": race,
        "live": live,
        "hold": hold,
        "write": write,
        "migrate": migrate,
        "migrate_full": migrate_full,
        "turn": turn,
    }
    parts[sys.argv[1]](*sys.argv[2:])
