"""What the catalogue explains in a text that a broker or a client has written, and in a log from a moment on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from steadyworker.diagnosis.catalogue import Entry, load
from steadyworker.diagnosis.scan import Scanner, Search
from tests.support.stage import eventually


@cache
def catalogue() -> dict[str, Entry]:
    return load()


@cache
def search() -> Search:
    """Return the search of the whole catalogue that all tests of a process share; it compiles its expressions as they are needed."""
    return Search(catalogue().values())


def records(text: str, mark: str = "") -> dict[str, str]:
    """Return the ids of the entries that explain records of this text which contain the mark, each with its record."""
    found = Scanner("text", search()).whole([text.encode("utf-8", "replace")])
    return {seen.entry.id: seen.record.text for seen in found if mark in seen.record.text}


def explained(text: str, mark: str = "") -> set[str]:
    """Return the same ids, without those that follow from another of them."""
    ids = records(text, mark).keys()
    return {each for each in ids if not ids & {*catalogue()[each].follows}}


def consequences(ids: Iterable[str]) -> set[str]:
    """Return the ids of all entries that follow from these, however many steps lie between."""
    found = set(ids)
    while more := {entry.id for entry in catalogue().values() if found & set(entry.follows)} - found:
        found |= more
    return found


class Log:
    """What is written to the log files of a broker or client from now on; other tests may write there, too."""

    def __init__(self, *paths: Path) -> None:
        self._starts = {path: path.stat().st_size if path.exists() else 0 for path in paths}

    def written(self) -> str:
        """Return all that was written since."""
        texts = []
        for path, start in self._starts.items():
            if path.exists():
                with path.open("rb") as file:
                    file.seek(start)
                    texts.append(file.read().decode("utf-8", "replace"))
        return "\n".join(texts)

    def explained(self, mark: str = "") -> set[str]:
        """Return the ids of the entries that explain the records which contain this mark."""
        return explained(self.written(), mark)

    def shows(self, expected: str, mark: str = "", within: float = 30.0) -> None:
        """Wait until the entry explains a record with this mark, and assert that no other entry does."""
        eventually(
            lambda: expected in self.explained(mark), f"{expected} in the log, for {mark!r}", within, self.written
        )
        assert self.explained(mark) == {expected}, self.written()[-3000:]

    def until(self, wanted: set[str]) -> dict[str, str]:
        """Return what the catalogue finds, as soon as all that is wanted is there; a broker writes its log a little later."""
        eventually(lambda: wanted <= records(self.written()).keys(), f"{wanted} in the log", 30.0, self.written)
        return records(self.written())


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield what stands below each line `## NAME`, with the name."""
    for part in ("\n" + text).split("\n## ")[1:]:
        name, _, below = part.partition("\n")
        yield name.strip(), below.strip()
