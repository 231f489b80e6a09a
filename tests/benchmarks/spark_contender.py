"""
A process that makes one file at each line that it reads: `python spark_contender.py export|bare FOLDER`.

Each line is one command in JSON, and the process answers with the seconds that it took.
`export` is `SparkExport` with its service, of the SteadyWorker that `PYTHONPATH` names, and `bare` is Spark alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ORDER = ("paid_at", "id")
COLUMNS = (
    "id",
    "concat('m-', pmod(hash(id), 997)) AS merchant",
    "element_at(array('EUR', 'USD', 'GBP', 'JPY'), 1 + pmod(hash(id, 3), 4)) AS currency",
    "element_at(array('paid', 'paid', 'paid', 'refunded'), 1 + pmod(hash(id, 4), 4)) AS status",
    "CAST(pmod(hash(id, 2), 10000000) / 100 AS DECIMAL(12,2)) AS amount",
    "pmod(hash(id, 5), 100000) * 0.37D AS fee",
    "date_add(DATE'2024-01-01', pmod(hash(id, 6), 366)) AS day",
    "timestamp_micros(1700000000000000 + pmod(xxhash64(id), 31536000000000)) AS paid_at",
    """concat('said "no, ', id, '"') AS note""",
)
"""Nine columns, the last one of text that needs quotes in CSV."""

_EXACT: Mapping[str, str | bool] = {
    "escape": '"',
    "emptyValue": "",
    "ignoreLeadingWhiteSpace": False,
    "ignoreTrailingWhiteSpace": False,
}
"""Without these options, Spark's CSV loses blanks, and writes an empty text as ours writes no value."""

Command = Mapping[str, Any]


@dataclass
class Alone:
    """What an export asks of its job, where there is no other."""

    service: Any
    uid: str
    fence: int = 1
    key: str = "bench"
    queue: str = "bench"
    namespace: str = "bench"
    _events: SimpleQueue[Mapping[str, Any]] = field(default_factory=SimpleQueue)

    def progress(self, done: float | None, total: float | None, note: str = "") -> None:
        """Nobody looks."""

    def check(self) -> None:
        """Nothing ends it."""

    def export_state(self) -> bytes | None:
        return None

    def save_export_state(self, value: bytes | None) -> None:
        """Nobody takes over."""

    def may_commit(self) -> None:
        """Granted."""

    def staged(self, folder: Path | str) -> None:
        """Nothing is left."""

    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        return frozenset()

    def call(self, service: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        self.service.open(request, self.uid, self.fence, self._events.put)
        while True:
            event = self._events.get()
            yield event
            if event["end"]:
                return


def export(folder: Path) -> tuple[Callable[[Command], object], Callable[[], object]]:
    """Return what runs one export, and what ends the service."""
    from steadyworker.exports.spark import Jdbc
    from steadyworker.exports.spark.export import SparkExport
    from steadyworker.exports.spark.service import SparkService
    from steadyworker.exports.spark.settings import SparkSettings

    service = SparkService(SparkSettings(folder=folder))

    def run(asked: Command) -> None:
        tables = {name: Jdbc(**given) if isinstance(given, dict) else given for name, given in asked["tables"].items()}
        made = SparkExport(asked["query"], tables=tables, order_by=asked.get("order_by", ORDER))
        to = asked["to"]
        made.write(Alone(service, Path(to).parent.name), to, totals=asked.get("totals", {}))

    return run, lambda: service.stop(10)


def bare(_: Path) -> tuple[Callable[[Command], object], Callable[[], object]]:
    """Return what runs one command in Spark, and what ends Spark."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()

    def run(asked: Command) -> None:
        to = f"file://{asked['to']}"
        if asked["action"] == "make":
            spark.range(0, asked["rows"], 1, 8).selectExpr(*COLUMNS).write.parquet(to)
            return
        rows = spark.read.parquet(asked["source"]).where(asked.get("where", "true")).orderBy(*ORDER)
        rows = rows.coalesce(1) if asked["action"] == "coalesce" else rows
        rows.write.options(**_EXACT).csv(to)

    return run, spark.stop


def main(kind: str, folder: Path) -> None:
    """Serve the commands until the end of the input."""
    run, end = {"export": export, "bare": bare}[kind](folder)
    answers = sys.stdout
    sys.stdout = sys.stderr  # so that no other output is taken for an answer
    for line in sys.stdin:
        began = time.monotonic()
        run(json.loads(line))
        print(time.monotonic() - began, file=answers, flush=True)
    end()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
