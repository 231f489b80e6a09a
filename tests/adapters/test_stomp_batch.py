"""A batch of messages at ActiveMQ: one time limit for all its receipts."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from typing_extensions import override

from steadyworker.adapter import OutgoingMessage, QueueSpec, Settings
from steadyworker.errors import PublishFailed
from steadyworker.network.owed import ANSWER_WITHIN
from steadyworker.testing.clock import FakeClock
from steadyworker_stomp import StompAdapter
from steadyworker_stomp.dialects import CLASSIC
from tests.adapters.stomp_kit import work


class LateReceipt(Future[None]):
    """A receipt that comes `after` seconds after its message was written, by a clock that a wait moves."""

    def __init__(self, clock: FakeClock, after: float) -> None:
        super().__init__()
        self._clock = clock
        self._due = clock.monotonic() + after

    @override
    def result(self, timeout: float | None = None) -> None:
        rest = max(0.0, self._due - self._clock.monotonic())
        assert timeout is not None
        if rest > timeout:
            self._clock.advance(timeout)
            raise TimeoutError
        self._clock.advance(rest)


class SlowConnection:
    """An open connection to a broker that confirms one message after the other, each after most of a message's own limit."""

    dialect = CLASSIC

    def __init__(self, clock: FakeClock) -> None:
        self.aborted: list[Exception] = []
        self._clock = clock
        self._sent = 0

    def send(self, *_: object) -> Future[None]:
        self._sent += 1
        return LateReceipt(self._clock, 0.9 * ANSWER_WITHIN * self._sent)

    def abort(self, error: Exception) -> None:
        self.aborted.append(error)


def test_a_broker_that_confirms_slowly_delays_a_batch_by_the_time_limit_of_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    adapter = StompAdapter("stomp://127.0.0.1:1", QueueSpec("exports", "exports.dead"), Settings(clock=clock))
    connection = SlowConnection(clock)

    def connected(messages: list[OutgoingMessage]) -> SlowConnection:
        return connection

    monkeypatch.setattr(adapter._publisher, "_connected", connected)
    began = clock.monotonic()
    results = adapter.publish_many([work(f"k-{number}") for number in range(500)])
    assert clock.monotonic() - began == pytest.approx(ANSWER_WITHIN)
    assert [type(error) for error in results] == [type(None), *[PublishFailed] * 499]
    assert connection.aborted
    adapter.stop(1)
