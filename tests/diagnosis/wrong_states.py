"""Provocations by the broker's own state, and by its operators: alarms, closes, certificates, dead letters."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from urllib.parse import quote

import pika
import trustme
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from tests.brokers.process import free_ports
from tests.diagnosis import wrong_frames, wrong_requests
from tests.diagnosis.amqp_client import OPENING
from tests.diagnosis.provocation import BELOW_4_3, FOUR, GONE, NEWEST, OLDEST, Scene, both, case, on_channel, queue

Answer = TypeVar("Answer")


def until(probe: Callable[[], Answer], *, within: float = 30.0) -> Answer:
    """Ask until the answer is true."""
    deadline = time.monotonic() + within
    while not (answer := probe()):
        assert time.monotonic() < deadline, f"not within {within:g} s; the last answer was {answer!r}"
        time.sleep(0.05)
    return answer


# --- Alarms -----------------------------------------------------------------------------------------------------------


def blocked(scene: Scene) -> None:
    """Publish while an alarm is on; pika gives up after `blocked_connection_timeout`."""
    with scene.connection(blocked_connection_timeout=0.5) as connection:
        channel = connection.channel()
        channel.confirm_delivery()

        def publish() -> None:
            for _ in range(100):  # the first is still taken: it is what makes this a connection that publishes
                channel.basic_publish("", "work", b"")

        scene.fails(publish)


def memory_alarm(scene: Scene) -> None:
    scene.node.set_memory_alarm(on=True)
    try:
        blocked(scene)
    finally:
        scene.node.set_memory_alarm(on=False)


def disk_alarm(scene: Scene) -> None:
    scene.node.eval("rabbit_disk_monitor:set_disk_free_limit(999999999999999)")
    try:
        blocked(scene)
    finally:
        scene.node.eval("rabbit_disk_monitor:set_disk_free_limit(50000000)")


def file_descriptors(scene: Scene) -> None:
    """The alarm that a node of 3.x raises when its file descriptors are used up."""
    alarm = "{file_descriptor_limit, []}"
    scene.node.eval(f"rabbit_alarm:set_alarm({alarm})")
    scene.node.eval("rabbit_alarm:clear_alarm(file_descriptor_limit)")


# --- Closed by somebody else ------------------------------------------------------------------------------------------


@contextmanager
def awaited(scene: Scene, text: str) -> Iterator[None]:
    """Wait at the end until the broker's log has this, since the beginning."""
    began = scene.node.log.stat().st_size
    yield
    until(lambda: text.encode() in scene.node.log.read_bytes()[began:])


def closed_while_idle(scene: Scene, act: Callable[[], object]) -> None:
    """An idle connection that something ends: `act`."""
    with scene.connection() as connection:
        act()
        scene.fails(lambda: connection.process_data_events(time_limit=30))


def _pid(scene: Scene) -> str:
    """Return Erlang's pid of the only connection in the virtual host."""
    return scene.node.eval(
        f"[lists:flatten(rabbit_misc:pid_to_string(P)) || P <- rabbit_networking:connections(), "
        f'(catch rabbit_networking:connection_info(P, [vhost])) =:= [{{vhost, <<"{scene.vhost.name}">>}}]]'
    )[2:-2]


def closed_by_operator(scene: Scene) -> None:
    """As `rabbitmqctl close_connection PID EXPLANATION` does it."""

    def act() -> None:
        scene.node.eval(
            f'rabbit_networking:close_connection(rabbit_misc:string_to_pid("{_pid(scene)}"), "maintenance at 10")'
        )

    closed_while_idle(scene, act)


def closed_by_management(scene: Scene) -> None:
    def act() -> None:
        (name,) = until(
            lambda: [c["name"] for c in scene.node.management("GET", f"vhosts/{scene.vhost.name}/connections")]
        )
        scene.node.management("DELETE", f"connections/{quote(name)}")

    closed_while_idle(scene, act)


def user_deleted(scene: Scene) -> None:
    other = scene.node.add_vhost()
    try:
        with Scene(scene.node, other, scene.texts).connection() as connection:
            scene.node.management("DELETE", f"users/{other.user}")
            scene.fails(lambda: connection.process_data_events(time_limit=30))
    finally:
        scene.node.management("PUT", f"users/{other.user}", {"password": "x", "tags": ""})
        scene.node.remove_vhost(other)


def vhost_deleted(scene: Scene) -> None:
    other = scene.node.add_vhost()
    try:
        with Scene(scene.node, other, scene.texts).connection() as connection:
            scene.node.management("DELETE", f"vhosts/{other.name}")
            scene.fails(lambda: connection.process_data_events(time_limit=30))
    finally:
        scene.node.management("PUT", f"vhosts/{other.name}")
        scene.node.remove_vhost(other)


