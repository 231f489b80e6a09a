"""
Random histories, with everything that can go wrong, against the guarantees of the package docstring of `steadyworker.ledger`; and mutants that must fail.

A violation names its seed: `history(seed)` in a debugger plays the same history again.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from steadyworker.clock import Times
from steadyworker.delivery import HOP, Target
from steadyworker.errors import LedgerUnavailable, TargetFull
from steadyworker.ledger.base import Hindrance, Row, State
from steadyworker.ledger.retention import Retention
from steadyworker.ledger.rules import HeldBy, action_for
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Interrupted
from steadyworker.runner import deliveries, orphans, planning, unkeyed
from steadyworker.runner.deliveries import Deliveries
from steadyworker.runner.envelope import envelope_of
from steadyworker.runner.orphans import Orphans
from steadyworker.runner.runs import Runs
from steadyworker.runner.settlement_plan import Incoming, SettlementPlan, Step
from steadyworker.runner.state import PlanResult, Run
from steadyworker.runner.turn import TurnWrites
from steadyworker.runner.unkeyed import UnkeyedMessages
from steadyworker.testing.memory_job import MemoryJob
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.simulation.hurried import hurried
from tests.simulation.lossy import NO_LOSS, STORM, LossyWorld, lossy
from tests.simulation.unkeyed import SOME, WITHOUT_DOUBT, LonelyWorld, UnkeyedWorld
from tests.simulation.world import CALM, CONNECTIONS_ONLY, Faults, Violation, World, history

CHUNKS = 40
EACH = 2_500
ALWAYS = 2
"""
Chunks that `make test` plays too: 5,000 histories.

Each mutant below that `make test` has is caught within 4,000 histories; the one that needs 8,000 has its own, of HASTY faults.
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "chunk", [pytest.param(chunk, marks=[pytest.mark.slow] if chunk >= ALWAYS else []) for chunk in range(CHUNKS)]
)
def test_every_guarantee_holds_in_every_history(chunk: int) -> None:
    """100,000 histories on the ledger in memory, with a broker that loses messages, a tenth of them with adoption switched off."""
    for seed in range(chunk * EACH, (chunk + 1) * EACH):
        lossy(seed, STORM, adoption=seed % 10 != 0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(1, 20))])
def test_every_guarantee_holds_when_an_operator_gives_retries_another_time(chunk: int) -> None:
    """Also on a broker with delay levels, and if the command dies between the ledger's write and the message, or after both."""
    acted: Counter[str] = Counter()
    for seed in range(chunk * 500, (chunk + 1) * 500):
        world = hurried(seed, STORM, adoption=seed % 10 != 0)
        acted += Counter(
            retried=world.retried, rescheduled=world.rescheduled, undone=world.undone, died=world.died_at_once
        )
    assert min(acted[what] for what in ("retried", "rescheduled", "died")) > 50, acted
    assert acted["undone"] > 0, acted


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(1, 20))])
def test_nothing_is_called_lost_that_is_not_lost(chunk: int) -> None:
    """
    Outages, suspends, frozen owners and backlogs without a loss: the search for lost messages starts no job.

    It starts one only if its process is cut off while it holds the message, or if no slot was free for longer than `orphan_reserve`.
    """
    for seed in range(chunk * 500, (chunk + 1) * 500):
        world = lossy(seed, NO_LOSS, adoption=seed % 10 != 0)
        assert world.seen.orphans == world.seen.reserved + world.seen.held, world.describe()
        assert world.seen.of_orphans == 0, "a run began beside another, because its message was called lost"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(1, 10))])
def test_pauses_change_no_guarantee(chunk: int) -> None:
    """
    An operator pauses and resumes the queue again and again: every job ends, and no message counts as lost because of a pause.

    `lossy` fails if a message counts as lost that waits in the queue for a process that could act on it.
    """
    for seed in range(chunk * 200, (chunk + 1) * 200):
        lossy(seed, dataclasses.replace(STORM, pause=0.02), adoption=seed % 10 != 0)
        world = lossy(seed, dataclasses.replace(NO_LOSS, pause=0.02), adoption=seed % 10 != 0)
        assert world.seen.of_orphans == 0, "a run began beside another, because its message was called lost"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_runs_of_a_job_overlap_no_oftener_than_without_the_search_for_lost_messages() -> None:
    """The same histories, with and without the search; the two diverge by chance only."""
    on = sum(lossy(seed, NO_LOSS).seen.overlaps for seed in range(5_000))
    off = sum(lossy(seed, NO_LOSS, orphan_poll=1e12).seen.overlaps for seed in range(5_000))
    assert on <= off + 3 * math.sqrt(off), f"{on} with the search, {off} without"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(1, 8))])
