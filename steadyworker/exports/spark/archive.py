"""
The class-data archive: Spark's classes, parsed once and then mapped into memory (cold start 6.8 s → 4.3 s).

A host without an archive records the classes, and its JVM writes an archive at a normal exit.
`build_archive` makes the archive at once, for a set-up step.
The JVM compares the archive with the JVM's version and class path, and ignores the archive if version or class path differ.
"""

from __future__ import annotations

import os
import queue
from pathlib import Path

from steadyworker.clock import SystemClock
from steadyworker.errors import ConfigError, ExportError
from steadyworker.exports.spark.hosts import Patience
from steadyworker.exports.spark.process import HostProcess
from steadyworker.exports.spark.protocol import Fatal, HostReady, Message
from steadyworker.exports.spark.settings import SparkSettings

_DUMP_WITHIN = 180.0


def build_archive(settings: SparkSettings) -> Path:
    """
    Make the archive for hosts with these settings, unless it exists; return its path.

    The recording takes about 15 s, and 150 MB of disk.

    Raises:
        ConfigError: Java or pyspark is missing, or the master is a Spark Connect server, which does not use the archive.
        ExportError: Spark did not start, or did not write the archive; the message has the end of the host's log.
    """
    java = settings.java(os.environ)
    path = settings.archive(java)
    if java is None or path is None:
        raise ConfigError(
            f"Expected a master with its driver in the Spark host, got {settings.place}: a server does not use this archive.",
            id="spark.setting",
        )
    if path.exists():
        return path
    messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    host = HostProcess(settings, java, os.environ, lambda _, message: messages.put(message))
    problem = "it was not ready in time"
    try:
        message = _next(messages, host, settings.start_within)
        problem = message.text if isinstance(message, Fatal) else "it died"
        if isinstance(message, HostReady):
            host.stop()
            problem = "it did not end in time"
            _next(messages, host, _DUMP_WITHIN)
    except queue.Empty:
        host.kill()
        while messages.get() is not None:
            pass
    tail = host.log_tail()
    host.remove()
    if not path.exists():
        raise ExportError(f"Expected Spark to start and to write a class-data archive, but {problem}: {tail}")
    return path


def _next(messages: queue.SimpleQueue[Message | None], host: HostProcess, within: float) -> Message | None:
    """
    Return the host's next message, or None if the host is gone.

    Raise queue.Empty if the host stands still for `within` seconds.
    """
    clock = SystemClock()
    limit = Patience.of(within, clock.monotonic(), host.cpu)
    while True:
        try:
            return messages.get(timeout=max(0.0, limit.due - clock.monotonic()))
        except queue.Empty:
            if limit.over(clock.monotonic(), lambda: host.cpu):
                raise
