"""RabbitMQ: what is made, left alone, found wrong and healed on a real broker; each finding's own line is run."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.delivery import OutgoingMessage, Target
from steadyworker.errors import BrokerUnavailable, ConfigError, Finding, TargetMissing
from steadyworker.network import owed
from steadyworker_rabbitmq.checks.findings import find
from steadyworker_rabbitmq.checks.management import ManagementApi
from steadyworker_rabbitmq.checks.probe import BrokerProbe
from steadyworker_rabbitmq.checks.queue_state import differences
from steadyworker_rabbitmq.declare import PreparedQueues, prepare
from steadyworker_rabbitmq.topology import Topology
from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.support.stage import eventually

HOUR = 3600.0
WITHIN = 15.0


class Bench:
    """One virtual host, and what the tests ask of it."""

    def __init__(self, rabbitmq: RabbitMQ, vhost: Vhost) -> None:
        self.rabbitmq, self.vhost = rabbitmq, vhost
        self.version = rabbitmq.version
        self.connection = pika.BlockingConnection(pika.URLParameters(vhost.url))
        self.management = ManagementApi(rabbitmq.management_url, vhost.user, vhost.password, vhost.name)

    def topology(
        self, mode: str = "declare", *, queue: str = "exports", time_limit: float | None = 60.0, **more: Any
    ) -> Topology:
        return Topology(
            QueueSpec(queue, f"{queue}.dead", time_limit=time_limit),
            Settings(topology=mode, delays=(0.2, 1.0, 30.0), **more),
        )

    def make(self, name: str, **arguments: Any) -> None:
        with self.connection.channel() as channel:
            channel.queue_declare(
                name, durable=True, arguments={key.replace("_", "-"): value for key, value in arguments.items()}
            )

    def has(self, name: str) -> bool:
        return BrokerProbe(self.connection, None).exists(name)

    def queues(self) -> dict[str, Any]:
        """Every queue's arguments, as the broker has them."""
        return {
            queue["name"]: queue["arguments"] for queue in self.rabbitmq.management("GET", f"queues/{self.vhost.name}")
        }

    def policy(self, pattern: str, /, **definition: Any) -> None:
        body = {
            "pattern": pattern,
            "definition": {key.replace("_", "-"): value for key, value in definition.items()},
            "apply-to": "queues",
        }
        self.rabbitmq.management("PUT", f"policies/{self.vhost.name}/test", body)

    @contextmanager
    def set(self, setting: str, milliseconds: int, *, usually: int) -> Iterator[None]:
        """A setting of the broker's, where it is ours to set."""
        if not isinstance(self.rabbitmq, Node):
            yield
            return
        self.rabbitmq.eval(f"application:set_env(rabbit, {setting}, {milliseconds})")
        yield
        self.rabbitmq.eval(f"application:set_env(rabbit, {setting}, {usually})")

    def run(self, line: str) -> None:
        """Run a remedy's command, as an operator would."""
        assert isinstance(self.rabbitmq, Node)
        program, *words = shlex.split(line)
        assert program == "rabbitmqctl"
        self.rabbitmq.ctl(*words)

    def get(self, channel: BlockingChannel, queue: str) -> bytes:
        """The next message, acknowledged."""
        body: bytes = until(lambda: channel.basic_get(queue, auto_ack=True)[2])
        return body


def until(answer: Callable[[], Any]) -> Any:
    """The first answer that is not None or empty."""
    return eventually(answer, "the answer", WITHIN)


