"""
Other engines that sort a folder of Parquet into one CSV file: `python others.py ENGINE FOLDER FILE`, in their own environment.

Prints the seconds and the seconds of processor time, without those of the imports.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module

ORDER = ["paid_at", "id"]


def duckdb(source: str, to: str) -> Callable[[], object]:
    module = import_module("duckdb")
    query = f"COPY (FROM '{source}/*.parquet' ORDER BY {', '.join(ORDER)}) TO '{to}' (FORMAT csv, HEADER)"
    return lambda: module.execute(query)


def polars(source: str, to: str) -> Callable[[], object]:
    module = import_module("polars")
    return lambda: module.scan_parquet(f"{source}/*.parquet").sort(ORDER).sink_csv(to)


def pandas(source: str, to: str) -> Callable[[], object]:
    module = import_module("pandas")
    return lambda: module.read_parquet(source).sort_values(ORDER).to_csv(to, index=False)


ENGINES: Mapping[str, Callable[[str, str], Callable[[], object]]] = {
    "DuckDB": duckdb,
    "Polars": polars,
    "pandas": pandas,
}

if __name__ == "__main__":
    engine, folder, file = sys.argv[1:]
    work = ENGINES[engine](folder, file)
    began, cpu = time.monotonic(), time.process_time()
    work()
    print(time.monotonic() - began, time.process_time() - cpu)
