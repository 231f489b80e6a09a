"""Two threads of one handler export: to one file one of them, to two files both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from steadyworker import Job, Worker
from steadyworker.errors import ExportError
from steadyworker.exports import RowExport
from steadyworker.exports.verifying import verify
from steadyworker.outcome import Done
from steadyworker.testing import run_one


class Impatient(Worker[dict[str, str]]):
    """Exports again, because it did not want to wait for the first any longer."""

    queue = "impatient"
    time_limit = 120

    def handle(self, job: Job[dict[str, str]]) -> None:
        out = Path(job.payload["folder"], "out.csv")
        begun, go_on = threading.Event(), threading.Event()

        def rows(start: int) -> Iterator[tuple[int]]:
            for number in range(start, 5_000):
                if number == 3_000 and not begun.is_set():
                    begun.set()
                    go_on.wait(60)
                yield (number,)

        export = RowExport(rows, columns=("id",))
        with ThreadPoolExecutor() as pool:
            first = pool.submit(job.export, export, out)
            assert begun.wait(60)
            with pytest.raises(
                ExportError, match=r"one export at a time to .*out\.csv, got a second one of the same run"
            ):
                job.export(export, out)
            other = job.export(export, out.with_name("other.csv"))
            go_on.set()
            made = first.result(60)
        assert verify(out).sha256 == made.sha256 == other.sha256
        assert job.export(export, out) == made, "and now it is answered"


def test_a_second_thread_neither_takes_nor_publishes_half_a_file(tmp_path: Path) -> None:
    assert run_one(Impatient, {"folder": str(tmp_path)}).outcome == Done()
