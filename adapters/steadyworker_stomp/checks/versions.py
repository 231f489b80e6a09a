"""Checks of a broker's version: versions that are too old, and versions with a known weakness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from steadyworker.errors import Finding
from steadyworker.findings import FindingTexts
from steadyworker_stomp.dialects import ARTEMIS, CLASSIC, Dialect, Version

OLDEST: Mapping[str, Version] = {CLASSIC.name: (5, 18), ARTEMIS.name: (2, 55)}
"""
The oldest version of each broker that this adapter supports.

On Artemis 2.40.0 and 2.50.0, dead letters were lost when their reader was killed many times; 2.55.0 keeps them (tried).
"""


_finding = FindingTexts("steadyworker_stomp")


class Weakness(NamedTuple):
    """
    A weakness of Classic. Any host that reaches Classic's OpenWire port can use the weakness without a login.

    `fixed` has the first version without the weakness, for each line of versions such as 5.18.
    Every line of versions that is older than the first line in `fixed` has the weakness, too.
    """

    cve: str
    harm: str
    fixed: Mapping[tuple[int, int], int]

    def concerns(self, version: Version) -> bool:
        """Return whether this version has the weakness."""
        line, patch = (version[0], version[1]), version[2] if len(version) > 2 else 0  # noqa: PLR2004 - the third part
        return line < min(self.fixed) or patch < self.fixed.get(line, 0)


WEAKNESSES = (
    Weakness("CVE-2023-46604", "run programs on the broker's host", {(5, 15): 16, (5, 16): 7, (5, 17): 6, (5, 18): 3}),
    Weakness(
        "CVE-2025-27533",
        "exhaust the broker's memory",
        {(5, 16): 8, (5, 17): 7, (5, 18): 7, (6, 0): 1 << 16, (6, 1): 6},
    ),
)


def version_findings(dialect: Dialect, version: Version) -> Iterator[Finding]:
    """Yield a warning for an old version, and for a weakness; yield nothing if the broker does not report its version."""
    if len(version) < 2:  # noqa: PLR2004 - a line has two parts
        return
    got = ".".join(map(str, version))
    oldest = OLDEST[dialect.name]
    if version < oldest:
        yield _finding("stomp.too-old", broker=dialect.broker, oldest=".".join(map(str, oldest)), version=got)
    if dialect is CLASSIC:
        for weakness in WEAKNESSES:
            if weakness.concerns(version):
                yield _finding(
                    "activemq.known-weakness",
                    broker=dialect.broker,
                    version=got,
                    harm=weakness.harm,
                    cve=weakness.cve,
                )
