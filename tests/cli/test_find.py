"""`steadyworker find`: where a job is, at the embedded broker and at one that shows no message."""

from __future__ import annotations

import json
import re

from steadyworker.cli import find
from steadyworker.client import QueueSearch
from tests.brokers.rabbitmq import Vhost
from tests.cli.kit import Queues, Shell

NO_RECORD = "ledger: The ledger has no record of this key.\n"
TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def send(shell: Shell, *keys: str, delay: str = "0") -> None:
    for key in keys:
        assert shell("send", "app:Exports", '{"merchant": "m"}', "--key", key, "--delay", delay).code == 0


def test_a_message_that_waits_is_found_with_its_place(shell: Shell, queues: Queues) -> None:
    send(shell, "k-1", "k-2")
    done = shell("find", "app:Exports", "k-2")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(rf"{NO_RECORD}queue:  message 2 is this job's: ready, sent at {TIME}\.\n", done.out)


def test_a_message_that_is_due_later_is_found_with_its_time(shell: Shell, queues: Queues) -> None:
    send(shell, "k-1", delay="1h")
    done = shell("find", "exports", "k-1")
    assert re.fullmatch(
        rf"{NO_RECORD}queue:  message 1 is this job's: delayed until {TIME}, sent at {TIME}\.\n", done.out
    )


def test_a_job_that_ended_is_in_the_ledger(shell: Shell, queues: Queues) -> None:
    queues.job("k-1", lambda ledger, row: ledger.done(row.token))
    done = shell("find", "exports", "k-1")
    assert (done.code, done.out) == (0, "ledger: done\nqueue:  0 messages read, and this key is not among them.\n")


def test_a_key_that_is_nowhere_is_1_and_names_where_the_search_stopped(shell: Shell, queues: Queues) -> None:
    send(shell, "k-1", "k-2", "k-3")
    done = shell("find", "exports", "k-3", "--limit", "2")
    stopped = "2 of 3 messages read, and this key is not among them. The search ended after 2 messages."
    assert (done.code, done.out) == (1, f"{NO_RECORD}queue:  {stopped}\n")
    (record,) = shell("find", "exports", "k-3", "--limit", "2", "--json").records
    assert record == {
        "key": "k-3",
        "state": None,
        "found": False,
        "position": None,
        "due_at": None,
        "sent_at": None,
        "read": 2,
        "messages": 3,
        "stopped": "The search ended after 2 messages.",
    }


def test_a_limit_that_is_the_queues_length_stops_no_search(shell: Shell, queues: Queues) -> None:
    send(shell, "k-1", "k-2")
    done = shell("find", "exports", "k-3", "--limit", "2")
    assert done.lines[1:] == ["queue:  2 messages read, and this key is not among them."]


def test_a_queue_that_neither_broker_nor_ledger_has_is_an_error_with_the_near_names(
    shell: Shell, queues: Queues
) -> None:
    """Before, the command printed that no message has this key, as if the queue were there and empty."""
    queues.job("k-1")
    for done in (shell("find", "export", "k-1"), shell("find", "export", "k-1", "--json")):
        assert (done.code, done.out) == (1, "")
        assert "neither the broker nor the ledger has a queue of this name: did you mean exports?" in done.err
    empty = shell("find", "export", "k-1", environ={"STEADYWORKER_STATE_DIR": str(shell.folder / "elsewhere")})
    assert (empty.code, empty.out) == (1, "")
    assert "correct the name, or name the Worker" in empty.err
    assert not (shell.folder / "elsewhere").exists()


def test_before_the_first_worker_the_queue_is_searched_all_the_same(shell: Shell) -> None:
    send(shell, "k-1")
    done = shell("find", "app:Exports", "k-1")
    assert done.code == 0
    assert done.lines[0].startswith("ledger: Expected the ledger sqlite:")
    assert done.lines[1].startswith("queue:  message 1 is this job's: ready")


def test_a_question_with_another_namespace_leaves_nothing_in_the_ledger(shell: Shell, queues: Queues) -> None:
    """The ledger kept the misspelt name for ever, and `queues` then reported a queue of a broker that is away."""
    queues.job("k-1")
    before = shell("queues", "--json").out
    for verb in (("find", "app:Exports", "k-1"), ("dead", "list", "app:Exports"), ("dead", "show", "app:Exports")):
        assert shell(*verb, "--namespace", "typo").code in (0, 1)
    assert [each["namespace"] for each in shell("queues", "--json").records] == [json.loads(before)["namespace"]]


def test_only_a_failed_search_is_no_search() -> None:
    """A broker that shows only a part of its queue was searched, even if this part is empty."""
    part = QueueSearch(None, 0, "The search has not read the whole queue: delayed messages are hidden.", 7)
    assert find._searched(part) == f"0 of 7 messages read, and this key is not among them. {part.stopped}"
    failed = QueueSearch(None, 0, "The broker does not respond.", failed=True)
    assert find._searched(failed) == "Not searched. The broker does not respond."


def test_a_broker_that_shows_no_message_cannot_be_searched(shell: Shell, queues: Queues, vhost: Vhost) -> None:
    broker = ("--broker", vhost.url)
    assert shell("send", "exports", "{}", "--key", "k-1", *broker).code == 0
    done = shell("find", "exports", "k-1", *broker)
    why = "This broker cannot show the messages of a queue without delivering them."
    assert (done.code, done.out) == (1, f"{NO_RECORD}queue:  Not searched. {why}\n")
