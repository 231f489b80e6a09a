"""
D7, "the operator": what is done to broker and ledger under a fleet of four worker processes and a stream of jobs.

The page of this folder has a table of the five acts, of what names each, and of what becomes of the jobs.
The drill looks with the commands that an operator has, after each act, and follows their remedies to the letter.
What they say is kept in `operator.log` of the stage's folder.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from steadyworker import Client
from steadyworker.config import resolve as config
from steadyworker.delivery import KEY
from tests.brokers.postgres import Cluster
from tests.brokers.rabbitmq import Node
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.drills.bodies import HEARTBEAT, QUEUE
from tests.drills.contestants import ROOT
from tests.drills.stage import WITHIN, DrillError, Stage

RETRY_QUEUE = f"{QUEUE}.later.30000ms"
WAITING = (f"{QUEUE}.later.1000ms", f"{QUEUE}.later.5000ms", RETRY_QUEUE)
DEAD_QUEUE = f"{QUEUE}.dead"

EVERY = 0.4
"""Seconds between two jobs of the stream."""

NAMED_WITHIN = 20.0
"""Seconds in which `check` must name what was done: what the management API says of a queue is some seconds old."""

LOST_WITHIN = 180.0
"""Seconds in which the fleet runs a job without its message: it must have consumed for 90 s, and asks every 30 s."""

TIDY = {"expires": 3_600_000, "message-ttl": 3_600_000, "max-length": 50_000}
"""A policy as it is found on real brokers; the drill removes it before its hour is over."""


def operated(stage: Stage) -> Mapping[str, Any]:
    """Hold the whole story; what the verdict says of it."""
    server = stage.ledger_server
    assert server
    assert isinstance(stage.place, RabbitmqPlace)
    node = stage.place.broker
    assert node
    name = node.management("GET", "cluster-name")["name"]
    operator = Operator(stage, server.add_database(), fleet=4)
    try:
        return operator.work(
            operator.sets_a_policy_for_all_queues,
            operator.purges_a_retry_queue,
            operator.moves_dead_letters,
            partial(operator.renames_the_cluster, node),
            operator.lets_a_new_fleet_go_on,
            partial(operator.restarts_the_ledger, server),
        )
    finally:
        node.management("PUT", "cluster-name", {"name": name})


class Operator:
    """Who does it all, with the fleet and its jobs."""

    def __init__(self, stage: Stage, database: str, fleet: int) -> None:
        assert isinstance(stage.place, RabbitmqPlace)
        self.stage, self.place, self.database, self.fleet = stage, stage.place, database, fleet
        self.sent: list[str] = []
        self.unnamed: list[str] = []
        self._exit_code: int | None = 0
        self._restarts = 0
        self._usual: Mapping[str, str] = {}
        self._contestant = stage.contestant
        self._set(namespace=None)

    def _set(self, *, namespace: str | None) -> None:
        """The settings of every process from now on: workers, senders, and the operator's commands."""
        environ = {
            "STEADYWORKER_BROKER": self.place.url(heartbeat=HEARTBEAT, management=True),
            "STEADYWORKER_LEDGER": self.database,
            "STEADYWORKER_CONCURRENCY": "2",
            **({"STEADYWORKER_NAMESPACE": namespace} if namespace else {}),
        }
        worker = ("steadyworker", "run", "tests.drills.ours:Operated")
        self.stage.contestant = replace(self._contestant, worker=worker, environ=environ)

    def work(self, *acts: Callable[[], None]) -> Mapping[str, Any]:
        """The fleet, a long job for each of its worker processes, these acts under the stream, and the count."""
        self.stage.start_workers(self.fleet)
        self.send(*self.jobs("long", self.fleet, "go on"), *self.jobs("letter", 3, "look up"))
        self.stage.expect("the long jobs' starts", lambda: self.starts("long") == self.fleet)
        self._usual = self.findings()
        with self.stream():
            for act in acts:
                act()
        self.stage.open("end")
        self.stage.expect("the end of all jobs", lambda: self.ended() >= set(self.sent))
        self.stage.expect("empty queues", self.stage.is_quiet)
        if self.overdue():
            self.unnamed.append("a job is overdue that is done")
        unnamed = ", ".join(self.unnamed)
        return {**self.counted(), "exit_code": self._exit_code, "restarts": self._restarts, "unnamed": unnamed}

    # --- The acts -----------------------------------------------------------------------------------------------------

    def sets_a_policy_for_all_queues(self) -> None:
        self.place.set_policy("tidy", TIDY)
        jobs, letters = f"Jobs in '{QUEUE}'", f"Dead letters in '{DEAD_QUEUE}'"
        waiting = [f"Waiting jobs in '{name}'" for name in WAITING]
        self.check_names(
            "the policy",
            *(f"error: {messages} are lost when the queue is unused" for messages in (jobs, *waiting, letters)),
            f"warning: {jobs} become dead letters without being run after",
            f"warning: {letters} are lost after",
            f"warning: {letters} are lost when the queue holds more than",
            remedy="policy 'tidy'",
        )
        self.place.rabbitmq.management("DELETE", f"policies/{self.place.vhost.name}/tidy")
        self.check_names("the removed policy")

    def purges_a_retry_queue(self) -> None:
        """
        The broker destroys its only message of each of three jobs, and keeps no trace of it.

        The ledger has their messages, so the fleet runs them by itself, although its queue is never empty.
        A message with the same key is no new job, and is acknowledged.
        The drill does not wait for an hour: it sets the time back at which these retries were due.
        """
        self.send(*(jobs := self.jobs("retry", 3, "call")))
        keys = [str(job["key"]) for job in jobs]
        moved = "SELECT FROM steadyworker_jobs WHERE state = 'moved' AND key = ANY(%s)"
        self.stage.expect("three retries in the ledger", lambda: self.ledger(moved, keys) == 3)
        self.stage.expect("three messages", lambda: self.depth(RETRY_QUEUE) == 3)
        self.stage.open("api")
        self.place.purge(RETRY_QUEUE)
        self.check_names("the purge")
        if self.overdue():
            self.unnamed.append("a retry is overdue before its time")
        earlier = "not_before = not_before - interval '2 h', wake_at = wake_at - interval '2 h'"
        self.ledger(f"UPDATE steadyworker_jobs SET {earlier} WHERE key = ANY(%s)", keys)
        if self.overdue() != set(keys):
            self.unnamed.append("the jobs of the purged queue")
        self.send(jobs[0])
        self.stage.expect("the acknowledged second message", lambda: self.logged("duplicate_acked")[keys[0]])
        done = "SELECT FROM steadyworker_jobs WHERE state = 'done' AND round = 0 AND key = ANY(%s)"
        self.stage.until(lambda: self.ledger(done, keys) == len(keys), LOST_WITHIN)
        if {key: self.logged("message_lost")[key] for key in keys} != dict.fromkeys(keys, 1):
            self.unnamed.append("the messages of the purged queue")
        if self.overdue():
            self.unnamed.append("a job is overdue that ran without its message")

    def moves_dead_letters(self) -> None:
        """As Move messages does: get, publish unchanged, ack; it is cut off once before the ack, and begins again."""
        keys = [key for key in self.sent if key.startswith("letter")]
        self.stage.expect("three dead letters", lambda: self.depth(DEAD_QUEUE) == len(keys))
        self.stage.open("merchant")
        (moved,) = self.move(1, acknowledged=False)
        done = "SELECT FROM steadyworker_jobs WHERE state = 'done' AND round = 1 AND key = ANY(%s)"
        self.stage.expect("the end of the moved job", lambda: self.ledger(done, [moved]))
        self.stage.expect("three dead letters again", lambda: self.depth(DEAD_QUEUE) == len(keys))
        self.move(len(keys))
        self.stage.expect("the ends of the moved jobs", lambda: self.ledger(done, keys) == len(keys))
        self.check_names("the moved letters")

    def renames_the_cluster(self, node: Node) -> None:
        """A worker process that is started now would not know the jobs that run: it must not start."""
        node.ctl("set_cluster_name", "renamed")
        expected = "error: Expected broker '.*', under whose name .* a broker with another name"
        # The ledger lists the fleet under the former name.
        uncounted = f"warning: Queue '{QUEUE}' has {self.fleet} consumers, but this ledger lists 0"
        findings = self.check_names("the new name", expected, uncounted)
        exit_code, _ = self.run(self.stage.contestant.command(self.stage.contestant.worker))
        remedy = re.search(r"--namespace '(.+?)'", " ".join(findings.values()))
        if exit_code != 78 or not remedy:
            self.unnamed.append("the new name at the start of a worker process")
        self._set(namespace=remedy[1] if remedy else None)

    def lets_a_new_fleet_go_on(self) -> None:
        """Start as many worker processes with the remedy's setting, and stop the others."""
        old = self.stage.workers[:]
        self.stage.start_workers(self.fleet)
        del self.stage.workers[: self.fleet]  # they are not started again
        for worker in old:
            worker.terminate()
        self.stage.until(lambda: all(worker.exit_code is not None for worker in old), WITHIN)
        codes = [worker.exit_code for worker in old]
        self._restarts = sum(worker.restarts for worker in old)
        for worker in old:
            worker.kill()
        self._exit_code = next((code for code in codes if code != 0), 0)
        self.check_names("the namespace")

    def restarts_the_ledger(self, server: Cluster) -> None:
        server.stop()
        try:
            self.check_names("the ledger's absence", "warning: The ledger does not respond")
        finally:
            server.start()
        self.check_names("the ledger's return")

    def move(self, number: int, *, acknowledged: bool = True) -> list[str]:
        """Move so many dead letters to the work queue as they are; the keys of their jobs."""
        moved = []
        with self.place.channel() as channel:
            channel.confirm_delivery()
            for _ in range(number):
                method, properties, body = channel.basic_get(DEAD_QUEUE)
                channel.basic_publish("", QUEUE, body, properties)
                moved.append(str(properties.headers[KEY]))
                if acknowledged:
                    channel.basic_ack(method.delivery_tag)
        return moved

    # --- What the operator sees ---------------------------------------------------------------------------------------

    def check_names(self, act: str, *expected: str, remedy: str = "") -> Mapping[str, str]:
        """
        Return the findings of `check` that it did not have before the first act, with their remedies.

        These must be the expected ones, and no others; else the act is `unnamed`.
        """
        seen: dict[str, str] = {}

        def named() -> bool:
            seen.clear()
            seen.update((what, said) for what, said in self.findings().items() if what not in self._usual)
            return len(seen) == len(expected) and all(
                any(re.match(pattern, what) and remedy in said for what, said in seen.items()) for pattern in expected
            )

        if not self.stage.until(named, NAMED_WITHIN):
            self.unnamed.append(act)
        return seen

    def findings(self) -> Mapping[str, str]:
        """What `check` says, as a level and a text, with the remedies."""
        said = json.loads(self.command("check", "tests.drills.ours:Operated", "--json"))
        return {f"{finding['level']}: {finding['what']}": finding["remedy"] for finding in said["findings"]}

    def overdue(self) -> set[str]:
        """The jobs that need an operator, by `jobs --overdue`."""
        return {job["key"] for job in self.records("--overdue")}

    def records(self, *arguments: str) -> list[dict[str, Any]]:
        """What `jobs` says."""
        return [json.loads(line) for line in self.command("jobs", "--json", "--limit", "0", *arguments).splitlines()]

    def command(self, *arguments: str) -> str:
        """What `steadyworker` prints."""
        return self.run(self.stage.contestant.command(("steadyworker", *arguments)))[1]

    def run(self, command: Sequence[str]) -> tuple[int, str]:
        """Its exit code, and what it prints; all of that goes into the operator's log."""
        environ = self.stage.contestant.environment(self.place, self.stage.folder)
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=WITHIN
            )
        except subprocess.TimeoutExpired as error:
            raise DrillError(f"expected the end of {error.cmd} within {WITHIN:g} s") from error
        with (self.stage.folder / "operator.log").open("a") as log:
            log.write(
                f"{datetime.now(UTC):%T} $ {' '.join(command)}\n{done.stdout}{done.stderr}exit code {done.returncode}\n\n"
            )
        return done.returncode, done.stdout

    # --- The jobs -----------------------------------------------------------------------------------------------------

    @staticmethod
    def jobs(kind: str, number: int, do: str) -> list[dict[str, object]]:
        """So many, as lines of a jobs file."""
        return [{"key": f"{kind}-{each}", "payload": {"do": do}} for each in range(number)]

    def send(self, *jobs: Mapping[str, object]) -> None:
        """Send these, in this order."""
        with self.client() as client:
            for job in jobs:
                client.send(QUEUE, job["payload"], key=str(job["key"]))
        self.sent += [str(job["key"]) for job in jobs if job["key"] not in self.sent]

    @contextmanager
    def stream(self) -> Iterator[None]:
        """A short job every moment, from a sender that lives through it all."""
        over = threading.Event()

        def flow() -> list[str]:
            keys = []
            with self.client() as client:
                for number in count():
                    keys.append(client.send(QUEUE, {"do": "work"}, key=f"stream-{number}"))
                    if over.wait(EVERY):
                        break
            return keys

        with ThreadPoolExecutor(1) as pool:
            sender = pool.submit(flow)
            try:
                yield
            finally:
                over.set()
            self.sent += sender.result()

    def client(self) -> Client:
        """A sender with the settings of now."""
        environ = self.stage.contestant.environment(self.place, self.stage.folder)
        return Client.configured(config.load({}, environ, Path.cwd()))

    def starts(self, kind: str) -> int:
        """Of all jobs of a kind."""
        return sum(note.id.startswith(kind) for note in self.stage.notes("start"))

    def ended(self) -> set[str]:
        """The jobs that have noted their end."""
        return {note.id for note in self.stage.notes("end")}

    def depth(self, queue: str) -> int:
        """How many messages of this queue wait, as of now."""
        return self.place.ready()[queue]

    def ledger(self, statement: str, keys: Sequence[str]) -> int:
        """How many rows a statement finds or changes in the ledger's database."""
        with psycopg.connect(self.database, autocommit=True) as database:
            return database.execute(statement.encode(), [list(keys)]).rowcount

    def logged(self, event: str) -> Counter[str]:
        """How many lines of this event the worker processes have logged, by the job's key."""
        whole = [log.read_text().rpartition("\n")[0] for log in self.stage.folder.glob("worker-*.log")]
        lines = [line for text in whole for line in text.splitlines() if f'"event":"{event}"' in line]
        return Counter(str(json.loads(line)["key"]) for line in lines)

    # --- The count ----------------------------------------------------------------------------------------------------

    def counted(self) -> Mapping[str, int]:
        """What became of every job, by the ledger, the handlers' notes and the log."""
        last = {record["key"]: record["state"] for record in sorted(self.records(), key=lambda record: record["round"])}
        starts, ends = (Counter(note.id for note in self.stage.notes(what)) for what in ("start", "end"))
        outcomes = self.logged("job_settled")
        once = Counter(self.sent)
        return {
            "jobs": len(self.sent),
            "lost": sum(last.get(key) != "done" or not ends[key] for key in self.sent),
            "causeless": (starts - outcomes).total() + (ends - once).total(),
        }
