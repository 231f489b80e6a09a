"""The supported versions, and the weaknesses of old versions; pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from steadyworker.errors import Finding
from steadyworker.findings import FindingTexts
from steadyworker_rocketmq.url import Driver

_finding = FindingTexts("steadyworker_rocketmq")

Version = tuple[int, ...]

OLDEST: Mapping[Driver, Version] = {"grpc": (5, 3), "remoting": (4, 9, 7)}
"""The oldest version that each driver supports; 4.9.7 and 5.4.0 are tried."""

_WEAKNESSES = (
    ("CVE-2023-33246", "run programs on the broker's host", {4: (4, 9, 6), 5: (5, 1, 1)}),
    ("CVE-2023-37582", "run programs on the name server's host", {4: (4, 9, 7), 5: (5, 1, 2)}),
    ("CVE-2024-23321", "read user names and secrets, if it has any valid login", {4: (4, 9, 8), 5: (5, 3, 0)}),
)
"""Each weakness, with the first version of each line without this weakness."""

LOSES_LAST_SEND_BACK: tuple[tuple[Version, Version], ...] = (((5, 4), (5, 4, 1)),)
"""
The versions that lose a message when a consumer sends it back for the last time.

Each pair has the first version with this defect, and the first version without it.

Tried with rocketmq-client-python on 5.4.0 (NullPointerException in `TopicValidator.isSystemTopic`); 4.9.7 keeps the message.
"""

LOSES_BY_REVIVAL: Version = (5, 1)
"""
The first version that can lose a message when the broker revives the message.

To revive a message is to deliver it again after its invisibility at a proxy.

Such a message comes again through `PopReviveService`, which keeps a pair of a time and a result for each revival under way.
If a revival takes more than 30 s, `rePutCK` writes the revival's checkpoint again, with that time in place of the offset.
The next revival looks for a message at that offset, and finds none (seen on 5.4.0 as `startOffset: 1795695018112`).
5.1.0 to 5.3.3 have this defect by their source code, and 5.5.0 has it by its bytecode. 5.0 does not have the pair.
Up to 5.2.0, the revival also drops a message that another broker stored by a clock that is ahead (apache/rocketmq#7914).
From 5.3.2 on, `popConsumerKVServiceEnable=true` lets a broker use another service.
It was tried on 5.4.0 with the conformance tests, and with kills of worker, proxy and broker.
"""


def version_of(text: str) -> Version:
    """Return the numbers in a version's text; empty if the text is no version."""
    parts = text.partition("-")[0].split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def version_findings(text: str, driver: Driver, broker: str) -> Iterator[Finding]:
    """Yield the findings about a broker's version."""
    version, oldest = version_of(text), OLDEST[driver]
    if not version:
        return
    if version < oldest:
        yield _finding("rocketmq.too-old", oldest=".".join(map(str, oldest)), version=text, broker=broker)
    for cve, harm, fixed in _WEAKNESSES:
        if version < fixed.get(version[0], (0,)):
            yield _finding("rocketmq.known-weakness", broker=broker, version=text, harm=harm, cve=cve)
    if any(first <= version < end for first, end in LOSES_LAST_SEND_BACK):
        yield _finding("rocketmq.loses-last-send-back", broker=broker, version=text)
