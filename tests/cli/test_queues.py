"""`steadyworker queues` and `steadyworker workers`, as commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from steadyworker.adapter import Adapter, Depth
from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.backends.opening import open_ledger
from steadyworker.cli.queues import _measure
from steadyworker.config.resolve import load
from steadyworker.errors import BrokerUnavailable
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.facts import OwnerReport, QueueReport
from steadyworker.ledger.lease import registered_name
from steadyworker.outcome import Counters
from tests.cli.kit import Queues, Shell
from tests.cli.test_jobs import Terminal


@pytest.fixture
def ledger(queues: Queues) -> Iterator[Ledger]:
    """The ledger of a queue `exports` that has one job."""
    queues.job("k-1")
    with closing(open_ledger(queues.options)) as ledger:
        yield ledger


def namespace(ledger: Ledger) -> str:
    ((namespace, _),) = ledger.bindings()
    return namespace


def files(folder: Path) -> list[str]:
    """Every file below a folder, but the compiled modules of Python and the ledger's files for readers."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return [name for name in names if "__pycache__" not in name and not name.endswith(("-wal", "-shm"))]


def test_what_a_sender_left_is_shown_before_a_first_worker_runs(shell: Shell) -> None:
    for key in ("k-1", "k-2"):
        assert shell("send", "app:Exports", '{"merchant": "m-17"}', "--key", key).code == 0
    (queue,) = shell("queues", "app:Exports", "--json").records
    assert (queue["queue"], queue["ready"], queue["dead"], queue["workers"]) == ("exports", 2, 0, 0)
    assert "no worker consumes it: start one with `steadyworker run MODULE:CLASS`" in shell("queues", "app:Exports").out
    assert not (shell.state / "ledger.db").exists()


def test_a_recent_record_of_a_worker_process_is_shown_without_a_question_to_the_broker(
    shell: Shell, ledger: Ledger
) -> None:
    ledger.facts.record_depth(namespace(ledger), "exports", Depth(40, 1, None, 5, 2, 1, 1800.0))
    ledger.facts.pause(namespace(ledger), "exports", "ann@desk", "the bank is closed")
    (queue,) = shell("queues", "--json").records
    assert (queue["ready"], queue["unacked"], queue["oldest_age"], queue["running"]) == (40, 5, 1800.0, 1)
    assert (queue["paused_by"], queue["pause_reason"]) == ("ann@desk", "the bank is closed")
    assert "paused by ann@desk" in shell("queues", "exports").out


@pytest.mark.parametrize(
    ("depth", "arguments", "expected"),
    [
        (Depth(40, dead=2, oldest_age=1800.0), [], 0),
        (Depth(40, dead=2, oldest_age=1800.0), ["--max-ready", "40", "--max-dead", "2", "--max-age", "30m"], 0),
        (Depth(40, dead=2, oldest_age=1800.0), ["--max-ready", "39"], 1),
        (Depth(40, dead=2, oldest_age=1800.0), ["--max-dead", "0"], 1),
        (Depth(40, dead=2, oldest_age=1800.0), ["--max-age", "29m"], 1),
        (Depth(40, why={"dead": "no permission"}), ["--max-dead", "0"], 69),
        (Depth(40, why={"dead": "no permission"}), ["--max-dead", "0", "--max-ready", "39"], 1),
        (Depth(40, why={"dead": "no permission"}), ["--max-ready", "40"], 0),
        (Depth(0, oldest_age=None), ["--max-age", "1m"], 0),
    ],
)
def test_an_alert_is_an_exit_code_that_says_also_that_it_could_not_know(
    shell: Shell, ledger: Ledger, depth: Depth, arguments: list[str], expected: int
) -> None:
    ledger.facts.record_depth(namespace(ledger), "exports", depth)
    done = shell("queues", *arguments, "--json")
    assert done.code == expected
    assert (done.err == "") is (expected == 0)
    assert done.records[0]["dead"] == depth.dead


def test_a_queue_of_another_broker_is_unknown_and_never_empty(shell: Shell, ledger: Ledger) -> None:
    ledger.bind("rabbit@elsewhere", "refunds", "rabbit@elsewhere")
    (refunds,) = [queue for queue in shell("queues", "--json").records if queue["queue"] == "refunds"]
    assert (refunds["ready"], refunds["dead"]) == (None, None)
    assert refunds["why"]["ready"] == (
        "no worker recorded it within 30 s, and --broker is another broker, or has no such queue: correct --broker"
    )


