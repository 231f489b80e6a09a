"""
The broker's URL: the driver, the addresses, the login and the options.

- `rocketmq+grpc://access-key:secret@proxy:8081?option=value&…` names proxies, and uses rocketmq-python-client; with TLS, it is `rocketmq+grpcs://`.
- `rocketmq://access-key:secret@ns:9876,ns2?option=value&…` names name servers, and uses no client library and no TLS.

Access key and secret are percent-encoded.

| option | |
|---|---|
| `group` | the consumer group, in which `{queue}` stands for the queue's name; by default the queue's name |
| `queues` | the number of queues of a topic that the adapter makes, from 1 to 256; 16 by default |
| `namesrv` | `rocketmq+grpc`: the name servers, `host:9876;host2`, or `off`, which is the default |
| `members` | `rocketmq+grpc`: the remoting ports of the proxies, `host:8080;host2`, or `off`; by default port 8080 of each proxy's host |
| `invisible` | `rocketmq+grpc`: seconds from 10 to 43200, 60 by default; a message that is not renewed for that time is delivered again |
| `delay_levels` | `rocketmq`: the brokers' `messageDelayLevel`, such as `1s,5s,10s`, if the brokers do not show it to this access key; by default the 18 default levels of a broker |

**Without `namesrv`**, a worker cannot ask the brokers, because a proxy passes on only messages:

- The adapter makes no topics and no consumer groups, so an operator must make them.
- The adapter counts no consumers.
- The adapter reads no dead letters.
- `check` sees no version, no configuration and no topic that grows.

**Without `members`**, the adapter counts no consumers either, because only the proxies know them.
The requests to `namesrv` and `members` go over plain TCP, even with `rocketmq+grpcs`.

**TLS**: rocketmq-python-client verifies the proxy's certificate and host name, and accepts no files.
It trusts Mozilla's authorities, which grpcio contains, and not the system's authorities.
To trust other authorities, set the environment variable `GRPC_DEFAULT_SSL_ROOTS_FILE_PATH` to a PEM file.
grpcio reads this variable once in a process.

**Hosts**: rocketmq-python-client accepts one name, or several IPv4 addresses. With TLS, the library accepts one name or one address.
The library splits an address at the first colon, so the adapter refuses an IPv6 address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from steadyworker.errors import ConfigError
from steadyworker.network.url import TLS_OPTIONS, Address, Form, Url

Driver = Literal["grpc", "remoting"]

PROXY_PORT, NAME_SERVER_PORT, MEMBERS_PORT = 8081, 9876, 8080
QUEUES, MOST_QUEUES = 16, 256
INVISIBLE, SHORTEST_INVISIBLE, LONGEST_INVISIBLE = 60, 10, 43_200

DELAY_LEVELS: tuple[float, ...] = (
    *(1.0, 5.0, 10.0, 30.0),
    *(60.0 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(3600.0, 7200.0),
)
"""The default delay levels in seconds: the default of a broker's `messageDelayLevel`."""

FORM = Form(
    ports={"rocketmq+grpc": PROXY_PORT, "rocketmq+grpcs": PROXY_PORT, "rocketmq": NAME_SERVER_PORT},
    tls_scheme="rocketmq+grpcs",
    options=("group", "queues", "namesrv", "members", "invisible", "delay_levels"),
    example="write rocketmq+grpc[s]://access-key:secret@proxy:8081, or rocketmq://access-key:secret@name-server:9876, "
    "with access key and secret percent-encoded",
    tls_options=(),
)

_OPTIONS_OF: dict[Driver, tuple[str, ...]] = {
    "grpc": ("namesrv", "members", "invisible"),
    "remoting": ("delay_levels",),
}
_WRITTEN: dict[Driver, str] = {"grpc": "rocketmq+grpc", "remoting": "rocketmq"}
_OPTION = re.compile(r"[?&](\w+)")
_HOST = re.compile(r"[A-Za-z0-9._-]+")
_HOSTS = re.compile(r"[A-Za-z0-9._:;\[\]-]+")
_UNSENDABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ACCESS_KEY = re.compile(r"[!-+\--~]+")  # the proxy reads it from a header of ASCII, up to a comma
_NUMBER = re.compile(r"[0-9]{1,9}")
_LEVEL = re.compile(r"([0-9]{1,9})([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class RocketmqUrl:
    """
    The parsed URL. The text and repr of this object never show the secret.

    Attributes:
        driver: `grpc` connects to proxies, and `remoting` connects to name servers and brokers.
        addresses: The proxies or the name servers, in the order of the URL.
        user: The access key; None without a login.
        password: The secret.
        tls: The connection to the proxies uses TLS.
        group: The consumer group; None for the queue's name.
        namesrv: The name servers; None if they are unknown. For `remoting`, the same as `addresses`.
        members: The remoting ports of the proxies; None if the adapter must not ask them, and for `remoting`.
        invisible: `grpc`: the seconds after which the broker delivers a message again, unless the message was renewed.
        queues: The number of queues of a topic that the adapter makes.
        delay_levels: `remoting`: the delay levels in seconds, ascending; used for brokers that do not show their levels.
    """

    driver: Driver
    addresses: tuple[Address, ...]
    user: str | None = None
    password: str = field(default="", repr=False)
    tls: bool = False
    group: str | None = None
    namesrv: tuple[Address, ...] | None = None
    members: tuple[Address, ...] | None = None
    invisible: int = INVISIBLE
    queues: int = QUEUES
    delay_levels: tuple[float, ...] = DELAY_LEVELS

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))


