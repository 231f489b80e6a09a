"""The actions of the page: what each does, who did it, and which requests change nothing."""

from __future__ import annotations

import asyncio
import hashlib
import html
import http.client
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from msgspec import structs
from starlette.routing import Route

from steadyworker.actions.letters import LetterActions
from steadyworker.adapter import Depth
from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.backends.opening import open_ledger
from steadyworker.config.resolve import Options, load
from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.addresses import job_path
from steadyworker.dashboard.application import application
from steadyworker.dashboard.doing import Doing
from steadyworker.delivery import KEY
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Began, Claimed, JobFilter, JobId, KeptMessage, Ledger, Moving, Row, State, Verdict
from steadyworker.ledger.facts import Action, OwnerReport, QueueReport
from steadyworker.ledger.lease import registered_name
from steadyworker.outcome import Counters, JobState
from steadyworker.runner.dead_jobs import DeadJobs
from steadyworker.system.person import who
from steadyworker.testing.clock import FakeClock
from tests.adapters.test_rabbitmq_replay import QUEUE, died
from tests.cli.kit import Queues
from tests.cli.test_retry import interrupt, wait_for_retry
from tests.conftest import Eventually
from tests.dashboard.fleet_of_facts import MARKUP
from tests.dashboard.kit import Answered, request, served
from tests.ledger.pgkit import Schemas
from tests.support.ledgers import make_ledger

ONE = pytest.mark.parametrize("options", ["sqlite"], indirect=True)
PAGE = "http://localhost:8080"
WHO = f"{who()} from this machine"


class Site:
    """A page with actions, its ledger, and a reader who uses its forms."""

    def __init__(
        self,
        options: Options,
        ledger: Ledger,
        *,
        user_header: str | None = None,
        named: Mapping[str, JobQueue] = MappingProxyType({}),
    ) -> None:
        self.options = options
        self.ledger = ledger
        self.clock = FakeClock()
        peers = ["127.0.0.1"] if user_header else []
        access = checked_access((), None, user_header, peers)
        self.app = application(ledger, access, clock=self.clock, acting=options, named=named)
        self.headers: dict[str, Any] = {}
        self.consumed = True  # a worker process consumes the queue

    @property
    def namespace(self) -> str:
        (namespace,) = {name for name, queue in self.ledger.bindings() if queue == "exports"}
        return namespace

    def job_path(self, key: str) -> str:
        return job_path(self.namespace, "exports", key)

    def get(self, path: str) -> Answered:
        self.clock.advance(1.0)  # a page is read again after a second
        if self.consumed and (bound := [name for name, queue in self.ledger.bindings() if queue == "exports"]):
            self.ledger.register("host/boot/9", "host", [registered_name(name, "exports") for name in bound])
        return request(self.app, path, **self.headers)

    def choose(self, path: str) -> str:
        """Choose jobs, and return the address of the choice."""
        answered = self.get(path)
        assert answered.status == 303
        return answered.headers["location"]

    def form(self, path: str, do: str) -> str:
        """Return the value of the button of a form on a page."""
        found: list[str] = re.findall(f'name="act" value="({do} [^"]*)"', self.get(path).text)
        assert len(found) == 1
        return html.unescape(found[0])

    def post(self, act: str, *, origin: str = PAGE, **fields: str) -> Answered:
        body = urlencode({"act": act, **fields}).encode()
        kind = "application/x-www-form-urlencoded"
        headers: dict[str, Any] = {"content_type": kind, "origin": origin, **self.headers}
        return request(self.app, "/act", method="POST", body=body, **headers)

    def do(self, path: str, do: str, **fields: str) -> str:
        """Use a form, follow the redirect, and return the words of the result."""
        answered = self.post(self.form(path, do), **fields)
        assert answered.status == 303
        return self.result(answered.headers["location"])

    def result(self, location: str) -> str:
        (text,) = re.findall('<p id="did"[^>]*>(.*?)</p>', self.get(location).text)
        return html.unescape(re.sub("<[^>]+>", "", text))

    def log(self) -> list[tuple[str, str, str, tuple[str, ...], str]]:
        found = self.ledger.facts.actions()
        return [(each.who, each.what, each.queue, each.keys, each.detail) for each in found]

    def row(self, key: str = "k-1") -> Row:
        row = self.ledger.read(JobId(self.namespace, "exports", key))
        assert row is not None
        return row


