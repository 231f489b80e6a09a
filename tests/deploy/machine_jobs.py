"""The Worker of the tests that run units for real: the module is on the machine inside, and writes into the state directory."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from steadyworker import Job, Worker
from steadyworker.exports import SparkExport
from steadyworker.service import monitor
from steadyworker_sqlite.session import SqliteSession

_TURN = SqliteSession.turn


def note(file: str, line: str) -> None:
    with Path(file).open("a") as out:
        out.write(f"{line}\n")


def _turn_or_freeze(*arguments: Any) -> Any:
    """The I/O thread's turn, which never ends once there is a file `freeze`; the file is gone for the next process."""
    if Path("freeze").exists():
        Path("freeze").unlink()
        threading.Event().wait()
    return _TURN(*arguments)


if os.environ.get("CAN_FREEZE"):
    patch.object(SqliteSession, "turn", _turn_or_freeze).start()
    patch.object(monitor, "_TURN_LIMIT", 2.0).start()


class Jobs(Worker[dict[str, Any]]):
    """Notes its start, does what the payload asks for, and notes its end; it never asks whether it has to stop."""

    queue = "jobs"
    time_limit = 600
    memory_limit = None

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", job.key)
        match job.payload:
            case {"seconds": seconds}:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    time.sleep(0.05)
            case {"deaf": seconds}:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                note("deaf", job.key)
                time.sleep(seconds)
            case {"program": seconds}:
                script = "trap 'echo TERM >> signals' TERM; echo started >> signals; for each in $(seq $1); do sleep 0.1; done"
                subprocess.run(["sh", "-c", script, "sh", str(10 * seconds)], check=True)
            case {"spark": query}:
                self.export(job, query)
            case {"megabytes": count} if job.attempt == 1 and not Path("eaten").exists():
                Path("eaten").touch()
                eaten = [bytearray(os.urandom(1 << 20)) for _ in range(count)]
                note("survived", str(len(eaten)))
        note("ends", f"{job.key} {job.payload.get('text', '')}".strip())

    def export(self, job: Job[dict[str, Any]], query: str) -> None:
        try:
            job.export(SparkExport(query, tables={}, order_by=("id",)), to=f"{job.key}.csv")
        except Exception:
            note("failures", job.key)
            raise