def vhost_down(scene: Scene) -> None:
    """A virtual host that does not run on the node."""
    other = scene.node.add_vhost()
    try:
        scene.node.eval(f'rabbit_vhost_sup_sup:stop_and_delete_vhost(<<"{other.name}">>)')
        scene.fails(lambda: pika.BlockingConnection(Scene(scene.node, other).parameters()))
    finally:
        scene.node.eval(f'rabbit_vhost_sup_sup:start_vhost(<<"{other.name}">>)')
        scene.node.remove_vhost(other)


def shutdown(scene: Scene) -> None:
    """A node that an operator stops, and starts again."""
    closed_while_idle(scene, scene.node.stop)
    scene.node.start()


def killed(scene: Scene) -> None:
    closed_while_idle(scene, scene.node.kill)
    scene.node.start()


# --- A peer that does not read ----------------------------------------------------------------------------------------


@contextmanager
def impatient_listener(scene: Scene, milliseconds: int) -> Iterator[int]:
    """Yield the port of a listener that waits only so long for a client that does not read."""
    (port,) = free_ports(1)
    where = f'{{"127.0.0.1", {port}}}'
    scene.node.eval(
        "{ok, Usual} = application:get_env(rabbit, tcp_listen_options), "
        f"application:set_env(rabbit, tcp_listen_options, lists:keystore(send_timeout, 1, Usual, {{send_timeout, {milliseconds}}})), "
        f"rabbit_networking:start_tcp_listener({where}, 1), "
        "application:set_env(rabbit, tcp_listen_options, Usual)"
    )
    try:
        yield port
    finally:
        scene.node.eval(f"rabbit_networking:stop_tcp_listener({where})")


def not_reading(scene: Scene) -> None:
    """A consumer without a limit, which does not read what it is sent."""
    with scene.channel() as channel:
        queue(channel, "much")
        for _ in range(300):
            channel.basic_publish("", "much", b"x" * 100_000)
    with impatient_listener(scene, 500) as port, scene.raw(port=port) as client:
        client.login()
        client.method(commands.Basic.Consume(queue="much", no_ack=True))
        until(lambda: scene.node.eval("ok") and not _alive(client.socket), within=20)


def _alive(connection: socket.socket) -> bool:
    """Return whether the peer has not reset the connection, without reading from it."""
    connection.settimeout(0.2)
    with suppress(TimeoutError):
        try:
            connection.sendall(b"\x08\x00\x00\x00\x00\x00\x00\xce")
        except OSError:
            return False
    time.sleep(0.3)
    return True


# --- TLS --------------------------------------------------------------------------------------------------------------


