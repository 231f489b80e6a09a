"""Each page of a seeded fleet: what it shows, what it costs the ledger, and what it shows while the ledger is away."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from fastapi import FastAPI
from msgspec.structs import replace
from starlette.types import ASGIApp

from steadyworker.adapter import Depth
from steadyworker.clock import Times
from steadyworker.config.resolve import load
from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.addresses import job_path
from steadyworker.dashboard.application import application
from steadyworker.dashboard.causes import own_frame
from steadyworker.dashboard.chosen import Choices
from steadyworker.dashboard.failures import Sought, failures_page
from steadyworker.dashboard.job import job_page
from steadyworker.dashboard.job_line import progress_text
from steadyworker.dashboard.queues import queues_page
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.dashboard.running import AskedLists, running_page
from steadyworker.dashboard.warned import warnings_page
from steadyworker.dashboard.workers import workers_page
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Claimed, Ending, JobId, Moving, OwnerSeen, Progress, Verdict
from steadyworker.ledger.facts import OwnerReport, QueueReport
from steadyworker.outcome import CANCELLED, Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.cli.night import EXPORTS, SECRET
from tests.cli.test_drill_screens import postgres, sqlite
from tests.dashboard.fleet_of_facts import TRACEBACK, TURNED, FleetOfFacts, hostile
from tests.dashboard.kit import request

ADDRESSES = (
    "/",
    "/failures",
    "/queues",
    "/workers",
    "/warnings",
    "/actions",
    "/job/shop/exports/stuck",
    "/job/shop/exports/export-m-23",
)
EVERY_LEDGER = pytest.mark.parametrize("facts", [sqlite, postgres], ids=["sqlite", "postgres"], indirect=True)
CALLS = {
    "running": [
        *(
            "owners",
            "pauses",
            "held",
            "needing",
            "tracebacks",
            "running",
            "waiting",
            "last_runs",
            "bindings",
            "depths",
            "link_events",
        ),
    ],
    "failures": ["jobs", "jobs", "tracebacks"],
    "queues": ["bindings", "minutes", "depths", "owners", "pauses", "held", "link_events"],
    "workers": ["owners", "held", "bindings", "pauses", "link_events"],
    "warnings": ["owners", "bindings", "needing", "depths", "pauses", "held", "link_events", "link_events"],
    "actions": ["actions"],
    "job": [
        "owners",
        "bindings",
        "pauses",
        "last_round",
        "read",
        "last_progress",
        "attempts",
        "actions",
        "link_events",
        "result",
        "message",
    ],
}
"""The calls that each page makes; none is for one row, and only a queue with a late job on the page has calls of its own."""


def test_what_needs_a_person_stands_first(page: ASGIApp) -> None:
    words = request(page).words
    for text in (
        "8 things need a person",
        "4 jobs run; 9 worker processes live; 40 messages are ready, the oldest for 30 min 00 s; refunds is paused by ann@desk.",
        "dead failed in exports Failed for good 30 s ago: gave up: ValueError: cannot reach amqp://app:***@broker/: no such merchant. steadyworker dead replay exports failed runs it again.",
        "gone host-4:4004 Died 15 s ago; another takes over its 1 job: read its log, and start it again.",
        "crash loop host-3:4003 Crash loop: 2 predecessors died within an hour: read the log of the last one, host-3:300.",
        "crashing crashing in exports 2 crashes since its last checkpoint, the last: killed by SIGSEGV. steadyworker cancel exports crashing ends it.",
        (
            "may hang stuck in exports No progress for 41 min 30 s at 10 of 100, pages; before that, a step took under 0.1 s. "
            "Its worker process lives; its time limit ends the run in 1 h 18 min. steadyworker cancel exports stuck ends the run; "
            "the job becomes a dead letter, and steadyworker dead replay exports stuck runs it from the start."
        ),
        "detached host-2:4002 No connection to the broker of exports, refunds: its jobs go on; check broker and network.",
        "not ready host-9:4009 The ledger did not respond for 12 s. The disk of /var/lib has 1 % of free space. Remedy: make space.",
        "unknown consumers exports 3 consumers at the broker that no worker process of this ledger explains",
    ):
        assert text in words
    in_order = (
        "2 crashes since",
        "No progress for",
        "Died 15 s ago",
        "unknown consumers",
        "Failed for good",
        "Running 4",
    )
    assert sorted(in_order, key=words.index) == list(in_order)


def test_many_dead_jobs_of_one_cause_are_one_notice_after_all_others(facts: FleetOfFacts, page: ASGIApp) -> None:
    for number in range(100):
        facts.end(f"dies-{number}", target=Moving.DEAD, reason="no such merchant")
        facts.clock.advance(0.1)
    answered = request(page)
    assert "108 things need a person" in answered.words
    notices = re.findall('<span class="kind">([^<]*)</span>', answered.text)
    assert notices[:2] == ["crashing", "may hang"]
    assert notices[-2:] == ["dead", "dead"]
    assert "dead 100 jobs in exports The latest is dies-99, 0 s ago: no such merchant." in answered.words
    (link,) = re.findall(
        'href="(/failures[?]broker=shop&amp;queue=exports#cause-[0-9a-f]{12})">100 jobs</a>', answered.text
    )
    assert f'<tr id="{link.partition("#")[2]}">' in request(page, "/failures").text
    assert answered.words.index("dead failed in exports") > answered.words.index("dead 100 jobs")
    assert "Next part of: What needs a person" not in answered.words


def test_dead_jobs_of_many_causes_are_a_few_notices(facts: FleetOfFacts, page: ASGIApp) -> None:
    """The cause with the most jobs comes first, and the last notice counts the others, with the largest of them."""
    for cause in range(12):
        for number in range(4 + cause):
            facts.end(
                f"dies-{cause}-{number}", target=Moving.DEAD, reason="x", error_class=f"{'ABCDEFGHIJKL'[cause]}Error"
            )
    words = request(page).words
    assert "122 things need a person" in words
    boxes = re.findall("dead ([0-9]+) jobs in exports The latest is dies-[0-9-]+, 0 s ago: x; ([A-L])Error", words)
    assert boxes == [(str(4 + place), "ABCDEFGHIJKL"[place]) for place in range(11, 1, -1)]
    assert "dead 10 other jobs 3 other causes; the largest: BError in exports, 5 jobs. Failures by cause" in words
    for number in range(600):
        facts.end(f"again-{number}", target=Moving.DEAD, reason="x", error_class=f"Of{'ab'[number % 2]}Error")
    facts.clock.advance(2.0)
    found = request(page).words
    assert "dead 250 jobs in exports The latest is again-599, 2 s ago: x; OfbError." in found
    assert "dead 215 other jobs 215 older jobs of any cause. Failures by cause" in found


def test_a_key_in_the_text_of_an_error_makes_no_cause_of_its_own(facts: FleetOfFacts) -> None:
    """Neither with a place in own code, nor without one; the box of all of them leads to their choice."""
    frames = TRACEBACK.partition("ValueError: no")[0]
    for number in range(5):
        text = f"no such merchant: x-{number}"
        end = Ending("rejected", text, traceback=f"{frames}Reject: {text}")
        facts.run(f"x-{number}", "new", None, end, seconds=0, verdict=Verdict(Moving.DEAD, text, Counters()))
    for number in range(6):
        facts.end(f"y-{number}", target=Moving.DEAD, reason=f"'{number}' of y-{number} has no month")
    for number in range(4):
        facts.end(f"z-{number}", target=Moving.DEAD, reason="killed by SIGSEGV", counters=Counters(crashes=2))
    page = application(facts.ledger, checked_access(), clock=facts.clock)
    acting = load({"state_dir": "/nothing"}, {}, Path("/"))
    answered = request(application(facts.ledger, checked_access(), clock=facts.clock, acting=acting))
    boxes = re.findall("dead ([0-9]+) jobs in exports", answered.words)
    assert boxes == ["6", "5", "4"]
    assert "Reject at bank.py:12 in fetch. The latest is x-4, 0 s ago: no such merchant: x-4." in answered.words
    found = re.findall('href="(/choose[?][^"]*)">(Replay or drop these [0-9]+ …)<', answered.text)
    assert [text for _, text in found] == [f"Replay or drop these {number} …" for number in (6, 5, 4)]
    assert "16 dead jobs, 1 job to retry, 4 causes" in request(page, "/failures").words
    assert "Replay or drop these" not in request(page).words
    for path, number in zip((path for path, _ in found), (6, 5, 4), strict=True):
        sought = dict(parse_qsl(path.replace("&amp;", "&").partition("?")[2]))
        wanted = Sought("shop", "exports", state="dead", cause=sought["cause"])
        assert sought == {"broker": "shop", "queue": "exports", "state": "dead", "cause": wanted.cause}
        choice = Choices().choose(facts.ledger, facts.clock.wall(), wanted, waits=lambda _: False)
        assert len(choice.jobs) == number


def hung(facts: FleetOfFacts, key: str, seconds: float = 315.0) -> None:
    """Let a run of many even steps make no progress for so long."""
    row = facts.claim(key)
    for done in range(0, 43, 2):
        facts.ledger.progress(row.token, Progress(done, 100, "downloading statements", facts.clock.wall()))
        facts.clock.advance(6.0 if done < 42 else 0.0)
    facts.pass_time(seconds)


def test_a_hang_of_minutes_stands_above_each_dead_job(facts: FleetOfFacts, page: ASGIApp) -> None:
    hung(facts, "hung")
    for number in range(100):
        facts.end(f"dies-{number}", target=Moving.DEAD, reason="x", error_class=f"Error{number}")
    answered = request(page)
    notices = re.findall('<li class="notice ([a-z]+)">\n<span class="kind">([^<]*)</span>', answered.text)
    assert notices[:3] == [("warning", "crashing"), ("warning", "may hang"), ("warning", "may hang")]
    assert [level for level, kind in notices if kind == "dead"] == ["error"] * 11
    assert (
        "may hang hung in exports No progress for 5 min 15 s at 42 of 100, downloading statements; before that, "
        "a step took about 3.0 s. Its worker process lives; its time limit ends the run in 1 h 52 min."
    ) in answered.words


def test_the_runs_that_may_hang_come_first_over_all_parts(facts: FleetOfFacts, page: ASGIApp) -> None:
    """No time left and no rate stands beside them, because both would be false."""
    hung(facts, "hung")
    for number in range(45):
        facts.claim(f"new-{number}")
    answered = request(page)
    runs = answered.words.partition("Running 50")[2]
    assert runs.index(" hung exports may hang 42 % 42 %, 42 of 100 downloading statements unknown") < runs.index(
        " stuck exports"
    )
    assert runs.index(" stuck exports may hang") < runs.index(" new-44 exports")
    assert " hung exports" not in request(page, "/?page=2").words


def test_a_run_of_few_long_or_uneven_steps_needs_no_person(facts: FleetOfFacts, page: ASGIApp) -> None:
    """Three steps; steps of twenty minutes; rows in batches of five minutes; and a last step after all rows."""
    few, long, batches, last = (facts.claim(key) for key in ("few", "long", "batches", "last"))
    at = facts.clock.wall
    facts.clock.advance(5.0)
    facts.ledger.progress(few.token, Progress(1, 3, "", at()))
    facts.ledger.progress(last.token, Progress(1000, 1000, "", at()))
    facts.pass_time(300.0)
    facts.ledger.progress(batches.token, Progress(1_000_000, 9_000_000, "", at()))
    facts.pass_time(300.0)
    facts.ledger.progress(batches.token, Progress(2_000_000, 9_000_000, "", at()))
    facts.pass_time(585.0)
    facts.ledger.progress(long.token, Progress(1, 20, "", at()))
    kinds = re.findall(
        '<span class="kind">may hang</span>\n<div><a class="what mono" href="[^"]*">([^<]*)<', request(page).text
    )
    assert kinds == ["batches", "well", "stuck"][1:]
    facts.ledger.progress(batches.token, Progress(3_000_000, 9_000_000, "", at()))
    facts.pass_time(1800.0)
    facts.ledger.progress(few.token, Progress(2, 3, "", at()))
    facts.pass_time(300.0)
    kinds = re.findall(
        '<span class="kind">may hang</span>\n<div><a class="what mono" href="[^"]*">([^<]*)<', request(page).text
    )
    assert "few" not in kinds
    assert "long" not in kinds


def test_a_queue_whose_slots_are_all_busy_shows_what_waits(facts: FleetOfFacts, page: ASGIApp) -> None:
    facts.ledger.facts.record_depth("shop", "exports", Depth(5, 0, None, 0, 0, 10, 536.0))
    for number, (owner, host) in enumerate(facts.living.items()):
        queues = {EXPORTS: QueueReport(1, 1, None, connected=True)}
        report = OwnerReport(4000 + number, "1.4.0", facts.began, "running", ready=True, queues=queues)
        facts.ledger.register(owner, host, [EXPORTS], report)
        id = JobId("shop", "exports", f"busy-{number}")
        assert facts.ledger.claim(Claimed(id, None, owner, 0, b"\x01" * 32, Counters(), None)) is not None
    full = "because all its 9 slots are busy"
    assert (
        f"5 messages are ready, the oldest for 8 min 56 s in exports, {full}; refunds is paused by"
        in request(page).words
    )
    waits = "waiting 5 messages ready, the oldest for 8 min 56 s; all its 9 slots are busy."
    assert waits in request(page, "/queues").words
    facts.ledger.facts.pause("shop", "exports", "ann@desk", "")
    facts.clock.advance(1.0)
    assert full not in request(page).words


def test_with_forms_a_notice_has_the_button_in_place_of_the_command(facts: FleetOfFacts) -> None:
    acting = load({"state_dir": "/nothing"}, {}, Path("/"))
    answered = request(application(facts.ledger, checked_access(), clock=facts.clock, acting=acting))
    ends = "Cancel ends the run; the job becomes a dead letter, and Replay runs it from the start."
    assert f"its time limit ends the run in 1 h 18 min. {ends} Cancel stuck Reason" in answered.words
    assert "no such merchant. Replay runs it again. Replay failed Start after" in answered.words
    assert sorted(re.findall('name="act" value="([a-z]+) ', answered.text)) == ["cancel", "cancel", "replay"]
    job = request(
        application(facts.ledger, checked_access(), clock=facts.clock, acting=acting), "/job/shop/exports/stuck"
    )
    assert f"Its time limit ends the run in 1 h 18 min. {ends}" in job.words
    assert "steadyworker cancel" not in job.words


def test_a_run_whose_worker_process_is_gone_for_long_needs_a_worker_process(facts: FleetOfFacts, page: ASGIApp) -> None:
    """Its row is overdue then, but no message comes for a run."""
    facts.ledger.facts.resume("shop", "refunds")
    facts.clock.advance(2 * 3600.0)
    found = request(page, "/job/shop/exports/lost").words
    assert (
        "Its worker process is gone, and no other consumes this queue: start one with steadyworker run MODULE:CLASS ."
        in found
    )
    assert "Its message did not come" not in found


def test_a_worker_process_that_has_just_started_needs_no_person(facts: FleetOfFacts, page: ASGIApp) -> None:
    """Its first report is older than its first connection, and the next comes after 15 s."""
    report = OwnerReport(5000, "1.4.0", facts.clock.wall(), "running", not_ready=("exports: starting",))
    facts.ledger.register("worker-new", "host-new", [EXPORTS], report)
    assert "host-new" not in request(page).words
    assert "host-new:5000 running 0 jobs" in request(page, "/workers").words
    facts.pass_time(60.0)
    facts.ledger.register("worker-new", "host-new", [EXPORTS], report)
    assert "not ready host-new:5000 Exports: starting" in request(page).words


def test_a_running_job_has_its_progress_and_its_worker_process(page: ASGIApp) -> None:
    words = request(page).words
    assert (
        "well exports running 50 % 50 %, 50 of 100 pages, 10 a minute 30 s to 4 min 30 s 1 min 30 s 1 % 1 % of 2 h 00 min 30 s ago host-0:4000 alive"
        in words
    )
    assert "lost exports gone – unknown 30 s 0 % 0 % of 2 h 00 min none reported host-4:4004 gone" in words
    assert "crashing exports retrying 2 crashes – due in 9 min 30 s; killed by SIGSEGV" in words


@pytest.mark.parametrize(
    ("done", "total", "text"),
    [
        *((done, 100, f"{done} %, {done} of 100") for done in (29, 57, 58, 100)),
        (9999, 10000, "99 %, 9,999 of 10,000"),
        (10**12 - 1, 10**12, "99 %, 999,999,999,999 of 1,000,000,000,000"),
    ],
)
def test_a_percentage_is_that_of_whole_numbers(done: int, total: int, text: str) -> None:
    assert progress_text(Progress(done, total, "", 0.0)) == text


def test_a_queue_has_its_numbers_and_what_is_unknown(page: ASGIApp) -> None:
    words = request(page, "/queues").words
    assert "2 queues, 1 needs a person, 1 paused" in words
    assert (
        "exports shop 40 30 min 00 s 1 5 2 12 8 3 of 32 busy 525 done 1 failed 10 s–1 min 95 %: 1 min–5 min 5 s ago"
        in words
    )
    assert "refunds shop 0 – 0 unknown 0 unknown 9 0 of 36 busy 0 done none failed – 5 s ago" in words
    assert "paused by ann@desk 5 s ago: the bank is closed. steadyworker resume refunds ends the pause." in words
    assert "Unknown unacked, consumers: the broker's statistics are off." in words


def test_the_id_of_an_embedded_broker_is_no_name(facts: FleetOfFacts, page: ASGIApp) -> None:
    facts.ledger.bind("0f8fad5b-d9cb-469f-a165-70867728950e", "local", "b")
    answered = request(page, "/queues")
    assert "local embedded queue" in answered.words
    assert "0f8fad5b" not in answered.words


def test_of_many_queues_those_in_need_come_first_on_a_small_page(facts: FleetOfFacts) -> None:
    for number in range(250):
        facts.ledger.bind("shop", f"a-queue-{number}", "shop")
    options = load({"state_dir": "/nothing"}, {}, Path("/"))
    page = application(facts.ledger, checked_access(), clock=facts.clock, acting=options)
    answered = request(page, "/queues")
    words = answered.words
    assert "252 queues, 1 needs a person, 1 paused" in words
    assert words.index("exports shop 40") < words.index("refunds shop 0") < words.index("a-queue-0 shop")
    assert "1 to 50 of 252 Next part of: Queues" in words
    last = request(page, "/queues?page=6").words
    assert "Previous part of: Queues 251 to 252 of 252" in last
    assert "Next part" not in last
    assert len(answered.text.encode()) < 100_000


def test_old_numbers_show_their_age(facts: FleetOfFacts, page: ASGIApp) -> None:
    facts.pass_time(120.0)
    words = request(page, "/queues").words
    assert "Unknown now: the numbers are 2 min 05 s old, because no worker process has measured them since." in words


def test_a_worker_process_has_its_needs_and_its_day(page: ASGIApp) -> None:
    answered = request(page, "/workers")
    words = answered.words
    assert "9 worker processes live, 5 need a person" in words
    assert "host-2:4002 detached 1 job, version 1.4.0" in words
    assert "connection lost 2 times in 24 hours, 11 min 40 s in all" in words
    assert answered.text.count('<svg class="strip"') == 19
    assert 'aria-label="host-5:4004, exports: connection lost 2 times in 24 hours, 11 min 40 s in all"' in answered.text
    assert "lost for 6 min 40 s: heartbeat missed for 60 s" in words
    assert "blocked for 33 min 20 s: memory alarm" in words


def test_a_warning_has_its_worker_processes_and_its_explanation(page: ASGIApp) -> None:
    words = request(page, "/warnings").words
    assert "3 warnings" in words
    assert (
        "error The disk of /var/lib has 1 % of free space. Remedy: make space. Reported by host-9:4009, 0 s ago. steadyworker explain --id check.disk explains it."
        in words
    )
    assert "unknown consumers exports 3 consumers at the broker" in words


def test_a_job_has_its_story(page: ASGIApp) -> None:
    answered = request(page, "/job/shop/exports/export-m-23")
    words = answered.words
    for text in (
        "Done 11 h 41 min ago, after a run of 20 min 00 s.",
        "Run 1: failed after 10 min 00 s",
        "ValueError: no such merchant: m-23 Began because: its first message. On worker-5:",
        "peak memory 190.0 MiB",
        'File "/srv/app/bank.py", line 12, in fetch',
        "retry by ann@desk 14 Nov 22:23 the merchant is back",
        "Run 2: done after 20 min 00 s",
        "14 Nov 22:31 the run lost its delivery, and goes on",
        "14 Nov 22:36 the run got a new delivery of its message",
        'Ended at checkpoint {"page": 40}',
        'Began at checkpoint {"page": 12}',
        '"rows": 31404',
        "The ledger has no copy of its message, because the job is done.",
        "2 runs. A run goes on while its connection is lost",
    ):
        assert text in words
    assert words.index("Run 1: failed") < words.index("retry by ann@desk") < words.index("Run 2: done")
    assert '<details id="traceback-1"><summary>' in answered.text
    assert len(re.findall('<rect class="lost" x=', answered.text)) == 2


def test_the_message_of_a_job_is_hidden_and_has_no_secret(facts: FleetOfFacts, page: ASGIApp) -> None:
    facts.run("waits", "new", None, None, seconds=0)
    answered = request(page, "/job/shop/exports/waits")
    assert '<details id="payload"><summary>Payload, 70 bytes</summary>' in answered.text
    assert '"merchant": "m-23"' in answered.words
    assert '"password": "***"' in answered.words
    assert "authorization ***" in answered.words
    assert SECRET not in answered.text


def test_a_running_job_names_what_it_needs(page: ASGIApp) -> None:
    words = request(page, "/job/shop/exports/stuck").words
    assert "Runs for 41 min 30 s on host-1:4001, but may hang: no progress for 41 min 30 s at 10 of 100, pages" in words
    assert "Its time limit ends the run in 1 h 18 min. steadyworker cancel exports stuck ends the run" in words


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (
            "lost",
            "Its worker process host-4:4004 is gone; taken over by another worker within 1 min 15 s.",
        ),
        ("crashing", "Waits for its retry, due in 9 min 30 s; its last run: killed by SIGSEGV."),
        (
            "failed",
            "Failed for good 30 s ago: gave up: ValueError: cannot reach amqp://app:***@broker/: no such merchant. steadyworker dead replay exports failed runs it again.",
        ),
        ("cancelled", "Cancelled 30 s ago: wrong month."),
        (
            "detached",
            "Runs for 41 min 30 s on host-2:4002; its worker process has no connection to the broker, and the run goes on.",
        ),
    ],
)
def test_each_state_is_a_sentence(page: ASGIApp, key: str, sentence: str) -> None:
    assert sentence in request(page, f"/job/shop/exports/{key}").words


def test_the_log_of_actions_names_who_did_what(page: ASGIApp) -> None:
    answered = request(page, "/actions")
    assert (
        "dead replay 10:24:50 ann@desk exports export-m-0 , export-m-1 , export-m-2 and 211 other jobs error ValueError"
        in answered.words
    )
    assert '<a class="mono" href="/job/shop/exports/export-m-0">' in answered.text


def test_failures_of_one_cause_are_one_row(facts: FleetOfFacts, page: ASGIApp) -> None:
    text = "no such merchant: m-23"
    error = Ending("failed", f"ValueError: {text}", "ValueError", text, TRACEBACK)
    again = Verdict(Moving.RETRY, error.reason, Counters(attempts=1), 600.0, "ValueError", text)
    elsewhere = replace(error, traceback=TRACEBACK.replace("bank.py", "shop.py"))
    for number in range(4):
        facts.run(f"bank-{number}", "new", None, error, seconds=0, verdict=replace(again, target=Moving.DEAD))
    facts.run("waits", "new", None, error, seconds=0, verdict=again)
    facts.run("other", "new", None, elsewhere, seconds=0, verdict=again)
    words = request(page, "/failures").words
    assert "5 dead jobs, 3 jobs to retry, 4 causes" in words
    assert "ValueError bank.py:12 in fetch exports 4 1 10:24:50 10:24:50" in words
    assert "ValueError shop.py:12 in fetch exports – 1 10:24:50" in words
    assert "and 2 others" in words
    for path, expected in (
        ("?text=BANK-2", "1 dead job, 1 cause"),
        ("?text=nothing", "No job has failed"),
        ("?when=hour", "5 dead jobs, 3 jobs to retry, 4 causes"),
        ("?when=yesterday", "No job has failed"),
        ("?when=other", "5 dead jobs, 3 jobs to retry, 4 causes"),
        ("?broker=shop&queue=refunds", "No job has failed"),
    ):
        assert expected in request(page, f"/failures{path}").words
    facts.clock.advance(86_400.0)
    assert "5 dead jobs" in request(page, "/failures?when=yesterday").words
    assert "No job has failed" in request(page, "/failures?when=today").words


@pytest.mark.parametrize(
    ("traceback", "expected"),
    [
        (TRACEBACK, "/srv/app/bank.py:12 in fetch"),
        (f'{TRACEBACK}  File "/v/lib/python3.12/json/decoder.py", line 9, in decode\n', "/srv/app/bank.py:12 in fetch"),
        ('  File "/v/site-packages/x.py", line 9, in f\n', "/v/site-packages/x.py:9 in f"),
        ("ValueError: no frame", ""),
        ("", ""),
    ],
)
def test_the_place_of_a_failure_is_in_code_that_is_no_library(traceback: str, expected: str) -> None:
    assert own_frame(traceback)[0] == expected


def test_more_failures_than_the_page_reads_are_named(
    facts: FleetOfFacts, page: ASGIApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.failures.MOST_READ", 2)
    dead = Verdict(Moving.DEAD, "no", Counters(attempts=1), 0.0, "ValueError", "no")
    for number in range(3):
        facts.run(f"dead-{number}", "new", None, Ending("failed", "no"), seconds=0, verdict=dead)
    words = request(page, "/failures").words
    assert "The last 2 dead jobs" in words
    assert "The ledger has more jobs than the page reads" in words


def test_cancelled_jobs_and_those_of_another_time_hide_no_failure(
    facts: FleetOfFacts, page: ASGIApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page never claims that no job has failed if it has not read all jobs."""
    monkeypatch.setattr("steadyworker.dashboard.failures.MOST_READ", 2)
    facts.end("failed-before", target=Moving.DEAD, reason="boom", error_class="HiddenError")
    for number in range(4):
        row = facts.claim(f"cancelled-{number}")
        facts.ledger.cancel(row.id, "wrong")
        assert facts.ledger.moving(row.token, Verdict(Moving.DEAD, f"{CANCELLED}wrong", Counters()))
        assert facts.ledger.moved(row.token)
    assert "HiddenError" in request(page, "/failures?text=boom").words
    assert "HiddenError" in request(page, "/failures").words
    monkeypatch.setattr("steadyworker.dashboard.failures.MOST_SEARCHED", 3)
    found = request(page, "/failures?when=today").words
    assert "No job has failed" not in found
    assert "1 job to retry" in found
    assert "The ledger has more jobs than the page reads" in found
    found = request(page, "/failures?text=wrong").words
    assert "No failure among the newest jobs, but the ledger has more jobs" in found


