"""
Whether a SQLite ledger went back in time, because an operator put an older copy of its file in its place.

The ledger counts its registrations, and the ends of its owners.
Two witnesses beside the ledger show that its count is too low:

1. The process remembers the last count that it wrote.
2. A file in the folder of the owner locks has the last count that any process wrote.
   So a copy is also found if it was put there while no worker process ran.

A folder that was restored as a whole has its old witness, but its ledger has another inode than the one in its `meta`.
The inode of a file survives the restart of a container, on a volume and in overlayfs, and a reboot.
Some file systems of FUSE give their files new numbers at each mount, and so do network file systems, which a ledger refuses.
There, the ledger counts as a copy after each mount: a job whose message is lost waits for an operator; nothing else changes.

If all files of the ledger were overwritten in place, no witness is left; but after an hour without an owner, its jobs are old records.

No witness shows a copy that was made after the last count.
After a normal end of the worker processes there is none; after a SIGKILL, it has lost at most the time between two renewals.
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
"""The witness, in the folder of the owner locks; no owner has such a name."""


class SqliteTrust:
    """
    The registrations of one process.

    Args:
        file: The ledger.
        owners_dir: The folder of the owner locks.
        clock: Dates the registrations.
    """

    def __init__(self, file: LedgerFile, owners_dir: Path, clock: Clock) -> None:
        self._file = file
        self._owners_dir = owners_dir
        self._witness = owners_dir / _NAME
        self._clock = clock
        self._boot = proof.boot_id()
        self._count = 0

    def register(self, owner: str, host: str, queues: Sequence[str]) -> bool:
        """
        Register this owner of these queues; return False if the ledger went back in time.

        The jobs of a ledger that went back, and of queues without an owner for an hour, become old records.
        """
        now, lock = self._clock.wall(), str(proof.lock_path(self._owners_dir, owner))
        values = {"owner": owner, "host": host, "lock_path": lock, "queues": json.dumps(list(queues))}
        with self._file.transaction() as db:
            db.execute(sql.REGISTER, {**values, "boot": self._boot, "now": now})
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
        """Remove this owner, and count that; in a ledger that went back, count nothing, so that the next registration sees it."""
        with self._file.transaction() as db:
            removed = db.execute(sql.UNREGISTER, {"owner": owner}).rowcount
            counted = db.execute(sql.COUNT_END, {"known": self._known()}).fetchall() if removed else ()
        for (count,) in counted:
            self._wrote(count)

    def lost(self, db: sqlite3.Connection) -> bool:
        """Return whether the ledger has lost a registration; False for a process that never registered, and cannot know it."""
        known = self._known()  # read first, because another process can count meanwhile
        return bool(self._count) and int(db.execute(sql.COUNTED).fetchone()[0]) < known

    def _known(self) -> int:
        """Return the last count that the witnesses know."""
        try:
            return max(self._count, int(self._witness.read_bytes()))
        except (OSError, ValueError):  # no witness yet, or one that this user cannot read
            return self._count

    def _wrote(self, count: int) -> None:
        """Give the witnesses a count that is committed."""
        self._count = count
        with suppress(OSError):  # the folder is not writable: this process knows the count
            witness = os.open(self._witness, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE)
            try:
                os.pwrite(witness, b"%020d\n" % count, 0)
            finally:
                os.close(witness)
