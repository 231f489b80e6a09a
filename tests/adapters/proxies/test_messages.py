"""Any message, any clock and any limit, through the driver for RocketMQ's proxies; at proxies in this process."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError

import pytest

from steadyworker.adapter import OutgoingMessage, Settings, Settle, Settled, SystemClock, Target, Unreachable
from steadyworker.errors import MessageRefused, NotPublished, PublishFailed
from steadyworker_rocketmq.errors import ProxyError
from steadyworker_rocketmq.grpc.publisher import LONGEST_DELAY
from steadyworker_rocketmq.messages import WireMessage
from tests.adapters.proxies.fake import TOO_LARGE, FakeProxy, check
from tests.adapters.proxies.kit import DELAYED, QUEUE, WITHIN, Worker, work
from tests.support.stage import eventually

MANY = {f"p{number}": "x" for number in range(128)}
FOREIGN = {
    "128 properties": WireMessage(b"{}", MANY),
    "blank": WireMessage(b"{}", {"shop": " ", "empty": ""}),
    "empty key": WireMessage(b"{}", {}, None, ("", "a", "b")),
    "tag": WireMessage(b"{}", {}, "a||b"),
    "control": WireMessage(b"{}", {"shop": "a\nb"}),
}


class TestRelease:
    """A release of what another application has sent."""

    @pytest.mark.parametrize(
        "wire", [*FOREIGN.values(), WireMessage(b"{}", {"shop": "a" * 20_000})], ids=[*FOREIGN, "too long"]
    )
    def test_of_what_a_proxy_does_not_accept_as_it_is(self, proxy: FakeProxy, wire: WireMessage) -> None:
        proxy.put(QUEUE, wire)
        with Worker() as worker:
            first = worker.delivery()
            assert worker.adapter.settle(first, Settle.RELEASE) is Settled.SENT
            again = worker.delivery(2)
            assert (again.headers, again.body, again.message_id) == (first.headers, first.body, first.message_id)
            assert not worker.all(Unreachable)

    def test_of_what_cannot_be_copied_ends_its_invisibility(self, proxy: FakeProxy) -> None:
        """The connection stays, and with it the other deliveries."""
        proxy.put(QUEUE, WireMessage(b"{}", {"shop": "a"}))
        with Worker() as worker:
            delivery = worker.delivery()
            proxy.fail = lambda name, _topic: full() if name == "send" else None
            assert worker.adapter.settle(delivery, Settle.RELEASE) is Settled.SENT
            assert not worker.all(Unreachable)
            (message,) = proxy.waiting(QUEUE)
            assert 5 < message.visible_at - time.time() <= 10
            assert message.wire.properties == delivery.headers


def full() -> None:
    raise ProxyError("the disk is full", 42900)


class TestLimits:
    """A copy is never refused."""

    @pytest.mark.parametrize("headers", [{"KEYS": "k" * 17_000}, {"KEYS": "a " * 8_400 + "a"}, {"TAGS": "t" * 17_000}])
    @pytest.mark.parametrize("to", Target)
    def test_of_long_keys_and_tags(self, proxy: FakeProxy, headers: dict[str, str], to: Target) -> None:
        """A broker accepts 32 KB of them from its own clients, a proxy 16 KiB together with the properties."""
        with Worker(prefetch=0) as worker:
            worker.adapter.publish(OutgoingMessage(to, b"{}", headers, 60.0 if to is Target.LATER else 0.0))
        (stored,) = [message for messages in proxy.topics.values() for message in messages]
        check(stored.wire.copied("A" * 34, 1_700_000_000.123))

    def test_a_refusal_is_no_fault_of_the_connection(self, proxy: FakeProxy) -> None:
        """The message is certainly not sent, and the other threads' sender stays."""
        with Worker(prefetch=0) as worker:
            worker.adapter.publish(work())

            def fail(_name: str, _topic: str) -> None:
                raise ProxyError("the total size of user property is too large", TOO_LARGE)

            proxy.fail = fail
            with pytest.raises(MessageRefused, match="maxUserPropertySize"):
                worker.adapter.publish(work())
        assert proxy.senders == 1

    @pytest.mark.parametrize(
        ("code", "id_"),
        [
            (41301, "rocketmq.body-too-large"),
            (43101, "rocketmq.properties-too-long"),
            (40004, ""),
            (40014, None),
            (40015, None),
        ],
    )
    def test_only_a_fault_of_the_message_is_a_refusal_for_good(
        self, proxy: FakeProxy, code: int, id_: str | None
    ) -> None:
        """An operator can change the type of a topic, and a proxy learns of a client; a message stays as it is."""
        with Worker(prefetch=0) as worker:

            def fail(name: str, _topic: str) -> None:
                if name == "send":
                    raise ProxyError("a reason", code)

            proxy.fail = fail
            with pytest.raises(NotPublished) as raised:
                worker.adapter.publish(work())
        assert isinstance(raised.value, MessageRefused) is (id_ is not None)
        assert raised.value.id == (id_ or "")

    def test_a_message_that_the_user_may_not_send_was_not_sent(self, proxy: FakeProxy) -> None:
        with Worker(prefetch=0) as worker:
            worker.adapter.publish(work())

            def fail(_name: str, _topic: str) -> None:
                raise ProxyError("User:shop has no permission to access Topic:exports from 127.0.0.1", 40300)

            proxy.fail = fail
            with pytest.raises(NotPublished, match="mqadmin createAcl"):
                worker.adapter.publish(work())
        assert proxy.senders == 1

    @pytest.mark.parametrize("unsent", [True, False])
    def test_only_what_was_certainly_not_sent_is_not_published(self, proxy: FakeProxy, unsent: bool) -> None:
        with Worker(prefetch=0) as worker:
            worker.adapter.publish(work())

            def fail(_name: str, _topic: str) -> None:
                error = ProxyError("Deadline Exceeded", status="DEADLINE_EXCEEDED")
                error.unsent = unsent
                raise error

            proxy.fail = fail
            with pytest.raises(PublishFailed, match="no reply in time") as raised:
                worker.adapter.publish(work())
        assert isinstance(raised.value, NotPublished) is unsent

    @pytest.mark.parametrize(
        ("ended", "cause"),
        [
            (ProxyError("CancelledError"), "no reply in time"),
            (
                ProxyError("User:shop has no permission to access Topic:exports from 127.0.0.1", 40300),
                "mqadmin createAcl",
            ),
        ],
    )
    def test_a_call_that_was_ended_by_another_call_reports_that_cause_and_any_other_its_own(
        self, proxy: FakeProxy, ended: ProxyError, cause: str
    ) -> None:
        if cause == "no reply in time":
            ended.__cause__ = CancelledError()
        with Worker(prefetch=0) as worker:
            worker.adapter.publish(work())
            senders = worker.adapter._publisher._senders

            def fail(name: str, _topic: str) -> None:
                if name == "send":
                    senders.replace(senders.opened(), ProxyError("Deadline Exceeded", status="DEADLINE_EXCEEDED"))
                    raise ended

            proxy.fail = fail
            with pytest.raises(PublishFailed, match=cause):
                worker.adapter.publish(work())


