"""rocketmq-client-python 0.5.0rc2 and we understand each other on 4.9.7, and a worker takes a queue over from its consumers."""

from __future__ import annotations

import json
import platform
import re
import secrets
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.clock import SystemClock, Times
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Target
from steadyworker.ledger.base import State
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from tests.adapters.direct.kit import Worker
from tests.brokers.fixtures import had
from tests.brokers.install import MissingError
from tests.brokers.rocketmq import RocketMQ4
from tests.drills.contestants import ROCKETMQ, peers_python
from tests.support.stage import Processes, eventually

PROGRAM = Path(__file__).parent / "peers/rocketmq_client_python.py"
PAGE = (Path(__file__).parents[2] / "adapters/steadyworker_rocketmq/README.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.rocketmq, pytest.mark.xdist_group("rocketmq"), pytest.mark.timeout(300)]


class Library:
    """The library's programs, in an environment and a folder of their own, at one node."""

    def __init__(self, node: RocketMQ4, folder: Path, stack: ExitStack) -> None:
        if platform.machine() != ROCKETMQ.machine:
            raise MissingError(f"rocketmq-client-python has a library for {ROCKETMQ.machine} only.")
        self._python = peers_python(ROCKETMQ.requirements)
        self._node, self._stack = node, stack
        self.folder = folder
        self._servers = str(node.name_servers[0])

    def _command(self, what: str, *arguments: str) -> list[str]:
        return [str(self._python), str(PROGRAM), what, self._servers, *arguments]

    def send(self, topic: str, *messages: Mapping[str, Any]) -> list[str]:
        """Send these, and return their ids."""
        command = self._command("send", topic)
        lines = "".join(f"{json.dumps(each)}\n" for each in messages)
        done = subprocess.run(
            command, check=False, input=lines, capture_output=True, text=True, cwd=self.folder, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def consumer(self, group: str, topic: str, mode: str = "concurrent") -> subprocess.Popen[bytes]:
        """Start a consumer, and wait until the broker counts it."""
        before = self.members(group)
        command = self._command("take", group, topic, mode)
        started = self._stack.enter_context(subprocess.Popen(command, cwd=self.folder))
        self._stack.callback(started.kill)
        eventually(lambda: self.members(group) == before + 1, "a member of the group")
        return started

    def members(self, group: str) -> int:
        return len(self._node.witness.members(group, self._node.broker_address))

    def notes(self, what: str) -> list[dict[str, Any]]:
        """What the consumers have noted."""
        path = self.folder / "notes"
        text = path.read_text() if path.exists() else ""
        lines = [
            json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()
        ]  # the last one may be half written
        return [line for line in lines if line["what"] == what]

    def noted(self, what: str, name: str, count: int = 1) -> None:
        """Wait until the job of this name is noted so often."""
        eventually(
            lambda: self.names(what)[name] >= count, f"{what} of {name}", report=lambda: f"{self.notes('start')}"
        )

    def names(self, what: str) -> Counter[str]:
        return Counter(json.loads(line["body"])["name"] for line in self.notes(what))


@pytest.fixture
def topic(rocketmq4: RocketMQ4) -> Iterator[str]:
    name = f"peer-{secrets.token_hex(4)}"
    rocketmq4.make_topic(name, 4)
    yield name
    rocketmq4.heal()
    rocketmq4.remove(name)


@pytest.fixture
def library(rocketmq4: RocketMQ4, tmp_path: Path) -> Iterator[Library]:
    with ExitStack() as stack, had():
        yield Library(rocketmq4, tmp_path, stack)


def job(name: str, **more: object) -> dict[str, Any]:
    return {"body": json.dumps({"name": name, **more}), "properties": {KEY: name}}


def test_a_worker_reads_what_its_producer_sends(rocketmq4: RocketMQ4, library: Library, topic: str) -> None:
    """A long body is compressed; a message without our header has its own id as its key."""
    long = json.dumps({"name": "ä" * 10_000})
    plain = {"body": '{"name": "ä"}', "tags": "paid", "keys": "k-1 k-2", "properties": {"own": "ä ö"}}
    ids = library.send(topic, plain, {"body": long, "properties": {KEY: "named"}})
    with Worker(rocketmq4.remoting_url, prefetch=2, queue=topic) as worker:
        found = {delivery.message_id: delivery for delivery in (worker.delivery(1), worker.delivery(2))}
        for delivery in found.values():
            worker.adapter.settle(delivery, Settle.ACK)
    first, second = (found[id_] for id_ in ids)
    assert (first.body, first.headers) == ('{"name": "ä"}'.encode(), {"TAGS": "paid", "KEYS": "k-1 k-2", "own": "ä ö"})
    assert (second.body, second.headers) == (long.encode(), {KEY: "named"})


def test_its_consumer_reads_what_we_send(rocketmq4: RocketMQ4, library: Library, topic: str) -> None:
    adapter = DirectAdapter(rocketmq4.remoting_url, QueueSpec(topic, f"{topic}-dead"), Settings())
    library.consumer("exporters", topic)
    headers = {KEY: "march ä", "TAGS": "paid", "KEYS": "k-1 k-2", "own": "ö"}
    body = json.dumps({"name": "ä" * 5_000}).encode()
    adapter.publish(OutgoingMessage(Target.WORK, body, headers, first=True))
    adapter.stop(5.0)
    (line,) = eventually(lambda: library.notes("end"), "the job")
    found = {name: line[name] for name in ("body", "tags", "keys", "own", KEY)}
    assert found == {"body": body.decode(), "tags": "paid", "keys": "k-1 k-2", "own": "ö", KEY: "march ä"}
    assert library.names("start").total() == 1


@pytest.mark.slow
def test_a_worker_takes_a_queue_over_from_its_running_consumers(
    rocketmq4: RocketMQ4, library: Library, topic: str
) -> None:
    """By the steps of the page; each job ends once, on one side or the other, and the one that was given back is a dead letter."""
    group = f"{topic}-exporters"
    section = PAGE.split("\n## From rocketmq-client-python\n", 1)[1].split("\n## ", 1)[0]
    (command,) = re.findall(r"^ *(mqadmin .*)$", section, re.MULTILINE)
    (option,) = re.findall(r"--broker '([^']*)'", section)
    url = option.replace("localhost", str(rocketmq4.name_servers[0])).replace("exporters", group)
    consumers = [library.consumer(group, topic) for _ in range(2)]
    library.send(topic, job("quick"), job("fails", fails=True))
    library.noted("end", "quick")
    library.noted("start", "fails")

    command = command.replace("localhost:9876", str(rocketmq4.name_servers[0])).replace("exporters", group)
    assert "success" in rocketmq4.mqadmin(command)
    eventually(lambda: rocketmq4.count(f"%DLQ%{group}") == 1, "the second try, 10 s later, is given back")
    eventually(lambda: rocketmq4.waiting(f"%RETRY%{group}", group) == 0, "no difference of the retry topic")
    library.send(topic, *(job(f"long-{number}", gate="gate") for number in range(2)))
    library.send(topic, *(job(f"next-{number}", gate="gate") for number in range(8)))
    eventually(lambda: library.names("start").total() >= 3 + 2, "a job at each consumer")
    for consumer in consumers:
        consumer.terminate()
    library.folder.joinpath("gate").touch()
    assert [consumer.wait(60) for consumer in consumers] == [0, 0]
    done = {*library.names("end")}
    library.send(topic, job("after"))

    ledger = SqliteLedger(library.folder / "ledger.db", clock=SystemClock(), times=Times())
    processes = Processes(library.folder, ledger, broker_url=url, ledger_url=ledger.url)
    worker = processes.worker(
        "tests.fleet.jobs:Light", env={"FLEET_QUEUE": topic}, ledger_reach="host", concurrency=4
    ).started()
    every = {"quick", "after", *(f"long-{n}" for n in range(2)), *(f"next-{n}" for n in range(8))}
    for name in every - done:
        processes.reaches(topic, State.DONE, name)
    assert library.names("end") | Counter(processes.lines("ends")) == Counter(every)
    assert not done & {*processes.lines("ends")}
    assert rocketmq4.waiting(topic, group) == 0

    listed = processes.command("dead", "replay", topic, "--all")
    assert listed.wait(60) == 0, listed.log.read_text()
    processes.reaches(topic, State.DONE, "fails")
    worker.terminate()
    worker.ended(0)
    assert library.names("start")["fails"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "starts"), [("concurrent", 2), ("orderly", 1)])
def test_a_killed_consumer_keeps_a_message_in_concurrent_mode_and_loses_it_in_orderly_mode(
    rocketmq4: RocketMQ4, library: Library, topic: str, mode: str, starts: int
) -> None:
    """As on the page: the place moves when the broker has replied that there is no next message, after 15 s and up to 5 s more."""
    group = f"{topic}-exporters"
    consumer = library.consumer(group, topic, mode)
    library.send(topic, job("long", gate="never"))
    library.noted("start", "long")
    started = SystemClock().monotonic()
    moved = 0 if mode == "orderly" else 1
    eventually(
        lambda: SystemClock().monotonic() > started + 25 and rocketmq4.waiting(topic, group) == moved, "the place"
    )
    consumer.kill()
    consumer.wait()
    eventually(lambda: library.members(group) == 0, "no member", 150)
    library.consumer(group, topic, mode)
    library.send(topic, *(job(f"next-{number}") for number in range(8)))
    eventually(lambda: library.names("end").total() == 8 or library.names("start")["long"] == 2, "the next messages")
    assert library.names("start")["long"] == starts
