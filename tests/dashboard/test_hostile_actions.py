"""The actions of the page under hostile conditions: letters of other senders, brokers that change, ledgers that go away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from steadyworker import Job, Worker
from steadyworker.actions.deadletters import DeadLetterQueue
from steadyworker.actions.letters import LetterActions
from steadyworker.adapter import OutgoingMessage, Target
from steadyworker.backends import connections
from steadyworker.backends.connections import Connections, job_queue
from steadyworker.backends.opening import namespace_of, open_ledger
from steadyworker.config.resolve import Options, load
from steadyworker.dashboard import app
from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.bulk import BulkOrder
from steadyworker.delivery import KEY, Delivery
from steadyworker.errors import BrokerUnavailable, ConfigError, LedgerUnavailable, SteadyWorkerError, Unsettled
from steadyworker.ledger.base import JobFilter, JobId, KeptMessage, Row, State
from steadyworker.ledger.facts import Action
from steadyworker.runner.dead_jobs import DeadJobs
from steadyworker.runner.letters import DeadLetter
from steadyworker.runner.planning import again
from tests.cli.kit import BODY, Queues
from tests.cli.test_retry import interrupt
from tests.conftest import Eventually
from tests.dashboard.kit import request
from tests.dashboard.test_forms import ONE, Site, doing_of, ended, many, queues, register, site
from tests.support.ledgers import make_ledger

__all__ = ["queues", "site"]

OTHER = b'{"merchant": "of another sender"}'


@pytest.fixture
def options(tmp_path: Path) -> Options:
    made = load({"state_dir": str(tmp_path / "state")}, {}, tmp_path)
    make_ledger(made)
    return made


def broker_letter(site: Site, body: bytes = OTHER) -> None:
    """Publish a letter with the key of k-1, as a broker moves a message that it has delivered too often."""
    with Connections(site.options) as links:
        links.adapter(job_queue("exports", site.options)).publish(
            OutgoingMessage(Target.DEAD, body, {KEY: "k-1"}, message_id="k-1")
        )


def letters(site: Site) -> list[tuple[str, int, bytes]]:
    with Connections(site.options) as links:
        found: DeadLetterQueue = LetterActions(links, job_queue("exports", site.options)).opened()
        return [(letter.key, letter.round, letter.body) for letter in found.letters()]


def jobs(site: Site, *states: State) -> list[tuple[str, int]]:
    return sorted((row.id.key, row.id.round) for row, _ in site.ledger.jobs(JobFilter(queue="exports", states=states)))


# --- Letters of other senders ---------------------------------------------------------------------------------------------


def dead_with_letter_of_other(site: Site, queues: Queues, first: str) -> None:
    queues.job("bind")
    if first == "theirs":
        broker_letter(site)
    queues.dead("k-1")
    if first == "ours":
        broker_letter(site)


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_drop_leaves_the_letter_of_the_broker_with_another_body(site: Site, queues: Queues, first: str) -> None:
    """The letter is the only copy of another sender's message."""
    dead_with_letter_of_other(site, queues, first)
    assert site.do(site.job_path("k-1"), "drop") == "k-1 is dropped: its dead letter and its record are deleted."
    assert letters(site) == [("k-1", 0, OTHER)]
    assert jobs(site, State.DEAD) == []


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_replay_sends_the_body_of_the_dead_job(site: Site, queues: Queues, first: str) -> None:
    """The checkpoint of the dead job belongs to its own payload."""
    dead_with_letter_of_other(site, queues, first)
    site.do(site.job_path("k-1"), "replay")
    assert [delivery.body for delivery in queues.received("exports", 1)] == [BODY]
    assert letters(site) == [("k-1", 0, OTHER)]


@pytest.mark.parametrize("do", ["replay", "drop"])
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_many_dead_jobs_and_a_letter_of_another_body(
    site: Site, queues: Queues, eventually: Eventually, do: str, first: str
) -> None:
    dead_with_letter_of_other(site, queues, first)
    queues.dead("k-2")
    text = many(site, site.choose("/choose?state=dead"), do, eventually)
    assert text == f"2 of 2 jobs {'replayed' if do == 'replay' else 'dropped'}."
    assert letters(site) == [("k-1", 0, OTHER)]


def test_a_drop_of_all_letters_keeps_the_job_whose_key_a_letter_has(site: Site, queues: Queues) -> None:
    """The job's own letter is gone; the other letter does not stand for it, and does not hide it."""
    queues.job("bind")
    queues.dead("k-1", copies=0)
    broker_letter(site)
    with Connections(site.options) as links:
        actions = LetterActions(links, job_queue("exports", site.options))
        assert len(actions.drop(actions.opened()).changed) == 1
    assert jobs(site, State.DEAD) == [("k-1", 0)]


