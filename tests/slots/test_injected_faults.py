"""An exception at each line of a slot's turns or threads and of the keeper's, one at a time: the runner learns of it, or the process ends with 70."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger import lease
from steadyworker.ledger.base import JobId, Ledger, Orders, Renewal, Token
from steadyworker.ledger.lease import Keeper
from tests.slots.faults import (
    PROCESS,
    SILENCE,
    THREAD,
    Scenario,
    documented,
    walked,
)
from tests.slots.tracer import Injected, InjectedBase, Place, Tracer, text_of

BODIES = [("process", "turn", PROCESS), ("thread", "_work", THREAD), ("thread", "_keep", THREAD)]

pytestmark = pytest.mark.filterwarnings(  # an exception before the loop has the coroutine
    "ignore:coroutine .* was never awaited:RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

TRIES = 5
"""Walks to a place that a busy machine does not always reach, because a walk can be over before the traced thread has its turn."""


def places_of(kind: str, body: str, scenarios: Sequence[Scenario]) -> dict[Place, Scenario]:
    """The places that the walks of these scenarios reach, each with the first scenario that reaches it."""
    found: dict[Place, Scenario] = {}
    for scenario in scenarios:
        walk, tracer = walked(kind, body, scenario)
        outcomes = [type(walk.ends[fence].outcome) for fence in sorted(walk.ends)]
        assert (outcomes, walk.unready, walk.broken) == (scenario.outcomes, scenario.unready, False), scenario
        found = dict.fromkeys(tracer.places, scenario) | found
    return found


def inject(kind: str, body: str, scenario: Scenario, place: Place, error: type[BaseException]) -> bool:
    """Raise at this place, and check that it is not met with silence; return False if no walk has reached it."""
    for _ in range(TRIES):
        walk, tracer = walked(kind, body, scenario, place, error)
        whole = walk.broken or len(walk.ends) == len(scenario.outcomes)
        assert whole, f"{scenario}: {text_of(place)}: {walk.ends}"
        assert all(map(documented, walk.ends.values())), f"{scenario}: {text_of(place)}: {walk.ends}"
        if tracer.raised:
            return True
    return False


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "body", "scenarios"), BODIES)
def test_an_exception_at_any_line_of_a_slots_thread_is_unready_or_exit_70(
    kind: str, body: str, scenarios: Sequence[Scenario]
) -> None:
    """Of a process slot each fourth place; the next test takes all."""
    every = 4 if kind == "process" else 1
    inject_all(kind, body, list(places_of(kind, body, scenarios).items())[::every], Injected)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("error", [Injected, InjectedBase])
@pytest.mark.parametrize(("kind", "body", "scenarios"), BODIES)
def test_an_exception_of_any_kind_at_any_line_of_a_slots_thread_is_unready_or_exit_70(
    kind: str, body: str, scenarios: Sequence[Scenario], error: type[BaseException]
) -> None:
    inject_all(kind, body, list(places_of(kind, body, scenarios).items()), error)


def inject_all(kind: str, body: str, places: Sequence[tuple[Place, Scenario]], error: type[BaseException]) -> None:
    children = set(psutil.Process().children(recursive=True))
    reached = [inject(kind, body, scenario, place, error) for place, scenario in places]
    gc.collect()  # while this test's filter of warnings is in force
    assert len(places) > 10
    assert sum(reached) > 0.6 * len(reached), "the keeper of a thread slot is not always awake for some places"
    assert set(psutil.Process().children(recursive=True)) <= children


class Unsteady:
    """A ledger with one job, which is cancelled; each second call of a method finds the ledger unreachable."""

    facts = None

    def __init__(self) -> None:
        self._calls = Counter[str]()

    def _call(self, method: str) -> None:
        self._calls[method] += 1
        if self._calls[method] % 2 == 0:
            raise LedgerUnavailable("away")

    def renew(self, tokens: Sequence[Token]) -> list[Renewal]:
        self._call("renew")
        return [Renewal(granted=True) for _ in tokens]

    def register(self, _owner: str, _host: str, _names: Sequence[str], _report: None) -> bool:
        """Nothing to write down."""
        return True

    def orders(self, _owner: str) -> Orders:
        self._call("orders")
        return Orders({"u": "enough"})


class Holding:
    """A runner with one job; it records the keeper's reports."""

    def __init__(self) -> None:
        self.reports: set[str] = set()

    def tokens(self) -> list[Token]:
        return [Token(JobId("n", "q", "k"), "u", 1, "me")]

    def renewed(self, _began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        assert [renewal.granted for _token, renewal in answers] == [True]
        self.reports.add("renewed")

    def cancelled(self, marks: Mapping[str, str]) -> None:
        assert marks == {"u": "enough"}
        self.reports.add("cancelled")

    def ledger_lost(self, cause: str, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        assert cause == "away"
        self.reports.add("lost")


@pytest.mark.parametrize("error", [Injected, InjectedBase, MemoryError])
def test_an_exception_at_any_line_of_the_ledgers_keeper_ends_its_thread_and_so_the_worker_process(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead thread of the service is exit code 70: `tests/service/test_service.py`."""
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)

    def kept(at: Place | None) -> tuple[bool, Tracer]:
        """Return whether the keeper still turns after it has reported all that it can report."""
        times = Times(renew=0.02, cancel_poll=0.005)
        holder = Holding()
        ledger, holders = cast(Ledger, Unsteady()), [cast(lease.Holder, holder)]
        keeper = Keeper(ledger, "me", "here", ["q"], holders, SystemClock(), times)
        tracer = Tracer([lease], at, error)
        body = threading.Thread(target=tracer.around(keeper.run), daemon=True)
        body.start()
        for _ in range(round(SILENCE / 0.01)):
            if (tracer.raised or at is None) and holder.reports == {"renewed", "cancelled", "lost"}:
                break
            body.join(0.01)
            if not body.is_alive():
                break
        turns = body.is_alive()
        assert not turns or holder.reports == {"renewed", "cancelled", "lost"}
        keeper.end()
        body.join(SILENCE)
        assert not body.is_alive()
        return turns, tracer

    turns, clean = kept(None)
    assert turns
    assert len(clean.places) > 10
    for place in clean.places:
        turns, tracer = kept(place)
        assert tracer.raised, text_of(place)
        assert not turns, text_of(place)
