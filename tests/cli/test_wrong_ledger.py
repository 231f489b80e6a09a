"""A sender or an operator with a ledger that no worker of the queue uses: an error, and never an answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.backends.opening import open_adapter_for, open_ledger
from steadyworker.client import Client
from steadyworker.config.resolve import Options, load
from steadyworker.errors import ConfigError, NoLedger
from steadyworker.ledger.base import State
from steadyworker.ledger.lease import QUIET, registered_name
from steadyworker.ledger.owners import OwnerLock, new_owner_id
from steadyworker.outcome import JobState
from steadyworker_sqlite import SqliteAdapter
from tests.brokers.place import Place
from tests.cli.kit import Shell
from tests.support.ledgers import make_ledger
from tests.support.stage import Stage, eventually

STEPS = "tests.support.jobs:Steps"

ASKS: dict[str, Callable[[Client], object]] = {
    "cancel": lambda client: client.cancel("exports", "k"),
    "status": lambda client: client.status("exports", "k").state,
    "send again": lambda client: client.send("exports", {}, key="k", again=True),
}
REPLIES = {"cancel": None, "status": JobState.UNKNOWN, "send again": "k"}
"""What each of them returns for a job that no worker has seen."""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return load({"state_dir": str(tmp_path / "state")}, {}, tmp_path)


@contextmanager
def consumer(queue: str, options: Options) -> Iterator[str]:
    """Consume the queue, and return the broker's identity once the broker counts the consumer."""
    adapter, witness = open_adapter_for(queue, options), open_adapter_for(queue, options)
    adapter.start(lambda _signal: None)
    adapter.prefetch(1)
    try:
        eventually(lambda: witness.consumers() == 1, "a consumer")
        yield witness.identity()
    finally:
        adapter.stop(5)
        witness.stop(5)


@pytest.fixture
def consumed(options: Options) -> Iterator[str]:
    """The namespace of a queue with one consumer, a worker process whose ledger is elsewhere."""
    with consumer("exports", options) as identity:
        yield identity


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


asks = pytest.mark.parametrize("ask", ASKS)


@asks
def test_a_process_that_is_no_worker_never_creates_a_ledger(options: Options, consumed: str, ask: str) -> None:
    before = sorted(options.state_dir.iterdir())
    with Client.configured(options) as client, pytest.raises(NoLedger, match="got no such file: set --ledger to the"):
        ASKS[ask](client)
    assert [path for path in options.state_dir.iterdir() if path not in before] == []
    assert depth(options) == 0


@asks
def test_a_ledger_that_knows_none_of_the_queues_consumers_is_an_error_that_names_both(
    options: Options, consumed: str, ask: str
) -> None:
    make_ledger(options)
    with closing(open_ledger(options)) as ledger:
        ledger.register("host/boot/other", "host", [registered_name(consumed, "reports")])
        ledger.register("host/boot/there", "host", [registered_name("elsewhere", "exports")])
        with Client.configured(options) as client, pytest.raises(ConfigError) as caught:
            ASKS[ask](client)
        assert list(ledger.jobs()) == []
    done = str(caught.value)
    assert f"the workers of queue 'exports', got {ledger.url}: the queue has 1 consumer" in done
    assert caught.value.id == "ledger.of-others"
    assert depth(options) == 0


@asks
@pytest.mark.parametrize("suffix", ["", QUIET], ids=["consumes", "quiet"])
def test_a_ledger_that_knows_one_of_the_consumers_replies(
    options: Options, consumed: str, ask: str, suffix: str
) -> None:
    make_ledger(options)
    with closing(open_ledger(options)) as ledger, Client.configured(options) as client:
        with pytest.raises(ConfigError):
            ASKS[ask](client)
        ledger.register("host/boot/1", "host", [f"{registered_name(consumed, 'exports')}{suffix}"])
        assert ASKS[ask](client) == REPLIES[ask]


def test_an_owner_that_is_proven_dead_is_no_consumer(options: Options, consumed: str) -> None:
    make_ledger(options)
    with closing(open_ledger(options)) as ledger, Client.configured(options) as client:
        lock = OwnerLock(options.state_dir / "ledger.db.owners", new_owner_id())
        ledger.register(lock.owner, "host", [registered_name(consumed, "exports")])
        lock.release()
        with pytest.raises(ConfigError, match="this ledger knows none under the namespace"):
            client.cancel("exports", "k")


