"""
Hold the drills and print their tables: `make drills`, or `make drills ONLY=steadyworker`.

Everything is brought along: brokers as `tests.brokers` makes them, peers in an environment of their own.
On a broker the contestants come one after the other, so that none is slowed down by another.
One contestant's drills are held at the same time, and on two brokers, as they mostly sleep.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.brokers.install import MissingError, newest_rabbitmq
from tests.brokers.place import Places
from tests.brokers.postgres import Cluster
from tests.brokers.rabbitmq import Node
from tests.brokers.rabbitmq_place import RabbitmqPlaces
from tests.brokers.rocketmq import RocketMQNode
from tests.brokers.rocketmq_place import ROCKETMQ_KINDS, RocketmqPlaces
from tests.brokers.shared import MAKERS, STOMP
from tests.brokers.stomp_node import StompNode
from tests.brokers.stomp_place import StompPlaces
from tests.drills.contestants import CONTESTANTS, Contestant
from tests.drills.report import Results
from tests.drills.stories import DRILLS, Drill, hold
from tests.drills.verdicts import Verdict

NEWEST = "rabbitmq"
"""The newest RabbitMQ that can be had; it is looked for, and perhaps installed, when its turn comes."""

BROKERS = [NEWEST, *(name for name in MAKERS if name in STOMP or name.startswith("rabbitmq-")), *ROCKETMQ_KINDS]
USUAL = ("rabbitmq-3.10", NEWEST, "classic", "artemis", *ROCKETMQ_KINDS)


def main() -> int:
    """Print the tables; 1 when SteadyWorker failed a drill."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description="The drills D1 to D8, as tables.")
    names = {one.name.lower(): one for one in CONTESTANTS}
    parser.add_argument("--only", nargs="*", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--drills", nargs="*", metavar="D", help="only those whose names begin so, such as D1 'D2 reset'"
    )
    parser.add_argument(
        "--brokers",
        nargs="*",
        choices=BROKERS,
        metavar="NAME",
        default=USUAL,
        help=f"of {', '.join(BROKERS)}; by default {', '.join(USUAL)} ({NEWEST}: the newest one)",
    )
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the workers' logs there")
    parser.add_argument(
        "--record", action="store_true", help="write what was held into results.jsonl, and the page's tables"
    )
    asked = parser.parse_args()

    contestants = [names[name] for name in asked.only or names if names[name].machine in ("", platform.machine())]
    drills = [drill for drill in DRILLS if not asked.drills or drill.name.startswith(tuple(asked.drills))]
    console = Console(width=200)
    verdicts: dict[str, list[Verdict]] = {}
    versions = {one.name: one.version() for one in contestants}
    with ExitStack() as stack:
        folder = asked.logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drills-")))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        for held in [pool.submit(_held, name, contestants, drills, folder / name, console) for name in asked.brokers]:
            try:
                title, found = held.result()
            except MissingError as missing:
                console.print(f"left out: {missing}")
            else:
                verdicts[title] = found
    results = Results(datetime.now(UTC).date().isoformat(), versions, verdicts)
    for title in verdicts:
        console.print(results.table(title, [drill.name for drill in drills]))
    if asked.record:
        all_of_it = not asked.only and not asked.drills and set(asked.brokers) == set(USUAL)
        (results if all_of_it else results.amending(Results.recorded())).record()
    ours = [one for all_ in verdicts.values() for one in all_ if one.contestant == CONTESTANTS[0].name]
    return int(not all(one.passed for one in ours))


def _held(
    name: str, contestants: list[Contestant], drills: list[Drill], folder: Path, console: Console
) -> tuple[str, list[Verdict]]:
    """Return the broker's title, and the verdicts of these contestants on it; raises MissingError."""
    with _started(name) as (places, own, server):
        found: list[Verdict] = []
        for contestant in contestants:
            pairs = [(drill, contestant) for drill in drills]
            for one in hold(pairs, places, own, folder, server):
                found.append(one)
                console.print(f"{places.title}, {one.contestant}, {one.drill}: {', '.join(one.faults) or 'passed'}")
        return places.title, found


@contextmanager
def _started(name: str) -> Iterator[tuple[Places, Places | None, Cluster | None]]:
    """Start what the drills need: the broker, and for RabbitMQ one that a drill may change for everybody, and a ledger."""
    with ExitStack() as stack:
        broker = stack.enter_context(closing(Node(newest_rabbitmq()) if name == NEWEST else MAKERS[name]()))
        broker.start()
        if isinstance(broker, StompNode):
            yield StompPlaces(broker), None, None
            return
        if isinstance(broker, RocketMQNode):
            yield RocketmqPlaces(broker, ROCKETMQ_KINDS[name]), None, None
            return
        assert isinstance(broker, Node)
        own = stack.enter_context(closing(Node(broker.series)))
        server = stack.enter_context(closing(Cluster()))
        own.start()
        server.start()
        yield RabbitmqPlaces(broker), RabbitmqPlaces(own), server


if __name__ == "__main__":
    sys.exit(main())
