"""What people do from the command line: cancel, retry, reschedule, pause, purge; and the log of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner, Result

from steadyworker.actions import queues as queue_actions
from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.backends.opening import open_ledger
from steadyworker.cli import confirm, dead, purge, verbs
from steadyworker.delivery import OutgoingMessage, Target
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import JobFilter, Ledger, Moving, Row, Verdict
from steadyworker.ledger.facts import Action
from steadyworker.ledger.sqlite.facts import SqliteFacts
from steadyworker.outcome import Counters
from steadyworker.system.person import who
from tests.cli.kit import BODY, Queues, Shell
from tests.support.deliveries import received

SECRET = "canary-9f3e"
EXPORTS = JobQueue("exports", "exports", None, Any)
Command = Callable[..., Result]


@pytest.fixture
def command(shell: Shell, queues: Queues, monkeypatch: pytest.MonkeyPatch) -> Command:
    """A verb, in this process, for 80 columns and without a terminal."""
    monkeypatch.chdir(shell.folder)
    monkeypatch.setenv("COLUMNS", "80")

    def called(*arguments: str, typed: str | None = None) -> Result:
        return CliRunner().invoke(verbs, [*arguments, "--state-dir", str(shell.state)], input=typed)

    return called


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input is a terminal."""
    for module in (confirm, dead, purge):
        monkeypatch.setattr(module, "is_terminal", lambda: True)


def waits(delay: float, text: str = "no such merchant") -> Callable[[Ledger, Row], None]:
    def then(ledger: Ledger, row: Row) -> None:
        verdict = Verdict(Moving.RETRY, f"ValueError: {text}", Counters(attempts=1), delay, "ValueError", text)
        assert ledger.moving(row.token, verdict)
        assert ledger.moved(row.token, delay)

    return then


def row_of(queues: Queues, key: str) -> Row:
    with closing(open_ledger(queues.options)) as ledger:
        (row,) = (row for row, _ in ledger.jobs(JobFilter(queue="exports")) if row.id.key == key)
        return row


def logged(queues: Queues) -> list[Action]:
    """The log of actions, oldest first."""
    with closing(open_ledger(queues.options)) as ledger:
        return list(reversed(ledger.facts.actions()))


def entry(action: Action) -> tuple[object, ...]:
    return action.who, action.what, action.queue, action.keys, action.count, action.detail


# --- Cancel -----------------------------------------------------------------------------------------------------------


def test_several_jobs_are_cancelled_by_their_keys(command: Command, queues: Queues) -> None:
    queues.job("k-1")
    queues.job("k-2", waits(60.0))
    queues.job("k-3", lambda ledger, row: ledger.done(row.token))
    done = command("cancel", "exports", "k-1", "k-2", "k-3", "--reason", "wrong month")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "k-1 is running: it receives the cancellation within 2 s.",
        "k-2 is cancelled (it was retrying): it will not run again.",
    ]
    assert done.stderr.splitlines() == ["k-3 is already done: nothing was cancelled."]
    (action,) = logged(queues)
    assert entry(action) == (who(), "cancel", "exports", ("k-1", "k-2"), 2, "wrong month")


def test_a_choice_without_a_terminal_needs_yes(command: Command, queues: Queues) -> None:
    queues.job("k-1", waits(60.0))
    queues.job("k-2", waits(60.0, "database is locked"))
    done = command("cancel", "exports", "--state", "retrying", "--grep", "NO SUCH")
    assert done.exit_code == 64
    assert done.stderr.splitlines()[-1] == (
        "Error: Expected a yes before this command cancels 1 job of exports (1 retrying), got no terminal to ask on: "
        "add --yes. Nothing was changed."
    )
    assert row_of(queues, "k-1").cancel_reason is None
    assert logged(queues) == []
    done = command("cancel", "exports", "--state", "retrying", "--grep", "NO SUCH", "--yes")
    assert done.output == "k-1 is cancelled (it was retrying): it will not run again.\n"
    assert [row_of(queues, key).cancel_reason for key in ("k-1", "k-2")] == ["by an operator", None]


@pytest.mark.usefixtures("terminal")
def test_a_person_sees_the_number_before_a_choice_is_cancelled(command: Command, queues: Queues) -> None:
    queues.job("k-1")
    queues.job("k-2", waits(60.0))
    queues.dead("k-3")
    question = "This cancels 2 jobs of exports (1 retrying, 1 running). Go on? [y/N]: "
    refused = command("cancel", "exports", "--all", typed="n\n")
    assert (refused.exit_code, refused.stderr) == (1, f"{question}n\nNothing was changed.\n")
    assert row_of(queues, "k-2").cancel_reason is None
    done = command("cancel", "exports", "--all", typed="y\n")
    assert (done.exit_code, done.stderr) == (0, f"{question}y\n")
    assert len(done.stdout.splitlines()) == 2
    assert command("cancel", "exports", "--all").stderr == "No such jobs in exports.\n"


