"""Several processes on one broker file, killed and frozen: nothing is lost, and no process waits longer than documented."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from steadyworker.adapter import Delivered, QueueSpec, Settings, Signal
from steadyworker.delivery import KEY, OutgoingMessage, Redelivered, Settle, Target
from steadyworker.errors import LettersHeld
from steadyworker_sqlite import SqliteAdapter

pytestmark = pytest.mark.processes

SPEC = QueueSpec("exports", "exports.dead")
Start = Callable[..., "Client"]
Eventually = Callable[..., Any]
CLIENT = Path(__file__).with_name("sqlite_client.py")


class Client:
    """A process, and the lines that it has written."""

    def __init__(self, verb: str, path: Path, silence: float = 30.0, number: int = 1) -> None:
        command = [sys.executable, str(CLIENT), verb, str(path), str(silence), str(number)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def wrote(self, line: str) -> bool:
        return f"{line}\n" in self.lines

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.db"


@pytest.fixture
def client(path: Path) -> Iterator[Start]:
    clients: list[Client] = []

    def start(verb: str, silence: float = 30.0, number: int = 1) -> Client:
        clients.append(Client(verb, path, silence, number))
        return clients[-1]

    yield start
    for each in clients:
        each.end()


@pytest.fixture
def adapter(path: Path) -> Iterator[SqliteAdapter]:
    adapter = SqliteAdapter(path, SPEC, Settings(), silence=1.5)
    yield adapter
    adapter.stop(5)


def work(key: str, to: Target = Target.WORK) -> OutgoingMessage:
    return OutgoingMessage(to, b"{}", {KEY: key})


def test_what_a_killed_process_held_comes_within_a_second(
    adapter: SqliteAdapter, client: Start, eventually: Eventually
) -> None:
    adapter.publish(work("k-1"))
    holder = client("hold")
    eventually(lambda: holder.wrote("delivered k-1"))
    signals: list[Signal] = []
    adapter.prefetch(1)
    adapter.start(signals.append)
    eventually(lambda: adapter.consumers() == 2)
    holder.signal(signal.SIGKILL)
    killed = time.monotonic()
    delivered = eventually(lambda: [s for s in signals if isinstance(s, Delivered)])
    assert time.monotonic() - killed < 1.0
    assert delivered[0].delivery.headers[KEY] == "k-1"
    assert delivered[0].delivery.redelivered is Redelivered.YES
    assert adapter.consumers() == 1


def test_a_frozen_process_loses_its_messages_after_the_silence_and_finds_out(
    adapter: SqliteAdapter, client: Start, eventually: Eventually
) -> None:
    adapter.publish(work("k-1"))
    holder = client("hold", silence=1.5)
    eventually(lambda: holder.wrote("delivered k-1"))
    signals: list[Signal] = []
    adapter.prefetch(1)
    adapter.start(signals.append)
    eventually(lambda: adapter.consumers() == 2)
    holder.signal(signal.SIGSTOP)
    frozen = time.monotonic()
    try:
        delivered = eventually(lambda: [s for s in signals if isinstance(s, Delivered)])
        assert time.monotonic() - frozen > 1.0
        assert delivered[0].delivery.headers[KEY] == "k-1"
    finally:
        holder.signal(signal.SIGCONT)
    eventually(lambda: holder.wrote("connected 2"))
    assert holder.wrote("lost 1")
    assert holder.wrote("StaleDelivery k-1")
    adapter.settle(delivered[0].delivery, Settle.ACK)
    assert [s for s in signals if isinstance(s, Delivered)] == delivered


def test_dead_letters_that_a_killed_reader_held_are_there_again(
    adapter: SqliteAdapter, client: Start, eventually: Eventually
) -> None:
    for key in ("k-1", "k-2"):
        adapter.publish(work(key, Target.DEAD))
    reader = client("read")
    eventually(lambda: reader.wrote("end"))
    with (
        pytest.raises(LettersHeld, match="got one: wait until the other `steadyworker dead` command"),
        adapter.dead_letters(),
    ):
        pass
    reader.signal(signal.SIGKILL)
    reader.process.wait()
    with adapter.dead_letters() as dead:
        assert [letter.headers[KEY] for letter in dead] == ["k-1", "k-2"]


def test_a_thousand_messages_four_processes_and_random_kills(
    adapter: SqliteAdapter, client: Start, eventually: Eventually
) -> None:
    """Every message is handled and acknowledged; no acknowledged one comes again."""
    seed = 20
    dice = random.Random(seed)
    keys = [f"k-{n}" for n in range(1000)]
    everyone = [client("ack", number=dice.randint(1, 5)) for _ in range(4)]
    living = list(everyone)
    for n, key in enumerate(keys, start=1):
        adapter.publish(work(key))
        if n % 100 == 0:
            victim = living.pop(dice.randrange(4))
            victim.signal(signal.SIGKILL)
            living.append(client("ack", number=dice.randint(1, 5)))
            everyone.append(living[-1])

    def left() -> int:
        return adapter._publisher.ask(lambda store: store.last("exports"))  # the only one who can look inside

    eventually(lambda: left() == 0, within=60)
    for each in everyone:
        each.end()
    lines = [line.split() for each in everyone for line in each.lines]
    handled = Counter(words[1] for words in lines if words[0] == "delivered")
    acked = Counter(words[1] for words in lines if words[0] == "acked")
    assert set(handled) == set(keys), f"seed {seed}"
    assert max(acked.values()) == 1
    # A kill may fall between the commit of an ack and the line that reports it: one for each slot of each of 10 kills.
    assert len(keys) - len(acked) <= 50


def test_what_the_disk_had_no_room_for_is_not_confirmed(path: Path, client: Start, eventually: Eventually) -> None:
    """Every confirmed message is there, and nothing else."""
    filler = client("fill", number=400_000)
    refused = eventually(lambda: [line for line in filler.lines if line.startswith("refused")])
    assert f"refused Expected a usable broker file at {path}" in refused[0]
    confirmed = [line.split()[1] for line in filler.lines if line.startswith("confirmed")]
    assert 10 < len(confirmed) < 200
    assert present(path) == confirmed


def present(path: Path) -> list[str]:
    adapter = SqliteAdapter(path, QueueSpec("other", "exports"), Settings())
    try:
        with adapter.dead_letters() as everything:
            return [letter.headers[KEY] for letter in everything]
    finally:
        adapter.stop(5)


def test_many_processes_may_make_the_file_at_once(path: Path, client: Start, eventually: Eventually) -> None:
    clients = [client("hold") for _ in range(6)]
    eventually(lambda: all(each.wrote("connected 1") for each in clients), within=20)
    adapter = SqliteAdapter(path, SPEC, Settings())
    eventually(lambda: adapter.consumers() == 6)
    adapter.stop(5)
    assert not any("gone" in line for each in clients for line in each.lines)
