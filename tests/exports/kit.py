"""A job's services over plain files, so that runs in several processes share one "ledger"; and rows to export."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from steadyworker.errors import Interrupt
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.rows import Position, RowExport

COLUMNS = ("id", "merchant", "currency", "status", "amount")
TOTALS = {"amount": "sum"}
BY = ("currency", "status")


def payment(number: int) -> tuple[int, str, str, str, Decimal]:
    """The payment with this number: always the same."""
    currency = ("EUR", "USD", "JPY")[number % 3]
    status = "refunded" if number % 7 == 0 else "paid"
    return number, f"m-{number % 11}", currency, status, Decimal(number * 7919 % 100_003).scaleb(-2)


def killed(*arguments: object, by: str = "tests.exports.killed") -> subprocess.CompletedProcess[str]:
    """Run the module `by`, whose process dies at the point that an argument names."""
    command = [sys.executable, "-m", by, *map(str, arguments)]
    repository = Path(__file__).parents[2]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False, timeout=250)


def undisturbed(tmp_path: Path, name: str = "payments.csv") -> Manifest:
    """Export all payments, with totals, in a run that nothing ends."""
    out = tmp_path / "undisturbed" / name
    return Payments().export().write(FakeServices(tmp_path / "other ledger"), out, totals=TOTALS, by=BY)


def nothing() -> None:
    """Do nothing."""


@dataclass
class FakeServices:
    """
    What a job offers its export, with the ledger's two words in files: `fence` (the run that is the one) and `handle`.

    The hooks are called at the beginning of the call that they are named after.
    """

    ledger: Path
    uid: str = "uid-1"
    fence: int = 1
    key: str = "payments-17"
    queue: str = "daily"
    namespace: str = "test"
    gone: frozenset[str] = frozenset()
    on_progress: Callable[[float | None], None] = lambda _: None
    on_check: Callable[[], None] = nothing
    on_leave: Callable[[], None] = nothing
    on_save: Callable[[bytes | None], None] = lambda _: None
    beats: list[float | None] = field(default_factory=list)
    leaves: int = 0
    folders: list[Path | str] = field(default_factory=list)
    saved: list[bytes | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger.mkdir(parents=True, exist_ok=True)
        (self.ledger / "fence").write_text(str(self.fence))

    def _mine(self) -> None:
        if int((self.ledger / "fence").read_text()) != self.fence:
            raise Interrupt("fenced")

    def progress(self, done: float | None, total: float | None, note: str = "") -> None:
        self.beats.append(done)
        self.on_progress(done)

    def check(self) -> None:
        self.on_check()

    def export_state(self) -> bytes | None:
        path = self.ledger / "handle"
        return path.read_bytes() if path.exists() else None

    def save_export_state(self, value: bytes | None) -> None:
        self.on_save(value)
        self._mine()
        self.saved.append(value)
        written = self.ledger / "handle.new"
        written.write_bytes(value or b"")
        written.rename(self.ledger / "handle")

    def may_commit(self) -> None:
        self.leaves += 1
        self._mine()
        self.on_leave()

    def staged(self, folder: Path | str) -> None:
        self.folders.append(folder)

    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        return self.gone & set(uids)

    def call(self, service: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        raise NotImplementedError

    def positions(self) -> list[Position]:
        """The positions that were saved."""
        return [msgspec.json.decode(value, type=Position) for value in self.saved if value and b'"rows"' in value[:20]]


@dataclass
class Payments:
    """A source that resumes; `starts` are the rows that it was asked to start at."""

    count: int = 10_000
    starts: list[int] = field(default_factory=list)

    def __call__(self, start: int) -> Iterable[tuple[object, ...]]:
        self.starts.append(start)
        return map(payment, range(start, self.count))

    def export(self, **options: Any) -> RowExport:
        return RowExport(self, columns=COLUMNS, **{"save_rows": 2_000, "description": "payments", **options})