def parse_url(url: str) -> RocketmqUrl:
    """
    Parse a broker's URL.

    Raises:
        ConfigError: The URL is invalid. The error text never repeats a secret.
    """
    scheme = url.partition(":")[0].lower()
    if scheme in FORM.ports:
        _check_tls_options(_OPTION.findall(url), scheme)  # before `Form` looks for the file, or advises another scheme
    found = FORM.parse(url)
    driver: Driver = "remoting" if scheme == "rocketmq" else "grpc"
    options = found.options
    _check_driver(options, driver)
    _check_hosts(found.addresses, driver, tls=found.tls is not None)
    _check_login(found, driver)
    namesrv: tuple[Address, ...] | None = found.addresses
    members: tuple[Address, ...] | None = None
    if driver == "grpc":
        near = tuple(Address(address.host, MEMBERS_PORT) for address in found.addresses)
        namesrv = _addresses(options, "namesrv", NAME_SERVER_PORT, None)
        members = _addresses(options, "members", MEMBERS_PORT, near)
    return RocketmqUrl(
        driver=driver,
        addresses=found.addresses,
        user=found.user,
        password=found.password,
        tls=found.tls is not None,
        group=options.get("group"),
        namesrv=namesrv,
        members=members,
        invisible=_number(options, "invisible", INVISIBLE, SHORTEST_INVISIBLE, LONGEST_INVISIBLE, "whole seconds"),
        queues=_number(options, "queues", QUEUES, 1, MOST_QUEUES, "queues"),
        delay_levels=_levels(options.get("delay_levels")),
    )


def _check_tls_options(names: Iterable[str], scheme: str) -> None:
    """Raise ConfigError for an option that names a TLS file, or the name in a certificate."""
    name = next((name for name in names if name in TLS_OPTIONS), None)
    if name is None:
        return
    if scheme == "rocketmq":
        remedy = "leave it out; this driver has no TLS, but the one for proxies has: rocketmq+grpcs://"
    elif name == "cafile":
        remedy = (
            "leave it out, write rocketmq+grpcs://, and set the environment variable GRPC_DEFAULT_SSL_ROOTS_FILE_PATH "
            "to a PEM file of the authorities to trust"
        )
    elif name == "server_name":
        remedy = "leave it out, and write the name that is in the proxy's certificate as the host"
    else:
        remedy = "leave it out, and log in with an access key and its secret"
    raise ConfigError(
        f"Expected no option {name} in the broker's URL, because the driver cannot take it: {remedy}.",
        id="config.broker-url",
    )


def _check_driver(options: Mapping[str, str], driver: Driver) -> None:
    """Raise ConfigError for an option of the other driver."""
    other: Driver = "grpc" if driver == "remoting" else "remoting"
    for name in options:
        if name in _OPTIONS_OF[other]:
            raise ConfigError(
                f"Expected the option {name} only in a URL that begins with {_WRITTEN[other]}://, "
                f"got {_WRITTEN[driver]}://: leave the option out.",
                id="config.broker-url",
            )


