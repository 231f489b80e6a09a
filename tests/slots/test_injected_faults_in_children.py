"""An exception at each line of a child's two threads, one at a time: the run ends as documented, or the slot is unready."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from steadyworker.errors import InterruptReason
from steadyworker.outcome import Crashed, Done, Failed, Interrupted, Outcome, Rejected
from steadyworker.slots import spawn
from steadyworker.slots.base import Asked, Ended, Progressed, Unready
from tests.slots.faulty_child import place_of
from tests.slots.kit import Rig, rig_of
from tests.slots.tracer import Place, text_of
from tests.support.stage import ROOT

SILENCE = 20.0
"""Seconds without a word that count as silence; the runs have a time limit of 60 s, which would end the silence."""

RUNS: tuple[tuple[str, type[Outcome]], ...] = (
    ("leave_threads", Done),  # first, because Python would wait for them at the end of a failed child
    ("checkpoint", Done),
    ("nothing", Done),
    ("until_checked", Rejected),
    ("nothing", Done),
)


class Faulty:
    """Slots whose first child raises at a place."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._at = folder / "at"
        self._places = folder / "places"
        monkeypatch.setenv("FAULTY_AT", str(self._at))
        monkeypatch.setenv("FAULTY_PLACES", str(self._places))
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setattr(
            spawn, "command", lambda _module, *given: [sys.executable, "-m", "tests.slots.faulty_child", *given]
        )

    def walk(self, place: Place | None, text: str = "") -> tuple[list[Outcome], bool]:
        """Run all jobs, and close; return their outcomes, and whether the child has raised."""
        if place is not None:
            self._at.write_text(text, encoding="utf-8")
        rig = rig_of("Modes", "process", ping=0.2, setup_limit=5.0)
        try:
            rig.open()
            outcomes = [self._run(rig, do) for do, _outcome in RUNS]
        finally:
            rig.close(0.2)
        raised = place is not None and not self._at.exists()
        self._at.unlink(missing_ok=True)
        return outcomes, raised

    def places(self) -> dict[Place, str]:
        return {place_of(line): line for line in self._places.read_text(encoding="utf-8").splitlines()}

    def _run(self, rig: Rig, do: str) -> Outcome:
        reason: InterruptReason = "cancelled"
        while not rig.slot.warm:
            if isinstance(rig.event(SILENCE), Unready):
                rig.open()
        fence = rig.begin(do, time_limit=60.0)
        while True:
            match rig.event(SILENCE):
                case Asked(id=id):
                    rig.slot.reply(fence, id, True)
                case Progressed(note="begun"):
                    rig.slot.interrupt(fence, reason, hard=True)
                case Unready():
                    rig.open()
                case Ended(outcome=outcome) as event:
                    assert event.fence == fence
                    return outcome
                case _:
                    pass


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faulty:
    return Faulty(tmp_path, monkeypatch)


def inject(faulty: Faulty, every: int) -> None:
    outcomes, _ = faulty.walk(None)
    assert [type(outcome) for outcome in outcomes] == [outcome for _, outcome in RUNS]
    places = list(faulty.places().items())
    assert len(places) > 30
    reached = 0
    for place, text in places[::every]:
        outcomes, raised = faulty.walk(place, text)
        reached += raised
        assert all(isinstance(each, Done | Crashed | Failed | Rejected | Interrupted) for each in outcomes), text_of(
            place
        )
        assert sum(isinstance(each, Crashed | Failed) for each in outcomes) <= 1, text_of(place)
    assert reached > 0.6 * len(places[::every])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_exception_in_a_childs_own_threads_ends_its_run_or_makes_the_slot_unready(faulty: Faulty) -> None:
    """At each twelfth place; the next test takes all."""
    inject(faulty, 12)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_exception_at_any_line_of_a_childs_own_threads_ends_its_run_or_makes_the_slot_unready(
    faulty: Faulty,
) -> None:
    inject(faulty, 1)