def test_one_queue_is_shown_alone(page: ASGIApp) -> None:
    words = request(page, "/?broker=shop&queue=refunds").words
    assert "Nothing needs a person" in words
    assert "Only the queue refunds" in words
    assert "No job runs." in words


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/job/shop/exports/nothing", "/job/shop/exports", "/job/shop/exports/stuck/more", "/assets/other.css"],
)
def test_an_unknown_address_is_a_page(page: ASGIApp, path: str) -> None:
    answered = request(page, path)
    assert answered.status == 404
    assert answered.headers["content-type"] == "text/html; charset=utf-8"
    assert "Queues" in answered.words


def test_a_page_is_small(page: ASGIApp) -> None:
    sizes = {path: len(request(page, path).text.encode()) for path in ADDRESSES}
    text = request(page).text
    assets = [len(request(page, path).text.encode()) for path in re.findall('(?:href|src)="(/assets/[^"]+)"', text)]
    assert len(assets) == 2
    assert max(sizes.values()) + sum(assets) < 40_000


def test_no_page_has_a_secret_or_a_name_in_its_title(page: ASGIApp) -> None:
    titles = set()
    for path in ADDRESSES:
        text = request(page, path).text
        assert SECRET not in text
        titles |= set(re.findall("^<title>(.*?)</title>", text, re.MULTILINE))
    assert titles == {
        f"{name} · SteadyWorker"
        for name in ("Running", "Failures", "Queues", "Workers", "Warnings", "Log of actions", "A job")
    }


