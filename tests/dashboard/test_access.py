"""Which requests the page allows, and the headers of each response."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import pytest

from steadyworker.clock import Times
from steadyworker.dashboard.access import Access, checked_access
from steadyworker.dashboard.application import application
from steadyworker.errors import ConfigError
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.dashboard.kit import Answered, request

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
    app = application(MemoryLedger(FakeClock(), Times()), access or checked_access(), clock=FakeClock())
    return request(app, path, **values)


def basic(user: str, password: str) -> str:
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:9", "[::1]:8080", "LOCALHOST.", "ops.example.com"]
)
def test_a_listed_host_is_allowed(host: str) -> None:
    assert asked(checked_access(["ops.example.com:443"]), host=host).status == 200


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "localhost.evil.example", "localhost:8080:1", "127.0.0.2", "[::2]"]
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
    app = application(MemoryLedger(FakeClock(), Times()), checked_access(), clock=FakeClock())
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    asyncio.run(app({"type": "websocket", "path": "/", "headers": []}, receive, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]
