"""What `steadyworker dead` reads from a topic, which is a log: letters, and the marks of those that were dropped."""

from __future__ import annotations

import pytest

from steadyworker.adapter import OutgoingMessage, Target
from steadyworker.delivery import KEY
from steadyworker.errors import BrokerUnavailable
from tests.adapters.direct.fake import FakeRocketMQ
from tests.adapters.direct.kit import QUEUE, Worker, work
from tests.support.stage import eventually


def letters(worker: Worker) -> list[str]:
    with worker.adapter.dead_letters() as found:
        return [letter.headers[KEY] for letter in found]


def test_a_header_like_a_mark_hides_no_letter(broker: FakeRocketMQ) -> None:
    """Only `drop` makes a mark: a sender's header of its name stays a header, and names no other letter."""
    with Worker(broker.url, 0) as worker:
        worker.adapter.publish(work("k-1", to=Target.DEAD))
        with worker.adapter.dead_letters() as found:
            (first,) = found
        worker.adapter.publish(OutgoingMessage(Target.DEAD, b"{}", {KEY: "k-2", "sw-dropped": first.id}))
        assert letters(worker) == ["k-1", "k-2"]
        with worker.adapter.dead_letters() as found:
            found.drop(next(iter(found)))
        assert letters(worker) == ["k-2"]


def test_a_log_that_ends_too_early_is_no_list_of_letters(broker: FakeRocketMQ) -> None:
    """A replica that lacks the newest letters: an error instead of a part of the list."""
    with Worker(broker.url, 0) as worker:
        worker.adapter.publish(work("k-1", to=Target.DEAD))
        worker.adapter.publish(work("k-2", to=Target.DEAD))
        with worker.adapter.dead_letters() as found:
            del broker.topics[f"{QUEUE}-dead"][0].messages[1:]
            with pytest.raises(BrokerUnavailable, match="messages up to 2, got none from 1 on"):
                list(found)


def test_a_reader_that_is_refused_leaves_no_connection_open(broker: FakeRocketMQ) -> None:
    with Worker(broker.url, 0) as worker:
        worker.adapter.publish(work("k-1", to=Target.DEAD))
        assert letters(worker) == ["k-1"]
        eventually(lambda: len(broker._connections) <= 4, "the connections of the reader are closed")
        before = len(broker._connections)
        broker.refuse[30] = (1, "")  # the end of a queue
        with pytest.raises(BrokerUnavailable) as raised, worker.adapter.dead_letters():
            pass
        assert (
            raised.value.__traceback__ is not None
        )  # which keeps the reader, so that nothing but a close ends its connections
        eventually(lambda: len(broker._connections) <= before, "the connections of the refused reader are closed")