def test_a_broker_to_which_the_namespace_does_not_belong_shows_no_number(shell: Shell, queues: Queues) -> None:
    with closing(open_ledger(queues.options)) as ledger:
        ledger.bind("shop", "exports", "rabbit@elsewhere")
    assert shell("send", "exports", "{}", "--key", "k-1").code == 0
    done = shell("queues", "--namespace", "shop", "--json", "--max-dead", "0")
    (queue,) = done.records
    assert (done.code, queue["ready"]) == (69, None)
    assert "set another --namespace, or correct --broker" in queue["why"]["ready"]


def test_a_queue_that_is_unavailable_leaves_the_others_known(ledger: Ledger, queues: Queues) -> None:
    class Unavailable(BrokerUnavailable):
        """As an adapter raises it for one queue."""

    class Links(Connections):
        def adapter(self, queue: JobQueue) -> Adapter:
            if queue.name == "away":
                raise Unavailable("The queue's node is down.")
            return super().adapter(queue)

    with Links(queues.options) as links:
        measure = _measure(links, queues.options, {})
        assert "The queue's node is down." in measure("any", "away").why["ready"]
        assert measure("", "refunds").why["ready"].startswith("neither the broker nor the ledger")


def test_a_list_of_queues_creates_no_broker(shell: Shell, ledger: Ledger) -> None:
    before = files(shell.folder)
    (queue,) = shell("queues", "--json", "--broker", "sqlite:elsewhere.db").records
    assert (queue["ready"], files(shell.folder)) == (None, before)


def test_a_limit_on_a_queue_that_nobody_knows_is_69_with_a_near_name(shell: Shell, ledger: Ledger) -> None:
    done = shell("queues", "export", "--max-dead", "0")
    assert done.code == 69
    assert "neither the broker nor the ledger has a queue of this name: did you mean exports?" in done.err
    assert shell("queues", "--namespace", "nosuch", "--max-dead", "0").code == 69


def test_a_worker_process_is_a_line_with_its_state(shell: Shell, ledger: Ledger) -> None:
    name = registered_name(namespace(ledger), "exports")
    report = OwnerReport(
        4711, "1.4.0", 1.0, "running", ready=True, queues={name: QueueReport(4, 1, 60.0, connected=True)}
    )
    ledger.register("host-1/boot/1", "host-1", [name], report)
    ledger.register("old/boot/1", "old", [name])
    first, second = shell("workers", "--json").records
    assert (first["host"], first["pid"], first["stage"], first["queues"][name]["busy"]) == (
        "host-1",
        4711,
        "running",
        1,
    )
    assert (first["state"], first["troubles"]) == ("alive", [])
    assert (second["host"], second["pid"], second["queues"]) == ("old", None, {name: None})
    title, line, old = shell("workers").lines
    assert title.split() == [
        "HOST",
        "PID",
        "QUEUES",
        "BUSY",
        "STAGE",
        "BROKER",
        "LEDGER",
        "RENEWED",
        "STARTED",
        "VERSION",
        "WHY",
    ]
    assert line.split()[:7] == ["host-1", "4711", "exports", "1/4", "running", "up", "up"]
    assert old.split()[:7] == ["old", "?", "exports", "0/?", "?", "?", "up"]


def test_a_worker_process_that_has_stopped_is_no_unexplained_consumer(shell: Shell) -> None:
    """The last depth that it measured can still count it as a consumer."""
    assert shell("send", "app:Exports", '{"merchant": "m-17"}', "--key", "k-1").code == 0
    assert shell("run", "app:Exports", "--max-jobs", "1").code == 0
    with closing(open_ledger(load({"state_dir": str(shell.state)}, {}, shell.folder))) as ledger:
        assert ledger.owners() == []
        ledger.facts.record_depth(namespace(ledger), "exports", Depth(0, 0, None, 0, 0, 1))
    (queue,) = shell("queues", "--json").records
    assert (queue["consumers"], queue["workers"], queue["unexplained_consumers"]) == (1, 0, 0)
    assert "explains" not in shell("workers").err


