"""We pass every drill, with and without adoption, and say what the peers did: on each broker that is wanted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.place import Ability, Message, Place, Places
from tests.brokers.postgres import Cluster
from tests.brokers.rabbitmq import Node, RabbitMQ
from tests.brokers.rabbitmq_place import RabbitmqPlace, RabbitmqPlaces
from tests.brokers.rocketmq_place import DirectPlace, GrpcPlace
from tests.brokers.stomp_place import StompPlace
from tests.drills.contestants import PIKA, STEADYWORKER, STOMP_PY
from tests.drills.operator_story import Operator
from tests.drills.report import PAGE, ROWS, Results, cell
from tests.drills.stage import Stage
from tests.drills.stories import DRILLS, Drill, hold, job
from tests.drills.verdicts import STARTS_OF_A_KILLER, Verdict

WITHOUT_ADOPTION = replace(
    STEADYWORKER,
    name="without adoption",
    worker=("tests.support.main", "tests.drills.ours:Drill"),
    environ={"STAGE": '{"adoption": false}'},
)
IMPATIENT = replace(STEADYWORKER, name="impatient", worker=("tests.drills.impatient", "tests.drills.ours:Drill"))
"""Asks for a delivery timeout that its jobs outlive, where a consumer has a timeout of its own."""

SOON_OVER = replace(STEADYWORKER, environ={"STEADYWORKER_STOP_WITHIN": "14"})
"""Cancelling begins 13 s before the end: a second after SIGTERM."""

ABILITIES = {
    "RabbitMQ": RabbitmqPlace.abilities,
    "ActiveMQ Classic": StompPlace.abilities,
    "Artemis": StompPlace.abilities,
    "RocketMQ": DirectPlace.abilities,
    "RocketMQ proxy": GrpcPlace.abilities,
}
"""By the brokers of the record."""

SETTLED = Verdict(drill="", contestant="", starts=1, ends=1, together=1)


@pytest.fixture
def own_places(places: Places) -> Iterator[RabbitmqPlaces | None]:
    """
    A second broker of this version, for the drill that changes it for everybody.

    None for a broker that is not ours, and for one that has no such drill.
    """
    if not isinstance(places, RabbitmqPlaces) or not places.rabbitmq.series:
        yield None
        return
    with closing(Node(places.rabbitmq.series)) as node:
        node.start()
        yield RabbitmqPlaces(node)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_we_pass_every_drill(places: Places, own_places: RabbitmqPlaces | None, tmp_path: Path) -> None:
    """All at once, as they mostly sleep; the ways to lose a connection once more with adoption switched off."""
    pairs = [(drill, STEADYWORKER) for drill in DRILLS if not drill.needs_a_ledger]
    pairs += [(drill, WITHOUT_ADOPTION) for drill in DRILLS if drill.name.startswith("D2")]
    outlived = STEADYWORKER
    if isinstance(places, RabbitmqPlaces) and places.rabbitmq.version >= (4, 3):
        outlived = IMPATIENT
        pairs += [(drill, IMPATIENT) for drill in DRILLS if drill.name == "D3"]
    verdicts = list(hold(pairs, places, own_places, tmp_path / "drills"))
    assert [verdict for verdict in verdicts if not is_right(verdict)] == []
    missing = {drill.name for drill, _ in pairs} - {verdict.drill for verdict in verdicts}
    assert missing == {
        drill.name
        for drill, _ in pairs
        if not drill.needs <= places.abilities or (drill.needs_a_node and not own_places)
    }
    if own_places:
        log = (tmp_path / "drills" / f"{outlived.name}-D3" / "worker-1.log").read_text()
        assert re.search(r'"event":"delivery_lost".*delivery timeout.*consumer.timeout', log), (
            "what happened, and what to set"
        )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("place_kind", ["4.x"], indirect=True)
def test_a_cut_and_a_stalled_connection_cost_our_job_nothing(places: Places, tmp_path: Path) -> None:
    """Two drills of the slow test above, for `make test`; both sleep most of the time."""
    pairs = [(drill, STEADYWORKER) for drill in DRILLS if drill.name in ("D2 reset", "D2 blackhole")]
    verdicts = list(hold(pairs, places, None, tmp_path / "drills"))
    assert [verdict.drill for verdict in verdicts] == ["D2 reset", "D2 blackhole"]
    assert [verdict for verdict in verdicts if not is_right(verdict)] == []


def is_right(verdict: Verdict) -> bool:
    """The rules for everybody, and the exact numbers that are ours."""
    match verdict.drill:
        case "D4":  # what the other consumer has taken, and what was in work when the worker process was killed
            return verdict.passed and (verdict.starts, verdict.ends, verdict.left, verdict.dead) == (1, 1, 2, 0)
        case "D6":
            counts = (verdict.starts, verdict.ends, verdict.left, verdict.dead)
            return verdict.passed and counts == (STARTS_OF_A_KILLER, 0, 0, 1)
        case _:
            code = 0 if verdict.drill == "D5" else None
            return verdict == replace(SETTLED, drill=verdict.drill, contestant=verdict.contestant, exit_code=code)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_act_of_an_operator_loses_a_job_or_starts_one_without_a_cause(
    rabbitmq_node: Node, postgres_cluster: Cluster, tmp_path: Path
) -> None:
    """And each is named by `check`, or by the log, or needs nothing to be done."""
    pairs = [(drill, STEADYWORKER) for drill in DRILLS if drill.name == "D7"]
    node = RabbitmqPlaces(rabbitmq_node)
    (verdict,) = hold(pairs, node, node, tmp_path / "drills", postgres_cluster)
    assert_clean(verdict, tmp_path / "drills" / "SteadyWorker-D7")


@pytest.mark.timeout(200)
def test_what_an_operator_does_to_queues_costs_a_small_fleet_no_job(
    rabbitmq: RabbitMQ, database: str, tmp_path: Path
) -> None:
    """Two acts of the story; a purge takes minutes, `tests/fleet` has a renamed cluster, and `tests/ledger` a server that dies."""

    def queues_only(stage: Stage) -> Mapping[str, Any]:
        operator = Operator(stage, database, fleet=2)
        return operator.work(operator.sets_a_policy_for_all_queues, operator.moves_dead_letters)

    with closing(Stage(RabbitmqPlaces(rabbitmq), STEADYWORKER, tmp_path / "stage")) as stage:
        assert_clean(Drill("D7", "", queues_only).held(stage), stage.folder)


def assert_clean(verdict: Verdict, folder: Path) -> None:
    """The exact numbers of D7; fails with what the operator saw."""
    log = folder / "operator.log"
    expected = Verdict(drill="D7", contestant=STEADYWORKER.name, jobs=verdict.jobs, exit_code=0)
    assert verdict == expected, log.read_text()[-20_000:] if log.exists() else ""
    assert verdict.passed


def test_a_job_that_cannot_finish_in_time_hands_back_with_its_checkpoint(places: Places, tmp_path: Path) -> None:
    with closing(Stage(places, SOON_OVER, tmp_path / "stage")) as stage:
        stage.begin(job("count", 5))
        stage.expect("some steps", lambda: stage.notes("step-5", "job"))
        first = stage.workers.pop()
        first.terminate()
        stage.expect("its end", lambda: first.exit_code is not None)
        assert first.exit_code == 0
        assert not stage.notes("end", "job")
        stage.start_worker()
        stage.expect("the job's end", lambda: stage.notes("end", "job"))
        steps = Counter(step for step in range(50) for _ in stage.notes(f"step-{step}", "job"))
        assert len(stage.notes("start", "job")) == 2
        assert steps == dict.fromkeys(range(50), 1)
        stage.expect("an empty queue", stage.is_quiet)
        assert stage.take_what_is_left() == []


# --- The table --------------------------------------------------------------------------------------------------------


def test_the_page_has_the_recorded_results() -> None:
    assert Results.recorded().markdown() in PAGE.read_text(encoding="utf-8")


def test_the_record_has_every_drill_and_we_passed_them() -> None:
    results = Results.recorded()
    for broker, verdicts in results.verdicts.items():
        abilities = ABILITIES[broker.rpartition(" ")[0]]
        ours = [verdict for verdict in verdicts if verdict.contestant == STEADYWORKER.name]
        assert [verdict.drill for verdict in ours] == [drill.name for drill in DRILLS if drill.needs <= abilities]
        assert [verdict for verdict in ours if not verdict.passed] == []


def test_each_row_sums_up_some_drills_and_each_drill_is_in_one_row() -> None:
    rows = {drill.name: [row for row in ROWS.values() if re.fullmatch(row, drill.name)] for drill in DRILLS}
    assert [name for name, found in rows.items() if len(found) != 1] == []
    assert {row for (row,) in rows.values()} == {*ROWS.values()}


class Plain:
    """A broker that has no ability, and no place that a test may open."""

    title, abilities = "Plain 1.0", frozenset[Ability]()

    def open(self) -> Place:
        raise AssertionError("expected no drill on a broker that has not what it needs")


def test_what_a_broker_has_not_is_left_out_and_has_a_dash_in_its_table(tmp_path: Path) -> None:
    plain = Plain()
    needy = [(drill, STEADYWORKER) for drill in DRILLS if drill.needs]
    assert [drill.name for drill, _ in needy] == ["D3", "D7", "D8"]
    peers = [(drill, PIKA) for drill in DRILLS]
    assert list(hold(needy + peers, plain, plain, tmp_path)) == []
    passed = replace(SETTLED, drill="D1", contestant=STEADYWORKER.name)
    results = Results("2026-11-22", {STEADYWORKER.name: "0.1.0"}, {plain.title: [passed]})
    assert [verdict for _, verdict in results.rows(plain.title)] == ["passed", *["–"] * (len(ROWS) - 1)]
    assert results.rows(plain.title, ["D1", "D3"]) == [
        ["a job holds the GIL for 45 s", "passed"],
        ["the delivery timeout is a third of the job", "–"],
    ]


class Ended:
    """A stage on which a job that kills its process has had its runs, and these messages are left."""

    contestant, workers, together, dead_queue = STOMP_PY, (), {"job": 1}, ""

    def __init__(self, *left: Message) -> None:
        self._left = [*left]

    def notes(self, what: str, _id: str) -> list[str]:
        return ["start"] * 10 if what == "start" else []

    def take_what_is_left(self) -> list[Message]:
        return self._left


def test_a_message_that_the_broker_gave_up_is_a_dead_letter_and_not_still_in_the_queue() -> None:
    """Whoever's it was: Artemis moves a message to its own queue after ten deliveries."""

    def judged(left: Message) -> Verdict:
        stage: Any = Ended(left)
        return Drill("D6", "", lambda _: {"behind": 12.0}).held(stage)

    waits, given_up = Message("work", b""), Message("letters", b"", given_up=True)
    assert (judged(waits).left, judged(waits).dead) == (1, 0)
    assert (judged(given_up).left, judged(given_up).dead) == (0, 1)
    assert judged(given_up).faults[-1] == "a dead letter without the cause"


def test_a_cell_has_the_worst() -> None:
    passed, failed = replace(SETTLED, drill="D2 reset"), replace(SETTLED, drill="D2 closed", starts=3, together=2)
    assert cell([passed]) == "passed"
    assert cell([failed]) == "3 starts, 2 at once"
    assert cell([passed, failed]) == "1 of 2 (3 starts, 2 at once)"
    assert cell([passed, passed]) == "2 of 2"
    assert cell([]) == "–"


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        ({}, ()),
        ({"jobs": 0}, ("no jobs",)),
        ({"lost": 1}, ("1 of 9 jobs lost",)),
        ({"causeless": 2}, ("2 starts without a cause",)),
        ({"left": 1, "dead": 1}, ("never acknowledged", "a dead letter")),
        ({"restarts": 1, "exit_code": None}, ("worker died once", "did not stop")),
        ({"exit_code": 143}, ("exit code 143",)),
        ({"unnamed": "the policy"}, ("not named: the policy",)),
    ],
)
def test_whatever_an_operator_costs_is_a_fault(found: dict[str, Any], faults: tuple[str, ...]) -> None:
    clean = Verdict(drill="D7", contestant="", jobs=9, exit_code=0)
    assert replace(clean, **found).faults == faults