def test_the_message_of_a_dead_job_is_replayed_although_only_the_letter_of_another_is_there(
    site: Site, queues: Queues
) -> None:
    queues.job("bind")
    queues.dead("k-1", copies=0)
    broker_letter(site)
    site.do(site.job_path("k-1"), "replay")
    assert [delivery.body for delivery in queues.received("exports", 1)] == [BODY]
    assert letters(site) == [("k-1", 0, OTHER)]


def test_a_replay_of_all_gives_the_letter_of_another_body_a_key_of_its_own(site: Site, queues: Queues) -> None:
    dead_with_letter_of_other(site, queues, "ours")
    with Connections(site.options) as links:
        actions = LetterActions(links, job_queue("exports", site.options))
        actions.replay(actions.opened())
    sent = {delivery.headers[KEY]: delivery.body for delivery in queues.received("exports", 2)}
    assert sent.pop("k-1") == BODY
    ((key, body),) = sent.items()
    assert (key[:4], body) == ("k-1.", OTHER)


# --- A Worker of the command line -----------------------------------------------------------------------------------------


class Exports(Worker[bytes]):
    """A Worker whose dead letters and keys are where only the Worker names them."""

    queue = "exports"
    time_limit = None
    dead_letter_queue = "payments.failed"
    key_header = "x-order"

    def handle(self, job: Job[bytes]) -> None:
        """Done at once."""


def letters_of(options: Options, worker: type[Exports]) -> list[str]:
    with Connections(options) as links:
        opened = LetterActions(links, job_queue(worker, options)).opened()
        return [letter.key for letter in opened.letters()]


@pytest.mark.parametrize("how", ["one", "many"])
@pytest.mark.parametrize("do", ["drop", "replay"])
def test_an_action_uses_the_dead_letter_queue_of_the_worker(
    options: Options, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, do: str, how: str
) -> None:
    named = job_queue(Exports, options)
    monkeypatch.setattr("tests.cli.kit._EXPORTS", named)
    queues.dead("k-1")
    with closing(open_ledger(options)) as ledger:
        site = Site(options, ledger, named={"exports": named})
        if how == "many":
            many(site, site.choose("/choose?state=dead"), do, eventually)
        else:
            site.do(site.job_path("k-1"), do)
    assert letters_of(options, Exports) == []


