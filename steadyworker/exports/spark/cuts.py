"""
Where a sort is cut into pieces: found by reading only what it is sorted by, and only once.

To cut a sort, Spark runs the query to sample it, once more for each task whose share of the sample was too small, and then
for its rows, with all columns each time: 4.4 of 21 s for five million rows out of Parquet (Spark 4.3.0, two cores).
Where a query only reads, computes and filters, a sample of its first sort column says enough::

    NULL, and before    sampled, from one end to the other, but for the thin tails    after
    ├── cell 0 ─────────┼── cell 1 ──┼── cell 2 ──┼── … ──┼──────── cell n ───────────────┤
    └─────── piece 0, by the bytes that were shuffled ────┴── piece 1 ──┴── …

All cells between the ends are equally wide; each is a partition of the shuffle, and each piece some neighbours, which Spark
puts together when it knows their bytes.
Where that would be uneven, or the sample fails, it was read in vain, and the sort is Spark's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import DataType, DateType, DecimalType, TimestampNTZType, TimestampType

from steadyworker.exports.spark.lines import WHOLE, column

PIECE = 6 << 20
"""Bytes of the query's estimated result for each task of a sort, before Spark knows better."""

_KEYS, _KEYS_OF_A_PIECE = 20_000, 100  # of the sample: at least, and for each piece
_KEYS_OF_A_CUT = 5  # at least, of what a filter leaves of them
_FEWEST = 16  # pieces: so few keys say little of a smaller share
_MOST = 500  # pieces: four times as many are all of which Spark knows the bytes, else their mean (`HighlyCompressedMapStatus`)
_CELLS = 4  # of each piece
_HEAVY = 3  # pieces' worth of keys that no cell shall have more of
_NARROW = frozenset(  # what a query may be made of: nothing that Spark keeps from its own sample for the rows, as it does a shuffle
    {
        "ArrowEvalPython",
        "BatchEvalPython",
        "Filter",
        "Generate",
        "Join",  # if it is broadcast
        "LocalRelation",
        "LogicalRelation",
        "Project",
        "Range",
        "Union",
    }
)
_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class Cells:
    """
    What a sample was cut into.

    Attributes:
        first: The key at which they begin.
        each: Cells for each 1 of the key.
        count: How many.
    """

    first: float
    each: float
    count: int