def _check_hosts(addresses: tuple[Address, ...], driver: Driver, *, tls: bool) -> None:
    """Raise ConfigError for hosts that the client library refuses."""
    for number, address in enumerate(addresses, 1):
        if driver == "remoting" and _is_ip(address.host):
            continue
        if driver == "grpc" and ":" in address.host:
            raise ConfigError(
                f"Expected a name or an IPv4 address as a host of the broker's URL, got {address.host!r}: "
                "the client library splits an address at its first colon; write a name that has this address.",
                id="config.broker-url",
            )
        if not _HOST.fullmatch(address.host):  # the message does not repeat the host, which can be a part of a secret
            raise ConfigError(
                "Expected letters, digits and . _ - in the hosts of the broker's URL, and commas between two hosts, "
                f"got another character in host {number}: {FORM.example}.",
                id="config.broker-url",
            )
    names = [address.host for address in addresses if not _is_ip(address.host)]
    if driver == "grpc" and names and len(addresses) > 1:
        raise ConfigError(
            f"Expected one name, or IPv4 addresses only, as the hosts of the broker's URL, got {names[0]!r} among "
            f"{len(addresses)} hosts: the client library refuses this; write one name that has all addresses, or the addresses.",
            id="config.broker-url",
        )
    if tls and len(addresses) > 1:
        raise ConfigError(
            f"Expected one host in a URL that begins with rocketmq+grpcs://, got {len(addresses)}: gRPC would look for all of "
            "them together as one name in the certificate; write one name that has all addresses, and is in the certificates.",
            id="config.broker-url",
        )


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def _check_login(found: Url, driver: Driver) -> None:
    """Raise ConfigError for half a login, or for a login that the client library cannot send."""
    if found.user is None:
        return
    missing = [what for what, text in (("access key", found.user), ("secret", found.password)) if not text]
    if missing:
        raise ConfigError(
            f"Expected an access key and its secret before the '@' of the broker's URL, got no {' and no '.join(missing)}: "
            "give both, or leave out both and the '@'.",
            id="config.broker-url",
        )
    if _UNSENDABLE.search(found.user + found.password):
        raise ConfigError(
            "Expected an access key and a secret without control characters in the broker's URL, got one: "
            "look for a line end in the text from which the URL is made, or make another access key.",
            id="config.broker-url",
        )
    if driver == "grpc" and not _ACCESS_KEY.fullmatch(found.user):
        raise ConfigError(
            "Expected an access key of ASCII letters, digits and marks, without blanks and commas, in the broker's URL, "
            "got another character: a proxy gets it in a header; make another access key.",
            id="config.broker-url",
        )


def _addresses(
    options: Mapping[str, str], name: str, port: int, default: tuple[Address, ...] | None
) -> tuple[Address, ...] | None:
    """Return the addresses of an option; None for `off`."""
    text = options.get(name)
    if text is None or text == "off":
        return default if text is None else None
    example = f"write {name}=host:{port};host2, or {name}=off"
    if not _HOSTS.fullmatch(text):  # the message does not repeat the text, which can have a secret
        raise ConfigError(
            f"Expected host:port;host2, or off, as the option {name} of the broker's URL, got something else: {example}.",
            id="config.broker-url",
        )
    form = Form(ports={name: port}, tls_scheme="", options=(), example=example)
    return form.parse(f"{name}://{text.replace(';', ',')}").addresses


def _number(options: Mapping[str, str], name: str, default: int, least: int, most: int, unit: str) -> int:
    text = options.get(name, str(default))
    if _NUMBER.fullmatch(text) and least <= int(text) <= most:
        return int(text)
    raise ConfigError(
        f"Expected the option {name} of the broker's URL to be from {least} to {most} {unit}, got {text[:40]!r}: "
        f"correct it, or leave it out for {default}.",
        id="config.broker-url",
    )


def seconds_of_levels(text: str) -> tuple[float, ...]:
    """Return the seconds of each level in a broker's `messageDelayLevel`, in the same order; raises ValueError for another text."""
    matches = [_LEVEL.fullmatch(word) for word in text.split()]
    levels = tuple(int(match[1]) * _UNITS[match[2]] for match in matches if match)
    if not levels or len(levels) < len(matches):
        raise ValueError(text)
    return levels


def _levels(text: str | None) -> tuple[float, ...]:
    """Return the seconds of each level."""
    if text is None:
        return DELAY_LEVELS
    words = re.split(r"[\s,]+", text.strip(" ,"))
    levels: list[float] = []
    for word in words:
        match = _LEVEL.fullmatch(word)
        seconds = int(match[1]) * _UNITS[match[2]] if match else 0.0
        if seconds < max(levels, default=1.0):
            expected = (
                f"levels in ascending order, got {word[:40]!r} after {words[len(levels) - 1]!r}"
                if seconds and levels
                else f"levels of at least 1s, each a whole number and its unit s, m, h or d, got {word[:40]!r}"
            )
            raise ConfigError(
                f"Expected in the option delay_levels of the broker's URL {expected}: write the broker's messageDelayLevel "
                "with commas, such as delay_levels=1s,5s,10s (mqadmin getBrokerConfig shows it).",
                id="config.broker-url",
            )
        levels.append(seconds)
    return tuple(levels)
