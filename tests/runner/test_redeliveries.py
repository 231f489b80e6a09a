"""Why a message came again: what is known is reported, and what is not known is not guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from steadyworker.adapter import Lost
from steadyworker.delivery import HOP, KEY, Delivery, Redelivered
from steadyworker.events import REDELIVERED, Adopted, DuplicateAcked, JobStarted
from steadyworker.ledger.base import JobId, Row, State
from steadyworker.outcome import Counters
from steadyworker.runner.envelope import Envelope
from steadyworker.runner.redeliveries import Redeliveries, cause_of
from steadyworker.testing.plugin import MakeHarness
from tests.runner.kit import Gate, events, saves, worker

MARGIN = 30.0
US, THEM = "us", "them"


def envelope(
    redelivered: Redelivered = Redelivered.YES, round_: int = 0, hop: int = 0, id_: str = "1", key: str = "k"
) -> Envelope:
    headers = {KEY: key} | ({HOP: str(hop)} if hop else {})
    delivery = Delivery(1, id_, "q", b"{}", headers, redelivered=redelivered)
    return Envelope(delivery, JobId("n", "q", key, round_), hop, b"", Counters())


def row(state: State, owner: str | None = THEM, *, over: bool = True, late_by: float = 0.0, fence: int = 1) -> Row:
    return Row(JobId("n", "q", "k", 0), "uid", state, fence=fence, owner=owner, lease_over=over, late_by=late_by)


@pytest.mark.parametrize(
    ("signal", "because"),
    [
        (Lost(1, "gone"), "connection-lost"),
        (Lost(1, "gone", explain="amqp.connection-forced"), "connection-lost"),
        (Lost(1, "gone", explain="amqp.delivery-timeout"), "delivery-timeout"),
        (Lost(1, "gone", explain="amqp.consumer-cancelled"), "consumer-cancelled"),
        (Lost(1, "gone", "7", "rocketmq.lock-ended"), "delivery-lost"),
        (Lost(1, "gone", "7", "some.delivery-timeout"), "delivery-timeout"),
    ],
)
def test_a_loss_names_the_reason_why_its_messages_come_again(signal: Lost, because: str) -> None:
    assert cause_of(signal) == because
    assert because in REDELIVERED


@pytest.mark.parametrize(
    ("found", "because"),
    [
        (row(State.RUNNING), "worker-killed"),  # the lease is not over by time, so there is proof
        (row(State.MOVING, late_by=MARGIN), "worker-killed"),
        (row(State.RUNNING, late_by=MARGIN + 1), "worker-lost"),
        (row(State.RUNNING, over=False), ""),  # it lives: how it lost its delivery, only it knows
        (row(State.RUNNING, US), ""),
        (row(State.INTERRUPTED, None), "released"),
        (row(State.INTERRUPTED, None, fence=0), ""),  # a cancel made the row, and no run
        (row(State.DONE, None), ""),
        (row(State.MOVED, None), ""),
        (None, ""),
    ],
)
def test_the_row_shows_what_other_processes_did(found: Row | None, because: str) -> None:
    assert Redeliveries(None, MARGIN).because(envelope(), found, US) == because


def test_a_first_message_of_a_later_round_was_sent_again_or_replayed_by_an_operator() -> None:
    again = Redeliveries(None, MARGIN)
    assert again.because(envelope(Redelivered.NO, round_=1), None, US) == "", "`send --again` made this round"
    replayed = structs.replace(row(State.MOVED, None), hop=-1)
    assert again.because(envelope(Redelivered.NO, round_=1), replayed, US) == "requeued-by-operator"
    assert again.because(envelope(Redelivered.NO, round_=1, hop=1), None, US) == ""
    assert again.because(envelope(Redelivered.NO), None, US) == ""


def test_an_ended_delivery_is_remembered_once_and_for_its_own_message() -> None:
    again = Redeliveries(None, MARGIN)
    again.ended(envelope().delivery, "connection-lost")
    assert again.because(envelope(key="other"), None, US) == ""
    assert again.because(envelope(hop=1), None, US) == ""
    assert again.because(envelope(Redelivered.NO), None, US) == "", "a sender's second message is no redelivery"
    assert again.because(envelope(id_="2"), row(State.DONE, None), US) == "connection-lost"
    assert again.because(envelope(id_="2"), row(State.DONE, None), US) == ""


def test_the_end_of_another_process_is_later_than_our_own_loss() -> None:
    again = Redeliveries(None, MARGIN)
    again.ended(envelope().delivery, "connection-lost")
    assert again.because(envelope(), row(State.RUNNING), US) == "worker-killed"


def test_the_memory_has_an_end() -> None:
    again = Redeliveries(None, MARGIN)
    for number in range(1001):
        delivery = envelope(key=f"k-{number}").delivery
        again.ended(replace(delivery, id=str(number)), "released")
    assert again.because(envelope(key="k-0"), None, US) == ""
    assert again.because(envelope(key="k-1"), None, US) == "released"


# --- In the runner ----------------------------------------------------------------------------------------------------


def test_an_adopted_redelivery_names_its_lost_connection(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(saves(1, gate))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")
    h.drop_connection()
    h.advance(5)
    gate.open()
    h.wait(key)
    assert [event.redelivered_because for event in events(h, key, Adopted)] == ["connection-lost"]
    assert [event.redelivered_because for event in events(h, key, JobStarted)] == [""]


def test_a_senders_second_message_has_no_reason(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(saves(1, gate))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")
    h.broker.duplicate(key)
    gate.open()
    h.wait(key)
    h.wait(key, until=lambda: events(h, key, DuplicateAcked))
    assert [event.redelivered_because for event in events(h, key, DuplicateAcked)] == [""]
