"""`steadyworker retry`: the message of an unfinished job, again; and a clear word where none is needed."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable
from contextlib import closing

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from steadyworker.actions.jobs import needs_no_message
from steadyworker.backends.opening import namespace_of, open_adapter_for, open_ledger
from steadyworker.cli import verbs
from steadyworker.delivery import UID, Delivery
from steadyworker.ledger.base import JobId, KeptMessage, Ledger, Moving, Row, State, Verdict
from steadyworker.ledger.rules import Action, Claim, Finish, HeldBy, action_for
from steadyworker.outcome import Counters
from steadyworker.runner.envelope import Envelope, identify
from steadyworker.runner.planning import again
from tests.cli.kit import BODY, Queues, Shell, let_pass

KEPT = KeptMessage(BODY, b'{"headers":{"tenant":"north","sw-attempts":"0"},"message_id":"m-1"}')
ROW = Row(
    JobId("n", "exports", "k-1", 2),
    "uid-1",
    State.INTERRUPTED,
    body_sha256=hashlib.sha256(BODY).digest(),
    hop=3,
    fence=9,
    counters=Counters(attempts=3, crashes=1, losses=1),
)
AGAIN = Verdict(Moving.RETRY, "ValueError: no", Counters(attempts=1), 0.0)


@pytest.mark.parametrize(
    ("row", "hop", "expected"),
    [
        (ROW, 3, Claim(ROW.counters)),
        (replace(ROW, state=State.MOVED, target=Moving.RETRY), 4, Claim(ROW.counters)),
        (replace(ROW, state=State.MOVED, target=Moving.RETRY, hop=-1), 0, Claim(ROW.counters)),
        (replace(ROW, state=State.RUNNING), 3, Claim(Counters(attempts=3, crashes=1, losses=2), lost=True)),
        (replace(ROW, state=State.MOVING, target=Moving.RETRY), 3, Finish()),
        (replace(ROW, state=State.MOVING, target=Moving.DEAD), 3, Finish()),
    ],
    ids=["interrupted", "moved", "replayed", "running", "moving to a retry", "moving to a dead letter"],
)
def test_the_message_leads_to_what_the_lost_one_would_have_led_to(row: Row, hop: int, expected: Action) -> None:
    message = again(row, KEPT)
    envelope = identify(Delivery(1, "d-1", "exports", message.body, message.headers), "n", None)
    assert isinstance(envelope, Envelope)
    assert (envelope.id, envelope.hop, envelope.letter, envelope.conflict(row.uid)) == (row.id, hop, False, "")
    assert envelope.carried == row.counters
    assert message.headers["tenant"] == "north"
    digest = envelope.body_sha256
    assert action_for(row, envelope.hop, digest, HeldBy.GONE, envelope.carried, 9, letter=envelope.letter) == expected


@pytest.mark.parametrize("state", [State.DONE, State.DEAD, State.RUNNING])
def test_the_command_of_a_remedy_can_be_copied_into_a_shell(state: State) -> None:
    problem = needs_no_message(replace(ROW, id=replace(ROW.id, key="bill; ls"), state=state, lease_over=False))
    assert "bill; ls" in shlex.split(problem[problem.index("`") + 1 : problem.rindex("`")])


@pytest.fixture
def retry(shell: Shell, queues: Queues, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command in this process."""
    monkeypatch.chdir(shell.folder)

    def called(key: str) -> Result:
        return CliRunner().invoke(verbs, ["retry", "exports", key, "--state-dir", str(shell.state)])

    return called


def interrupt(ledger: Ledger, row: Row) -> None:
    assert ledger.interrupted(row.token, Counters(interruptions=1))


def wait_for_retry(delay: float) -> Callable[[Ledger, Row], None]:
    def then(ledger: Ledger, row: Row) -> None:
        assert ledger.moving(row.token, replace(AGAIN, delay=delay))
        assert ledger.moved(row.token, delay)

    return then


def lost(queues: Queues, row: Row) -> list[str]:
    """The jobs of which no message came for an hour."""
    with closing(open_ledger(queues.options)) as ledger:
        found = ledger.orphans(row.id.namespace, "exports", 3600.0, 10, stranded=True)
        return [orphan.row.id.key for orphan in found]


@pytest.mark.parametrize(("then", "hop"), [(interrupt, "0"), (wait_for_retry(0.0), "1")])
def test_an_unfinished_job_gets_its_message_again(
    queues: Queues, retry: Callable[..., Result], then: Callable[[Ledger, Row], None], hop: str
) -> None:
    row = queues.job("k-1", then)
    let_pass(queues, 7200.0)
    assert lost(queues, row) == ["k-1"]
    done = retry("k-1")
    assert done.exit_code == 0, done.output
    assert done.output.endswith("is due now: it runs with the next free slot.\n")
    (delivery,) = queues.received("exports", 1)
    assert (delivery.body, delivery.headers["sw-hop"], delivery.headers[UID]) == (BODY, hop, row.uid)
    assert lost(queues, row) == []


@pytest.mark.parametrize(
    ("then", "keep", "remedy"),
    [
        (
            lambda ledger, row: ledger.done(row.token),
            True,
            "k-1 is done: `steadyworker send exports … --key k-1 --again`",
        ),
        (lambda ledger, row: None, True, "wait for its end, or stop it with `steadyworker cancel exports k-1`"),
        (interrupt, False, "send the same message again, with `steadyworker send exports … --key k-1 --again`"),
    ],
    ids=["done", "running", "no message"],
)
def test_a_job_that_needs_no_message_or_has_none_is_refused_with_the_remedy(
    queues: Queues, retry: Callable[..., Result], then: Callable[[Ledger, Row], None], remedy: str, *, keep: bool
) -> None:
    queues.job("k-1", then, keep=keep)
    done = retry("k-1")
    assert done.exit_code == 1
    assert remedy in " ".join(done.output.split())


def test_a_dead_job_is_refused_and_named_with_its_own_command(queues: Queues, retry: Callable[..., Result]) -> None:
    queues.dead("k-1")
    assert "k-1 is dead: `steadyworker dead replay exports k-1`" in retry("k-1").output
    assert "k-7 is not in the ledger: send the job" in retry("k-7").output


def test_a_cancelled_job_of_which_no_message_came_is_refused(queues: Queues, retry: Callable[..., Result]) -> None:
    queues.job("k-1")
    with closing(open_ledger(queues.options)) as ledger:
        namespace = namespace_of(open_adapter_for("exports", queues.options), queues.options, ledger, "exports")
        ledger.cancel(JobId(namespace, "exports", "k-2"), "wrong month")
    assert retry("k-2").exit_code == 1
