"""
The drills: the same stories for every contestant, each on a stage of its own.

| | |
|---|---|
| D1 | a 45 s job that holds the GIL, with a heartbeat of 10 s |
| D2 | the connection dies in the middle of a 40 s job, in five ways, and the same while a second worker is idle |
| D3 | the broker's delivery timeout is a third of the job's length |
| D4 | a run that ends after a reconnect has an acknowledgement to give: to no other message |
| D5 | SIGTERM in the middle of a job |
| D6 | a job that kills its own process, and a good one behind it |
| D7 | what an operator does to a fleet of four with a PostgreSQL ledger (`operator_story.py`); the peers have no ledger |
| D8 | twenty rolling deploys of ten worker processes with a PostgreSQL ledger (`deploy_story.py`) |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Semaphore
from typing import Any

from tests.brokers.place import Ability, Places
from tests.brokers.postgres import Cluster
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.drills.contestants import Contestant
from tests.drills.deploy_story import replaced
from tests.drills.operator_story import operated
from tests.drills.stage import WITHIN, DrillError, Stage
from tests.drills.verdicts import Verdict
from tests.faults.link import Link

DELIVERY_TIMEOUT = 13.0
"""Seconds; set on the whole node, so that D3 needs one of its own."""

WATCHED_FOR = 130.0
"""Seconds that a drill is watched when it does not come to an end: three lengths of its job."""

STARTING = 3
"""Drills that begin at the same time."""


@dataclass(frozen=True)
class Drill:
    """
    One story: `hold` returns what the verdict says beyond the counts of the job called `job`.

    It is not held on a broker without what it `needs`.
    """

    name: str
    title: str
    hold: Callable[[Stage], Mapping[str, Any]]
    needs: frozenset[Ability] = frozenset()

    @property
    def needs_a_node(self) -> bool:
        """Whether it changes the broker for everybody."""
        return self.name in ("D3", "D7")

    @property
    def needs_a_ledger(self) -> bool:
        """Whether it needs the server of a ledger: then it is not for the peers, which have none."""
        return self.name in ("D7", "D8")

    def held(self, stage: Stage) -> Verdict:
        """Hold it, and judge what was found."""
        beyond = dict(self.hold(stage))
        restarts = beyond.pop("restarts", 0) + sum(worker.restarts for worker in stage.workers)
        left = beyond.pop("found", None) or stage.take_what_is_left()
        dead = [message for message in left if message.given_up or message.queue == stage.dead_queue]
        return Verdict(
            drill=self.name,
            contestant=stage.contestant.name,
            starts=len(stage.notes("start", "job")),
            ends=len(stage.notes("end", "job")),
            together=stage.together.get("job", 0),
            left=len(left) - len(dead),
            dead=len(dead),
            restarts=restarts,
            named=any("SIGKILL" in str(value) for message in dead for value in message.headers.values()),
            **beyond,
        )


def job(do: str, seconds: float = 0, id: str = "job") -> dict[str, object]:
    """A message."""
    return {"id": id, "do": do, "seconds": seconds}


def held_gil(stage: Stage) -> Mapping[str, Any]:
    stage.begin(job("hold", 45))
    stage.expect("the broker to list its connections", stage.connections, every=1)
    before = stage.connections()
    stage.until(lambda: stage.over("job"), WATCHED_FOR)
    return {"connection_lost": not before <= stage.connections()}


def cut(stage: Stage, *, how: Callable[[Stage], object], idle: bool) -> Mapping[str, Any]:
    began = stage.begin(job("sleep", 40))
    if idle:
        stage.start_worker()
    stage.until(lambda: time.monotonic() > began + 5, 10)
    if stage.notes("end", "job"):
        raise DrillError("expected a second worker before the job ended: this machine is too busy")
    how(stage)
    stage.until(lambda: stage.over("job"), WATCHED_FOR)
    return {}


def on_each_link(fault: Callable[[Link], None]) -> Callable[[Stage], None]:
    """On the connections that are open, so that the next one is in good health."""

    def set_fault(stage: Stage) -> None:
        for link in stage.proxy.links:
            fault(link)

    return set_fault


CUTS: Mapping[str, tuple[str, Callable[[Stage], object]]] = {
    "closed": ("by the broker's operator", Stage.close_connections),
    "reset": ("by a reset", on_each_link(Link.cut)),
    "blackhole": ("silently, both ways", on_each_link(Link.stall)),
    "mute": ("silently, from the worker to the broker", on_each_link(partial(Link.drop, direction="up"))),
    "deaf": ("silently, from the broker to the worker", on_each_link(partial(Link.drop, direction="down"))),
}


def short_delivery_timeout(stage: Stage) -> Mapping[str, Any]:
    assert isinstance(stage.place, RabbitmqPlace)
    assert stage.place.broker
    stage.place.broker.set_delivery_timeout(DELIVERY_TIMEOUT)
    stage.begin(job("sleep", 40))
    stage.until(lambda: stage.over("job"), WATCHED_FOR)
    return {}


def late_acknowledgement(stage: Stage) -> Mapping[str, Any]:
    """
    The job's redelivery goes to another consumer, the worker gets another message, and then the job ends.

    Whoever acknowledges by number alone acknowledges that other message, which is lost when the worker process dies.
    Where a delivery outlives its connection, the worker is cut off until the broker gives the message to another consumer.
    """
    away = stage.place.redelivers_within
    began = stage.begin(job("sleep", 20 + away))
    with stage.place.consumer(stage.queue) as thief:

        def stolen() -> bool:
            if away:
                stage.cut_off()
            elif not thief.take(0):  # the broker may not have listed the one that matters
                stage.close_connections()
            return thief.take(0.5) is not None

        stage.expect("the redelivery at another consumer", stolen, within=WITHIN + away)
        stage.proxy.accept()
        stage.send(job("sleep", 30, "other"))
        stage.until(lambda: stage.notes("end", "job"), 60 + away)
        stage.until(lambda: time.monotonic() > began + 25 + away, 10 + away)
        stage.workers[0].kill()
        ended = bool(stage.notes("end", "other"))
    found = stage.take_what_is_left()
    return {"found": found, "taken": not ended and sum(b'"other"' in message.body for message in found) == 0}


def gets_sigterm(stage: Stage) -> Mapping[str, Any]:
    began = stage.begin(job("sleep", 25))
    stage.until(lambda: time.monotonic() > began + 3, 10)
    worker = stage.workers.pop()  # nobody starts it again
    worker.terminate()
    stage.until(lambda: worker.exit_code is not None, 60)
    code = worker.exit_code
    worker.kill()
    return {"exit_code": code}


def killer(stage: Stage) -> Mapping[str, Any]:
    died = stage.begin(job("kill"), job("mark", id="good"))
    stage.until(lambda: stage.notes("end", "good") and stage.is_quiet(), 70)
    good = stage.notes("start", "good")
    return {"behind": round(good[0].at - died, 2) if good else None}


DRILLS = (
    Drill("D1", "a job holds the GIL for 45 s, heartbeat 10 s", held_gil),
    *(
        Drill(
            f"D2 {name}{' beside' * idle}",
            f"the connection dies {title}{', beside an idle worker' * idle}",
            partial(cut, how=how, idle=idle),
        )
        for idle in (False, True)
        for name, (title, how) in CUTS.items()
    ),
    Drill(
        "D3",
        "the delivery timeout is a third of the job",
        short_delivery_timeout,
        frozenset({Ability.DELIVERY_TIMEOUT}),
    ),
    Drill("D4", "a late acknowledgement after a reconnect", late_acknowledgement),
    Drill("D5", "SIGTERM in the middle of a job", gets_sigterm),
    Drill("D6", "a job kills its process, a good job waits behind it", killer),
    Drill("D7", "an operator's mistakes under a fleet of four", operated, frozenset({Ability.POLICIES})),
    Drill("D8", "twenty deploys of ten worker processes", replaced, frozenset({Ability.POLICIES})),
)


def hold(
    pairs: Iterable[tuple[Drill, Contestant]],
    places: Places,
    own: Places | None,
    folder: Path,
    ledger_server: Cluster | None = None,
) -> Iterator[Verdict]:
    """
    Hold these drills at the same time, each on a stage of its own; the verdicts come in the order asked for.

    A drill or a contestant that needs what the broker does not have is left out.
    `own` is a broker for the drills that change it for everybody; without one they are left out.
    Those with a ledger are left out without its server; they come last and in turn: one restarts the server.
    """

    def held(drill: Drill, contestant: Contestant) -> Verdict:
        chosen = own if drill.needs_a_node else places
        assert chosen
        logs = folder / f"{contestant.name}-{drill.name}".replace(" ", "-")
        with closing(Stage(chosen, contestant, logs, gate=gate, ledger_server=ledger_server)) as stage:
            try:
                return drill.held(stage)
            except DrillError as error:
                return Verdict(drill=drill.name, contestant=contestant.name, unheld=str(error))

    gate = Semaphore(STARTING)
    possible = [
        (drill, contestant)
        for drill, contestant in pairs
        if drill.needs | contestant.needs <= places.abilities and (own or not drill.needs_a_node)
    ]
    together = [(drill, contestant) for drill, contestant in possible if not drill.needs_a_ledger]
    last = [(drill, one) for drill, one in possible if drill.needs_a_ledger and ledger_server and not one.peer]
    for batch in filter(None, (together, *([one] for one in last))):
        with ThreadPoolExecutor(len(batch)) as pool:
            yield from pool.map(held, *zip(*batch, strict=True))