def ordered(result: DataFrame, by: Sequence[str], size: int, pieces: int) -> DataFrame:
    """
    The rows in order.

    Spark cuts the sort itself where it has no door for this (Spark Connect, Spark before 4.1); where the first column is
    neither a whole number nor a decimal, date or time; where the query shuffles, because then it keeps what it has shuffled;
    and where it takes very many pieces.

    Args:
        result: In a session of its own, whose count of shuffled partitions is `pieces`; it may be set anew here, and has to
            stay so until the rows were asked for.
        by: The columns' names.
        size: The bytes that Spark thinks the result has.
        pieces: Into how many it is cut, as far as that is right.
    """
    columns = [*map(column, by)]
    number = _number(columns[0], result.schema[by[0]].dataType)
    if number is None or size <= PIECE or pieces > _MOST or not _may_be_cut(result):
        return result.orderBy(*columns)
    frame: Any = result._jdf  # noqa: SLF001 - the bridge has no public door
    row = frame.schema().defaultSize()
    part = min(1.0, max(_KEYS, _KEYS_OF_A_PIECE * pieces) * row / size)
    keys = _sample(result.select(number.alias("key")), part)
    if keys is None:
        return result.orderBy(*columns)
    drawn = len(keys)
    if drawn < _KEYS_OF_A_CUT:
        most = (drawn + 3 * math.sqrt(drawn) + 5) / part  # rows, all but certainly
        # Without a filter they are few because they are long, thousands of times longer than was thought.
        if most * row <= PIECE and "Filter" in map(_name, _nodes(frame.queryExecution().optimizedPlan())):
            result.sparkSession.conf.set(_PARTITIONS, "1")  # and Spark need not sample them
    elif cells := cut(keys, min(pieces, drawn // _KEYS_OF_A_CUT)):
        spread = _spread(result, _cell(number, cells), cells.count)
        if spread is not None:
            return spread.sortWithinPartitions(*columns)
    return result.orderBy(*columns)


def cut(keys: Any, pieces: int) -> Cells | None:
    """
    Cells for these keys (an Arrow array of float64, nulls among them); None where one would be too heavy, or nobody can tell.

    The outermost half piece of keys at each end does not decide where cells begin and end: a few days of the year 9999 shall
    not make one cell of all others.
    """
    import pyarrow.compute

    pc: Any = pyarrow.compute  # which is made as it is imported: no type checker knows what is in it
    if pieces < _FEWEST:
        return None
    tail = 0.5 / pieces
    first, last = pc.quantile(keys, q=[tail, 1 - tail], interpolation="nearest").to_pylist()
    if first is None or first == last:
        return None
    cells = Cells(first, _CELLS * pieces / (last - first), _CELLS * pieces)
    if not math.isfinite(cells.each):
        return None
    at = pc.multiply(pc.subtract(keys, cells.first), cells.each)
    at = pc.floor(
        pc.min_element_wise(pc.max_element_wise(at, 0.0, skip_nulls=False), cells.count - 1.0, skip_nulls=False)
    )
    heaviest = pc.max(pc.value_counts(pc.fill_null(at, 0.0)).field("counts")).as_py()
    return cells if heaviest <= _HEAVY * len(keys) / pieces else None


def _number(key: Column, kind: DataType) -> Column | None:
    """The key as a number that never goes down where the key goes up; None where it has none."""
    if isinstance(kind, (*WHOLE, DecimalType, TimestampType)):
        return key.cast("double")
    if isinstance(kind, TimestampNTZType):
        # Not as a moment: a session's zone may be one that leaves out an hour.
        day, hour, minute, second = F.unix_date(key.cast("date")), F.hour(key), F.minute(key), F.second(key)
        return (((day * 24.0 + hour) * 60.0) + minute) * 60.0 + second
    return F.unix_date(key).cast("double") if isinstance(kind, DateType) else None


def _may_be_cut(result: DataFrame) -> bool:
    """Whether Spark has the door, puts partitions together, and shuffles nothing that this query is made of."""
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
    """All of a plan's nodes."""
    yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _sample(keys: DataFrame, part: float) -> Any:
    """
    This part of the keys, as an Arrow array; None where that fails.

    They may be far more than was thought, which the driver does not take (`spark.driver.maxResultSize`).
    Otherwise the rows will fail, too, and say why better than this does.
    """
    try:
        return keys.sample(fraction=part, seed=1).toArrow().column(0)
    except (Py4JJavaError, PySparkException):
        return None


def _cell(number: Column, cells: Cells) -> Column:
    """The cell of a row: it never goes down where the key goes up, and NULL comes first, as in a sort."""
    at = F.coalesce((number - F.lit(cells.first)) * F.lit(cells.each), F.lit(0.0))  # `least` passes over NULL
    return F.greatest(F.lit(0.0), F.least(F.lit(cells.count - 1.0), at)).cast("int")


def _spread(result: DataFrame, cell: Column, count: int) -> DataFrame | None:
    """
    The rows, shuffled into these cells, neighbours of which Spark puts together; None where this Spark has another inside.

    `repartitionById` leaves out that they may be put together, as whoever names a count of partitions is taken to mean it.
    """
    session: Any = result.sparkSession
    before = session.conf.get(_PARTITIONS)
    session.conf.set(_PARTITIONS, str(count))
    with suppress(Py4JError, PySparkException, TypeError, AttributeError):
        named: Any = result.repartitionById(count, cell)._jdf  # noqa: SLF001
        plan, none = named.queryExecution().logical(), session._jvm.scala.Option.empty()  # noqa: SLF001
        plan = plan.copy(plan.partitionExpressions(), plan.child(), none, none)
        spread = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)  # noqa: SLF001
        # Into another count, which a user may have set, the last cells would go back to the first partitions.
        if spread.queryExecution().sparkPlan().outputPartitioning().numPartitions() == count:
            return DataFrame(spread, session)
    session.conf.set(_PARTITIONS, before)
    return None