def test_every_guarantee_holds_when_a_turn_has_many_writes(chunk: int) -> None:
    """A kill, a freeze or a lost answer comes before the commit of a turn, or between the commit and its first effect."""
    for seed in range(chunk * 500, (chunk + 1) * 500):
        lossy(seed, STORM, adoption=seed % 10 != 0, busy=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(1, 8))])
def test_every_guarantee_holds_on_sqlite(chunk: int, tmp_path: Path) -> None:
    """2,000 histories on `sqlite:`, where the world decides who is dead, in place of the real locks."""
    for seed in range(chunk * 250, (chunk + 1) * 250):

        def on_sqlite(clock: Any, times: Times, is_dead: Callable[[str], bool], seed: int = seed) -> SqliteLedger:
            return SqliteLedger(tmp_path / f"{seed}.db", clock=clock, times=times, is_dead=is_dead)

        world = lossy(seed, STORM, adoption=seed % 10 != 0, make_ledger=on_sqlite)
        world.ledger.close()
        for file in tmp_path.glob(f"{seed}.db*"):
            if file.is_file():
                file.unlink()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("adoption", [True, False])
@pytest.mark.parametrize("chunk", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_happens_to_a_connection_starts_nothing(chunk: int, adoption: bool) -> None:
    """Cuts, redeliveries, lost acks and lost confirms alone: each start has its own outcome, and no run is ever dropped."""
    for seed in range(chunk * 2_000, (chunk + 1) * 2_000):
        world = history(seed, faults=CONNECTIONS_ONLY, adoption=adoption)
        assert world.starts == len(world.accepted), world.describe()
        assert world.fenced == 0


@pytest.mark.long
def test_without_faults_there_is_one_start_for_each_outcome() -> None:
    """A calm history is the plain one."""
    for seed in range(1_000):
        world = history(seed, faults=CALM)
        assert world.starts == len(world.accepted), world.describe()


# --- the mutants of ledger.md: each must be caught --------------------------------------------------------------------


@contextmanager
def replaced(owner: Any, name: str, mutant: Any) -> Iterator[None]:
    """Swap one function for its mutant."""
    original = getattr(owner, name)
    setattr(owner, name, mutant)
    try:
        yield
    finally:
        setattr(owner, name, original)


def a_turn_goes_on_though_its_commit_failed() -> Any:
    original = TurnWrites._record

    def record(self: TurnWrites, claims: Any, ended: Any) -> Any:
        try:
            return original(self, claims, ended)
        except LedgerUnavailable:
            return [None] * len(claims), [True] * len(ended)

    return replaced(TurnWrites, "_record", record)


def a_turn_claims_before_its_commit() -> Any:
    original = TurnWrites.claim

    def claim(self: TurnWrites, claim: Any, begin: Any) -> None:
        id_ = claim.id
        began = Row(id_, "guessed", State.RUNNING, claim.body_sha256, 0, 1 << 60, claim.owner, False, claim.counters)
        begin(began)
        original(self, claim, lambda _: None)

    return replaced(TurnWrites, "claim", claim)


def without_the_fence_check() -> Any:
    def held(self: MemoryLedger, token: Any, *states: Any) -> Any:
        job = self._jobs.get(token.id)
        return job if job is not None and job.state in (states[0] if isinstance(states[0], tuple) else states) else None

    return replaced(MemoryLedger, "_held", held)


def a_refused_run_leaves_its_delivery_alone() -> Any:
    def drop(self: Runs, run: Run, write: str) -> None:
        run.incoming = Incoming()
        if run.slot is not None:
            run.dropped = True
            run.slot.kill(run.token.fence, Interrupted())
        else:
            self._state.by_fence.pop(run.token.fence, None)

    return replaced(Runs, "drop", drop)


def my_name_without_my_run_means_wait() -> Any:
    original = Deliveries.held_by

    def held_by(self: Deliveries, row: Any) -> HeldBy:
        answer = original(self, row)
        return HeldBy.MINE if answer is HeldBy.LOST else answer

    return replaced(Deliveries, "held_by", held_by)


def moved_is_written_before_the_confirm() -> Any:
    original = planning.moving

    def moving(*arguments: Any) -> SettlementPlan:
        plan = original(*arguments)
        plan.steps = (Step.RECORD, Step.CONFIRM, Step.PUBLISH, Step.SETTLE)
        return plan

    return replaced(planning, "moving", moving)


def the_retry_keeps_the_hop() -> Any:
    original = planning.message_for

    def message_for(envelope: Any, hop: int, *arguments: Any) -> Any:
        message = original(envelope, hop, *arguments)
        return dataclasses.replace(message, headers={**message.headers, HOP: str(hop)})

    return replaced(planning, "message_for", message_for)


def a_cancelled_job_may_commit() -> Any:
    def may_commit(self: MemoryLedger, token: Any) -> Any:
        return self.renew([token])[0]

    return replaced(MemoryLedger, "may_commit", may_commit)


def a_moved_letter_is_a_duplicate() -> Any:
    def without_letters(*arguments: Any, letter: bool) -> Any:
        del letter
        return action_for(*arguments)

    return replaced(deliveries, "action_for", without_letters)


def a_moved_letter_replays_as_the_round_after_the_last() -> Any:
    original = Deliveries._replay

    def replay(self: Deliveries, envelope: Any) -> None:
        id_ = envelope.id
        last = self._deps.ledger.last_round(id_.namespace, id_.queue, id_.key) or 0
        original(self, structs.replace(envelope, id=structs.replace(id_, round=last)))

    return replaced(Deliveries, "_replay", replay)


def a_moved_letter_settles_the_job_that_still_moves_to_it() -> Any:
    def only_of_the_dead(row: Any, *arguments: Any, letter: bool) -> Any:
        return action_for(row, *arguments, letter=letter and (row is None or row.state is State.DEAD))

    return replaced(deliveries, "action_for", only_of_the_dead)


def steadiness_is_not_asked_for() -> Any:
    return replaced(Orphans, "_steady", lambda *_: True)


def an_open_credit_is_not_asked_for() -> Any:
    return replaced(Orphans, "_nothing_waits", lambda *_: True)


def moved_records_no_time() -> Any:
    original = MemoryJob.move

    def move(self: MemoryJob, now: float, wall: float, wake_in: float, keep: Retention) -> None:
        original(self, now, wall, wake_in, keep)
        self.wake_at = None

    return replaced(MemoryJob, "move", move)


def moved_records_the_present() -> Any:
    original = MemoryJob.move
    return replaced(MemoryJob, "move", lambda self, now, wall, _, keep: original(self, now, wall, 0.0, keep))


def a_replay_publishes_without_its_row() -> Any:
    return replaced(LossyWorld, "replay_row", lambda *_: None)


def the_message_is_kept_after_the_claim() -> Any:
    """With the first renewal, in a transaction of its own."""
    claim, renew = MemoryLedger.claim, MemoryLedger.renew

    @contextmanager
    def mutant() -> Iterator[None]:
        owed: dict[Any, Any] = {}

        def claims(self: MemoryLedger, claimed: Any) -> Any:
            owed[claimed.id] = claimed.message
            return claim(self, structs.replace(claimed, message=None))

        def renews(self: MemoryLedger, tokens: Any) -> Any:
            for token in tokens:
                job = self._jobs.get(token.id)
                if job is not None and job.state is not State.DONE:
                    job.message = job.message or owed.get(token.id)
            return renew(self, tokens)

        with replaced(MemoryLedger, "claim", claims), replaced(MemoryLedger, "renew", renews):
            yield

    return mutant()


def the_retry_of_an_orphan_keeps_the_hop() -> Any:
    original = envelope_of
    return replaced(orphans, "envelope_of", lambda row, message: structs.replace(original(row, message), hop=row.hop))


def an_old_record_is_trusted() -> Any:
    def hindrance(self: MemoryLedger, job: MemoryJob) -> Hindrance | None:
        return Hindrance.NO_MESSAGE if job.message is None else None

    return replaced(MemoryLedger, "_hindrance", hindrance)


def a_deferral_is_not_recorded() -> Any:
    return replaced(MemoryLedger, "deferred", lambda *_: None)


LOSSY = Faults(lost_answer=0.05)
HASTY = Faults(kill=0.03, cut=0.2, lost_confirm=0.5, move=0.2)
"""Confirms are lost, and an operator moves each letter at once: its publisher does not know that the broker has it."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("mutant", "caught_within", "faults"),
    [
        (without_the_fence_check, 2_000, LOSSY),
        (a_refused_run_leaves_its_delivery_alone, 2_000, LOSSY),
        (my_name_without_my_run_means_wait, 4_000, LOSSY),
        (moved_is_written_before_the_confirm, 1_000, LOSSY),
        (the_retry_keeps_the_hop, 200, LOSSY),
        (a_cancelled_job_may_commit, 2_000, LOSSY),
        (a_moved_letter_is_a_duplicate, 200, LOSSY),
        (a_moved_letter_replays_as_the_round_after_the_last, 200, LOSSY),
        # Rare: a kill between a letter's publish and its record, and then the letter is delivered before the original.
        pytest.param(a_moved_letter_settles_the_job_that_still_moves_to_it, 8_000, HASTY, marks=pytest.mark.slow),
    ],
)
def test_the_simulation_catches_the_mutant(mutant: Callable[[], Any], caught_within: int, faults: Faults) -> None:
    """A simulation that a wrong rule survives proves nothing."""
    with mutant():
        for seed in range(caught_within):
            try:
                history(seed, adoption=seed % 2 == 0, faults=faults)
            except (Violation, AssertionError):
                return
    pytest.fail(f"{mutant.__name__} survived {caught_within} histories")


@pytest.mark.long
@pytest.mark.parametrize(
    ("mutant", "caught_within", "faults"),
    [
        (steadiness_is_not_asked_for, 2_000, NO_LOSS),
        (an_open_credit_is_not_asked_for, 2_000, NO_LOSS),
        (moved_records_no_time, 2_000, STORM),
        (moved_records_the_present, 2_000, NO_LOSS),
        (a_replay_publishes_without_its_row, 2_000, STORM),
        (the_message_is_kept_after_the_claim, 2_000, STORM),
        (the_retry_of_an_orphan_keeps_the_hop, 2_000, STORM),
        (an_old_record_is_trusted, 2_000, STORM),
        (a_deferral_is_not_recorded, 2_000, NO_LOSS),
    ],
)
def test_the_simulation_catches_the_mutant_of_the_search_for_lost_messages(
    mutant: Callable[[], Any], caught_within: int, faults: Faults
) -> None:
    with mutant():
        for seed in range(caught_within):
            try:
                world = lossy(seed, faults)
            except (Violation, AssertionError):
                return
            if faults is NO_LOSS and world.seen.of_orphans:
                return
    pytest.fail(f"{mutant.__name__} survived {caught_within} histories")


@pytest.mark.parametrize("mutant", [a_turn_goes_on_though_its_commit_failed, a_turn_claims_before_its_commit])
def test_the_simulation_catches_the_mutant_of_a_turn(mutant: Callable[[], Any]) -> None:
    with mutant():
        for seed in range(500):
            try:
                lossy(seed, busy=True)
            except (Violation, AssertionError):
                return
    pytest.fail(f"{mutant.__name__} survived 500 histories")


# --- messages without a key -------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(1, 20))])
def test_of_equal_messages_without_a_key_none_is_lost_though_their_queue_is_full(chunk: int) -> None:
    """A third of the queues stay full to the end; loss outranks repetition."""
    for seed in range(chunk * 200, (chunk + 1) * 200):
        history(seed, UnkeyedWorld, faults=SOME, adoption=seed % 10 != 0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(1, 20))])
def test_a_message_without_a_key_that_was_surely_not_acknowledged_is_not_run_again(chunk: int) -> None:
    """Cuts and lost confirms: one worker process gives each message one key."""
    for seed in range(chunk * 200, (chunk + 1) * 200):
        history(seed, LonelyWorld, faults=WITHOUT_DOUBT, adoption=seed % 10 != 0)


def equal_messages_are_one_job() -> Any:
    return replaced(unkeyed, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="digest")))


def acknowledged_before_the_copy_is_confirmed() -> Any:
    def pass_on(incoming: Any, message: Any) -> SettlementPlan:
        return SettlementPlan((Step.SETTLE, Step.PUBLISH), incoming, message=message)

    return replaced(planning, "pass_on", pass_on)


def an_acknowledgement_in_doubt_counts_as_never_sent() -> Any:
    return replaced(SettlementPlan, "surely_unsettled", property(lambda plan: plan.settled is None))


def a_plan_waits_for_two_messages() -> Any:
    original = UnkeyedMessages.over

    def over(self: UnkeyedMessages, plan: SettlementPlan) -> None:
        kept = self.plans.get(plan)
        original(self, plan)
        if kept is not None and plan.settled_with is not None and plan not in self.plans:
            self.plans[plan] = kept
            plan.steps, plan.at, plan.incoming, plan.settled_with = (Step.SETTLE,), 0, Incoming(), None

    return replaced(UnkeyedMessages, "over", over)


def a_full_queue_is_waited_for() -> Any:
    def refused(self: UnkeyedMessages, result: PlanResult) -> bool:
        return False

    return replaced(UnkeyedMessages, "refused", refused)


def a_full_queue_needs_no_copy() -> Any:
    def refused(self: UnkeyedMessages, result: PlanResult) -> bool:
        plan = result.plan
        if not isinstance(result.error, TargetFull) or plan not in self.plans or not self._may_begin():
            return False
        assert plan.message is not None
        plan.message = dataclasses.replace(plan.message, to=Target.LATER)
        self._begin_job(self.plans[plan].delivery, plan.message)
        plan.steps = (Step.SETTLE,)
        self._runs.retry(plan, None)
        return True

    return replaced(UnkeyedMessages, "refused", refused)


def a_lost_delivery_is_forgotten() -> Any:
    return replaced(UnkeyedMessages, "_bind", lambda *_: False)


@pytest.mark.parametrize(
    ("mutant", "kind", "faults", "caught_within"),
    [
        (equal_messages_are_one_job, UnkeyedWorld, SOME, 20),
        (acknowledged_before_the_copy_is_confirmed, UnkeyedWorld, SOME, 400),
        (an_acknowledgement_in_doubt_counts_as_never_sent, UnkeyedWorld, SOME, 2_000),
        (a_plan_waits_for_two_messages, UnkeyedWorld, SOME, 400),
        (a_full_queue_is_waited_for, UnkeyedWorld, SOME, 20),
        (a_full_queue_needs_no_copy, UnkeyedWorld, SOME, 400),
        (a_lost_delivery_is_forgotten, LonelyWorld, WITHOUT_DOUBT, 400),
    ],
)
def test_the_simulation_catches_the_mutant_without_a_key(
    mutant: Callable[[], Any], kind: type[World], faults: Faults, caught_within: int
) -> None:
    with mutant():
        for seed in range(caught_within):
            try:
                history(seed, kind, faults=faults)
            except (Violation, AssertionError):
                return
    pytest.fail(f"{mutant.__name__} survived {caught_within} histories")


def test_a_seed_plays_the_same_history_again() -> None:
    """What a violation's seed is good for."""
    first, second = history(7), history(7)
    assert (first.starts, first.accepted, first.clock.monotonic()) == (
        second.starts,
        second.accepted,
        second.clock.monotonic(),
    )


@pytest.mark.long
def test_histories_do_meet_the_faults_that_they_are_about() -> None:
    """Kills, freezes, refusals, take-overs, retries and dead letters all occur, so that nothing above is vacuous."""
    worlds: list[World] = [history(seed, faults=Faults()) for seed in range(1_200)]
    assert sum(world.kills for world in worlds) > 50
    assert sum(world.pauses for world in worlds) > 50
    assert sum(world.fenced for world in worlds) > 5
    assert {"done", "dead"} <= {final for world in worlds for _, final in world.final}
    assert any(len(world.moved) > 1 for world in worlds)
    assert any("retry" in world.accepted for world in worlds)
    assert any("interrupted" in world.accepted for world in worlds)
