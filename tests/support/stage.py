"""A stage for whole worker processes: one broker, one ledger, a folder in which jobs leave traces, and who comes and goes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker import Client
from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import JobFilter, Ledger, Row, State
from steadyworker.ledger.sqlite.ledger import SqliteLedger

ROOT = Path(__file__).parents[2]
MAIN = Path(__file__).with_name("main.py")

WITHIN = 60.0
"""Seconds that a test waits for what takes one on an idle machine."""

Environment = Mapping[str, str]
Setting = str | float


def eventually(
    probe: Callable[[], Any], what: str, within: float = WITHIN, report: Callable[[], str] = lambda: ""
) -> Any:
    """Ask until the answer is true, and return it; fails after that many seconds, with what there is to report by then."""
    deadline = time.monotonic() + within
    while not (answer := probe()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within:g} s: {what}\n{report()}")
        time.sleep(0.01)
    return answer


class WorkerProcess(subprocess.Popen[bytes]):
    """A worker process and the lines that it has logged."""

    def __init__(
        self, command: list[str], folder: Path, environment: Environment, log: Path, output: int | None = None
    ) -> None:
        self.log = log
        with log.open("wb") as file:
            out = file.fileno() if output is None else output
            super().__init__(command, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True)

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Its log lines of this event."""
        found = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            if f'"event":"{event}"' in line:
                with suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def reports(self, event: str, times: int = 1, within: float = WITHIN, **values: object) -> dict[str, Any]:
        """Wait for the n-th line of this event with these values, and return it."""

        def found_lines() -> list[dict[str, Any]]:
            lines = [line for line in self.lines(event) if values.items() <= line.items()]
            return lines if len(lines) >= times else []

        found: list[dict[str, Any]] = eventually(found_lines, f"{event} {values or ''} ×{times}", within, self.log_end)
        return found[times - 1]

    def log_end(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-20_000:]

    def started(self) -> WorkerProcess:
        """Wait until it consumes, and return it."""
        self.reports("worker_started")
        return self

    def family(self) -> list[int]:
        """It and every process below it, as a service manager knows them by their cgroup."""
        with suppress(psutil.NoSuchProcess):
            return [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]
        return []

    def program(self, name: str) -> psutil.Process:
        """Wait for the one child that runs this module of SteadyWorker, and return it."""

        def found() -> list[psutil.Process]:
            ours = []
            for child in psutil.Process(self.pid).children():
                with suppress(psutil.NoSuchProcess):  # it has ended since
                    ours += [child] if f"steadyworker.{name}" in child.cmdline() else []
            return ours

        (child,) = eventually(found, name, report=self.log_end)
        return child

    def signal_all(self, number: signal.Signals) -> None:
        """Signal all of them, the worker process first: what systemd does."""
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def ended(self, code: int, within: float = WITHIN) -> float:
        """Wait for its end with this exit code; answers how long that took."""
        began = time.monotonic()
        try:
            found = self.wait(within)
        except subprocess.TimeoutExpired:
            pytest.fail(f"did not end within {within:g} s:\n{self.log_end()}")
        assert found == code, self.log_end()
        return time.monotonic() - began


class Processes:
    """Worker processes that come and go, on one broker and one ledger, and what they leave in one folder."""

    main = MAIN
    """Their entry point."""

    def __init__(self, folder: Path, ledger: Ledger, *, broker_url: str, ledger_url: str) -> None:
        self.folder, self.ledger = folder, ledger
        self.urls = {"broker": broker_url, "ledger": ledger_url}
        self.processes: list[WorkerProcess] = []

    def send(self, queue: str, payload: object, key: str = "job", **more: Any) -> None:
        with Client(**self.urls) as client:
            client.send(queue, payload, key=key, **more)

    def environment(self, **settings: Setting) -> dict[str, str]:
        """What a worker process is given: this stage, and settings by their names."""
        given = {"broker": self.urls["broker"], "ledger": self.urls["ledger"], "state_dir": self.folder / "state"}
        return {
            **os.environ,
            **{f"STEADYWORKER_{name.upper()}": str(value) for name, value in (given | settings).items()},
            "STAGE_FOLDER": str(self.folder),
            "PYTHONPATH": str(ROOT),
        }

    def worker(
        self,
        *targets: str,
        script: Mapping[str, object] | None = None,
        env: Environment | None = None,
        around: Sequence[str] = (),
        output: int | None = None,
        **settings: Setting,
    ) -> WorkerProcess:
        """
        Start a worker process with these settings, this done to its parts (`main.py`), and that command around it.

        It writes into `output` instead of its log, if that is given.
        """
        command = [*around, sys.executable, str(self.main), *targets]
        environment = self.environment(**settings) | {"STAGE": json.dumps(script or {})} | dict(env or {})
        return self._started(command, environment, output)

    def command(self, *arguments: str, output: int | None = None, **settings: Setting) -> WorkerProcess:
        """Start `steadyworker` with these arguments, as a user does; it writes into `output` instead of its log, if that is given."""
        command = [sys.executable, "-m", "steadyworker", *arguments]
        return self._started(command, self.environment(**settings), output)

    def _started(self, command: list[str], environment: Environment, output: int | None = None) -> WorkerProcess:
        log = self.folder / f"worker-{len(self.processes)}.log"
        self.processes.append(WorkerProcess(command, self.folder, environment, log, output))
        return self.processes[-1]

    # --- what there is ---

    def row(self, queue: str, key: str = "job") -> Row | None:
        """The job's row, whatever its namespace is called."""
        found = [row for row, _ in self.ledger.jobs(JobFilter(queue=queue)) if row.id.key == key]
        return found[0] if found else None

    def reaches(self, queue: str, state: State, key: str = "job", within: float = WITHIN) -> Row:
        """Wait until the job is in this state, and return its row."""

        def row() -> Row | None:
            found = self.row(queue, key)
            return found if found is not None and found.state is state else None

        found: Row = eventually(row, f"{key} {state}", within, lambda: f"{self.row(queue, key)}\n{self.logs()}")
        return found

    def lines(self, file: str) -> list[str]:
        """What jobs have noted in this file."""
        path = self.folder / file
        return path.read_text().splitlines() if path.exists() else []

    def notes(self, file: str, count: int, within: float = WITHIN) -> list[str]:
        """Wait until jobs have noted so many lines in this file, and return them."""
        eventually(lambda: len(self.lines(file)) >= count, f"{count} {file}", within, self.logs)
        return self.lines(file)

    def logs(self) -> str:
        return "\n\n".join(process.log_end() for process in self.processes)

    # --- what happens ---

    def open(self, gate: str = "gate") -> None:
        """Let jobs that wait at this gate go on."""
        (self.folder / gate).touch()

    def close(self) -> None:
        for process in self.processes:
            for pid in process.family():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        self.ledger.close()


