"""Provocations by bytes: what a client writes that is no AMQP 0-9-1, or that breaks its rules."""

from __future__ import annotations

import ssl

from pamqp import body, commands, frame, header
from pika import spec

from tests.diagnosis.amqp_client import OPENING, RawClient
from tests.diagnosis.provocation import FOUR, GONE, NEWEST, OLDEST, Scene, begins, both, case, sends

HTTP_REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
STOMP_CONNECT = b"CONNECT\naccept-version:1.2\nhost:/\n\n\x00"
PROXY_LINE = b"PROXY TCP4 127.0.0.1 127.0.0.1 40000 5672\r\n"
BEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
WITHOUT_END = BEAT[:-1] + b"\0"
PUBLISH, PART = commands.Basic.Publish(routing_key="work"), frame.marshal(body.ContentBody(b"x"), 1)
IN = "amqp.frame-too-large"  # without the channel's number, a client's text does not show which protocol it is


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


def large_headers(scene: Scene) -> None:
    """A header frame above the agreed maximum, as pika makes one of a long traceback in a header."""
    with scene.connection() as connection:
        channel = connection.channel()
        properties = spec.BasicProperties(headers={"traceback": "x" * 200_000})

        def publish() -> None:
            channel.basic_publish("", "work", b"", properties)
            connection.process_data_events(time_limit=30)

        scene.fails(publish)


def frame_error_close(scene: Scene) -> None:
    """The broker's last word to a client that stays: three seconds after a frame without its end."""
    with scene.opened() as client:
        client.send(WITHOUT_END)
        client.socket.settimeout(20)
        client.until_closed()


def tls_at_start(scene: Scene) -> None:
    with scene.raw() as client:
        context = ssl.create_default_context(cafile=str(scene.node.ca_file))
        scene.fails(lambda: context.wrap_socket(client.socket, server_hostname="127.0.0.1"))


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


PUBLISHED = frame.marshal(PUBLISH, 1)
second_header = sends("second_header", OPENING)

CASES = [
    both(second_header, "amqp.second-header"),
    case(sends("http_within", HTTP_REQUEST), "amqp.http-in-connection", IN),
    case(sends("http_answer_within", b"HTTP/1.1 400 Bad Request\r\n\r\n"), "amqp.http-in-connection", IN),
    case(sends("tls_within", client_hello()), "amqp.tls-in-connection", IN),
    both(sends("stomp_within", STOMP_CONNECT), "amqp.stomp-in-connection"),
    case(sends("proxy_within", PROXY_LINE), "amqp.proxy-protocol-in-connection", IN),
    both(large_headers, "amqp.frame-too-large"),
    both(sends("large_body_frame", frame.marshal(body.ContentBody(b"x" * 200_000), 1)), "amqp.frame-too-large"),
    both(sends("wrong_end", WITHOUT_END), "amqp.invalid-frame-end"),
    both(sends("frame_in_frame", PUBLISHED[:14] + PUBLISHED + PUBLISHED[14:]), "amqp.invalid-frame-end"),
    both(sends("unknown_type", b"\x09" + BEAT[1:]), "amqp.unknown-frame-type"),
    both(sends("method_in_content", PUBLISH, commands.Basic.Qos(prefetch_count=1)), "amqp.interleaved-frames"),
    both(sends("body_before_header", PUBLISH, PART), "amqp.interleaved-frames"),
    both(sends("content_without_method", frame.marshal(header.ContentHeader(0, 1), 1)), "amqp.interleaved-frames"),
    case(sends("bad_method", b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x03\xe7\xce"), "amqp.bad-method"),
    both(sends("bad_arguments", b"\x01\x00\x01\x00\x00\x00\x05\x00\x32\x00\x0a\x00\xce"), "amqp.bad-arguments"),
    case(frame_error_close, "amqp.frame-error-close", "", "amqp.invalid-frame-end"),
    case(begins("http_at_start", HTTP_REQUEST), "amqp.http-on-port"),
    case(tls_at_start, "amqp.tls-on-port", "tls.plain-port"),
    case(begins("stomp_at_start", STOMP_CONNECT), "amqp.stomp-on-port"),
    case(begins("proxy_at_start", PROXY_LINE), "amqp.proxy-protocol-on-port"),
    case(begins("mqtt_at_start", b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04test"), "amqp.unknown-protocol-on-port"),
    case(begins("heartbeat_at_start", BEAT), "amqp.frame-before-header"),
    case(begins("ssh_at_start", b"SSH-2.0-OpenSSH_9.2\r\n"), "amqp.unknown-protocol-on-port"),
    case(begins("amqp_0_8", b"AMQP\x01\x01\x08\x00"), "amqp.wrong-version", series=FOUR),
    case(begins("odd_amqp", b"AMQP\x00\x00\x09\x02"), "amqp.wrong-version"),
    case(begins("amqp_1_0", b"AMQP\x00\x01\x00\x00"), "amqp.wrong-version", series=NEWEST),
    case(begins("amqp_1_0", b"AMQP\x00\x01\x00\x00"), "amqp.one-zero-not-enabled", series=OLDEST),
    case(handshakes, "amqp.handshake-timeout"),
    case(plain_on_tls_port, "amqp.plain-on-tls-port"),
    both(sends("dead_channel", commands.Basic.Ack(1), channel=7), "amqp.dead-channel"),
    both(sends("channel_twice", commands.Channel.Open()), "amqp.channel-opened-twice"),
    both(too_many_channels, "amqp.too-many-channels"),
    case(refused_limits, "amqp.limits-refused amqp.unknown-mechanism"),
    case(tick_missed, "amqp.missed-heartbeat"),
    case(gone, GONE),
    case(gone_in_frame, GONE),
    case(gone_while_opening, GONE),
]