@pytest.fixture(params=["sqlite", "postgres"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Options]:
    """The settings of a ledger of each kind, and of the embedded broker."""
    given = {"state_dir": str(tmp_path / "state")}
    with ExitStack() as stack:
        if request.param == "postgres":
            schemas = stack.enter_context(closing(Schemas(request.getfixturevalue("database"), commit="off")))
            given["ledger"] = schemas.url_of(f"forms_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}")
        made = load(given, {}, tmp_path)
        make_ledger(made)
        yield made


@pytest.fixture
def site(options: Options) -> Iterator[Site]:
    with closing(open_ledger(options)) as ledger:
        yield Site(options, ledger)


@pytest.fixture
def queues(options: Options) -> Queues:
    return Queues(options)


# --- What each action does ------------------------------------------------------------------------------------------------


def test_a_running_job_is_cancelled_with_a_reason(site: Site, queues: Queues) -> None:
    row = queues.job("k-1")
    site.ledger.register(row.owner or "", "host", [registered_name(site.namespace, "exports")])
    path = site.job_path("k-1")
    assert (
        site.do(path, "cancel", reason="wrong month")
        == "Cancel sent: k-1 was running, and a worker process receives a cancel within 2 s."
    )
    assert site.row().cancel_reason == "wrong month"
    assert site.log() == [(WHO, "cancel", "exports", ("k-1",), "wrong month")]
    assert 'name="act"' not in site.get(path).text


@pytest.mark.parametrize(
    ("consumed", "when"),
    [(False, "a worker process of exports starts"), (True, "another worker process of exports takes it over")],
)
@ONE
def test_a_cancel_of_a_job_whose_worker_process_is_gone_waits(
    site: Site, queues: Queues, when: str, *, consumed: bool
) -> None:
    queues.job("k-1")
    site.consumed = consumed
    path = site.job_path("k-1")
    assert "If its worker process is gone, it ends when another takes it over." in site.get(path).words
    assert site.do(path, "cancel", reason="wrong month") == f"k-1 is cancelled: it ends when {when}."
    assert site.row().cancel_reason == "wrong month"


@ONE
def test_a_queue_that_no_worker_process_consumes_does_not_go_on(site: Site, queues: Queues) -> None:
    queues.job("k-1")
    site.consumed = False
    site.do("/queues", "pause")
    why = "no worker process consumes exports: start one with steadyworker run MODULE:CLASS"
    assert site.do("/queues", "resume") == f"exports is no longer paused, but {why}."


def test_a_cancel_of_a_waiting_job_can_be_undone(site: Site, queues: Queues) -> None:
    queues.job("k-1", interrupt)
    path = site.job_path("k-1")
    assert site.do(path, "cancel") == "k-1 is cancelled (it was interrupted): it will not run again."
    assert site.row().cancel_reason == "by an operator"
    assert site.do(path, "undo") == "k-1 is no longer cancelled: it runs when its message arrives."
    assert site.row().cancel_reason is None
    assert [what for _, what, *_ in site.log()] == ["undo cancel", "cancel"]


def test_a_job_that_waits_for_a_retry_runs_now(site: Site, queues: Queues) -> None:
    queues.job("k-1", wait_for_retry(3600.0))
    assert site.do(site.job_path("k-1"), "retry") == "k-1 (retrying) is due now: it runs with the next free slot."
    assert site.row().due_in == 0.0
    (delivery,) = queues.received("exports", 1)
    assert delivery.headers["sw-hop"] == "2"


@pytest.mark.parametrize(
    ("slots", "runs", "busy"),
    [(2, 1, ""), (1, 1, "; its only slot is busy"), (3, 3, "; all its 3 slots are busy"), (3, 2, "")],
)
@ONE
def test_a_retry_without_a_free_slot_names_what_it_waits_for(
    site: Site, queues: Queues, slots: int, runs: int, busy: str
) -> None:
    """The runs are those of the ledger, because the number in a report is up to 15 s old."""
    queues.job("k-1", wait_for_retry(3600.0))
    for number in range(runs):
        queues.job(f"runs-{number}")
    name = registered_name(site.namespace, "exports")
    report = OwnerReport(
        7, "1", 0.0, "running", ready=True, queues={name: QueueReport(slots, slots, 60.0, connected=True)}
    )
    site.ledger.register("host/boot/1", "host", [name], report)
    path = site.job_path("k-1")
    assert site.do(path, "retry") == f"k-1 (retrying) is due now: it runs with the next free slot{busy}."
    page = site.get(path).text
    assert f"It is due now: a worker process of its queue runs it with the next free slot{busy}." in page
    assert "Retry now" not in page


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "no worker"])
@pytest.mark.parametrize("many_jobs", [True, False], ids=["many", "one"])
@pytest.mark.parametrize("do", ["retry", "replay"])
@ONE
def test_an_action_names_what_keeps_its_jobs_from_running(
    site: Site, queues: Queues, eventually: Eventually, do: str, *, many_jobs: bool, paused: bool
) -> None:
    if do == "retry":
        queues.job("k-1", wait_for_retry(3600.0))
    else:
        queues.dead("k-1")
    site.consumed = paused
    if paused:
        site.ledger.facts.pause(site.namespace, "exports", "ann", "the bank is closed")
    why = "exports is paused by ann: the bank is closed"
    if not paused:
        why = "no worker process consumes exports: start one with steadyworker run MODULE:CLASS"
    if many_jobs:
        done = "sent again" if do == "retry" else "replayed"
        assert many(site, site.choose("/choose"), do, eventually) == f"1 of 1 job {done}. They wait: {why}."
    else:
        done = "(retrying) is due now" if do == "retry" else "is replayed"
        assert site.do(site.job_path("k-1"), do) == f"k-1 {done}, but {why}."
    assert why.partition(" with ")[0] in site.get("/").words


def test_a_retry_gets_a_new_time(site: Site, queues: Queues) -> None:
    queues.job("k-1", wait_for_retry(60.0))
    path = site.job_path("k-1")
    assert site.do(path, "reschedule", delay="2h") == "k-1 (retrying): due in 2 h 00 min."
    assert 7190 < site.row().due_in <= 7200
    refused = site.do(path, "reschedule", delay="soon")
    assert refused.startswith("Nothing was done. Expected a time such as 90s, 2h or 1d")
    assert 7190 < site.row().due_in <= 7200


@pytest.mark.parametrize(("do", "checkpoint"), [("replay", b"7"), ("restart", None)])
def test_a_dead_job_is_replayed(site: Site, queues: Queues, do: str, checkpoint: bytes | None) -> None:
    queues.dead("k-1")
    path = site.job_path("k-1")
    form = site.form(path, do)
    begin = "from its last checkpoint" if do == "replay" else "from the start"
    assert site.do(path, do) == f"k-1 runs again with the next free slot, {begin}."
    (delivery,) = queues.received("exports", 1)
    assert delivery.headers["sw-round"] == "1"
    row = site.ledger.read(JobId(site.namespace, "exports", "k-1", 1))
    assert row is not None
    assert row.checkpoint == checkpoint
    assert "Nothing was done" in site.result(site.post(form).headers["location"])
    assert [(what, keys) for _, what, _, keys, _ in site.log()] == [("replay", ("k-1",))]


@pytest.mark.parametrize(
    ("do", "detail"), [("replay", "in 60 s"), ("restart", "in 60 s; from the start"), ("drop", "")]
)
@ONE
def test_the_reason_of_an_action_on_a_dead_job_is_in_the_log(site: Site, queues: Queues, do: str, detail: str) -> None:
    queues.dead("k-1")
    site.do(site.job_path("k-1"), do, reason="the amount is right now", delay="" if do == "drop" else "60s")
    ((*_, found),) = site.log()
    assert found == "; ".join(filter(None, ("the amount is right now", detail)))


def test_a_dead_job_is_dropped(site: Site, queues: Queues) -> None:
    queues.dead("k-1")
    path = site.job_path("k-1")
    assert site.do(path, "drop") == "k-1 is dropped: its dead letter and its record are deleted."
    assert site.get(path).status == 404
    assert [(what, keys) for _, what, _, keys, _ in site.log()] == [("drop", ("k-1",))]


@pytest.mark.parametrize("do", ["replay", "drop"])
def test_an_action_on_a_dead_job_leaves_the_letter_of_another_payload(site: Site, queues: Queues, do: str) -> None:
    """Its sender has used the same key by mistake, and the letter is the only copy of its payload."""
    queues.dead("k-1")
    queues.conflict("k-1", b'{"merchant": "m-18"}')
    assert site.do(site.job_path("k-1"), do).startswith("k-1 runs again" if do == "replay" else "k-1 is ")
    (left,) = queues.received("exports.dead", 1)
    assert left.body == b'{"merchant": "m-18"}'