@ONE
def test_an_action_of_a_mounted_page_uses_the_dead_letter_queue_of_the_worker(
    options: Options, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cli.kit._EXPORTS", job_queue(Exports, options))
    queues.dead("k-1")
    with closing(open_ledger(options)) as ledger:
        site = Site(options, ledger)
        settings: dict[str, Any] = {"ledger": options.ledger, "broker": options.broker, "behind_login": True}
        site.app = app(**settings, allow_actions=True, workers=[Exports])
        assert site.do(site.job_path("k-1"), "drop") == "k-1 is dropped: its dead letter and its record are deleted."
    assert letters_of(options, Exports) == []


def test_an_action_uses_the_key_header_of_the_worker(
    options: Options, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = job_queue(Exports, options)
    monkeypatch.setattr("tests.cli.kit._EXPORTS", named)
    queues.dead("k-1", copies=0)
    with Connections(options) as links:
        links.adapter(named).publish(OutgoingMessage(Target.DEAD, BODY, {"x-order": "k-1"}))
    with closing(open_ledger(options)) as ledger:
        site = Site(options, ledger, named={"exports": named})
        site.do(site.job_path("k-1"), "drop")
    assert letters_of(options, Exports) == []


# --- Outages --------------------------------------------------------------------------------------------------------------


def test_after_an_outage_an_action_on_many_jobs_checks_the_broker_again(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.bulk.WAITS", (0.01, 0.01))
    for number in range(3):
        queues.job(f"k-{number}", interrupt)
    where = site.choose("/choose")
    found, swapped = namespace_of, list[str]()

    def namespace(*arguments: Any, **options: Any) -> str:
        return "another-broker" if swapped else found(*arguments, **options)

    def cut(row: Row, kept: KeptMessage) -> OutgoingMessage:
        if row.id.key == "k-1":
            swapped.append("")
            raise BrokerUnavailable("Expected a connection, got a reset")
        return again(row, kept)

    monkeypatch.setattr(connections, "namespace_of", namespace)
    monkeypatch.setattr("steadyworker.actions.jobs.again", cut)
    text = many(site, where, "retry", eventually)
    assert text.startswith("1 of 3 jobs sent again. Then: Expected the broker of the job, ")
    assert "got 'another-broker'" in text


@contextmanager
def a_ledger_that_forgets_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The ledger goes away between the removal of a letter and the end of its record."""

    def cut(self: DeadJobs, letter: DeadLetter) -> None:
        raise LedgerUnavailable("Expected an answer, got none")

    with monkeypatch.context() as patch:
        patch.setattr(DeadJobs, "forget", cut)
        yield


@pytest.mark.parametrize("keep", [True, False], ids=["message kept", "message not kept"])
def test_the_next_drop_deletes_the_record_that_a_drop_without_ledger_has_left(
    site: Site, queues: Queues, monkeypatch: pytest.MonkeyPatch, *, keep: bool
) -> None:
    queues.dead("k-1", keep=keep)
    path = site.job_path("k-1")
    with a_ledger_that_forgets_nothing(monkeypatch):
        why = "Expected an answer, got none"
        assert site.do(path, "drop") == f"{why}. k-1 may be dropped: a next attempt is safe."
    assert (letters(site), jobs(site, State.DEAD)) == ([], [("k-1", 0)])
    assert site.do(path, "drop") == "k-1 is dropped: its dead letter and its record are deleted."
    assert jobs(site, State.DEAD) == []
    assert [(what, keys, detail) for _, what, _, keys, detail in site.log()] == [
        ("drop", ("k-1",), ""),
        ("drop", ("k-1",), f"result unknown: {why}"),
    ]


@pytest.mark.parametrize("keep", [True, False], ids=["message kept", "message not kept"])
def test_the_next_drop_of_many_deletes_the_records_that_a_drop_without_ledger_has_left(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, *, keep: bool
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.bulk.WAITS", ())
    queues.dead("k-1", keep=keep)
    where = site.choose("/choose?state=dead")
    with a_ledger_that_forgets_nothing(monkeypatch):
        assert "k-1 may be dropped" in many(site, where, "drop", eventually)
    assert (letters(site), jobs(site, State.DEAD)) == ([], [("k-1", 0)])
    assert many(site, where, "drop", eventually) == "1 of 1 job dropped."
    assert jobs(site, State.DEAD) == []


def test_a_drop_of_a_job_whose_letter_is_gone_names_this(site: Site, queues: Queues) -> None:
    """Nothing shows that its letter was removed, and it can be elsewhere; so its record stays."""
    queues.dead("k-1", keep=False)
    with Connections(site.options) as links:
        found: DeadLetterQueue = LetterActions(links, job_queue("exports", site.options)).opened()
        with found._open_letters() as held:
            for delivery in held:
                held.drop(delivery)
    said = site.do(site.job_path("k-1"), "drop")
    assert said.endswith("the job is dead, but its letter is gone, and the ledger has no copy of its message.")
    assert jobs(site, State.DEAD) == [("k-1", 0)]


def test_a_drop_whose_result_is_unknown_leaves_a_new_job_of_the_same_key(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.bulk.WAITS", ())
    queues.dead("k-1")
    where = site.choose("/choose?state=dead")
    forget = DeadJobs.forget

    def cut(self: DeadJobs, letter: DeadLetter) -> None:
        forget(self, letter)
        raise LedgerUnavailable("Expected an answer, got none")

    with monkeypatch.context() as patch:
        patch.setattr(DeadJobs, "forget", cut)
        assert "k-1 may be dropped" in many(site, where, "drop", eventually)
    queues.dead("k-1", OTHER)
    assert many(site, where, "drop", eventually) == "0 of 1 job dropped; 1 job had changed before."
    assert letters(site) == [("k-1", 0, OTHER)]
    assert jobs(site, State.DEAD) == [("k-1", 0)]


def test_an_action_that_cannot_start_its_thread_does_not_block_the_next(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.job("k-1", interrupt)
    where = site.choose("/choose")

    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    act = site.form(where, "cancel-all")
    with monkeypatch.context() as patch:
        patch.setattr("steadyworker.dashboard.bulk.threading.Thread.start", fails)
        doing = doing_of(site)
        choice = doing.choice(where.rpartition("/")[2])
        assert choice is not None
        with pytest.raises(SteadyWorkerError, match="cannot start a thread"):
            doing.bulk.begin(BulkOrder("cancel", "", 0.0, "jo"), choice)
    assert doing.bulk.under_way() == []
    doing.bulk.close()
    assert ended(site, site.post(act).headers["location"], eventually) == "1 of 1 job cancelled."


def away(monkeypatch: pytest.MonkeyPatch, site: Site) -> list[str]:
    """Let the log of actions be away while the returned list has an entry."""
    facts: Any = type(site.ledger.facts)
    act, reasons = facts.act, list[str]()

    def acts(self: Any, action: Action) -> None:
        if reasons:
            raise LedgerUnavailable(reasons[0])
        act(self, action)

    monkeypatch.setattr(facts, "act", acts)
    return reasons


@pytest.mark.parametrize("until", ["the next action", "the end of the process"])
def test_an_entry_that_the_ledger_did_not_get_is_written_later(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.bulk.WAITS", (0.01,))
    for number in range(2):
        queues.dead(f"k-{number}")
    where, reasons = site.choose("/choose?state=dead"), away(monkeypatch, site)
    reasons.append("Expected an answer, got none")
    assert many(site, where, "drop", eventually) == (
        "2 of 2 jobs dropped. The log of actions gets this before the next action, or at the end of this process: "
        "Expected an answer, got none"
    )
    reasons.clear()
    site.clock.advance(60.0)
    if until == "the next action":
        queues.job("k-3", interrupt)
        many(site, site.choose("/choose"), "cancel", eventually)
    else:
        doing_of(site).bulk.close()
    first = site.log()[-1]
    assert (first[1], set(first[3])) == ("drop", {"k-0", "k-1"})
    assert "later" in first[4]


def test_an_entry_is_written_as_soon_as_the_ledger_is_back(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.bulk.WAITS", (0.01,) * 5000)
    queues.dead("k-1")
    where, reasons = site.choose("/choose?state=dead"), away(monkeypatch, site)
    reasons.append("Expected an answer, got none")
    address = site.post(site.form(where, "drop-all")).headers["location"]
    eventually(lambda: "The log of actions waits" in site.get(address).words)
    reasons.clear()
    assert ended(site, address, eventually) == "1 of 1 job dropped."
    assert [what for _, what, *_ in site.log()] == ["drop"]


def test_an_error_in_the_log_of_actions_blocks_no_later_action(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.dead("k-1")
    queues.job("k-2", interrupt)

    def fails(*_: object) -> str:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("steadyworker.dashboard.bulk.QueueActions.record", fails)
        assert "1 of 1 job dropped." in many(site, site.choose("/choose?state=dead"), "drop", eventually)
    assert many(site, site.choose("/choose"), "cancel", eventually) == "1 of 1 job cancelled."


def test_a_job_that_failed_is_not_called_unknown(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.bulk.WAITS", ())
    queues.job("kept", interrupt)
    queues.job("lost", interrupt, keep=False)  # the newest is first
    where = site.choose("/choose")
    last = site.ledger.last_round

    def cut(namespace: str, queue: str, key: str) -> int | None:
        if key == "kept":
            raise LedgerUnavailable("Expected an answer, got none")
        return last(namespace, queue, key)

    monkeypatch.setattr(site.ledger, "last_round", cut)
    text = many(site, where, "retry", eventually)
    assert "1 job could not change" in text
    assert "may be" not in text


def test_a_stop_of_the_process_logs_an_action_whose_job_does_not_end(
    options: Options, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.bulk.LAST_JOB", 0.2)
    goes_on, begun = threading.Event(), list[str]()

    def hangs(row: Row, kept: KeptMessage) -> OutgoingMessage:
        begun.append(row.id.key)
        if len(begun) == 3:
            assert goes_on.wait(30)
        return again(row, kept)

    monkeypatch.setattr("steadyworker.actions.jobs.again", hangs)
    for number in range(5):
        queues.job(f"k-{number}", interrupt)
    with closing(open_ledger(options)) as ledger:
        site = Site(options, ledger)
        site.post(site.form(site.choose("/choose"), "retry-all"))
        eventually(lambda: len(begun) == 3)
        doing_of(site).bulk.close()
        goes_on.set()
        ((_, what, _, keys, detail),) = site.log()
        assert (what, set(keys)) == ("retry", set(begun))
        assert detail == f"2 of 5 jobs; result unknown: {begun[2]}; stopped with the page's process"
        eventually(lambda: doing_of(site).bulk.under_way() == [])
        assert len(site.log()) == 1


# --- Actions on one job ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("do", "done"), [("drop", "dropped"), ("replay", "replayed")])
def test_an_action_whose_result_is_unknown_is_in_the_log(
    site: Site, queues: Queues, monkeypatch: pytest.MonkeyPatch, do: str, done: str
) -> None:
    queues.dead("k-1")
    made = DeadLetterQueue.__init__

    class Cut:
        """The letters of the broker; the answer to a removal is lost."""

        def __init__(self, held: Any) -> None:
            self._held = held
            self.publish = held.publish

        def __iter__(self) -> Iterator[Delivery]:
            return iter(self._held)

        def drop(self, delivery: Delivery) -> None:
            self._held.drop(delivery)
            raise Unsettled("Expected a confirm of the removal, got none")

    def make(self: DeadLetterQueue, open_letters: Any, *arguments: Any, **settings: Any) -> None:
        @contextmanager
        def opened() -> Iterator[Any]:
            with open_letters() as held:
                yield Cut(held)

        made(self, opened, *arguments, **settings)

    monkeypatch.setattr(DeadLetterQueue, "__init__", make)
    path = site.job_path("k-1")
    why = "Expected a confirm of the removal, got none"
    assert site.do(path, do) == f"{why}. k-1 may be {done}: a next attempt is safe."
    assert [(what, keys, detail) for _, what, _, keys, detail in site.log()] == [
        (do, ("k-1",), f"result unknown: {why}")
    ]


class Slow:
    """Cancels that wait for a person, and how many of them are under way."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = threading.Event()
        self.begun: list[str] = []
        cancel = site.ledger.cancel

        def slow(id: JobId, reason: str) -> State | None:
            self.begun.append(id.key)
            assert self.goes_on.wait(30)
            return cancel(id, reason)

        monkeypatch.setattr(site.ledger, "cancel", slow)


def test_only_two_actions_are_under_way_even_if_their_requests_have_ended(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.application.PROMPT", 0.2)
    keys = [f"k-{number}" for number in range(4)]
    for key in keys:
        queues.job(key, interrupt)
    forms = [site.form(site.job_path(key), "cancel") for key in keys]
    slow = Slow(site, monkeypatch)
    try:
        places = [site.post(form).headers["location"] for form in forms]
        assert slow.begun == keys[:2]
        assert [site.result(place).startswith("Nothing was done") for place in places] == [False, False, True, True]
    finally:
        slow.goes_on.set()
    eventually(lambda: len(site.log()) == 2)


@pytest.mark.parametrize("ends", [True, False])
def test_a_stop_of_the_process_waits_for_an_action_on_one_job(
    site: Site, queues: Queues, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    monkeypatch.setattr("steadyworker.dashboard.application.PROMPT", 0.2)
    monkeypatch.setattr("steadyworker.dashboard.doing.LAST_JOB", 30.0 if ends else 0.0)
    queues.job("k-1", interrupt)
    form = site.form(site.job_path("k-1"), "cancel")
    slow = Slow(site, monkeypatch)
    try:
        site.post(form)
        if ends:
            threading.Timer(0.2, slow.goes_on.set).start()
        doing_of(site).close()
        details = [(keys, detail) for *_, keys, detail in site.log()]
        expected = "by an operator" if ends else "by an operator; result unknown: stopped with the page's process"
        assert details == [(("k-1",), expected)]
    finally:
        slow.goes_on.set()
    eventually(lambda: not doing_of(site)._under_way)


def test_a_command_for_a_dead_worker_process_is_refused(
    site: Site, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.job("k-1")
    register(site, "running")
    form = site.form("/workers", "quiet")
    owners = site.ledger.owners
    monkeypatch.setattr(site.ledger, "owners", lambda: [structs.replace(each, dead=True) for each in owners()])
    assert site.result(site.post(form).headers["location"]).startswith("Nothing was done")


# --- Addresses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?queue=a%00", 400),
        ("/failures?text=%00", 400),
        ("/choose?kind=%00", 400),
        ("/job/shop/exports/~00", 404),
    ],
)
def test_an_address_with_a_nul_is_refused(site: Site, path: str, status: int) -> None:
    """PostgreSQL refuses such a text."""
    assert site.get(path).status == status


@pytest.mark.parametrize(
    ("referrer", "status"), [("http://evil.example/", 403), ("http://localhost:8080/failures", 303)]
)
def test_without_fetch_metadata_the_referrer_decides_on_a_choice(
    site: Site, queues: Queues, referrer: str, status: int
) -> None:
    queues.job("k-1")
    assert request(site.app, "/choose", referer=referrer).status == status


def test_a_token_behind_a_login_is_refused() -> None:
    """The page would never check it."""
    with pytest.raises(ConfigError, match="would not check the token"):
        checked_access((), "a-token-of-many-characters", behind_login=True)
