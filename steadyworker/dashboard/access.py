"""
Which requests the page allows, and the headers of each response.

Without a token and without a proxy that names the user, only clients on this machine are allowed, and there are no actions.
The header `Host` must be in a list, so that a page of another site cannot read this page by DNS rebinding.
No response may be stored, framed, or load anything that did not come from this process.
"""

from __future__ import annotations

import binascii
import hmac
import secrets
from base64 import b64decode
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import takewhile
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from steadyworker.dashboard.csrf import SAFE, refused_as_foreign
from steadyworker.errors import ConfigError
from steadyworker.system import person
from steadyworker.text.plain_text import plain_text, printable

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

LEAST_TOKEN = 16
"""The smallest number of characters of a token."""

_LONGEST_QUERY = 2000
_LONGEST_NAME = 200
_FORWARDED = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
)
_FIXED = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # under `no-referrer`, a form of this page has the origin `null`
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """The answer to a request that is not allowed."""

    status: HTTPStatus
    text: str


@dataclass(frozen=True, slots=True)
class Visitor:
    """
    The person of a request.

    Attributes:
        name: The name that the person's login, proxy or application gave; empty without one.
        address: Where the request came from; behind a listed proxy, the address that the proxy forwarded.
    """

    name: str
    address: str

    @property
    def who(self) -> str:
        """The person in the log of actions; without a name, the user of this process."""
        return f"{self.name or person.who()} from {self.address}"


