"""`steadyworker trace` as a command: its start, its stop, its exit codes, and what it writes."""

from __future__ import annotations

import fcntl
import json
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner

from steadyworker.cli import verbs
from tests.brokers.rabbitmq import Vhost
from tests.conftest import Eventually
from tests.diagnosis.amqp_client import OPENING, AmqpClient, publish
from tests.diagnosis.test_relay import try_to_read

BEAT = b"\x08\0\0\0\0\0\0\xce"
COMMAND = [sys.executable, "-m", "steadyworker", "trace"]


class Running:
    """The command, which listens on a free port."""

    def __init__(self, to: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "--listen", "127.0.0.1:0", "--to", to, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self.first = self._process.stdout.readline()
        self.lines: list[str] = []
        address = json.loads(self.first)["listen"] if self.first.startswith("{") else self.first.split(" ")[0]
        self.port = int(address.rpartition(":")[2])
        self._reader = threading.Thread(target=lambda: self.lines.extend(self._process.stdout or ()), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask for the end; returns the exit code."""
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self._process.wait(60)
        self._reader.join(60)
        assert self._process.stdout
        assert self._process.stderr
        self._process.stdout.close()
        with self._process.stderr as errors:
            self.errors = errors.read()
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            self.stop(signal.SIGKILL)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@contextmanager
def running(to: str, *options: str) -> Iterator[Running]:
    process = Running(to, *options)
    try:
        yield process
    finally:
        process.kill()


def broker_of(vhost: Vhost) -> tuple[str, Callable[[int], str]]:
    """The address of the broker, and the URL of the virtual host behind another port of this machine."""
    address = vhost.url.rpartition("@")[2].partition("/")[0]
    return address, lambda port: vhost.url.replace(address, f"127.0.0.1:{port}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_its_totals(vhost: Vhost, number: int, tmp_path: Path, eventually: Eventually) -> None:
    to, through = broker_of(vhost)
    file = tmp_path / "trace.jsonl"
    with running(to, "--jsonl", str(file)) as trace, AmqpClient(through(trace.port)):
        eventually(lambda: '"Channel.OpenOk"' in file.read_text())
        assert trace.stop(number) == 0
    assert trace.errors == ""
    assert trace.lines[-1] == "nothing was flagged\n"
    assert any("Connection.StartOk" in line for line in trace.lines)
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert events[0]["kind"] == "trace"
    assert events[0]["version"] == 1
    assert events[0]["to"] == to
    assert [event["kind"] for event in events if event["kind"] == "close"] == ["close"]
    assert events[-1]["kind"] == "end"
    assert events[-1]["connections"] == 1
    assert events[-1]["flags"] == {}


def test_it_ends_with_1_if_something_was_flagged(vhost: Vhost, eventually: Eventually) -> None:
    to, through = broker_of(vhost)
    with running(to, "--jsonl", "-") as trace:
        with AmqpClient(through(trace.port)) as client:
            client.send(OPENING)
            client.refused()
            eventually(lambda: any("amqp.second-header" in line for line in trace.lines))
        assert trace.stop() == 1
    assert trace.events[-1]["flags"] == {"amqp.second-header": 1}


def test_the_terminal_shows_a_flag_with_its_bytes_and_its_remedy(vhost: Vhost) -> None:
    to, through = broker_of(vhost)
    with running(to, "--flags-only") as trace:
        with AmqpClient(through(trace.port)) as client:
            client.send(OPENING)
            client.refused()
        assert trace.stop() == 1
    text = "".join(trace.lines)
    assert "! amqp.second-header: The client sent a second protocol header" in text
    assert "channel  19793  4D 51  MQ" in text
    assert "→ Give each connection one owner" in text
    assert "Connection.StartOk" not in text


@pytest.mark.long
def test_a_broker_that_is_away_is_an_event() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with running(f"127.0.0.1:{port}", "--jsonl", "-") as trace:
        with pytest.raises(ConnectionResetError):
            try_to_read(trace.port)
        assert trace.stop() == 0
    (close,) = [event for event in trace.events if event["kind"] == "close"]
    assert (close["how"], close["error"]) == ("refused", "Connection refused")


def test_its_relay_ends_with_it(eventually: Eventually) -> None:
    with running("127.0.0.1:1") as trace:
        with suppress(ConnectionResetError):  # the relay can be quicker than the return of this call
            socket.create_connection(("127.0.0.1", trace.port), timeout=30).close()
        trace.kill()
    eventually(lambda: refuses(trace.port))


def test_a_full_disk_at_standard_output_ends_no_connection(tmp_path: Path, eventually: Eventually) -> None:
    file = tmp_path / "trace.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as server, Path("/dev/full").open("wb") as full:
        to = f"127.0.0.1:{server.getsockname()[1]}"
        command = [*COMMAND, "--listen", "127.0.0.1:0", "--to", to, "--jsonl", str(file)]
        with subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True) as trace:
            try:
                eventually(lambda: file.exists() and file.read_bytes().count(b"\n") == 1)
                port = int(json.loads(file.read_text())["listen"].rpartition(":")[2])
                with socket.create_connection(("127.0.0.1", port), timeout=30) as client, server.accept()[0] as broker:
                    eventually(lambda: '"open"' in file.read_text())
                    client.sendall(OPENING)
                    assert broker.recv(100) == OPENING
                    trace.send_signal(signal.SIGTERM)
                    assert client.recv(100) == b""
                _, errors = trace.communicate(timeout=60)
            finally:
                trace.kill()
    assert trace.returncode == 74
    assert "Expected to write to standard output, got: No space left on device" in errors
    kinds = [json.loads(line)["kind"] for line in file.read_text().splitlines()]
    assert (kinds[:2], kinds[-1]) == (["trace", "open"], "end")


def test_a_second_signal_ends_it_though_nothing_reads_its_output(eventually: Eventually) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        to = f"127.0.0.1:{server.getsockname()[1]}"
        command = [*COMMAND, "--listen", "127.0.0.1:0", "--to", to, "--jsonl", "-"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as trace:
            try:
                assert trace.stdout
                port = int(json.loads(trace.stdout.readline())["listen"].rpartition(":")[2])
                with socket.create_connection(("127.0.0.1", port), timeout=30) as client, server.accept()[0] as broker:
                    drain = threading.Thread(target=read_all, args=(broker,), daemon=True)
                    drain.start()
                    client.sendall(OPENING + BEAT * 20_000)
                    eventually(lambda: is_full(trace.stdout))
                    trace.send_signal(signal.SIGTERM)
                    eventually(lambda: ends_at_a_signal(trace))
                    client.close()
                    drain.join(60)
            finally:
                trace.kill()
    assert trace.returncode == -signal.SIGTERM


def ends_at_a_signal(process: subprocess.Popen[bytes]) -> bool:
    process.send_signal(signal.SIGTERM)
    return process.poll() is not None


def is_full(pipe: IO[bytes] | None) -> bool:
    """Return whether a write of a page to the pipe would wait."""
    assert pipe
    waiting = int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)
    return waiting > fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - 4096


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except ConnectionRefusedError:
        return True
    return False


def test_it_names_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pamqp", None)
    done = CliRunner().invoke(verbs, ["trace", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1"])
    assert done.exit_code == 78
    assert "pip install 'steadyworker[trace]'" in done.stderr


LIVE = ["--listen", "127.0.0.1:0", "--to", "127.0.0.1:1"]
CAPTURED = ["--pcap", __file__]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--to", "127.0.0.1:5672"], 64, "Expected --listen and --to, or --pcap and --port"),
        (CAPTURED, 64, "Expected --port with --pcap"),
        ([*CAPTURED, "--port", "5672", "--to", "127.0.0.1:1"], 64, "no option of a live trace"),
        ([*CAPTURED, "--port", "5672", "--html", __file__], 64, "Expected different files"),
        (["--listen", "127.0.0.1", "--to", "127.0.0.1:5672"], 64, "Expected HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--to", "127.0.0.1:0"], 64, "Expected HOST:PORT"),
        ([*LIVE, "--to-ca", __file__], 64, "Expected --to-tls"),
        ([*LIVE, "--tls-cert", __file__], 64, "Expected --tls-cert and"),
        ([*LIVE, "--jsonl", "a", "--html", "./a"], 64, "Expected different files"),
        ([*LIVE, "--to", "no-such-host.invalid:5672"], 78, "Expected in --to a host whose name has an address"),
        ([*LIVE, "--tls-cert", __file__, "--tls-key", __file__], 78, "Expected a certificate chain in"),
        ([*LIVE, "--jsonl", "/no/such/folder"], 78, "/no/such/folder"),
        ([*LIVE, "--to-tls", "--to-ca", __file__], 78, "Expected certificates (PEM) in"),
    ],
)
def test_a_wrong_use_is_reported(options: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(verbs, ["trace", *options])
    assert done.exit_code == code, done.stderr
    assert said in " ".join(done.stderr.split())


def test_a_port_that_is_taken_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = CliRunner().invoke(verbs, ["trace", "--listen", address, "--to", "127.0.0.1:1"])
    assert done.exit_code == 78
    assert done.stderr == (
        f"error: Expected to listen on {address}, got: Address already in use: choose another --listen, or end the program that has it.\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_frames_take_less_than_200_mb(tmp_path: Path, eventually: Eventually) -> None:
    """With all outputs at once, on one connection."""
    messages, batches = 10_000, 34
    batch = publish("jobs", b"{}") * messages
    with socket.create_server(("127.0.0.1", 0)) as server:
        file = tmp_path / "trace.jsonl"
        options = ("--jsonl", str(file), "--html", str(tmp_path / "trace.html"))
        with (
            running(f"127.0.0.1:{server.getsockname()[1]}", *options) as trace,
            socket.create_connection(("127.0.0.1", trace.port), timeout=60) as client,
            server.accept()[0] as broker,
        ):
            drain = threading.Thread(target=read_all, args=(broker,), daemon=True)
            drain.start()
            client.sendall(OPENING)
            for done in range(batches):
                least = done * messages * 250  # bytes of JSON, so that no frame is left unread
                eventually(lambda least=least: file.stat().st_size > least)  # type: ignore[misc]
                client.sendall(batch)
            client.close()
            drain.join(60)
            broker.close()
            eventually(lambda: '"who":"broker"' in last_lines(file))
            peak = Path(f"/proc/{trace.pid}/status").read_text(encoding="ascii").partition("VmHWM:")[2].split()[0]
            assert trace.stop() == 1
    end = json.loads(last_lines(file).splitlines()[-1])
    print(
        f"{int(peak) / 1000:.0f} MB for {end['frames']['client']:,} frames, {file.stat().st_size / 1e6:.0f} MB of JSON"
    )
    assert end["frames"]["client"] == 3 * messages * batches + 1
    assert "unread" not in end
    assert int(peak) * 1024 < 200_000_000
    assert (tmp_path / "trace.html").stat().st_size < 300_000


def read_all(end: socket.socket) -> None:
    """Read until the other side has closed its direction; keep nothing."""
    while end.recv(1 << 20):
        pass


def last_lines(file: Path) -> str:
    with file.open("rb") as lines:
        lines.seek(max(0, file.stat().st_size - 2000))
        return lines.read().decode(errors="replace")
