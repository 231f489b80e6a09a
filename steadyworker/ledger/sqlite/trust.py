"""
The check whether a SQLite ledger went back in time, because an operator put an older copy in the place of its file.

The ledger counts its registrations, and the ends of its owners.
Two witnesses beside the ledger can show that the ledger's count is too low:

1. The process remembers the last count that it wrote.
2. A file in the folder of the owner locks has the last count that any process wrote.
   So the ledger also detects a copy that an operator put there while no worker process ran.

If an operator restores the whole folder, the second witness is old, too.
But the inode of the restored ledger file differs from the inode in the file's table `meta`.
A file keeps its inode when the machine starts again, and when a container starts again (on a volume and in overlayfs).
Some FUSE file systems give their files new inodes at each mount.
Network file systems do so, too, but a ledger refuses network file systems.
On such a FUSE file system, the ledger counts as a copy after each mount.
Then a job whose message is lost waits for an operator; nothing else changes.

If an operator overwrites all files of the ledger in place, no witness is left.
But after an hour without an owner, the jobs of this ledger are old records.

No witness detects a copy that was made after the last count.
If the worker processes have ended normally, such a copy has all records.
After a SIGKILL, such a copy can lack at most the records of the time between two renewals.
A power failure that loses the last commits has the same effect as such a copy.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from steadyworker.clock import Clock
from steadyworker.ledger import owners as proof
from steadyworker.ledger.lease import attended
from steadyworker.ledger.shared import KEEP
from steadyworker.ledger.sqlite import schema as sql
from steadyworker.ledger.sqlite.file import LedgerFile
from steadyworker.system.private import FILE

_NAME = ".registrations"
"""The name of the witness in the folder of the owner locks; no owner has such a name."""


class SqliteTrust:
    """
    The registrations of one process, and their witnesses.

    Args:
        file: The ledger.
        owners_dir: The folder of the owner locks.
        clock: The clock whose time each registration gets.
    """

    def __init__(self, file: LedgerFile, owners_dir: Path, clock: Clock) -> None:
        self._file = file
        self._owners_dir = owners_dir
        self._witness = owners_dir / _NAME
        self._clock = clock
        self._boot = proof.boot_id()
        self._count = 0

    def register(self, owner: str, host: str, queues: Sequence[str], report: str | None) -> bool:
        """
        Register this owner of these queues, with the JSON of its report; return False if the ledger went back in time.

        If the ledger went back in time, all its jobs become old records.
        If a queue had no owner for an hour, the jobs of this queue become old records.
        """
        now, lock = self._clock.wall(), str(proof.lock_path(self._owners_dir, owner))
        values = {"owner": owner, "host": host, "lock_path": lock, "queues": json.dumps(list(queues))}
        with self._file.transaction() as db:
            db.execute(sql.REGISTER, {**values, "boot": self._boot, "now": now})
            if report is not None:
                db.execute(sql.REPORT, {"owner": owner, "report": report})
            count, incarnation = db.execute(sql.COUNTED).fetchone()
            known, inode = self._known(), self._file.inode
            whole = count >= known and incarnation in {None, inode}
            count = max(count, known) + 1
            db.execute(sql.SET_COUNTED, {"count": count, "incarnation": inode})
            if not whole:
                db.execute(sql.DISTRUST)
            for name in attended(queues):
                db.execute(sql.ATTEND, KEEP | {"name": name, "now": now})
        self._wrote(count)
        return whole

    def unregister(self, owner: str) -> None:
        """
        Remove this owner, and count its end.

        In a ledger that went back in time, count nothing, so that the next registration detects this.
        """
        with self._file.transaction() as db:
            removed = db.execute(sql.UNREGISTER, {"owner": owner}).rowcount
            counted = db.execute(sql.COUNT_END, {"known": self._known()}).fetchall() if removed else ()
        for (count,) in counted:
            self._wrote(count)

    def lost(self, db: sqlite3.Connection) -> bool:
        """Return whether the ledger has lost a registration; False if this process never registered, and so cannot know."""
        known = self._known()  # read first, because another process can count meanwhile
        return bool(self._count) and int(db.execute(sql.COUNTED).fetchone()[0]) < known

    def _known(self) -> int:
        """Return the last count that the witnesses have."""
        try:
            return max(self._count, int(self._witness.read_bytes()))
        except (OSError, ValueError):  # no witness yet, or a witness that this user cannot read
            return self._count

    def _wrote(self, count: int) -> None:
        """Write a committed count to the witnesses."""
        self._count = count
        with suppress(OSError):  # the folder is not writable: this process knows the count
            witness = os.open(self._witness, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE)
            try:
                os.pwrite(witness, b"%020d\n" % count, 0)
            finally:
                os.close(witness)
