"""
One Spark host, on the worker process's side: a process with a session of its own, and a folder with all of its files.

::

    <hosts>/<random>/          made by the parent, mode 0700
        lock                   held (flock) by parent and host; a free lock means that both are gone: remove the folder
        spark.properties       mode 0600, because it can contain credentials
        log                    standard output and error of host and JVM; the older half is removed when it is too long
        tmp/ local/ warehouse/ folders of Spark

At end of file on the host's pipe, the host is gone; the parent then kills the rest of the host's session.
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
from steadyworker.exports.spark.protocol import Command, Message, StopHost, decode_message, encode
from steadyworker.exports.spark.settings import PROPERTIES, SparkSettings
from steadyworker.system.interpreter import command
from steadyworker.system.private import make_private_file, make_private_folder
from steadyworker.system.procfs import end_sessions, kill_sessions, tree_cpu
from steadyworker.text.redaction import redact

_LOG_TAIL = 16_000
_FATAL = "OutOfMemoryError"
_LOG_LINES = 5
_FRAMES = ("at ", "... ", "Traceback (")  # lines of stack traces; Python indents its own
_LOG_LONGEST = 16 << 20
KEPT_LOG = "host.log"
"""The file in `SparkSettings.folder` with the log of the last host that had a problem."""


class HostProcess:
    """
    One running host; a reader thread calls `sink` with each message of the host, and with None when the host is gone.

    Create the object in a thread that lives longer than the host, because Linux kills the host when that *thread* ends.

    Raises:
        OSError: The folder cannot be made, or the process cannot be started.
    """

    def __init__(
        self,
        settings: SparkSettings,
        java: Java | None,
        environ: Mapping[str, str],
        sink: Callable[[HostProcess, Message | None], None],
    ) -> None:
        self._sink = sink
        self._kept_log = settings.folder / KEPT_LOG
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        connect = settings.connect()
        make_private_folder(settings.hosts)
        with ExitStack() as undo:  # this cleans up after any failure, because the worker process tries again
            with _alone_in(settings.hosts):
                self.folder = Path(tempfile.mkdtemp(dir=settings.hosts))
                undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
                self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                undo.callback(os.close, self._lock)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
            properties = self.folder / PROPERTIES
            properties.touch(mode=0o600)
            properties.write_text(settings.properties(self.folder, environ), encoding="utf-8")
        with (self.folder / "log").open("ab") as log:  # in append mode, so that `bound_log` can cut it
            return subprocess.Popen(
                command("steadyworker.exports.spark.host", *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=settings.environment(environ, self.folder, java, sys.executable),
                start_new_session=True,
                pass_fds=(self._lock,),
            )

    @property
    def pid(self) -> int:
        """The host's process id, which is also the id of its session."""
        return self._process.pid

    @property
    def cpu(self) -> float:
        """The seconds of processor time of host and JVM."""
        return tree_cpu(self.pid)

    @property
    def logged(self) -> int:
        """The size of the log in bytes; it changes while host and JVM report what they do."""
        with suppress(OSError):
            return (self.folder / "log").stat().st_size
        return 0

    def send(self, command: Command) -> None:
        """Send a command to the host without waiting; the command is lost if the host is gone, and `sink` gets None."""
        self._commands.put(command)

    def kill(self) -> None:
        """Kill host and JVM now; `sink` gets None when they are gone; this can be called at any time, and twice."""
        if self._process.returncode is None:
            kill_sessions([self.pid])

    def stop(self) -> None:
        """Ask the host to end normally; `sink` gets None when the host is gone."""
        self.send(StopHost())

    def log_tail(self) -> str:
        """
        Return the last lines of the log as one line without secrets, after the line of an out-of-memory error if there is one.

        The lines of stack traces are left out, except the errors themselves.
        The out-of-memory error can be further up in the log, before the host's own traceback.
        """
        with suppress(OSError), (self.folder / "log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
            lines = log.read().decode(errors="replace").splitlines()
            written = [
                line for line in lines if line.strip() and not line[0].isspace() and not line.startswith(_FRAMES)
            ]
            last = written[-_LOG_LINES:]
            fatal = [line for line in written[:-_LOG_LINES] if _FATAL in line][-1:]
            return redact(" | ".join([*fatal, *last]))
        return ""

    def bound_log(self) -> None:
        """Keep only the newer part of a log that is too long; lines that are written during the cut can be lost."""
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
        """Copy the log for the operator, in place of the earlier copy; return the path of the copy."""
        with suppress(OSError):  # a failed copy, for example on a full disk, does no harm
            written = self._kept_log.with_name(f"{KEPT_LOG}.{self.pid}")
            written.unlink(missing_ok=True)  # an earlier process with this id can have left this file
            make_private_file(written)
            shutil.copyfile(self.folder / "log", written)
            written.replace(self._kept_log)
        return self._kept_log

    def remove(self) -> None:
        """Remove the host's folder; call this after the host's end."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None  # because of stdout=PIPE
        for line in stdout:
            try:
                message = decode_message(line)
            except msgspec.MsgspecError:  # the line is incomplete, because the host died while it wrote the line
                break
            self._sink(self, message)
        end_sessions([self.pid])  # if the host died alone, its JVM must not write into the folder any more
        self._process.wait()
        stdout.close()
        self._commands.put(None)
        self._sink(self, None)

    def _write(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None  # because of stdin=PIPE
        with suppress(OSError), stdin:
            while command := self._commands.get():
                stdin.write(encode(command))
                stdin.flush()


def reap_folders(hosts: Path) -> None:
    """
    Remove the folders of hosts that died together with their worker process; folders of other users stay.

    Raises:
        OSError: The folder `hosts` cannot be read.
    """
    with suppress(FileNotFoundError), _alone_in(hosts):
        for folder in hosts.glob("*/"):
            try:
                descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:  # the folder belongs to another user, or is gone
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            except OSError:
                pass  # a live host holds the lock
            finally:
                os.close(descriptor)


@contextmanager
def _alone_in(hosts: Path) -> Iterator[None]:
    """Lock the folder of all hosts, so that no other worker process removes the folder of a host that has no lock yet."""
    descriptor = os.open(hosts, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
