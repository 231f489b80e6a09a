"""Which requests the page allows, and the headers of each response."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterable
from hmac import compare_digest
from pathlib import Path
from typing import Any

import pytest

from steadyworker.clock import Times
from steadyworker.config.resolve import load
from steadyworker.dashboard.access import Access, RefusedRequest, Visitor, checked_access
from steadyworker.dashboard.application import app, application
from steadyworker.errors import ConfigError
from steadyworker.system.person import who
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.dashboard.kit import Answered, request
from tests.support.ledgers import make_ledger

TOKEN = "a-token-of-many-characters"
ADDRESSES = (
    "/",
    "/failures",
    "/queues",
    "/workers",
    "/warnings",
    "/actions",
    "/job/a/b/c",
    "/assets/page.css",
    "/nothing",
)


def asked(access: Access | None = None, path: str = "/", **values: Any) -> Answered:
    page = application(MemoryLedger(FakeClock(), Times()), access or checked_access(), clock=FakeClock())
    return request(page, path, **values)


def basic(user: str, password: str) -> str:
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:9", "[::1]:8080", "LOCALHOST.", "ops.example.com"]
)
def test_a_listed_host_is_allowed(host: str) -> None:
    assert asked(checked_access(["ops.example.com:443"]), host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "localhost.evil.example",
        "localhost:8080:1",
        "127.0.0.2",
        "[::2]",
        "[::1]evil.com",
        "localhost:²",
    ],
)
@pytest.mark.parametrize("path", ["/", "/assets/page.css"])
def test_another_host_is_refused(host: str | None, path: str) -> None:
    """A name that an attacker's DNS server points to 127.0.0.1 reads nothing."""
    answered = asked(path=path, host=host)
    assert (answered.status, answered.headers["content-type"]) == (421, "text/plain; charset=utf-8")


@pytest.mark.parametrize(
    ("client", "status"), [("127.0.0.1", 200), ("::1", 200), ("10.0.0.7", 403), ("", 403), (None, 403)]
)
def test_without_a_token_only_this_machine_is_allowed(client: str | None, status: int) -> None:
    assert asked(client=client).status == status


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "x_real_ip", "x_forwarded_host"])
def test_without_a_token_a_proxy_on_this_machine_is_refused(header: str) -> None:
    """It would lend the address of this machine to everybody."""
    headers: dict[str, Any] = {header: "203.0.113.9"}
    assert asked(**headers).status == 403


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("Bearer wrong-token-of-many-char", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (TOKEN, 401),
        (f"Digest {TOKEN}", 401),
        (basic("ann", TOKEN), 200),
        (basic("ann", "wrong"), 401),
        (basic(TOKEN, ""), 401),
        ("Basic %%%", 401),
        ("Basic /w==", 401),
    ],
)
def test_a_token_is_needed_from_everywhere(authorization: str | None, status: int) -> None:
    headers: dict[str, Any] = {} if authorization is None else {"authorization": authorization}
    for client in ("127.0.0.1", "10.0.0.7"):
        answered = asked(checked_access(token=TOKEN), client=client, **headers)
        assert answered.status == status
        assert (answered.headers.get("www-authenticate") is not None) == (status == 401)
        assert TOKEN not in answered.text


def test_a_login_names_its_user() -> None:
    assert "You are ann" in asked(checked_access(token=TOKEN), authorization=basic("ann", TOKEN)).words


@pytest.mark.parametrize(
    ("client", "user", "status"),
    [
        ("10.0.0.5", "ann", 200),
        ("10.0.0.5", "", 401),
        ("10.0.0.5", None, 401),
        ("10.0.1.5", "ann", 403),
        ("127.0.0.1", "ann", 403),
    ],
)
def test_only_a_listed_proxy_names_the_user(client: str, user: str | None, status: int) -> None:
    access = checked_access(user_header="X-Forwarded-User", peers=["10.0.0.0/24"])
    headers: dict[str, Any] = {} if user is None else {"x_forwarded_user": user}
    assert asked(access, client=client, **headers).status == status


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"token": "short"}, "Expected a token of at least 16 ASCII characters, got 5"),
        ({"token": "ü" * 40}, "Expected a token of at least 16 ASCII characters"),
        ({"user_header": "X-User"}, "Expected --user-header and --trusted-peer together"),
        ({"peers": ["10.0.0.5"]}, "Expected --user-header and --trusted-peer together"),
        ({"user_header": "X-User", "peers": ["ops.example.com"]}, "got 'ops.example.com'"),
    ],
)
def test_wrong_rules_are_refused_at_the_start(values: dict[str, Iterable[str]], expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        checked_access(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, 16, len(TOKEN) - 1, len(TOKEN), len(TOKEN) + 1, 1000])
def test_a_wrong_token_is_compared_in_constant_time(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One comparison of the whole token for each request, however many of its first characters are right."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, right: bytes) -> bool:
        compared.append((given, right))
        return compare_digest(given, right)

    monkeypatch.setattr("steadyworker.dashboard.access.hmac.compare_digest", compare)
    wrong = f"{TOKEN[:-1]}!{'x' * 1000}"[:length]
    assert asked(checked_access(token=TOKEN), authorization=basic("ann", wrong)).status == 401
    assert compared == [(wrong.encode(), TOKEN.encode())]


ACTS: dict[str, dict[str, Any]] = {
    "a token": {"token": TOKEN},
    "a proxy": {"user_header": "X-User", "peers": ["10.0.0.5"]},
    "a login": {"behind_login": True},
}


@pytest.mark.parametrize("values", ACTS.values(), ids=ACTS)
def test_actions_need_a_rule_that_identifies_people(values: dict[str, Any]) -> None:
    """A proxy on this machine that adds no header has the address of this machine, too."""
    assert checked_access(acting=True, **values).authenticates is True
    with pytest.raises(
        ConfigError, match="Expected a token, a proxy that names the user, or a login for actions, got none"
    ):
        checked_access(acting=True)


def test_the_application_has_no_actions_without_such_a_rule(tmp_path: Path) -> None:
    make_ledger(load({"state_dir": str(tmp_path)}, {}, tmp_path))
    ledger = f"sqlite:{tmp_path}/ledger.db"
    with pytest.raises(ConfigError, match="for actions, got none"):
        app(ledger=ledger, allow_actions=True)
    assert request(app(ledger=ledger, allow_actions=True, token=TOKEN)).status == 401
    assert request(app(ledger=ledger)).status == 200


def visitor(access: Access, client: str = "127.0.0.1", **headers: str) -> Visitor | RefusedRequest:
    named = {"host": "localhost", **headers}
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in named.items()]
    return access.judge({"type": "http", "method": "GET", "headers": raw, "client": (client, 1)})


