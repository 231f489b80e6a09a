"""
Runs payment exports from message to file, with crashes on purpose: `make demo`.

The demo queues six messages, and starts a worker process.
It kills the worker process in the middle of an export, and a second worker process continues the job.
Spark runs the biggest export, and the demo kills Spark's JVM in the middle of it.
At the end a table shows the result of each job, and every file is checked against its source.
All output is in `demo-output/`.
A page in the browser shows the jobs while they run; `make demo DEMO_PAGE=1` keeps it up at the end.
The broker is a file; `make demo BROKER=amqp://…`, `stomp://…`, `rocketmq+grpc://…` or `rocketmq://…` uses another one.
Preferably it has a virtual host of its own, or nothing else uses the broker.
`make demo STORE=s3` adds an export into a bucket, on a local server of S3's requests; `STORE=s3://bucket/folder` uses your bucket.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import demo_data
from demo_checks import rows_and_totals, wrong_with
from demo_jobs import THIRD
from demo_page import Page
from demo_screen import Screen, table
from demo_store import LOCAL, Store, accounting_export
from demo_stories import STORIES, Story
from demo_worker import Watched
from payment_exports import ExportRequest
from rich.table import Table

from steadyworker import Client, ConfigError
from steadyworker.backends.opening import open_ledger
from steadyworker.config import resolve as config
from steadyworker.exports.spark import SparkSettings
from steadyworker.ledger.base import State
from steadyworker.text.redaction import redact

OUT = Path("demo-output").absolute()
STATE, PAYMENTS, EXPORTS = OUT / "state", OUT / "payments", OUT / "exports"
EMBEDDED, LEDGER = f"sqlite:{STATE / 'broker.db'}", f"sqlite:{STATE / 'ledger.db'}"
ENVIRON = {"STEADYWORKER_STATE_DIR": str(STATE), "PAYMENTS_SOURCE": str(PAYMENTS), "PAYMENTS_OUT": str(EXPORTS)}
SPARK = SparkSettings(folder=STATE / "spark")
WITHIN = 300.0  # seconds; then the demo has failed


def main(broker: str = EMBEDDED, place: str = "") -> int:
    """Run the demo, with its optional part if there is a place for it, and return 0 if every result is right."""
    began = time.monotonic()
    environ = {**ENVIRON, "STEADYWORKER_BROKER": broker}
    clear()
    no_java = missing_java()
    stories = [story for story in STORIES if not (story.needs_java and no_java)]
    ledger = open_ledger(
        config.load({"ledger": LEDGER}, ENVIRON, OUT), create=True
    )  # it is read before the worker starts
    with (
        closing(ledger),
        Screen() as screen,
        ExitStack() as opened,
        Watched(screen, ledger, environ, OUT / "worker.log") as worker,
        Page(screen, LEDGER) as page,
    ):
        store = opened.enter_context(Store(screen, place)) if place else None
        screen.chapter(f"These jobs are on the page at {page.address}, while the demo runs")
        screen.chapter(f"Making {demo_data.PAYMENTS:,} payments")
        demo_data.make_payments(PAYMENTS)
        screen.say("Parquet, one folder per month; the biggest merchant has 2,000,000 payments, the smallest 37")

        where = "the embedded broker: a file, no server" if broker == EMBEDDED else redact(broker)
        screen.chapter(f"Queueing {len(stories)} jobs, on {where}")
        send(stories, broker)
        for story in stories:
            screen.say(f"{story.key}: {story.request!r}")

        screen.chapter("Starting a worker process; it is killed when `middle` has saved its position three times")
        worker.start()
        worker.until(lambda: len(worker.positions.get("middle", ())) >= THIRD, began + WITHIN)
        worker.end(signal.SIGKILL)
        saved = worker.positions["middle"][-1]
        screen.say(
            f"worker process {worker.pid} got SIGKILL; `middle` had saved its position at row {saved:,}", "bold red"
        )

        screen.chapter("Starting another worker process, with two slots")
        worker.start("--concurrency", "2")
        killed = False
        if not no_java:
            worker.until(lambda: "biggest" in worker.sorting or worker.settled(["biggest"]), began + WITHIN)
            if killed := not worker.settled(["biggest"]):
                os.killpg(worker.spark_hosts[-1], signal.SIGKILL)
                screen.say("Spark's JVM got SIGKILL, in the middle of the export of `biggest`", "bold red")
        worker.until(lambda: worker.settled(story.key for story in stories), began + WITHIN)
        code = worker.end(signal.SIGTERM)

        wrong = [fault for story in stories for fault in faults(story, worker)]
        if worker.first_rows.get("middle") != [0, saved]:
            wrong.append(f"middle was read from rows {worker.first_rows.get('middle')}, not from 0 and then {saved}")
        if killed and len(worker.spark_hosts) == 1:
            wrong.append("Spark was killed, and did not start again")
        if code:
            wrong.append(f"the worker process got SIGTERM, and ended with exit code {code} instead of 0")
        screen.table(what_became_of_them(worker, saved, no_java))
        screen.table(what_celery_does())
        if store is not None:
            screen.chapter("An accounting export: from a web page into a bucket, and a link on the page")
            merchant = demo_data.MIDDLE if no_java else demo_data.BIGGEST
            wrong += accounting_export(screen, ledger, environ, store, OUT, merchant)
        seconds = time.monotonic() - began
        screen.chapter(f"Every result is right, after {seconds:.0f} s." if not wrong else "These results are wrong:")
        for fault in wrong:
            screen.say(fault, "bold red")
        look_further(screen, page, no_java)
    return 1 if wrong else 0


def look_further(screen: Screen, page: Page, no_java: str) -> None:
    """Print what shows more; with DEMO_PAGE, keep the page up."""
    screen.say(f"The files are in {OUT.name}/exports, each with its manifest beside it.  To look further:")
    screen.say(f"  export STEADYWORKER_STATE_DIR={OUT.name}/state PATH=$PWD/.venv/bin:$PATH")
    screen.say("  steadyworker jobs")
    screen.say("  steadyworker dead show payment-exports kills-itself")
    screen.say(f"  steadyworker verify {OUT.name}/exports/*.csv")
    screen.say("  steadyworker dashboard")
    if no_java:
        screen.say(f"The export of the biggest merchant was left out.  {no_java}", "bold yellow")
    if os.environ.get("DEMO_PAGE"):
        page.keep()
    else:
        screen.say(f"These jobs were on the page at {page.address}; `make demo DEMO_PAGE=1` keeps it up.")


def clear() -> None:
    """Remove the output of an earlier demo."""
    OUT.mkdir(exist_ok=True)
    for path in (PAYMENTS, EXPORTS, *STATE.glob("*.db*")):
        shutil.rmtree(path, ignore_errors=True)
        with suppress(FileNotFoundError, IsADirectoryError):
            path.unlink()
    (OUT / "worker.log").unlink(missing_ok=True)
    STATE.mkdir(exist_ok=True)


def missing_java() -> str:
    """Return what Spark needs and how to install it, or "" if nothing is missing."""
    try:
        SPARK.java(os.environ)
    except ConfigError as error:
        return str(error)
    return ""


def send(stories: list[Story], broker: str) -> None:
    """
    Queue the jobs of these stories.

    The target is a queue's name and not a Worker, so that the client does not check the payloads.
    """
    with Client(broker, ledger=LEDGER) as client:
        for story in stories:
            client.send("payment-exports", story.request, key=story.key)


def faults(story: Story, worker: Watched) -> list[str]:
    """Return what is wrong with the result of this story."""
    row = worker.row(story.key)
    wrong = []
    if row is None or row.state is not story.end or not row.reason.startswith(story.reason):
        wrong.append(f"expected {story.end}, got {row.state if row else 'nothing'} ({row.reason if row else ''})")
    if worker.runs[story.key] != story.runs:
        wrong.append(f"expected {story.runs} runs, got {worker.runs[story.key]}")
    if story.end is State.DONE and isinstance(story.request, ExportRequest):
        wrong += wrong_with(EXPORTS / f"{story.key}.csv", PAYMENTS, story.request.merchant)
    elif (EXPORTS / f"{story.key}.csv").exists():
        wrong.append("the job is dead, but a file was exported")
    return [f"{story.key}: {fault}" for fault in wrong]


def what_became_of_them(worker: Watched, saved: int, no_java: str) -> Table:
    """
    Return a table of each job: how often it ran and why, and its result.

    The numbers are from the manifests, which `faults` has compared with the source.
    """
    rows = []
    for story in STORIES:
        row = worker.row(story.key)
        file = EXPORTS / f"{story.key}.csv"
        if story.needs_java and no_java:
            rows.append((story.key, "–", "left out: no Java", "", ""))
        elif file.exists():
            rows.append(
                (story.key, f"{worker.runs[story.key]} ×", story.why.format(saved), file.name, rows_and_totals(file))
            )
        else:
            rows.append((story.key, f"{worker.runs[story.key]} ×", story.why, "dead letter", row.reason if row else ""))
    return table("The result of each job", ("job", "ran", "why", "result", "checked against the source"), rows)


def what_celery_does() -> Table:
    """Return a table of what Celery does with each job, as seen in drills with RabbitMQ."""
    return table(
        "What Celery 5.7 does with the same jobs", ("job", ""), [(story.key, story.celery) for story in STORIES]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run payment exports, with crashes on purpose.")
    parser.add_argument(
        "--broker",
        default=EMBEDDED,
        help="use this broker instead of a file: amqp://user:password@host/vhost, stomp://user:password@host, "
        "rocketmq+grpc://proxy:8081?namesrv=name-server:9876 or rocketmq://name-server:9876",
    )
    parser.add_argument(
        "--store",
        default="",
        help=f"also export into a bucket, {LOCAL} for one on this machine, or s3://bucket/folder for yours",
    )
    given = parser.parse_args()
    if given.store not in {"", LOCAL} and not given.store.startswith("s3://"):
        parser.error(f"expected STORE={LOCAL} or STORE=s3://bucket/folder, got STORE={given.store}")
    sys.exit(main(given.broker, given.store))
