"""The facts of a PostgreSQL ledger, for people."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from steadyworker.ledger.base import JobId
from steadyworker.ledger.facts import Attempt, Facts
from steadyworker.ledger.postgres import statements as sql
from steadyworker.ledger.postgres.session import PostgresSession
from steadyworker.ledger.shared import attempt_of, pk_values


class PostgresFacts(Facts):
    """The facts that this session reads and writes; a PostgresLedger opens and closes the session."""

    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    @override
    def attempts(self, id: JobId) -> Sequence[Attempt]:
        with self._session.connection() as db:
            return [attempt_of(found) for found in db.run(sql.ATTEMPTS_OF, pk_values(id)).fetchall()]
