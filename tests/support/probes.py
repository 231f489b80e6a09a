"""What probes and a service manager see of a worker process."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

from tests.support.stage import eventually


def free_address() -> str:
    """An address that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def probe(address: str, path: str) -> tuple[int, str]:
    """Status and body of a probe; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def ready(address: str) -> None:
    """Wait until messages are accepted there."""
    eventually(lambda: probe(address, "readyz")[0] == 200, "ready", report=lambda: str(probe(address, "readyz")))


class Manager:
    """A service manager's end of NOTIFY_SOCKET."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self.received: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.setblocking(False)

    def read(self) -> list[str]:
        """Return all that was received until now."""
        while True:
            try:
                self.received.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return self.received

    def forget(self) -> None:
        self.read()
        self.received.clear()

    def close(self) -> None:
        self._socket.close()