def test_a_queue_is_paused_with_a_reason_and_resumed(site: Site, queues: Queues) -> None:
    queues.job("k-1")
    done = site.do("/queues", "pause", reason="the bank is closed")
    assert done == "exports is paused: its worker processes receive no new message. Jobs that run go on."
    (pause,) = site.ledger.facts.pauses()
    assert (pause.queue, pause.who, pause.reason) == ("exports", WHO, "the bank is closed")
    assert "the bank is closed" in site.get("/queues").words
    assert site.do("/queues", "resume") == "exports goes on: its worker processes receive messages again."
    assert list(site.ledger.facts.pauses()) == []
    assert [what for _, what, *_ in site.log()] == ["resume", "pause"]


def register(site: Site, stage: str) -> None:
    name = registered_name(site.namespace, "exports")
    report = OwnerReport(77, "1.0", 1.0, stage, ready=True, queues={name: QueueReport(1, connected=True)})
    site.ledger.register("owner-1", "host-1", [name], report)


def test_a_worker_process_is_quiet_and_receives_messages_again(site: Site, queues: Queues) -> None:
    queues.job("k-1")
    register(site, "running")
    assert site.do("/workers", "quiet") == "host-1:77 receives no new message within 2 s. Its jobs go on."
    assert [each.name for each in site.ledger.facts.commands("owner-1")] == ["quiet"]
    register(site, "quiet")
    assert site.do("/workers", "loud") == "host-1:77 receives messages again within 2 s."
    assert [(each.name, each.who) for each in site.ledger.facts.commands("owner-1")] == [("resume", WHO)]
    assert site.log() == [
        (WHO, "resume worker", "", (), "host-1:77"),
        (WHO, "quiet worker", "", (), "host-1:77"),
    ]


@ONE
def test_a_quiet_worker_process_is_an_order_and_needs_no_person(site: Site, queues: Queues) -> None:
    queues.job("k-1", interrupt)
    name = registered_name(site.namespace, "exports")
    report = OwnerReport(
        77,
        "1.0",
        1.0,
        "quiet",
        ready=False,
        not_ready=("exports: stage: quiet.",),
        queues={name: QueueReport(1, connected=True)},
    )
    site.ledger.register("owner-1", "host-1", [name], report)
    found = site.get("/workers").words
    assert "need a person" not in found
    assert "host-1:77 quiet " in found
    assert "Starts no new jobs, by order: Start new jobs again ends this." in found
    assert "Nothing needs a person" in site.get("/").words


@ONE
def test_a_worker_process_whose_order_has_ended_needs_no_person(site: Site, queues: Queues) -> None:
    """Its stage is new at once; why it is not ready is as old as its report."""
    queues.job("k-1", interrupt)
    name = registered_name(site.namespace, "exports")
    why = ("exports: stage: quiet.",)
    report = OwnerReport(77, "1.0", 1.0, "running", not_ready=why, queues={name: QueueReport(1, connected=True)})
    site.ledger.register("owner-1", "host-1", [name], report)
    found = site.get("/workers").words
    assert "not ready" not in found
    assert "host-1:77 running " in found
    assert "Nothing needs a person" in site.get("/").words


@pytest.mark.parametrize("number", [1, 2])
@ONE
def test_a_queue_whose_worker_processes_are_all_quiet_names_the_order(
    site: Site, queues: Queues, eventually: Eventually, number: int
) -> None:
    queues.dead("k-1")
    queues.job("k-2", interrupt)
    site.consumed = False
    name = registered_name(site.namespace, "exports")
    for pid in range(77, 77 + number):
        report = OwnerReport(pid, "1.0", 1.0, "quiet", queues={name: QueueReport(4, 0, connected=True)})
        # A quiet process that still has a run registers its queue without the mark of quiet ones.
        site.ledger.register(f"owner-{pid}", "host-1", [name if pid == 77 else f"{name} (quiet)"], report)
    site.ledger.facts.act(Action("ben", "quiet worker", detail="host-2:77"))
    site.ledger.facts.act(Action("ann", "quiet worker", detail="host-1:77"))
    site.ledger.facts.record_depth(site.namespace, "exports", Depth(ready=3))
    who, verb = ("only worker process, host-1:77,", "starts") if number == 1 else ("2 worker processes", "start")
    quiet = f"its {who} {verb} no new jobs, by order of ann; Start new jobs again ends this"
    for path in ("/", "/queues"):
        found = site.get(path).words
        assert f" 3 messages ready, but {quiet}." in found
        assert "no worker process consumes" not in found
    assert f"It cannot go on: {quiet}." in site.get(site.job_path("k-2")).words
    assert site.do(site.job_path("k-1"), "replay") == f"k-1 is replayed, but {quiet}."
    assert "next free slot" not in site.get(site.job_path("k-1")).words


@ONE
def test_a_queue_whose_pause_has_ended_waits_for_no_worker_process(site: Site, queues: Queues) -> None:
    """A process registers as a consumer again some seconds after the end of a pause."""
    queues.job("k-1", interrupt)
    name = registered_name(site.namespace, "exports")
    report = OwnerReport(
        77, "1.0", 1.0, "running", ready=True, queues={name: QueueReport(1, connected=True, paused=True)}
    )
    site.consumed = False
    site.ledger.register("owner-1", "host-1", [f"{name} (quiet)"], report)
    site.ledger.facts.record_depth(site.namespace, "exports", Depth(ready=3))
    site.ledger.facts.pause(site.namespace, "exports", "ann", "")
    site.do("/queues", "resume")
    assert "no worker" not in site.get("/queues").words
    site.ledger.register("owner-1", "host-1", [f"{name} (quiet)"], structs.replace(report, stage="quiet"))
    assert (
        "its only worker process, host-1:77, starts no new jobs, by order; Start new jobs again ends this."
        in site.get("/queues").words
    )


@ONE
def test_the_user_of_the_proxy_is_the_person_in_the_log(options: Options, queues: Queues) -> None:
    with closing(open_ledger(options)) as ledger:
        site = Site(options, ledger, user_header="X-User")
        site.headers = {"x_user": "ann@ops"}
        queues.job("k-1", interrupt)
        site.do(site.job_path("k-1"), "cancel")
        form = site.form("/queues", "pause")
        site.headers = {"x_user": "ben@ops"}
        assert "Nothing was done" in site.result(site.post(form).headers["location"])
        assert [person for person, *_ in site.log()] == ["ann@ops from this machine"]