@contextmanager
def processes_at(broker_url: str, folder: Path) -> Iterator[Processes]:
    """Worker processes on this broker, and on a ledger in a file of this folder."""
    ledger = SqliteLedger(folder / "ledger.db", clock=SystemClock(), times=Times())
    made = Processes(folder, ledger, broker_url=broker_url, ledger_url=ledger.url)
    try:
        yield made
    finally:
        made.close()


class Stage(Processes):
    """Worker processes on an embedded broker and a ledger in a file."""

    def __init__(self, folder: Path) -> None:
        self.broker = folder / "broker.db"
        self.ledger_path = folder / "ledger.db"
        ledger = SqliteLedger(self.ledger_path, clock=SystemClock(), times=Times())
        super().__init__(folder, ledger, broker_url=f"sqlite:{self.broker}", ledger_url=f"sqlite:{self.ledger_path}")

    # --- what there is ---

    def depth(self, queue: str) -> int:
        """How many messages the queue still has, held and delayed ones included."""
        return self._count("SELECT count(*) FROM messages WHERE queue = ?", queue)

    def ready(self, queue: str) -> int:
        """How many messages of the queue nobody holds."""
        held = "SELECT seq FROM deliveries WHERE consumer IS NOT NULL"
        return self._count(f"SELECT count(*) FROM messages WHERE queue = ? AND seq NOT IN ({held})", queue)

    def _count(self, statement: str, queue: str) -> int:
        with closing(sqlite3.connect(self.broker, timeout=WITHIN)) as broker:
            return int(broker.execute(statement, (queue,)).fetchone()[0])

    def empties(self, queue: str, within: float = WITHIN) -> None:
        """Wait until the queue has no message at all."""
        eventually(lambda: self.depth(queue) == 0, f"{queue} empty", within, self.logs)

    # --- what happens ---

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Another process in the middle of a long write."""
        with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as database:
            database.execute("BEGIN EXCLUSIVE")
            yield
            database.execute("ROLLBACK")

    def evict(self, owner_of: str) -> None:
        """What the broker does to a consumer that it takes for dead: its messages go back, and its connection is over."""
        with closing(sqlite3.connect(self.broker, isolation_level=None, timeout=10)) as broker:
            broker.execute("BEGIN IMMEDIATE")
            consumers = "SELECT id FROM consumers WHERE queue = ?"
            broker.execute(f"UPDATE deliveries SET consumer = NULL WHERE consumer IN ({consumers})", (owner_of,))
            broker.execute("DELETE FROM consumers WHERE queue = ?", (owner_of,))
            broker.execute("COMMIT")

    def lose(self, queue: str) -> None:
        """What a broker does that loses the messages of a queue: they are gone, and no consumer hears of it."""
        with closing(sqlite3.connect(self.broker, isolation_level=None, timeout=10)) as broker:
            broker.execute("BEGIN IMMEDIATE")
            broker.execute("DELETE FROM deliveries WHERE seq IN (SELECT seq FROM messages WHERE queue = ?)", (queue,))
            assert broker.execute("DELETE FROM messages WHERE queue = ?", (queue,)).rowcount > 0
            broker.execute("COMMIT")


def each_once(lines: Iterable[str], expected: Iterable[str]) -> bool:
    """Whether these lines are exactly those, each once, in any order."""
    return Counter(lines) == Counter(expected) and max(Counter(lines).values(), default=1) == 1
