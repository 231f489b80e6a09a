"""Rules for URLs and queue names of the embedded broker, and checks of the file's location."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from steadyworker.adapter import Finding, QueueSpec
from steadyworker.errors import ConfigError
from steadyworker.findings import FindingTexts
from steadyworker.names import NameRule
from steadyworker.system.mounts import network_file_system

_finding = FindingTexts("steadyworker_sqlite")

QUEUE = NameRule("queue name of the embedded broker", pattern=r"[A-Za-z0-9][A-Za-z0-9._:/-]*", max_bytes=200)

HEADER_BYTES = 64 << 10
"""The largest size in bytes of all headers of a message, in their stored form (JSON)."""


def path_of(url: str) -> Path:
    """
    Return the file of a URL: `sqlite:relative/or/absolute`, `sqlite:~/path`, `sqlite:///absolute`.

    Raises:
        ConfigError: The URL has no path, a host, an option, or SQLite's name for an in-memory database.
    """
    rest = url.partition(":")[2]
    how = "write sqlite:PATH, for instance sqlite:/var/lib/steadyworker/broker.db"
    if rest.startswith("//") and not rest.startswith("///"):
        raise ConfigError(
            f"Expected no host in the broker's URL, got {url!r}: it is a file on this host; {how}.",
            id="config.broker-url",
        )
    path = rest.removeprefix("//")
    if not path or path == ":memory:":
        raise ConfigError(
            f"Expected the path of a file in the broker's URL, got {url!r}: {how}.", id="config.broker-url"
        )
    if "?" in path:
        raise ConfigError(
            f"Expected no options in the broker's URL, got {url!r}: the embedded broker has none; {how}.",
            id="config.broker-url",
        )
    return Path(path).expanduser().absolute()


def check_names(spec: QueueSpec) -> None:
    """Raise ConfigError for an invalid queue name, and for a queue that is its own dead-letter queue."""
    for name in (spec.queue, spec.dead_letter_queue):
        problem = QUEUE.problem(name)
        if problem is not None:
            raise ConfigError(problem, id="config.queue-name")
    if spec.queue == spec.dead_letter_queue:
        raise ConfigError(
            f"Expected a dead-letter queue that is not the work queue, got {spec.queue!r} for both: name another.",
            id="config.queue-name",
        )


def place_findings(path: Path, mounts: str) -> Sequence[Finding]:
    """Return the problems of the file's location; `mounts` is the text of /proc/self/mountinfo, or empty."""
    folder = next(folder for folder in path.parents if folder.exists())
    found: list[Finding] = []
    if (kind := network_file_system(folder.resolve(), mounts)) is not None:
        found.append(_finding("embedded.network-file-system", path=path, kind=kind))
    if path.exists() and not path.is_file():
        found.append(_finding("embedded.no-file", path=path))
    # This also checks the folder, which has the write-ahead log and the consumers' locks.
    for place in (folder, path):
        if place.exists() and not os.access(place, os.W_OK):
            found += [_finding("embedded.read-only", path=place, user=os.getuid())]
    return found
