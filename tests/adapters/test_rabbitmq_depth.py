"""RabbitMQ counts what waits: exactly over AMQP, and by its management API what AMQP does not report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from steadyworker.adapter import Browses, Connected, Delivered, Delivery, Depth, QueueSpec, Settings, Signal
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Target
from steadyworker.errors import BrokerUnavailable
from steadyworker.network import owed
from steadyworker.network.errors import Refused
from steadyworker.testing.clock import FakeClock
from steadyworker_rabbitmq import RabbitmqAdapter
from steadyworker_rabbitmq.checks.management import ManagementApi, ReportedMessages, Unanswered
from steadyworker_rabbitmq.depth import AGAIN_AFTER, CountRefused, DepthReader, QueueCount
from steadyworker_rabbitmq.topology import Topology
from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.brokers.trio import Trio
from tests.faults.proxy import Proxy

SPEC = QueueSpec("exports", "exports.dead", concurrency=4)
LEVELS = (1.0, 600.0, 3600.0)
RETRY = tuple(f"exports.later.{level:.0f}000ms" for level in LEVELS)
Eventually = Callable[..., Any]


class Client:
    """An adapter, with its deliveries once it is started."""

    def __init__(self, url: str) -> None:
        self.deliveries: list[Delivery] = []
        self.signals: list[Signal] = []
        self.adapter = RabbitmqAdapter(url, SPEC, Settings(delays=LEVELS))

    def start(self, eventually: Eventually, prefetch: int) -> None:
        self.adapter.start(self._receive)
        self.adapter.prefetch(prefetch)
        eventually(lambda: any(isinstance(signal, Connected) for signal in self.signals))

    def send(self, keys: str, to: Target = Target.WORK, delay: float = 0.0) -> None:
        for key in keys:
            self.adapter.publish(OutgoingMessage(to, b"{}", {KEY: key}, delay))

    def _receive(self, signal: Signal) -> None:
        self.signals.append(signal)
        if isinstance(signal, Delivered):
            self.deliveries.append(signal.delivery)


OpenClient = Callable[[str], Client]


@pytest.fixture
def open_client() -> Iterator[OpenClient]:
    clients: list[Client] = []

    def another(url: str) -> Client:
        clients.append(Client(url))
        return clients[-1]

    yield another
    for each in clients:
        each.adapter.stop(5)


@pytest.fixture
def with_api(rabbitmq: RabbitMQ, vhost: Vhost) -> str:
    return f"{vhost.url}?management={quote(rabbitmq.management_url, safe='')}"


@pytest.fixture
def without_api(vhost: Vhost) -> str:
    return f"{vhost.url}?management=off"


@contextmanager
def channel(vhost: Vhost) -> Iterator[Any]:
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as connection:
        yield connection.channel()


def numbers(depth: Depth) -> tuple[int | None, ...]:
    return depth.ready, depth.delayed, depth.unacked, depth.dead, depth.consumers


def test_every_number_is_exact_for_a_worker_and_for_an_operator(
    open_client: OpenClient, with_api: str, eventually: Eventually
) -> None:
    worker, operator = open_client(with_api), open_client(with_api)
    worker.send("abcde")
    worker.send("fg", Target.LATER, 3600.0)
    worker.send("h", Target.LATER, 600.0)
    worker.send("ij", Target.DEAD)
    worker.start(eventually, prefetch=2)
    eventually(lambda: len(worker.deliveries) == 2)
    for client in (worker, operator):
        eventually(lambda client=client: numbers(client.adapter.depth()) == (3, 3, 2, 2, 1), within=30)
    found = operator.adapter.depth()
    assert (found.next_due, found.oldest_age) == (None, None)
    assert found.why.keys() == {"next_due", "oldest_age"}
    assert found.why["oldest_age"] == "RabbitMQ does not report the age of a message in a quorum queue"
    with operator.adapter.dead_letters() as letters:
        assert len(list(letters)) == 2
        eventually(lambda: numbers(worker.adapter.depth()) == (3, 3, 2, 2, 1), within=30)
    worker.adapter.prefetch(0)
    for delivery in worker.deliveries:
        worker.adapter.settle(delivery, Settle.ACK)
    eventually(lambda: numbers(operator.adapter.depth()) == (3, 3, 0, 2, 0), within=30)
    assert {delivery.redelivered.value for delivery in worker.deliveries} == {"no"}


def test_without_the_api_the_counts_of_amqp_are_exact_at_once(
    open_client: OpenClient, without_api: str, eventually: Eventually
) -> None:
    worker, operator = open_client(without_api), open_client(without_api)
    worker.send("abc")
    worker.send("d", Target.LATER, 600.0)
    worker.send("e", Target.DEAD)
    worker.start(eventually, prefetch=1)
    eventually(lambda: worker.deliveries)
    for client in (worker, operator):
        found = client.adapter.depth()
        assert numbers(found) == (2, 1, None, 1, 1)
        assert found.why["unacked"] == (
            "only the management API reports this number, and --broker names none: "
            "remove ?management=off from it, and log in with a password"
        )
    with operator.adapter.dead_letters() as letters:
        assert len(list(letters)) == 1
        found = worker.adapter.depth()
        assert found.dead is None
        assert found.why["dead"].startswith("a reader holds dead letters, and only the management API")
    eventually(lambda: numbers(worker.adapter.depth()) == (2, 1, None, 1, 1))


def test_a_user_without_the_tag_reads_the_remedy(
    open_client: OpenClient, rabbitmq: RabbitMQ, vhost: Vhost, with_api: str
) -> None:
    open_client(with_api).send("abc")
    rabbitmq.management("PUT", f"users/{vhost.user}", {"password": vhost.password, "tags": ""})
    found = open_client(with_api).adapter.depth()
    assert numbers(found) == (3, 0, None, 0, 0)
    assert f"user {vhost.user!r} may not read" in found.why["unacked"]
    assert "rabbitmqctl set_user_tags" in found.why["unacked"]
    assert vhost.password not in repr(found)


def test_a_user_who_may_only_read_two_queues_counts_these_two(
    open_client: OpenClient, rabbitmq: RabbitMQ, vhost: Vhost, without_api: str
) -> None:
    """Before 4.3, this user may count every queue; 4.3 refuses the retry queues, and is then left alone for some minutes."""
    open_client(without_api).send("abc")
    open_client(without_api).send("d", Target.LATER, 600.0)
    rights = {"configure": "^$", "write": "^$", "read": r"^exports(\.dead)?$"}
    rabbitmq.management("PUT", f"permissions/{vhost.name}/{vhost.user}", rights)
    client = open_client(without_api)
    refuses = rabbitmq.version >= (4, 3)
    for _ in range(2):
        found = client.adapter.depth()
        assert numbers(found) == (3, None if refuses else 1, None, 0, 0)
        if refuses:
            assert found.why["delayed"] == found.why["next_due"]
            assert found.why["delayed"].endswith("grant the right to read it with rabbitmqctl set_permissions")
    assert {*client.adapter._depths.queues()} == {"exports", "exports.dead", *([] if refuses else RETRY)}


def test_a_user_without_any_right_counts_nothing_on_newer_brokers(
    open_client: OpenClient, rabbitmq: RabbitMQ, vhost: Vhost, without_api: str
) -> None:
    open_client(without_api).send("abc")
    nothing = {"configure": "^$", "write": "^$", "read": "^$"}
    rabbitmq.management("PUT", f"permissions/{vhost.name}/{vhost.user}", nothing)
    client = open_client(without_api)
    if rabbitmq.version >= (4, 3):
        with pytest.raises(BrokerUnavailable, match=r"grant the right to read it with rabbitmqctl"):
            client.adapter.depth()
    else:
        assert numbers(client.adapter.depth()) == (3, 0, None, 0, 0)


def test_a_wrong_password_is_no_number(open_client: OpenClient, vhost: Vhost, with_api: str) -> None:
    client = open_client(with_api.replace(vhost.password, "wr0ng-pass"))
    with pytest.raises(Refused) as raised:
        client.adapter.depth()
    assert "wr0ng-pass" not in str(raised.value)


def test_while_the_broker_is_away_there_are_no_numbers(
    open_client: OpenClient, rabbitmq: RabbitMQ, without_api: str, eventually: Eventually
) -> None:
    with Proxy(rabbitmq.url) as proxy:
        worker, operator = (open_client(proxy.through(without_api)) for _ in range(2))
        worker.send("a")
        worker.start(eventually, prefetch=0)
        proxy.refuse()
        proxy.cut()

        def is_away() -> bool:
            with pytest.raises(BrokerUnavailable) as raised:
                worker.adapter.depth()
            return "until the adapter has reconnected" in str(raised.value)

        eventually(is_away)
        with pytest.raises(BrokerUnavailable):
            operator.adapter.depth()
        proxy.accept()
        eventually(lambda: len([signal for signal in worker.signals if isinstance(signal, Connected)]) == 2)
        assert numbers(worker.adapter.depth()) == (1, 0, None, 0, 0)


def test_queues_that_do_not_exist_are_empty_and_are_not_created(
    open_client: OpenClient, vhost: Vhost, without_api: str
) -> None:
    client = open_client(without_api)
    assert numbers(client.adapter.depth()) == (0, 0, None, 0, 0)
    with channel(vhost) as raw:
        raw.queue_declare("exports", durable=True, arguments={"x-queue-type": "quorum"})
        raw.confirm_delivery()
        raw.basic_publish("", "exports", b"{}")
    assert numbers(client.adapter.depth()) == (1, 0, None, 0, 0)
    for name in ("exports.dead", *RETRY):
        with channel(vhost) as raw, pytest.raises(ChannelClosedByBroker, match="no queue"):
            raw.queue_declare(name, passive=True)


def test_queues_that_do_not_exist_are_empty_for_a_worker_too(
    open_client: OpenClient, vhost: Vhost, without_api: str, eventually: Eventually
) -> None:
    """A missing queue ends the channel; the queues after it are counted over another channel."""
    worker = open_client(without_api)
    worker.send("ab", Target.LATER, 3600.0)
    worker.start(eventually, prefetch=0)
    with channel(vhost) as raw:
        for name in ("exports.dead", *RETRY[:2]):
            raw.queue_delete(name)
    assert numbers(worker.adapter.depth()) == (None, 2, None, 0, None), (
        "the work queue exists, and can be without a leader"
    )
    worker.send("c")
    assert numbers(worker.adapter.depth()) == (1, 2, None, 0, 0)
    assert not any(isinstance(signal, Connected) for signal in worker.signals[1:])


def test_a_classic_queue_reports_the_age_of_its_first_message(
    open_client: OpenClient, vhost: Vhost, with_api: str, eventually: Eventually
) -> None:
    with channel(vhost) as raw:
        raw.queue_declare("exports", durable=True, arguments={"x-queue-type": "classic"})
    client = open_client(with_api)
    client.send("ab")
    age = eventually(lambda: client.adapter.depth().oldest_age, within=30)
    assert 0 < age < 60
    with channel(vhost) as raw:
        raw.queue_purge("exports")
        raw.basic_publish("", "exports", b"{}")
    why = "the sender of the first message has set no timestamp"
    eventually(lambda: client.adapter.depth().why.get("oldest_age") == why, within=30)


def test_a_queue_that_does_not_answer_delays_no_other_question(
    rabbitmq_node: Node, vhost: Vhost, open_client: OpenClient, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """The question ends in time, and its channel ends with the late answer, without a further question."""
    monkeypatch.setattr(owed, "ANSWER_WITHIN", 1.0)
    worker = open_client(f"{vhost.url}?management=off")
    worker.send("a")
    with channel(vhost) as raw:
        raw.queue_delete(RETRY[0])
        raw.queue_declare(RETRY[0], durable=True, arguments={"x-queue-type": "classic"})
    worker.start(eventually, prefetch=0)
    found = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost.name}">>, queue, <<"{RETRY[0]}">>))'
    rabbitmq_node.eval(f"begin {found}, sys:suspend(amqqueue:get_pid(Q)) end")
    try:
        with pytest.raises(BrokerUnavailable):
            worker.adapter.depth()
        worker.adapter.prefetch(1)
        eventually(lambda: worker.deliveries)
    finally:
        rabbitmq_node.eval(f"begin {found}, sys:resume(amqqueue:get_pid(Q)) end")
    eventually(lambda: numbers(worker.adapter.depth()) == (0, 0, None, 0, 1))
    assert [type(signal) for signal in worker.signals] == [Connected, Delivered]


def test_rabbitmq_has_no_browse(open_client: OpenClient, without_api: str) -> None:
    """`basic.get` is a delivery, and counts towards a delivery limit."""
    assert not isinstance(open_client(without_api).adapter, Browses)


# --- The management API, without a broker -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rabbitmq_series", ["3.10", "4.3"], indirect=True)
def test_a_queue_without_its_majority_has_no_numbers(
    trio: Trio, open_client: OpenClient, eventually: Eventually
) -> None:
    first = trio.nodes[0]
    vhost = first.add_vhost()
    open_client(f"{vhost.url}?management={quote(first.management_url, safe='')}").send("abc")
    leader = trio.leader(vhost, "exports")
    here = next(node for node in trio.nodes if node is not leader)
    login = vhost.url.replace(f":{first.amqp}/", f":{here.amqp}/")
    client = open_client(f"{login}?management={quote(here.management_url, safe='')}")
    assert client.adapter.depth().ready == 3
    for node in trio.nodes:
        if node is not here:
            node.kill()

    def is_unreachable() -> bool:
        try:
            assert client.adapter.depth().ready in (0, 3), "before the API reports the lost majority"
        except BrokerUnavailable as error:
            return re.search("to be reachable, got: it is (minority|without a leader)", str(error)) is not None
        return False

    eventually(is_unreachable, within=60)


@dataclass(frozen=True, slots=True)
class Api(ManagementApi):
    """Returns what the test has set, and counts the queries."""

    reports: Mapping[str, ReportedMessages | Unanswered | None] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def messages(self, name: str) -> ReportedMessages | None:
        self.asked.append(name)
        found = self.reports[name]
        if isinstance(found, Unanswered):
            raise found
        return found


def api(**reports: ReportedMessages | Unanswered | None) -> Api:
    return Api("http://broker:15672", "shop", "secret", "/", reports=reports)


COUNTS = {name: QueueCount(0, 0) for name in ("exports.dead", *RETRY)} | {"exports": QueueCount(4, 1)}


def test_after_a_failed_query_the_api_is_left_alone_for_five_minutes() -> None:
    clock = FakeClock()
    reader = DepthReader(Topology(SPEC, Settings(delays=LEVELS)), clock)
    failing = api(exports=Unanswered("http://broker:15672 does not respond (timed out)", "open the port."))
    for _ in range(3):
        found = reader.depth(COUNTS, failing)
        assert found.unacked is None
        assert found.why["unacked"] == (
            "only the management API reports this number, "
            "but http://broker:15672 does not respond (timed out): open the port"
        )
    assert failing.asked == ["exports"]
    clock.advance(AGAIN_AFTER)
    working = api(exports=ReportedMessages("quorum", "running", "rabbit@host", 3))
    assert [reader.depth(COUNTS, working).unacked for _ in range(2)] == [3, 3]
    assert working.asked == ["exports", "exports"]


def test_a_refused_queue_is_counted_again_after_five_minutes() -> None:
    clock = FakeClock()
    reader = DepthReader(Topology(SPEC, Settings(delays=LEVELS)), clock)
    working = api(exports=ReportedMessages("quorum", "running", "rabbit@host", 3))
    everything = reader.queues()
    refused = CountRefused("Expected a count of queue 'exports.dead', got ACCESS_REFUSED: grant it.")
    assert numbers(reader.depth({**COUNTS, "exports.dead": refused}, working)) == (4, 0, 3, None, 1)
    assert {*everything} - {*reader.queues()} == {"exports.dead"}
    without = {name: count for name, count in COUNTS.items() if name != "exports.dead"}
    assert numbers(reader.depth(without, working)) == (4, 0, 3, None, 1)
    clock.advance(AGAIN_AFTER)
    assert {*everything} == {*reader.queues()}
    assert numbers(reader.depth(COUNTS, working)) == (4, 0, 3, 0, 1)


def test_a_second_query_counts_the_letters_of_a_reader_only_while_there_is_one() -> None:
    reader = DepthReader(Topology(SPEC, Settings(delays=LEVELS)), FakeClock())
    reports = api(
        **{
            "exports": ReportedMessages("quorum", "running", "rabbit@host", 0),
            "exports.dead": ReportedMessages("quorum", "running", "rabbit@host", 5),
        }
    )
    assert reader.depth(COUNTS, reports).dead == 0
    assert reports.asked == ["exports"]
    assert reader.depth({**COUNTS, "exports.dead": QueueCount(2, 1)}, reports).dead == 7
    assert reports.asked == ["exports", "exports", "exports.dead"]


def test_a_queue_without_statistics_has_a_reason_and_a_queue_that_is_missing_has_none() -> None:
    reader = DepthReader(Topology(SPEC, Settings(delays=LEVELS)), FakeClock())
    found = reader.depth(COUNTS, api(exports=ReportedMessages("quorum", leader="rabbit@host")))
    assert (found.unacked, found.oldest_age) == (None, None)
    assert "it has no statistics of this queue: wait ten seconds" in found.why["unacked"]
    assert reader.depth(COUNTS, api(exports=None)).unacked == 0


def test_without_the_api_a_0_can_be_a_queue_without_a_leader_and_is_no_number() -> None:
    reader = DepthReader(Topology(SPEC, Settings(delays=LEVELS)), FakeClock())
    counts = {**COUNTS, "exports": QueueCount(0, 0)}
    reason = (
        "RabbitMQ also reports 0 messages and 0 consumers for a quorum queue without a leader, and only the management API "
        "reports this number, and --broker names none: remove ?management=off from it, and log in with a password"
    )
    found = reader.depth(counts, None)
    assert found == Depth.unknown(reason)
    some = {**counts, RETRY[1]: QueueCount(2, 0), "exports.dead": QueueCount(1, 0)}
    assert numbers(reader.depth(some, None)) == (None, 2, None, 1, None)
    missing = QueueCount(0, 0, exists=False)
    assert numbers(reader.depth(dict.fromkeys(COUNTS, missing), None)) == (0, 0, None, 0, 0)
    assert numbers(reader.depth({**COUNTS, "exports": QueueCount(0, 1)}, None)) == (0, 0, None, 0, 1)
    failing = api(exports=Unanswered("http://broker:15672 does not respond (timed out)", "open the port."))
    assert reader.depth(counts, failing).why["ready"].endswith("does not respond (timed out): open the port")
    working = api(exports=ReportedMessages("quorum", "running", "rabbit@host", 0))
    reader = DepthReader(Topology(SPEC, Settings(delays=LEVELS)), FakeClock())
    assert numbers(reader.depth(counts, working)) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("state", ["minority", "down", "stopped", "crashed", "without a leader"])
def test_a_queue_that_the_broker_cannot_reach_has_no_numbers(state: str) -> None:
    """Over AMQP, a quorum queue without a leader has 0 messages and 0 consumers, however many messages it has."""
    reader = DepthReader(Topology(SPEC, Settings(delays=LEVELS)), FakeClock())
    with pytest.raises(BrokerUnavailable, match=f"'exports' to be reachable, got: it is {state}") as raised:
        reader.depth({**COUNTS, "exports": QueueCount(0, 0)}, api(exports=ReportedMessages("quorum", state, "")))
    assert raised.value.id == "rabbitmq.queue-node-down"


def test_a_retry_queue_that_cannot_be_counted_leaves_the_other_numbers() -> None:
    reader = DepthReader(Topology(SPEC, Settings(delays=LEVELS)), FakeClock())
    away = BrokerUnavailable("Expected queue 'exports.later.1000ms', got: its node is down (404).")
    working = api(exports=ReportedMessages("quorum", "running", "rabbit@host", 3))
    found = reader.depth({**COUNTS, RETRY[0]: away}, working)
    assert numbers(found) == (4, None, 3, 0, 1)
    assert found.why["delayed"] == found.why["next_due"] == str(away).removesuffix(".")
    found = reader.depth({**COUNTS, "exports.dead": away}, working)
    assert numbers(found) == (4, 0, 3, None, 1)
    with pytest.raises(BrokerUnavailable):
        reader.depth({**COUNTS, "exports": away}, working)