def test_the_person_in_the_log_has_a_name_and_an_address() -> None:
    here, token = checked_access(), checked_access(token=TOKEN)
    assert visitor(here) == Visitor("", "this machine")
    assert visitor(token, authorization=basic("ann", TOKEN)) == Visitor("ann", "this machine")
    assert visitor(token, "10.0.0.7", authorization=basic("ann", TOKEN)) == Visitor("ann", "10.0.0.7")
    assert visitor(token, "::1", authorization=f"Bearer {TOKEN}") == Visitor("", "this machine")
    assert Visitor("ann", "10.0.0.7").who == "ann from 10.0.0.7"
    assert Visitor("", "this machine").who == f"{who()} from this machine"


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("6.6.6.6, 203.0.113.9", "203.0.113.9"),
        ("203.0.113.9, 10.0.0.6", "203.0.113.9"),
        ("2001:db8::7", "2001:db8::7"),
        ("10.0.0.6", "10.0.0.6"),
        ("<img src=x>", "10.0.0.5"),
        ("", "10.0.0.5"),
    ],
)
def test_a_listed_proxy_names_the_address_of_its_client(forwarded: str, address: str) -> None:
    """A client can put addresses before its own; the last one that is no proxy of the list is the proxy's own evidence."""
    access = checked_access(user_header="X-User", peers=["10.0.0.0/24"])
    assert visitor(access, "10.0.0.5", x_user="ann", x_forwarded_for=forwarded) == Visitor("ann", address)


@pytest.mark.parametrize("header", ["x_user", "X-User", "x-user", "X-USER"])
def test_an_unlisted_peer_names_neither_user_nor_address(header: str) -> None:
    """With a token, too, the name is that of the login, and the address is that of the connection."""
    access = checked_access(token=TOKEN, user_header="X-User", peers=["10.0.0.5"])
    smuggled: dict[str, Any] = {header: "root", "x_forwarded_for": "10.0.0.5"}
    assert isinstance(visitor(access, "10.0.0.7", **smuggled), RefusedRequest)
    login = basic("eve", TOKEN)
    assert visitor(access, "10.0.0.7", authorization=login, **smuggled) == Visitor("eve", "10.0.0.7")
    assert isinstance(visitor(access, "10.0.0.5", authorization=login), RefusedRequest)


def test_an_application_names_its_user() -> None:
    class User:
        display_name = "ann"

    access = checked_access(["app.example.com"], behind_login=True)
    scope = {"type": "http", "method": "GET", "headers": [(b"host", b"localhost")], "client": ("10.0.0.7", 1)}
    assert access.judge(scope) == Visitor("", "10.0.0.7")
    assert access.judge({**scope, "user": User()}) == Visitor("ann", "10.0.0.7")


def test_an_application_with_a_login_of_its_own_decides_who_may_read() -> None:
    access = checked_access(["app.example.com"], behind_login=True)
    assert asked(access, client="203.0.113.9", host="app.example.com", x_forwarded_for="1.2.3.4").status == 200
    assert asked(access, client="203.0.113.9", host="evil.example").status == 421


@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_each_response_has_the_headers(path: str, host: str) -> None:
    headers = asked(path=path, host=host).headers
    parts = [part.strip().partition(" ") for part in headers["content-security-policy"].split(";")]
    policy = {name: sources for name, _, sources in parts}
    nonce = policy.pop("script-src")
    assert re.fullmatch(r"'nonce-[\w-]{22}'", nonce)
    assert policy == {
        "default-src": "'none'",
        "style-src": nonce,
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers
    assert "set-cookie" not in headers


def test_each_response_has_a_nonce_of_its_own() -> None:
    found = {re.findall(r'nonce="([^"]+)"', asked().text)[0] for _ in range(3)}
    assert len(found) == 3


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_no_method_changes_anything(method: str) -> None:
    for path in ADDRESSES[:6]:
        assert asked(path=path, method=method, sec_fetch_site="same-origin").status == 405
        assert asked(path=path, method=method, sec_fetch_site="cross-site").status == 403
        assert asked(path=path, method=method).status == 403


def test_a_long_query_is_refused() -> None:
    assert asked(path=f"/?queue={'x' * 2000}").status == 414
    assert asked(path=f"/?queue={'x' * 1900}").status == 200


def test_a_websocket_is_refused() -> None:
    page = application(MemoryLedger(FakeClock(), Times()), checked_access(), clock=FakeClock())
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    asyncio.run(page({"type": "websocket", "path": "/", "headers": []}, receive, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]
