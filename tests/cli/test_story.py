"""`steadyworker show`: the story of a job."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from msgspec.structs import replace

from steadyworker.backends.opening import open_ledger
from steadyworker.cli.story_lines import story_lines, story_record
from steadyworker.ledger.base import Ending, JobId, Moving, Progress, Row, State
from steadyworker.ledger.facts import Action, Attempt, LinkEvent
from steadyworker.ledger.listing import ListedJob, Need
from steadyworker.ledger.story import StoryEntry, StoryKind, run_entries
from steadyworker.outcome import Counters
from tests.cli.kit import Queues, Shell

AT = 1_700_000_000.0
FIRST = Attempt(
    fence=7,
    owner="host-1/b/1",
    host="host-1",
    pid=4711,
    slot=2,
    version="1.4.0",
    because="new",
    epoch=1,
    started_at=AT,
    ended_at=AT + 4800,
    outcome="failed",
    reason="ValueError: no such merchant: m-17",
    error_class="ValueError",
    error_text="no such merchant: m-17",
    traceback='Traceback (most recent call last):\n  File "exports.py", line 9, in handle\nValueError: no such merchant: m-17',
    checkpoint_after="400",
    peak_memory=1 << 30,
)
SECOND = replace(
    FIRST, fence=8, because="taken over", started_at=AT + 9000, ended_at=None, outcome="", reason="", traceback="",
    error_class="", error_text="", checkpoint_before="400", checkpoint_after=None, peak_memory=None,
)  # fmt: skip
EVENTS = (
    LinkEvent("host-1/b/1", "exports", AT + 60, 1, "lost", "the broker closed it: amqp://u:hunter2@broker/"),
    LinkEvent("host-1/b/1", "exports", AT + 61, 1, "delivery-lost", fence=7),
    LinkEvent("host-1/b/1", "exports", AT + 61, 1, "delivery-lost", fence=6),
    LinkEvent("host-1/b/1", "exports", AT + 90, 2, "connected"),
    LinkEvent("host-1/b/1", "exports", AT + 5000, 3, "connected"),
)
ROW = Row(
    JobId("shop", "exports", "export-m-17"), "uid", State.DEAD, target=Moving.DEAD, counters=Counters(attempts=5, losses=1),
    reason="exhausted: ValueError: no such merchant: m-17", created_at=AT - 30, started_at=AT + 9000, ended_at=AT + 9600,
)  # fmt: skip
JOB = ListedJob(ROW, Progress(1200, 4000, "pages", AT + 9500), None, None, Need.DEAD)
ENTRIES = [
    *run_entries(1, 0, FIRST, EVENTS),
    StoryEntry(
        AT + 8990, StoryKind.ACTION, action=Action("ann@desk", "retry", "shop", "exports", ("export-m-17",), 1, "now")
    ),
    *run_entries(2, 0, SECOND, ()),
]
WIDE = """\
export-m-17 in exports: dead
  5 attempts, 0 crashes, 1 loss; 2 h 40 min in all
  30% 1,200/4,000 pages, 10 min 00 s ago
  exhausted: ValueError: no such merchant: m-17; 1 loss; `steadyworker dead replay exports export-m-17` runs it again

14 Nov 22:13:20  run 1 began: its first message; host-1, pid 4711, slot 2, version 1.4.0
14 Nov 22:14:20  run 1: lost the connection to the broker: the broker closed it: amqp://u:***@broker/
14 Nov 22:14:21  run 1: the run lost its delivery, and goes on
14 Nov 22:14:50  run 1: connected to the broker
14 Nov 23:33:20  run 1 failed after 1 h 20 min: ValueError: no such merchant: m-17; checkpoint 400; peak memory 1.0 GiB
                 Traceback (most recent call last):
                   File "exports.py", line 9, in handle
                 ValueError: no such merchant: m-17
