"""
The ledger of a fleet: a PostgreSQL database.

| file | subject |
|---|---|
| `ledger.py` | `PostgresLedger`, the promises of `steadyworker.ledger.base.Ledger` |
| `session.py` | connections, and what their errors mean |
| `url.py` | the URL, without its library |
| `rows.py`, `schema.py` | how a job becomes a row |
"""
