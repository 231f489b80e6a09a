"""A real Spark Connect server, and a real standalone master with its worker, out of the pyspark wheel, on loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyspark
import pytest

from steadyworker.exports.spark.java import find_java
from tests.exports.spark.sparkkit import session

_HOME = Path(pyspark.__path__[0])
_START_WITHIN = 180.0
TOKEN = "canary-XhZ3qv0Wn8"  # what the Connect server asks for; local plaintext is allowed to carry it
_SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def apart(folder: Path) -> list[str]:
    """Return the begin of a command whose process has an empty folder of its own there; nothing without the right to mount."""
    begin = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(folder)]
    if shutil.which("unshare") and not subprocess.run([*begin, "true"], capture_output=True, check=False).returncode:
        return begin
    return []


class Daemon:
    """One of Spark's processes in a session of its own; `start` it again after it was killed."""

    def __init__(self, folder: Path, command: list[str], port: int, home: Path = _HOME, **environ: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port, self._command = folder, port, command
        self._environ = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK", "PYSPARK"))}
        self._environ |= {
            "JAVA_HOME": str(find_java(os.environ).home),
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(folder),
            "SPARK_LOCAL_DIRS": str(folder),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _SMALL,
            **environ,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the JVM, and of its session: the scripts that start it become it."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; returns when its port answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                cwd=self.folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_WITHIN
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                log_text = (self.folder / "log").read_text(errors="replace")
                raise RuntimeError(f"{self._command[1]} did not start: {log_text[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL it and whatever it started in its session."""
        if self._process is not None:
            for pid in session(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class ConnectServer(Daemon):
    """A Spark Connect server with two cores, which asks for a token."""

    def __init__(self, folder: Path, home: Path = _HOME) -> None:
        port, self._web = free_port(), free_port()
        settings = {
            "spark.master": "local[2]",
            "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -Djava.io.tmpdir={folder}",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "true",
            "spark.ui.port": str(self._web),
            "spark.ui.liveUpdate.period": "0",
            "spark.log.level": "WARN",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
        command = [
            str(home / "bin" / "spark-submit"),
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
        ]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        environ = {
            "SPARK_DAEMON_MEMORY": "768m",
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        super().__init__(folder, command, port, home, **environ)

    @property
    def url(self) -> str:
        return f"sc://localhost:{self.port}/;token={TOKEN}"

    def books(self, what: str) -> list[dict[str, Any]]:
        """What it says of its `jobs` or its `sql` executions, the newest first."""
        pages = f"http://127.0.0.1:{self._web}/api/v1/applications"
        with urllib.request.urlopen(pages, timeout=30) as answer:
            app = json.load(answer)[0]["id"]
        with urllib.request.urlopen(f"{pages}/{app}/{what}", timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return sorted(found, key=lambda entry: entry["jobId" if what == "jobs" else "id"], reverse=True)

    def running(self) -> list[int]:
        """The numbers of the jobs that run."""
        return [job["jobId"] for job in self.books("jobs") if job["status"] == "RUNNING"]


@contextmanager
def cluster_apart(folder: Path, home: Path = _HOME, *, workers: int = 1) -> Iterator[Standalone]:
    """A cluster that runs, without keys of a store, each worker in a mount namespace of its own; skips without the right to mount."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        made = Standalone(folder, home, workers=workers)
    if made.elsewhere is None:
        pytest.skip("needs the right to mount")
    made.start()
    try:
        yield made
    finally:
        made.kill()


class Standalone:
    """
    A master and its workers, each with two cores.

    Attributes:
        elsewhere: A folder that neither this process nor two workers share; None without the right to mount.
    """

    def __init__(self, folder: Path, home: Path = _HOME, *, workers: int = 1) -> None:
        port, self._web = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{port}"
        launch = str(home / "bin" / "spark-class")
        hidden = folder / "elsewhere"
        hidden.mkdir(parents=True)
        alone = apart(hidden)
        self.elsewhere = hidden if alone else None
        here = ["--host", "127.0.0.1"]
        self.master = Daemon(
            folder / "master",
            [
                launch,
                "org.apache.spark.deploy.master.Master",
                *here,
                "--port",
                str(port),
                "--webui-port",
                str(self._web),
            ],
            self._web,
            home,
        )
        self.workers = []
        for number in range(workers):
            web, own = free_port(), folder / f"worker-{number}"
            command = [
                *alone,
                *(launch, "org.apache.spark.deploy.worker.Worker", *here, "--cores", "2", "--memory", "1g"),
                *("--work-dir", str(own / "work"), "--webui-port", str(web), self.url),
            ]
            self.workers.append(Daemon(own, command, web, home))

    def start(self) -> None:
        """Returns when the workers have registered."""
        self.master.start()
        for worker in self.workers:
            worker.start()
        deadline = time.monotonic() + _START_WITHIN
        while self.books()["aliveworkers"] < len(self.workers):
            assert time.monotonic() < deadline, "a worker did not register"
            time.sleep(0.05)

    def kill(self) -> None:
        for daemon in (*self.workers, self.master):
            daemon.kill()

    def books(self) -> dict[str, Any]:
        """What the master says of itself."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def applications(self) -> list[str]:
        """The ids of the applications that run."""
        return [app["id"] for app in self.books()["activeapps"]]

    def end_application(self, application: str) -> None:
        """End an application, as an operator does on the master's page."""
        page = f"http://127.0.0.1:{self._web}/"
        with urllib.request.urlopen(page, timeout=10) as answer:
            (token, *_) = re.findall(r'name="csrfToken" value="([^"]*)"', answer.read().decode())
        form = urlencode({"id": application, "terminate": "true", "csrfToken": token}).encode()
        urllib.request.urlopen(f"{page}app/kill/", form, timeout=10).close()

    def executors(self, application: str = "app-") -> list[int]:
        """Return the processes that run tasks, of one application or of all."""
        found = []
        for pid in (pid for worker in self.workers for pid in session(worker.pid)):
            with suppress(OSError):  # it ends meanwhile
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"CoarseGrainedExecutorBackend" in line and application.encode() in line:
                    found.append(pid)
        return found
