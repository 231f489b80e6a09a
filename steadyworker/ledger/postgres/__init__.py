"""
The ledger of a fleet: a PostgreSQL database.

| file | subject |
|---|---|
| `ledger.py` | `PostgresLedger`, which implements `steadyworker.ledger.base.Ledger` |
| `facts.py` | the facts that people read |
| `session.py` | the connections, and the translation of their errors |
| `url.py` | from the URL to libpq's parameters |
| `clocks.py` | the comparison of the clocks of all hosts in the URL |
| `trust.py` | the registration of owners, and the search for orphans, on a ledger that may have gone back in time |
| `rows.py` | the conversion between jobs and rows |
| `schema.py`, `statements.py` | the tables and their migration; the statements |
"""
