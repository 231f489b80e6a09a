"""Provocations by bytes: what a client writes that is no AMQP 0-9-1, or that breaks its rules."""

from __future__ import annotations

import ssl

from pamqp import body, commands, frame, header
from pika import spec

from tests.diagnosis.amqp_client import OPENING, RawClient
from tests.diagnosis.provocation import Scene

HTTP_REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
STOMP_CONNECT = b"CONNECT\naccept-version:1.2\nhost:/\n\n\x00"
PROXY_LINE = b"PROXY TCP4 127.0.0.1 127.0.0.1 40000 5672\r\n"


def client_hello() -> bytes:
    """Return what a TLS client opens with."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("expected the handshake to wait for an answer")


# --- In the place of a frame, on an open connection -------------------------------------------------------------------


def within(scene: Scene, data: bytes) -> None:
    with scene.opened() as client:
        client.send(data)
        scene.keep(client.farewell())


def second_header(scene: Scene) -> None:
    within(scene, OPENING)


def http_within(scene: Scene) -> None:
    within(scene, HTTP_REQUEST)


def http_answer_within(scene: Scene) -> None:
    within(scene, b"HTTP/1.1 400 Bad Request\r\n\r\n")


def tls_within(scene: Scene) -> None:
    within(scene, client_hello())


def stomp_within(scene: Scene) -> None:
    within(scene, STOMP_CONNECT)


def proxy_within(scene: Scene) -> None:
    within(scene, PROXY_LINE)


def large_headers(scene: Scene) -> None:
    """A header frame above the agreed maximum, as pika makes one of a long traceback in a header."""
    with scene.connection() as connection:
        channel = connection.channel()
        properties = spec.BasicProperties(headers={"traceback": "x" * 200_000})

        def publish() -> None:
            channel.basic_publish("", "work", b"", properties)
            connection.process_data_events(time_limit=30)

        scene.fails(publish)


def large_body_frame(scene: Scene) -> None:
    """A body frame above the agreed maximum."""
    within(scene, frame.marshal(body.ContentBody(b"x" * 200_000), 1))


def wrong_end(scene: Scene) -> None:
    """A heartbeat whose last byte is no end octet."""
    within(scene, b"\x08\x00\x00\x00\x00\x00\x00\x00")


def frame_in_frame(scene: Scene) -> None:
    """A frame that another frame cuts in two, as of two threads."""
    publish = frame.marshal(commands.Basic.Publish(routing_key="work"), 1)
    within(scene, publish[:14] + publish + publish[14:])


def unknown_type(scene: Scene) -> None:
    within(scene, b"\x09\x00\x00\x00\x00\x00\x00\xce")


def method_in_content(scene: Scene) -> None:
    """A method where the content of a message was due."""
    with scene.opened() as client:
        client.method(commands.Basic.Publish(routing_key="work"))
        client.method(commands.Basic.Qos(prefetch_count=1))
        scene.keep(client.farewell())


def body_before_header(scene: Scene) -> None:
    with scene.opened() as client:
        client.method(commands.Basic.Publish(routing_key="work"))
        client.send(frame.marshal(body.ContentBody(b"x"), 1))
        scene.keep(client.farewell())


def content_without_method(scene: Scene) -> None:
    with scene.opened() as client:
        client.send(frame.marshal(header.ContentHeader(0, 1, commands.Basic.Properties()), 1))
        scene.keep(client.farewell())


def bad_method(scene: Scene) -> None:
    """A method that AMQP does not have."""
    within(scene, b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x03\xe7\xce")


def bad_arguments(scene: Scene) -> None:
    """A method whose arguments end too early."""
    within(scene, b"\x01\x00\x01\x00\x00\x00\x05\x00\x32\x00\x0a\x00\xce")


def frame_error_close(scene: Scene) -> None:
    """The broker's last word to a client that stays: three seconds after a frame without its end."""
    with scene.opened() as client:
        client.send(b"\x08\x00\x00\x00\x00\x00\x00\x00")
        client.socket.settimeout(20)
        client.until_closed()


# --- At the start -----------------------------------------------------------------------------------------------------