15 Nov 00:43:10  retry by ann@desk: now
15 Nov 00:43:20  run 2 began from checkpoint 400: taken over from a lost worker process; host-1, pid 4711, slot 2, version 1.4.0
"""
NARROW = """\
export-m-17 in exports: dead
  5 attempts, 0 crashes, 1 loss; 2 h 40 min in all
  30% 1,200/4,000 pages, 10 min 00 s ago
  exhausted: ValueError: no such merchant: m-17; 1 loss; `steadyworker dead
  replay exports export-m-17` runs it again

14 Nov 22:13:20  run 1 began: its first message; host-1, pid 4711, slot 2,
                 version 1.4.0
14 Nov 22:14:20  run 1: lost the connection to the broker: the broker closed it:
                 amqp://u:***@broker/
14 Nov 22:14:21  run 1: the run lost its delivery, and goes on
14 Nov 22:14:50  run 1: connected to the broker
14 Nov 23:33:20  run 1 failed after 1 h 20 min: ValueError: no such merchant:
                 m-17; checkpoint 400; peak memory 1.0 GiB
                 Traceback (most recent call last):
                   File "exports.py", line 9, in handle
                 ValueError: no such merchant: m-17
15 Nov 00:43:10  retry by ann@desk: now
15 Nov 00:43:20  run 2 began from checkpoint 400: taken over from a lost worker
                 process; host-1, pid 4711, slot 2, version 1.4.0
"""


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(("width", "expected"), [(80, NARROW), (140, WIDE)])
def test_the_story_has_state_need_runs_links_actions_and_the_last_traceback(width: int, expected: str) -> None:
    assert "".join(f"{line}\n" for line in story_lines(JOB, ENTRIES, AT + 10_100, width)) == expected


def test_only_the_last_traceback_is_printed_unless_all_are_wanted() -> None:
    entries = [
        *run_entries(1, 0, FIRST, ()),
        *run_entries(2, 0, replace(FIRST, fence=8, started_at=AT + 9000, ended_at=AT + 9600), ()),
    ]

    def tracebacks(*, verbose: bool) -> int:
        return sum("Traceback" in line for line in story_lines(JOB, entries, AT + 10_100, 80, verbose=verbose))

    assert (tracebacks(verbose=False), tracebacks(verbose=True)) == (1, 2)


def test_the_record_has_every_fact_with_its_time() -> None:
    record = story_record(JOB, ENTRIES, AT + 10_100)
    kinds = [(entry["kind"], entry["run"]) for entry in record["story"]]
    assert kinds == [("began", 1), ("link", 1), ("link", 1), ("link", 1), ("ended", 1), ("action", None), ("began", 2)]
    assert (record["key"], record["need"]) == ("export-m-17", "dead")
    ended = record["story"][4]
    assert (ended["at"], ended["started_at"], ended["ended_at"]) == (
        "2023-11-14T23:33:20Z",
        "2023-11-14T22:13:20Z",
        "2023-11-14T23:33:20Z",
    )
    assert (ended["outcome"], ended["peak_memory"], record["story"][5]["who"]) == ("failed", 1 << 30, "ann@desk")


def test_the_story_of_a_key_has_what_people_did(shell: Shell, queues: Queues) -> None:
    queues.dead("k-1")
    with closing(open_ledger(queues.options)) as ledger:
        ((namespace, _),) = ledger.bindings()
        ledger.facts.act(Action("ann@desk", "cancel", namespace, "exports", ("k-1",), 1, "wrong month"))
        ledger.facts.act(Action("ann@desk", "cancel", namespace, "exports", ("k-2",), 1, "another job"))
    shown = shell("show", "app:Exports", "k-1")
    assert shown.code == 0
    assert shown.lines[0] == "k-1 in exports: dead"
    assert "cancel by ann@desk: wrong month" in shown.out
    assert "another job" not in shown.out
    assert shell("jobs", "exports", "k-1").lines[0] == "k-1 in exports: dead"
    (record,) = shell("show", "exports", "k-1", "--json").records
    assert [entry["what"] for entry in record["story"] if entry["kind"] == "action"] == ["cancel"]


LONG = ["page"] * 1000
DEEP: list[object] = []
for _ in range(600):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("result", "expected", "value"),
    [
        ({"rows": 40_000, "url": "https://u:hunter2@host/"}, '{"rows":40000,"url":"https://u:***@host/"}', None),
        ({"password": "hunter2"}, '{"password":"***"}', {"password": "***"}),
        ("done", "done", "done"),
        (DEEP, json.dumps(DEEP), json.dumps(DEEP)),
        (LONG, f"{json.dumps(LONG, separators=(',', ':'))[:2000]}… (7,001 bytes; -v prints all)", LONG),
    ],
)
def test_the_result_of_a_job_is_shown_without_secrets_and_whole_on_request(
    shell: Shell, queues: Queues, result: object, expected: str, value: object
) -> None:
    text = json.dumps(result, separators=(",", ":"))
    queues.job("k-1", lambda ledger, row: ledger.done(row.token, Ending("done", result=text.encode())))
    shown = shell("show", "exports", "k-1")
    assert f"  result: {expected}" in shown.lines
    whole = shell("show", "exports", "k-1", "-v")
    assert (f"  result: {text}" in whole.lines) is (result in (LONG, DEEP))
    (record,) = shell("show", "exports", "k-1", "--json").records
    assert record["result"] == (value or {"rows": 40_000, "url": "https://u:***@host/"})
    assert "hunter2" not in shown.out + whole.out + str(record)


def test_a_job_without_a_result_shows_none(shell: Shell, queues: Queues) -> None:
    queues.job("k-1", lambda ledger, row: ledger.done(row.token))
    assert "result" not in shell("show", "exports", "k-1").out
    assert shell("show", "exports", "k-1", "--json").records[0]["result"] is None


def test_an_unknown_key_has_exit_code_1(shell: Shell, queues: Queues) -> None:
    queues.job("k-1")
    shown = shell("show", "exports", "k-2")
    assert (shown.code, shown.out) == (1, "")
    assert "k-2 is not in sqlite:" in shown.err


FAILING = """
from steadyworker import Job, Retry, RetryPolicy, Worker