def test_jobs_and_a_choice_together_are_refused(command: Command) -> None:
    assert "got both" in command("cancel", "exports", "k-1", "--all").output
    assert "got neither" in command("cancel", "exports").output


def test_old_jobs_are_left_out(command: Command, queues: Queues) -> None:
    queues.job("k-1", waits(60.0))
    assert command("cancel", "exports", "--since", "2099-01-01", "--yes").stderr == "No such jobs in exports.\n"
    assert command("cancel", "exports", "--since", "1h", "--yes").exit_code == 0


def test_a_cancel_is_undone_before_a_worker_sees_it(command: Command, queues: Queues) -> None:
    queues.job("k-1", waits(60.0))
    queues.job("k-2")
    command("cancel", "exports", "k-1", "k-2", "k-new")
    done = command("cancel", "exports", "k-1", "k-2", "k-new", "k-7", "--undo")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "k-1 is no longer cancelled: it runs when its message arrives.",
        "k-new is no longer cancelled: it runs when its message arrives.",
    ]
    assert done.stderr.splitlines() == [
        "k-2 runs now, so its worker process may have read the cancel: it is too late to undo it.",
        "k-7 has no cancel to undo.",
    ]
    assert [row_of(queues, key).cancel_reason for key in ("k-1", "k-2")] == [None, "by an operator"]
    assert [entry(action)[1:5] for action in logged(queues)] == [
        ("cancel", "exports", ("k-1", "k-2", "k-new"), 3),
        ("undo cancel", "exports", ("k-1", "k-new"), 2),
    ]


def test_a_choice_of_cancelled_jobs_is_undone(command: Command, queues: Queues) -> None:
    queues.job("k-1", waits(60.0))
    queues.job("k-2", waits(60.0))
    command("cancel", "exports", "k-1")
    done = command("cancel", "exports", "--all", "--undo", "--yes")
    assert done.output == "k-1 is no longer cancelled: it runs when its message arrives.\n"


# --- Retry and reschedule ---------------------------------------------------------------------------------------------


def test_a_job_that_waits_for_a_retry_runs_now(command: Command, queues: Queues) -> None:
    """Its message has the next hop, and the ledger waits for that message: the delayed one counts as a duplicate."""
    before = queues.job("k-1", waits(3600.0))
    done = command("retry", "exports", "k-1")
    assert (done.exit_code, done.output) == (0, "k-1 (retrying) is due now: it runs with the next free slot.\n")
    after = row_of(queues, "k-1")
    assert (after.hop, after.due_in, after.counters) == (before.hop + 1, 0.0, Counters(attempts=1))
    (delivery,) = received(queues.options, "exports", 1)
    assert (delivery.body, delivery.headers["sw-hop"]) == (BODY, str(after.hop + 1))
    (action,) = logged(queues)
    assert entry(action) == (who(), "retry", "exports", ("k-1",), 1, "")


@pytest.mark.parametrize("due", [3600.0, 0.0])
def test_a_job_gets_another_time(command: Command, queues: Queues, due: float) -> None:
    queues.job("k-1", waits(due))
    done = command("reschedule", "exports", "k-1", "--delay", "2h")
    assert (done.exit_code, done.output) == (0, "k-1 (retrying): due in 2 h 00 min.\n")
    after = row_of(queues, "k-1")
    assert (after.hop, round(after.due_in / 60)) == (1, 120)
    (action,) = logged(queues)
    assert entry(action) == (who(), "reschedule", "exports", ("k-1",), 1, "in 7200 s")


def test_a_job_that_waits_for_no_retry_keeps_its_time(command: Command, queues: Queues) -> None:
    queues.job("k-1", lambda ledger, row: ledger.interrupted(row.token, Counters()))
    queues.job("k-2", lambda ledger, row: ledger.done(row.token))
    queues.job("k-3", waits(60.0), keep=False)
    done = command("reschedule", "exports", "k-1", "k-2", "k-3", "k-4", "--delay", "5m")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "k-1 waits for no retry: retry it now, or cancel it.",
        "k-2 is done: `steadyworker send exports … --key k-2 --again` runs it again.",
        (
            "k-3 has no message in the ledger: send the same message again, with `steadyworker send exports … --key k-3 "
            "--again`; the job continues from its last checkpoint."
        ),
        "k-4 is not in the ledger: send the job; a delayed message with the same key then counts as a duplicate.",
    ]
    assert round(row_of(queues, "k-3").due_in) == 60
    assert logged(queues) == []