def publish(channel: BlockingChannel, topology: Topology, body: bytes, delay: float) -> None:
    exchange, key = topology.route(OutgoingMessage(Target.LATER, body, {}, delay))
    channel.basic_publish(exchange, key, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def about(findings: list[Finding], text: str) -> Finding:
    """The one finding with this text."""
    (found,) = (finding for finding in findings if text in finding.what)
    return found


def facts(prepared: PreparedQueues) -> PreparedQueues:
    """All facts but the command, which has a condition until the queue's policy is reported."""
    return replace(prepared, longer_timeout="")


@pytest.fixture
def bench(rabbitmq: RabbitMQ, vhost: Vhost) -> Iterator[Bench]:
    bench = Bench(rabbitmq, vhost)
    yield bench
    if bench.connection.is_open:
        bench.connection.close()


@pytest.fixture
def ours(bench: Bench, rabbitmq_node: Node) -> Bench:
    """The same, where the broker is ours to command."""
    return bench


@pytest.fixture
def channel(bench: Bench) -> BlockingChannel:
    channel = bench.connection.channel()
    channel.confirm_delivery()
    return channel


# --- Making -----------------------------------------------------------------------------------------------------------


def test_from_nothing_everything_is_made_as_planned_and_a_second_time_nothing_changes(bench: Bench) -> None:
    topology = bench.topology()
    prepared = prepare(bench.connection, topology, bench.management)
    made = bench.queues()
    assert made == {planned.name: dict(planned.arguments) for planned in topology.queues(bench.version)}
    assert facts(prepare(bench.connection, topology, bench.management)) == facts(prepared)
    assert bench.queues() == made


def test_the_management_api_is_not_needed(bench: Bench) -> None:
    with_it = prepare(bench.connection, bench.topology(), bench.management)
    assert facts(prepare(bench.connection, bench.topology(), None)) == facts(with_it)


@pytest.mark.parametrize("asked", [True, False], ids=["with management", "without"])
def test_a_classic_work_queue_that_exists_is_used_as_it_is(bench: Bench, asked: bool) -> None:
    bench.make("exports", x_max_priority=3)
    management = bench.management if asked else None
    prepared = prepare(bench.connection, bench.topology(), management)
    assert prepared.consume_arguments == {}
    assert bench.queues()["exports"].items() - {("x-queue-type", "classic")} == {
        ("x-max-priority", 3)
    }  # 4.x adds it itself
    found = [finding.id for finding in find(bench.connection, bench.topology(), management)]
    reported = asked or bench.version >= (4, 3)  # before 4.3, only the API reports the type of a classic queue
    assert ("rabbitmq.classic-queue" in found) is reported


def test_without_the_management_api_a_refused_declaration_names_one_difference(bench: Bench) -> None:
    """The arguments stay unknown, so the worker process relies on none of them; the queue is not changed."""
    arguments = {"x-queue-type": "quorum", "x-max-length": 7, "x-overflow": "reject-publish"}
    bench.make("exports", **arguments)
    (work,) = (planned for planned in bench.topology().queues(bench.version) if planned.role == "work")
    queue = BrokerProbe(bench.connection, None).queue(work, redeclare=True)
    assert queue is not None
    assert queue.arguments is None
    assert [str(each) for each in differences(work, queue)] == ["x-dead-letter-exchange: expected '', got none"]
    prepared = prepare(bench.connection, bench.topology(), None)
    assert (prepared.rejects, prepared.continues_consumers, prepared.counts_holders) == (False, False, True)
    assert bench.queues()["exports"] == arguments


@pytest.mark.parametrize("name", ["exports", "exports.dead"])
def test_without_the_management_api_check_reports_the_difference_that_the_broker_names(bench: Bench, name: str) -> None:
    """Both by a certificate's login and by `?management=off`; only this shows that messages would be dropped."""
    prepare(bench.connection, bench.topology(), None)
    arguments = bench.queues()[name]
    bench.rabbitmq.management("DELETE", f"queues/{bench.vhost.name}/{name}")
    bench.make(name, **{**arguments, "x-max-length": 7})
    (finding,) = find(bench.connection, bench.topology(), None)
    assert (finding.id, finding.level) == ("rabbitmq.queue-differs", "warning")
    assert f"{name!r} differs" in finding.what
    assert "x-max-length: expected none, got 7" in finding.what


@pytest.mark.parametrize("name", ["exports", "exports.dead", "exports.later.1000ms"])
def test_a_flag_that_differs_is_named_with_its_planned_value(bench: Bench, name: str) -> None:
    with bench.connection.channel() as channel:
        channel.queue_declare(name, durable=False)
    found = find(bench.connection, bench.topology(), None)
    assert about(found, "durable: expected True, got False").level == (
        "error" if name == "exports.later.1000ms" else "warning"
    )


def test_a_queue_that_is_not_durable_is_an_error(bench: Bench) -> None:
    with bench.connection.channel() as channel:
        channel.queue_declare("exports", durable=False, auto_delete=True)
    for management in (bench.management, None):
        assert about(find(bench.connection, bench.topology(), management), "not durable").level == "error"


@pytest.mark.parametrize("mode", ["declare", "verify", "trust"])
@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ({"auto_delete": True}, "when its last consumer leaves, the broker deletes it with all waiting messages"),
        ({"arguments": {"x-queue-type": "stream"}}, "is a stream"),
    ],
    ids=["auto-delete", "stream"],
)
def test_a_work_queue_that_cannot_hold_jobs_is_an_error_in_every_mode(
    bench: Bench, kind: dict[str, Any], named: str, mode: str
) -> None:
    """Waiting messages of an auto-delete queue are gone with a SIGUSR1; no mode may ignore that."""
    with bench.connection.channel() as channel:
        channel.queue_declare("exports", durable=True, **kind)
    for management in (bench.management, None):
        assert about(find(bench.connection, bench.topology(mode), management), named).level == "error"
    assert set(bench.queues()) == {"exports"}