# --- The texts of others ------------------------------------------------------------------------------------------------


def test_no_text_of_others_is_markup(facts: FleetOfFacts, page: ASGIApp) -> None:
    """Each field that a sender, a handler, a broker or a host name can write has an `<img onerror>`."""
    keys = hostile(facts)
    namespace = next(name for name, queue in facts.ledger.bindings() if queue == "queue-of-others")
    paths = [
        *ADDRESSES,
        *(job_path(namespace, "queue-of-others", key) for key in keys),
        "/?queue=<img src=x onerror=alert(1)>",
    ]
    found = 0
    for path in paths:
        text = request(page, path).text
        assert "<img" not in text
        assert not re.search(r"<\w+[^>]* onerror", text.replace("&lt;img src=x onerror=alert(1)&gt;", ""))
        found += text.count("&lt;img src=x onerror=alert(1)&gt;&#39;&#34;&amp;")
    assert found >= 50


def test_a_mark_that_turns_text_is_shown_as_an_escape(facts: FleetOfFacts, page: ASGIApp) -> None:
    (key, _) = hostile(facts, markup=TURNED)
    answered = request(page, "/workers").text + request(page).text
    assert "\u202e" not in answered
    assert r"a\u202egpj.exe" in answered
    assert key == f"k{TURNED}"


