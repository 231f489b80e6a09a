"""Spark Connect: a real server, killed, cut off, restarted, asked with a token, and left alone by a worker that died."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steadyworker.errors import ExportError
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.handle import Handle
from steadyworker.exports.spark.settings import SparkSettings
from tests.conftest import Eventually
from tests.exports.spark.clusters import TOKEN, ConnectServer, free_port
from tests.exports.spark.orphan import orphan
from tests.exports.spark.sparkkit import LiveServices, Made, export, session
from tests.exports.spark.test_spark_stuck import sleeping

# Slow: minutes in all, for a server that is killed has to be started again.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("spark servers")]


class Proxy:
    """Passes a port's bytes on, until it cuts all connections at once, or one goes silent."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.accepted = 0
        self._open: list[socket.socket] = []
        self._silent: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self.accepted += 1
                self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if source not in self._silent:
                    target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def silence_newest(self) -> None:
        """Lose all that the newest connection still carries, either way, and tell nobody; as a firewall does that forgets it."""
        self._silent.update(self._open[-2:])

    def cut(self) -> None:
        """Cut every connection; new ones are welcome."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()
        for one in self._open:
            one.close()


@pytest.mark.parametrize("lose", [Proxy.cut, Proxy.silence_newest], ids=["cut", "silent"])
def test_a_connection_that_is_lost_is_attached_again(
    connected: Made, connect_server: ConnectServer, tmp_path: Path, lose: Callable[[Proxy], None]
) -> None:
    """
    Within the client's retry policy: the same submission goes on, and nobody sees more than a pause.

    The silent one is only the job's own, so that pings are answered: gRPC asks for a sign of life after a minute (Spark 4.3's
    client).
    """
    proxy = Proxy(connect_server.port)
    service = connected(master=connect_server.url.replace(f":{connect_server.port}", f":{proxy.port}"))
    lost: list[int] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event["type"] == "progress" and services.kinds().count("started") == 1 and not lost:
            lost.append(proxy.accepted)
            lose(proxy)

    try:
        services = LiveServices(service, on_event=on_event)
        # Several times as long as the server waits before it first tells of its tasks.
        query = "SELECT sum(hash(id)) AS id FROM range(0, 600000000, 1, 200)"
        assert SparkExport(query, tables={}, order_by=("id",)).write(services, tmp_path / "out.csv").rows == 1
        assert services.events[-1]["submissions"] == 1
        assert proxy.accepted > lost[0]
    finally:
        service.stop(10)  # before the proxy: a client comes back at once
        proxy.close()


def test_a_server_that_hangs_is_found_by_its_silence_and_the_job_begun_again_when_it_is_back(
    connected: Made, connect_server: ConnectServer, payments: Path, tmp_path: Path
) -> None:
    """The job that it still has is ended before the second submission begins: one session, one operation at a time."""
    service = connected(hung_after=8)
    woken: list[threading.Thread] = []
    first = 0

    def wake() -> None:
        while service._hosts and service._hosts[0].process.pid == first:
            time.sleep(0.1)
        os.kill(connect_server.pid, signal.SIGCONT)

    def on_event(event: Mapping[str, Any]) -> None:
        nonlocal first
        if event["type"] == "started" and not woken:
            first = service._hosts[0].process.pid
            os.kill(connect_server.pid, signal.SIGSTOP)
            woken.append(threading.Thread(target=wake))
            woken[0].start()

    services = LiveServices(service, on_event=on_event)
    try:
        assert export(services, payments, tmp_path / "out.csv").rows == 60_000
    finally:
        os.kill(connect_server.pid, signal.SIGCONT)
    woken[0].join()
    assert services.events[-1]["submissions"] == 2


@pytest.fixture
def left_alone(connect_server: ConnectServer, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A worker process that exports for minutes, and its host."""
    with orphan(tmp_path, folder=tmp_path / "spark", master=connect_server.url) as (parent, host):
        yield parent, host
    for pid in session(host):
        os.kill(pid, signal.SIGKILL)
    if connect_server.running():  # a test has failed, and the next ones shall not
        connect_server.kill()
        connect_server.start()


def test_a_worker_that_dies_leaves_nothing_running_at_the_server(
    left_alone: tuple[subprocess.Popen[str], int], connect_server: ConnectServer, eventually: Eventually
) -> None:
    parent, host = left_alone
    eventually(connect_server.running, within=60)
    parent.kill()
    eventually(lambda: not session(host), within=60)
    eventually(lambda: not connect_server.running(), within=60)


STILL_THERE = """
import sys, uuid
from pyspark.sql.connect.client import DefaultChannelBuilder, SparkConnectClient
builder = DefaultChannelBuilder(sys.stdin.read())
builder.set("session_id", sys.argv[1])
builder.set("user_id", "steadyworker")
try:
    print(SparkConnectClient(builder).interrupt_all())
except Exception as error:
    print(error)
"""


