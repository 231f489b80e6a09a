"""Worker processes as small as they can be: each plays one part of a ledger test, and is killed in the middle of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import Claimed, JobId, Ledger, Moving, Verdict
from steadyworker.ledger.owners import OwnerLock, new_owner_id
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters

JOB = JobId("shop", "exports", "m-17")
BODY = b"\x01" * 32


def say(*words: object) -> None:
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
    say("ready")
    sys.stdin.readline()
    for _ in range(1000):
        seen = ledger.read(JOB)
        won = ledger.claim(Claimed(JOB, seen, name, 0, BODY, Counters()))
        if won is not None:
            say(seen.fence if seen else 0, won.fence)
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
        say(job.key, "running", row.fence)
        ledger.checkpoint(row.token, b"x" * 5000)
        ledger.moving(row.token, Verdict(Moving.DEAD, "no", Counters(attempts=1)))
        say(job.key, "moving", row.fence)
        ledger.moved(row.token)
        say(job.key, "dead", row.fence)


def hold(path: str) -> None:
    """Own a running job, with a child that has the owner's lock too."""
    ledger = SqliteLedger(Path(path), clock=SystemClock(), times=Times())
    ledger.ledger_id()  # creates the file, which no process may do while an owner holds its lock
    lock = OwnerLock(ledger.owners_dir, new_owner_id())
    ledger.register(lock.owner, "host", ["exports"])
    ledger.claim(Claimed(JOB, None, lock.owner, 0, BODY, Counters()))
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=[lock.fd])
    say(lock.owner, child.pid)
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
            say("ok", ledger.checkpoint(row.token, value))
            kept = value
        except Exception as error:  # noqa: BLE001 - which one it is, is what the test asks
            say(type(error).__name__, error)
            seen = ledger.read(JOB)
            assert seen is not None
            assert seen.checkpoint == kept


if __name__ == "__main__":
    parts: dict[str, Callable[..., None]] = {"race": race, "live": live, "hold": hold, "write": write}
    parts[sys.argv[1]](*sys.argv[2:])
