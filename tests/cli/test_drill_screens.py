"""The operator's drill: at night, `jobs`, `queues` and `workers` alone name each trouble, with its remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from steadyworker.adapter import Depth
from steadyworker.backends.waiting import QueueNow, queues_now, unexplained_consumers
from steadyworker.cli import job_lines, queues, workers
from steadyworker.clock import Times
from steadyworker.ledger.base import Ledger, OwnerSeen
from steadyworker.ledger.facts import LinkEvent
from steadyworker.ledger.fleet import Trouble, of_namespace
from steadyworker.ledger.fleet import workers as all_workers
from steadyworker.ledger.lease import registered_name
from steadyworker.ledger.listing import Listing, Need, Wanted
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.cli.night import SECRET, Fleet
from tests.ledger.pgkit import Schemas

SHOP = [("shop", "exports"), ("shop", "refunds")]
JOBS_80 = """\
KEY        STATE      ATTEMPTS  PROGRESS         ELAPSED  WHY
crashing   retrying          0                         –  2 crashes; due in 9 m…
stuck      may hang          0  10% 10/100…  41 min 30 s  no progress for 41 mi…
lost       gone              0                      30 s  taken over by another…
well       running           0  50% 50/100…   1 min 30 s  about 4 min 30 s left
detached   running           0               41 min 30 s  its worker has no con…
failed     dead              0                       0 s  gave up: ValueError: …
cancelled  cancelled         0                       0 s  cancelled: wrong month
"""
JOBS_140 = """\
KEY        STATE      ATTEMPTS  PROGRESS               LIMIT  STARTED      ELAPSED    LAST PROGRESS  WHY
crashing   retrying          0                             –    22:54            –                –  2 crashes; due in 9 min 30 s; killed b…
stuck      may hang          0  10% 10/1…  34% of 2 h 00 min    22:13  41 min 30 s  41 min 30 s ago  no progress for 41 min 30 s at 10 of 1…
lost       gone              0              0% of 2 h 00 min    22:54         30 s                –  taken over by another worker within 1 …
well       running           0  50% 50/1…   1% of 2 h 00 min    22:53   1 min 30 s         30 s ago  about 4 min 30 s left
detached   running           0             34% of 2 h 00 min    22:13  41 min 30 s                –  its worker has no connection to the br…
failed     dead              0                             –    22:54          0 s                –  gave up: ValueError: cannot reach amqp…
cancelled  cancelled         0                             –    22:54          0 s                –  cancelled: wrong month
"""
QUEUES_80 = """\
QUEUE    READY       OLDEST  DELAYED  DEAD  WORKERS  WHY
exports     40  30 min 00 s        1     2        9  2 consumers that no worker…
refunds      0            –        0     0        9  paused by ann@desk 5 s ago…
"""
QUEUES_140 = """\
QUEUE    READY       OLDEST  DELAYED  UNACKED  DEAD  RUNNING  CONSUMERS  WORKERS  WHY
exports     40  30 min 00 s        1        5     2        4         12        9  2 consumers that no worker of this ledger explains; `stea…
refunds      0            –        0        ?     0        0          ?        9  paused by ann@desk 5 s ago; the bank is closed; `steadywo…
"""
WORKERS_80 = """\
HOST     PID  QUEUES            BUSY  STAGE    BROKER  WHY
host-4  4004  exports, refunds   0/8  gone     –       died 15 s ago; another t…
host-3  4003  exports, refunds   0/8  running  up      crash loop: 2 predecesso…
host-2  4002  exports, refunds   1/8  running  lost    no connection to the bro…
host-1  4001  exports, refunds   1/8  running  up      its run of stuck may han…
host-0  4000  exports, refunds   1/8  running  up      paused: refunds
host-5  4004  exports, refunds   0/8  running  up      paused: refunds
host-6  4005  exports, refunds   0/8  running  up      paused: refunds
host-7  4006  exports, refunds   0/8  running  up      paused: refunds
host-8  4007  exports, refunds   0/8  running  up      paused: refunds
host-9  4008  exports, refunds   0/8  running  up      paused: refunds
"""
WORKERS_140 = """\
HOST     PID  QUEUES            BUSY  STAGE    BROKER  LEDGER   RENEWED  STARTED  VERSION  WHY
host-4  4004  exports, refunds   0/8  gone     –       –       15 s ago    22:13  1.4.0    died 15 s ago; another takes over its 1 job: rea…
host-3  4003  exports, refunds   0/8  running  up      up       5 s ago    22:13  1.4.0    crash loop: 2 predecessors died within an hour: …
host-2  4002  exports, refunds   1/8  running  lost    up       5 s ago    22:13  1.4.0    no connection to the broker of exports, refunds:…
host-1  4001  exports, refunds   1/8  running  up      up       5 s ago    22:13  1.4.0    its run of stuck may hang: `steadyworker cancel …
host-0  4000  exports, refunds   1/8  running  up      up       5 s ago    22:13  1.4.0    paused: refunds
host-5  4004  exports, refunds   0/8  running  up      up       5 s ago    22:13  1.4.0    paused: refunds
host-6  4005  exports, refunds   0/8  running  up      up       5 s ago    22:13  1.4.0    paused: refunds
host-7  4006  exports, refunds   0/8  running  up      up       5 s ago    22:13  1.4.0    paused: refunds
host-8  4007  exports, refunds   0/8  running  up      up       5 s ago    22:13  1.4.0    paused: refunds
host-9  4008  exports, refunds   0/8  running  up      up       5 s ago    22:13  1.4.0    paused: refunds
"""


def sqlite(place: Path, clock: FakeClock, dead: set[str], _request: pytest.FixtureRequest) -> Iterator[Ledger]:
    with closing(SqliteLedger(place / "ledger.db", clock=clock, times=Times(), is_dead=dead.__contains__)) as ledger:
        yield ledger


def memory(_place: Path, clock: FakeClock, dead: set[str], _request: pytest.FixtureRequest) -> Iterator[Ledger]:
    yield MemoryLedger(clock, Times(), is_dead=dead.__contains__)


def postgres(place: Path, clock: FakeClock, dead: set[str], request: pytest.FixtureRequest) -> Iterator[Ledger]:
    with (
        closing(Schemas(request.getfixturevalue("database"), commit="off")) as schemas,
        closing(schemas.ledger(place, clock=clock, is_dead=dead.__contains__)) as ledger,
    ):
        yield ledger


@pytest.fixture(params=[memory, sqlite, postgres], ids=["memory", "sqlite", "postgres"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    clock, dead = FakeClock(), set[str]()
    opened: Iterator[Ledger] = request.param(tmp_path, clock, dead, request)
    fleet = Fleet(next(opened), clock, dead)
    fleet.go_wrong()
    yield fleet
    next(opened, None)


def never(_namespace: str, queue: str) -> Depth:
    raise AssertionError(f"the depth of {queue} is recorded")


def listed(fleet: Fleet) -> Listing:
    return Listing(fleet.ledger, Wanted(), fleet.clock.wall())


def screens(fleet: Fleet, width: int, *, verbose: bool = False) -> list[str]:
    """Return what `jobs`, `queues` and `workers` show on a terminal of this width."""
    now = fleet.clock.wall()
    waiting = queues_now(fleet.ledger, SHOP, never, clock=fleet.clock)
    processes = all_workers(fleet.ledger, fleet.clock.wall())
    tables = [
        job_lines.lines_of(list(listed(fleet).jobs()), width, now, verbose=verbose),
        queues.lines_of(waiting, width, now, verbose=verbose),
        workers.lines_of(processes, width, now, verbose=verbose),
    ]
    return ["".join(f"{line.plain}\n" for line in table) for table in tables]


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("width", "expected"), [(80, [JOBS_80, QUEUES_80, WORKERS_80]), (140, [JOBS_140, QUEUES_140, WORKERS_140])]
)
def test_three_screens_show_the_night(fleet: Fleet, width: int, expected: list[str]) -> None:
    assert screens(fleet, width) == expected


def test_each_trouble_is_named_with_its_remedy(fleet: Fleet) -> None:
    """Nobody needs the broker's page or a log search to find out what to do."""
    jobs, waiting, processes = screens(fleet, 80, verbose=True)
    for remedy in (
        "2 crashes; due in 9 min 30 s; killed by SIGSEGV; `steadyworker cancel exports crashing` ends it",
        "`steadyworker dead replay exports failed` runs it again",
        (
            "no progress for 41 min 30 s at 10 of 100, pages; before that, a step took under 0.1 s; `steadyworker cancel exports stuck` ends the run; "
            "the job becomes a dead letter, and `steadyworker dead replay exports stuck` runs it from the start"
        ),
        "its worker has no connection to the broker; it goes on",
        "taken over by another worker within 1 min 15 s",
    ):
        assert remedy in jobs
    assert "paused by ann@desk 5 s ago; the bank is closed; `steadyworker resume refunds` ends the pause" in waiting
    assert "`steadyworker dead list exports` lists the dead letters" in waiting
    assert "unknown: unacked, consumers: the broker's statistics are off" in waiting
    for remedy in (
        "died 15 s ago; another takes over its 1 job: read its log, and start it again",
        "crash loop: 2 predecessors died within an hour: read the log of the last one, host-3:300",
        "no connection to the broker of exports, refunds: its jobs go on; check broker and network",
        "its run of stuck may hang: `steadyworker cancel exports stuck` ends it",
    ):
        assert remedy in processes


def test_what_needs_a_person_is_a_value_too(fleet: Fleet) -> None:
    """For a page, and for `--json`."""
    needs = {job.row.id.key: job.need for job in listed(fleet).jobs()}
    assert needs == {
        "crashing": Need.CRASHING,
        "failed": Need.DEAD,
        "stuck": Need.STUCK,
        "lost": None,
        "well": None,
        "detached": None,
        "cancelled": None,
    }
    found = all_workers(fleet.ledger, fleet.clock.wall())
    troubles = {each.seen.host: each.troubles for each in found if each.troubles}
    assert troubles == {
        "host-4": (Trouble.GONE,),
        "host-3": (Trouble.CRASH_LOOP,),
        "host-2": (Trouble.DETACHED,),
        "host-1": (Trouble.STUCK,),
    }
    assert len(found) == 10
    assert len(all_workers(fleet.ledger, fleet.clock.wall(), every=True)) == 12


def test_consumers_that_no_worker_explains_are_counted(fleet: Fleet) -> None:
    """Nine worker processes live, one has just died, and the broker counts twelve consumers; without a number, nothing is claimed."""
    exports, refunds = queues_now(fleet.ledger, SHOP, never, clock=fleet.clock)
    assert (exports.unexplained, refunds.unexplained) == (2, None)
    (text,) = workers.foreign(fleet.ledger, fleet.clock.wall())
    assert text.startswith("exports: 2 consumers at the broker that no worker process of this ledger explains: ")
    assert list(workers.foreign(fleet.ledger, fleet.clock.wall(), "shop")) == [text]
    assert list(workers.foreign(fleet.ledger, fleet.clock.wall(), "shop/eu")) == []


def test_a_worker_process_that_has_just_stopped_or_died_explains_its_consumers(fleet: Fleet) -> None:
    """A depth that was measured before its end still counts its consumers; a depth of a minute later does not explain any more."""

    def unexplained() -> int | None:
        (exports,) = queues_now(fleet.ledger, SHOP[:1], never, clock=fleet.clock)
        return exports.unexplained

    del fleet.living["worker-9"]
    events = ("connected", "draining", "draining")
    fleet.ledger.facts.add_link_events(
        [LinkEvent("worker-9", "exports", fleet.clock.wall(), 1, event) for event in events]  # type: ignore[arg-type]
    )
    assert unexplained() == 2, "it lives, and drains"
    fleet.ledger.unregister("worker-9")
    assert unexplained() == 1, "it was two consumers, and one worker process"
    fleet.pass_time(90.0)
    fleet.ledger.facts.record_depth("shop", "exports", Depth(40, 1, None, 5, 2, 12, 1800.0))
    assert unexplained() == 4


def test_the_deaths_of_a_crash_loop_explain_one_consumer(fleet: Fleet) -> None:
    """Each death explained a consumer more, so that a loop hid the consumers of others."""
    (gone,) = [each for each in fleet.ledger.owners() if each.owner == "worker-4"]
    for death in ("a", "b"):
        fleet.ledger.register(f"worker-4{death}", gone.host, gone.queues)
        fleet.dead.add(f"worker-4{death}")
    (exports,) = queues_now(fleet.ledger, SHOP[:1], never, clock=fleet.clock)
    assert exports.unexplained == 2


def test_workers_of_a_namespace_are_those_that_consume_one_of_its_queues(fleet: Fleet) -> None:
    """The name of a namespace can have slashes."""
    fleet.ledger.bind("shop/eu", "exports", "shop/eu")
    fleet.ledger.register("worker-eu", "host-eu", [registered_name("shop/eu", "exports")])
    listed = all_workers(fleet.ledger, fleet.clock.wall())
    assert [each.seen.host for each in of_namespace(fleet.ledger, listed, "shop/eu")] == ["host-eu"]
    assert len(of_namespace(fleet.ledger, listed, "shop")) == len(listed) - 1


def test_no_screen_shows_a_secret(fleet: Fleet) -> None:
    for width in (80, 140, 1000):
        assert SECRET not in "".join(screens(fleet, width, verbose=True))
    now = fleet.clock.wall()
    records: list[Callable[[], object]] = [
        lambda: [job_lines.as_record(job, now) for job in listed(fleet).jobs()],
        lambda: [queues.as_record(each) for each in queues_now(fleet.ledger, SHOP, never, clock=fleet.clock)],
        lambda: [workers.as_record(each) for each in all_workers(fleet.ledger, fleet.clock.wall())],
    ]
    assert SECRET not in "".join(str(record()) for record in records)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (queues.AlertLimits(), []),
        (queues.AlertLimits(7200.0, 2, 40), []),
        (queues.AlertLimits(max_ready=39), [(True, "exports: ready is 40, above --max-ready 39")]),
        (
            queues.AlertLimits(max_age=1799.0),
            [(True, "exports: oldest age is 30 min 00 s, above --max-age 29 min 59 s")],
        ),
        (queues.AlertLimits(max_dead=0), [(True, "exports: dead is 2, above --max-dead 0")]),
    ],
)
def test_an_alert_names_each_exceeded_limit(limits: queues.AlertLimits, expected: list[tuple[bool, str]]) -> None:
    queue = QueueNow("shop", "exports", Depth(40, 1, None, 5, 2, 11, 1800.0))
    assert list(queues.alerts(queue, limits)) == expected


def test_an_unknown_number_neither_keeps_nor_exceeds_a_limit() -> None:
    queue = QueueNow("shop", "exports", Depth.unknown("no permission"))
    reason = "is unknown: no permission"
    assert list(queues.alerts(queue, queues.AlertLimits(1.0, 0, 0))) == [
        (False, f"exports: cannot check --max-ready, because ready {reason}"),
        (False, f"exports: cannot check --max-age, because oldest age {reason}"),
        (False, f"exports: cannot check --max-dead, because dead {reason}"),
    ]
    empty = QueueNow("shop", "exports", Depth(0, 0, None, 0, 0, 1, None))
    assert list(queues.alerts(empty, queues.AlertLimits(1.0, 0, 0))) == []


def test_a_quiet_worker_process_explains_its_consumer() -> None:
    quiet = OwnerSeen("me", "h", ("shop/exports (quiet)",), 1.0, dead=False)
    consumers = Depth(consumers=2)
    assert unexplained_consumers(consumers, "shop/exports", [quiet]) == 1
    assert unexplained_consumers(consumers, "shop/exports", [replace(quiet, queues=("shop/exports",) * 2)]) == 0
    assert unexplained_consumers(Depth(), "shop/exports", [quiet]) is None
