"""What the catalogue finds in what a broker or a client wrote while something was provoked."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from steadyworker.diagnosis.catalogue import Entry, load
from steadyworker.diagnosis.scan import Scanner, Search


@cache
def catalogue() -> dict[str, Entry]:
    return load()


@cache
def _search() -> Search:
    return Search(catalogue().values())


def explained(text: str) -> dict[str, str]:
    """Return the ids of the entries that explain this text, each with the record that it was found in."""
    return {seen.entry.id: seen.record.text for seen in Scanner("text", _search()).whole([text.encode()])}


def consequences(ids: Iterable[str]) -> set[str]:
    """Return the ids of all entries that follow from these, however many steps lie between."""
    found = set(ids)
    while more := {entry.id for entry in catalogue().values() if found & set(entry.follows)} - found:
        found |= more
    return found


class BrokersLog:
    """What a broker writes into its log from now on."""

    def __init__(self, path: Path) -> None:
        self._path, self._begins = path, path.stat().st_size

    def text(self) -> str:
        with self._path.open("rb") as log:
            log.seek(self._begins)
            return log.read().decode(errors="replace")

    def until(self, wanted: set[str], *, within: float = 30.0) -> dict[str, str]:
        """Return what the catalogue finds, as soon as all that is wanted is there; a broker writes its log a little later."""
        ends = time.monotonic() + within
        while not wanted <= (found := explained(self.text())).keys():
            assert time.monotonic() < ends, f"expected {wanted}, found {set(found)} in:\n{self.text()}"
            time.sleep(0.05)
        return found


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield what stands below each line `## NAME`, with the name."""
    for part in ("\n" + text).split("\n## ")[1:]:
        name, _, below = part.partition("\n")
        yield name.strip(), below.strip()
