"""What the catalogue explains in a text that a broker or a client has written, and in a log from a moment on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from steadyworker.diagnosis.catalogue import load
from steadyworker.diagnosis.scan import Scanner, Search
from steadyworker.diagnosis.timeline import Sighting
from tests.support.stage import eventually

CATALOGUE = load()
SEARCH = Search(CATALOGUE.values())


def explained(text: str) -> set[str]:
    """Return the ids of the entries that explain this text, such as a frame, an exception or lines of a log."""
    return ids_of(Scanner("text", SEARCH).whole([text.encode("utf-8", "replace")]))


def ids_of(found: Iterator[Sighting], mark: str = "") -> set[str]:
    """Return the ids in the records that contain the mark, without those that follow from another of them."""
    ids = {seen.entry.id for seen in found if mark in seen.record.text}
    return {each for each in ids if not ids & {*CATALOGUE[each].follows}}


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
        return ids_of(Scanner("log", SEARCH).whole([self.written().encode()]), mark)

    def shows(self, expected: str, mark: str = "", within: float = 30.0) -> None:
        """Wait until the entry explains a record with this mark, and assert that no other entry does."""
        eventually(
            lambda: expected in self.explained(mark), f"{expected} in the log, for {mark!r}", within, self.written
        )
        assert self.explained(mark) == {expected}, self.written()[-3000:]
