"""The demo, as `make demo` runs it, with and without Java; it judges itself, and ends with 1 if anything is off."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from rich.table import Table

from steadyworker.backends.opening import open_ledger
from steadyworker.config import resolve as config
from steadyworker.exports import verify
from tests.brokers.fixtures import NEWEST, had
from tests.brokers.place import Place
from tests.brokers.rabbitmq import RabbitMQ, Vhost
from tests.brokers.rocketmq_place import RocketmqPlace
from tests.brokers.s3proxy import s3proxy_program
from tests.brokers.stomp_broker import Counts
from tests.brokers.stomp_node import StompNode
from tests.examples.conftest import EXAMPLES, Shell, payments
from tests.exports.s3.store import Store
from tests.support.stage import eventually


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_ends_as_it_has_to(archive: Path, tmp_path: Path, shell: Shell) -> None:
    said = shell(f"python {EXAMPLES}/demo.py", within=500)
    assert said.count("Every result is right") == 1
    assert said.count("middle: continues at row ") == 1
    assert said.count("Spark's JVM got SIGKILL") == said.count("Spark died") == 1
    assert said.count("biggest: a run starts") == said.count("biggest: done") == 1
    assert sorted(path.name for path in (tmp_path / "demo-output/exports").glob("*.csv")) == [
        "biggest.csv",
        "fails-twice.csv",
        "middle.csv",
        "tiny.csv",
    ]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rabbitmq_series", ["3.10", NEWEST], indirect=True)
def test_the_demo_ends_as_it_has_to_on_rabbitmq(
    archive: Path, tmp_path: Path, shell: Shell, rabbitmq: RabbitMQ, vhost: Vhost
) -> None:
    """The same jobs, killed at the same saved position; and nothing is left in any queue but the dead letters."""
    said = shell(f"python {EXAMPLES}/demo.py --broker {vhost.url}", within=500)
    assert said.count("Every result is right") == 1
    assert said.count("middle: continues at row ") == 1
    assert vhost.password not in said

    def left() -> dict[str, int]:
        queues = rabbitmq.management("GET", f"queues/{vhost.name}")
        return {queue["name"]: queue["messages"] for queue in queues if queue.get("messages")}

    eventually(lambda: left() == {"payment-exports.dead": 2}, "two dead letters", report=lambda: str(left()))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_ends_as_it_has_to_on_activemq(
    archive: Path, tmp_path: Path, shell: Shell, stomp_node: StompNode
) -> None:
    """Only the URL differs; the broker is ours alone, because STOMP has no virtual hosts."""
    stomp_node.remove_queues("payment-exports")
    said = shell(f"python {EXAMPLES}/demo.py --broker {stomp_node.url}", within=500)
    assert said.count("Every result is right") == 1
    assert said.count("middle: continues at row ") == 1
    assert stomp_node.password not in said

    def left() -> dict[str, Counts]:
        queues = {name: stomp_node.counts(name) for name in ("payment-exports", "payment-exports.dead")}
        return {name: counts for name, counts in queues.items() if counts != Counts()}

    eventually(
        lambda: left() == {"payment-exports.dead": Counts(waiting=2)}, "two dead letters", report=lambda: str(left())
    )
    assert stomp_node.dead("payment-exports") == 0, "the broker itself gave none up"
    stomp_node.remove_queues("payment-exports")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place_kind", ["rocketmq4", "rocketmq5"], indirect=True)
def test_the_demo_ends_as_it_has_to_on_rocketmq(archive: Path, tmp_path: Path, shell: Shell, place: Place) -> None:
    """By the driver for brokers on 4.9.7, and by that for proxies on 5.4.0; the broker is ours alone."""
    assert isinstance(place, RocketmqPlace)
    place.node.remove("payment-exports")
    said = shell(f"python {EXAMPLES}/demo.py --broker '{place.node.url}'", within=500)
    assert said.count("Every result is right") == 1
    assert said.count("middle: continues at row ") == 1
    eventually(lambda: place.dead_letters("payment-exports") == 2, "two dead letters")
    group = "payment-exports"
    eventually(lambda: place.node.waiting(group, group) == 0, "an empty queue")
    assert place.node.topics(f"%DLQ%{group}") == [], "the broker itself gave none up"
    place.node.remove("payment-exports")


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_demo_exports_from_a_web_page_into_a_bucket(archive: Path, tmp_path: Path, shell: Shell) -> None:
    """All that the demo does without a bucket, and then one more export, by Spark."""
    with had():
        s3proxy_program()
    said = shell(f"python {EXAMPLES}/demo.py --store s3", within=800)
    assert said.count("Every result is right") == 1
    assert said.count("Spark's JVM got SIGKILL") == 1
    assert said.count("the page shows: Your export is ready. The link to it works until") == 1
    assert re.search(r"ok +s3://demo/exports/grand-bazaar-[\d-]+\.csv: 2,000,000 rows", said)
    (file,) = (tmp_path / "demo-output/downloads").glob("*.csv")
    assert verify(file).rows == 2_000_000


@pytest.fixture
def demo_store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the demo's optional part."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module("demo_store")


class Lines:
    """The demo's screen, as a list."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str, style: str = "") -> None:
        self.said.append(text)

    chapter = say

    def table(self, table: Table) -> None:
        self.said += [str(cell) for column in table.columns for cell in column.cells]

    def event(self, line: object) -> None:
        """Show no line of the worker's log."""

    def progress(self, key: str, done: float, total: float | None) -> None:
        """Show no bar."""


