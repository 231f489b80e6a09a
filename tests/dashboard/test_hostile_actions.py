"""The actions of the page under hostile conditions: letters of other senders, brokers that change, ledgers that go away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from steadyworker.actions.deadletters import DeadLetterQueue
from steadyworker.actions.letters import LetterActions
from steadyworker.adapter import OutgoingMessage, Target
from steadyworker.backends.connections import Connections, job_queue
from steadyworker.backends.opening import open_ledger
from steadyworker.config.resolve import Options, load
from steadyworker.delivery import KEY
from steadyworker.ledger.base import JobFilter, State
from tests.cli.kit import BODY, Queues
from tests.conftest import Eventually
from tests.dashboard.test_forms import Site, many
from tests.support.ledgers import make_ledger

OTHER = b'{"merchant": "of another sender"}'


@pytest.fixture
def options(tmp_path: Path) -> Options:
    made = load({"state_dir": str(tmp_path / "state")}, {}, tmp_path)
    make_ledger(made)
    return made


@pytest.fixture
def site(options: Options) -> Iterator[Site]:
    with closing(open_ledger(options)) as ledger:
        yield Site(options, ledger)


@pytest.fixture
def queues(options: Options) -> Queues:
    return Queues(options)


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
