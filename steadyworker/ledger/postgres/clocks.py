"""
The part of `check` that compares the clocks of all hosts in the ledger's URL.

Leases end by the wall clock of the server, and a fail-over changes the server.
If the clock of the new server is ahead, leases end too early, and other processes take over jobs that still run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from steadyworker.clock import Clock
from steadyworker.errors import Finding
from steadyworker.findings import FindingTexts
from steadyworker.ledger.postgres.url import ServerAddress

_finding = FindingTexts("steadyworker.ledger")

_APART = 5.0
"""
The smallest difference between two clocks, in seconds, that `check` reports.

The clock of a server that follows NTP differs by milliseconds, and the margin of a lease is 30 s.
"""

_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


def clock_findings(address: ServerAddress, clock: Clock) -> list[Finding]:
    """Return a finding if the clocks of two hosts of the ledger differ too much; leave out hosts that do not respond."""
    ahead = dict(_ahead(address, clock))
    if len(ahead) < 2:  # noqa: PLR2004 - two clocks can differ
        return []
    first, last = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
    apart = ahead[last] - ahead[first]
    if apart <= _APART:
        return []
    return [_finding("ledger.clocks", ahead=last, apart=apart, behind=first)]


def _ahead(address: ServerAddress, clock: Clock) -> Iterator[tuple[str, float]]:
    """Yield each host of a URL with several hosts, and the seconds by which the host's clock is ahead of this machine's clock."""
    known = {name: str(value) for name, value in conninfo_to_dict(address.conninfo).items()}
    hosts, ports = known.get("host", "").split(","), known.get("port", "").split(",")
    if len(hosts) < 2:  # noqa: PLR2004 - one host has one clock
        return
    ports = ports * len(hosts) if len(ports) == 1 else ports
    for host, port in zip(hosts, ports, strict=False):
        one = known | {"host": host, "port": port, "target_session_attrs": "any"}
        with suppress(psycopg.Error), psycopg.connect(make_conninfo(**one), autocommit=True) as connection:
            before = clock.wall()
            ((now,),) = connection.execute(_NOW).fetchall()
            yield f"{host}:{port}", now - (before + clock.wall()) / 2
