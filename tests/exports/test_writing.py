"""The writing of every export: batches in order whatever their threads do, and equal neighbours counted."""

from __future__ import annotations

import math
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.errors import ExportRejected
from steadyworker.exports.formats import Csv, JsonLines
from steadyworker.exports.hashed import HashedFile
from steadyworker.exports.render import TextWriter
from steadyworker.exports.totals import Totals
from steadyworker.exports.writing import FileWriting, Ties, writing

VALUES = st.tuples(
    st.none() | st.integers(0, 1),
    st.none() | st.sampled_from([0.0, -0.0, 1.5, math.nan]),
    st.none() | st.sampled_from(["", "a"]),
)
SCHEMA = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("s", pa.string())])


def same(one: Any, other: Any) -> bool:
    return one is other or one == other or (one != one and other != other)  # noqa: PLR0124 - NaN


@given(st.lists(st.lists(VALUES, max_size=6), max_size=6))
def test_ties_are_neighbours_that_a_sort_takes_for_equal_wherever_a_batch_ends(batches: list[list[Any]]) -> None:
    ties = Ties((0, 1, 2))
    for rows in batches:
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        ties.add(pa.record_batch(arrays, schema=SCHEMA))
    rows = [row for batch in batches for row in batch]
    assert ties.count == sum(all(map(same, one, other)) for one, other in pairwise(rows))


def test_ties_of_nested_keys_are_counted_too() -> None:
    ties = Ties((0,))
    ties.add(pa.record_batch([pa.array([[1], [1], None, None, [2]])], ["a"]))
    ties.add(pa.record_batch([pa.array([[2], [3]])], ["a"]))
    assert ties.count == 3


def batches(count: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array([number], pa.int64())], ["n"]) for number in range(count)]


def totals() -> Totals:
    return Totals(("n",), {"n": "sum"}, (), Csv().texts)


def test_batches_are_in_order_although_the_first_is_the_slowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, waiting = TextWriter.render, list[int]()
    rendered = [threading.Event() for _ in range(20)]

    def render(writer: TextWriter, batch: Any, first: int) -> memoryview:
        if first % 2 == 0:
            assert rendered[first + 1].wait(30), "the next batch is rendered first"
        made = real(writer, batch, first)
        rendered[first].set()
        return made

    monkeypatch.setattr(TextWriter, "render", render)
    with HashedFile(tmp_path / "a") as out, writing(out, JsonLines(), ("n",), totals()) as made:
        for batch in batches(20):
            made.add([batch])
            waiting.append(len(made._waiting))
    assert (tmp_path / "a").read_text() == "".join(f'{{"n":{number}}}\n' for number in range(20))
    assert max(waiting) == 4, "memory holds so many batches, and no more"
    assert made.rows == 20


def test_a_value_without_a_text_ends_the_writing_with_its_row(tmp_path: Path) -> None:
    bad = pa.array([-(10**12)], pa.timestamp("s")).cast(pa.timestamp("us"))
    good = pa.array([0], pa.timestamp("us"))

    def write(made: FileWriting) -> None:
        for column in (good, good, bad, *[good] * 9):
            made.add([pa.record_batch([column], ["t"])])

    with HashedFile(tmp_path / "a") as out:  # noqa: SIM117 - the error leaves the inner block
        with pytest.raises(ExportRejected, match=r"Row 2, column 't': .*year 1 and 9999"):
            with writing(out, Csv(), ("t",), Totals(("t",), None, (), Csv().texts)) as made:
                write(made)


def test_rows_are_in_the_file_after_a_flush(tmp_path: Path) -> None:
    with HashedFile(tmp_path / "a") as out, writing(out, Csv(), ("n",), totals()) as made:
        for batch in batches(3):
            made.add([batch])
        assert out.bytes == len("n\n")
        made.flush()
        assert out.bytes == len("n\n0\n1\n2\n")
