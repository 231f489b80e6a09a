"""
`steadyworker trace` beside a plain byte proxy: the same bytes through one and then the other, in each round.

    python -m tests.benchmarks.bench_trace [ROUNDS]

The trace reads all frames and writes them as JSON Lines; where it is slower than the traffic, it counts what it has not read.
The same is measured with a reader that drops all bytes (blind_trace.py), as the most that reading can be given.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from pamqp import commands, frame, heartbeat

from steadyworker.clock import SystemClock
from tests.diagnosis.amqp_client import LARGEST_BODY, OPENING, publish

ROUNDS = 5
CLOCK = SystemClock()
BEAT = frame.marshal(heartbeat.Heartbeat(), 0)
OPEN = OPENING + frame.marshal(commands.Channel.Open(), 1)
OPENED = frame.marshal(commands.Channel.OpenOk(), 1)
LARGE = publish("jobs", bytes(8 * LARGEST_BODY))
SMALL = publish("jobs", bytes(1000)) * 200
TRIPS = 10_000

Work = Callable[[socket.socket], None]


def sink(listener: socket.socket) -> None:
    """A broker for one connection: it opens the channel, sends every heartbeat back, and reads all else."""
    connection, _ = listener.accept()
    into = bytearray(1 << 18)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while size := connection.recv_into(into):
        if size == len(BEAT):
            connection.sendall(BEAT)
        elif into.startswith(OPENING):
            connection.sendall(OPENED)
        elif into.startswith(BEAT, size - len(BEAT)):
            connection.sendall(BEAT)
    connection.close()


def stream(message: bytes, count: int) -> Work:
    """Send messages, and return when the broker has answered behind the last one."""

    def work(client: socket.socket) -> None:
        for _ in range(count):
            client.sendall(message)
        client.sendall(BEAT)
        client.recv(len(BEAT), socket.MSG_WAITALL)

    return work


def trips(client: socket.socket) -> None:
    """Send and receive in turn."""
    for _ in range(TRIPS):
        client.sendall(BEAT)
        client.recv(len(BEAT), socket.MSG_WAITALL)


WORK: dict[str, tuple[Work, int]] = {
    "large messages": (stream(LARGE, 500), 500 * len(LARGE)),
    "messages of 1 kB": (stream(SMALL, 2_000), 2_000 * len(SMALL)),
    "round trips": (trips, 2 * TRIPS * len(BEAT)),
}


@dataclass(frozen=True)
class Proxy:
    """A proxy that runs: its port, and the process that passes the bytes."""

    port: int
    pid: int

    def cpu(self) -> float:
        """Seconds of processor time that passing the bytes took so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def plain(port: int) -> Iterator[Proxy]:
    """The plain proxy."""
    command = [sys.executable, "-m", "tests.benchmarks.plain_proxy", "127.0.0.1", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield Proxy(int(process.stdout.readline()), process.pid)


TRACE, BLIND = ("steadyworker", "trace"), ("tests.benchmarks.blind_trace", "trace")


@contextmanager
def trace(program: Sequence[str], ends: list[dict[str, object]], port: int) -> Iterator[Proxy]:
    """The trace, or the one that reads nothing; adds its totals to `ends`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.jsonl"
        command = [sys.executable, "-m", *program, "--listen", "127.0.0.1:0"]
        command += ["--to", f"127.0.0.1:{port}", "--jsonl", str(file), "--flags-only"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            own = int(process.stdout.readline().partition(" ")[0].rpartition(":")[2])
            yield Proxy(own, process.pid)
            process.terminate()
        with file.open("rb") as written:
            written.seek(-min(2000, file.stat().st_size), os.SEEK_END)
            ends.append(json.loads(written.read().splitlines()[-1]))


def measured(work: Work, how: Callable[[int], AbstractContextManager[Proxy]]) -> tuple[float, float]:
    """Seconds that this work takes through one of the proxies, and the processor time of that proxy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker = multiprocessing.get_context("fork").Process(target=sink, args=(listener,), daemon=True)
        broker.start()
        with how(listener.getsockname()[1]) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(OPEN)
            client.recv(len(OPENED), socket.MSG_WAITALL)
            before, began = proxy.cpu(), CLOCK.monotonic()
            work(client)
            took = CLOCK.monotonic() - began, proxy.cpu() - before
        broker.join()
    return took


def lines(rounds: int = ROUNDS) -> Iterator[tuple[str, str, str]]:
    """The table's lines: the speed through the trace, what part of the plain proxy's that is, and what was read."""
    for name, (work, size) in WORK.items():
        ends: list[dict[str, object]] = []
        ways = (plain, partial(trace, TRACE, ends), partial(trace, BLIND, []))
        found = [tuple(measured(work, how) for how in ways) for _ in range(rounds)]
        took = median(traced[0] for _, traced, _ in found)
        ratio = median(bare[0] / traced[0] for bare, traced, _ in found)
        most = median(bare[0] / blind[0] for bare, _, blind in found)
        cpu = sum(traced[1] for _, traced, _ in found) / max(0.01, sum(bare[1] for bare, _, _ in found))
        unread = median(float(str(end.get("unread", 0))) for end in ends) / size
        speed = f"{2 * TRIPS / took:,.0f} frames/s" if work is trips else f"{size / took / 1e6:,.0f} MB/s"
        yield (
            f"trace, {name}",
            f"{speed}, {ratio:.0%} of a plain proxy ({most:.0%} if nothing is read), with {cpu:.2f} of its processor time; {1 - unread:.0%} read",
            "≥ 75 %",
        )


if __name__ == "__main__":
    for line in lines(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS):
        print(*line, sep="  |  ", flush=True)
