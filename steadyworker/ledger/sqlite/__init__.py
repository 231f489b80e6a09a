"""
The ledger of one host: a SQLite file.

| file | subject |
|---|---|
| `ledger.py` | `SqliteLedger`, which implements `steadyworker.ledger.base.Ledger` |
| `facts.py` | the facts that people read |
| `file.py` | the connection to the file: opening, transactions, errors |
| `place.py` | checks of the file's place: no network file system, enough room |
| `trust.py` | whether the ledger went back in time |
| `rows.py`, `schema.py` | the conversion between jobs and rows; tables and statements |
"""

from steadyworker.ledger.sqlite.ledger import SqliteLedger

__all__ = ["SqliteLedger"]