@ONE
def test_a_job_of_another_broker_is_not_sent_to_this_broker(site: Site, queues: Queues) -> None:
    queues.job("k-1")
    site.ledger.bind("other", "exports", "elsewhere")
    id = JobId("other", "exports", "far")
    began = Began(1, "new", 1)
    row = site.ledger.claim(Claimed(id, None, "o", 0, b"\x01" * 32, Counters(), KeptMessage(b"{}", b"{}"), began))
    assert row is not None
    assert site.ledger.moving(row.token, Verdict(Moving.RETRY, "E", Counters(attempts=1), 3600.0))
    assert site.ledger.moved(row.token, 3600.0)
    refused = site.do("/job/other/exports/far", "retry")
    assert "Expected the broker of the job, 'other'" in refused
    found = site.ledger.read(id)
    assert found is not None
    assert found.due_in > 3500
    assert site.do("/job/other/exports/far", "cancel").startswith("far is cancelled")


# --- A job by its key -----------------------------------------------------------------------------------------------------


@ONE
def test_a_key_leads_to_its_job(site: Site, queues: Queues) -> None:
    queues.job("k-1", interrupt)
    path = site.job_path("k-1")
    assert 'action="/find"' in site.get("/").text
    assert site.get("/find?key=+k-1").headers["location"] == path
    for unknown in ("k-2", "", "k-1%2F.."):
        answered = site.get(f"/find?key={unknown}")
        assert (answered.status, "No job has this key" in answered.words) == (404, True)
    site.ledger.bind("other", "exports", "elsewhere")
    id = JobId("other", "exports", "k-1")
    assert site.ledger.claim(Claimed(id, None, "o", 0, b"\1" * 32, Counters(), None, Began(1, "new"))) is not None
    links = re.findall(r'href="(/job/[^"]*)"', site.get("/find?key=k-1").text)
    assert sorted(links) == sorted([path, "/job/other/exports/k-1"])


# --- What changes nothing -------------------------------------------------------------------------------------------------


@ONE
def test_without_the_flag_no_form_is_drawn_and_a_form_is_refused(site: Site, queues: Queues) -> None:
    queues.job("k-1", interrupt)
    register(site, "running")
    path = site.job_path("k-1")
    form = site.form(path, "cancel")
    site.app = application(site.ledger, checked_access())
    for each in (path, "/queues", "/workers", "/"):
        assert 'method="post"' not in site.get(each).text
        assert "Read only" in site.get(each).words
    answered = site.post(form)
    assert (answered.status, site.row().cancel_reason) == (403, None)
    assert "This page is read only" in answered.words


@ONE
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:9", "http://localhost:8080.evil.example"]
)
def test_a_form_of_another_site_is_refused(site: Site, queues: Queues, origin: str) -> None:
    queues.job("k-1", interrupt)
    answered = site.post(site.form(site.job_path("k-1"), "cancel"), origin=origin)
    assert (answered.status, site.row().cancel_reason) == (403, None)


@ONE
def test_a_form_serves_once(site: Site, queues: Queues) -> None:
    """A recorded pause does not pause the queue again after a person has ended it."""
    queues.job("k-1")
    form = site.form("/queues", "pause")
    first = site.post(form, reason="the first")
    site.do("/queues", "resume")
    again = site.post(form, reason="the first")
    assert (first.status, again.status) == (303, 303)
    assert site.result(again.headers["location"]).startswith("Nothing was done: this form was used before")
    assert list(site.ledger.facts.pauses()) == []


@ONE
def test_a_form_for_what_has_changed_since_does_nothing(site: Site, queues: Queues) -> None:
    queues.job("k-1", wait_for_retry(3600.0))
    form = site.form(site.job_path("k-1"), "retry")
    assert site.ledger.reschedule(site.row(), 7200.0, 7200.0)
    assert "Nothing was done" in site.result(site.post(form).headers["location"])
    assert site.row().due_in > 7000
    assert site.row().job_state is JobState.RETRYING


@ONE
def test_a_form_of_an_earlier_process_does_nothing(site: Site, queues: Queues) -> None:
    queues.job("k-1", interrupt)
    form = site.form(site.job_path("k-1"), "cancel")
    later = Site(site.options, site.ledger)
    assert "Nothing was done" in later.result(later.post(form).headers["location"])
    assert site.row().cancel_reason is None


@ONE
@pytest.mark.parametrize(
    "act",
    ["", "cancel", "cancel a/b/c", "purge a/b x", "cancel a/b x", "pause a/b/c x", "cancel a/~ff/c x", "cancel a//c x"],
)
def test_what_no_form_sends_is_refused(site: Site, act: str) -> None:
    answered = site.post(act)
    assert (answered.status, site.log()) == (400, [])
    assert "content-security-policy" in answered.headers


@ONE
def test_a_body_that_is_no_form_is_refused(site: Site, queues: Queues) -> None:
    queues.job("k-1", interrupt)
    form = site.form(site.job_path("k-1"), "cancel")
    assert site.post(form, reason="x" * 20_000).status == 400
    body = urlencode({"act": form}).encode()
    plain = request(site.app, "/act", method="POST", body=body, content_type="text/plain", origin=PAGE)
    assert plain.status == 400
    assert request(site.app, f"/act?{urlencode({'act': form})}", origin=PAGE).status == 405
    assert site.row().cancel_reason is None


@ONE
def test_a_reason_is_never_markup_and_has_no_secret(site: Site, queues: Queues) -> None:
    queues.job("k-1", interrupt)
    path = site.job_path("k-1")
    answered = site.post(site.form(path, "cancel"), reason=f"{MARKUP} amqp://app:hunter2@broker/ {'long ' * 200}")
    assert "img" not in answered.headers["location"]
    assert len(site.row().cancel_reason or "") <= 300
    site.do("/queues", "pause", reason=MARKUP)
    for page in (answered.headers["location"], path, "/", "/queues", "/actions"):
        text = site.get(page).text
        assert "<img" not in text
        assert "hunter2" not in text
    assert "&lt;img src=x" in site.get("/actions").text


@ONE
def test_a_get_changes_nothing(site: Site, queues: Queues) -> None:
    queues.job("k-1", interrupt)
    register(site, "running")
    path = site.job_path("k-1")
    for each in (path, "/queues", "/workers", "/actions", "/act", f"{path}?did=nothing&act=cancel"):
        site.get(each)
    assert site.log() == []
    assert list(site.ledger.facts.commands("owner-1")) == []


