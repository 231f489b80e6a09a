"""The recorded verdicts as a table: for a terminal, and for the page of this folder between two comments."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rich.table import Table

from tests.drills.contestants import CONTESTANTS
from tests.drills.verdicts import Verdict

RECORD = Path(__file__).with_name("results.jsonl")
PAGE = Path(__file__).with_name("README.md")
PLACE = re.compile(r"(?<=<!-- drills -->\n).*?(?=<!-- /drills -->)", re.DOTALL)

ROWS = {
    "a job holds the GIL for 45 s": r"D1",
    "its connection dies (closed, reset, lost both ways, lost one way or the other)": r"D2 \w+",
    "the same, while a second worker is idle": r"D2 \w+ beside",
    "the delivery timeout is a third of the job": r"D3",
    "a late acknowledgement after a reconnect": r"D4",
    "SIGTERM in the middle of a job": r"D5",
    "a job kills its process, a good job waits behind it": r"D6",
    "an operator's mistakes under a fleet, each named by `check` or the log": r"D7",
    "ten worker processes are replaced twenty times": r"D8",
}
"""What a row says, and the drills that it sums up."""


@dataclass(frozen=True)
class Results:
    """All of one day: who was drilled in which version, and the verdicts by the broker and its version."""

    date: str
    versions: Mapping[str, str]
    verdicts: Mapping[str, Sequence[Verdict]]

    @classmethod
    def recorded(cls) -> Results:
        """What the repository holds: a line with the date and the versions, then one for each verdict."""
        head, *lines = map(json.loads, RECORD.read_text(encoding="utf-8").splitlines())
        verdicts: dict[str, list[Verdict]] = {}
        for line in lines:
            verdicts.setdefault(line.pop("broker"), []).append(Verdict(**line))
        return cls(**head, verdicts=verdicts)

    def amending(self, earlier: Results) -> Results:
        """Those of an earlier day, with ours in the place of the same drills."""
        verdicts = {
            broker: {(one.contestant, one.drill): one for one in held} for broker, held in earlier.verdicts.items()
        }
        for broker, held in self.verdicts.items():
            verdicts.setdefault(broker, {}).update({(one.contestant, one.drill): one for one in held})
        return Results(
            self.date,
            {**earlier.versions, **self.versions},
            {broker: [*held.values()] for broker, held in verdicts.items()},
        )

    def record(self) -> None:
        """Write them, and the tables of the page."""
        lines: list[Mapping[str, object]] = [{"date": self.date, "versions": self.versions}]
        for broker, verdicts in self.verdicts.items():
            lines += [{"broker": broker, **_told(verdict)} for verdict in verdicts]
        RECORD.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        PAGE.write_text(PLACE.sub(lambda _: self.markdown(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")

    def names(self, broker: str) -> list[str]:
        """Of those who were drilled on this broker, in the order of their columns."""
        held = {one.contestant for one in self.verdicts[broker]}
        return [one.name for one in CONTESTANTS if one.name in held]

    def rows(self, broker: str, drills: Collection[str] | None = None) -> list[list[str]]:
        """The cells of one broker's table, without its head; only the rows of these drills where they are named."""
        rows = []
        for title, pattern in ROWS.items():
            if drills is None or any(re.fullmatch(pattern, drill) for drill in drills):
                held = [one for one in self.verdicts[broker] if re.fullmatch(pattern, one.drill)]
                rows.append(
                    [title, *(cell([one for one in held if one.contestant == name]) for name in self.names(broker))]
                )
        return rows

    def markdown(self) -> str:
        """The day, and one table for each broker."""
        return "\n".join([f"Run on {self.date}.\n", *map(self._markdown, self.verdicts)])

    def _markdown(self, broker: str) -> str:
        head = [broker, *(f"{name} {self.versions[name]}" for name in self.names(broker))]
        lines = [head, ["---"] * len(head), *self.rows(broker)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def table(self, broker: str, drills: Collection[str]) -> Table:
        """For a terminal, with the rows of these drills."""
        table = Table(broker, *(f"{name} {self.versions[name]}" for name in self.names(broker)), show_lines=True)
        for row in self.rows(broker, drills):
            table.add_row(*row)
        return table


def _told(verdict: Verdict) -> dict[str, object]:
    """Its values, without those that a drill leaves as they are."""
    return {one.name: value for one in fields(verdict) if (value := getattr(verdict, one.name)) != one.default}


def cell(verdicts: Sequence[Verdict]) -> str:
    """`passed`, or what went wrong; of several drills how many were passed, and the worst of the others; – for none."""
    failed = [verdict for verdict in verdicts if not verdict.passed]
    if not verdicts:
        return "–"
    words = ", ".join(max(failed, key=lambda one: (one.starts, len(one.faults))).faults) if failed else ""
    if len(verdicts) == 1:
        return words or "passed"
    return f"{len(verdicts) - len(failed)} of {len(verdicts)}{words and f' ({words})'}"
