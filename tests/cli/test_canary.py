"""No text of a broker, a handler or another process reaches a screen raw: it moves no cursor, is no markup, and has no password."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest
from click.testing import CliRunner

from steadyworker.adapter import Depth, OutgoingMessage, Target
from steadyworker.backends.connections import Connections, job_queue
from steadyworker.backends.opening import open_ledger
from steadyworker.cli import verbs
from steadyworker.ledger.base import Began, Claimed, Ending, JobId, KeptMessage, Ledger, Moving, Progress, Row, Verdict
from steadyworker.ledger.facts import Action, LinkEvent, OwnerReport, QueueReport, ReportedFinding
from steadyworker.ledger.lease import registered_name
from steadyworker.outcome import Counters
from tests.cli.kit import Queues, Shell

NAME = "\x1b[2J\x1b]0;title\x07\r\n\x9b31m\u202e\u2066\u200f\x7f[red]x[/red]"
"""Sequences for a terminal, a carriage return, marks of direction, and the markup of a library for screens."""

CANARY = f"{NAME}amqp://ann:hunter2-canary@host"
"""The same with a password, for a text that is no name."""

QUEUE = "exports"
ODD = "exp\u202eorts[red]"
"""A queue whose name no embedded broker accepts, but another broker may."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LISTINGS = [
    ["jobs"],
    ["jobs", "-v"],
    ["jobs", QUEUE, "k-dead", "k-run"],
    ["jobs", "nosuch\u202e"],
    ["show", QUEUE, "k-dead"],
    ["show", QUEUE, "k-done", "-v"],
    ["show", ODD, "k-dead"],
    ["jobs", ODD, "k-dead", "k-run"],
    ["show", "nosuch\u202e", "k-dead"],
    ["queues"],
    ["queues", "-v", "--max-dead", "0", "--max-ready", "0", "--max-age", "1h"],
    ["queues", "nosuch\u202e"],
    ["workers"],
    ["workers", "-v", "--all"],
    ["actions"],
    ["find", QUEUE, "k-dead"],
    ["find", QUEUE, "k-none"],
    ["find", "nosuch\u202e", "k-none"],
    ["dead", "list", QUEUE],
    ["dead", "show", QUEUE],
    ["dead", "list", "nosuch\u202e"],
]
ACTIONS = [
    ["pause", QUEUE, "--reason", CANARY],
    ["resume", QUEUE],
    ["cancel", QUEUE, "k-dead", "k-run", "k-new", "--reason", CANARY],
    ["cancel", QUEUE, "--all", "--yes"],
    ["cancel", "nosuch\u202e", "k-dead"],
    ["retry", QUEUE, "k-dead", "k-run", "k-new"],
    ["reschedule", QUEUE, "k-dead", "--delay", "1h"],
    ["send", QUEUE, "{}", "--key", "k\u202e"],
    ["purge", QUEUE, "--name", QUEUE],
    ["purge", QUEUE, "--name", "another\u202e"],
    ["dead", "replay", QUEUE, "k-dead"],
    ["dead", "drop", QUEUE, "--all", "--yes"],
    ["dead", "drop", QUEUE, "nosuch\u202e"],
]


