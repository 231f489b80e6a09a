"""The page of one job: whether it is stuck and what helps, its export, its dead letters, its trace, and its acknowledgement."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from steadyworker.dashboard.exported import MOST_TOTALS, export_facts
from steadyworker.dashboard.job import shown
from steadyworker.exports import RowExport
from steadyworker.ledger.base import Began, Claimed, Ending, JobId, KeptMessage, Moving, Progress, Row, Token, Verdict
from steadyworker.ledger.facts import OwnerReport, QueueReport
from steadyworker.outcome import Counters
from tests.cli.night import EXPORTS, SECRET
from tests.dashboard.fleet_of_facts import MARKUP, FleetOfFacts
from tests.dashboard.kit import request
from tests.exports.kit import FakeServices

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def words(page: ASGIApp, key: str) -> str:
    return request(page, f"/job/shop/exports/{key}").words


def claim(facts: FleetOfFacts, key: str, round_: int = 0, headers: dict[str, str] | None = None) -> Row:
    message = KeptMessage(b"{}", json.dumps({"headers": headers or {}}).encode())
    id = JobId("shop", "exports", key, round_)
    row = facts.ledger.claim(Claimed(id, None, "worker-0", 0, b"\x01" * 32, Counters(), message))
    assert row is not None
    return row


@pytest.fixture
def exported(tmp_path: Path) -> bytes:
    """The record that an export of three rows leaves in the ledger."""
    services = FakeServices(tmp_path / "ledger")
    rows = [("EUR", 5), ("EUR", 7), ("USD", 1)]
    RowExport(rows, columns=("currency", "amount")).write(
        services, tmp_path / "out" / "pay.csv", totals={"amount": "sum"}, by=("currency",)
    )
    record = services.export_state()
    assert record is not None
    return record


def test_the_export_of_a_job_has_its_manifest(
    facts: FleetOfFacts, page: ASGIApp, exported: bytes, tmp_path: Path
) -> None:
    row = claim(facts, "made")
    facts.ledger.export_state(row.token, exported)
    assert facts.ledger.done(row.token, Ending("done"))
    manifest = json.loads((tmp_path / "out" / "pay.csv.manifest.json").read_text())
    found = words(page, "made")
    assert f"steadyworker verify {tmp_path}/out/pay.csv checks it against its manifest, on a host that has it." in found
    assert f"file {tmp_path}/out/pay.csv rows 3 size " in found
    assert (
        f"({manifest['bytes']} bytes) SHA-256 {manifest['sha256']} The last file of this job is committed. This page reads no file:"
        in found
    )
    assert "2 totals Group Rows Sums currency EUR 2 amount 12 currency USD 1 amount 1" in found


def test_an_export_that_goes_on_has_its_saved_rows(facts: FleetOfFacts, page: ASGIApp) -> None:
    row = claim(facts, "goes-on")
    position = {
        "type": "rows",
        "target": "t",
        "asked": "a",
        "fence": 1,
        "rows": 50_000,
        "bytes": 1 << 20,
        "sha256": "0f",
    }
    facts.ledger.export_state(row.token, json.dumps(position).encode())
    assert (
        "rows 50,000 size 1.0 MiB (1,048,576 bytes) The export goes on, or ended before its file was committed; these are the rows that are saved."
        in words(page, "goes-on")
    )
    facts.ledger.export_state(
        row.token, json.dumps({"spark": [], "where": {"server": "sc://spark", "token": SECRET}}).encode()
    )
    facts.clock.advance(2.0)
    assert "server sc://spark token *** Spark works on the export, or has worked on it." in words(page, "goes-on")


@pytest.mark.parametrize(
    "state", [None, b"", b"\xff", b"[1]", b"{}", b'"text"', b'{"rows": "many"}', b'{"totals": [1]}']
)
def test_the_state_of_another_export_is_left_out(state: bytes | None) -> None:
    assert export_facts(state) is None


def test_an_export_of_others_is_bounded_and_no_markup(facts: FleetOfFacts, page: ASGIApp) -> None:
    row = claim(facts, "hostile")
    totals = [{"by": {MARKUP: MARKUP * 100}, "rows": 1, "sums": {MARKUP: MARKUP * 100}}] * 60
    state = {"committed": MARKUP, "folder": MARKUP, "rows": 1, "bytes": 1, "sha256": MARKUP, "totals": totals}
    facts.ledger.export_state(row.token, json.dumps(state).encode())
    answered = request(page, "/job/shop/exports/hostile")
    assert "<img" not in answered.text
    assert f"{MOST_TOTALS} of 60; the manifest beside the file has all." in answered.words
    assert len(answered.text) < 100_000


def test_a_job_has_its_dead_letters(facts: FleetOfFacts, page: ASGIApp) -> None:
    for round_, reason in ((0, "exhausted"), (1, f"no bank at amqp://app:{SECRET}@broker/")):
        row = claim(facts, "letter", round_)
        assert facts.ledger.moving(row.token, Verdict(Moving.DEAD, reason, Counters(attempts=5)))
        if not round_:
            assert facts.ledger.moved(row.token)
    answered = request(page, "/job/shop/exports/letter")
    assert "Dead letters 2 Round 1: no bank at amqp://app:***@broker/" in answered.words
    assert (
        "A worker process has still to send the letter. The ledger has its message, so a replay needs no letter."
        in answered.words
    )
    assert (
        "gave up after 5 failures, 10:24:50 . The ledger has its message, so a replay needs no letter."
        in answered.words
    )
    assert "2 dead letters of all jobs of this queue, measured 5 s ago. This job among the failures" in answered.words
    assert 'href="/failures?broker=shop&amp;queue=exports&amp;text=letter"' in answered.text
    assert SECRET not in answered.text


def test_a_key_of_two_senders_is_named(facts: FleetOfFacts, page: ASGIApp) -> None:
    row = claim(facts, "shared")
    facts.ledger.conflict(row.id)
    assert "Dead letters 1 1 letter with this key and another payload: two senders use one key." in words(
        page, "shared"
    )


def test_a_job_without_a_dead_letter_has_none(page: ASGIApp) -> None:
    assert "Dead letters" not in words(page, "stuck")


def test_the_trace_of_a_job_is_that_of_its_message(facts: FleetOfFacts, page: ASGIApp) -> None:
    claim(facts, "traced", headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
    claim(facts, "untraced", headers={"traceparent": "nonsense"})
    assert f"trace id {TRACE}" in words(page, "traced")
    assert "trace id" not in words(page, "untraced")


@pytest.mark.parametrize(
    ("settled", "shown"),
    [
        (True, "acknowledged, and the broker has confirmed it"),
        (False, "acknowledged, but the broker has not confirmed it"),
        (None, "unknown: no acknowledgement is recorded"),
    ],
)
def test_a_job_that_is_done_has_its_acknowledgement(
    facts: FleetOfFacts, page: ASGIApp, settled: bool | None, shown: str
) -> None:
    row = facts.run("ended", "new", None, Ending("done"), seconds=60)
    if settled is not None:
        facts.ledger.settled(_token_of(facts, row), settled)
        facts.ledger.flush()
    answered = request(page, "/job/shop/exports/ended")
    assert f"message {shown}" in answered.words
    assert ('<rect class="acknowledged" x="990.0"' in answered.text) == (settled is not None)


def _token_of(facts: FleetOfFacts, row: Row) -> Token:
    """Return the token of the run that ended."""
    (attempt,) = facts.ledger.facts.attempts(row.id)
    return Token(row.id, row.uid, attempt.fence, attempt.owner)


def test_a_run_with_progress_is_not_stuck(page: ASGIApp) -> None:
    assert "It makes progress: the last was 30 s ago; its time limit ends the run in 1 h 58 min." in words(page, "well")


def test_a_run_without_progress_for_unusually_long_may_hang(facts: FleetOfFacts, page: ASGIApp) -> None:
    """The sentence about its state is a warning, and no rate or time left contradicts it."""
    facts.pass_time(150.0)
    assert "No progress for 3 min 00 s. It may hang if there is none for 5 min 00 s; its time limit" in words(
        page, "well"
    )
    facts.pass_time(450.0)
    answered = request(page, "/job/shop/exports/well")
    state = "Runs for 11 min 30 s on host-0:4000, but may hang: no progress for 10 min 30 s at 50 of 100, pages; before that, a step took about 6.0 s."
    assert f'<span class="state warning">{state}</span>' in answered.text
    assert (
        "Its time limit ends the run in 1 h 48 min. steadyworker cancel exports well ends the run; the job becomes a dead letter, "
        "and steadyworker dead replay exports well runs it from the start." in answered.words
    )
    assert "50 %, 50 of 100, 10 min 30 s ago, pages Its time limit" in answered.words


def test_the_first_steps_of_a_run_are_not_its_usual_ones(facts: FleetOfFacts, page: ASGIApp) -> None:
    row = claim(facts, "hung")
    facts.clock.advance(5.0)
    facts.ledger.checkpoint(row.token, b'{"page": 10}')
    facts.ledger.progress(row.token, Progress(10, 20, "", facts.clock.wall()))
    facts.pass_time(600.0)
    assert "It makes progress: the last was 10 min 00 s ago" in words(page, "hung")
    facts.pass_time(1215.0)
    found = words(page, "hung")
    assert "may hang: no progress for 30 min 15 s at 10 of 20; before that, a step took about 0.5 s." in found
    assert "and steadyworker dead replay exports hung continues it at its last checkpoint." in found
    assert "left" not in found.partition("Story")[0]


def test_a_slow_step_is_no_hang(facts: FleetOfFacts, page: ASGIApp) -> None:
    row = claim(facts, "slow")
    facts.pass_time(300.0)
    facts.ledger.progress(row.token, Progress(1, 20, "", facts.clock.wall()))
    facts.pass_time(900.0)
    assert "It makes progress: the last was 15 min 00 s ago" in words(page, "slow")
    facts.pass_time(300.0)
    assert "No progress for 20 min 00 s. It may hang if there is none for 30 min 00 s" in words(page, "slow")


def test_the_run_of_a_dead_worker_process_ends_at_its_last_sign(facts: FleetOfFacts, page: ASGIApp) -> None:
    facts.run("gone", "new", None, None, seconds=0)
    facts.pass_time(15.0)
    facts.dead.add("worker-5")
    del facts.living["worker-5"]
    facts.clock.advance(15.0)
    answered = request(page, "/job/shop/exports/gone")
    assert "Run 1: no end is recorded last sign after 15 s, from 10:24:50 to 10:25:05" in answered.words
    assert "goes on " not in answered.words.partition("Story")[2]
    assert '<rect class="running" x="0.0" width="500.0"' in answered.text
    assert answered.text.count('<rect class="unknown" x="500.0" width="500.0"') == 3
    seen = facts.ledger.read(JobId("shop", "exports", "gone"))
    assert seen is not None
    began = Began(2, "taken over", 7)
    assert facts.ledger.claim(Claimed(seen.id, seen, "worker-0", 0, b"\x01" * 32, Counters(losses=1), None, began))
    facts.clock.advance(2.0)
    found = words(page, "gone")
    assert "Run 1: lost last sign after 15 s, from 10:24:50 to 10:25:05 , found lost 10:25:20" in found
    assert "Run 2: goes on for 2 s, from 10:25:20" in found


def test_a_lost_run_of_one_round_leaves_the_runs_of_other_rounds_unchanged(facts: FleetOfFacts, page: ASGIApp) -> None:
    """The fences of each round begin at 1."""
    facts.run("again", "new", None, None, seconds=0)
    facts.run("again", "replayed", None, Ending("done"), seconds=60, round_=1)
    found = words(page, "again")
    assert "Run 1: no end is recorded last sign" in found
    assert "Run 2 of round 1: done after 1 min 00 s" in found


def test_a_cancelled_job_is_no_failure(page: ASGIApp) -> None:
    found = words(page, "cancelled")
    assert "Dead letters 1" in found
    assert "among the failures" not in found


def test_a_number_of_a_payload_is_shown_as_it_was_sent() -> None:
    text = '{"amount": 1.10, "large": 12345678901234567.25, "id": 12345678901234567890}'
    assert shown(text.encode()).replace("\n", "").replace("  ", " ") == "{ " + text[1:-1] + "}"


def test_the_export_of_a_job_that_is_done_does_not_go_on() -> None:
    found = export_facts(b'{"rows": 5}', done=True)
    assert found is not None
    assert found.state.startswith("The job is done, and this is the last position of its export")


def test_without_progress_nothing_shows_whether_a_run_is_stuck(facts: FleetOfFacts, page: ASGIApp) -> None:
    found = words(page, "detached")
    assert "nothing shows whether it is stuck; its time limit ends the run in 1 h 18 min." in found
    assert "steadyworker cancel exports detached ends it." in found
    report = OwnerReport(
        4002, "1", facts.began, "running", ready=True, queues={EXPORTS: QueueReport(4, 1, None, connected=True)}
    )
    facts.ledger.register("worker-2", "host-2", [EXPORTS], report)
    facts.clock.advance(2.0)
    assert "nothing shows whether it is stuck; it has no time limit." in words(page, "detached")


def test_a_cancel_on_its_way_is_named(facts: FleetOfFacts, page: ASGIApp) -> None:
    facts.ledger.cancel(JobId("shop", "exports", "well"), "wrong month")
    assert "A cancel is on its way to the run: wrong month." in words(page, "well")


def test_a_cancel_that_no_worker_process_receives_waits(facts: FleetOfFacts, page: ASGIApp) -> None:
    facts.ledger.facts.resume("shop", "refunds")
    facts.ledger.cancel(JobId("shop", "exports", "lost"), "wrong month")
    facts.clock.advance(200.0)  # no worker process renews
    first = request(page).words
    waits = "A cancel waits for a worker process: wrong month."
    assert re.search(rf"lost in exports Its worker process is gone, .*? {waits}", first)
    assert "lost exports gone, a cancel waits" in first
    assert waits in words(page, "lost")


def test_a_waiting_job_names_what_it_waits_for(facts: FleetOfFacts, page: ASGIApp) -> None:
    facts.end("waits", reason="the bank is closed", counters=Counters(attempts=1))
    found = words(page, "waits")
    assert "Waits for its retry, due in 10 min 00 s; its last run: the bank is closed." in found
    assert "A worker process of its queue runs it at that time." in found
    assert "steadyworker retry exports waits makes it due now." in found
    facts.ledger.facts.pause("shop", "exports", "ann@desk", "the bank is closed")
    facts.clock.advance(2.0)
    assert "Its queue is paused by ann@desk: steadyworker resume exports ends the pause." in words(page, "waits")
    facts.ledger.facts.resume("shop", "exports")
    facts.clock.advance(200.0)  # no worker process renews
    assert (
        "It cannot go on: no worker process consumes exports: start one with steadyworker run MODULE:CLASS ."
        in words(page, "waits")
    )


def test_an_interrupted_job_goes_on(facts: FleetOfFacts, page: ASGIApp) -> None:
    row = claim(facts, "stopped")
    facts.ledger.progress(row.token, Progress(1, 2, "", facts.clock.wall()))
    assert facts.ledger.interrupted(row.token, Counters(interruptions=1))
    found = words(page, "stopped")
    assert "A stop of its worker process ended its run; the job waits for its message." in found
    assert "A worker process of its queue runs it with the next free slot, from the start." in found