@pytest.mark.parametrize("mode", ["declare", "verify"])
def test_an_auto_delete_dead_letter_queue_is_an_error(bench: Bench, mode: str) -> None:
    """`dead list` is a consumer, too: the letters would be gone when it has listed them."""
    with bench.connection.channel() as channel:
        channel.queue_declare("exports.dead", durable=True, auto_delete=True)
    for management in (bench.management, None):
        finding = about(find(bench.connection, bench.topology(mode), management), "'exports.dead' is auto-delete")
        assert finding.level == "error"


def test_verify_sees_the_flags_of_a_queue_without_the_management_api(bench: Bench) -> None:
    with bench.connection.channel() as channel:
        channel.queue_declare("exports", durable=False, auto_delete=True)
        channel.queue_declare("exports.dead", durable=True)
    found = find(bench.connection, bench.topology("verify"), None)
    assert about(found, "'exports' is auto-delete").level == "error"
    assert about(found, "'exports' is not durable").level == "error"
    assert set(bench.queues()) == {"exports", "exports.dead"}


@pytest.mark.parametrize("asked", [True, False], ids=["with management", "without"])
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"x-dead-letter-strategy": None}, "x-dead-letter-strategy: expected 'at-least-once', got none"),
        ({"x-overflow": None}, "x-overflow: expected 'reject-publish', got none"),
        ({"x-message-ttl": 5000}, "x-message-ttl: expected 1000, got 5000"),
        ({"x-dead-letter-routing-key": "other"}, "x-dead-letter-routing-key: expected 'exports', got 'other'"),
    ],
)
def test_a_retry_queue_that_would_lose_copies_is_an_error(
    bench: Bench, changed: dict[str, Any], named: str, asked: bool
) -> None:
    topology = bench.topology()
    (retry,) = (planned for planned in topology.queues(bench.version) if planned.name.endswith(".1000ms"))
    arguments = {name: value for name, value in ({**retry.arguments, **changed}).items() if value is not None}
    bench.make(retry.name, **arguments)
    management = bench.management if asked else None
    with pytest.raises(ConfigError) as raised:
        prepare(bench.connection, topology, management)
    assert named in str(raised.value)
    assert raised.value.findings == (about(find(bench.connection, topology, management), named),)


# --- Looking only -----------------------------------------------------------------------------------------------------


def test_verify_makes_nothing_and_names_what_is_missing(bench: Bench) -> None:
    with pytest.raises(TargetMissing, match=r"'exports\.dead'.*x-queue-type=quorum"):
        prepare(bench.connection, bench.topology("verify"), bench.management)
    missing = [
        finding
        for finding in find(bench.connection, bench.topology("verify"), bench.management)
        if "got none" in finding.what
    ]
    assert len(missing) == 5
    assert bench.queues() == {}


def test_verify_is_content_with_what_declare_made(bench: Bench) -> None:
    prepared = prepare(bench.connection, bench.topology(), bench.management)
    assert facts(prepare(bench.connection, bench.topology("verify"), bench.management)) == facts(prepared)
    assert find(bench.connection, bench.topology("verify"), bench.management) == []


def test_trust_checks_nothing(bench: Bench) -> None:
    assert prepare(bench.connection, bench.topology("trust"), bench.management).consume_arguments == {}
    assert find(bench.connection, bench.topology("trust"), bench.management) == []
    assert bench.queues() == {}


def test_a_check_before_the_first_start_makes_nothing_and_names_what_will_be(bench: Bench) -> None:
    assert find(bench.connection, bench.topology(), bench.management) == []
    found = find(bench.connection, bench.topology(time_limit=3 * HOUR), bench.management)
    outlived = [] if bench.version >= (4, 3) else ["warning"]  # there the consumer sets it
    assert [finding.level for finding in found if "takes a delivery back after 1800 s" in finding.what] == outlived
    assert len(found) == len(outlived)
    assert bench.queues() == {}


