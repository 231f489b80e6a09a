"""The exit of a process in which a user's threads still run; Python would silently wait for these threads."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

_GRACE = 1.0
"""The seconds that threads get to end by themselves; the threads of an idle pool end at once."""


def leave(code: int) -> NoReturn:
    """
    Exit with this code as `sys.exit` does, but wait at most 1 s for other threads; call it in the main thread.

    The log names the threads that still run then.
    """
    with suppress(RuntimeError):  # the system allows no further thread
        threading.Thread(target=_leave_late, args=(code,), name="steadyworker-leaving", daemon=True).start()
    sys.exit(code)


def awaited_threads() -> list[threading.Thread]:
    """Return the threads for which Python waits at the end of this process, without the main thread."""
    # If a daemon thread has created a pool, the pool's threads are daemon threads, but `concurrent.futures` waits for them, too.
    pools = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", {})
    return [
        each
        for each in threading.enumerate()
        if (not each.daemon or each in pools) and each is not threading.main_thread()
    ]


def name_threads(event: str, threads: Sequence[threading.Thread]) -> None:
    """Write a log line that names these threads, if there are any."""
    if threads:
        names = [each.name for each in threads]
        fields = {"threads": names, "explain": "steadyworker.threads-left"}
        logging.getLogger("steadyworker").warning(event, extra=fields)


def flush_logs() -> None:
    """Write the log lines that still wait, within a short time; call this function before `os._exit`."""
    for handler in logging.getLogger().handlers:
        with suppress(Exception):  # a user's handler can raise
            handler.flush()


def _leave_late(code: int) -> None:
    time.sleep(_GRACE)
    late = awaited_threads()
    if late:
        name_threads("threads_left_behind", late)
        flushing = threading.Thread(target=_flush, daemon=True)  # a stopped log reader must not hold up the exit
        with suppress(RuntimeError):
            flushing.start()
            flushing.join(_GRACE)
        os._exit(code)


def flush_output() -> None:
    """Write what the process has printed and Python still keeps, such as half a line."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a stream can be closed, or any object of a user
            stream.flush()


def _flush() -> None:
    flush_logs()
    flush_output()
