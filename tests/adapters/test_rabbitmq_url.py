"""What RabbitMQ's URLs have besides what all have (tests/network/test_url.py): virtual host, login, management API."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from pika.credentials import ExternalCredentials

from steadyworker.errors import ConfigError
from steadyworker.network.url import Address
from steadyworker_rabbitmq.url import HEARTBEAT, RabbitmqUrl, parse_url


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Somebody's certificate and key."""
    certificate = trustme.CA().issue_cert("worker")
    for name, blobs in (("cert.pem", certificate.cert_chain_pems), ("key.pem", [certificate.private_key_pem])):
        (tmp_path / name).write_bytes(b"".join(blob.bytes() for blob in blobs))
    return tmp_path / "cert.pem", tmp_path / "key.pem"


def test_a_url_without_anything_is_the_broker_of_this_host() -> None:
    assert parse_url("amqp://localhost") == RabbitmqUrl(
        (Address("localhost", 5672),), "/", "guest", "guest", None, HEARTBEAT
    )


def test_everything_that_a_url_can_have() -> None:
    found = parse_url(
        "amqp://us%40er:p%2F%3Aw@one:5673,two,[::1]:5674/a%2Fb?heartbeat=30&connection_name=shop&management=off"
    )
    assert found.addresses == (Address("one", 5673), Address("two", 5672), Address("::1", 5674))
    assert (found.user, found.password, found.vhost, found.heartbeat) == ("us@er", "p/:w", "a/b", 30)
    parameters: Any = found.parameters(found.addresses[0], "consumes exports")
    assert (parameters.host, parameters.port, parameters.virtual_host) == ("one", 5673, "a/b")
    assert parameters.client_properties["connection_name"] == "shop"
    assert found.management is None
    assert str(found) == "one:5673,two:5672,[::1]:5674"


@pytest.mark.parametrize(("path", "vhost"), [("", "/"), ("/", "/"), ("/%2F", "/"), ("/shop", "shop")])
def test_the_virtual_host(path: str, vhost: str) -> None:
    assert parse_url(f"amqp://h{path}").vhost == vhost


@pytest.mark.parametrize(
    ("url", "management"),
    [
        ("amqp://u:p@h1,h2", "http://h1:15672"),
        ("amqps://u:p@h1:5999", "https://h1:15671"),
        ("amqp://u:p@h1?management=https://ops:8443", "https://ops:8443"),
        ("amqp://[::1]", "http://[::1]:15672"),
    ],
)
def test_the_management_api_stands_where_it_stands_by_default(url: str, management: str) -> None:
    found = parse_url(url).management
    assert found is not None
    assert found.url == management


def test_nothing_waits_for_ever() -> None:
    """Connecting, the handshake, an alarm, a dead peer: each has its limit."""
    found = parse_url("amqp://h")
    parameters: Any = found.parameters(found.addresses[0], "")
    assert (parameters.socket_timeout, parameters.stack_timeout) == (10, 20)
    assert parameters.blocked_connection_timeout == 300
    assert (parameters.heartbeat, parameters.connection_attempts) == (60, 1)
    assert parameters.tcp_options == {
        "TCP_KEEPIDLE": 60,
        "TCP_KEEPINTVL": 10,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 30_000,
    }


def test_tls_is_verified_unless_nobody_asks() -> None:
    found = parse_url("amqps://h?server_name=rabbit.example")
    options: Any = found.parameters(found.addresses[0], "").ssl_options
    assert options.server_hostname == "rabbit.example"
    assert options.context.verify_mode is ssl.CERT_REQUIRED
    assert options.context.check_hostname
    assert options.context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert found.addresses == (Address("h", 5671),)
    assert parse_url("amqp://h").parameters(Address("h", 1), "").ssl_options is None


def test_a_certificate_is_a_login_where_the_url_has_no_user(certificate: tuple[Path, Path]) -> None:
    query = "certfile={}&keyfile={}".format(*certificate)
    alone, beside = parse_url(f"amqps://h?{query}"), parse_url(f"amqps://u:p@h?{query}")
    assert isinstance(alone.parameters(Address("h", 1), "").credentials, ExternalCredentials)
    assert alone.management is None, "it has no user to ask as"
    login: Any = beside.parameters(Address("h", 1), "").credentials
    assert login.username == "u"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("amqp://h?management=ftp://x", "http"),
        ("amqp://h?management=http://h:99999", "management"),
        ("amqp://h?management=http://[::1", "management"),
        ("amqp://h/a/b", "%2F"),
        ("amqp://h/v#x", "%23"),
    ],
)
def test_what_is_wrong_is_named(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_url(url)