@pytest.mark.parametrize(
    "verb",
    [
        ["jobs"],
        ["jobs", "app:Exports", "k-1", "k-2"],
        ["queues"],
        ["queues", "app:Exports"],
        ["workers"],
        ["actions"],
        *(
            [*verb, queue, *key]
            for verb, key in ((["show"], ["k-1"]), (["find"], ["k-1"]), (["dead", "list"], []), (["dead", "show"], []))
            for queue in ("exports", "app:Exports")
        ),
    ],
    ids=" ".join,
)
def test_no_listing_verb_creates_a_file(shell: Shell, verb: list[str]) -> None:
    before = files(shell.folder)
    assert "Traceback" not in shell(*verb).err
    assert files(shell.folder) == before


@pytest.mark.parametrize(
    "verb",
    [["jobs"], ["queues"], ["workers"], ["show", "exports", "k-1"], ["actions"], ["find", "exports", "k-1"]],
    ids=" ".join,
)
def test_no_listing_verb_creates_a_file_beside_a_ledger(shell: Shell, ledger: Ledger, verb: list[str]) -> None:
    before = files(shell.folder)
    assert shell(*verb).code == 0
    assert files(shell.folder) == before


def test_watch_shows_a_change_and_ends_with_ctrl_c(shell: Shell, ledger: Ledger) -> None:
    ledger.facts.record_depth(namespace(ledger), "exports", Depth(7, 0, None, 0, 0, 1, 1.0))
    with Terminal(shell, "queues", "--watch") as terminal:
        terminal.until("exports      7")
        ledger.facts.record_depth(namespace(ledger), "exports", Depth(8, 0, None, 0, 0, 1, 1.0))
        terminal.until("exports      8")
        assert terminal.end() == 0


def test_watch_shows_worker_processes_until_ctrl_c(shell: Shell, ledger: Ledger) -> None:
    ledger.register("host-1/boot/1", "host-1", [registered_name(namespace(ledger), "exports")])
    with Terminal(shell, "workers", "--watch") as terminal:
        terminal.until("host-1")
        assert terminal.end() == 0


@pytest.mark.parametrize("verb", ["jobs", "queues", "workers", "show", "cancel", "check", "run"])
def test_the_own_options_of_a_verb_come_first_in_its_help(shell: Shell, verb: str) -> None:
    """Settings that verbs share follow; `--ledger` is one of all these verbs."""
    options = shell(verb, "--help").out.partition("\nOptions:")[2].splitlines()
    names = [line.split()[0].rstrip(",") for line in options if line.startswith("  -")]
    own = {"jobs": "--json", "queues": "--json", "workers": "--json", "show": "--json"}
    last_own = own.get(verb) or {"cancel": "--reason", "check": "--json", "run": "--inline"}[verb]
    shared = min(names.index(name) for name in ("--broker", "--ledger") if name in names)
    assert names.index(last_own) < shared


@pytest.mark.parametrize(
    "verb",
    [
        ["jobs"],
        ["jobs", "exports"],
        ["jobs", "exports", "k-1"],
        ["show", "exports", "k-1"],
        ["workers"],
        ["queues"],
        ["dead", "list", "exports"],
        ["dead", "show", "exports"],
    ],
    ids=" ".join,
)
def test_each_screen_names_a_pause_with_person_time_and_remedy(shell: Shell, ledger: Ledger, verb: list[str]) -> None:
    ledger.facts.pause("elsewhere", "refunds", "bob@desk", "a test")
    ledger.facts.pause(namespace(ledger), "exports", "ann@desk", "the bank is closed")
    done = shell(*verb)
    shown = done.out + done.err
    assert re.search(r"paused by ann@desk \d s ago; the bank is closed; `steadyworker resume exports` ends", shown)
    assert ("bob@desk" in shown) is (verb in (["jobs"], ["workers"]))


def test_the_record_of_a_job_that_waits_has_the_pause_of_its_queue(
    shell: Shell, queues: Queues, ledger: Ledger
) -> None:
    queues.job("k-2", lambda ledger, row: ledger.interrupted(row.token, Counters()))
    ledger.facts.pause(namespace(ledger), "exports", "ann@desk", "the bank is closed")
    for verb in (["jobs", "--json"], ["show", "exports", "k-2", "--json"]):
        (job,) = (job for job in shell(*verb).records if job["key"] == "k-2")
        assert (job["paused"], job["paused_by"], job["pause_reason"]) == (True, "ann@desk", "the bank is closed")
        assert job["paused_at"].endswith("Z")