def handshake(scene: Scene, context: ssl.SSLContext, port: int = 0, host: str = "127.0.0.1") -> None:
    """Open TLS and say what an AMQP client says; fails where the certificates do."""

    def act() -> None:
        with (
            socket.create_connection(("127.0.0.1", port or scene.node.amqps), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            secure.sendall(OPENING)
            if not secure.recv(8):
                raise EOFError

    scene.fails(act)


def unknown_ca(scene: Scene) -> None:
    """A client that trusts others than who signed the broker's certificate."""
    handshake(scene, ssl.create_default_context())


def wrong_host(scene: Scene) -> None:
    handshake(scene, scene.context(), host="rabbit.example")


def expired(scene: Scene) -> None:
    scene.node.set_certificate(not_after=datetime.now(UTC) - timedelta(days=1))
    try:
        handshake(scene, scene.context())
    finally:
        scene.node.set_certificate()


def old_tls(scene: Scene) -> None:
    context = scene.context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with scene.node.listener_for_certificates("tlsv1.3") as port:
        handshake(scene, context, port)


def no_certificate(scene: Scene) -> None:
    with scene.node.listener_for_certificates("tlsv1.3") as port:
        handshake(scene, scene.context(), port)


def _client_context(scene: Scene, ca: trustme.CA, not_after: datetime | None = None) -> ssl.SSLContext:
    context = scene.context()
    certificate = ca.issue_cert("worker-1", not_after=not_after)
    certificate.configure_cert(context)
    return context


def strange_client(scene: Scene) -> None:
    """A client whose certificate somebody else signed."""
    with scene.node.listener_for_certificates("tlsv1.3") as port:
        handshake(scene, _client_context(scene, trustme.CA()), port)


def expired_client(scene: Scene) -> None:
    with scene.node.listener_for_certificates("tlsv1.3") as port:
        handshake(scene, _client_context(scene, scene.node.ca, datetime.now(UTC) - timedelta(days=1)), port)


# --- Dead letters -----------------------------------------------------------------------------------------------------


def dead_letter_cycle(scene: Scene) -> None:
    """A queue whose expired messages come back to it."""
    with scene.channel() as channel, awaited(scene, "cycle"):
        queue(channel, "round", x_message_ttl=1, x_dead_letter_exchange="", x_dead_letter_routing_key="round")
        channel.basic_publish("", "round", b"")


def not_forwarded(scene: Scene, name: str, **target: str) -> None:
    """At-least-once dead-lettering to where no queue is."""
    kind = {"x_queue_type": "quorum", "x_message_ttl": 1, "x_overflow": "reject-publish"}
    with scene.channel() as channel:
        with awaited(scene, "Cannot forward any dead-letter"):  # of a missing exchange already when the queue is made
            queue(channel, name, **kind, x_dead_letter_strategy="at-least-once", **target)
            channel.basic_publish("", name, b"")
        channel.queue_delete(name)


def no_dead_letter_target(scene: Scene) -> None:
    """The exchange is not there."""
    not_forwarded(scene, "kept", x_dead_letter_exchange="nosuch")


def no_dead_letter_route(scene: Scene) -> None:
    """The exchange has no queue."""
    not_forwarded(scene, "stuck", x_dead_letter_exchange="amq.direct", x_dead_letter_routing_key="nosuch")


def dead_lettering_ended(scene: Scene) -> None:
    """A node where dead-lettering has failed too often: its processes are killed until their supervisor gives up."""
    kind = {"x_queue_type": "quorum", "x_dead_letter_exchange": "", "x_overflow": "reject-publish"}

    def declare(channel: BlockingChannel, name: str) -> None:
        queue(channel, name, **kind, x_dead_letter_routing_key="dead", x_dead_letter_strategy="at-least-once")

    with scene.channel() as channel:
        declare(channel, "before")
    kill = "[exit(Pid, kill) || {_, Pid, _, _} <- supervisor:which_children(rabbit_fifo_dlx_sup)]"
    scene.node.eval(f"[begin catch {kill}, timer:sleep(1) end || _ <- lists:seq(1, 500)], done")
    try:
        on_channel(scene, lambda channel: declare(channel, "after"))
    finally:
        scene.node.stop()
        scene.node.start()
    with scene.channel() as channel:
        declare(channel, "after")


# --- Policies, operators ----------------------------------------------------------------------------------------------


def mirrored_policy(scene: Scene) -> None:
    """A policy for classic mirrored queues, which 4.0 has no more."""
    try:
        scene.node.management(
            "PUT",
            f"policies/{scene.vhost.name}/ha",
            {"pattern": ".*", "definition": {"ha-mode": "all"}, "apply-to": "queues"},
        )
    except AssertionError as refused:
        scene.keep(str(refused))


def wrong_cookie(scene: Scene) -> None:
    """A command of an operator's whose cookie is not the node's."""
    cookie = scene.node.folder / ".erlang.cookie"
    right = cookie.read_text()
    cookie.chmod(0o600)
    cookie.write_text("wrong")
    cookie.chmod(0o400)
    try:
        scene.node.ctl("status")
    except Exception as refused:  # noqa: BLE001  # BrokerError says what the command said
        scene.keep(str(refused))
    finally:
        cookie.chmod(0o600)
        cookie.write_text(right)
        cookie.chmod(0o400)


# --- Another form of the log ------------------------------------------------------------------------------------------


@contextmanager
def log_as_json(scene: Scene) -> Iterator[None]:
    """Have the broker write its log as JSON, as with `log.file.formatter = json`."""
    swap = (
        "[begin {{ok, Config}} = logger:get_handler_config(Id), {{Form, More}} = maps:get(formatter, Config), "
        "(Form =:= {old}) andalso logger:update_handler_config(Id, formatter, {{{new}, More}}) end || Id <- logger:get_handler_ids()]"
    )
    text, json = "rabbit_logger_text_fmt", "rabbit_logger_json_fmt"
    scene.node.eval(swap.format(old=text, new=json))
    try:
        yield
    finally:
        scene.node.eval(swap.format(old=json, new=text))


def in_json(scene: Scene) -> None:
    """A second header, a queue that is not there, and a client that goes, in a log of JSON lines."""
    begins = scene.node.log.stat().st_size
    with log_as_json(scene):
        wrong_frames.second_header(scene)
        wrong_requests.no_queue(scene)
        wrong_frames.gone(scene)
        until(lambda: b'unexpectedly closed TCP connection","' in scene.node.log.read_bytes()[begins:])


# --- A node that does not start ---------------------------------------------------------------------------------------


def start_beside(scene: Scene, **changes: str) -> None:
    """Start a node beside the one that runs, with these variables changed; it fails, and says why."""
    node = scene.node
    environment = {**node._environment(), **changes}  # how its node is started is the node's own
    done = subprocess.run(
        node._server.command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode, f"expected the node not to start: {done.stdout[-500:]}"
    scene.keep(*(part for part in (done.stdout, done.stderr) if part.strip()))


def node_name_taken(scene: Scene) -> None:
    (port,) = free_ports(1)
    start_beside(scene, RABBITMQ_DIST_PORT=str(port))


def distribution_port_taken(scene: Scene) -> None:
    start_beside(scene, RABBITMQ_NODENAME="other@localhost")


def wrong_setting(scene: Scene) -> None:
    """A setting with a typing error."""
    (port,) = free_ports(1)
    scene.node.folder.joinpath("wrong.conf").write_text("listeners.tcp.default = 5672\nchannel_mx = 100\n")
    inside = scene.node._inside
    start_beside(
        scene,
        RABBITMQ_NODENAME="other@localhost",
        RABBITMQ_DIST_PORT=str(port),
        RABBITMQ_CONFIG_FILE=f"{inside}/wrong.conf",
    )


def port_taken(scene: Scene) -> None:
    """A listener on a port that another program has."""
    with socket.create_server(("127.0.0.1", 0)) as other, suppress(Exception):
        scene.node.eval(f'rabbit_networking:start_tcp_listener({{"127.0.0.1", {other.getsockname()[1]}}}, 1)')


CASES = [
    case(memory_alarm, "rabbitmq.memory-alarm", "pika.blocked pika.blocked-timeout", GONE),
    case(disk_alarm, "rabbitmq.disk-alarm", "pika.blocked pika.blocked-timeout", GONE),
    case(file_descriptors, "rabbitmq.file-descriptor-alarm", series=BELOW_4_3),
    both(closed_by_operator, "amqp.connection-forced"),
    both(closed_by_management, "rabbitmq.closed-via-management"),
    both(user_deleted, "rabbitmq.user-deleted"),
    both(vhost_deleted, "rabbitmq.vhost-deleted"),
    both(vhost_down, "rabbitmq.vhost-down"),
    case(shutdown, "rabbitmq.node-shutdown", "rabbitmq.node-shutdown"),
    case(killed, "", "pika.stream-lost", "network.connection-cut rabbitmq.messages-dropped"),
    case(not_reading, "amqp.peer-not-reading", "", GONE, series=OLDEST),
    case(not_reading, GONE, series=NEWEST),
    case(unknown_ca, "tls.client-gave-up", "tls.certificate-not-trusted"),
    case(wrong_host, "tls.client-gave-up", "tls.wrong-host"),
    case(expired, "tls.client-gave-up", "tls.certificate-expired"),
    case(old_tls, "tls.no-common-version", "tls.no-common-version"),
    case(no_certificate, "tls.client-certificate-missing", "tls.client-certificate-missing", series=NEWEST),
    case(no_certificate, "tls.client-certificate-missing", series=BELOW_4_3),
    case(strange_client, "tls.client-certificate-not-trusted", "", "tls.client-certificate-not-trusted"),
    case(expired_client, "tls.client-certificate-expired", "", "tls.client-certificate-expired"),
    case(dead_letter_cycle, "rabbitmq.dead-letter-cycle"),
    case(no_dead_letter_target, "rabbitmq.no-dead-letter-exchange"),
    case(no_dead_letter_route, "rabbitmq.no-dead-letter-queue"),
    case(mirrored_policy, "", "rabbitmq.unknown-policy-setting", series=FOUR),
    case(wrong_cookie, "rabbitmq.wrong-cookie", "rabbitmq.no-link-to-node"),
    case(in_json, f"amqp.second-header rabbitmq.no-queue {GONE}", "amqp.second-header rabbitmq.no-queue"),
    case(node_name_taken, "", "rabbitmq.node-already-runs"),
    case(distribution_port_taken, "", "rabbitmq.distribution-port-taken"),
    case(wrong_setting, "", "rabbitmq.unknown-setting"),
    case(port_taken, "rabbitmq.port-taken"),
    case(
        dead_lettering_ended,
        "rabbitmq.dead-lettering-ended",
        "rabbitmq.internal-error",
        "rabbitmq.node-shutdown",
        series=BELOW_4_3,
    ),
    case(
        dead_lettering_ended,
        "rabbitmq.dead-lettering-ended rabbitmq.no-majority",
        "rabbitmq.no-majority",
        "rabbitmq.node-shutdown",
        series=NEWEST,
    ),
]