def test_a_lost_connection_is_an_error_of_its_own(bench: Bench) -> None:
    bench.connection.close()
    for ask in (prepare, find):
        with pytest.raises(BrokerUnavailable):
            ask(bench.connection, bench.topology(), bench.management)


# --- Permissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("permissions", "refused"),
    [
        ({"configure": "^$", "write": ".*", "read": ".*"}, "create"),
        ({"configure": ".*", "write": "^$", "read": ".*"}, "publish to the default exchange"),
        ({"configure": ".*", "write": ".*", "read": "^$"}, "consume from 'exports'"),
    ],
    ids=["configure", "write", "read"],
)
def test_what_is_not_permitted_is_named_and_the_line_grants_it(
    ours: Bench, permissions: dict[str, str], refused: str
) -> None:
    name = ours.vhost.name
    ours.rabbitmq.management("PUT", f"permissions/{name}/{name}", permissions)
    found = find(ours.connection, ours.topology(), ours.management)
    assert {finding.level for finding in found} == {"error"}
    (remedy,) = {finding.remedy for finding in found}
    assert any(refused in finding.what for finding in found)
    assert ours.queues() == {}

    ours.run(remedy.partition(" (")[0])
    ours.connection.close()
    ours.connection = pika.BlockingConnection(pika.URLParameters(ours.vhost.url))
    assert find(ours.connection, ours.topology(), ours.management) == []
    prepare(ours.connection, ours.topology(), ours.management)


def test_under_an_alarm_all_but_the_permission_to_publish_is_found_in_time(rabbitmq_node: Node, vhost: Vhost) -> None:
    """Who publishes then is not read any more until the alarm is over: nothing else hangs with it, and the alarm is reported."""
    bench = Bench(rabbitmq_node, vhost)
    rabbitmq_node.set_memory_alarm(on=True)
    connection = pika.BlockingConnection(pika.URLParameters(vhost.url))
    assert prepare(connection, bench.topology(), bench.management) == prepare(bench.connection, bench.topology(), None)
    began = time.monotonic()
    (finding,) = find(connection, bench.topology(), bench.management)
    assert time.monotonic() - began < owed.QUESTION_WITHIN
    assert (finding.id, finding.level) == ("rabbitmq.memory-alarm", "warning")
    assert "accepts no messages (low on memory)" in finding.what
    rabbitmq_node.set_memory_alarm(on=False)
    bench.connection.close()


def test_who_may_not_make_queues_needs_no_permission_to_use_them(bench: Bench) -> None:
    made = prepare(bench.connection, bench.topology(), bench.management)
    name = bench.vhost.name
    bench.rabbitmq.management("PUT", f"permissions/{name}/{name}", {"configure": "^$", "write": ".*", "read": ".*"})
    assert prepare(bench.connection, bench.topology(), bench.management) == made
    bench.rabbitmq.management("DELETE", f"queues/{name}/exports")
    with pytest.raises(ConfigError, match=r"may not create queue 'exports'.*set_permissions"):
        prepare(bench.connection, bench.topology(), bench.management)


# --- Delays -----------------------------------------------------------------------------------------------------------


def test_copies_come_back_when_their_own_delay_is_over(bench: Bench, channel: BlockingChannel) -> None:
    """A long one first: it holds up none of the short ones behind it."""
    topology = bench.topology()
    prepare(bench.connection, topology, bench.management)
    sent = time.monotonic()
    for body, delay in ((b"long", 30.0), (b"middle", 0.7), (b"short", 0.1)):
        publish(channel, topology, body, delay)
    assert bench.get(channel, "exports") == b"short"
    assert 0.1 <= time.monotonic() - sent < 1.0
    assert bench.get(channel, "exports") == b"middle"
    assert 1.0 <= time.monotonic() - sent < 5.0
    assert channel.basic_get("exports")[2] is None


def test_copies_for_a_work_queue_that_is_gone_are_kept_and_hold_up_no_other_queue(
    ours: Bench, channel: BlockingChannel
) -> None:
    """More of them than a queue may have on their way at a time (32)."""
    gone, good = ours.topology(), ours.topology(queue="good")
    with ours.set("dead_letter_worker_publisher_confirm_timeout", 500, usually=180_000):
        for topology in (gone, good):
            prepare(ours.connection, topology, ours.management)
        channel.queue_delete("exports")
        bodies = {b"%d" % number for number in range(40)}
        for body in bodies:
            publish(channel, gone, body, 0.1)
        publish(channel, good, b"good", 0.1)
        assert ours.get(channel, "good") == b"good"

        prepare(ours.connection, gone, ours.management)
        assert {ours.get(channel, "exports") for _ in bodies} == bodies