@pytest.mark.parametrize("verb", ["retry", "reschedule"])
def test_a_key_is_needed(command: Command, verb: str) -> None:
    more = ["--delay", "1"] if verb == "reschedule" else []
    assert "Expected one KEY or more, got none" in command(verb, "exports", *more).output
    assert "Expected a delay of 0 seconds to ten years" in command("reschedule", "exports", "k", "--delay", "x").output


# --- Dead letters -----------------------------------------------------------------------------------------------------


def test_letters_are_chosen_by_class_reason_and_time(command: Command, queues: Queues) -> None:
    for key in ("k-1", "k-2"):
        queues.dead(key)
    refused = command("dead", "replay", "exports", "--error-class", "ValueError")
    assert refused.exit_code == 64
    assert refused.stderr.splitlines()[-1] == (
        "Error: Expected a yes before this command replays 2 dead letters of exports, got no terminal to ask on: "
        "add --yes. Nothing was changed."
    )
    for none in (
        ["--error-class", "KeyError"],
        ["--reason", "locked"],
        ["--since", "2099-01-01"],
        ["--before", "2001-01-01"],
    ):
        done = command("dead", "replay", "exports", *none, "--yes")
        assert (done.exit_code, done.output) == (0, "0 dead letters replayed.\n"), none
    done = command("dead", "replay", "exports", "--reason", "NO SUCH", "--since", "1h", "--yes")
    assert done.stdout.splitlines() == [f"{key}: replayed as {key}, round 1" for key in ("k-1", "k-2")]
    assert done.stderr == "2 dead letters replayed.\n"
    (action,) = logged(queues)
    assert entry(action) == (who(), "replay", "exports", ("k-1", "k-2"), 2, "")


def test_a_replay_can_be_delayed(command: Command, queues: Queues) -> None:
    queues.dead("k-1")
    done = command("dead", "replay", "exports", "k-1", "--delay", "1h", "--from-start")
    assert done.stdout == "k-1: replayed as k-1, round 1, due in 1 h 00 min\n"
    with closing(open_ledger(queues.options)) as ledger:
        (row,) = (row for row, _ in ledger.jobs(JobFilter(queue="exports")) if row.id.round == 1)
    assert (round(row.due_in / 60), row.checkpoint) == (60, None)
    (action,) = logged(queues)
    assert action.detail == "in 3600 s, from the start"
    assert command("retry", "exports", "k-1").exit_code == 0
    (delivery,) = received(queues.options, "exports", 1)
    assert (delivery.headers["sw-round"], delivery.headers["sw-hop"]) == ("1", "1")


def test_chosen_letters_are_dropped(command: Command, queues: Queues) -> None:
    queues.dead("k-1")
    assert command("dead", "drop", "exports", "--reason", "exhausted").exit_code == 64
    done = command("dead", "drop", "exports", "--reason", "gave up after", "--yes")
    assert (done.stdout, done.stderr) == ("k-1: dropped\n", "1 dead letter dropped.\n")
    assert [action.what for action in logged(queues)] == ["drop"]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("verb", "what"), [("replay", "replays"), ("drop", "drops")])
def test_a_person_sees_the_number_before_all_letters_are_chosen(
    command: Command, queues: Queues, verb: str, what: str
) -> None:
    queues.dead("k-1")
    queues.dead("k-2")
    done = command("dead", verb, "exports", "--all", typed="n\n")
    assert done.exit_code == 1
    assert done.stderr == f"This {what} 2 dead letters of exports. Go on? [y/N]: n\nNothing was changed.\n"
    assert len(command("dead", verb, "exports", "--all", typed="y\n").stdout.splitlines()) == 2


# --- Queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_is_paused_and_goes_on(command: Command, queues: Queues) -> None:
    queues.job("k-1")
    done = command("pause", "exports", "--reason", "database moves")
    assert done.output == "exports is paused: its workers receive no new message. Jobs that run go on.\n"
    with closing(open_ledger(queues.options)) as ledger:
        (pause,) = ledger.facts.pauses()
    assert (pause.queue, pause.who, pause.reason) == ("exports", who(), "database moves")
    assert command("resume", "exports").output == "exports goes on: its workers receive messages again.\n"
    again = command("resume", "exports")
    assert (again.exit_code, again.output) == (1, "exports is not paused.\n")
    assert [entry(action)[1:] for action in logged(queues)] == [
        ("pause", "exports", (), 0, "database moves"),
        ("resume", "exports", (), 0, ""),
    ]


