"""
A worker process that exports for minutes, and is killed: `python -m tests.exports.spark.orphan FOLDER HOW`, with its settings in `ORPHAN`.

When tasks run, it prints the process id of its host, and writes the export's state to FOLDER.
If HOW is `slowly`, its files are closed then, and it stands still.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.exports.spark.sparkkit import BIG, LiveServices


@contextmanager
def orphan(out: Path, how: str = "at once", **settings: Any) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start it with these settings; yield it and its host when tasks run, and kill it at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.exports.spark.orphan", str(out), how],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "ORPHAN": json.dumps(settings, default=str)},
    ) as parent:
        assert parent.stdout is not None
        try:
            yield parent, int(parent.stdout.readline())
        finally:
            parent.kill()


def main(out: Path, how: str) -> None:
    """Export until the end."""
    settings: dict[str, Any] = json.loads(os.environ.pop("ORPHAN"))
    settings["folder"] = Path(settings["folder"])
    service = SparkService(SparkSettings(**settings))

    def on_event(event: Mapping[str, Any]) -> None:
        if event["type"] == "progress" and event["done"]:
            (out / "handle").write_bytes(services.stored or b"")
            print(service._hosts[0].process.pid, flush=True)
            if how == "slowly":
                stdin = service._hosts[0].process._process.stdin
                assert stdin is not None
                stdin.close()
                os.kill(os.getpid(), signal.SIGSTOP)

    services = LiveServices(service, on_event=on_event)
    SparkExport(BIG, tables={}, order_by=("id",)).write(services, out / "out.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