def test_a_full_retry_queue_refuses_a_copy_instead_of_dropping_one(bench: Bench, channel: BlockingChannel) -> None:
    topology = bench.topology()
    prepare(bench.connection, topology, bench.management)
    bench.policy("30000ms$", max_length=1)

    def refused() -> bool:
        try:
            publish(channel, topology, b"copy", 30.0)
        except NackError:
            return True
        return False

    until(refused)
    kept = channel.queue_declare("exports.later.30000ms", passive=True).method.message_count
    assert kept >= 1
    assert find(bench.connection, topology, bench.management) == []


# --- Long jobs --------------------------------------------------------------------------------------------------------


def test_nothing_counts_the_hand_overs_of_a_queue_that_we_made(bench: Bench, channel: BlockingChannel) -> None:
    """4.0 would drop it after 20, and 3.10 at the first return with a limit of -1."""
    prepare(bench.connection, bench.topology(), bench.management)
    channel.basic_publish("", "exports", b"job")
    for _ in range(25):
        tag = until(lambda: channel.basic_get("exports")[0]).delivery_tag
        channel.basic_reject(tag, requeue=True)
    assert bench.get(channel, "exports") == b"job"


def test_a_limit_that_would_drop_jobs_is_an_error_and_the_line_heals_it(ours: Bench) -> None:
    """A quorum queue of somebody's own: 4.x drops its messages after 20 deliveries, and has no dead-letter exchange."""
    ours.make("exports", x_queue_type="quorum")
    prepare(ours.connection, ours.topology(), ours.management)
    if ours.version < (4,):
        assert find(ours.connection, ours.topology(), ours.management) == []
        return
    (finding,) = until(lambda: find(ours.connection, ours.topology(), ours.management))
    assert "after 20 deliveries, without a dead letter" in finding.what
    assert finding.level == "error"
    ours.run(finding.remedy)
    until(lambda: find(ours.connection, ours.topology(), ours.management) == [])


@pytest.mark.parametrize("rabbitmq_series", ["4.3"], indirect=True)
@pytest.mark.parametrize("limit", [{}, {"x_delivery_limit": 100}], ids=["default", "own"])
def test_no_start_is_refused_because_a_new_queue_s_policy_is_not_yet_reported(
    bench: Bench, limit: dict[str, int]
) -> None:
    """The policy removes the default limit, and names a dead-letter exchange; the broker obeys it from the first moment."""
    bench.policy("^exports$", delivery_limit=-1, dead_letter_exchange="", dead_letter_routing_key="exports.dead")
    bench.make("exports", x_queue_type="quorum", x_message_ttl=60_000, x_max_length=10, **limit)

    def known() -> bool:
        queue = bench.management.queue("exports")
        assert queue is not None
        found = find(bench.connection, bench.topology(), bench.management)
        assert [finding for finding in found if finding.level == "error"] == []
        return queue.policy is not None

    until(known)
    found = find(bench.connection, bench.topology(), bench.management)
    assert {finding.id for finding in found} == {
        "rabbitmq.message-ttl",
        "rabbitmq.max-length",
        *(["rabbitmq.delivery-limit"] if limit else []),
    }


def test_a_limit_that_one_job_would_exhaust_is_an_error(bench: Bench) -> None:
    prepare(bench.connection, bench.topology(), bench.management)
    bench.policy("^exports$", delivery_limit=3)
    finding = until(
        lambda: [
            each for each in find(bench.connection, bench.topology(), bench.management) if "deliveries" in each.what
        ]
    )
    assert [(each.level, "may need 5 deliveries" in each.what) for each in finding] == [("error", True)]