def test_its_optional_part_uses_a_bucket_of_yours(demo_store: Any, store: Store, tmp_path: Path) -> None:
    """With few payments, so without Spark."""
    screen, state, place = Lines(), tmp_path / "state", f"s3://{store.bucket}/mine"
    state.mkdir()
    environ = {
        "STEADYWORKER_STATE_DIR": str(state),
        "STEADYWORKER_BROKER": f"sqlite:{state / 'broker.db'}",
        "PAYMENTS_SOURCE": payments(tmp_path / "payments.parquet", 300),
    }
    options = config.load({"ledger": f"sqlite:{state / 'ledger.db'}"}, environ, tmp_path)
    with closing(open_ledger(options, create=True)) as ledger, demo_store.Store(screen, place) as made:
        assert demo_store.accounting_export(screen, ledger, environ, made, tmp_path, "harbour-books") == []
        assert demo_store.accounting_export(screen, ledger, environ, made, tmp_path, "no-such-shop") == [
            f"no-such-shop-{datetime.now(UTC):%Y-%m-%d}: expected a job that is done, got no payments of 'no-such-shop'"
        ]
    name, manifest = store.names()
    assert manifest == f"{name}.manifest.json"
    assert re.fullmatch(r"mine/steadyworker-demo-[\dT-]+/harbour-books-[\d-]+\.csv", name)
    (file,) = (tmp_path / "downloads").glob("*.csv")
    assert file.read_bytes() == store.read(name)
    size, digest = file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()
    assert screen.said.count(f"{size:,} bytes, SHA-256 {digest[:12]}…") == 1
    assert "X-Amz" not in "".join(screen.said)


def test_its_optional_part_names_the_command_that_brings_a_missing_server(
    demo_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "print('s3proxy: Maven was not found: sudo apt-get install maven, or put mvn on PATH')"
    monkeypatch.setattr(demo_store, "SERVER", (sys.executable, "-c", program))
    with pytest.raises(
        SystemExit, match=r"Expected a local S3 server .* got none\. Maven .* sudo apt-get install maven"
    ):
        demo_store.Store(Lines(), "s3")


def test_a_store_of_another_kind_is_refused_before_the_demo_begins(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py", "--store", "minio"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.endswith("expected STORE=s3 or STORE=s3://bucket/folder, got STORE=minio\n")
    assert list(tmp_path.iterdir()) == []


WITHOUT_JAVA = f"""
import sys

sys.path.insert(0, "{EXAMPLES}")
import demo

demo.missing_java = lambda: "apt-get install openjdk-17-jre-headless"
sys.exit(demo.main())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_java_it_runs_all_but_spark_and_its_page_stays_up_until_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_JAVA]
    environ = {**os.environ, "DEMO_PAGE": "1"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        said = ""
        while "until Ctrl-C" not in said and (line := demo.stdout.readline()):
            said += line
        page = re.findall(r"http://\S+?/", said)[-1]
        with urlopen(page, timeout=30) as answered:
            shown = answered.read().decode()
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(30) == 0
    assert said.count("Every result is right") == 1
    assert said.count("left out: no Java") == 1
    assert "apt-get install openjdk-17-jre-headless" in said
    assert len(list((tmp_path / "demo-output/exports").glob("*.csv"))) == 3
    assert shown.count("kills-itself") >= 1
    with pytest.raises(URLError, match="Connection refused"):
        urlopen(page, timeout=30)
