"""
One Spark host as its parent sees it: a process in a session of its own, and a folder that nothing of it outlives.

::

    <hosts>/<random>/          made by the parent, mode 0700
        lock                   held (flock) by parent and host: free when both are gone, and the folder may be removed
        spark.properties           mode 0600: may hold credentials
        log                    standard output and error of host and JVM; its older half goes when it is too long
        tmp/ local/ warehouse/ Spark's

End of file on the host's pipe means that it is gone; whatever is left of its session is killed then.
"""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from steadyworker.exports.spark.java import Java
from steadyworker.exports.spark.protocol import Command, Message, Stop, decode_message, encode
from steadyworker.exports.spark.settings import PROPERTIES, SparkSettings
from steadyworker.system.interpreter import command
from steadyworker.system.private import make_private_folder
from steadyworker.system.procfs import end_sessions, kill_sessions, tree_rss

_LOG_TAIL = 16_000
_FATAL = "OutOfMemoryError"
_LOG_LINES = 5
_LOG_LONGEST = 16 << 20
KEPT_LOG = "host.log"
"""The file of `SparkSettings.folder` that the log of the last host with a problem is kept in."""


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
        java: Java | None,
        environ: Mapping[str, str],
        sink: Callable[[HostProcess, Message | None], None],
    ) -> None:
        self._sink = sink
        self._archive = settings.archive(java)
        self._kept_log = settings.folder / KEPT_LOG
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        connect = settings.connect()
        make_private_folder(settings.hosts)
        with ExitStack() as undo:  # whatever it is that fails: a worker process tries again and again
            with _alone_in(settings.hosts):
                self.folder = Path(tempfile.mkdtemp(dir=settings.hosts))
                undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
                self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                undo.callback(os.close, self._lock)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            recorded = self._archive is not None and not self._archive.exists()
            self._recorded = self.folder / "classes.jsa" if recorded else None
            self._process = self._start(settings, java, environ)
            undo.pop_all()
        if connect is not None:
            self.send(connect)
        for work in (self._read, self._write):
            threading.Thread(target=work, name=f"spark-host-{self.pid}", daemon=True).start()

    def _start(self, settings: SparkSettings, java: Java | None, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        for name in ("tmp", "local"):
            (self.folder / name).mkdir()
        arguments = [str(os.getpid())]
        if java is None:
            arguments.append("connect")
        else:
            self._write_properties(settings)
        with (self.folder / "log").open("ab") as log:  # appended to: it can be cut while they write
            return subprocess.Popen(
                command("steadyworker.exports.spark.host", *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=settings.environment(environ, self.folder, java, sys.executable)
                | {"SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData"},
                start_new_session=True,
                pass_fds=(self._lock,),
            )

    def _write_properties(self, settings: SparkSettings) -> None:
        # CDS: share the archive, or record one, which the JVM writes when it exits in good order.
        share = (
            f"-XX:ArchiveClassesAtExit={self._recorded}" if self._recorded else f"-XX:SharedArchiveFile={self._archive}"
        )
        properties = self.folder / PROPERTIES
        properties.touch(mode=0o600)
        # Without its counters, which a JVM keeps in /tmp whatever it is told, and leaves there when it is killed.
        options = f"-XX:-UsePerfData -Xshare:auto {share}"
        properties.write_text(settings.properties(self.folder, options), encoding="utf-8")

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
        """Tell the host, without waiting until it listens; lost if it is gone, which `sink` hears."""
        self._commands.put(command)

    def kill(self) -> None:
        """End host and JVM now; `sink` hears None when they are gone.  Safe at any time and twice."""
        if self._process.returncode is None:
            kill_sessions([self.pid])

    def stop(self) -> None:
        """Ask it to end in good order; `sink` hears None."""
        self.send(Stop())

    def log_tail(self) -> str:
        """
        Return the last lines that host and JVM wrote, in one, after the error that ended the JVM.

        A traceback of the host's Python, which lost its JVM, may be longer than these lines.
        """
        with suppress(OSError), (self.folder / "log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            written = [line for line in lines if line]
            last = written[-_LOG_LINES:]
            fatal = [line for line in written[:-_LOG_LINES] if _FATAL in line][-1:]
            return " | ".join([*fatal, *last])
        return ""

    def bound_log(self) -> None:
        """Keep the newer half of a log that has grown too long; what is written in that very moment may be lost."""
        with suppress(OSError):
            path = self.folder / "log"
            if (size := path.stat().st_size) > _LOG_LONGEST:
                with path.open("rb") as log:
                    log.seek(size - _LOG_LONGEST // 2)
                    newer = log.read()
                os.truncate(path, 0)
                with path.open("ab") as log:
                    log.write(newer)

    def keep_log(self) -> Path:
        """Keep a copy of the log for whoever looks into a problem, in place of the one before; answers where."""
        with suppress(OSError):  # it is there to help, and a full disk is trouble enough
            written = self._kept_log.with_name(f"{KEPT_LOG}.{self.pid}")
            written.unlink(missing_ok=True)  # what a process of this number left
            own = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(own, "wb") as kept, (self.folder / "log").open("rb") as log:
                shutil.copyfileobj(log, kept)
            written.replace(self._kept_log)
        return self._kept_log

    def remove(self) -> None:
        """After its end: keep the archive if it recorded one, remove the rest."""
        ended = self._process.returncode == 0
        if self._archive is not None and self._recorded is not None and ended and self._recorded.exists():
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
        end_sessions([self.pid])  # the JVM, if the host died alone; until it writes no more into the folder
        self._process.wait()
        stdout.close()
        self._commands.put(None)
        self._sink(self, None)

    def _write(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None  # it was asked for
        with suppress(OSError), stdin:
            while command := self._commands.get():
                stdin.write(encode(command))
                stdin.flush()


def reap_folders(hosts: Path) -> None:
    """
    Remove the folders of hosts that died together with their worker process; those of other users stay.

    Raises:
        OSError: The folder cannot be looked into.
    """
    with suppress(FileNotFoundError), _alone_in(hosts):
        for folder in hosts.glob("*/"):
            try:
                descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:  # another user's, or gone meanwhile: not ours to remove
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            except OSError:
                pass  # held: it lives
            finally:
                os.close(descriptor)


@contextmanager
def _alone_in(hosts: Path) -> Iterator[None]:
    """Keep other worker processes from reaping in this folder a host's that has no lock yet."""
    descriptor = os.open(hosts, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
