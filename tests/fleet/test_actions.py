"""What people do with jobs that wait, on each broker and one PostgreSQL ledger."""

from __future__ import annotations

from click.testing import CliRunner, Result

from steadyworker.cli import verbs
from steadyworker.ledger.base import State
from steadyworker.system.person import who
from tests.fleet.kit import LIGHT, Fleet


def steadyworker(fleet: Fleet, *arguments: str) -> Result:
    return CliRunner().invoke(verbs, arguments, env=fleet.environment())


def test_a_retry_runs_at_another_time_and_its_delayed_message_is_a_duplicate(fleet: Fleet) -> None:
    """The runs begin from the new messages, whose hop is one above the hop of the delayed ones."""
    fleet.send_all({"now": {"delays": [10.0]}, "soon": {"delays": [10.0]}})
    worker = fleet.worker(LIGHT)
    for key in ("now", "soon"):
        fleet.reaches(fleet.queue, State.MOVED, key)
        verb = ["retry", fleet.queue, key]
        if key != "now":
            verb = ["reschedule", fleet.queue, key, "--delay", "2"]
        done = steadyworker(fleet, *verb)
        assert done.exit_code == 0, done.output
    fleet.ends_clean("now", "soon", attempts=1)
    hops = {key: row.hop for key in ("now", "soon") if (row := fleet.row(fleet.queue, key))}
    assert hops == {"now": 2, "soon": 2}
    assert sorted(fleet.lines("starts")) == [f"{key} {attempt}" for key in ("now", "soon") for attempt in (1, 2)]
    assert worker.lines("message_lost") == []
    assert {(action.who, action.what) for action in fleet.ledger.facts.actions()} == {
        (who(), "retry"),
        (who(), "reschedule"),
    }


def test_jobs_are_cancelled_by_a_choice_and_replayed_by_their_reason(fleet: Fleet) -> None:
    fleet.send_all({f"job-{number}": {"delays": [10.0]} for number in range(3)})
    fleet.worker(LIGHT)
    for number in range(3):
        fleet.reaches(fleet.queue, State.MOVED, f"job-{number}")
    done = steadyworker(
        fleet, "cancel", fleet.queue, "--state", "retrying", "--grep", "as asked", "--reason", "wrong month", "--yes"
    )
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 3), done.output
    for number in range(3):
        fleet.reaches(fleet.queue, State.DEAD, f"job-{number}")
    none = steadyworker(fleet, "dead", "replay", fleet.queue, "--reason", "another month", "--yes")
    assert none.output == "0 dead letters replayed.\n"
    done = steadyworker(fleet, "dead", "replay", fleet.queue, "--reason", "wrong month", "--delay", "1", "--yes")
    assert (done.exit_code, done.stderr) == (0, "3 dead letters replayed.\n")
    fleet.notes("ends", 3)
    fleet.empties()
    assert sorted(fleet.lines("ends")) == [f"job-{number}" for number in range(3)]