# --- The ledger ---------------------------------------------------------------------------------------------------------


def calls(facts: FleetOfFacts) -> dict[str, list[str]]:
    """Return the calls of the ledger that each page makes."""
    now = facts.clock.wall()
    pages: dict[str, Any] = {
        "running": lambda once: running_page(once, now, AskedLists()),
        "failures": lambda once: failures_page(once, now, Sought()),
        "queues": lambda once: queues_page(once, now, None),
        "workers": lambda once: workers_page(once, now, None),
        "warnings": lambda once: warnings_page(once, facts.clock.wall(), None),
        "actions": lambda once: once.facts.actions(None, None, limit=201),
        "job": lambda once: job_page(once, now, JobId("shop", "exports", "export-m-23")),
    }
    found = {}
    for name, read in pages.items():
        once = ReadOnce(facts.ledger)
        assert read(once) is not None
        found[name] = once.calls
    return found


@EVERY_LEDGER
def test_a_page_is_the_same_on_each_kind_of_ledger(facts: FleetOfFacts) -> None:
    in_memory = FleetOfFacts(
        MemoryLedger(clock := FakeClock(), Times(), is_dead=(dead := set[str]()).__contains__), clock, dead
    )
    in_memory.fill()
    pages = [application(each.ledger, checked_access(), clock=each.clock) for each in (in_memory, facts)]
    for path in ADDRESSES:
        expected, found = (
            re.sub(r"<footer>.*|nonce=\S+", "", request(page, path).text, flags=re.DOTALL) for page in pages
        )
        assert found == expected


