"""The server and the command: slow clients, many connections, and a start that is quick and safe."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.types import ASGIApp

from steadyworker.clock import SystemClock, Times
from steadyworker.dashboard.serving import TimedProtocol, listen
from steadyworker.errors import ConfigError
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from tests.conftest import Eventually
from tests.dashboard.kit import served

COMMAND = [sys.executable, "-m", "steadyworker", "dashboard"]
TOKEN = "a-token-of-many-characters"


def connected(url: str) -> socket.socket:
    where = urlsplit(url)
    assert where.hostname is not None
    return socket.create_connection((where.hostname, where.port or 0), timeout=30)


def status_of(url: str, path: str = "/", **headers: str) -> int:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)) as connection:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedProtocol, "within", 0.2)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"\x16\x03\x01"]
)
def test_a_request_that_does_not_arrive_in_time_ends_its_connection(
    page: ASGIApp, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(page) as url, connected(url) as slow:
        slow.sendall(sent)
        received = b""
        try:
            while data := slow.recv(1000):
                received += data
        except ConnectionResetError:
            pass
        assert b"200 OK" not in received
        monkeypatch.setattr(TimedProtocol, "within", 30.0)
        assert status_of(url) == 200


@pytest.mark.usefixtures("quick")
def test_a_connection_that_waits_after_a_response_ends(page: ASGIApp) -> None:
    with served(page) as url, connected(url) as idle:
        idle.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        try:
            while data := idle.recv(1000):
                received += data
        except ConnectionResetError:
            pass
        assert received.startswith(b"HTTP/1.1 404")


def test_a_long_head_is_refused(page: ASGIApp) -> None:
    with served(page) as url, connected(url) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x: " + b"a" * (64 << 10))
        assert client.recv(100).startswith(b"HTTP/1.1 400")


def test_more_connections_than_the_limit_are_refused_and_the_others_go_on(
    page: ASGIApp, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(TimedProtocol, "most", 20)
    with served(page) as url, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connected(url))

        def refused() -> bool:
            with connected(url) as more:
                try:
                    return more.recv(1) == b""
                except ConnectionResetError:
                    return True

        assert refused()
        stack.close()
        eventually(lambda: answers(url))


def answers(url: str) -> bool:
    try:
        return status_of(url) == 200
    except (OSError, http.client.HTTPException):
        return False


def test_an_address_in_use_is_refused_with_a_remedy() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match="choose another --port or --host"):
        listen("127.0.0.1", taken.getsockname()[1])


# --- The command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=SystemClock(), times=Times())) as made:
        made.bind("shop", "exports", "shop")
    return f"sqlite:{tmp_path}/ledger.db"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


class Command:
    """A running `steadyworker dashboard`, and the address that it printed."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen([*COMMAND, "--port", "0", *options], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.url = re.findall(r"http://\S+", self.line)[0]

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def pss(self) -> int:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/smaps_rollup").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) << 10

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def started(ledger: str) -> Iterator[list[Command]]:
    commands: list[Command] = []
    yield commands
    for each in commands:
        each.process.kill()
        each.process.communicate()


@pytest.mark.processes
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -15), (signal.SIGINT, 130)])
def test_the_command_serves_until_a_signal(
    ledger: str, started: list[Command], number: signal.Signals, code: int
) -> None:
    command = Command("--ledger", ledger)
    started.append(command)
    assert command.line == f"The page is at {command.url} (Ctrl-C ends it).\n"
    assert status_of(command.url) == 200
    assert status_of(command.url, host="evil.example") == 421
    for path in ("queues", "workers", "actions", "nothing"):
        status_of(command.url, f"/{path}")
    assert command.cpu_seconds() < 1.0
    assert command.pss() < 60 << 20
    assert command.stop(number) == code


@pytest.mark.processes
def test_with_actions_the_command_prints_a_token_that_each_request_needs(ledger: str, started: list[Command]) -> None:
    """A proxy on this machine that adds no header could let everyone act."""
    command = Command("--ledger", ledger, "--allow-actions")
    started.append(command)
    assert command.process.stdout is not None
    told = command.process.stdout.readline()
    (token,) = re.findall(r"^Log in with your name and this password, because the page has actions: (\S{24})$", told)
    assert status_of(command.url) == 401
    assert status_of(command.url, authorization=f"Bearer {token}") == 200
    assert command.stop() == -15


@pytest.mark.processes
def test_with_actions_and_a_token_file_the_command_prints_no_token(
    ledger: str, token_file: Path, started: list[Command]
) -> None:
    command = Command("--ledger", ledger, "--allow-actions", "--token-file", str(token_file))
    started.append(command)
    assert status_of(command.url, authorization=f"Bearer {TOKEN}") == 200
    command.process.send_signal(signal.SIGTERM)
    assert command.process.communicate(timeout=30)[0] == ""


@pytest.mark.processes
def test_a_page_below_a_path_of_a_proxy(ledger: str, started: list[Command]) -> None:
    command = Command("--ledger", ledger, "--root-path", "/ops/")
    started.append(command)
    assert command.url.endswith("/ops/")
    with closing(http.client.HTTPConnection(urlsplit(command.url).netloc, timeout=30)) as connection:
        connection.request("GET", "/queues")
        assert b'href="/ops/workers"' in connection.getresponse().read()


@pytest.mark.processes
def test_on_every_address_the_command_needs_a_token(ledger: str, token_file: Path, started: list[Command]) -> None:
    command = Command("--ledger", ledger, "--host", "0.0.0.0", "--token-file", str(token_file))
    started.append(command)
    url = command.url.replace("0.0.0.0", "127.0.0.1")
    assert status_of(url) == 401
    assert status_of(url, authorization=f"Bearer {TOKEN}") == 200


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        (
            ["--host", "0.0.0.0"],
            78,
            "Expected --token-file, or --user-header with --trusted-peer, to listen on 0.0.0.0",
        ),
        (["--host", "192.0.2.1"], 78, "Expected --token-file"),
        (["--host", "0.0.0.0", "--allow-actions"], 78, "Expected --token-file"),
        (["--user-header", "X-User"], 78, "Expected --user-header and --trusted-peer together"),
        (["--token-file", "/nothing"], 64, "does not exist"),
        (["--port", "70000"], 64, "is not in the range"),
        (["--ledger", "mysql:x"], 78, "Expected a ledger URL"),
    ],
)
def test_an_unsafe_start_is_refused(ledger: str, options: list[str], code: int, expected: str) -> None:
    done = subprocess.run(
        [*COMMAND, "--ledger", ledger, "--port", "0", *options], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code
    assert expected in " ".join(done.stderr.split())


@pytest.mark.processes
def test_without_its_libraries_the_command_names_the_extra(ledger: str) -> None:
    code = "import sys; sys.modules['starlette'] = None; from steadyworker.cli import main; sys.argv[1:] = ['dashboard']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 78
    assert "pip install 'steadyworker[dashboard]'" in done.stderr


@pytest.mark.processes
def test_the_help_imports_no_library_of_the_page() -> None:
    code = "import sys; from steadyworker.dashboard.cli import DASHBOARD; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"starlette", "jinja2", "uvicorn", "asyncio"} & set(done.stdout.split()) == set()


@pytest.mark.processes
def test_the_page_knows_no_runner(ledger: str, started: list[Command]) -> None:
    code = "import sys, steadyworker.dashboard.application, steadyworker.dashboard.serving; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = {name.split(".")[1] for name in done.stdout.split() if name.startswith("steadyworker.")}
    assert rooms & {"runner", "service", "exports", "diagnosis", "cli"} == set()
