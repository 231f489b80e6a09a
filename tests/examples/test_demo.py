"""The demo, as `make demo` runs it, with and without Java; it judges itself, and ends with 1 if anything is off."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.brokers.fixtures import NEWEST
from tests.brokers.place import Place
from tests.brokers.rabbitmq import RabbitMQ, Vhost
from tests.brokers.rocketmq_place import RocketmqPlace
from tests.brokers.stomp_broker import Counts
from tests.brokers.stomp_node import StompNode
from tests.examples.conftest import EXAMPLES, Shell
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
