"""
`DuckDBExport`: a query that DuckDB runs in the job's own process, without a JVM.

::

    main thread (export.py)                          thread (session.py)
    ───────────────────────                          ───────────────────
    rows into the output ←── Arrow batches, a queue ── DuckDB: read, query, sort
      renders, hashes, sums, splits                    spills to <stage>/spill
      checks the job ten times a second ───────────→ `interrupt()`

| file | content |
|---|---|
| `export.py` | `DuckDBExport`, and the rows of a query as Arrow batches |
| `session.py` | one connection of DuckDB: its settings, the sorted query, the meaning of its errors |
| `tables.py` | Parquet, CSV and JSON Lines as tables |
| `ddl.py` | a schema such as `id BIGINT, amount DECIMAL(12,2)` |
| `postgres.py` | tables of PostgreSQL, copied in one snapshot |

DuckDB reads Parquet itself.
pyarrow reads CSV and JSON Lines, because DuckDB rounds a decimal with too many digits, and reads a JSON number as a binary float.
"""
