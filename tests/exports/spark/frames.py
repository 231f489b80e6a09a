"""What a user may do to a Spark host with a function that builds a frame: hold its Python, and never come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def endless(spark: Any, tables: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
    """A function of Python's that does not return for any row."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    def forever(number: int) -> int:
        while True:
            number += 1

    spun = F.udf(forever, "bigint")
    return spark.range(0, 4, 1, 2).select(spun("id").alias("id"))


def collected(spark: Any, tables: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
    """Rows that the host's Python takes a second or more to make, before the ten that are exported."""
    rows = spark.range(400_000).selectExpr("id", "CAST(id AS STRING) AS text", "id / 7 AS x").collect()
    return spark.range(len(rows) // 40_000)