def waiting(queues: Queues, count: int) -> None:
    with Connections(queues.options) as links:
        for number in range(count):
            links.adapter(EXPORTS).publish(OutgoingMessage(Target.WORK, BODY, {"sw-job-key": f"w-{number}"}))


def test_a_purge_needs_the_name_of_the_queue(command: Command, queues: Queues) -> None:
    queues.job("k-1", waits(60.0))
    waiting(queues, 3)
    refused = command("purge", "exports")
    assert refused.exit_code == 64
    assert "Expected --name exports, because there is no terminal to ask on. Nothing was deleted." in refused.output
    wrong = command("purge", "exports", "--name", "export")
    assert (wrong.exit_code, wrong.output) == (1, "Expected the name exports, got 'export': nothing was deleted.\n")
    done = command("purge", "exports", "--name", "exports")
    assert (done.exit_code, done.output) == (0, "3 messages of exports deleted.\n")
    assert command("purge", "exports", "--name", "exports").output == "0 messages of exports deleted.\n"
    assert row_of(queues, "k-1").job_state == "retrying"
    assert [entry(action)[1:5] for action in logged(queues)] == [
        ("purge", "exports", (), 3),
        ("purge", "exports", (), 0),
    ]


@pytest.mark.usefixtures("terminal")
def test_a_person_types_the_name_of_the_queue(command: Command, queues: Queues) -> None:
    queues.job("k-1")
    waiting(queues, 1)
    done = command("purge", "exports", typed="exports\n")
    assert done.stdout == "1 message of exports deleted.\n"
    assert done.stderr.splitlines() == [
        "This deletes the messages that wait in exports, for good: their jobs never run.",
        "Delayed messages, running jobs and dead letters stay. A job that a worker has",
        "begun goes on from the ledger's copy; `steadyworker cancel` stops such jobs.",
        "Type the queue's name to go on: exports",
    ]
    assert all(len(line) <= 80 for line in done.stderr.splitlines())


def test_a_broker_that_cannot_be_purged_is_named(
    command: Command, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.job("k-1")
    monkeypatch.setattr(queue_actions, "Purges", LedgerUnavailable)  # no adapter is one
    done = command("purge", "exports", "--name", "exports")
    assert done.exit_code == 1
    assert "got one that cannot: purge the queue with the broker's own console" in " ".join(done.output.split())


# --- The log ----------------------------------------------------------------------------------------------------------


def test_the_log_is_listed_newest_first(command: Command, queues: Queues) -> None:
    for number in range(25):
        queues.job(f"k-{number}", waits(60.0))
    command("cancel", "exports", *(f"k-{number}" for number in range(25)), "--reason", "wrong month")
    command("pause", "exports")
    lines = command("actions").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["WHEN", "WHO", "WHAT", "QUEUE", "JOBS", "KEYS", "DETAIL"],
        [lines[1].split()[0], who(), "pause", "exports", "–"],
        [lines[2].split()[0], who(), "cancel", "exports", "25", "k-0", "k-1", "k-2", "+22", "wrong", "month"],
    ]
    (record,) = map(json.loads, command("actions", "--json", "--key", "k-3").stdout.splitlines())
    assert (record["who"], record["what"], record["count"], len(record["keys"])) == (who(), "cancel", 25, 20)
    assert command("actions", "--since", "2099-01-01").stderr.startswith("No matching actions in sqlite:")
    assert command("actions", "--queue", "other").stdout == ""
    assert len(command("actions", "--limit", "1").stdout.splitlines()) == 2


def test_an_action_counts_even_if_the_log_cannot_be_written(
    command: Command, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.job("k-1", waits(60.0))

    def refused(*_: object) -> None:
        raise LedgerUnavailable(f"Expected the ledger, got none at postgresql://app:{SECRET}@db/x.")

    monkeypatch.setattr(SqliteFacts, "act", refused)
    done = command("cancel", "exports", "k-1")
    assert (done.exit_code, done.stdout) == (0, "k-1 is cancelled (it was retrying): it will not run again.\n")
    assert done.stderr.startswith(
        "warning: This is done, but not in the log of actions: Expected the ledger, got none at"
    )
    assert SECRET not in done.stderr


def test_no_secret_of_a_reason_is_in_the_log(command: Command, queues: Queues) -> None:
    queues.job("k-1", waits(60.0))
    reason = f"moves to postgresql://app:{SECRET}@db/x"
    command("cancel", "exports", "k-1", "--reason", reason)
    command("pause", "exports", "--reason", reason)
    assert len(logged(queues)) == 2
    shown = command("actions").output + command("actions", "--json").output
    assert SECRET not in shown
    assert SECRET not in repr(logged(queues))
    assert SECRET not in repr(row_of(queues, "k-1"))
