"""Tests of `Ledger.record`, which makes the claims and records the ends of one turn in one commit."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Ledger, Row, State
from steadyworker.outcome import Counters
from steadyworker.testing.conformance.ledger_fixtures import (
    BODY,
    JOB,
    ME,
    OTHER,
    OTHER_BODY,
    LedgerBench,
    claimed,
    in_state,
    seen,
    timeless,
)

MESSAGE = KeptMessage(b"17", b"{}")
NONE = Counters()


def first_claim(id: JobId, message: KeptMessage | None = MESSAGE, counters: Counters = NONE) -> Claimed:
    """Return the claim of a job that has no row."""
    return Claimed(id, None, ME, 0, BODY, counters, message)


def keyed(*keys: str) -> list[JobId]:
    """Return jobs with these keys."""
    return [replace(JOB, key=key) for key in keys]


class TurnPromises(LedgerBench):
    """Tests of several writes in one commit."""

    def test_a_turn_claims_and_ends_jobs_as_single_writes_do(self, ledger: Ledger) -> None:
        """The results have the order of the writes; the fences rise in the order of the claims."""
        running = [claimed(ledger, id) for id in keyed("x", "a", "m")]
        claims = [first_claim(id, counters=Counters(attempts=number)) for number, id in enumerate(keyed("c", "b", "d"))]
        rows, ended = ledger.record(claims, [(row.token, None) for row in running])
        assert list(ended) == [True, True, True]
        assert [timeless(seen(ledger, claim.id)) for claim in claims] == _timeless(rows)
        granted = [row for row in rows if row is not None]
        assert [row.counters.attempts for row in granted] == [0, 1, 2]
        assert len({row.uid for row in granted}) == len(claims)
        fences = [row.fence for row in [*running, *granted]]
        assert fences == sorted(set(fences))
        assert {seen(ledger, row.id).state for row in running} == {State.DONE}
        assert {row.state for row in granted} == {State.RUNNING}
        assert [renewal.granted for renewal in ledger.renew([row.token for row in granted])] == [True] * 3

    def test_a_turn_keeps_the_messages_of_its_claims_and_deletes_those_of_its_ends(self, ledger: Ledger) -> None:
        """For a claim without a message, the ledger keeps no message."""
        first, second, third = keyed("a", "b", "c")
        rows, _ = ledger.record([first_claim(first), first_claim(second, None), first_claim(third)], [])
        assert [ledger.message(id) for id in (first, second, third)] == [MESSAGE, None, MESSAGE]
        _, ended = ledger.record([], [(row.token, None) for row in rows if row is not None])
        assert list(ended) == [True] * 3
        assert [ledger.message(id) for id in (first, second, third)] == [None] * 3

    def test_a_turn_refuses_what_a_single_write_would_refuse_and_grants_the_rest(self, ledger: Ledger) -> None:
        """The ledger refuses a claim of a job with a row, a second claim of one job, and an end of a run that holds no job."""
        stale = claimed(ledger, replace(JOB, key="taken"))
        taken = claimed(ledger, stale.id, OTHER, stale)
        ended_already = in_state(ledger, State.DONE)[1]
        running = claimed(ledger, replace(JOB, key="running"))
        new, twice = keyed("new", "twice")
        claims = [
            first_claim(taken.id),
            first_claim(twice),
            first_claim(new),
            replace(first_claim(twice), body_sha256=OTHER_BODY),
        ]
        rows, ended = ledger.record(claims, [(token, None) for token in (stale.token, running.token, ended_already)])
        assert [row is not None for row in rows] == [False, True, True, False]
        assert list(ended) == [False, True, False]
        assert seen(ledger, twice).body_sha256 == BODY
        assert timeless(seen(ledger, taken.id)) == timeless(taken)

    def test_the_first_claim_of_a_round_in_a_turn_begins_at_the_checkpoint_of_the_round_before(
        self, ledger: Ledger
    ) -> None:
        """The other claims of the turn, which are for first rounds, begin without a checkpoint."""
        in_state(ledger, State.DEAD, checkpoint=b"400")
        other = replace(JOB, key="other")
        rows, _ = ledger.record([first_claim(replace(JOB, round=1)), first_claim(other)], [])
        assert [row.checkpoint if row else b"refused" for row in rows] == [b"400", None]

    def test_a_turn_can_have_many_writes(self, ledger: Ledger) -> None:
        """The runner records at most 64 writes at once."""
        rows, _ = ledger.record([first_claim(id) for id in keyed(*(f"k-{number}" for number in range(64)))], [])
        _, ended = ledger.record([], [(row.token, None) for row in rows if row is not None])
        assert list(ended) == [True] * 64


def _timeless(rows: Sequence[Row | None]) -> list[Row | None]:
    return [None if row is None else timeless(row) for row in rows]
