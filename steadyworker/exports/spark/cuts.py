"""
Finds the bounds between the pieces of a sort, with one read of the first sort column only.

To find these bounds itself, Spark samples the result: it runs the query with all columns.
If a task's sample is poor, Spark runs the query again for this task.
This sampling takes 4.4 s of 21 s for five million rows of Parquet (Spark 4.3.0, two cores).
If a query only reads, computes and filters, a sample of its first sort column is enough::

    NULL, and before    the sample, from one end to the other, without the thin tails    after
    ├── cell 0 ─────────┼── cell 1 ──┼── cell 2 ──┼── … ──┼──────── cell n ───────────────┤
    └─────── piece 0, by the bytes that were shuffled ────┴── piece 1 ──┴── …

All cells between the ends are equally wide.
Each cell is a partition of the shuffle; when Spark knows the cells' bytes, it combines neighbouring cells into one piece.
If the cells would be uneven, or the sample fails, Spark finds the bounds itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DataType, DateType, DecimalType, TimestampNTZType, TimestampType

from steadyworker.exports.spark.lines import WHOLE, column

PIECE = 6 << 20
"""
The bytes of one task of a sort, until Spark has measured the query's result.

The number of tasks is the estimated size of the result, divided by this size.
"""

_KEYS, _KEYS_OF_A_PIECE = 20_000, 100  # the least number of sampled keys in total, and for each piece
_KEYS_OF_A_CUT = 5  # the number of keys that must remain for each piece after the query's filters
_FEWEST = 16  # least number of pieces; with fewer pieces, the sample has too few keys
_MOST = 500  # largest number of pieces: of more than 2000 cells, Spark keeps only the mean size (`HighlyCompressedMapStatus`)
_CELLS = 4  # cells for each piece
_HEAVY = 3  # a cell has at most as many keys as this number of pieces
_NARROW = frozenset(  # a query with another node, such as a shuffle, is not cut here, because Spark reuses the rows of its own sample
    {
        "ArrowEvalPython",
        "BatchEvalPython",
        "Filter",
        "Generate",
        "Join",  # only as a broadcast join
        "LocalRelation",
        "LogicalRelation",
        "Project",
        "Range",
        "Union",
    }
)
_PARTITIONS = "spark.sql.shuffle.partitions"
_DIRECTION = re.compile(r"(.*\S)\s+(ASC|DESC)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class SortCells:
    """
    Equally wide ranges of the sort key.

    Attributes:
        first: The key at which the first cell begins.
        each: The number of cells in a key range of 1.
        count: The number of cells.
    """

    first: float
    each: float
    count: int


class Key(NamedTuple):
    """A column to sort by."""

    name: str
    descending: bool = False

    @classmethod
    def of(cls, text: str, columns: Sequence[str]) -> Key:
        """Return the key for a text: the name of one of `columns`, which `ASC` or `DESC` can follow, as in SQL."""
        match = None if text in columns else _DIRECTION.fullmatch(text)
        return cls(match[1], match[2].upper() == "DESC") if match else cls(text)


def sorting(key: Key) -> Column:
    """Return the expression of a key; NULL is the smallest value, as Spark sorts."""
    return column(key.name).desc() if key.descending else column(key.name)


def ordered(result: DataFrame, by: Sequence[Key], size: int, pieces: int) -> DataFrame:
    """
    Return the rows in order.

    Spark finds the bounds itself in these cases:

    - Spark has no interface for other bounds (Spark Connect, Spark before 4.1).
    - The first column has another type than integer, decimal, date or timestamp.
    - The first column is sorted in descending order.
    - The query shuffles; Spark reuses the shuffled rows then.
    - The sort needs more than 500 pieces.

    Args:
        result: The query's result; no other query uses its session, whose number of shuffle partitions is `pieces`.
            This function can change that setting; do not change the setting again before the rows are read.
        by: The columns to sort by.
        size: The size of the result in bytes, as Spark estimates it.
        pieces: The number of tasks that sort, which follows from `size`.
    """
    columns = [*map(sorting, by)]
    first = column(by[0].name)
    number = None if by[0].descending else _number(first, result.schema[by[0].name].dataType)
    if number is None or size <= PIECE or pieces > _MOST or not _may_be_cut(result):
        return result.orderBy(*columns)
    frame: Any = result._jdf  # noqa: SLF001 - py4j has no public way
    row = frame.schema().defaultSize()
    part = min(1.0, max(_KEYS, _KEYS_OF_A_PIECE * pieces) * row / size)
    keys = _sample(result.select(number.alias("key")), part)
    if keys is None:
        return result.orderBy(*columns)
    drawn = len(keys)
    if drawn < _KEYS_OF_A_CUT:
        most = (drawn + 3 * math.sqrt(drawn) + 5) / part  # the largest likely number of rows
        # Without a filter, there are few rows only if each row is far longer than estimated.
        if most * row <= PIECE and "Filter" in map(_name, _nodes(frame.queryExecution().optimizedPlan())):
            result.sparkSession.conf.set(_PARTITIONS, "1")  # so that Spark takes no sample
    elif cells := cut(keys, min(pieces, drawn // _KEYS_OF_A_CUT)):
        spread = _spread(result, _cell(number, cells), cells.count)
        if spread is not None:
            return spread.sortWithinPartitions(*columns)
    return result.orderBy(*columns)


def cut(keys: Any, pieces: int) -> SortCells | None:
    """
    Return cells for these keys (an Arrow array of float64, with nulls), or None if one cell would get too many keys.

    Also return None if there are too few pieces, or if all keys are equal.
    The span of the cells leaves out the lowest and the highest keys: at each end, half as many keys as a piece has.
    So a few outliers, such as dates in 9999, do not make all cells wide.
    The keys outside the span belong to the first or the last cell.
    """
    import pyarrow.compute

    pc: Any = pyarrow.compute  # pyarrow makes these functions at import, so type checkers do not know them
    if pieces < _FEWEST:
        return None
    tail = 0.5 / pieces
    first, last = pc.quantile(keys, q=[tail, 1 - tail], interpolation="nearest").to_pylist()
    if first is None or first == last:
        return None
    cells = SortCells(first, _CELLS * pieces / (last - first), _CELLS * pieces)
    if not math.isfinite(cells.each):
        return None
    at = pc.multiply(pc.subtract(keys, cells.first), cells.each)
    at = pc.floor(
        pc.min_element_wise(pc.max_element_wise(at, 0.0, skip_nulls=False), cells.count - 1.0, skip_nulls=False)
    )
    heaviest = pc.max(pc.value_counts(pc.fill_null(at, 0.0)).field("counts")).as_py()
    return cells if heaviest <= _HEAVY * len(keys) / pieces else None


def _number(key: Column, kind: DataType) -> Column | None:
    """Return the key as a number in the same order, or None if the type has no such number."""
    if isinstance(kind, (*WHOLE, DecimalType, TimestampType)):
        return key.cast("double")
    if isinstance(kind, TimestampNTZType):
        # There is no cast to a timestamp with a zone, because the session's zone can skip an hour.
        day, hour, minute, second = F.unix_date(key.cast("date")), F.hour(key), F.minute(key), F.second(key)
        return (((day * 24.0 + hour) * 60.0) + minute) * 60.0 + second
    return F.unix_date(key).cast("double") if isinstance(kind, DateType) else None


def _may_be_cut(result: DataFrame) -> bool:
    """Return whether Spark accepts other bounds, combines partitions, and shuffles nothing in this query."""
    frame: Any = getattr(result, "_jdf", None)
    if frame is None or not hasattr(result, "repartitionById"):
        return False
    query, conf = frame.queryExecution(), frame.sparkSession().sessionState().conf()
    if not conf.adaptiveExecutionEnabled() or not conf.coalesceShufflePartitionsEnabled():
        return False
    plan = query.optimizedPlan()
    names = {*map(_name, _nodes(plan))}
    if not names <= _NARROW or not plan.subqueriesAll().isEmpty():
        return False
    joins = (name for name in map(_name, _nodes(query.sparkPlan())) if "Join" in name) if "Join" in names else ()
    return all(name.startswith("Broadcast") for name in joins)


def _nodes(plan: Any) -> Iterator[Any]:
    """Yield all nodes of a plan."""
    yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _sample(keys: DataFrame, part: float) -> Any:
    """
    Return this fraction of the keys as an Arrow array, or None if that fails.

    The sample fails if there are far more keys than estimated, because the driver limits results (`spark.driver.maxResultSize`).
    After any other failure, the read of the rows fails too, with a better message.
    """
    try:
        return keys.sample(fraction=part, seed=1).toArrow().column(0)
    except (Py4JJavaError, PySparkException):
        return None


def _cell(number: Column, cells: SortCells) -> Column:
    """Return the cell of a row: cells are in the order of the keys, with NULL first, as in a sort."""
    at = F.coalesce((number - F.lit(cells.first)) * F.lit(cells.each), F.lit(0.0))  # `least` ignores NULL
    return F.greatest(F.lit(0.0), F.least(F.lit(cells.count - 1.0), at)).cast("int")


def _spread(result: DataFrame, cell: Column, count: int) -> DataFrame | None:
    """
    Return the rows, shuffled into these cells; None if the internals of this version of Spark are different.

    Spark does not combine the partitions of `repartitionById`, because the caller has set the number of partitions.
    The plan is changed here, so that Spark combines neighbouring cells.
    """
    session: Any = result.sparkSession
    before = session.conf.get(_PARTITIONS)
    session.conf.set(_PARTITIONS, str(count))
    with suppress(Py4JError, PySparkException, TypeError, AttributeError):
        named: Any = result.repartitionById(count, cell)._jdf  # noqa: SLF001
        plan, none = named.queryExecution().logical(), session._jvm.scala.Option.empty()  # noqa: SLF001
        plan = plan.copy(plan.partitionExpressions(), plan.child(), none, none)
        spread = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)  # noqa: SLF001
        # With another number of partitions, such as a user's setting, the last cells would go into the first partitions.
        if spread.queryExecution().sparkPlan().outputPartitioning().numPartitions() == count:
            return DataFrame(spread, session)
    session.conf.set(_PARTITIONS, before)
    return None
