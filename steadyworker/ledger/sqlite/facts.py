"""The facts of a SQLite ledger, for people."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from steadyworker.ledger.base import JobId
from steadyworker.ledger.facts import Attempt, Facts
from steadyworker.ledger.shared import attempt_of, pk_values
from steadyworker.ledger.sqlite import schema as sql
from steadyworker.ledger.sqlite.file import LedgerFile


class SqliteFacts(Facts):
    """The facts in this file, which a SqliteLedger opens and closes."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    @override
    def attempts(self, id: JobId) -> Sequence[Attempt]:
        with self._file.connection() as db:
            return [attempt_of(found) for found in db.execute(sql.ATTEMPTS_OF, pk_values(id)).fetchall()]
