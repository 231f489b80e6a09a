"""A replay of thousands of dead letters on RabbitMQ, whose connections are cut in the middle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pika
import pytest

from steadyworker.actions.deadletters import Replayed
from steadyworker.actions.letters import LetterActions, LetterChoice
from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.backends.opening import namespace_of
from steadyworker.config.resolve import load
from steadyworker.delivery import Delivery, OutgoingMessage
from steadyworker.errors import SteadyWorkerError
from steadyworker.ledger.base import Claimed, JobFilter, JobId, KeptMessage, Ledger, Moving, State, Verdict
from steadyworker.outcome import Counters
from steadyworker.runner.envelope import Envelope
from steadyworker.runner.planning import message_for
from tests.brokers.rabbitmq import Vhost
from tests.faults.proxy import Proxy
from tests.support.ledgers import make_ledger

QUEUE = JobQueue("exports", "exports", None, Any)
BODY = b'{"merchant": "m-17"}'
DIGEST = sha256(BODY).digest()
LOCKED = Verdict(
    Moving.DEAD, "exhausted", Counters(attempts=5), error_class="OperationalError", error_text="database is locked"
)


@pytest.fixture
def proxy(vhost: Vhost) -> Iterator[Proxy]:
    """The way to the broker, which can be cut."""
    with Proxy(vhost.url) as made:
        yield made


@pytest.mark.parametrize("count", [40, pytest.param(5_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
@pytest.mark.parametrize("on", ["sqlite", "postgresql"])
def test_a_replay_that_is_cut_in_the_middle_loses_none_and_doubles_none(
    vhost: Vhost, proxy: Proxy, tmp_path: Path, request: pytest.FixtureRequest, on: str, count: int
) -> None:
    """The report has the letters that were replayed; the same command replays the rest."""
    ledger_url = f"sqlite:{tmp_path}/ledger.db" if on == "sqlite" else request.getfixturevalue("database")
    settings = {"broker": f"{proxy.url}?management=off", "ledger": ledger_url, "state_dir": str(tmp_path)}
    options = load(settings, {"STEADYWORKER_DELAYS": "1"}, tmp_path)
    make_ledger(options)
    with Connections(options) as links:
        namespace = namespace_of(links.adapter(QUEUE), options, links.ledger(), "exports")
        for number in range(count):
            links.adapter(QUEUE).publish(died(links.ledger(), JobId(namespace, "exports", f"k-{number}", 0)))

    def cut_in_the_middle(replayed: Replayed) -> None:
        if replayed.key == f"k-{count // 2}":
            proxy.cut()

    with Connections(options) as links:
        actions = LetterActions(links, QUEUE, "ada@ops")
        letters = actions.opened()
        chosen = actions.chosen(letters, LetterChoice(error_class="OperationalError"))
        assert len(chosen) == count
        first = actions.replay(letters, chosen=chosen, each=cut_in_the_middle)
        assert (first.chosen, len(first.changed)) == (count, count // 2 + 1)
        assert isinstance(first.error, SteadyWorkerError)

    with Connections(options) as links:
        actions = LetterActions(links, QUEUE, "ada@ops")
        letters = actions.opened()
        rest = actions.replay(letters, chosen=actions.chosen(letters, LetterChoice(reason="IS LOCKED"))).checked()
        left = count - len(first.changed)
        assert len(rest.changed) == left
        assert [action.count for action in links.ledger().facts.actions(key=None)] == [left, count // 2 + 1]
        rows = [row for row, _ in links.ledger().jobs(JobFilter(queue="exports", states=(State.MOVED,)))]
        assert Counter(row.id.round for row in rows) == {1: count}

    sent = messages(vhost, "exports")
    assert {(key, round_) for key, round_ in sent} == {(f"k-{number}", "1") for number in range(count)}
    assert len(sent) - count <= 1, "only the letter at the cut can have two messages, which are one job"
    assert messages(vhost, "exports.dead") == []


def died(ledger: Ledger, id_: JobId) -> OutgoingMessage:
    """Record a job that failed for good, and return its dead letter."""
    row = ledger.claim(Claimed(id_, None, "host/boot/1", 0, DIGEST, Counters(), KeptMessage(BODY, b"{}")))
    assert row is not None
    assert ledger.moving(row.token, LOCKED)
    assert ledger.moved(row.token)
    envelope = Envelope(Delivery(1, "d-1", "exports", BODY), id_, 4, b"", Counters())
    return message_for(envelope, 4, LOCKED, row.uid, "host-1")


def messages(vhost: Vhost, queue: str) -> list[tuple[str, str]]:
    """Key and round of all messages in a queue."""
    found: list[tuple[str, str]] = []
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as connection:
        channel = connection.channel()
        while True:
            method, properties, _ = channel.basic_get(queue, auto_ack=True)
            if method is None or properties is None or properties.headers is None:
                return found
            found.append((str(properties.headers["sw-job-key"]), str(properties.headers["sw-round"])))
