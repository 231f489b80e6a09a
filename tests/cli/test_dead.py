"""`steadyworker dead`: why a job is there, and the two ways out."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest

from steadyworker.adapter import OutgoingMessage, Target
from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.ledger.base import Claimed, JobId, Moving, Verdict
from steadyworker.outcome import Counters
from tests.cli.kit import BODY, Queues, Shell

EXPORTS = JobQueue("exports", "exports", None, object)


def test_list_has_a_line_per_job_with_why(shell: Shell, queues: Queues) -> None:
    queues.dead("k-1", copies=2)
    queues.dead("k-2")
    done = shell("dead", "list", "app:Exports")
    assert done.code == 0
    assert [line.split()[0] for line in done.lines] == ["KEY", "k-1", "k-2"]
    assert done.lines[1].endswith("gave up after 5 failures (ValueError: no such merchant)")


def test_list_as_json_removes_nothing(shell: Shell, queues: Queues) -> None:
    queues.dead("k-1", copies=2)
    for _ in range(2):
        (record,) = shell("dead", "list", "exports", "--json").records
        assert (record["key"], record["copies"], record["reason"]) == ("k-1", 2, "exhausted")
        assert (record["attempts"], record["losses"]) == (5, 1)


def test_an_empty_queue_is_reported(shell: Shell, queues: Queues) -> None:
    done = shell("dead", "list", "app:Exports")
    assert (done.code, done.out) == (0, "")
    assert "No dead letters" in done.err


class TestShow:
    def test_has_everything_but_secrets(self, shell: Shell, queues: Queues) -> None:
        queues.dead("k-1")
        done = shell("dead", "show", "app:Exports", "k-1")
        assert done.code == 0
        for text in (
            "gave up after 5 failures",
            "ValueError: no such merchant",
            "5 attempts",
            "dead since:",
            "host-1",
            "checkpoint:",
            "m-17",
        ):
            assert text in done.out
        assert "hunter2" not in done.out

    def test_shows_that_there_is_no_checkpoint(self, shell: Shell, queues: Queues) -> None:
        queues.dead("k-1", checkpoint=None)
        assert "checkpoint:    none" in shell("dead", "show", "app:Exports").out
        assert shell("dead", "show", "app:Exports", "--json").records[0]["checkpoint"] is None

    def test_as_json_has_the_payload_as_json(self, shell: Shell, queues: Queues) -> None:
        queues.dead("k-1")
        (record,) = shell("dead", "show", "app:Exports", "--json").records
        assert record["payload"] == {"merchant": "m-17", "password": "***"}
        assert record["checkpoint"] == 7

    def test_cuts_a_long_payload(self, shell: Shell, queues: Queues) -> None:
        queues.dead("k-1", json.dumps({"merchant": "m" * 5000}).encode())
        done = shell("dead", "show", "app:Exports")
        assert "… (5,016 bytes)" in done.out
        assert len(done.out) < 3000

    def test_cannot_move_the_cursor(self, shell: Shell, queues: Queues) -> None:
        queues.dead("k-1", b"\x1b[2J\xff")
        done = shell("dead", "show", "app:Exports")
        assert "\x1b" not in done.out

    def test_gives_the_body_itself_when_asked(self, shell: Shell, queues: Queues) -> None:
        queues.dead("k-1")
        done = shell("dead", "show", "app:Exports", "k-1", "--body")
        assert json.loads(done.out) == {"merchant": "m-17", "password": "hunter2"}


def test_replay_sends_it_round_again(shell: Shell, queues: Queues) -> None:
    queues.dead("k-1")
    queues.dead("k-2")
    done = shell("dead", "replay", "app:Exports", "k-1")
    assert done.code == 0
    assert done.out == "k-1: replayed as k-1, round 1\n"
    (delivery,) = queues.received("exports", 1)
    assert delivery.headers == {"sw-job-key": "k-1", "sw-queue": "exports", "sw-round": "1"}
    assert [record["key"] for record in shell("dead", "list", "app:Exports", "--json").records] == ["k-2"]


def test_replay_of_all(shell: Shell, queues: Queues) -> None:
    queues.dead("k-1")
    queues.dead("k-2")
    done = shell("dead", "replay", "app:Exports", "--all", "--from-start", "--json")
    assert done.records == [{"key": key, "round": 1, "was": key, "letter_gone": False} for key in ("k-1", "k-2")]
    assert len(queues.received("exports", 2)) == 2


def test_drop_removes_for_good(shell: Shell, queues: Queues) -> None:
    queues.dead("k-1", copies=2)
    done = shell("dead", "drop", "app:Exports", "k-1")
    assert (done.code, done.out) == (0, "k-1: dropped\n")
    assert shell("dead", "list", "app:Exports").out == ""
    assert shell("jobs", "--json").out == ""


class TestALetterThatIsGone:
    """Another tool dropped it, and the ledger has the job's message."""

    def test_is_listed_shown_and_replayed_by_its_key(self, shell: Shell, queues: Queues) -> None:
        queues.dead("k-1", copies=0)
        queues.dead("k-2")
        done = shell("dead", "list", "app:Exports")
        assert [line.split()[0] for line in done.lines] == ["KEY", "k-2", "k-1"]
        assert done.lines[2].endswith(
            "letter gone, kept in the ledger: gave up after 5 failures (ValueError: no such merchant)"
        )
        (shown,) = shell("dead", "show", "app:Exports", "k-1", "--json").records
        assert (shown["letter_gone"], shown["copies"], shown["payload"]["merchant"]) == (True, 0, "m-17")
        assert shell("dead", "show", "app:Exports", "k-1", "--body").out == f"{BODY.decode()}\n"
        done = shell("dead", "replay", "app:Exports", "k-1")
        assert (done.code, done.out) == (0, "k-1: letter gone; replayed from the ledger as k-1, round 1\n")
        (delivery,) = queues.received("exports", 1)
        assert (delivery.body, delivery.headers["sw-round"]) == (BODY, "1")

    def test_is_left_alone_by_all_which_prints_how_to_select_it(self, shell: Shell, queues: Queues) -> None:
        queues.dead("k-1", copies=0)
        queues.dead("k-2")
        done = shell("dead", "drop", "app:Exports", "--all")
        assert done.out == "k-2: dropped\n"
        assert (
            "1 dead job whose letter is gone, kept in the ledger: select them by KEY, or with --all --gone." in done.err
        )
        assert shell("dead", "drop", "app:Exports", "--gone").code == 64
        assert shell("dead", "drop", "app:Exports", "--all", "--gone").out == "k-1: dropped\n"
        assert shell("jobs", "--json").out == ""


