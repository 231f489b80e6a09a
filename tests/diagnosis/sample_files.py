"""
Reads `samples/*.toml`: the lines that were really seen, by the id of the entry of the catalogue that explains them.

Each file has the name of the file of `steadyworker/diagnosis/entries` whose entries it has samples of.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

FOLDER = Path(__file__).with_name("samples")

Text = Annotated[str, Meta(min_length=1)]


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Lines that were really seen.

    Attributes:
        origin: What wrote them (`from` in the file): "RabbitMQ 3.10.8".
        how: "provoked" by a test of this repository, or "provoked before" by a test that has gone,
            because one provocation of each kind of failure is enough; from the "source" code of what wrote them,
            "reported" by others, or "recalled": written from memory, and to be replaced by a line that was seen.
        test: The test that makes a broker or client write it, if it is provoked.
        text: The lines, with all that stands before and behind them in a log.
    """

    origin: Text = msgspec.field(name="from")
    how: Literal["provoked", "provoked before", "source", "reported", "recalled"]
    text: Text
    test: str = ""

    def __post_init__(self) -> None:
        if (self.how == "provoked") != bool(self.test):
            raise ValueError(
                f"expected `test` for a provoked sample and only there, got how = {self.how!r}, test = {self.test!r}."
            )


def read(text: str) -> dict[str, tuple[Sample, ...]]:
    """Return the samples of one file's text, by the id of their entry."""
    return msgspec.convert(tomllib.loads(text), dict[str, tuple[Sample, ...]])


@cache
def load() -> dict[str, tuple[Sample, ...]]:
    """Return all samples by the id of their entry; an id that two files have is an error."""
    found: dict[str, tuple[Sample, ...]] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        samples = read(path.read_text(encoding="utf-8"))
        assert not samples.keys() & found.keys(), path.name
        found.update(samples)
    return found
