"""
The broker's URL: its addresses, login and options.

The README of this adapter explains the form of the URL, and has a table of the options.
The adapter always verifies the broker's certificate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from steadyworker.errors import ConfigError
from steadyworker.network.url import Address, Form, Tls, heartbeat_of
from steadyworker_stomp.dialects import DialectName
from steadyworker_stomp.stomp_internals import login_problem

HEARTBEAT = 10
"""
The default heartbeat in seconds.

A broker notices a dead worker after two to four heartbeats, and only then delivers the worker's message again.
"""

FORM = Form(
    ports={"stomp": 61613, "stomp+ssl": 61612},
    tls_scheme="stomp+ssl",
    options=("heartbeat", "dialect", "dlq"),
    example="write stomp[+ssl]://user:password@host:port, with user and password percent-encoded",
)


@dataclass(frozen=True, slots=True)
class StompUrl:
    """The parsed URL, with the hosts in any order. The text and repr of this object never show the password."""

    addresses: tuple[Address, ...]
    user: str | None = None
    password: str = field(default="", repr=False)
    tls: Tls | None = None
    heartbeat: int = HEARTBEAT
    dialect: DialectName | None = None
    dlq: str | None = None

    def moved_to(self, queue: str) -> str | None:
        """Return the queue to which the broker moves dead letters of this queue; None if the broker must be asked."""
        return self.dlq and self.dlq.replace("{queue}", queue)

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))


def parse_url(url: str) -> StompUrl:
    """
    Parse a broker's URL.

    Raises:
        ConfigError: The URL is invalid. The error text never repeats a password.
    """
    found = FORM.parse(url)
    dialect = found.options.get("dialect")
    if dialect not in (None, "classic", "artemis"):
        raise ConfigError(
            f"Expected the option dialect to be classic or artemis in the broker's URL, got {dialect!r}: correct it, or leave it out.",
            id="config.broker-url",
        )
    if login_problem(f"{found.user}{found.password}"):
        raise ConfigError(
            "Expected a user and a password without control characters in the broker's URL, got one: "
            "STOMP cannot send it, so give the user another password.",
            id="config.broker-url",
        )
    return StompUrl(
        addresses=found.addresses,
        user=found.user,
        password=found.password,
        tls=found.tls,
        heartbeat=heartbeat_of(found.options, HEARTBEAT),
        dialect=cast("DialectName | None", dialect),
        dlq=found.options.get("dlq"),
    )