class OurClock(SystemClock):
    """A clock that is ahead by so many seconds."""

    ahead = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead


class TestClocks:
    """A broker whose clock is not ours."""

    def test_a_delayed_message_that_comes_too_soon_stays_until_it_is_due(self, proxy: FakeProxy) -> None:
        """Sent again, it would come again at once, while the broker's clock is ahead."""
        clock = OurClock()
        proxy.skew = 30.0
        with Worker(settings=Settings(clock=clock)) as worker:
            worker.adapter.publish(work(to=Target.LATER, delay=20.0))
            eventually(lambda: proxy.called("renew", DELAYED), "a delivery before its time", WITHIN)
            (message,) = proxy.waiting(DELAYED)
            assert 15 < message.visible_at - proxy.skew - time.time() <= 21
            assert proxy.called("send", DELAYED) == 1
            assert proxy.called("send", QUEUE) == 0
            clock.ahead = 21.0
            message.visible_at = 0.0
            assert worker.delivery().headers["sw-job-key"] == "k-1"
        assert proxy.called("send", DELAYED) == 1

    def test_a_clock_half_an_hour_ahead_of_the_brokers_can_delay_by_a_day(self, proxy: FakeProxy) -> None:
        proxy.skew = -1800.0
        with Worker(prefetch=0) as worker:
            worker.adapter.publish(work(to=Target.LATER, delay=86_400.0))
        assert len(proxy.waiting(DELAYED)) == 1

    def test_a_delay_that_is_longer_than_a_brokers_is_several_in_turn(self, proxy: FakeProxy) -> None:
        clock = OurClock()
        with Worker(settings=Settings(clock=clock)) as worker:
            worker.adapter.publish(work(to=Target.LATER, delay=3 * 86_400.0))
            for sent in (2, 3):
                clock.ahead += LONGEST_DELAY
                (message,) = proxy.waiting(DELAYED)
                message.visible_at = 0.0
                eventually(lambda n=sent: proxy.called("send", DELAYED) == n, "the next delay", WITHIN)  # type: ignore[misc]
                eventually(lambda: len(proxy.waiting(DELAYED)) == 1, "an acknowledgement", WITHIN)
            clock.ahead = 3 * 86_400.0
            (message,) = proxy.waiting(DELAYED)
            message.visible_at = 0.0
            worker.delivery()
