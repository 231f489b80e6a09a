"""
The durable record of jobs: who runs a job, until when, how far it got, how it ended.

::

    base.py     the Protocol and its values: Row, Token, Claimed, Verdict
    rules.py    what a worker does with a delivery, as one pure function of the row
    lease.py    renewals, off the job's path, and how far a run may trust its own
    owners.py   proof of an owner's death
    memory.py   the ledger of tests and of the simulation
    sqlite.py   the ledger of one host; sqlite_file, sqlite_place, sqlite_rows and sqlite_schema are its parts
    postgres.py the ledger of a fleet; postgres_url, postgres_session, postgres_rows and postgres_schema are its parts

Nothing that happens to a connection is written here; that is why nothing that happens to one starts a job again.
"""