@ONE
def test_while_the_ledger_is_away_an_action_names_the_reason(
    site: Site, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.job("k-1", interrupt)
    form = site.form(site.job_path("k-1"), "cancel")

    def away(*_: object) -> None:
        raise LedgerUnavailable("Expected an answer, got none: postgresql://app:hunter2@db/x")

    with monkeypatch.context() as patch:
        patch.setattr(site.ledger, "cancel", away)
        answered = site.post(form)
    assert site.result(answered.headers["location"]) == "Expected an answer, got none: postgresql://app:***@db/x"


@ONE
def test_an_error_of_an_action_is_a_result_and_a_line_of_the_log(
    site: Site, queues: Queues, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queues.job("k-1", interrupt)
    form = site.form(site.job_path("k-1"), "cancel")

    def fails(*_: object) -> None:
        raise ZeroDivisionError("password=hunter2")

    with monkeypatch.context() as patch:
        patch.setattr(site.ledger, "cancel", fails)
        answered = site.post(form)
    assert "This is an error in SteadyWorker" in site.result(answered.headers["location"])
    assert "ZeroDivisionError: password=***" in caplog.text
    assert "content-security-policy" in answered.headers


# --- Many jobs ------------------------------------------------------------------------------------------------------------


def ended(site: Site, where: str, eventually: Eventually) -> str:
    """Return the result of an action on many jobs when it has ended."""

    def result() -> list[str]:
        return re.findall('<p class="banner [a-z]+" role="status">(.*?)</p>', site.get(where).text)

    eventually(result)
    (text,) = result()
    return html.unescape(re.sub("<[^>]+>", "", text))


def many(site: Site, where: str, do: str, eventually: Eventually, **fields: str) -> str:
    """Use a form of a choice, and return the result."""
    answered = site.post(site.form(where, f"{do}-all"), **fields)
    assert answered.headers["location"].startswith("/doing/")
    return ended(site, answered.headers["location"], eventually)


def group(site: Site) -> str:
    """Return the address of the choice of the only group of failures."""
    (link,) = re.findall(r'href="(/choose\?[^"]*cause=[^"]*)"', site.get("/failures").text)
    return site.choose(html.unescape(link))


def doing_of(site: Site) -> Doing:
    (act,) = (route for route in site.app.routes if isinstance(route, Route) and route.name == "act")
    endpoint: Any = act.endpoint
    doing: Doing = endpoint.__self__._doing
    return doing


def test_a_group_is_replayed_and_later_failures_stay(site: Site, queues: Queues, eventually: Eventually) -> None:
    for number in range(3):
        queues.dead(f"k-{number}")
    where = group(site)
    queues.dead("later")
    assert many(site, where, "replay", eventually) == "3 of 3 jobs replayed."
    assert {each.headers["sw-round"] for each in queues.received("exports", 3)} == {"1"}
    assert site.row("later").job_state is JobState.DEAD
    ((person, what, queue, keys, detail),) = site.log()
    assert (person, what, queue, sorted(keys), detail) == (WHO, "replay", "exports", ["k-0", "k-1", "k-2"], "")


@ONE
def test_a_group_whose_names_are_long_is_replayed(site: Site, queues: Queues, eventually: Eventually) -> None:
    """The form names the choice, so no name of an error, a place or a text is too long for it."""
    queues.dead("k-1")
    where = site.choose(f"/choose?state=failed&text={'k-1'}&kind=ValueError")
    assert many(site, where, "replay", eventually) == "1 of 1 job replayed."
    long = site.choose(f"/choose?queue=exports&kind={'x' * 900}&text={'y' * 900}")
    assert "No job fits" in site.get(long).words


ACTIONS_ON_MANY: dict[str, tuple[Callable[[Ledger, Row], object], str, dict[str, str], str]] = {
    "cancel": (interrupt, "cancelled", {"reason": "wrong month"}, "wrong month"),
    "retry": (wait_for_retry(3600.0), "sent again", {}, ""),
    "reschedule": (wait_for_retry(60.0), "rescheduled", {"delay": "2h"}, "in 7200 s"),
}


@pytest.mark.parametrize("do", ACTIONS_ON_MANY)
def test_many_unfinished_jobs(site: Site, queues: Queues, eventually: Eventually, do: str) -> None:
    then, done, fields, detail = ACTIONS_ON_MANY[do]
    for number in range(3):
        queues.job(f"k-{number}", then)
    where = site.choose("/choose?queue=exports")
    assert many(site, where, do, eventually, **fields) == f"3 of 3 jobs {done}."
    ((person, what, _, keys, got),) = site.log()
    assert (person, what, sorted(keys), got) == (WHO, do, ["k-0", "k-1", "k-2"], detail)
    rows = [site.row(f"k-{number}") for number in range(3)]
    if do == "cancel":
        assert {row.cancel_reason for row in rows} == {"wrong month"}
        assert many(site, site.choose("/choose"), "undo", eventually) == "3 of 3 jobs no longer cancelled."
        assert [what for _, what, *_ in site.log()] == ["undo cancel", "cancel"]
    elif do == "retry":
        assert sorted(each.headers[KEY] for each in queues.received("exports", 3)) == ["k-0", "k-1", "k-2"]
    else:
        assert all(7190 < row.due_in <= 7200 for row in rows)


@pytest.mark.parametrize(("do", "checkpoint"), [("replay", b"7"), ("restart", None)])
def test_many_dead_jobs_are_replayed_later(
    site: Site, queues: Queues, eventually: Eventually, do: str, checkpoint: bytes | None
) -> None:
    for number in range(3):
        queues.dead(f"k-{number}")
    many(site, site.choose("/choose?state=dead"), do, eventually, delay="1h")
    for number in range(3):
        row = site.ledger.read(JobId(site.namespace, "exports", f"k-{number}", 1))
        assert row is not None
        assert row.checkpoint == checkpoint
        assert 3590 < row.due_in <= 3600
    ((_, what, _, _, detail),) = site.log()
    assert (what, detail) == ("replay", "in 3600 s" if do == "replay" else "in 3600 s; from the start")


def test_many_dead_jobs_are_dropped(site: Site, queues: Queues, eventually: Eventually) -> None:
    for number in range(3):
        queues.dead(f"k-{number}")
    assert many(site, site.choose("/choose?state=dead"), "drop", eventually) == "3 of 3 jobs dropped."
    assert "No job has failed" in site.get("/failures").words
    assert [(each.what, each.count) for each in site.ledger.facts.actions()] == [("drop", 3)]


@ONE
@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("", ["dead", "waiting"]),
        ("queue=exports", ["dead", "waiting"]),
        ("queue=other", []),
        ("broker=other", []),
        ("state=dead", ["dead"]),
        ("state=retrying", ["waiting"]),
        ("state=failed", ["dead", "waiting"]),
        ("state=nonsense", ["dead", "waiting"]),
        ("kind=ValueError", ["dead"]),
        ("kind=builtins.ValueError", ["dead"]),
        ("kind=KeyError", []),
        ("text=merchant", ["dead"]),
        ("when=hour", ["dead", "waiting"]),
        ("when=yesterday", []),
        ("cause=nothing", []),
    ],
)
def test_a_choice_has_the_jobs_that_fit(site: Site, queues: Queues, query: str, keys: list[str]) -> None:
    queues.dead("dead")
    queues.job("waiting", wait_for_retry(3600.0))
    queues.job("done", lambda ledger, row: ledger.done(row.token))
    site.clock.advance(max(0.0, site.row("dead").created_at + 1.0 - site.clock.wall()))
    name = site.choose(f"/choose?{query}").rpartition("/")[2]
    choice = doing_of(site).choice(name)
    assert choice is not None
    assert sorted(job.id.key for job in choice.jobs) == keys


