"""A broker's URL, as each adapter for a broker on a network reads it: hosts, options, TLS, and that a password is in no text."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from steadyworker.errors import ConfigError
from steadyworker.network.url import Address, Tls, unencrypted
from steadyworker_rabbitmq import url as rabbitmq
from steadyworker_stomp import url as stomp

CANARY = "c4n4ry"

Parse = Callable[[str], Any]


class Scheme:
    """An adapter's scheme, and its parser; a test writes `amqp` for the scheme of any adapter."""

    def __init__(self, plain: str, secure: str, parse: Parse) -> None:
        self.plain, self.secure = plain, secure
        self._parse = parse

    def text(self, url: str) -> str:
        return url.replace("amqps", self.secure).replace("amqp", self.plain)

    def parse(self, url: str) -> Any:
        return self._parse(self.text(url))


SCHEMES = [Scheme("amqp", "amqps", rabbitmq.parse_url), Scheme("stomp", "stomp+ssl", stomp.parse_url)]


@pytest.fixture(params=SCHEMES, ids=lambda scheme: scheme.plain)
def scheme(request: pytest.FixtureRequest) -> Scheme:
    found: Scheme = request.param
    return found


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Somebody's certificate and key."""
    certificate = trustme.CA().issue_cert("worker")
    for name, blobs in (("cert.pem", certificate.cert_chain_pems), ("key.pem", [certificate.private_key_pem])):
        (tmp_path / name).write_bytes(b"".join(blob.bytes() for blob in blobs))
    return tmp_path / "cert.pem", tmp_path / "key.pem"


def test_hosts_ports_and_a_login_in_any_letters(scheme: Scheme) -> None:
    found = scheme.parse("amqp://us%40er:p%2F%3Aw@one:5673,two,[::1]:5674?heartbeat=30")
    port = scheme.parse("amqp://h").addresses[0].port
    assert found.addresses == (Address("one", 5673), Address("two", port), Address("::1", 5674))
    assert (found.user, found.password, found.heartbeat) == ("us@er", "p/:w", 30)
    assert str(found) == f"one:5673,two:{port},[::1]:5674"
    assert "p/:w" not in repr(found)


def test_the_scheme_is_in_any_letters_and_another_one_is_refused(scheme: Scheme) -> None:
    assert scheme.parse("amqp://h").addresses == scheme.parse(scheme.text("amqp").upper() + "://h").addresses
    with pytest.raises(ConfigError, match="got something else"):
        scheme.parse(f"http://user:{CANARY}@h")


def test_tls_is_verified_and_is_of_its_scheme_alone(scheme: Scheme) -> None:
    found = scheme.parse("amqps://h?server_name=broker.example")
    assert found.tls.server_name == "broker.example"
    context = found.tls.context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert scheme.parse("amqp://h").tls is None


def test_certificates_are_read_again_for_each_connection(scheme: Scheme, certificate: tuple[Path, Path]) -> None:
    """They are rotated; a file that is gone is named."""
    found = scheme.parse("amqps://h?certfile={}&keyfile={}".format(*certificate))
    certificate[1].unlink()
    with pytest.raises(ConfigError, match=r"key\.pem"):
        found.tls.context()


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("amqp://h?hartbeat=5", "'hartbeat': did you mean heartbeat"),
        ("amqp://h?nonsense=5", "'nonsense': leave it out"),
        ("amqp://h?heartbeat=0", "never noticed"),
        ("amqp://h?heartbeat=1.5", "whole seconds"),
        ("amqp://h?heartbeat=3601", "whole seconds"),
        ("amqp://h?heartbeat=5&heartbeat=6", "once"),
        ("amqp://h?heartbeat=", "a value for the option heartbeat"),
        ("amqp://h?heartbeat", "name=value"),
        ("amqp://h?cafile=/ca.pem", "only in a URL that begins with amqps://"),
        ("amqps://h?cafile=/nowhere/ca.pem", "/nowhere/ca.pem"),
        ("amqps://h?keyfile=/key.pem", "certfile and keyfile together"),
        ("amqp://h:port", "host:port"),
        ("amqp://h:0", "host:port"),
        ("amqp://h:70000", "host:port"),
        ("amqp://", "host or host:port"),
        ("amqp://h1,,h2", "host or host:port"),
        ("amqp://bob:S3cret!", "got 'bob' with a port that is not"),
        ("amqp://[::1", "not from 1 to 65535"),
        ("amqp://h#x", "%23"),
    ],
)
def test_what_is_wrong_is_named(scheme: Scheme, url: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scheme.parse(url)
    assert scheme.text(part) in str(caught.value)


@pytest.mark.parametrize("mark", ["/", "?", "#", "@", ":", "[", "]", "//", "?x=", "/?#"])
@pytest.mark.parametrize("rest", ["@h/v", "@h", "@h:bad", "@h?nonsense=1", "@[::1", "@h,"])
def test_a_password_that_was_not_encoded_is_never_repeated(scheme: Scheme, mark: str, rest: str) -> None:
    url, texts = f"amqp://user:{CANARY}{mark}{CANARY}{rest}", []
    try:
        found = scheme.parse(url)
        texts += [repr(found), str(found), repr(getattr(found, "management", None))]
    except ConfigError as error:
        texts += [str(error), repr(error.__cause__), repr(None if error.__suppress_context__ else error.__context__)]
    assert CANARY not in "".join(texts)


@pytest.mark.parametrize(
    "url", [f"amqp://user:{CANARY}", f"amqp://user:{CANARY}/", f"amqp://h1,user:{CANARY}!", f"amqp://user:x?{CANARY}=1"]
)
def test_a_password_before_a_host_that_was_forgotten_is_never_repeated(scheme: Scheme, url: str) -> None:
    with pytest.raises(ConfigError, match="port that is not") as caught:
        scheme.parse(url)
    assert CANARY not in repr(caught.getrepr(chain=True))


def test_a_key_with_a_password_is_refused_without_a_question(tmp_path: Path) -> None:
    made = trustme.CA().issue_cert("worker")
    (tmp_path / "cert.pem").write_bytes(made.cert_chain_pems[0].bytes())
    key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(CANARY.encode()),
        )
    )
    with pytest.raises(ConfigError, match="without a password"):
        Tls(certfile=str(tmp_path / "cert.pem"), keyfile=str(tmp_path / "key.pem")).context()


@pytest.mark.parametrize(
    ("hosts", "remote"),
    [
        ("localhost,127.0.0.1,127.8.0.9,[::1]", ""),
        ("broker,localhost,10.0.0.7:99,[fe80::1]:98", "broker:97, 10.0.0.7:99, [fe80::1]:98"),
        ("localhost.example.com", "localhost.example.com:97"),
    ],
)
def test_a_connection_without_tls_that_leaves_the_machine_is_a_warning(scheme: Scheme, hosts: str, remote: str) -> None:
    url = scheme.parse(f"amqp://u:{CANARY}@{hosts}")
    addresses = [Address(one.host, one.port if one.port in (98, 99) else 97) for one in url.addresses]
    found = unencrypted(addresses, "amqps://")
    assert [(each.level, each.id) for each in found] == [("warning", "check.no-tls")] * bool(remote)
    assert [each.what.partition(" has no TLS")[0] for each in found] == [f"The connection to {remote}"] * bool(remote)