def test_a_delivery_timeout_below_the_time_limit_is_a_warning_with_the_line_for_that_version(ours: Bench) -> None:
    """3.10: the node's setting; 3.12 to 4.2: a policy; 4.3: nothing to warn of, the consumer sets it itself."""
    topology = ours.topology(time_limit=3 * HOUR)
    prepared = prepare(ours.connection, topology, ours.management)
    found = find(ours.connection, topology, ours.management)
    if ours.version >= (4, 3):
        assert found == []
        assert prepared.delivery_timeout == 3 * HOUR + 900
        assert prepared.consume_arguments == {"x-consumer-timeout": 11_700_000}
        return
    assert prepared.delivery_timeout is None  # the version's default, but a policy or the node's setting can raise it
    assert prepared.consume_arguments == {}
    (finding,) = found
    assert "takes a delivery back after 1800 s" in finding.what
    assert "RabbitMQ's default" in finding.what
    if ours.version < (3, 12):
        assert finding.remedy == prepared.longer_timeout
        assert "consumer_timeout = 11700000" in finding.remedy
        return
    found = until(
        lambda: [each for each in find(ours.connection, topology, ours.management) if "if a policy" not in each.remedy]
    )
    assert prepared.longer_timeout.endswith(found[0].remedy)
    ours.run(found[0].remedy)
    until(lambda: find(ours.connection, topology, ours.management) == [])
    assert prepare(ours.connection, topology, ours.management).delivery_timeout == 3 * HOUR + 900


def test_what_the_management_api_would_report_is_missed_in_one_line_for_each_queue(bench: Bench) -> None:
    """Policies and timeout, and what to do about both; from 4.3 on there is no timeout that anybody but us could set."""
    prepare(bench.connection, bench.topology(), None)
    nobody = ManagementApi("http://127.0.0.1:1", "shop", "secret", bench.vhost.name)
    for time_limit, longest in ((3 * HOUR, "10800 s"), (None, "without limit")):
        letters, finding = find(bench.connection, bench.topology(time_limit=time_limit), nobody)
        assert finding.level == letters.level == "warning"
        assert "policies of queue 'exports.dead' could not be read" in letters.what
        assert "policies of queue 'exports' could not be read" in finding.what
        assert "rabbitmq-plugins enable rabbitmq_management" in finding.remedy
        outlived = bench.version < (4, 3)
        assert (f"may run {longest}, but the broker takes a delivery back after 1800 s" in finding.what) is outlived
        assert ("consumer_timeout" in finding.remedy or "consumer-timeout" in finding.remedy) is outlived
        assert finding.what.count("does not respond") == 1
    assert find(bench.connection, bench.topology(time_limit=None), bench.management) == [] or bench.version < (4, 3)


def test_the_delivery_timeout_that_applies_is_what_the_management_api_reports(
    ours: Bench, channel: BlockingChannel
) -> None:
    """A classic queue, as no consumer of it sets a timeout of its own; the node's setting shows with its first consumer."""
    assert isinstance(ours.rabbitmq, Node)
    if not (3, 12) <= ours.version < (4, 3):
        pytest.skip("asked for from 3.12 on, and never enforced for classic queues from 4.3 on")
    ours.rabbitmq.set_delivery_timeout(7777)
    ours.make("exports")
    channel.basic_consume("exports", lambda *_: None)
    until(lambda: prepare(ours.connection, ours.topology(), ours.management).delivery_timeout == 7777)


@pytest.mark.parametrize("rabbitmq_series", ["4.3"], indirect=True)
def test_our_own_delivery_timeout_is_honoured(ours: Bench, channel: BlockingChannel) -> None:
    """The node's is over, and a consumer without ours is cancelled; a consumer with it keeps its delivery."""
    assert isinstance(ours.rabbitmq, Node)
    ours.rabbitmq.set_delivery_timeout(2)
    prepared = prepare(ours.connection, ours.topology(time_limit=None), ours.management)
    assert prepared.delivery_timeout == 7 * 86400
    prepare(ours.connection, ours.topology(queue="short"), ours.management)
    cancelled: list[str] = []
    delivered: list[bytes] = []
    with pika.BlockingConnection(pika.URLParameters(ours.vhost.url)) as connection:  # opened when the setting was made
        consumer = connection.channel()
        consumer.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        for queue, arguments in (("exports", dict(prepared.consume_arguments)), ("short", {})):
            channel.basic_publish("", queue, b"job")
            consumer.basic_consume(
                queue, lambda *message: delivered.append(message[3]), consumer_tag=queue, arguments=arguments
            )
        deadline = time.monotonic() + WITHIN
        while not cancelled:
            assert time.monotonic() < deadline, "nobody was cancelled"
            connection.process_data_events(1)
    assert delivered == [b"job", b"job"]
    assert cancelled == ["short"]


