"""The demo's worker process, and what is known of its jobs: from its log, and from the ledger."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self

from demo_screen import Screen

from steadyworker.ledger.base import Ledger, Row, State

_LOOK_EVERY = 0.005
_SPARK_WRITES = re.compile(r"[1-9][\d,]* rows written")


class Watched:
    """
    A worker process that is watched.

    Args:
        screen: Where what happens is shown.
        ledger: The worker's ledger.
        environ: What the worker gets on top of the environment.
        log: The file that takes its log.

    Attributes:
        runs: Per job, how many runs have begun.
        first_rows: Per job, the row that each reading of its source began at.
        positions: Per job, the positions that a streamed export has saved, as the ledger had them.
        writing: The jobs whose rows Spark has begun to write.
        spark_hosts: The process group of each Spark host and its JVM.
    """

    def __init__(self, screen: Screen, ledger: Ledger, environ: dict[str, str], log: Path) -> None:
        self._screen, self._ledger, self._log = screen, ledger, log
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEADYWORKER_")}
        self._environ = kept | environ
        self._lines: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread()
        self.runs: Counter[str] = Counter()
        self.first_rows: dict[str, list[int]] = {}
        self.positions: dict[str, list[int]] = {}
        self.writing: set[str] = set()
        self.spark_hosts: list[int] = []
        self.pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Whatever went wrong, or Ctrl-C: leave no worker process behind."""
        if self._process is not None and self._process.poll() is None:
            self.end(signal.SIGTERM)

    def start(self, *options: str) -> None:
        """Start a worker process, as anyone would on the command line."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "steadyworker", "run", "demo_jobs:DemoExports", "--log-format", "json", *options],
            cwd=Path(__file__).parent,
            env=self._environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def end(self, number: int) -> int:
        """Send this signal, and answer the exit code once all is said."""
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait()
        self._reader.join()
        self._hear()
        self._look()
        return code

    def until(self, reached: Callable[[], bool], deadline: float) -> None:
        """
        Show what happens until something is so.

        Raises:
            RuntimeError: The worker process ended meanwhile, or the deadline passed.
        """
        assert self._process is not None
        while not reached():
            self._hear()
            self._look()
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"Expected the worker process to go on, but it ended or hangs: {self._log} says why."
                )
            time.sleep(_LOOK_EVERY)
        self._hear()

    def row(self, key: str) -> Row | None:
        """Return the row of a job in the ledger."""
        return next((row for row, _ in self._ledger.jobs() if row.id.key == key), None)

    def settled(self, keys: Iterable[str]) -> bool:
        """Whether all of these jobs have ended."""
        ended = {row.id.key for row, _ in self._ledger.jobs() if row.state in {State.DONE, State.DEAD}}
        return ended.issuperset(keys)

    def _look(self) -> None:
        """See in the ledger how far the jobs are."""
        for row, beat in self._ledger.jobs():
            key, position = row.id.key, json.loads(row.export_state or b"{}").get("rows")
            saved = self.positions.setdefault(key, [])
            if position is not None and position not in saved:
                saved.append(position)
                self._screen.say(f"{key}: has saved its position, row {position:,}", "dim")
            if beat is not None and beat.done is not None and row.state is State.RUNNING:
                self._screen.progress(key, beat.done, beat.total)
                if _SPARK_WRITES.match(beat.note):
                    self.writing.add(key)

    def _hear(self) -> None:
        while True:
            try:
                line = self._lines.get_nowait()
            except Empty:
                return
            key = line.get("key", "")
            if line.get("event") == "job_started":
                self.runs[key] += 1
            if line.get("event") == "spark_host_ready":
                self.spark_hosts.append(line["pid"])
            if line.get("event") == "reading":
                self.first_rows.setdefault(key, []).append(line["first_row"])
            self._screen.event(line)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr, self._log.open("a", encoding="utf-8") as log:
            for line in process.stderr:
                log.write(line)
                if line.startswith("{"):
                    self._lines.put({**json.loads(line), "worker": process.pid})
