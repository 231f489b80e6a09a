"""The demo's worker process, and the state of its jobs, from its log and from the ledger."""

from __future__ import annotations

import json
import os
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
_SPARK_SORTS = "Spark sorts the rows"


class Watched:
    """
    A worker process that the demo watches.

    Args:
        screen: Shows what happens.
        ledger: The worker's ledger.
        environ: The worker's variables, in addition to the environment.
        log: The file for its log.

    Attributes:
        runs: Per job, the number of started runs.
        first_rows: Per job, the first row of each reading of its source.
        positions: Per job, the positions that a streamed export has saved in the ledger.
        sorting: The jobs whose rows Spark has started to sort.
        spark_hosts: The process group of each Spark host and its JVM.
        ready: Whether the worker process has begun to receive messages.
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
        self.sorting: set[str] = set()
        self.spark_hosts: list[int] = []
        self.pid = 0
        self.ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the worker process, also after an error or Ctrl-C."""
        if self._process is not None and self._process.poll() is None:
            self.end(signal.SIGTERM)

    def start(self, *options: str) -> None:
        """Start a worker process with the command line."""
        self.ready = False
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
        """Send this signal, read the rest of the log, and return the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait()
        self._reader.join()
        self._hear()
        self._look()
        return code

    def until(self, reached: Callable[[], bool], deadline: float) -> None:
        """
        Show what happens until `reached` returns True.

        Raises:
            RuntimeError: The worker process ended before that, or the deadline passed.
        """
        assert self._process is not None
        while not reached():
            self._hear()
            self._look()
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"Expected a running worker process, got one that has ended or hangs: see {self._log}."
                )
            time.sleep(_LOOK_EVERY)
        self._hear()

    def row(self, key: str) -> Row | None:
        """Return the job's row in the ledger, or None."""
        return next((row for row, _ in self._ledger.jobs() if row.id.key == key), None)

    def settled(self, keys: Iterable[str]) -> bool:
        """Return whether all of these jobs have ended."""
        ended = {row.id.key for row, _ in self._ledger.jobs() if row.state in {State.DONE, State.DEAD}}
        return ended.issuperset(keys)

    def _look(self) -> None:
        """Read the progress of the jobs from the ledger, and show it."""
        for row, beat in self._ledger.jobs():
            key, position = row.id.key, json.loads(row.export_state or b"{}").get("rows")
            saved = self.positions.setdefault(key, [])
            if position is not None and position not in saved:
                saved.append(position)
                self._screen.say(f"{key}: has saved its position, row {position:,}", "dim")
            if beat is not None and beat.done is not None and row.state is State.RUNNING:
                self._screen.progress(key, beat.done, beat.total)
                if beat.done and beat.note == _SPARK_SORTS:
                    self.sorting.add(key)

    def _hear(self) -> None:
        while True:
            try:
                line = self._lines.get_nowait()
            except Empty:
                return
            key = line.get("key", "")
            if line.get("event") == "worker_started":
                self.ready = True
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