@dataclass(frozen=True, slots=True)
class Access:
    """
    The rules.

    Attributes:
        hosts: The names in the header `Host` that are allowed, without a port.
        token: The token that each request must have, unless one of `peers` names its user, as `Authorization: Bearer`, or as the password of a browser's login.
        user_header: The header in which a proxy names the user; only `peers` may send it.
        peers: The addresses of these proxies.
        behind_login: True if the application that mounts the page has authenticated each request.
            If it sets `scope["user"]`, the log of actions has the user's `display_name`.
    """

    hosts: Collection[str] = LOOPBACK_NAMES
    token: str | None = None
    user_header: str | None = None
    peers: Sequence[IPv4Network | IPv6Network] = ()
    behind_login: bool = False

    @property
    def authenticates(self) -> bool:
        """True if a request from another machine can be allowed."""
        return self.token is not None or self.user_header is not None or self.behind_login

    def judge(self, scope: Scope) -> RefusedRequest | Visitor:
        """Return why this request is refused, or its person."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _name_of(hosts[0]) not in self.hosts:
            return RefusedRequest(
                HTTPStatus.MISDIRECTED_REQUEST,
                "Expected a host name that this page has: use the address that `steadyworker dashboard` printed, or name the host with --allow-host.",
            )
        if len(scope.get("query_string", b"")) > _LONGEST_QUERY:
            return RefusedRequest(
                HTTPStatus.REQUEST_URI_TOO_LONG, f"Expected a query of at most {_LONGEST_QUERY} characters."
            )
        user = self._user(scope, headers)
        if isinstance(user, RefusedRequest):
            return user
        bearer = self.token is not None and headers.get("authorization", "").lower().startswith("bearer ")
        if scope["method"] not in SAFE and (
            why := refused_as_foreign(scope["method"], headers, hosts[0], bearer=bearer)
        ):
            return RefusedRequest(HTTPStatus.FORBIDDEN, printable(plain_text(why)))
        return user

    def _user(self, scope: Scope, headers: Headers) -> RefusedRequest | Visitor:
        """Return the authenticated person, or why the request is refused."""
        peer = scope["client"][0] if scope.get("client") else ""
        address = "this machine" if _is_loopback(peer) else plain_text(peer, _LONGEST_NAME) or "an unknown address"
        if self.behind_login:
            name = getattr(scope.get("user"), "display_name", "")  # of Starlette's authentication
            return Visitor(plain_text(str(name), _LONGEST_NAME), address)
        if self.user_header is not None and _is_in(peer, self.peers):
            named = self._user_of_proxy(self.user_header, headers)
            return named if isinstance(named, RefusedRequest) else Visitor(named, self._forwarded(headers) or address)
        if self.token is not None:
            user = _user_with(self.token, headers.getlist("authorization"))
            text = "Expected the token: as the password of a login, or as Authorization: Bearer."
            return RefusedRequest(HTTPStatus.UNAUTHORIZED, text) if user is None else Visitor(user, address)
        if self.user_header is None and _is_loopback(peer) and not any(name in headers for name in _FORWARDED):
            return Visitor("", address)
        expected = "this machine" if self.user_header is None else "a listed proxy (--trusted-peer)"
        return RefusedRequest(
            HTTPStatus.FORBIDDEN,
            f"Expected a request from {expected}, got one from elsewhere or through a proxy: "
            "set --token-file, or --user-header with --trusted-peer.",
        )

    def _forwarded(self, headers: Headers) -> str:
        """Return the last address in `X-Forwarded-For` that is no listed proxy, or else the first; clients can write those before it."""
        named = [text.strip() for text in ",".join(headers.getlist("x-forwarded-for")).split(",")]
        valid = list(takewhile(_is_address, reversed(named)))
        return next((each for each in valid if not _is_in(each, self.peers)), valid[-1] if valid else "")

    def _user_of_proxy(self, header: str, headers: Headers) -> RefusedRequest | str:
        named = headers.getlist(header)
        if len(named) == 1 and named[0].strip():
            return plain_text(named[0].strip(), _LONGEST_NAME)
        text = f"Expected the header {header} from the proxy once, got {len(named)} of it: log in there."
        return RefusedRequest(HTTPStatus.UNAUTHORIZED, text)


def checked_access(
    hosts: Iterable[str] = (),
    token: str | None = None,
    user_header: str | None = None,
    peers: Iterable[str] = (),
    *,
    behind_login: bool = False,
    acting: bool = False,
) -> Access:
    """
    Return the rules with these values.

    Raises ConfigError for a short token, a token behind a login, a wrong address, a header without peers, or actions without a token, a proxy or a login:
    a proxy on this machine that adds no header would let everyone act.
    """
    if token is not None and (len(token) < LEAST_TOKEN or not token.isascii()):
        raise ConfigError(
            f"Expected a token of at least {LEAST_TOKEN} ASCII characters, got {len(token)} characters: "
            "write one with `openssl rand -hex 32`."
        )
    networks = []
    for peer in peers:
        try:
            networks.append(ip_network(peer, strict=False))
        except ValueError as error:
            raise ConfigError(
                f"Expected an address such as 10.0.0.5 or 10.0.0.0/24 as a peer, got {peer!r}."
            ) from error
    if token is not None and behind_login:
        raise ConfigError("Expected a token or behind_login, got both: the page would not check the token.")
    if (user_header is None) != (not networks):
        raise ConfigError("Expected --user-header and --trusted-peer together, got one of them.")
    names = frozenset((*LOOPBACK_NAMES, *(_name_of(host) for host in hosts)))
    access = Access(names, token, user_header, networks, behind_login)
    if acting and not access.authenticates:
        raise ConfigError("Expected a token, a proxy that names the user, or a login for actions, got none: set one.")
    return access


class PageGuard:
    """The application inside the rules: it gets allowed requests only, and each response gets the headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        nonce = secrets.token_urlsafe(16)
        judged = self._access.judge(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(message, nonce)
            await send(message)

        if isinstance(judged, RefusedRequest):
            headers = {}
            if judged.status is HTTPStatus.UNAUTHORIZED and self._access.token is not None:
                headers["WWW-Authenticate"] = 'Basic realm="steadyworker", charset="UTF-8"'
            await PlainTextResponse(f"{judged.text}\n", judged.status, headers)(scope, receive, send_with_headers)
            return
        state: dict[str, Any] = {**scope.get("state", {}), "nonce": nonce, "visitor": judged}
        await self._app({**scope, "state": state}, receive, send_with_headers)


def _add_headers(message: MutableMapping[str, Any], nonce: str) -> None:
    given = {name for name, _ in message["headers"]}
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
    added = {"content-security-policy": policy, **_FIXED}
    if b"cache-control" not in given:
        added["cache-control"] = "no-store"
    message["headers"] = [*message["headers"], *((name.encode(), text.encode()) for name, text in added.items())]


def _name_of(host: str) -> str:
    """Return the name in a header `Host`, in lower case, without the port."""
    name = host.strip().lower()
    if name.startswith("["):
        inside, _, after = name[1:].partition("]")
        return inside if not after or (after[0] == ":" and after[1:].isdecimal()) else name
    before, colon, port = name.rpartition(":")
    if colon and port.isdecimal() and ":" not in before:
        name = before
    return name.removesuffix(".")


def _user_with(token: str, given: Sequence[str]) -> str | None:
    """Return the name in a login with this token, or None without the token."""
    if len(given) != 1:
        return None
    scheme, _, value = given[0].partition(" ")
    name = ""
    if scheme.lower() == "basic":
        try:
            name, _, value = b64decode(value.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeError):
            return None
    elif scheme.lower() != "bearer":
        return None
    right = hmac.compare_digest(value.strip().encode(), token.encode())
    return plain_text(name, _LONGEST_NAME) if right else None


def _is_in(peer: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    return any(address in network for network in networks)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_loopback(peer: str) -> bool:
    try:
        return ip_address(peer).is_loopback
    except ValueError:
        return False