def test_the_next_run_ends_what_a_dead_one_has_left_at_the_server_before_its_own_begins(
    left_alone: tuple[subprocess.Popen[str], int],
    connected: Made,
    connect_server: ConnectServer,
    payments: Path,
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    """The host is frozen before its worker dies, so that it ends nothing: as when the whole machine is gone."""
    parent, host = left_alone
    os.kill(host, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    eventually(connect_server.running, within=60)  # the operation runs on, and nobody waits for it
    stored = (tmp_path / "handle").read_bytes()
    left = stored.decode().split('"')[3]
    said: list[str] = []

    def ask(event: Mapping[str, Any]) -> None:
        if event["type"] == "started":
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", STILL_THERE, left],
                input=connect_server.url,
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            )
            said.append(done.stdout)

    services = LiveServices(connected(), fence=2, stored=stored, on_event=ask)
    assert export(services, payments, tmp_path / "out.csv").rows == 60_000
    assert len(said) == 1
    assert "SESSION_CLOSED" in said[0], "ended and released when the new one begins"
    assert left.encode() not in services.saved[-2], "and forgotten"
    eventually(lambda: not connect_server.running(), within=60)


def test_a_server_that_is_not_there_is_named_by_its_address(connected: Made, tmp_path: Path) -> None:
    service = connected(master=f"sc://localhost:{free_port()}/;token={TOKEN}", server_within=0.1)
    with pytest.raises(ExportError, match=r"unavailable.*sc://localhost:\d+, got no answer") as caught:
        SparkExport("SELECT 1 AS id", tables={}, order_by=("id",)).write(LiveServices(service), tmp_path / "x.csv")
    assert TOKEN not in str(caught.value)


def test_a_token_is_nowhere_to_be_read(
    connected: Made, connect_server: ConnectServer, payments: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in a process list, an environment, a file, an event, the ledger or a log; and a wrong one is told without it."""
    found: list[str] = []
    seen: list[int] = []

    def look(event: Mapping[str, Any]) -> None:
        for pid in session(service._hosts[0].process.pid):
            seen.append(pid)
            files = [Path(f"/proc/{pid}/{name}") for name in ("cmdline", "environ")]
            found.extend(str(path) for path in files if TOKEN.encode() in path.read_bytes())
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        found.extend(str(path) for path in files if TOKEN.encode() in path.read_bytes())
        if TOKEN in str(event):
            found.append(str(event))

    service = connected()
    services = LiveServices(service, on_event=look)
    export(services, payments, tmp_path / "out.csv")
    look({})
    assert len(services.saved) >= 2
    assert not any(TOKEN.encode() in value for value in services.saved)
    assert seen
    assert found == []
    assert TOKEN not in repr(SparkSettings(folder=tmp_path, master=connect_server.url))

    wrong = connected(master=connect_server.url.replace(TOKEN, TOKEN[::-1]))
    with pytest.raises(ExportError, match="unavailable") as caught:
        SparkExport("SELECT 1 AS id", tables={}, order_by=("id",)).write(LiveServices(wrong), tmp_path / "x.csv")
    assert TOKEN[::-1] not in str(caught.value)
    said = capfd.readouterr()
    assert TOKEN not in said.out + said.err
    assert TOKEN[::-1] not in said.out + said.err


def test_a_stuck_function_is_caught_and_a_slow_one_is_spared(
    connected: Made, connect_server: ConnectServer, tmp_path: Path, eventually: Eventually
) -> None:
    """
    The slow one sleeps 0.3 s for each of 64 rows, longer than the limit in all, beside the stuck one, in the same host.

    The stuck one sleeps for an hour in its last task: cancelled, begun again in a session of its own, granted more, given up;
    and the ledger has both names, for the next run.
    """
    service = connected(stuck_after=1.0, resubmissions=1)
    slow, stuck = LiveServices(service, uid="slow"), LiveServices(service, uid="stuck")

    def ask(query: str, services: LiveServices, to: Path) -> None:
        SparkExport(query, tables={}, order_by=("id",)).write(services, to)

    beside = threading.Thread(target=ask, args=(sleeping("300", "64"), slow, tmp_path / "slow.csv"))
    beside.start()
    began = time.monotonic()
    with pytest.raises(
        ExportError, match=r"\(stuck\): nothing has moved for .* 31 of 32 tasks complete and 1 in flight"
    ):
        ask(sleeping("if(id = 63, 3600000, 0)", "64"), stuck, tmp_path / "stuck.csv")
    took = time.monotonic() - began
    assert stuck.events[-1]["submissions"] == 2
    assert took > 50, "ten seconds of stillness, then forty"
    beside.join()
    assert slow.events[-1]["type"] == "done"
    assert slow.events[-1]["submissions"] == 1
    eventually(lambda: connect_server.running() == [], within=60)
    names = [name for _, name in msgspec.json.decode(stuck.stored or b"", type=Handle).spark]
    assert len(set(names)) == len(names) == 2
    assert not (tmp_path / "stuck.csv").exists()
