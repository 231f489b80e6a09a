"""After a reconnect, a run that is adrift offers its credit, so that its own message can come home; another's may come first."""

from __future__ import annotations

from pika import BasicProperties

from tests.faults.proxy import Proxy
from tests.fleet.kit import LIGHT, QUEUE, Fleet
from tests.support.stage import eventually


def test_another_jobs_message_is_handed_over_once_and_given_back_once(fleet: Fleet) -> None:
    """
    The consumer is cancelled before the message is released, so that it does not come straight back: no hot loop.

    A foreign consumer, which may hold one message, keeps the run's own one from coming home.
    """
    with Proxy(fleet.vhost.url) as proxy, fleet.channel() as foreign:
        fleet.send_all({"mine": {"gate": "gate"}})
        worker = fleet.worker(
            LIGHT, broker=fleet.url(proxy.url), script={"times": {"adopt_window": 60.0}}, ledger_reach="host"
        )
        fleet.notes("starts", 1)
        held: list[int] = []
        foreign.basic_qos(prefetch_count=1)
        tag = foreign.basic_consume(QUEUE, lambda _channel, method, *_: held.append(method.delivery_tag))
        proxy.cut()
        worker.says("delivery_lost")
        eventually(
            lambda: foreign.connection.process_data_events(0.1) or held, "the run's own message, held by another"
        )
        fleet.consumed_by(2)
        foreign.basic_publish("", QUEUE, b'{"gate":"gate"}', BasicProperties(message_id="other", delivery_mode=2))
        fleet.consumed_by(1)
        foreign.basic_cancel(tag)
        method, properties, _ = eventually(
            lambda: _got(foreign.basic_get(QUEUE)), "the other's message", report=fleet.logs
        )
        assert properties.message_id == "other"
        assert method.redelivered
        headers = properties.headers or {}
        counts = [headers[name] for name in ("x-delivery-count", "x-acquired-count") if name in headers]
        assert counts == [1], "one hand-over, whatever this version calls it"
        foreign.basic_nack(multiple=True, requeue=True)
        assert fleet.lines("starts") == ["mine 1"]
        fleet.open()
        fleet.ends_clean("mine", "other")
        assert fleet.lines("starts") == ["mine 1", "other 1"]


def _got(answer: tuple[object, ...]) -> tuple[object, ...] | None:
    return answer if answer[0] is not None else None