def test_an_owner_that_has_just_died_is_still_a_consumer_where_the_broker_notices_late(
    options: Options, consumed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who cancels right after a crash has the right ledger."""
    make_ledger(options)
    late = replace(open_adapter_for("exports", options).capabilities, forgets_consumers_within=120.0)
    with closing(open_ledger(options)) as ledger, Client.configured(options) as client:
        lock = OwnerLock(options.state_dir / "ledger.db.owners", new_owner_id())
        ledger.register(lock.owner, "host", [registered_name(consumed, "exports")])
        lock.release()
        monkeypatch.setattr(SqliteAdapter, "capabilities", late)
        assert client.cancel("exports", "k") is None


def test_the_consumers_at_any_broker_are_counted(place: Place, options: Options, tmp_path: Path) -> None:
    queue = place.queue("jobs")
    place.make_queue(queue)
    there = load(
        {"broker": place.url(), "namespace": place.namespace, "state_dir": str(tmp_path / "state")}, {}, tmp_path
    )
    make_ledger(there)
    refused = pytest.raises(ConfigError, match="this ledger knows none under the")
    with consumer(queue, there), Client.configured(there) as client, refused:
        client.cancel(queue, "k")


def test_without_consumers_a_cancel_waits_for_them_and_each_later_call_checks_again(options: Options) -> None:
    make_ledger(options)
    with Client.configured(options) as client:
        client.send("exports", {}, key="other")
        assert client.cancel("exports", "k") is None
        with consumer("exports", options), pytest.raises(ConfigError, match="the queue has 1 consumer"):
            client.status("exports", "k")


@pytest.mark.parametrize(
    "command",
    [
        ("jobs",),
        ("jobs", "--overdue", "--json"),
        ("cancel", "app:Exports", "k"),
        ("dead", "list", "app:Exports"),
        ("dead", "replay", "app:Exports", "--all"),
        ("send", "app:Exports", '{"merchant": "m"}', "--key", "k", "--again"),
    ],
    ids=" ".join,
)
def test_each_command_on_a_ledger_that_is_not_there_ends_with_78(shell: Shell, command: tuple[str, ...]) -> None:
    done = shell(*command, "--ledger", "sqlite:typo/ledger.db")
    assert (done.code, done.out) == (78, "")
    assert "typo/ledger.db, which a worker process creates at its start, got no such file: set --ledger" in done.err
    assert not (shell.folder / "typo").exists()


def test_check_notes_that_the_first_worker_will_create_the_ledger_and_creates_none(shell: Shell) -> None:
    done = shell("check", "app:Exports")
    assert done.code == 0
    assert "note: Expected the ledger sqlite:" in done.out
    assert "[ledger.missing]" in done.out
    assert not (shell.state / "ledger.db").exists()


def test_check_reports_that_no_ledger_can_be_created_in_a_folder_that_cannot_be_written(shell: Shell) -> None:
    done = shell("check", "app:Exports", "--ledger", "sqlite:app.py/ledger.db")
    assert done.code == 78
    assert "app.py/ledger.db, got app.py, where this user cannot create files" in done.out.replace(
        f"{shell.folder}/", ""
    )


def test_a_database_of_postgresql_without_a_ledger_stays_without(options: Options, database: str) -> None:
    there = replace(options, ledger=database, origins={})
    with Connections(there) as links:
        for _ in range(2):
            with pytest.raises(NoLedger, match="got a database without a ledger: set --ledger"):
                links.last_round(JobQueue("exports", "exports", None, Any), "k")
        (found,) = [finding for finding in links.ledger().findings() if finding.id == "ledger.missing"]
    assert found.level == "note"


def test_a_cancel_with_the_ledger_setting_forgotten_stops_no_job_and_is_refused(stage: Stage) -> None:
    """The worker runs on a ledger that its command line names; the operator's shell does not know it."""
    stage.send("steps", {"steps": 3, "gate": "gate"})
    stage.worker(STEPS)
    stage.notes("waiting", 1)
    cancel = ("cancel", "steps", "job")
    forgotten = stage.folder / "state" / "ledger.db"
    first = stage.command(*cancel, ledger=f"sqlite:{forgotten}")
    first.ended(78)
    assert "got no such file" in first.log_end()
    make_ledger(load({"ledger": f"sqlite:{forgotten}"}, {}, stage.folder))
    second = stage.command(*cancel, ledger=f"sqlite:{forgotten}")
    second.ended(78)
    assert f"queue 'steps', got sqlite:{forgotten}: the queue has 1 consumer" in second.log_end()
    stage.open()
    stage.reaches("steps", State.DONE)
    assert stage.lines("starts") == ["job 1 0"]


def depth(options: Options) -> int:
    """The number of messages in the embedded broker's queue, read from its file."""
    with closing(sqlite3.connect(options.state_dir / "broker.db")) as broker:
        return int(broker.execute("SELECT count(*) FROM messages WHERE queue = 'exports'").fetchone()[0])