class Fails(Worker[dict]):
    queue = "fails"
    time_limit = None
    retry = RetryPolicy(max_attempts=2)

    def handle(self, job: Job[dict]) -> None:
        job.progress(1, 4, note="pages")
        job.checkpoint(400)
        if job.attempt == 1:
            raise Retry("try again", delay=0)
        raise ValueError("no such merchant at amqp://app:hunter2-canary@broker/")
"""


def test_the_life_of_a_real_job_reads_as_a_story(shell: Shell) -> None:
    """A retry, a failure for good and its traceback, as a worker process has recorded them; no secret is in it."""
    (shell.folder / "fails.py").write_text(FAILING)
    assert shell("send", "fails:Fails", "{}", "--key", "k-1").code == 0
    ran = shell("run", "fails:Fails", "--max-jobs", "2", "--idle-exit", "30")
    assert ran.code == 0, ran.err
    shown = shell("show", "fails:Fails", "k-1")
    assert shown.code == 0
    texts = [line[17:] for line in shown.lines if line[17:].startswith("run ")]
    assert [text.partition(";")[0].partition(" after ")[0] for text in texts if "connected" not in text] == [
        "run 1 began: its first message",
        "run 1 asked for a retry",
        "run 2 began from checkpoint 400: its retry",
        "run 2 failed",
    ]
    assert "Traceback (most recent call last):" in shown.out
    assert "in handle" in shown.out
    record = shell("show", "fails:Fails", "k-1", "--json")
    for output in (shown.out, record.out, shell("jobs", "-v").out, shell("jobs", "--json").out):
        assert "hunter2-canary" not in output
    (job,) = shell("jobs", "--json").records
    assert (job["state"], job["need"], job["attempts"]) == ("dead", "dead", 2)
    assert [entry["outcome"] for entry in record.records[0]["story"] if entry["kind"] == "ended"] == ["retry", "failed"]
    assert shell("queues", "fails:Fails", "--max-dead", "0").code == 1