@pytest.mark.parametrize("rabbitmq_series", ["4.3"], indirect=True)
def test_on_4_3_the_type_of_a_queue_is_learned_without_permission_to_declare(bench: Bench) -> None:
    bench.make("exports", x_queue_type="quorum")
    bench.make("plain")
    for mode in ("verify", "trust"):
        broker = BrokerProbe(bench.connection, None)
        assert (broker.queue_type("exports"), broker.queue_type("plain"), broker.queue_type("none")) == (
            "quorum",
            "classic",
            None,
        )
        if mode == "trust":
            prepared = prepare(bench.connection, bench.topology(mode), None)
            assert prepared.consume_arguments == {"x-consumer-timeout": 1_800_000}


# --- What would lose messages -----------------------------------------------------------------------------------------


def test_policies_that_drop_messages_are_found_with_what_to_remove(bench: Bench) -> None:
    prepare(bench.connection, bench.topology(), bench.management)
    bench.policy(".*", message_ttl=500, max_length=10, expires=60_000, overflow="drop-head")

    expected = {
        ("warning", "Jobs in 'exports' become dead letters without being run after 0.5 s."),
        ("warning", "Dead letters in 'exports.dead' are lost after 0.5 s."),
        (
            "warning",
            "Waiting jobs in 'exports.later.1000ms' return to the work queue too early, after 0.5 s, and must wait again.",
        ),
        (
            "warning",
            "Waiting jobs in 'exports.later.30000ms' return to the work queue too early, after 0.5 s, and must wait again.",
        ),
        ("warning", "Dead letters in 'exports.dead' are lost when the queue holds more than 10 (max-length)."),
    }
    for name in (
        "Jobs in 'exports'",
        "Dead letters in 'exports.dead'",
        *(f"Waiting jobs in 'exports.later.{ms}ms'" for ms in (200, 1000, 30000)),
    ):
        expected.add(("error", f"{name} are lost when the queue is unused for 60 s: it then expires (expires)."))

    def found() -> list[Finding]:
        found = find(bench.connection, bench.topology(), bench.management)
        return found if len(found) >= len(expected) else []

    found_ = until(found)
    assert {(finding.level, finding.what) for finding in found_} == expected
    assert [finding.remedy for finding in found_ if "policy 'test'" not in finding.remedy] == []
    for finding in found_:
        letters = "letters" if finding.what.startswith("Dead letters") else "jobs"
        assert finding.loses == (None if "return to the work queue" in finding.what else letters)


def test_a_policy_is_reported_with_the_first_statistics_of_a_new_queue(ours: Bench) -> None:
    """Until then it is unknown: no check computes it; the worker process checks again after a minute."""
    ours.policy(".*", expires=60_000)
    assert find(ours.connection, ours.topology(), ours.management) == []
    with ours.set("quorum_tick_interval", 60_000, usually=300):

        def made_without_statistics() -> bool:
            for name in ours.queues():
                ours.connection.channel().queue_delete(name)
            prepare(ours.connection, ours.topology(), ours.management)
            queue = ours.management.queue("exports")  # a busy node has the first statistics at once now and then
            return queue is not None and queue.policy is None

        until(made_without_statistics)
        found = find(ours.connection, ours.topology(), ours.management)
        assert [finding for finding in found if "'exports' are lost" in finding.what] == []
        found = find(ours.connection, ours.topology(), ours.management, consuming=True)
        finding = about(found, "policies of queue 'exports' could not be read: the management API reports no policy")
        assert "disable_metrics_collector" in finding.remedy
    for name in ours.queues():
        ours.connection.channel().queue_delete(name)
    prepare(ours.connection, ours.topology(), ours.management)
    names = ("exports", "exports.dead", "exports.later.1000ms")
    lost = {f"'{name}' are lost when the queue is unused" for name in names}

    def reported() -> bool:
        found = find(ours.connection, ours.topology(), ours.management)
        return all(any(text in each.what and each.level == "error" for each in found) for text in lost)

    until(reported)


def test_a_policy_with_lists_hides_no_error(bench: Bench) -> None:
    """`ha-params` of a mirrored queue; 4.x has no such policy, and another list instead."""
    listed: dict[str, Any] = {"ha_mode": "nodes", "ha_params": ["rabbit@a", "rabbit@b"]}
    if bench.version >= (4,):
        pytest.skip("no policy of 4.x takes a list; test_rabbitmq_management.py has an answer with one")
    bench.make("exports")
    bench.policy(".*", expires=60_000, **listed)

    def found() -> list[Finding]:
        found = find(bench.connection, bench.topology(), bench.management)
        return [finding for finding in found if "'exports' are lost" in finding.what]

    (finding,) = until(found)
    assert finding.level == "error"