@EVERY_LEDGER
def test_a_page_of_any_length_makes_the_same_calls(facts: FleetOfFacts) -> None:
    expected = {name: sorted(each) for name, each in CALLS.items()}
    assert {name: sorted(each) for name, each in calls(facts).items()} == expected
    for number in range(40):
        facts.claim(f"more-{number}", f"worker-{number % 10}")
        facts.links(f"worker-{number % 10}", [(float(number), "lost", "why"), (float(number) + 1, "connected", "")])
    assert {name: sorted(each) for name, each in calls(facts).items()} == expected


def test_a_page_cannot_write(facts: FleetOfFacts) -> None:
    once = ReadOnce(facts.ledger)
    for name in ("claim", "cancel", "forget", "replay", "purge", "register", "bind", "close"):
        with pytest.raises(AttributeError, match="a page only reads"):
            getattr(once, name)
    for name in ("act", "pause", "resume", "command", "commands", "record_depth", "may_measure"):
        with pytest.raises(AttributeError, match="a page only reads"):
            getattr(once.facts, name)


def test_several_viewers_cause_one_read_a_second(facts: FleetOfFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    page = application(facts.ledger, checked_access(), clock=facts.clock)
    reads: list[int] = []
    owners = facts.ledger.owners

    def counted() -> Sequence[OwnerSeen]:
        reads.append(1)
        return owners()

    monkeypatch.setattr(facts.ledger, "owners", counted)
    for _ in range(5):
        request(page)
    assert len(reads) == 1
    facts.clock.advance(1.0)
    request(page)
    assert len(reads) == 2


def test_while_the_ledger_is_away_a_page_shows_what_it_last_read(
    facts: FleetOfFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = application(facts.ledger, checked_access(), clock=facts.clock)
    request(page)

    def away() -> None:
        raise LedgerUnavailable(f"Expected an answer, got none: postgresql://app:{SECRET}@db/x")

    with monkeypatch.context() as patch:
        patch.setattr(facts.ledger, "owners", away)
        facts.clock.advance(40.0)
        answered = request(page)
        assert answered.status == 200
        assert (
            "The ledger does not respond, so this page shows what it last read, 40 s ago. Expected an answer"
            in answered.words
        )
        assert "8 things need a person" in answered.words
        unread = request(page, "/workers")
        assert unread.status == 503
        assert "The ledger cannot be read Expected an answer, got none: postgresql://app:***@db/x" in unread.words
        assert SECRET not in answered.text + unread.text
    facts.clock.advance(5.0)
    assert "what it last read" not in request(page).words


def test_an_error_of_one_page_is_a_page_and_a_line_of_the_log(
    facts: FleetOfFacts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    page = application(facts.ledger, checked_access(), clock=facts.clock)

    def fails() -> None:
        raise ZeroDivisionError(f"password={SECRET}")

    monkeypatch.setattr(facts.ledger, "owners", fails)
    answered = request(page)
    assert answered.status == 500
    assert "This page could not be drawn" in answered.words
    assert "ZeroDivisionError" not in answered.text
    assert "ZeroDivisionError: password=***" in caplog.text
    assert request(page, "/actions").status == 200


def test_a_page_that_cannot_be_drawn_has_the_headers_of_every_page(
    page: ASGIApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.application.queues_page", lambda *_: None)
    answered = request(page, "/queues")
    assert (answered.status, "content-security-policy" in answered.headers) == (500, True)
    assert "This page could not be drawn" in answered.words
    assert "UndefinedError" in caplog.text


# --- Below a path -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ADDRESSES)
def test_each_link_has_the_path_below_which_the_page_is_mounted(facts: FleetOfFacts, path: str) -> None:
    site = FastAPI()
    site.mount("/ops/jobs", application(facts.ledger, checked_access(), clock=facts.clock))
    text = request(site, f"/ops/jobs{path}").text
    links = re.findall('(?:href|src)="(/[^"]*)"', text)
    assert len(links) > 5
    assert [link for link in links if not link.startswith("/ops/jobs/")] == []
    for link in {link.replace("&amp;", "&") for link in links}:
        answered = request(site, link)
        assert answered.status == 200 or "The ledger has no job of this key" in answered.words


def test_only_one_namespace_is_shown_if_the_page_has_one(facts: FleetOfFacts) -> None:
    page = application(facts.ledger, checked_access(), "other", facts.clock)
    assert "No job runs." in request(page).words
    assert "No job runs." in request(page, "/?broker=shop").words
    assert request(page, "/job/shop/exports/stuck").status == 404
    assert "No queue" in request(page, "/queues").words
    assert "No worker process" in request(page, "/workers").words
