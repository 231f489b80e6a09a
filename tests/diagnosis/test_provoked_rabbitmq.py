"""
Real brokers and pika are made to say what the catalogue explains, so that a new text of a new version is noticed.

Each provocation (`wrong_frames`, `wrong_requests`, `wrong_rights`, `wrong_states`, `wrong_pika`) does one thing wrong.
The broker's own log and pika's log and exceptions are then searched as a whole.
The catalogue has to find the expected entries there, their consequences (`follows`), and nothing else.
These tests are slow ones: they prove the texts of other programs, which change with their versions only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.brokers.trio import Trio
from tests.diagnosis import sample_files, wrong_frames, wrong_pika, wrong_requests, wrong_rights, wrong_states
from tests.diagnosis.explaining import Log, catalogue, consequences, records
from tests.diagnosis.provocation import Scene, on_channel, queue

LATE = {
    "amqp.frame-error-close",
    "rabbitmq.no-dead-letter-queue",
    "rabbitmq.no-dead-letter-exchange",
    "rabbitmq.port-taken",
}
"""What the broker writes some seconds later: perhaps into the log of the next provocation."""

GONE = "amqp.closed-unexpectedly"
NEWEST = {"4.3"}
OLDEST = {"3.10"}


@dataclass(frozen=True)
class Case:
    """
    One provocation, and what the catalogue has to find.

    Attributes:
        act: What goes wrong.
        broker: The ids in the broker's log.
        client: The ids in what pika, or the raw client, said.
        also: Ids that may be found beside them.
        series: The versions that say it; all, if empty.
    """

    act: Callable[[Scene], object]
    broker: set[str]
    client: set[str]
    also: set[str]
    series: frozenset[str] = frozenset()


def case(
    act: Callable[[Scene], object],
    broker: str = "",
    client: str = "",
    also: str = "",
    *,
    series: set[str] | None = None,
) -> Case:
    return Case(act, set(broker.split()), set(client.split()), set(also.split()), frozenset(series or ()))


def both(act: Callable[[Scene], object], ids: str, also: str = "", *, series: set[str] | None = None) -> Case:
    """Broker and client say it."""
    return case(act, ids, ids, also, series=series)


F, R, A, S, P = wrong_frames, wrong_requests, wrong_rights, wrong_states, wrong_pika
IN = "amqp.frame-too-large"  # without the channel's number, a client's text does not show which protocol it is

CASES = [
    # --- Bytes
    both(F.second_header, "amqp.second-header"),
    case(F.http_within, "amqp.http-in-connection", IN),
    case(F.http_answer_within, "amqp.http-in-connection", IN),
    case(F.tls_within, "amqp.tls-in-connection", IN),
    both(F.stomp_within, "amqp.stomp-in-connection"),
    case(F.proxy_within, "amqp.proxy-protocol-in-connection", IN),
    both(F.large_headers, "amqp.frame-too-large"),
    both(F.large_body_frame, "amqp.frame-too-large"),
    both(F.wrong_end, "amqp.invalid-frame-end"),
    both(F.frame_in_frame, "amqp.invalid-frame-end"),
    both(F.unknown_type, "amqp.unknown-frame-type"),
    both(F.method_in_content, "amqp.interleaved-frames"),
    both(F.body_before_header, "amqp.interleaved-frames"),
    both(F.content_without_method, "amqp.interleaved-frames"),
    case(F.bad_method, "amqp.bad-method"),
    both(F.bad_arguments, "amqp.bad-arguments"),
    case(F.frame_error_close, "amqp.frame-error-close", "", "amqp.invalid-frame-end"),
    case(F.http_at_start, "amqp.http-on-port"),
    case(F.tls_at_start, "amqp.tls-on-port", "tls.plain-port"),
    case(F.stomp_at_start, "amqp.stomp-on-port"),
    case(F.proxy_at_start, "amqp.proxy-protocol-on-port"),
    case(F.mqtt_at_start, "amqp.unknown-protocol-on-port"),
    case(F.heartbeat_at_start, "amqp.frame-before-header"),
    case(F.ssh_at_start, "amqp.unknown-protocol-on-port"),
    case(F.old_amqp, "amqp.wrong-version", series={"4.0", "4.3"}),
    case(F.odd_amqp, "amqp.wrong-version"),
    case(F.amqp_1_0, "amqp.wrong-version", series=NEWEST),
    case(F.amqp_1_0, "amqp.one-zero-not-enabled", series=OLDEST),
    case(F.handshakes, "amqp.handshake-timeout"),
    case(F.plain_on_tls_port, "amqp.plain-on-tls-port"),
    both(F.dead_channel, "amqp.dead-channel"),
    both(F.channel_twice, "amqp.channel-opened-twice"),
    both(F.too_many_channels, "amqp.too-many-channels"),
    case(F.refused_limits, "amqp.limits-refused amqp.unknown-mechanism"),
    case(F.tick_missed, "amqp.missed-heartbeat"),
    case(F.gone, GONE),
    case(F.gone_in_frame, GONE),
    case(F.gone_while_opening, GONE),
    # --- Requests
    both(R.other_durable, "rabbitmq.exclusive-queue"),
    both(R.other_ttl, "rabbitmq.inequivalent-argument"),
    both(R.missing_dlx, "rabbitmq.inequivalent-argument"),
    both(R.other_exchange_type, "rabbitmq.inequivalent-argument"),
    both(R.other_queue_type, "rabbitmq.other-queue-type"),
    both(R.unknown_exchange_type, "rabbitmq.unknown-exchange-type"),
    both(R.text_ttl, "rabbitmq.invalid-argument"),
    both(R.negative_ttl, "rabbitmq.invalid-argument"),
    both(R.quorum_priority, "rabbitmq.not-for-this-queue-type"),
    both(R.quorum_not_durable, "rabbitmq.not-for-this-queue-type", "rabbitmq.deprecated-feature"),
    both(R.quorum_exclusive, "rabbitmq.not-for-this-queue-type"),
    both(R.stream_without_prefetch, "rabbitmq.stream-without-prefetch"),
    both(R.reserved_queue, "rabbitmq.reserved-name"),
    both(R.reserved_exchange, "rabbitmq.reserved-name"),
    both(R.default_exchange, "rabbitmq.default-exchange"),
    both(R.internal_exchange, "rabbitmq.internal-exchange"),
    case(R.deprecated_features, "rabbitmq.deprecated-feature", series=NEWEST),
    both(R.no_queue, "rabbitmq.no-queue"),
    both(R.no_exchange, "rabbitmq.no-exchange"),
    both(R.no_bind_source, "rabbitmq.no-exchange"),
    both(R.no_vhost, "rabbitmq.no-vhost"),
    both(R.unknown_tag, "amqp.unknown-delivery-tag"),
    both(R.double_ack, "amqp.unknown-delivery-tag"),
    both(R.delivery_timeout, "amqp.delivery-timeout", GONE, series={"3.10", "4.0"}),
    both(R.delivery_timeout_43, "amqp.delivery-timeout", GONE, series=NEWEST),
    both(R.consumer_tag_twice, "rabbitmq.consumer-tag-reused"),
    both(R.exclusive_queue, "rabbitmq.exclusive-queue"),
    both(R.exclusive_consumer, "rabbitmq.exclusive-consumer"),
    both(R.delete_used, "rabbitmq.delete-refused"),
    both(R.delete_full, "rabbitmq.delete-refused"),
    both(R.delete_bound_exchange, "rabbitmq.delete-refused"),
    both(R.get_from_single_active, "rabbitmq.get-with-single-active-consumer"),
    both(R.large_message, "rabbitmq.message-too-large"),
    both(R.confirm_in_transaction, "rabbitmq.confirms-and-transactions"),
    both(R.commit_without_transaction, "rabbitmq.not-transactional"),
    both(R.immediate, "rabbitmq.immediate"),
    both(R.prefetch_size, "rabbitmq.prefetch-size"),
    both(R.other_user_id, "rabbitmq.wrong-user-id"),
    both(R.text_expiration, "rabbitmq.invalid-expiration"),
    both(A.wrong_password, "rabbitmq.login-refused"),
    both(A.unknown_user, "rabbitmq.login-refused"),
    both(A.closed_vhost, "rabbitmq.vhost-refused"),
    both(A.may_not_configure, "rabbitmq.right-missing"),
    both(A.may_not_write, "rabbitmq.right-missing"),
    both(A.may_not_read, "rabbitmq.right-missing"),
    both(A.may_not_write_topic, "rabbitmq.topic-right-missing"),
    both(A.user_connections, "rabbitmq.user-connection-limit"),
    both(A.user_channels, "rabbitmq.user-channel-limit"),
    both(A.vhost_connections, "rabbitmq.vhost-connection-limit"),
    both(A.vhost_queues, "rabbitmq.vhost-queue-limit"),
    both(A.node_connections, "rabbitmq.node-connection-limit", series={"4.0", "4.3"}),
    both(A.node_channels, "rabbitmq.node-channel-limit", series={"4.0", "4.3"}),
    case(A.management_password, "rabbitmq.management-login-refused", "", "rabbitmq.login-refused"),
    case(A.management_tag, "rabbitmq.management-tag-missing"),
    both(R.odd_channel_error, "amqp.channel-error"),
    both(R.odd_connection_error, "amqp.connection-error"),
    # --- States
    case(S.memory_alarm, "rabbitmq.memory-alarm", "pika.blocked pika.blocked-timeout", GONE),
    case(S.disk_alarm, "rabbitmq.disk-alarm", "pika.blocked pika.blocked-timeout", GONE),
    case(S.file_descriptors, "rabbitmq.file-descriptor-alarm", series={"3.10", "4.0"}),
    both(S.closed_by_operator, "amqp.connection-forced"),
    both(S.closed_by_management, "rabbitmq.closed-via-management"),
    both(S.user_deleted, "rabbitmq.user-deleted"),
    both(S.vhost_deleted, "rabbitmq.vhost-deleted"),
    both(S.vhost_down, "rabbitmq.vhost-down"),
    case(S.shutdown, "rabbitmq.node-shutdown", "rabbitmq.node-shutdown"),
    case(S.killed, "", "pika.stream-lost"),
    case(S.not_reading, "amqp.peer-not-reading", "", GONE, series=OLDEST),
    case(S.not_reading, GONE, series=NEWEST),
    case(S.unknown_ca, "tls.client-gave-up", "tls.certificate-not-trusted"),
    case(S.wrong_host, "tls.client-gave-up", "tls.wrong-host"),
    case(S.expired, "tls.client-gave-up", "tls.certificate-expired"),
    case(S.old_tls, "tls.no-common-version", "tls.no-common-version"),
    case(S.no_certificate, "tls.client-certificate-missing", "tls.client-certificate-missing", series=NEWEST),
    case(S.no_certificate, "tls.client-certificate-missing", series=OLDEST | {"4.0"}),
    case(S.strange_client, "tls.client-certificate-not-trusted", "", "tls.client-certificate-not-trusted"),
    case(S.expired_client, "tls.client-certificate-expired", "", "tls.client-certificate-expired"),
    case(S.dead_letter_cycle, "rabbitmq.dead-letter-cycle"),
    case(S.no_dead_letter_target, "rabbitmq.no-dead-letter-exchange"),
    case(S.no_dead_letter_route, "rabbitmq.no-dead-letter-queue"),
    case(S.mirrored_policy, "", "rabbitmq.unknown-policy-setting", series={"4.0", "4.3"}),
    case(S.wrong_cookie, "rabbitmq.wrong-cookie", "rabbitmq.wrong-cookie"),
    case(S.in_json, f"amqp.second-header rabbitmq.no-queue {GONE}", "amqp.second-header rabbitmq.no-queue"),
    case(S.node_name_taken, "", "rabbitmq.node-already-runs"),
    case(S.distribution_port_taken, "", "rabbitmq.distribution-port-taken"),
    case(S.wrong_setting, "", "rabbitmq.unknown-setting"),
    case(S.port_taken, "rabbitmq.port-taken"),
    case(
        S.dead_lettering_ended,
        "rabbitmq.dead-lettering-ended",
        "rabbitmq.internal-error",
        "rabbitmq.node-shutdown",
        series={"3.10", "4.0"},
    ),
    case(
        S.dead_lettering_ended,
        "rabbitmq.dead-lettering-ended rabbitmq.no-majority",
        "rabbitmq.no-majority",
        "rabbitmq.node-shutdown",
        series=NEWEST,
    ),
    # --- pika
    case(
        P.two_threads,
        "",
        "pika.shared-between-threads",
        "amqp.interleaved-frames amqp.invalid-frame-end amqp.unknown-frame-type amqp.frame-too-large amqp.dead-channel "
        f"amqp.bad-arguments amqp.bad-method amqp.connection-error {GONE} pika.channel-closed "
        "pika.connection-closed pika.stream-lost",
    ),
    case(P.closed_connection, "", "pika.connection-closed"),
    case(P.closed_channel, "", "pika.channel-closed"),
    case(P.no_broker, "", "network.connection-refused"),
    case(P.closing_peer, "", "pika.not-amqp"),
    case(P.tls_port, "amqp.plain-on-tls-port", "pika.not-amqp"),
    case(P.silent_peer, "", "pika.handshake-timeout"),
    case(P.no_such_host, "", "network.unknown-host"),
    case(P.unroutable, "", "pika.unroutable"),
    case(P.nacked, "", "pika.nacked"),
    case(P.consumer_tag, "", "pika.duplicate-consumer-tag"),
    case(P.reentrant, "", "pika.reentrant"),
    case(P.no_channels, "", "pika.no-free-channels"),
    case(P.long_name, "", "pika.name-too-long"),
    case(P.odd_header, "", "pika.unsupported-value"),
    case(P.frozen_broker, GONE, "pika.heartbeat-timeout"),
    case(P.lost_peer, GONE, "pika.stream-lost"),
    case(P.zombie, "", "pika.consumer-timeout-zombie", series=NEWEST),
]


@pytest.fixture(scope="module")
def vhosts() -> Iterator[dict[Node, Vhost]]:
    """The virtual host of this module at each node: one for all provocations, as making one takes longer than most of them."""
    made: dict[Node, Vhost] = {}
    yield made
    for node, vhost in made.items():
        node.heal()
        node.remove_vhost(vhost)


@pytest.fixture
def rabbitmq_node(rabbitmq: RabbitMQ) -> Node:
    """As elsewhere, but not healed after each test: a provocation restores what it has set, and most take less time than to heal."""
    if not isinstance(rabbitmq, Node):
        pytest.skip("these tests read the broker's log, and change its settings")
    return rabbitmq


@pytest.fixture
def scene(rabbitmq_node: Node, vhosts: dict[Node, Vhost]) -> Scene:
    if rabbitmq_node not in vhosts:
        vhosts[rabbitmq_node] = rabbitmq_node.add_vhost()
    return Scene(rabbitmq_node, vhosts[rabbitmq_node])


def _name(case_: Case) -> str:
    only = f"-{'-'.join(sorted(case_.series))}" if case_.series else ""
    return f"{case_.act.__name__}{only}"


@pytest.mark.slow
@pytest.mark.parametrize("told", CASES, ids=_name)
def test_each_line_of_the_log_is_explained(scene: Scene, told: Case) -> None:
    if told.series and scene.node.series not in told.series:
        pytest.skip(f"RabbitMQ {scene.node.series} says something else, or nothing")
    log = Log(scene.node.log)
    with scene.keeping_warnings():
        told.act(scene)
        if GONE in told.also:
            scene.wait_for_silence()  # or the next provocation's log would have it
    in_log = log.until(told.broker)
    by_client = records("\n".join(scene.texts))
    assert told.client <= by_client.keys(), scene.texts
    known = consequences(told.broker | told.client) | told.also | LATE
    assert not {name: record for name, record in (in_log | by_client).items() if name not in known}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("rabbitmq_series", ["3.10"], indirect=True)
def test_a_cluster_that_has_lost_nodes(trio: Trio) -> None:
    """First the node of a classic queue, then the majority of a quorum queue."""
    first, second, third = trio.nodes
    scene = Scene(first, first.add_vhost())
    with scene.connection(port=third.amqp) as connection:
        queue(connection.channel(), "mine")
    log = Log(first.log)
    third.kill()
    on_channel(scene, lambda channel: channel.queue_declare("mine", passive=True))
    second.kill()
    on_channel(scene, lambda channel: queue(channel, "new", x_queue_type="quorum"))
    lost = {"rabbitmq.queue-node-down", "rabbitmq.no-majority"}
    assert lost <= records("\n".join(scene.texts)).keys()
    assert log.until(lost).keys() - lost <= LATE | {GONE}


def test_each_provoked_entry_has_a_provocation() -> None:
    """An entry that says that a test of this file provokes it is the aim of one here."""
    here = {
        identity
        for identity, samples in sample_files.load().items()
        for sample in samples
        if sample.test.endswith("test_provoked_rabbitmq.py::test_each_line_of_the_log_is_explained")
    }
    assert here - {name for one in CASES for name in one.broker | one.client} == set()


TOOLS = ("rabbitmqctl", "rabbitmq-diagnostics", "rabbitmq-plugins")


@pytest.mark.slow
def test_each_command_of_the_catalogue_exists(rabbitmq_node: Node) -> None:
    """An operator can run what the catalogue advises: each command is one that RabbitMQ's own help lists, on the newest version."""
    if rabbitmq_node.series not in NEWEST:
        pytest.skip("an older version has not all commands")
    texts = [text for entry in catalogue().values() for text in (*entry.remedies, *entry.verify)]
    for tool in TOOLS:
        advised = {found for text in texts for found in re.findall(rf"\b{tool} ([a-z_]+)", text)}
        help_ = rabbitmq_node._run(rabbitmq_node._enter(rabbitmq_node._program(tool), "help"))
        assert advised - {*re.findall(r"^ +([a-z_]+) ", help_, re.MULTILINE)} == set(), tool