def test_a_queue_of_somebody_s_own_that_drops_messages_is_an_error(bench: Bench) -> None:
    bench.make("exports", x_queue_type="quorum", x_message_ttl=60_000, x_max_length=10, x_delivery_limit=100)

    def judged() -> list[Finding]:
        """All findings, once the API reports that the new queue has no policy."""
        found = find(bench.connection, bench.topology(), bench.management)
        return found if any("100 deliveries" in finding.what for finding in found) else []

    found = until(judged)
    for text in (
        "Jobs in 'exports' are lost after 60 s",
        "more than 10 (max-length)",
        "after 100 deliveries, without a dead letter",
    ):
        assert (about(found, text).level, about(found, text).loses) == ("error", "jobs")
        assert "delete queue 'exports' and create it again without x-" in about(found, text).remedy


def test_a_misspelt_argument_is_found(bench: Bench) -> None:
    """The broker accepts it without an error, and the dead-letter exchange is simply not there."""
    bench.make("exports", x_dead_leter_exchange="")
    assert (
        "did you mean x-dead-letter-exchange?"
        in about(find(bench.connection, bench.topology(), bench.management), "ignores as unknown").what
    )


def test_what_will_surprise_is_found(bench: Bench) -> None:
    bench.make(
        "exports",
        x_queue_type="quorum",
        x_single_active_consumer=True,
        x_delayed_retry_type="returned",
        x_delayed_retry_min=5000,
        x_delivery_limit=50,
        x_dead_letter_exchange="",
    )
    found = find(bench.connection, bench.topology(), bench.management)
    for text in ("has a single active consumer", "becomes a dead letter after 50 deliveries"):
        assert about(found, text).level == "warning"
    delayed = [finding.what for finding in found if "an interrupted job goes on 5 s later" in finding.what]
    assert len(delayed) == (bench.version >= (4, 3))


def test_a_dead_letter_queue_that_counts_how_often_it_is_read_is_found(bench: Bench) -> None:
    bench.make("exports.dead", x_queue_type="quorum", x_delivery_limit=20)
    finding = about(find(bench.connection, bench.topology(), bench.management), "that has been read 20 times")
    assert finding.level == "warning"


def test_verify_reports_every_difference_of_a_queue_that_is_somebody_s_own(bench: Bench) -> None:
    prepare(bench.connection, bench.topology(), bench.management)
    bench.rabbitmq.management("DELETE", f"queues/{bench.vhost.name}/exports")
    bench.make("exports", x_queue_type="quorum", x_max_length=5, x_overflow="reject-publish")
    what = about(
        find(bench.connection, bench.topology("verify"), bench.management),
        "differs from what --topology declare would create",
    ).what
    assert "x-dead-letter-routing-key: expected 'exports.dead', got none" in what
    assert "x-max-length: expected none, got 5" in what


@pytest.mark.parametrize(("heartbeat", "expected"), [(2, "a pause of 4 s"), (600, "wait up to 1800 s")])
def test_a_heartbeat_that_is_too_hasty_or_too_rare_is_found(bench: Bench, heartbeat: int, expected: str) -> None:
    parameters = pika.URLParameters(bench.vhost.url)
    parameters.heartbeat = heartbeat
    with pika.BlockingConnection(parameters) as connection:
        assert about(find(connection, bench.topology("trust"), bench.management), expected).level == "warning"


def test_a_stream_is_no_work_queue(bench: Bench) -> None:
    bench.make("exports", x_queue_type="stream")
    assert about(find(bench.connection, bench.topology(), bench.management), "is a stream").level == "error"


def test_without_a_right_to_the_management_api_the_check_reports_what_it_did_not_see(bench: Bench) -> None:
    name = bench.vhost.name
    bench.rabbitmq.management("PUT", f"users/{name}", {"password": bench.vhost.password, "tags": ""})
    prepare(bench.connection, bench.topology(), bench.management)
    found = find(bench.connection, bench.topology("verify"), bench.management)
    assert "arguments and policies of queue 'exports.dead'" in about(found, "'exports.dead' could not be read").what
    finding = about(found, "arguments and policies of queue 'exports' could not be read")
    assert finding.level == "warning"
    assert f"user '{name}' may not read" in finding.what
    assert "the tag 'management'" in finding.remedy
    assert bench.vhost.password not in str(finding)
    assert find(bench.connection, bench.topology("verify"), None) == []  # whoever switched it off knows
