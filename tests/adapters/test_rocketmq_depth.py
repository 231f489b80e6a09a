"""What RocketMQ's drivers count and browse on 4.9.7 and 5.4.0: exact numbers, a reason for each other one, and no trace at the brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from steadyworker.adapter import Adapter, Browsed, Browses, Depth, QueueSpec, Settings, Target, Unbrowsed
from steadyworker.delivery import KEY, OutgoingMessage, Settle
from steadyworker.errors import BrokerUnavailable
from steadyworker.network.errors import Refused
from steadyworker.testing.conformance.adapter_fixtures import AdapterBench, Tape, message, messages
from steadyworker_rocketmq import depth
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from steadyworker_rocketmq.grpc import GrpcAdapter
from tests.adapters.direct.bench import On4, On5
from tests.adapters.direct.fake import FakeRocketMQ, fake_rocketmq
from tests.adapters.rocketmq_bench import GrpcBench
from tests.brokers.rocketmq import RocketMQ

Open = Callable[[], Adapter]


def numbers(found: Depth) -> tuple[int | None, ...]:
    return found.ready, found.delayed, found.unacked, found.dead, found.consumers


def keys(found: Iterable[Browsed | Unbrowsed]) -> list[str]:
    return [each.headers[KEY] for each in found if isinstance(each, Browsed)]


def browsed(adapter: Adapter, limit: int) -> list[Browsed]:
    assert isinstance(adapter, Browses)
    return [each for each in adapter.browse(limit) if isinstance(each, Browsed)]


def unbrowsed(adapter: Adapter) -> list[str]:
    assert isinstance(adapter, Browses)
    return [each.why for each in adapter.browse(5) if isinstance(each, Unbrowsed)]


def later(key: str, delay: float) -> OutgoingMessage:
    return message(key, to=Target.LATER, delay=delay)


def state(node: RocketMQ, queue: str) -> dict[str, list[tuple[int, int, int | None]]]:
    """Return what a depth and a browse must not change: the topics and groups of a test, and the places of its group."""
    witness = node.witness
    found: dict[str, list[tuple[int, int, int | None]]] = {group: [] for group in node.groups(queue)}
    for topic in node.topics():
        if queue in topic:
            queues = witness.route(topic) or []
            found[topic] = [
                (witness.first(each, topic), witness.end(each, topic), witness.consumed(each, topic, queue))
                for each in queues
            ]
    return found


class DepthBench(AdapterBench):
    """What the drivers have in common."""

    node: Any
    queue: str

    def letters_of_the_broker(self, *keys: str) -> None:
        """Put messages into the topic to which the broker moves the group's dead letters."""
        self.node.make_topic(f"%DLQ%{self.queue}")
        for key in keys:
            self.node.send(f"%DLQ%{self.queue}", b"{}", {KEY: key})

    def until(self, adapter: Adapter, expected: tuple[int | None, ...]) -> Depth:
        Tape(self).until(lambda: numbers(adapter.depth()) == expected, f"{expected}, got {adapter.depth()}")
        return adapter.depth()

    def test_letters_are_counted_without_dropped_ones(
        self, open_adapter: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those of the Worker, and those that the broker has moved. A topic keeps dropped letters, and the marks of them."""
        adapter = open_adapter()
        for number in range(3):
            adapter.publish(message(f"dead-{number}", to=Target.DEAD))
        self.letters_of_the_broker("moved-1", "moved-2")
        Tape(self).until(lambda: adapter.depth().dead == 5, "five letters")
        with adapter.dead_letters() as letters:
            for letter in letters:
                if letter.headers[KEY] in {"dead-1", "moved-2"}:
                    letters.drop(letter)
        Tape(self).until(lambda: adapter.depth().dead == 3, "three letters")
        monkeypatch.setattr(depth, "PULLS", 1)
        found = adapter.depth()
        assert found.dead is None
        assert found.why["dead"].startswith("a topic is a log of letters and of marks of dropped ones")

    def test_an_absent_broker_is_an_error(self, spec: QueueSpec) -> None:
        for adapter in (
            DirectAdapter("rocketmq://127.0.0.1:1", spec, Settings()),
            GrpcAdapter("rocketmq+grpc://127.0.0.1:1?namesrv=127.0.0.1:1&members=off", spec, Settings()),
        ):
            for question in (adapter.depth, lambda adapter=adapter: list(adapter.browse(5))):
                with pytest.raises(BrokerUnavailable):
                    question()


class DirectDepth(DepthBench):
    """The driver for brokers: a message that a member holds is behind the group's place, like the ready ones."""

    def test_every_number_is_exact_and_nothing_changes(self, open_adapter: Open) -> None:
        one, two = open_adapter(), open_adapter()
        for each in messages(5):
            one.publish(each)
        sent = time.time()
        for key, delay in (("soon", 600), ("late", 3600)):
            one.publish(later(key, delay))
        one.publish(message("dead", to=Target.DEAD))
        found = self.until(two, (5, 2, 0, 1, 0))
        assert found.next_due == pytest.approx(sent + 600, abs=10)
        assert found.oldest_age is not None
        assert 0 <= found.oldest_age <= time.time() - sent + 10
        tape = self.started(one, 2)
        first = tape.delivery()
        tape.delivery(2)
        self.until(one, (3, 2, 2, 1, 1))
        before = state(self.node, self.queue)
        for _ in range(3):
            assert numbers(one.depth()) == (3, 2, 2, 1, 1)
            assert one.depth().why == {}
            assert len(browsed(two, 10)) == 7
        assert state(self.node, self.queue) == before
        one.prefetch(0)
        one.settle(first, Settle.ACK)
        self.until(one, (3, 2, 1, 1, 1))
        one.stop(self.within)
        self.until(two, (4, 2, 0, 1, 0))

    def test_other_members_hide_how_many_messages_are_held(self, open_adapter: Open) -> None:
        """The sum is in the reason; while no message waits or is held, it hides nothing."""
        one, two = open_adapter(), open_adapter()
        one.publish(message())
        tape = self.started(one, 1)
        held = tape.delivery()
        one.publish(message("k-2"))
        Tape(self).until(lambda: "2 messages" in two.depth().why.get("ready", ""), "both messages")
        found = two.depth()
        assert numbers(found) == (None, 0, None, 0, 1)
        assert found.oldest_age is None
        assert found.why.keys() == {"ready", "unacked", "oldest_age"}
        one.settle(held, Settle.ACK)
        one.settle(tape.delivery(2), Settle.ACK)
        self.until(two, (0, 0, 0, 0, 1))

    def test_the_age_is_of_the_oldest_ready_message(self, open_adapter: Open) -> None:
        """The running job's own message is older, in another queue of the topic or before the ready one."""
        adapter = open_adapter()
        adapter.publish(message("held"))
        self.started(adapter, 1).delivery()
        self.let_pass(1.5)
        began = time.time()
        for each in messages(16):
            adapter.publish(each)
        self.until(adapter, (16, 0, 1, 0, 1))
        age = adapter.depth().oldest_age
        assert age is not None
        assert age <= time.time() - began + 0.1

    def test_too_many_delayed_messages_of_all_queues_are_not_counted(
        self, open_adapter: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All topics have their delayed messages together. A browse then shows those that it has read."""
        adapter = open_adapter()
        for number, delay in enumerate((600, 600, 3600)):
            adapter.publish(later(f"k-{number}", delay))
        self.until(adapter, (0, 3, 0, 0, 0))
        monkeypatch.setattr(depth, "PULLS", 0)
        found = adapter.depth()
        assert (found.delayed, found.next_due) == (None, None)
        assert found.why.keys() >= {"delayed", "next_due"}
        assert browsed(adapter, 5) == []
        assert unbrowsed(adapter) == [f"not all delayed messages were read: {depth.TOO_MANY}"]

    def test_a_browse_merges_the_queues_and_then_shows_delayed_messages(self, open_adapter: Open) -> None:
        adapter = open_adapter()
        wanted = [f"k-{number}" for number in range(1, 41)]
        for each in messages(40):
            adapter.publish(each)
        for key, delay in (("late", 3600), ("soon", 600)):
            adapter.publish(later(key, delay))
        self.until(adapter, (40, 2, 0, 0, 0))
        found = browsed(adapter, 100)
        assert keys(found) == [*wanted, "soon", "late"]
        assert [each.due is None for each in found] == [True] * 40 + [False] * 2
        assert found[-1].due == pytest.approx(time.time() + 3600, abs=20)
        assert keys(browsed(adapter, 41)) == [*wanted, "soon"]
        assert keys(browsed(adapter, 7)) == wanted[:7]
        assert unbrowsed(adapter) == []
        tape = self.started(adapter, 1)
        delivered = tape.delivery()
        same = next(each for each in found if each.headers[KEY] == delivered.headers[KEY])
        assert same == Browsed(delivered.headers, delivered.message_id, delivered.sent_at)


class TestDirect4(On4, DirectDepth): ...


@pytest.mark.slow
class TestDirect5(On5, DirectDepth): ...


class TestGrpc(GrpcBench, DepthBench):
    """The driver for proxies on 5.4.0: the group's place moves when a message is delivered."""

    def test_every_number_is_exact_and_nothing_changes(self, open_adapter: Open) -> None:
        one, two = open_adapter(), open_adapter()
        one.publish(message("held"))
        tape = self.started(one, 1)
        held = tape.delivery()
        self.let_pass(1.5)
        began = time.time()
        for each in messages(4):
            one.publish(each)
        for key in ("soon", "late"):
            one.publish(later(key, 3600))
        one.publish(message("dead", to=Target.DEAD))
        found = self.until(two, (4, 2, None, 1, 1))
        assert found.why.keys() == {"unacked", "next_due"}
        assert found.oldest_age is not None
        assert found.oldest_age <= time.time() - began + 0.1
        before = state(self.node, self.queue)
        for _ in range(3):
            assert numbers(two.depth()) == (4, 2, None, 1, 1)
            assert keys(browsed(two, 10)) == ["k-1", "k-2", "k-3", "k-4"]
            assert unbrowsed(two) == ["RocketMQ shows no message with an exact delay before the message is due"]
        assert state(self.node, self.queue) == before
        one.prefetch(0)
        one.settle(held, Settle.RELEASE)
        Tape(self).until(lambda: two.depth().ready == 5, "the released message")

    def test_messages_that_come_again_and_delayed_ones_that_are_due_are_ready(self, open_adapter: Open) -> None:
        """A proxy delivers both from other topics, and without a worker no mover has moved the latter."""
        adapter = open_adapter()
        adapter.publish(message())
        adapter.publish(later("due", 2))
        retries = f"%RETRY%{self.queue}_{self.queue}"
        self.node.make_topic(retries)
        self.node.send(retries, b"{}", {KEY: "again"})
        self.until(adapter, (3, 0, None, 0, 0))
        assert sorted(keys(browsed(adapter, 10))) == ["again", "due", "k-1"]

    def test_without_a_name_server_only_consumers_are_counted(self, open_adapter: Open, spec: QueueSpec) -> None:
        one = open_adapter()
        one.publish(message())
        self.started(one, 1).delivery()
        plain, _, options = self.node.url.partition("?")
        members = options.partition("members=")[2]
        for option, consumers in ((f"members={members}", 1), ("members=off", None)):
            adapter = GrpcAdapter(f"{plain}?{option}", spec, Settings())
            found = adapter.depth()
            assert numbers(found) == (None, None, None, None, consumers)
            assert "?namesrv=host:9876" in found.why["ready"]
            assert ("consumers" in found.why) == (consumers is None)
            with pytest.raises(Refused, match=r"\?namesrv=host:9876"):
                list(adapter.browse(5))
            adapter.stop(5)


# --- What real brokers do rarely --------------------------------------------------------------------------------------


@pytest.fixture
def fake() -> Iterable[FakeRocketMQ]:
    with fake_rocketmq() as made:
        yield made


@pytest.fixture
def adapter(fake: FakeRocketMQ) -> Iterable[DirectAdapter]:
    made = DirectAdapter(fake.url, QueueSpec("exports", "exports-dead"), Settings())
    made._preparation.prepared()
    yield made
    made.stop(5)


def test_messages_that_the_broker_has_deleted_are_not_counted(fake: FakeRocketMQ, adapter: DirectAdapter) -> None:
    """Their retention time is over; the group's place is still before them."""
    fake.put("exports", 3, "k-1", "k-2", "k-3")
    log = fake.topics["exports"][3]
    log.first, log.messages = 2, log.messages[2:]
    assert adapter.depth().ready == 1
    assert keys(adapter.browse(5)) == ["k-3"]


def test_a_topic_that_is_made_again_is_counted_from_its_first_message(
    fake: FakeRocketMQ, adapter: DirectAdapter
) -> None:
    """4.9.7 keeps the place of the earlier topic."""
    fake.places["exports", "exports", 3] = 17
    fake.put("exports", 3, "k-1", "k-2")
    assert adapter.depth().ready == 2
    assert keys(adapter.browse(5)) == ["k-1", "k-2"]


def test_messages_in_very_many_queues_have_no_age(
    fake: FakeRocketMQ, adapter: DirectAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depth, "_QUEUES", 1)
    for number in range(2):
        fake.put("exports", number, f"k-{number}")
    found = adapter.depth()
    assert (found.ready, found.oldest_age) == (2, None)
    assert found.why == {"oldest_age": "messages wait in 2 queues, and a count reads the first ones of at most 1"}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (208, {"ready", "unacked", "oldest_age"}),
        (45, {"delayed", "next_due"}),
        (202, {"delayed", "next_due"}),
    ],
)
def test_a_number_that_needs_a_right_has_the_refusal_as_its_reason(
    fake: FakeRocketMQ, adapter: DirectAdapter, code: int, names: set[str]
) -> None:
    fake.refuse[code] = (16, "User:shop has no permission to access Topic:exports from 127.0.0.1, no matched policies")
    found = adapter.depth()
    assert found.why.keys() == names
    assert all(why.startswith("a broker refused the question (") for why in found.why.values())
    assert all("mqadmin createAcl" in why for why in found.why.values())
    assert all("User:shop has no permission" in why for why in found.why.values())