def at_start(scene: Scene, data: bytes, port: int = 0) -> None:
    with scene.raw(port) as client:
        client.send(data)
        client.until_closed()


def http_at_start(scene: Scene) -> None:
    at_start(scene, HTTP_REQUEST)


def tls_at_start(scene: Scene) -> None:
    with scene.raw() as client:
        context = ssl.create_default_context(cafile=str(scene.node.ca_file))
        scene.fails(lambda: context.wrap_socket(client.socket, server_hostname="127.0.0.1"))


def stomp_at_start(scene: Scene) -> None:
    at_start(scene, STOMP_CONNECT)


def proxy_at_start(scene: Scene) -> None:
    at_start(scene, PROXY_LINE)


def mqtt_at_start(scene: Scene) -> None:
    at_start(scene, b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04test")


def heartbeat_at_start(scene: Scene) -> None:
    """A heartbeat that another thread sends while the connection is made again."""
    at_start(scene, b"\x08\x00\x00\x00\x00\x00\x00\xce")


def ssh_at_start(scene: Scene) -> None:
    at_start(scene, b"SSH-2.0-OpenSSH_9.2\r\n")


def old_amqp(scene: Scene) -> None:
    """The header of AMQP 0-8's, as old clients write it."""
    at_start(scene, b"AMQP\x01\x01\x08\x00")


def odd_amqp(scene: Scene) -> None:
    at_start(scene, b"AMQP\x00\x00\x09\x02")


def amqp_1_0(scene: Scene) -> None:
    """The header of AMQP 1.0 without SASL."""
    at_start(scene, b"AMQP\x00\x01\x00\x00")


def handshakes(scene: Scene) -> None:
    """Two clients that do not finish their handshake: one says nothing, the other only its header."""
    usual = scene.node.eval("application:get_env(rabbit, handshake_timeout)").removeprefix("{ok,").removesuffix("}")
    scene.node.eval("application:set_env(rabbit, handshake_timeout, 500)")
    try:
        with scene.raw() as silent, scene.raw() as slow:
            slow.send(OPENING)
            slow.expect(commands.Connection.Start)
            silent.until_closed()
            slow.until_closed()
    finally:
        scene.node.eval(f"application:set_env(rabbit, handshake_timeout, {usual})")


def plain_on_tls_port(scene: Scene) -> None:
    with RawClient(scene.vhost.url, port=scene.node.amqps) as client:
        client.send(OPENING)
        client.until_closed()


# --- Channels ---------------------------------------------------------------------------------------------------------


def dead_channel(scene: Scene) -> None:
    """A method on a channel that was never opened."""
    with scene.opened() as client:
        client.method(commands.Basic.Ack(1), 7)
        scene.keep(client.farewell())


def channel_twice(scene: Scene) -> None:
    with scene.opened() as client:
        client.method(commands.Channel.Open())
        scene.keep(client.farewell())


def too_many_channels(scene: Scene) -> None:
    with scene.raw().start().tune(channel_max=2).enter() as client:
        for channel in (1, 2, 3):
            client.method(commands.Channel.Open(), channel)
        scene.keep(client.farewell())


def refused_limits(scene: Scene) -> None:
    """Four clients that the broker lets wait for three seconds, and then closes: with each limit, and with a wrong mechanism."""
    with (
        scene.raw().start().tune(channel_max=60_000) as channels,
        scene.raw().start().tune(frame_max=1024) as small,
        scene.raw().start().tune(frame_max=1_000_000) as large,
        scene.raw().start(mechanism="GSSAPI") as login,
    ):
        for client in (channels, small, large, login):
            client.farewell()


def tick_missed(scene: Scene) -> None:
    """A client that is alive, but sends no heartbeats."""
    with scene.opened(heartbeat=1) as client:
        client.until_closed()


def gone(scene: Scene) -> None:
    """A client whose process ends without a close."""
    with scene.opened():
        pass


def gone_in_frame(scene: Scene) -> None:
    with scene.opened() as client:
        client.send(frame.marshal(body.ContentBody(b"x" * 100), 1)[:20])


def gone_while_opening(scene: Scene) -> None:
    with scene.raw() as client:
        client.start()
