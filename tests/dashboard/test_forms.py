"""The actions of the page: what each does, who did it, and which requests change nothing."""

from __future__ import annotations

import hashlib
import html
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.routing import Route

from steadyworker.backends.opening import open_ledger
from steadyworker.config.resolve import Options, load
from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.addresses import job_path
from steadyworker.dashboard.application import application
from steadyworker.dashboard.doing import Doing
from steadyworker.delivery import KEY
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Began, Claimed, JobId, KeptMessage, Ledger, Moving, Row, Verdict
from steadyworker.ledger.facts import OwnerReport, QueueReport
from steadyworker.ledger.lease import registered_name
from steadyworker.outcome import Counters, JobState
from steadyworker.runner.dead_jobs import DeadJobs
from steadyworker.system.person import who
from steadyworker.testing.clock import FakeClock
from tests.cli.kit import Queues
from tests.cli.test_retry import interrupt, wait_for_retry
from tests.conftest import Eventually
from tests.dashboard.fleet_of_facts import MARKUP
from tests.dashboard.kit import Answered, request
from tests.ledger.pgkit import Schemas
from tests.support.ledgers import make_ledger

ONE = pytest.mark.parametrize("options", ["sqlite"], indirect=True)
PAGE = "http://localhost:8080"


class Site:
    """A page with actions, its ledger, and a reader who uses its forms."""

    def __init__(self, options: Options, ledger: Ledger, *, user_header: str | None = None) -> None:
        self.options = options
        self.ledger = ledger
        self.clock = FakeClock()
        peers = ["127.0.0.1"] if user_header else []
        self.app = application(ledger, checked_access((), None, user_header, peers), clock=self.clock, acting=options)
        self.headers: dict[str, Any] = {}

    @property
    def namespace(self) -> str:
        (namespace,) = {name for name, queue in self.ledger.bindings() if queue == "exports"}
        return namespace

    def job_path(self, key: str) -> str:
        return job_path(self.namespace, "exports", key)

    def get(self, path: str) -> Answered:
        self.clock.advance(1.0)  # a page is read again after a second
        return request(self.app, path, **self.headers)

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
    queues.job("k-1")
    path = site.job_path("k-1")
    assert site.do(path, "cancel", reason="wrong month") == "k-1 is running: it receives the cancellation within 2 s."
    assert site.row().cancel_reason == "wrong month"
    assert site.log() == [(who(), "cancel", "exports", ("k-1",), "wrong month")]
    assert 'name="act"' not in site.get(path).text


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
    assert site.do(site.job_path("k-1"), "retry") == "k-1 (retrying): its message is in exports again."
    assert site.row().due_in == 0.0
    (delivery,) = queues.received("exports", 1)
    assert delivery.headers["sw-hop"] == "2"


def test_a_retry_gets_a_new_time(site: Site, queues: Queues) -> None:
    queues.job("k-1", wait_for_retry(60.0))
    path = site.job_path("k-1")
    assert site.do(path, "reschedule", delay="2h") == "k-1 (retrying): due in 2 h 00 min."
    assert 7190 < site.row().due_in <= 7200
    refused = site.do(path, "reschedule", delay="soon")
    assert refused.startswith("Nothing was done. Expected a delay")
    assert 7190 < site.row().due_in <= 7200


@pytest.mark.parametrize(("do", "checkpoint"), [("replay", b"7"), ("restart", None)])
def test_a_dead_job_is_replayed(site: Site, queues: Queues, do: str, checkpoint: bytes | None) -> None:
    queues.dead("k-1")
    path = site.job_path("k-1")
    form = site.form(path, do)
    assert site.do(path, do) == "k-1 is in exports again, in its next round."
    (delivery,) = queues.received("exports", 1)
    assert delivery.headers["sw-round"] == "1"
    row = site.ledger.read(JobId(site.namespace, "exports", "k-1", 1))
    assert row is not None
    assert row.checkpoint == checkpoint
    assert "Nothing was done" in site.result(site.post(form).headers["location"])
    assert [(what, keys) for _, what, _, keys, _ in site.log()] == [("replay", ("k-1",))]


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
    assert site.do(site.job_path("k-1"), do).startswith("k-1 is ")
    (left,) = queues.received("exports.dead", 1)
    assert left.body == b'{"merchant": "m-18"}'


def test_a_queue_is_paused_with_a_reason_and_resumed(site: Site, queues: Queues) -> None:
    queues.job("k-1")
    done = site.do("/queues", "pause", reason="the bank is closed")
    assert done == "exports is paused: its worker processes receive no new message. Jobs that run go on."
    (pause,) = site.ledger.facts.pauses()
    assert (pause.queue, pause.who, pause.reason) == ("exports", who(), "the bank is closed")
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
    assert [(each.name, each.who) for each in site.ledger.facts.commands("owner-1")] == [("resume", who())]
    assert site.log() == [
        (who(), "resume worker", "", (), "host-1:77"),
        (who(), "quiet worker", "", (), "host-1:77"),
    ]


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
        assert [person for person, *_ in site.log()] == ["ann@ops"]


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