@ONE
def test_what_has_changed_since_the_choice_is_left_out_and_counted(
    site: Site, queues: Queues, eventually: Eventually
) -> None:
    for number in range(4):
        queues.dead(f"k-{number}")
    queues.job("later", wait_for_retry(3600.0))
    where = site.choose("/choose")
    site.do(site.job_path("k-1"), "replay")
    site.do(site.job_path("k-2"), "drop")
    assert many(site, where, "replay", eventually) == "2 of 4 jobs replayed; 2 jobs had changed before."
    assert site.ledger.reschedule(site.row("later"), 7200.0, 7200.0)
    assert many(site, where, "retry", eventually) == "0 of 1 job sent again; 1 job had changed before."
    log = [(each.what, each.count, each.detail) for each in site.ledger.facts.actions()]
    assert log[:2] == [("retry", 0, "0 of 1 job; 1 had changed"), ("replay", 2, "2 of 4 jobs; 2 had changed")]
    assert sorted(each.headers[KEY] for each in queues.received("exports", 3)) == ["k-0", "k-1", "k-3"]


@ONE
def test_a_large_choice_needs_its_number(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.forms.MOST_UNTYPED", 1)
    monkeypatch.setattr("steadyworker.dashboard.doing.MOST_UNTYPED", 1)
    queues.dead("k-1")
    queues.dead("k-2")
    where = site.choose("/choose?state=dead")
    assert "Type 2 to confirm the number." in site.get(where).words
    form = site.form(where, "replay-all")
    for number in ("", "3", "2x"):
        refused = site.result(site.post(form, number=number).headers["location"])
        assert refused == f"Nothing was done. Expected the number 2, got {number!r}."
    assert site.log() == []
    assert many(site, where, "replay", eventually, number="2") == "2 of 2 jobs replayed."


@ONE
@pytest.mark.parametrize("do", ["replay", "drop"])
def test_a_stop_ends_an_action_after_its_present_letter_and_logs_it(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, do: str
) -> None:
    for number in range(5):
        queues.dead(f"k-{number}")
    name = "begin_round" if do == "replay" else "forget"
    change, changed, stops = getattr(DeadJobs, name), list[int](), list[threading.Thread]()
    doing = doing_of(site)

    def stop(self: DeadJobs, *arguments: Any, **options: Any) -> Any:
        changed.append(1)
        if len(changed) == 3:
            stops.append(threading.Thread(target=doing.bulk.close))
            stops[0].start()
            eventually(lambda: doing.bulk.under_way()[0].stop)
        return change(self, *arguments, **options)

    monkeypatch.setattr(DeadJobs, name, stop)
    where = site.choose("/choose?state=dead")
    done = {"replay": "replayed", "drop": "dropped"}[do]
    text = many(site, where, do, eventually)
    stops[0].join(10)
    assert text == f"3 of 5 jobs {done}. Stopped with the page's process. 2 jobs are as before."
    log = [(each.what, each.count, each.detail) for each in site.ledger.facts.actions()]
    assert log == [(do, 3, "3 of 5 jobs; stopped with the page's process")]


@ONE
def test_a_person_sees_how_far_an_action_came_and_stops_it(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address survives a reload; the stop is a form with a seal, too, and the same choice goes on with the rest."""
    for number in range(4):
        queues.dead(f"k-{number}")
    begin, goes_on, begun = DeadJobs.begin_round, threading.Event(), list[int]()

    def slow(self: DeadJobs, *arguments: Any, **options: Any) -> bool:
        begun.append(1)
        if len(begun) == 2:
            assert goes_on.wait(30)
        return begin(self, *arguments, **options)

    where = site.choose("/choose?state=dead")
    with monkeypatch.context() as patch:
        patch.setattr(DeadJobs, "begin_round", slow)
        address = site.post(site.form(where, "replay-all")).headers["location"]
        try:
            eventually(lambda: len(begun) == 2)
            for _ in range(2):
                words = site.get(address).words
                assert "1 of 4 jobs replayed" in words
                assert re.search(r"The present job is k-\d", words)
            assert "1 of 4 jobs replayed" in site.get("/actions").words
            second = site.result(site.post(site.form(where, "drop-all")).headers["location"])
            assert second == "Nothing was done: another action on many jobs goes on. Wait for its end."
            assert site.post("stop x y").headers["location"].startswith("/doing/x?did=")
            stopped = site.post(site.form(address, "stop"))
            assert site.result(stopped.headers["location"]) == "This stops after its present job."
            assert "It stops after its present job" in site.get(address).words
        finally:
            goes_on.set()
        text = ended(site, address, eventually)
    assert text == f"2 of 4 jobs replayed. Stopped by {WHO}. 2 jobs are as before."
    ((_, what, _, _, detail),) = site.log()
    assert (what, detail) == ("replay", f"2 of 4 jobs; stopped by {WHO}")
    assert many(site, where, "replay", eventually) == "2 of 4 jobs replayed; 2 jobs had changed before."
    keys = [each.headers[KEY] for each in queues.received("exports", 4)]
    assert sorted(keys) == [f"k-{number}" for number in range(4)]


def test_an_action_goes_on_when_the_ledger_is_back(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is lost, and none is there twice; the log has one entry."""
    monkeypatch.setattr("steadyworker.dashboard.bulk.WAITS", (0.01, 0.01))
    for number in range(5):
        queues.dead(f"k-{number}")
    begin, begun = DeadJobs.begin_round, list[int]()

    def cut(self: DeadJobs, *arguments: Any, **options: Any) -> bool:
        begun.append(1)
        if len(begun) == 3:
            raise LedgerUnavailable("Expected an answer, got none")
        return begin(self, *arguments, **options)

    monkeypatch.setattr(DeadJobs, "begin_round", cut)
    assert many(site, group(site), "replay", eventually) == "5 of 5 jobs replayed."
    assert [(each.what, each.count) for each in site.ledger.facts.actions()] == [("replay", 5)]
    keys = [each.headers[KEY] for each in queues.received("exports", 5)]
    assert sorted(keys) == [f"k-{number}" for number in range(5)]


@ONE
def test_an_action_that_ends_early_shows_how_far_it_came(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt, by the same choice, replays the others."""
    monkeypatch.setattr("steadyworker.dashboard.bulk.WAITS", (0.01,))
    for number in range(5):
        queues.dead(f"k-{number}")
    begin, begun = DeadJobs.begin_round, list[int]()

    def cut(self: DeadJobs, *arguments: Any, **options: Any) -> bool:
        begun.append(1)
        if len(begun) >= 3:
            raise LedgerUnavailable("Expected an answer, got none: postgresql://app:hunter2@db/x")
        return begin(self, *arguments, **options)

    where = group(site)
    with monkeypatch.context() as patch:
        patch.setattr(DeadJobs, "begin_round", cut)
        text = many(site, where, "replay", eventually)
    cause = "Expected an answer, got none: postgresql://app:***@db/x"
    unknown = "Of these, k-2 may be replayed: a next attempt is safe."
    assert text == f"2 of 5 jobs replayed. Then: {cause}. 3 jobs are as before. {unknown}"
    ((_, what, _, _, detail),) = site.log()
    assert (what, detail) == ("replay", f"2 of 5 jobs; result unknown: k-2; {cause}")
    rest = many(site, where, "replay", eventually)
    assert rest == "3 of 5 jobs replayed; 2 jobs had changed before."
    keys = [each.headers[KEY] for each in queues.received("exports", 5)]
    assert sorted(keys) == [f"k-{number}" for number in range(5)]


@ONE
def test_an_error_in_an_action_on_many_jobs_is_in_both_logs(
    site: Site,
    queues: Queues,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(4):
        queues.dead(f"k-{number}")
    begin, begun = DeadJobs.begin_round, list[int]()

    def fails(self: DeadJobs, *arguments: Any, **options: Any) -> bool:
        begun.append(1)
        if len(begun) == 3:
            raise ZeroDivisionError("password=hunter2")
        return begin(self, *arguments, **options)

    where = site.choose("/choose?state=dead")
    with monkeypatch.context() as patch:
        patch.setattr(DeadJobs, "begin_round", fails)
        text = many(site, where, "replay", eventually)
    error = "This is an error in SteadyWorker: the page's log has its traceback."
    assert text.startswith(f"2 of 4 jobs replayed. Then: {error} 2 jobs are as before. Of these, k-2 may be")
    ((_, what, _, _, detail),) = site.log()
    assert (what, detail) == ("replay", f"2 of 4 jobs; result unknown: k-2; {error}")
    assert "ZeroDivisionError: password=***" in caplog.text
    assert many(site, where, "replay", eventually) == "2 of 4 jobs replayed; 2 jobs had changed before."


@ONE
def test_jobs_that_cannot_change_are_counted_and_named(site: Site, queues: Queues, eventually: Eventually) -> None:
    queues.job("kept", interrupt)
    queues.job("lost", interrupt, keep=False)
    where = site.choose("/choose")
    address = site.post(site.form(where, "retry-all")).headers["location"]
    assert ended(site, address, eventually) == "1 of 2 jobs sent again; 1 job could not change."
    assert "lost has no message in the ledger: send the same message again" in site.get(address).words
    assert [detail for *_, detail in site.log()] == ["1 of 2 jobs; 1 could not change"]


@ONE
def test_an_action_that_takes_long_shows_its_result_later(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends a request after 30 s; an action that takes longer keeps its address and its result."""
    monkeypatch.setattr("steadyworker.dashboard.application.PROMPT", 0.2)
    queues.job("k-1", interrupt)
    cancel, goes_on = site.ledger.cancel, threading.Event()

    def slow(*arguments: Any) -> Any:
        assert goes_on.wait(30)
        return cancel(*arguments)

    monkeypatch.setattr(site.ledger, "cancel", slow)
    try:
        where = site.post(site.form(site.job_path("k-1"), "cancel")).headers["location"]
        assert site.result(where).startswith("This goes on")
    finally:
        goes_on.set()
    eventually(lambda: not site.result(where).startswith("This goes on"))
    assert site.result(where) == "k-1 is cancelled (it was interrupted): it will not run again."
    assert len(site.log()) == 1


@ONE
@pytest.mark.processes
def test_a_stopped_page_ends_an_action_after_its_present_letter(
    options: Options, queues: Queues, tmp_path: Path, eventually: Eventually
) -> None:
    """SIGTERM in the middle: the log has how far it came, and the other letters are still there."""
    count = 3_000  # a page replays them in seconds, and stops within milliseconds
    queues.dead("k-0")
    with Connections(options) as links:
        namespace = links.namespace(QUEUE)
        for number in range(1, count):
            links.adapter(QUEUE).publish(died(links.ledger(), JobId(namespace, "exports", f"k-{number}", 0)))
    token = tmp_path / "token"
    token.write_text("a-token-of-many-characters")
    token.chmod(0o600)
    command = [sys.executable, "-m", "steadyworker", "dashboard", "--port", "0", "--allow-actions"]
    given = {**os.environ, "STEADYWORKER_STATE_DIR": options.state_dir or ""}
    page = subprocess.Popen([*command, "--token-file", str(token)], stdout=subprocess.PIPE, text=True, env=given)
    try:
        assert page.stdout is not None
        (url,) = re.findall(r"http://[^/]+", page.stdout.readline())

        def ask(method: str, path: str, **fields: str) -> tuple[str, str]:
            """Return the text and the location of a response."""
            with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
                headers = {"Authorization": "Bearer a-token-of-many-characters", "Origin": url}
                kind = {"Content-Type": "application/x-www-form-urlencoded"} if fields else {}
                connection.request(method, path, urlencode(fields) if fields else None, {**headers, **kind})
                answered = connection.getresponse()
                return answered.read().decode(), answered.headers.get("location", "")

        _, where = ask("GET", "/choose?state=dead")
        (act,) = re.findall('value="(replay-all [^"]*)"', ask("GET", where)[0])
        _, address = ask("POST", "/act", act=act, number=str(count))
        eventually(lambda: "<h1>0 of" not in ask("GET", address)[0])
        page.terminate()
        page.communicate(timeout=30)
    finally:
        page.kill()
        page.communicate()
    with closing(open_ledger(options)) as ledger:
        left = [row for row, _ in ledger.jobs(JobFilter(queue="exports", states=(State.DEAD,), last=True))]
        ((who_did, what, done, detail),) = [(e.who, e.what, e.count, e.detail) for e in ledger.facts.actions()]
    assert 0 < done < count
    assert (who_did, what) == (WHO, "replay")
    assert detail == f"{done} of {count:,} jobs; stopped with the page's process"
    with Connections(options) as links:
        letters = LetterActions(links, QUEUE).opened().letters(bodies=False)
    assert (len(left), len(letters)) == (count - done, count - done)


# --- Hostile forms --------------------------------------------------------------------------------------------------------


@ONE
def test_another_site_cannot_replace_the_choices_of_people(site: Site, queues: Queues) -> None:
    queues.dead("k-1")
    site.headers = {"sec_fetch_site": "cross-site"}
    assert site.get("/choose").status == 403
    for value in ("same-origin", "none", "same-site"):
        site.headers = {"sec_fetch_site": value}
        assert site.get("/choose").status == 303


@ONE
def test_the_choices_that_are_kept_have_a_limit(site: Site, queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steadyworker.dashboard.chosen.MOST_KEPT", 4)
    monkeypatch.setattr("steadyworker.dashboard.chosen.MOST_CHOSEN", 1)
    queues.dead("k-1")
    queues.dead("k-2")
    first, second, third = (site.choose("/choose") for _ in range(3))
    assert "This choice is not kept any more" in site.get(first).words
    for where in (second, third):
        assert "More jobs fit. These are the newest 1" in site.get(where).words
    assert site.post(f"drop-all {first.rpartition('/')[2]} x").status == 303
    assert site.log() == []


@ONE
def test_the_choice_of_another_person_needs_a_form_of_ones_own(
    options: Options, queues: Queues, eventually: Eventually
) -> None:
    with closing(open_ledger(options)) as ledger:
        site = Site(options, ledger, user_header="X-User")
        site.headers = {"x_user": "ann"}
        queues.dead("k-1")
        where = site.choose("/choose?state=dead")
        form = site.form(where, "drop-all")
        site.headers = {"x_user": "eve"}
        assert site.result(site.post(form).headers["location"]).startswith("Nothing was done")
        assert site.log() == []
        assert many(site, where, "replay", eventually) == "1 of 1 job replayed."
        assert [person for person, *_ in site.log()] == ["eve from this machine"]


@ONE
def test_a_form_of_a_choice_serves_once(site: Site, queues: Queues, eventually: Eventually) -> None:
    queues.dead("k-1")
    where = site.choose("/choose?state=dead")
    replay, drop = site.form(where, "replay-all"), site.form(where, "drop-all")
    ended(site, site.post(replay).headers["location"], eventually)
    for form in (replay, drop, replay.replace("replay", "restart"), drop.replace("-all ", "-all x")):
        again = site.post(form)
        assert site.result(again.headers["location"]).startswith("Nothing was done") or "x" in again.headers["location"]
    assert len(site.log()) == 1
    assert site.post(replay, origin="https://evil.example").status == 403
    assert len(queues.received("exports", 1)) == 1


@ONE
def test_hostile_texts_are_never_markup_in_a_choice_and_its_action(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise LedgerUnavailable(f"{MARKUP} password=hunter2")

    monkeypatch.setattr("steadyworker.dashboard.bulk.WAITS", ())
    queues.job(MARKUP, interrupt)
    where = site.choose(f"/choose?{urlencode({'text': MARKUP[:40]})}")
    pages = [where, site.choose(f"/choose?{urlencode({'queue': MARKUP, 'kind': MARKUP, 'cause': MARKUP})}")]
    form = site.form(where, "cancel-all")
    with monkeypatch.context() as patch:
        patch.setattr(site.ledger, "cancel", fails)
        pages.append(site.post(form, reason=MARKUP).headers["location"])
        assert "Then:" in ended(site, pages[-1], eventually)
    refused = site.post(site.form(where, "cancel-all"), number=MARKUP, delay=MARKUP)
    for page in (*pages, "/actions", refused.headers["location"]):
        text = site.get(page).text
        assert "<img" not in text
        assert "hunter2" not in text


@ONE
def test_many_forms_at_once_act_once(site: Site, queues: Queues, eventually: Eventually) -> None:
    """Two hundred copies of one form, on a server: one cancels, and each other one changes nothing."""
    queues.job("k-1", interrupt)
    body = urlencode({"act": site.form(site.job_path("k-1"), "cancel"), "reason": "once"}).encode()
    with served(site.app) as url, ThreadPoolExecutor(20) as pool:
        host = urlsplit(url).netloc

        def post(_: int) -> int:
            with closing(http.client.HTTPConnection(host, timeout=60)) as connection:
                headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": url}
                connection.request("POST", "/act", body, headers)
                return connection.getresponse().status

        assert set(pool.map(post, range(200))) == {303}
        large = b"act=" + b"x" * (1 << 20)
        with closing(socket.create_connection((host.partition(":")[0], int(host.rpartition(":")[2])))) as client:
            head = f"POST /act HTTP/1.1\r\nHost: {host}\r\nOrigin: {url}\r\nContent-Length: {len(large)}\r\n"
            client.sendall(f"{head}Content-Type: application/x-www-form-urlencoded\r\n\r\n".encode() + large[:65536])
            assert client.recv(100).startswith(b"HTTP/1.1 400")
    with closing(open_ledger(site.options)) as ledger:
        assert [(each.what, each.count, each.detail) for each in ledger.facts.actions()] == [("cancel", 1, "once")]


@ONE
def test_a_client_that_leaves_in_its_form_is_no_error(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    messages = iter([{"type": "http.request", "body": b"act=", "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []
    headers = {
        "host": "localhost",
        "origin": PAGE.replace(":8080", ""),
        "content-type": "application/x-www-form-urlencoded",
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/act",
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(site.app(scope, receive, send))
    assert sent[0]["status"] == 400
    assert caplog.text == ""