@pytest.fixture
def bad(shell: Shell, queues: Queues, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A ledger and a broker in which each text is the canary, with a job in each state."""
    monkeypatch.chdir(shell.folder)
    for name, value in shell.environ.items():
        monkeypatch.setenv(name, value)
    queue = job_queue(QUEUE, queues.options)
    with Connections(queues.options) as links, closing(open_ledger(queues.options)) as ledger:
        adapter = links.adapter(queue)
        adapter.publish(OutgoingMessage(Target.WORK, b"{}", {"sw-key": "k-waits"}, message_id="m-1"))
        namespace = adapter.identity()
        ledger.bind(namespace, QUEUE, namespace)
        _fill(ledger, namespace, QUEUE)
        ledger.bind("elsewhere", ODD, "elsewhere")
        _fill(ledger, "elsewhere", ODD)
        facts = {"sw-reason": CANARY, "sw-error": CANARY, "sw-error-class": CANARY, "sw-worker": NAME, "x": CANARY}
        for key in ("k-dead", NAME):
            message = OutgoingMessage(Target.DEAD, CANARY.encode(), {"sw-key": key, **facts}, message_id=f"d-{key}")
            adapter.publish(message)
        yield


def _fill(ledger: Ledger, namespace: str, queue: str) -> None:
    name = registered_name(namespace, queue)
    finding = ReportedFinding(NAME, "error", CANARY)
    reports = {name: QueueReport(1, 1, 60.0, connected=True, paused=True)}
    report = OwnerReport(1, NAME, 1.0, NAME, ready=False, not_ready=(CANARY,), queues=reports, findings=(finding,))
    ledger.register(f"{queue}/{NAME}", NAME, [name], report)
    ending = Ending("failed", CANARY, CANARY, CANARY, f"Traceback\n  {CANARY}")
    verdict = Verdict(Moving.DEAD, CANARY, Counters(crashes=2), error_class=CANARY, error_text=CANARY)
    for key in ("k-dead", "k-gone", NAME):
        row = _claimed(ledger, namespace, queue, key)
        ledger.checkpoint(row.token, msgspec.json.encode(CANARY))
        assert ledger.moving(row.token, verdict, ending)
        assert ledger.moved(row.token)
    row = _claimed(ledger, namespace, queue, "k-done")
    assert ledger.done(row.token, Ending("done", result=msgspec.json.encode({"report": CANARY})))
    row = _claimed(ledger, namespace, queue, "k-wait")
    assert ledger.moving(row.token, msgspec.structs.replace(verdict, target=Moving.RETRY, delay=600.0), ending)
    assert ledger.moved(row.token)
    row = _claimed(ledger, namespace, queue, "k-run")
    ledger.progress(row.token, Progress(1, 10, CANARY, time.time()))
    ledger.cancel(row.id, CANARY)
    facts = ledger.facts
    facts.add_link_events([LinkEvent(NAME, queue, time.time() + 1, 1, "lost", CANARY)])
    facts.pause(namespace, queue, NAME, CANARY)
    facts.act(Action(NAME, NAME, namespace, queue, ("k-dead", NAME), 2, CANARY))
    facts.record_depth(namespace, queue, Depth(5, 0, None, None, None, 7, 7200.0, {"dead": CANARY, "unacked": CANARY}))


def _claimed(ledger: Ledger, namespace: str, queue: str, key: str) -> Row:
    kept, began = KeptMessage(b"{}", b"{}"), Began(0, NAME, 1)
    id = JobId(namespace, queue, key)
    row = ledger.claim(Claimed(id, None, NAME, 0, b"\x01" * 32, Counters(), kept, began))
    assert row is not None
    return row


def _assert_harmless(arguments: list[str], *, colour: bool = False) -> str:
    environ = {"FORCE_COLOR": "1" if colour else None, "COLUMNS": "140"}
    done = CliRunner().invoke(verbs, arguments, env=environ)
    assert done.exit_code in (0, 1, 64, 69, 78), done.output
    output = done.output
    shown = _COLOUR.sub("", output) if colour else output
    raw = sorted({character for character in shown if not character.isprintable() and character != "\n"})
    assert not raw, output
    assert "hunter2-canary" not in output
    return shown


@pytest.mark.parametrize("arguments", LISTINGS, ids=range(len(LISTINGS)))
def test_no_listing_prints_a_foreign_text_raw(bad: None, arguments: list[str]) -> None:
    shown = _assert_harmless(arguments)
    _assert_harmless(arguments, colour=True)
    if "--max-dead" not in arguments and "dead" not in arguments:
        _assert_harmless([*arguments, "--json"])
    if "nosuch\u202e" not in arguments and "k-none" not in arguments:
        assert "[red]" in shown, "it is there, and is no markup"


@pytest.mark.parametrize("arguments", ACTIONS, ids=range(len(ACTIONS)))
def test_no_action_prints_a_foreign_text_raw(bad: None, arguments: list[str]) -> None:
    _assert_harmless(arguments)


@pytest.mark.parametrize("arguments", [["dead", "list", QUEUE], ["dead", "show", QUEUE]], ids=["list", "show"])
def test_no_json_of_dead_letters_is_raw(bad: None, arguments: list[str]) -> None:
    _assert_harmless([*arguments, "--json"])