@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_nothing_happens_to_all_of_them_by_accident(shell: Shell, queues: Queues, verb: str) -> None:
    queues.dead("k-1")
    assert shell("dead", verb, "app:Exports").code == 64
    assert shell("dead", verb, "app:Exports", "k-1", "--all").code == 64
    done = shell("dead", verb, "app:Exports", "k-1", "k-7")
    assert done.code == 1
    assert "k-7" in done.err
    assert len(shell("dead", "list", "app:Exports", "--json").records) == 1


def test_a_letter_of_the_broker_is_shown_as_one(shell: Shell, queues: Queues) -> None:
    with Connections(queues.options) as links:
        links.adapter(EXPORTS).publish(OutgoingMessage(Target.DEAD, b"{}", {"x-why": "expired"}, message_id="m-1"))
    (record,) = shell("dead", "list", "app:Exports", "--json").records
    assert (record["key"], record["by_broker"], record["headers"]) == ("m-1", True, {"x-why": "expired"})
    assert "put here by the broker" in shell("dead", "list", "app:Exports").out


def test_a_job_whose_letter_is_there_is_not_reported_as_in_the_work_queue(shell: Shell, queues: Queues) -> None:
    queues.dead("k-1")  # binds the queue to its broker
    with Connections(queues.options) as links:
        ledger, id_ = links.ledger(), JobId(links.namespace(EXPORTS), "exports", "m-1", 0)
        row = ledger.claim(Claimed(id_, None, "owner", 0, sha256(b"{}").digest(), Counters()))
        assert row is not None
        assert ledger.moving(row.token, Verdict(Moving.DEAD, "exhausted", Counters(attempts=1)))
        assert "m-1 is dead, but its message is still in the work queue" in shell("dead", "list", "app:Exports").err
        links.adapter(EXPORTS).publish(OutgoingMessage(Target.DEAD, b"{}", {}, message_id="m-1"))
    listed = shell("dead", "list", "app:Exports")
    assert "m-1" in listed.out
    assert "still in the work queue" not in listed.err


def test_letters_of_another_worker_are_counted_and_left_alone(shell: Shell, queues: Queues) -> None:
    queues.dead("k-1")
    with Connections(queues.options) as links:
        links.adapter(EXPORTS).publish(OutgoingMessage(Target.DEAD, b"{}", {"sw-job-key": "k-1", "sw-queue": "other"}))
    done = shell("dead", "list", "app:Exports", "--json")
    assert (done.code, [record["headers"]["sw-queue"] for record in done.records]) == (0, ["exports"])
    assert "1 dead letter of other queues left alone: other (1). Name the Worker of such a queue" in done.err


@pytest.mark.long
def test_letters_that_another_reader_holds_end_the_command_with_69_and_the_remedy(shell: Shell, queues: Queues) -> None:
    """After 10 s, in which the other command usually ends; nothing is lost by it."""
    queues.dead("k-1")
    with Connections(queues.options) as links, links.adapter(EXPORTS).dead_letters() as held:
        assert len(list(held)) == 1
        done = shell("dead", "list", "app:Exports")
        assert (done.code, done.out) == (69, "")
        assert "Expected no other reader of the dead-letter queue 'exports.dead', got one" in " ".join(done.err.split())
        assert "wait until the other `steadyworker dead` command has ended" in " ".join(done.err.split())
    (record,) = shell("dead", "list", "app:Exports", "--json").records
    assert record["key"] == "k-1"


def test_a_checkpoint_that_is_nested_too_deep_for_json_is_shown_as_its_text(shell: Shell, queues: Queues) -> None:
    deep = "[" * 600 + "]" * 600
    queues.dead("k-1", checkpoint=deep.encode())
    (record,) = shell("dead", "show", "app:Exports", "k-1", "--json").records
    assert record["checkpoint"] == deep
    assert shell("dead", "show", "app:Exports", "k-1").code == 0


def test_a_secret_in_a_checkpoint_is_hidden_as_text_and_as_json(shell: Shell, queues: Queues) -> None:
    queues.dead("k-1", checkpoint=b'{"page": 7, "password": "hunter2"}')
    text, record = shell("dead", "show", "exports"), shell("dead", "show", "exports", "--json")
    assert '  checkpoint:    {"page": 7, "password": "***"}' in text.lines
    assert record.records[0]["checkpoint"] == {"page": 7, "password": "***"}
