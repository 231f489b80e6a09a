"""What `jobs`, `show`, `queues`, `workers` and `dead` show of three jobs, on each broker with each ledger."""

from __future__ import annotations

import pytest

from steadyworker.ledger.base import State
from tests.brokers.fixtures import NEWEST
from tests.fleet.kit import Fleet
from tests.fleet.screens import assert_lines, records, screen, waits
from tests.support.stage import eventually

WORKER = "tests.fleet.night_jobs:Screened"
SECRET = "canary-77a0"
SHOWN = r"ConnectionError: no amqp://app:\*\*\*@broker/"

KINDS = {
    "3.10": ("sqlite", {"next_due", "unacked"}),
    NEWEST: ("postgres", {"next_due", "unacked"}),
    "classic": ("sqlite", {"delayed", "next_due"}),
    "artemis": ("postgres", set()),
    "rocketmq4": ("sqlite", set()),
    "rocketmq5": ("postgres", {"next_due", "unacked"}),
}
"""Each kind of place: the ledger with which the test is not slow, and the numbers that this broker does not report."""

PAIRS = [
    pytest.param(kind, ledger, id=f"{kind}-{ledger}", marks=[] if ledger == soon else [pytest.mark.slow])
    for kind, (soon, _) in KINDS.items()
    for ledger in ("sqlite", "postgres")
]


@pytest.mark.parametrize(("place_kind", "ledger_kind"), PAIRS, indirect=["place_kind"])
def test_each_screen_shows_a_job_that_is_done_one_that_is_dead_and_one_that_waits(
    fleet: Fleet, place_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that the broker does not report has its reason, and is never shown as 0."""
    monkeypatch.setenv("STEADYWORKER_DELAYS", "1,600")
    fleet.send_all({"done": {}, "dead": {"fails": f"no amqp://app:{SECRET}@broker/"}, "waits": {"delay": 600.0}})
    queue, (_, unknown) = fleet.queue, KINDS[place_kind]
    worker = fleet.worker(WORKER, concurrency=2, script={"measure": 1.0, "times": {"renew": 2.0}})
    for key, state in (("done", State.DONE), ("dead", State.DEAD), ("waits", State.MOVED)):
        fleet.reaches(queue, state, key)
    numbers = {"ready": 0, "delayed": 1, "unacked": 0, "dead": 1, "consumers": 1}
    known = {name: number for name, number in numbers.items() if name not in unknown}
    waiting = waits(fleet, queue, **known, workers=1, unexplained_consumers=0)
    assert set(waiting["why"]) == unknown
    assert all(waiting[name] is None for name in unknown)
    assert (waiting["next_due"] is None) is ("next_due" in unknown)
    eventually(lambda: all(each["ready"] for each in records(fleet, "workers")), "ready", report=fleet.logs)
    shown = {
        verb: screen(fleet, *verb.split())
        for verb in ("jobs", "queues", "workers", f"dead list {queue}", f"dead show {queue}")
    }
    stories = {key: screen(fleet, "show", queue, key) for key in ("done", "dead", "waits")}

    needs = {job["key"]: (job["state"], job["need"]) for job in records(fleet, "jobs")}
    assert needs == {"dead": ("dead", "dead"), "waits": ("retrying", None), "done": ("done", None)}
    replay = f"`steadyworker dead replay {queue} dead` runs it again"
    assert_lines(
        shown["jobs"],
        rf"{queue} +dead +dead +0 +30% 3/10 pages .* {SHOWN}; {replay}",
        rf"{queue} +waits +retrying +1 +30% 3/10 pages .* due in (9 min \d\d|10 min 00) s; as asked",
        rf"{queue} +done +done +0 +30% 3/10 pages .*",
    )
    reasons = r"(unknown: .*; )?" if unknown else ""
    assert_lines(shown["queues"], rf"\S+ +{queue} +0 +– .* 1 +{reasons}`steadyworker dead list {queue}` lists .*")
    assert_lines(shown["workers"], rf"\S+ +{worker.pid} +{queue} +0/2 +running +up +up +\d+ s ago +\d\d:\d\d +\S+")
    assert_lines(shown[f"dead list {queue}"], rf"dead +0 +0 +0 +0 +– +1 +{SHOWN}")
    assert_lines(
        shown[f"dead show {queue}"],
        rf"dead \(round 0\) of {queue}",
        rf"  reason:        {SHOWN}",
        r"  checkpoint:    3",
        r"  payload:       \{\"fails\":\"no amqp://app:\*\*\*@broker/\"\}",
    )
    began = rf".{{15}}  run 1 began: its first message; \S+, pid {worker.pid}, slot \d, version \S+"
    for key, (first, ended) in {
        "done": (f"done in {queue}: done", r"run 1 done after 0 s: checkpoint 3"),
        "dead": (f"dead in {queue}: dead", rf"run 1 rejected after \d s: {SHOWN}; checkpoint 3"),
        "waits": (f"waits in {queue}: retrying", r"run 1 asked for a retry after \d s: as asked; checkpoint 3"),
    }.items():
        assert_lines(stories[key], first, began, rf".{{15}}  {ended}")
        assert stories[key].count("Traceback (most recent call last):") == (key != "done")
    assert_lines(stories["dead"], f" *{SHOWN}")
    assert SECRET not in "".join((*shown.values(), *stories.values()))
