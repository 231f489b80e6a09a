"""
Hold the drills and print their table: `make drills`, or `make drills ONLY=steadyworker`.

Everything is brought along: brokers as `tests.brokers` makes them, peers in an environment of their own.
The contestants come one after the other, so that none is slowed down by another; one's drills are held at the same time,
on each version of RabbitMQ, as they mostly sleep.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.brokers.install import newest_rabbitmq
from tests.brokers.place import Places
from tests.brokers.postgres import Cluster
from tests.brokers.rabbitmq import Node
from tests.brokers.rabbitmq_place import RabbitmqPlaces
from tests.drills.contestants import CONTESTANTS, Contestant
from tests.drills.report import Results
from tests.drills.stories import DRILLS, hold
from tests.drills.verdicts import Verdict


def main() -> int:
    """Print the tables; 1 when SteadyWorker failed a drill."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description="The drills D1 to D7, as a table.")
    names = {one.name.lower(): one for one in CONTESTANTS}
    parser.add_argument("--only", nargs="*", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--drills", nargs="*", metavar="D", help="only those whose names begin so, such as D1 'D2 reset'"
    )
    parser.add_argument("--series", nargs="*", help="of RabbitMQ; 3.10 and the newest by default")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the workers' logs there")
    parser.add_argument(
        "--record", action="store_true", help="write what was held into results.jsonl, and the page's tables"
    )
    asked = parser.parse_args()

    contestants = [names[name] for name in asked.only or names]
    drills = [drill for drill in DRILLS if not asked.drills or drill.name.startswith(tuple(asked.drills))]
    console = Console(width=200)
    verdicts: dict[str, list[Verdict]] = {}
    versions = {one.name: one.version() for one in contestants}
    with ExitStack() as stack:
        folder = asked.logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drills-")))
        brokers: dict[str, tuple[Places, Places, Cluster | None]] = {}
        for series in asked.series or ["3.10", newest_rabbitmq()]:
            broker, own = (stack.enter_context(closing(Node(series))) for _ in range(2))
            broker.start()
            own.start()
            server = stack.enter_context(closing(Cluster())) if any(one.needs_a_ledger for one in drills) else None
            if server:
                server.start()
            places = RabbitmqPlaces(broker)
            brokers[places.title] = (places, RabbitmqPlaces(own), server)
        for contestant in contestants:

            def held(title: str, contestant: Contestant = contestant) -> list[Verdict]:
                pairs = [(drill, contestant) for drill in drills]
                places, own, server = brokers[title]
                return list(hold(pairs, places, own, folder / title.replace(" ", "-"), server))

            with ThreadPoolExecutor(len(brokers)) as pool:
                for title, found in zip(brokers, pool.map(held, brokers), strict=True):
                    verdicts.setdefault(title, []).extend(found)
                    for one in found:
                        console.print(f"{title}, {one.contestant}, {one.drill}: {', '.join(one.faults) or 'passed'}")
    results = Results(datetime.now(UTC).date().isoformat(), versions, verdicts)
    for title in verdicts:
        console.print(results.table(title, [drill.name for drill in drills]))
    if asked.record:
        (results.amending(Results.recorded()) if asked.only or asked.drills else results).record()
    ours = [one for all_ in verdicts.values() for one in all_ if one.contestant == CONTESTANTS[0].name]
    return int(not all(one.passed for one in ours))


if __name__ == "__main__":
    sys.exit(main())