# --- What changes nothing -------------------------------------------------------------------------------------------------


@ONE
def test_without_the_flag_no_form_is_drawn_and_a_form_is_refused(site: Site, queues: Queues) -> None:
    queues.job("k-1", interrupt)
    register(site, "running")
    path = site.job_path("k-1")
    form = site.form(path, "cancel")
    site.app = application(site.ledger, checked_access())
    for each in (path, "/queues", "/workers", "/"):
        assert "<form" not in site.get(each).text
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


# --- A group of failures --------------------------------------------------------------------------------------------------


def ended(site: Site, location: str, eventually: Eventually) -> str:
    """Return the result of a replay of a group when it has ended."""
    eventually(lambda: "goes on" not in site.result(location))
    return site.result(location)


def test_a_group_is_replayed_and_later_failures_stay(site: Site, queues: Queues, eventually: Eventually) -> None:
    for number in range(3):
        queues.dead(f"k-{number}")
    assert "Replay 3" in site.get("/failures").words
    form = site.form("/failures", "replay-group")
    queues.dead("later")
    answered = site.post(form)
    assert answered.headers["location"].startswith("/failures?did=")
    result = ended(site, answered.headers["location"], eventually)
    assert result == "3 of 3 jobs replayed: they are in exports again, in their next rounds."
    assert {each.headers["sw-round"] for each in queues.received("exports", 3)} == {"1"}
    assert site.row("later").job_state is JobState.DEAD
    assert [(what, sorted(keys)) for _, what, _, keys, _ in site.log()] == [("replay", ["k-0", "k-1", "k-2"])]
    again = site.post(form)
    assert "Nothing was done" in site.result(again.headers["location"])


@ONE
def test_a_large_group_needs_its_number(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.forms.MOST_UNTYPED", 1)
    monkeypatch.setattr("steadyworker.dashboard.doing.MOST_UNTYPED", 1)
    queues.dead("k-1")
    queues.dead("k-2")
    assert "Type 2 to confirm the number." in site.get("/failures").words
    form = site.form("/failures", "replay-group")
    for number in ("", "3", "2x"):
        refused = site.result(site.post(form, number=number).headers["location"])
        assert refused == f"Nothing was done. Expected the number 2, got {number!r}."
    assert site.log() == []
    result = ended(site, site.post(form, number="2").headers["location"], eventually)
    assert result.startswith("2 of 2 jobs replayed")


@ONE
def test_a_stop_ends_a_replay_after_its_present_letter_and_logs_it(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        queues.dead(f"k-{number}")
    begin, begun, stops = DeadJobs.begin_round, list[int](), list[threading.Thread]()
    (act,) = (route for route in site.app.routes if isinstance(route, Route) and route.name == "act")
    endpoint: Any = act.endpoint
    doing: Doing = endpoint.__self__._doing

    def stop(self: DeadJobs, *arguments: Any, **options: Any) -> bool:
        begun.append(1)
        if len(begun) == 3:
            stops.append(threading.Thread(target=doing.close))
            stops[0].start()
            eventually(doing._stopping.is_set)
        return begin(self, *arguments, **options)

    monkeypatch.setattr(DeadJobs, "begin_round", stop)
    result = ended(site, site.post(site.form("/failures", "replay-group")).headers["location"], eventually)
    stops[0].join(10)
    assert result.startswith("3 of 5 jobs replayed")
    assert [(each.what, each.count) for each in site.ledger.facts.actions()] == [("replay", 3)]


def test_a_replay_that_ends_early_shows_how_far_it_came(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt replays the others; none is lost, and none is there twice."""
    for number in range(5):
        queues.dead(f"k-{number}")
    begin, begun = DeadJobs.begin_round, list[int]()

    def cut(self: DeadJobs, *arguments: Any, **options: Any) -> bool:
        begun.append(1)
        if len(begun) == 3:
            raise LedgerUnavailable("Expected an answer, got none")
        return begin(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(DeadJobs, "begin_round", cut)
        result = ended(site, site.post(site.form("/failures", "replay-group")).headers["location"], eventually)
    assert result.startswith("2 of 5 jobs replayed")
    assert "Then: Expected an answer, got none The others are unchanged" in result
    rest = ended(site, site.post(site.form("/failures", "replay-group")).headers["location"], eventually)
    assert rest.startswith("3 of 3 jobs replayed")
    keys = [each.headers[KEY] for each in queues.received("exports", 5)]
    assert sorted(keys) == [f"k-{number}" for number in range(5)]
