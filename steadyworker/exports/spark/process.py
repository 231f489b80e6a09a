"""
One Spark host as its parent sees it: a process in a session of its own, and a folder that nothing of it outlives.

::

    <hosts>/<random>/          made by the parent, mode 0700
        lock                   held (flock) by parent and host: free when both are gone, and the folder may be removed
        spark.properties           mode 0600: may hold credentials
        log                    standard output and error of host and JVM
        tmp/ local/ warehouse/ Spark's

End of file on the host's pipe means that it is gone; whatever is left of its session is killed then.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from steadyworker.exports.spark.java import Java
from steadyworker.exports.spark.protocol import Command, Message, Stop, decode_message, encode
from steadyworker.exports.spark.settings import PROPERTIES, SparkSettings
from steadyworker.memory import tree_rss

_LOG_TAIL = 4000
_LOG_LINES = 5
_KILLS, _PAUSE = 500, 0.01


class HostProcess:
    """
    Starts a host; everything that it says goes to `sink`, from a thread of its own, and None when it is gone.

    To be made by a thread that lives as long as the host shall: Linux ends a child when the *thread* that started it ends.

    Raises:
        OSError: The folder cannot be made, or no process can be started.
    """

    def __init__(
        self,
        settings: SparkSettings,
        java: Java,
        environ: Mapping[str, str],
        sink: Callable[[HostProcess, Message | None], None],
    ) -> None:
        settings.hosts.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(dir=settings.hosts))
        self._sink = sink
        self._archive = settings.archive(java)
        self._recorded = None if self._archive.exists() else self.folder / "classes.jsa"
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._process = self._start(settings, java, environ)
        except OSError:
            os.close(self._lock)
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self._reader = threading.Thread(target=self._read, name=f"spark-host-{self.pid}", daemon=True)
        self._reader.start()

    def _start(self, settings: SparkSettings, java: Java, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        for name in ("tmp", "local"):
            (self.folder / name).mkdir()
        # CDS: share the archive, or record one, which the JVM writes when it exits in good order.
        share = (
            f"-XX:ArchiveClassesAtExit={self._recorded}" if self._recorded else f"-XX:SharedArchiveFile={self._archive}"
        )
        properties = self.folder / PROPERTIES
        properties.touch(mode=0o600)
        properties.write_text(settings.properties(self.folder, f"-Xshare:auto {share}"), encoding="utf-8")
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "steadyworker.exports.spark.host", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=settings.environment(environ, self.folder, java, sys.executable),
                start_new_session=True,
                pass_fds=(self._lock,),
            )

    @property
    def pid(self) -> int:
        """Process id, and id of its session."""
        return self._process.pid

    @property
    def records(self) -> bool:
        """Whether it writes a class-data archive when it ends in good order, which takes some seconds."""
        return self._recorded is not None

    @property
    def rss(self) -> int:
        """Resident bytes of host and JVM."""
        return tree_rss(self.pid)

    def send(self, command: Command) -> None:
        """Tell the host; lost if it is gone, which `sink` hears."""
        stdin = self._process.stdin
        if stdin is not None:
            with suppress(OSError, ValueError):
                stdin.write(encode(command))
                stdin.flush()

    def kill(self) -> None:
        """End host and JVM now; `sink` hears None when they are gone.  Safe at any time and twice."""
        if self._process.returncode is None:
            kill_session(self.pid)

    def stop(self) -> None:
        """Ask it to end in good order; `sink` hears None."""
        self.send(Stop())

    def log_tail(self) -> str:
        """The last lines that host and JVM wrote, in one."""
        with suppress(OSError), (self.folder / "log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            return " | ".join([line for line in lines if line][-_LOG_LINES:])
        return ""

    def remove(self) -> None:
        """After its end: keep the archive if it recorded one, remove the rest."""
        if self._recorded is not None and self._process.returncode == 0 and self._recorded.exists():
            with suppress(OSError):  # an archive is a convenience
                staged = self._archive.with_name(f"{self._archive.name}.{self.pid}")
                shutil.move(self._recorded, staged)
                staged.replace(self._archive)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None  # it was asked for
        for line in stdout:
            try:
                message = decode_message(line)
            except msgspec.MsgspecError:  # half a line of a host that died
                break
            self._sink(self, message)
        for _ in range(_KILLS):  # the JVM, if the host died alone; until it writes no more into the folder
            if not kill_session(self.pid):
                break
            time.sleep(_PAUSE)
        self._process.wait()
        stdout.close()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._sink(self, None)


def kill_session(leader: int) -> bool:
    """
    SIGKILL every process of a session, whatever process groups it made; answers whether there was any that lived.

    The leader must not have been reaped.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    lived = False
    for entry in _processes():
        with suppress(OSError, IndexError, ValueError):
            # pid (comm) state ppid pgrp session …; comm may hold blanks and brackets
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == leader:
                os.kill(int(entry.name), signal.SIGKILL)
                # A process is a zombie as soon as its first thread is: the others may still have files open.
                lived = lived or fields[0] != "Z" or len(list((entry / "task").iterdir())) > 1
    return lived


def _processes() -> list[Path]:
    try:
        return [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    except OSError:  # macOS has no /proc: the process group has to do
        return []


def reap_folders(hosts: Path) -> None:
    """Remove the folders of hosts that died together with their worker process."""
    for folder in hosts.glob("*/"):
        try:
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # just being made
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # held: it lives
        finally:
            os.close(descriptor)
