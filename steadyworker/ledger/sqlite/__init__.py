"""
The ledger of one host: a SQLite file.

| file | subject |
|---|---|
| `ledger.py` | `SqliteLedger`, the promises of `steadyworker.ledger.base.Ledger` |
| `file.py` | the connection: opened, batched, checked |
| `place.py` | where the file may be: no network file system |
| `rows.py`, `schema.py` | how a job becomes a row |
"""

from steadyworker.ledger.sqlite.ledger import SqliteLedger

__all__ = ["SqliteLedger"]
