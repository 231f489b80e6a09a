"""The promises of results: `steadyworker.ledger.facts.Facts.result`, and the ends that record them."""

from __future__ import annotations

from msgspec.structs import replace

from steadyworker.ledger import retention
from steadyworker.ledger.base import Began, Claimed, Ending, Ledger, State
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance.ledger_fixtures import BODY, JOB, OTHER, LedgerBench, claimed, seen

RESULT = b'{"rows":17,"name":"caf\xc3\xa9"}'
WITH_RESULT = Ending("done", result=RESULT)


class ResultPromises(LedgerBench):
    """Tests of the promises of results."""

    def test_a_job_without_a_row_has_no_result(self, ledger: Ledger) -> None:
        """A job that runs, or that ended without a result, has no result either."""
        assert ledger.facts.result(JOB) is None
        row = claimed(ledger)
        assert ledger.facts.result(JOB) is None
        assert ledger.done(row.token, Ending("done"))
        assert ledger.facts.result(JOB) is None

    def test_done_keeps_the_result(self, ledger: Ledger) -> None:
        """The ledger keeps the result's bytes unchanged, and each round has its own result."""
        assert ledger.done(claimed(ledger).token, WITH_RESULT)
        again = replace(JOB, round=1)
        assert ledger.done(claimed(ledger, again).token, Ending("done", result=b"2"))
        assert [ledger.facts.result(id) for id in (JOB, again)] == [RESULT, b"2"]

    def test_a_result_of_64_kib_is_kept(self, ledger: Ledger) -> None:
        """A handler can set a result of this size."""
        largest = b'"' + b"x" * (64 * 1024 - 2) + b'"'
        assert ledger.done(claimed(ledger).token, Ending("done", result=largest))
        assert ledger.facts.result(JOB) == largest

    def test_a_turn_keeps_the_results_of_its_ends(self, ledger: Ledger) -> None:
        """An end without a result, or an end that the ledger refuses, records no result."""
        ids = [replace(JOB, key=key) for key in ("with", "without", "stale")]
        first, second, third = (claimed(ledger, id).token for id in ids)
        ends = [(first, WITH_RESULT), (second, Ending("done")), (replace(third, owner=OTHER), WITH_RESULT)]
        begun = Claimed(replace(JOB, key="new"), None, OTHER, 0, BODY, Counters(), run=Began(0, "new"))
        rows, ended = ledger.record([begun], ends)
        assert [row is not None for row in rows] == [True]
        assert list(ended) == [True, True, False]
        assert [ledger.facts.result(id) for id in ids] == [RESULT, None, None]

    def test_a_refused_end_keeps_no_result(self, ledger: Ledger) -> None:
        """The job has the result of the run that took the job over."""
        row = claimed(ledger)
        assert not ledger.done(replace(row.token, owner=OTHER), WITH_RESULT)
        assert ledger.facts.result(JOB) is None
        assert ledger.done(row.token, Ending("done", result=b"3"))
        assert not ledger.done(row.token, WITH_RESULT)
        assert ledger.facts.result(JOB) == b"3"

    def test_a_result_goes_with_its_row(self, ledger: Ledger, clock: FakeClock) -> None:
        """A purge deletes the row and the result; a new job of the same key begins without a result."""
        row = claimed(ledger)
        assert ledger.done(row.token, WITH_RESULT)
        self.let_pass(clock, retention.DONE + 1.0)
        assert ledger.purge() == 1
        assert ledger.facts.result(JOB) is None
        claimed(ledger)
        assert seen(ledger).state is State.RUNNING
        assert ledger.facts.result(JOB) is None
