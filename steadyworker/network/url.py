"""
The URL of a broker on a network: `scheme://user:password@host1:port,host2/path?option=value&…`.

User, password and path are percent-encoded; an adapter knows its schemes, its options and the meaning of the path.
No message and no repr of this module shows a password.
"""

from __future__ import annotations

import difflib
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote

from steadyworker.errors import ConfigError, Finding
from steadyworker.findings import FindingTexts
from steadyworker.names import is_loopback

# This is the pattern of RFC 3986, appendix B. Since the releases of 2025, Python's `urlsplit` refuses [::1] after another host.
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.IGNORECASE | re.DOTALL)
_LONGEST_HEARTBEAT = 3600

_finding = FindingTexts("steadyworker.network")

TLS_OPTIONS = ("cafile", "certfile", "keyfile", "server_name")
TCP_OPTIONS = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""With these options, the kernel notices a vanished peer within 30 s if data is unacknowledged, otherwise within 90 s."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one of the broker's hosts."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS files and names of the URL; the files are read again for each connection."""

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """
        Return a TLS context that verifies certificate and host name.

        Raises:
            ConfigError: A file does not exist, cannot be read, or is not PEM.
        """
        for path in filter(None, (self.cafile, self.certfile, self.keyfile)):
            if not os.access(path, os.R_OK) or not Path(path).is_file():
                raise ConfigError(
                    f"Expected a file at {path} that this user may read, got none: "
                    "correct the broker's URL, or the file's permissions.",
                    id="config.broker-url",
                )
        try:
            context = ssl.create_default_context(cafile=self.cafile)
            # This is Python's own minimum; Debian's Python leaves the minimum to OpenSSL's configuration.
            context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
            if self.certfile is not None:
                # With an empty password, OpenSSL refuses an encrypted key. Without a password, OpenSSL would ask for a password on the terminal.
                context.load_cert_chain(self.certfile, self.keyfile, password="")
        except ssl.SSLError as error:
            got = error.reason or "no PEM"
            raise ConfigError(
                "Expected PEM files in the options cafile, certfile and keyfile, and a key without a password, "
                f"got: {got}: correct the files.",
                id="config.broker-url",
            ) from error
        return context


@dataclass(frozen=True, slots=True)
class Url:
    """
    A parsed URL.

    `user` is None if the URL has no user part; `path` is the text after the `/`, decoded; `tls` is None without TLS.
    """

    addresses: tuple[Address, ...]
    user: str | None
    password: str = field(repr=False)
    path: str
    options: Mapping[str, str]
    tls: Tls | None


@dataclass(frozen=True, slots=True)
class Form:
    """
    The form of one adapter's URLs.

    Args:
        ports: The default port of each scheme.
        tls_scheme: The scheme with TLS.
        options: The options, except the options of TLS.
        example: A text for messages, with an example of a URL and the parts that are percent-encoded.
        path: The meaning of the path; None if the URLs have no path.
        tls_options: The options of TLS that the client library can take.
    """

    ports: Mapping[str, int]
    tls_scheme: str
    options: Sequence[str]
    example: str
    path: str | None = None
    tls_options: Sequence[str] = TLS_OPTIONS

    def parse(self, url: str) -> Url:
        """
        Parse a URL of this form.

        Raises:
            ConfigError: The URL is invalid; the message never repeats a password.
        """
        match = _URL.fullmatch(url)
        if match is None or match[1].lower() not in self.ports:
            raise ConfigError(
                f"Expected a broker's URL, got something else: {self.example}.", id="config.broker-url"
            )  # the URL can have a password
        parts = SplitResult(match[1].lower(), match[2], match[3], match[4] or "", "")
        userinfo, at, hosts = parts.netloc.rpartition("@")
        user, _, password = userinfo.partition(":")
        # An '@' after the host is part of an unencoded password, so no message before this check may repeat the URL.
        if "@" in url[len(f"{parts.scheme}://{parts.netloc}") :] or "#" in url:
            raise ConfigError(
                "Expected '@', '/', '?' and '#' to be percent-encoded in the broker's URL, got one that is not: "
                f"{self.example} (%40 %2F %3F %23).",
                id="config.broker-url",
            )
        self._check_path(parts.path)
        # The host is checked before the options, because the options are a part of the password if the host is missing.
        addresses = tuple(self._address(host, self.ports[parts.scheme]) for host in hosts.split(","))
        options = self._options(parts)
        tls = Tls(**{name: options.get(name) for name in TLS_OPTIONS}) if parts.scheme == self.tls_scheme else None
        if tls is not None:
            tls.context()  # so that a missing file is reported now, not at the first connect
        return Url(
            addresses=addresses,
            user=unquote(user) if at else None,
            password=unquote(password),
            path=unquote(parts.path[1:]),
            options=options,
            tls=tls,
        )

    def _check_path(self, path: str) -> None:
        if self.path is None and path.strip("/"):
            raise ConfigError(
                f"Expected no path in the broker's URL, got {path!r}: {self.example}.", id="config.broker-url"
            )
        if path.count("/") > 1:
            raise ConfigError(
                f"Expected one {self.path} in the broker's URL, got {path!r}: {self.example} ('/' as %2F).",
                id="config.broker-url",
            )

    def _options(self, parts: SplitResult) -> Mapping[str, str]:
        try:
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            raise ConfigError(
                "Expected name=value&… after the '?' of the broker's URL, got something else: correct the options.",
                id="config.broker-url",
            ) from None
        options = dict(pairs)
        known = (*self.options, *self.tls_options)
        for name, value in options.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                remedy = f"did you mean {near[0]}?" if near else "leave it out."
                raise ConfigError(
                    f"Expected only the options {', '.join(known)} in the broker's URL, got {name!r}: {remedy}",
                    id="config.broker-url",
                )
            if name in TLS_OPTIONS and parts.scheme != self.tls_scheme:
                raise ConfigError(
                    f"Expected the option {name} only in a URL that begins with {self.tls_scheme}://, got {parts.scheme}://: "
                    f"write {self.tls_scheme}://, or leave the option out.",
                    id="config.broker-url",
                )
            if not value:
                raise ConfigError(
                    f"Expected a value for the option {name} in the broker's URL, got none: give a value, or leave the option out.",
                    id="config.broker-url",
                )
        if len(pairs) != len(options):
            raise ConfigError(
                "Expected each option of the broker's URL once, got an option twice: remove one of the two.",
                id="config.broker-url",
            )
        if ("keyfile" in options) and "certfile" not in options:
            raise ConfigError(
                "Expected the options certfile and keyfile together in the broker's URL, got keyfile alone: add certfile.",
                id="config.broker-url",
            )
        return options

    def _address(self, text: str, default_port: int) -> Address:
        host, bracket, rest = text[1:].partition("]") if text.startswith("[") else (text.partition(":")[0], "", "")
        port = rest if bracket else text.removeprefix(host)
        if not host or (port and not (port.startswith(":") and port[1:].isdecimal() and 0 < int(port[1:]) < 1 << 16)):
            # The message does not repeat the text after the colon, because that text can be a password.
            raise ConfigError(
                f"Expected host or host:port in the broker's URL, got {host!r} with a port that is not from 1 to 65535: {self.example}."
                if host
                else f"Expected host or host:port in the broker's URL, got none: {self.example}.",
                id="config.broker-url",
            )
        return Address(host, int(port[1:]) if port else default_port)


def identity_of(addresses: Sequence[Address]) -> str:
    """Return the addresses as the identity of a broker that reports no name of its own."""
    return ",".join(sorted(map(str, addresses)))


def has_host_of(addresses: Sequence[Address], identity: str) -> bool:
    """
    Return whether one of the addresses has a host of that identity.

    The port does not count, because one port can be for TLS, and another for connections without TLS.
    """
    theirs = {address.rpartition(":")[0] for address in identity.split(",")}
    return any(str(address).rpartition(":")[0] in theirs for address in addresses)


def unencrypted(addresses: Sequence[Address], instead: str) -> list[Finding]:
    """
    Return a warning if a connection without TLS to one of these addresses leaves this machine.

    `instead` is the text that the warning's remedy proposes.
    """
    remote = ", ".join(str(address) for address in addresses if not is_loopback(address.host))
    if not remote:
        return []
    return [_finding("check.no-tls", addresses=remote, instead=instead)]


def heartbeat_of(options: Mapping[str, str], default: int) -> int:
    """Return the option `heartbeat`, in seconds; raises ConfigError unless the option is a whole number from 1 to 3600."""
    text = options.get("heartbeat", str(default))
    if text.isdecimal() and 1 <= int(text) <= _LONGEST_HEARTBEAT:
        return int(text)
    raise ConfigError(
        f"Expected the option heartbeat to be from 1 to {_LONGEST_HEARTBEAT} whole seconds, got {text!r}: "
        "correct it; 0 is refused, because without a heartbeat a vanished broker is never noticed.",
        id="config.broker-url",
    )
