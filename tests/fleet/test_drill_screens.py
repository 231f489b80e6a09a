"""The operator's drill with real worker processes: `jobs`, `queues` and `workers` alone name each trouble, with its remedy."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from steadyworker import Client
from steadyworker.ledger import fleet, listing
from steadyworker.ledger.base import State
from steadyworker.system.person import who
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.faults.proxy import Proxy
from tests.fleet.screens import assert_lines, records, screen, steadyworker, waits
from tests.support.stage import Stage, WorkerProcess, eventually

SECRET = "canary-5b1e"
STUCK_AFTER = 10.0
"""Seconds without progress after which a run counts as stuck here; `moves` reports more often."""


class Night(Stage):
    """Worker processes, each with a host of its own, that renew their leases and report every two seconds."""

    def start(self, host: int, name: str, **settings: Any) -> WorkerProcess:
        script = {"times": {"renew": 2.0}, "host": f"host-{host}"}
        return self.worker(f"tests.fleet.night_jobs:{name}", script=script, **settings)

    def begins(self, queue: str, key: str, times: int = 1, **payload: object) -> None:
        """Send a job, and wait for its n-th start."""
        self.send(queue, payload, key)
        self.begun(key, times)

    def begun(self, key: str, times: int = 1) -> None:
        eventually(lambda: self.lines("starts").count(key) == times, f"{times} starts of {key}", report=self.logs)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    for module in (listing, fleet):
        monkeypatch.setattr(module, "STUCK_AFTER", STUCK_AFTER)
    made = Night(tmp_path)
    yield made
    made.close()


def go_wrong(stage: Night, proxy: Proxy, invoices: str) -> WorkerProcess:
    """Start ten worker processes, let everything go wrong, and return the only living one of the queue `reports`."""
    crashing = stage.start(3, "Imports")
    detached = stage.start(2, "Invoices", broker=invoices)
    gone = stage.start(4, "Reports", concurrency=1)
    stage.start(1, "Exports", concurrency=1)
    stage.begins("imports", "poison", dies=2)
    stage.begins("exports", "stuck", pages=100)
    stage.begins("reports", "lost")
    crashing.ended(-signal.SIGKILL)
    stage.start(3, "Imports").ended(-signal.SIGKILL)
    stage.start(3, "Imports")

    stage.start(0, "Exports", concurrency=2)
    stage.begins("exports", "failed", fails=f"cannot reach amqp://app:{SECRET}@broker/")
    stage.begins("exports", "well", moves=400)
    stage.begins("exports", "cancelled")
    fifth = stage.start(5, "Reports", concurrency=1)
    stage.begins("reports", "busy")
    for key in range(41):
        stage.send("exports", {}, f"waits-{key}")
    paused = [stage.start(host, "Refunds") for host in range(6, 10)]
    for worker in paused:
        worker.started()

    assert steadyworker(stage, "cancel", "exports", "cancelled", "--reason", "wrong month").exit_code == 0
    assert steadyworker(stage, "pause", "refunds", "--reason", "the bank is closed").exit_code == 0
    detached.started()
    with Client(broker=invoices, ledger=stage.urls["ledger"]) as client:
        client.send("invoices", {}, key="detached")
    stage.begun("detached")
    proxy.refuse()
    proxy.cut()
    gone.signal_all(signal.SIGKILL)
    stage.begun("poison", 3)
    stage.reaches("exports", State.DEAD, "cancelled")
    return fifth


NEEDS = {
    "poison": "crashing",
    "stuck": "stuck",
    "failed": "dead",
    **dict.fromkeys(("well", "detached", "lost", "busy", "cancelled", "waits-0")),
}
TROUBLES = {
    "host-4": ["gone"],
    "host-3": ["crash loop"],
    "host-2": ["detached", "not ready"],
    "host-1": ["stuck"],
    **{f"host-{number}": [] for number in (0, *range(5, 10))},
}


@pytest.mark.timeout(300)
def test_three_screens_name_each_trouble_of_real_processes_with_its_remedy(
    stage: Night, rabbitmq_place: RabbitmqPlace
) -> None:
    """Nobody sets a fact by hand: each is what a worker process, a person at a shell, or a death has left in the ledger."""
    with Proxy(rabbitmq_place.address()) as proxy:
        fifth = go_wrong(stage, proxy, rabbitmq_place.url(through=proxy))
        has_needs(stage, NEEDS)
        has_troubles(stage, TROUBLES)
        waits(stage, "exports", ready=40, dead=2)
        jobs, queues, workers = (screen(stage, verb) for verb in ("jobs", "queues", "workers"))
        assert SECRET not in jobs + queues + workers
        assert_lines(
            jobs,
            r"imports +poison +running .* host-3:\d+ +2 losses; `steadyworker cancel imports poison` ends it",
            r"exports +stuck +may hang .* host-1:\d+ +no progress for .* at 1 of 100, pages; before that, a step took .*; "
            r"`steadyworker cancel exports stuck` ends the run; the job becomes a dead letter, "
            r"and `steadyworker dead replay exports stuck` runs it from the start",
            r"exports +failed +dead .* gave up after \d+ failures?: ConnectionError: cannot reach amqp://app:\*\*\*@broker/; "
            r"`steadyworker dead replay exports failed` runs it again",
            r"exports +well +running +0 +\d+% \d[\d,]*/400 pages .* host-0.*",
            r"invoices +detached +running .* host-2:\d+ +its worker has no connection to the broker; it goes on",
            r"reports +lost +gone .* host-4:\d+ +free to be taken over in 1 min \d\d s, "
            r"then with the next free slot; the only slot is busy",
            r"exports +cancelled +cancelled .* cancelled: wrong month",
        )
        assert_lines(
            queues,
            r"\S+ +exports +40 +\d+ s +0 +– +3 +2 +3 +2 +2 +`steadyworker dead list exports` lists the dead letters",
            rf"\S+ +refunds +0 +– .* 4 +paused by {re.escape(who())} \d+ s ago; the bank is closed; "
            "`steadyworker resume refunds` ends the pause",
            r"\S+ +invoices +(\?|1|0) .* 1 .*",
        )
        assert_lines(
            workers,
            r"host-4 +\d+ +reports +0/1 +gone +– .* died \d+ s ago; another takes over its 1 job: "
            "read its log, and start it again",
            r"host-3 +\d+ +imports +1/1 +running +up .* crash loop: 2 predecessors died within an hour: "
            r"read the log of the last one, host-3:\d+",
            r"host-2 +\d+ +invoices +1/1 +running +lost .* no connection to the broker of invoices: its jobs go on; "
            r"check broker and network; invoices: broker: .*Connection refused.*",
            r"host-1 +\d+ +exports +1/1 +running +up .* its run of stuck may hang: "
            "`steadyworker cancel exports stuck` ends it",
            *(rf"host-{number} +\d+ +refunds +0/1 +running +up .* paused: refunds" for number in range(6, 10)),
        )

    fifth.signal_all(signal.SIGKILL)
    has_needs(stage, NEEDS | {"lost": "no worker", "busy": "no worker"})
    has_troubles(stage, TROUBLES | {"host-5": ["gone"]})
    start = "start one with `steadyworker run MODULE:CLASS`"
    assert_lines(screen(stage, "jobs"), *(rf"reports +{key} +gone .*: {start}" for key in ("lost", "busy")))
    waits(stage, "reports", consumers=0)
    assert_lines(screen(stage, "queues"), rf"\S+ +reports +\d .* 0 +no worker consumes it: {start}")
    dead = r"died \d+ s ago; no other worker consumes reports: read its log, and start it again"
    assert_lines(screen(stage, "workers"), rf"host-4 .*{dead}", rf"host-5 .*{dead}")


def has_needs(stage: Night, expected: Mapping[str, str | None]) -> None:
    """Wait until `jobs` shows exactly these jobs, with what they need."""

    def needs() -> dict[str, str | None]:
        return {job["key"]: job["need"] for job in records(stage, "jobs")}

    eventually(lambda: needs() == expected, "the needs of the jobs", report=lambda: f"{needs()}\n{stage.logs()}")


def has_troubles(stage: Night, expected: Mapping[str, Sequence[str]]) -> None:
    """Wait until `workers` shows one worker process on each of these hosts, with its troubles."""

    def troubles() -> list[tuple[str, Sequence[str]]]:
        return sorted((worker["host"], worker["troubles"]) for worker in records(stage, "workers"))

    wanted = sorted(expected.items())
    eventually(lambda: troubles() == wanted, "the troubles", report=lambda: f"{troubles()}\n{stage.logs()}")
