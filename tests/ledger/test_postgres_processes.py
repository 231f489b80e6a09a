"""Real worker processes on one PostgreSQL ledger: they race, they are killed, and two hundred of them cost it next to nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import Claimed, Ledger, Renewal, Token
from steadyworker.ledger.facts import Pause
from steadyworker.ledger.lease import Keeper
from steadyworker.ledger.owners import OwnerLock, new_owner_id
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.outcome import Counters
from tests.brokers.postgres import Cluster
from tests.conftest import Eventually
from tests.ledger.kit import JOB, Actor, Commits, one_wins_each_time

BODY = b"\x01" * 32
OWNERS = 200
MEASURED = 30.0


def opened(url: str, owners: Path) -> PostgresLedger:
    return PostgresLedger(lambda: url, owners_dir=owners, clock=SystemClock(), times=Times())


@pytest.fixture
def ledger(database: str, tmp_path: Path) -> Iterator[PostgresLedger]:
    with closing(opened(database, tmp_path / "owners")) as ledger:
        yield ledger


def test_of_two_processes_that_claim_a_row_a_thousand_times_one_wins_each_time(
    actor: Actor, database: str, ledger: Ledger
) -> None:
    one_wins_each_time(actor, database, ledger)


def test_a_sigkill_of_worker_or_server_loses_nothing_that_was_answered(
    actor: Actor, postgres_cluster: Cluster, database: str, ledger: Ledger
) -> None:
    """What a call has answered is in the ledger, whichever instruction the kill hits, and the next process goes on."""
    commits = Commits()
    for lines in (3, 8, 21, 4, 13):
        process = actor("live", database)
        commits.read(process, lines)
        if lines % 2:
            postgres_cluster.kill()
            postgres_cluster.start()
        commits.kill(process)
        with closing(opened(database, ledger._owners_dir)) as afresh:  # type: ignore[attr-defined]
            commits.are_in(afresh)
    with closing(opened(database, ledger._owners_dir)) as afresh:  # type: ignore[attr-defined]
        claimed = afresh.claim(Claimed(replace(JOB, key="next"), None, "me", 0, b"", Counters()))
    assert claimed is not None
    assert claimed.fence > commits.highest


def test_an_owner_of_this_host_is_dead_when_its_lock_is_free(ledger: PostgresLedger, tmp_path: Path) -> None:
    """Proof, as on a ledger in a file; an owner of another host has a lease and no more."""
    lock = OwnerLock(tmp_path / "owners", new_owner_id())
    elsewhere = "another-host/00000000-0000-0000-0000-000000000000/1"
    for key, owner in (("here", lock.owner), ("there", elsewhere)):
        ledger.register(owner, "host", ["exports"])
        assert ledger.claim(Claimed(replace(JOB, key=key), None, owner, 0, BODY, Counters()))

    def judged() -> list[bool]:
        rows = [ledger.read(replace(JOB, key=key)) for key in ("here", "there")]
        return [row is not None and row.lease_over for row in rows]

    assert judged() == [False, False]
    lock.release()
    assert judged() == [True, False]
    assert {seen.owner: seen.dead for seen in ledger.owners()} == {lock.owner: True, elsewhere: False}
    ledger.purge()
    assert judged() == [True, False], "the proof stays while a row needs it"


class Held:
    """A run that is renewed."""

    def __init__(self, ledger: Ledger, owner: str, key: str) -> None:
        row = ledger.claim(Claimed(replace(JOB, key=key), None, owner, 0, BODY, Counters()))
        assert row is not None
        self._token = row.token
        self.granted = 0

    def tokens(self) -> Sequence[Token]:
        return [self._token]

    def renewed(self, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        self.granted += len([renewal for _, renewal in answers if renewal.granted])

    def cancelled(self, marks: Mapping[str, str]) -> None:
        pytest.fail(f"not cancelled, but {marks}")

    def paused(self, pauses: Sequence[Pause]) -> None:
        pytest.fail(f"not paused, but {pauses}")

    def ledger_lost(self, cause: str, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        pytest.fail(cause)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_hundred_owners_that_renew_cost_the_server_less_than_a_twentieth_of_a_core(
    postgres_cluster: Cluster,
    database: str,
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    """
    CPU time of all its processes for the renewals and the reads of cancel marks of 30 s, however late they are, at the clocks of use.

    A keeper each, with a run, on a connection of its own.
    """
    clock, times = SystemClock(), Times()
    with closing(opened(database, tmp_path)) as record:
        ledgers = [opened(database, tmp_path) for _ in range(OWNERS)]
        holders = [Held(record, f"host/boot/{number}", f"m-{number}") for number in range(OWNERS)]
        keepers = [
            Keeper(ledger, f"host/boot/{number}", "host", ["exports"], [holders[number]], clock, times)
            for number, ledger in enumerate(ledgers)
        ]
        threads = [threading.Thread(target=keeper.run, daemon=True) for keeper in keepers]
        try:
            for thread in threads:
                thread.start()
                time.sleep(times.renew / OWNERS)  # a fleet does not beat as one
            eventually(lambda: all(holder.granted for holder in holders), within=60)
            before, beaten = cpu_seconds(postgres_cluster.pid), granted(holders)
            due = beaten + OWNERS * MEASURED / times.renew
            eventually(lambda: granted(holders) >= due, within=2 * MEASURED)
            share = (cpu_seconds(postgres_cluster.pid) - before) / MEASURED
            assert connections(record) <= 2 * OWNERS + 2
        finally:
            for keeper in keepers:
                keeper.end()
            for thread in threads:
                thread.join(30)
            for ledger in ledgers:
                ledger.close()
    print(f"{OWNERS} owners: {share:.2%} of a core")
    assert share < 0.05


def granted(holders: Sequence[Held]) -> int:
    return sum(holder.granted for holder in holders)


def cpu_seconds(pid: int) -> float:
    """User and system time of the server and all its processes, those that ended included."""
    server = psutil.Process(pid)
    total = 0.0
    for process in [server, *server.children(recursive=True)]:
        spent = process.cpu_times()
        total += spent.user + spent.system
    ended = server.cpu_times()
    return total + float(ended.children_user) + float(ended.children_system)


def connections(ledger: PostgresLedger) -> int:
    """How many connections workers have to the server."""
    found = ledger._fetch("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'steadyworker/%%'", {})
    return int(found[0][0])
