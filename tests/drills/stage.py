"""
One contestant at one place of a broker: its worker processes under a supervisor, its jobs' notes, and what the broker has.

Worker processes reach the broker through a fault proxy, but for the second one of a drill; ours to cut is the first one.
A worker process that ends by itself is started again after a second, as systemd or Kubernetes would.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]

from tests.brokers.guard import end, family, runs
from tests.brokers.place import Message, Places
from tests.brokers.postgres import Cluster
from tests.brokers.process import Guard
from tests.drills.bodies import QUEUE, Note, notes
from tests.drills.contestants import ROOT, Contestant
from tests.faults.proxy import Proxy

WITHIN = 60.0
"""Seconds for what takes a few on an idle machine: a start, a connection, a send."""

SETTLED_FOR = 6.0
"""Seconds that queues must be seen empty: what a broker says of them may be up to 5 s old."""

LOOKED_AT_EVERY = 1.5
"""Seconds between two looks at the queues, by each of many stages."""

RESTART_AFTER = 1.0


class DrillError(Exception):
    """A drill could not be held: the message has the end of the worker's log."""


class Supervised:
    """A worker process that is started again a second after it ended unasked."""

    def __init__(self, command: list[str], environ: Mapping[str, str], log: Path, guard: Guard) -> None:
        self.log, self.restarts = log, 0
        self._command, self._environ, self._guard = command, environ, guard
        self._ended_at = 0.0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as out:
            process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environ, stdout=out, stderr=out, start_new_session=True
            )
        self._guard.send("watch", process.pid)
        self._watched = True
        return process

    def tick(self) -> None:
        """To be called often."""
        if self._process.poll() is None:
            return
        self.kill()  # what it left running, as systemd does with the control group, and Kubernetes with the container
        self._ended_at = self._ended_at or time.monotonic()
        if time.monotonic() >= self._ended_at + RESTART_AFTER:
            self._ended_at = 0.0
            self.restarts += 1
            self._process = self._start()

    def terminate(self) -> None:
        """SIGTERM to the main process alone, as Kubernetes does."""
        self._process.send_signal(signal.SIGTERM)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL to it and to all that it started, at once; once for each start."""
        if self._watched:
            self._guard.send("forget", self._process.pid)
            self._watched = False
            end(family(self._process.pid))
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Stage:
    """
    Where one drill is held; `close` leaves nothing behind but the logs in `folder`.

    `gate` lets a few stages begin at a time: processes that start and queues that are made need the processor.
    """

    def __init__(
        self,
        places: Places,
        contestant: Contestant,
        folder: Path,
        *,
        prefetch: int = 1,
        gate: AbstractContextManager[object] | None = None,
        proxied: bool = True,
        ledger_server: Cluster | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self.contestant, self.folder, self.prefetch = contestant, folder, prefetch
        self.ledger_server = ledger_server
        self.place = places.open()
        self.queue = self.place.queue(QUEUE)
        """The work queue."""
        if not contestant.makes_queue:
            self.place.make_queue(self.queue)
        self.dead_queue = self.place.queue(contestant.dead_queue) if contestant.dead_queue else ""
        self.proxy = Proxy(self.place.address())
        self._proxied = proxied
        self._guard = Guard("drill")
        self.workers: list[Supervised] = []
        self.together: dict[str, int] = {}
        self._gate = gate or nullcontext()
        self._looked_at = self._busy_at = 0.0

    # --- Worker processes and jobs ------------------------------------------------------------------------------------

    def begin(self, *jobs: Mapping[str, object]) -> float:
        """Start a worker process, send it these, and wait until the first one runs; that moment by CLOCK_MONOTONIC."""
        with self._gate:
            self.start_worker()
            self.send(*jobs)
            first = str(jobs[0]["id"])
            self.expect(f"a start of {first}", lambda: self.notes("start", first))
        return self.notes("start", first)[0].at

    def environment(self, through: Proxy | None = None) -> dict[str, str]:
        """For the contestant's processes; the namespace is that of those with the proxy and of those without it."""
        made = self.contestant.environment(self.place, self.folder, self.prefetch, through)
        if self.place.namespace:
            made["STEADYWORKER_NAMESPACE"] = (
                f"{self.place.namespace},{urlsplit(self.proxy.url).netloc.rpartition('@')[2]}"
            )
        return made

    def start_worker(self) -> Supervised:
        """Start one more, and return when it consumes."""
        return self.start_workers(1)[0]

    def start_workers(self, count: int) -> list[Supervised]:
        """Start so many more at the same time, and return when all of them consume."""
        for number in range(len(self.workers) + 1, len(self.workers) + count + 1):
            through = self.proxy if self._proxied and not self.workers else None
            log = self.folder / f"worker-{number}.log"
            environ = self.environment(through)
            command = self.contestant.command(self.contestant.worker, number)
            self.workers.append(Supervised(command, environ, log, self._guard))
        self.expect("a consumer", lambda: self.place.consumers(self.queue) >= len(self.workers), every=0.5)
        return self.workers[-count:]

    def send(self, *jobs: Mapping[str, object]) -> None:
        """Send these, in this order, straight to the broker."""
        subprocess.run(
            self.contestant.command(self.contestant.sender),
            cwd=ROOT,
            env=self.environment(),
            input="".join(f"{json.dumps(job)}\n" for job in jobs).encode(),
            check=True,
            timeout=WITHIN,
            capture_output=True,
        )

    def notes(self, what: str, id: str | None = None) -> list[Note]:
        """The notes of this kind that this job left, or all jobs, oldest first."""
        return [note for note in notes(self.folder / "notes") if note.what == what and id in (note.id, None)]

    def open(self, gate: str) -> None:
        """Let the jobs pass that ask for this gate."""
        (self.folder / gate).touch()

    # --- Time ---------------------------------------------------------------------------------------------------------

    def until(self, happened: Callable[[], object], within: float, *, every: float = 0.1) -> bool:
        """Go on, supervising and counting, until it has happened; False when it has not within so many seconds."""
        deadline = time.monotonic() + within
        while not happened():
            if time.monotonic() > deadline:
                return False
            for worker in self.workers:
                worker.tick()
            self._count_runs()
            time.sleep(every)
        return True

    def expect(self, what: str, happened: Callable[[], object], *, every: float = 0.1, within: float = WITHIN) -> None:
        """As `until`; raises DrillError when it does not happen."""
        if not self.until(happened, within, every=every):
            logs = "\n".join(worker.log.read_text(errors="replace")[-3000:] for worker in self.workers)
            raise DrillError(f"{self.contestant.name}: expected {what} within {within:g} s; its log ends:\n{logs}")

    def over(self, *ids: str) -> bool:
        """Whether each of these jobs has ended as often as it started, and nothing has been in a queue for a while."""
        ended = all(0 < len(self.notes("start", id)) == len(self.notes("end", id)) for id in ids)
        return ended and self.is_quiet()

    def is_quiet(self) -> bool:
        """Whether no message has been in a queue for a while, but dead letters."""
        now = time.monotonic()
        if now >= self._looked_at + LOOKED_AT_EVERY:
            self._looked_at = now
            depths = self.place.depths().items()
            if any(depth.total for queue, depth in depths if queue != self.dead_queue) or not self._busy_at:
                self._busy_at = now
        return now >= self._busy_at + SETTLED_FOR

    def _count_runs(self) -> None:
        running: dict[str, list[int]] = {}
        for note in notes(self.folder / "notes"):
            pids = running.setdefault(note.id, [])
            if note.what == "start":
                pids.append(note.pid)
            elif note.what == "end" and note.pid in pids:
                pids.remove(note.pid)
        for id, pids in running.items():
            self.together[id] = max(self.together.get(id, 0), sum(map(_is_alive, pids)))

    # --- The broker ---------------------------------------------------------------------------------------------------

    def connections(self) -> AbstractSet[str]:
        """The names of all connections to the place, without our own."""
        return self.place.connections()

    def close_connections(self) -> None:
        """Have the broker close them, as its operator would; it may list a connection seconds after it was opened."""
        self.expect("its connection in the broker's list", self.connections, every=0.5)
        self.place.close_connections()

    def cut_off(self) -> None:
        """Let no connection of the first worker process be, until `proxy.accept`."""
        self.proxy.refuse()
        self.proxy.cut()

    def take_what_is_left(self) -> list[Message]:
        """Kill the worker processes, and take every message out of every queue."""
        for worker in self.workers:
            worker.kill()
        self.workers.clear()
        self.proxy.close()
        self.until(lambda: not self.connections(), WITHIN, every=0.5)
        return self.place.drain()

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self._guard.close()
        self.proxy.stop()
        self.place.close()


def _is_alive(pid: int) -> bool:
    try:
        return runs(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False
