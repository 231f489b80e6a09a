"""
Log lines in place of Python's own messages on standard error.

These messages are exceptions that end a thread, exceptions that Python ignores in a destructor, and warnings.
Python prints them with a plain write, which waits for the reader of standard error.
Python also removes no secrets from them.
A runner's thread that waits in this write is alive, so the worker process would not detect that the thread's work has stopped.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable


def log_python_messages() -> Callable[[], None]:
    """Log these messages from now on; return a function that restores the previous hooks."""
    log = logging.getLogger("steadyworker.python")
    of_threads, of_destructors = threading.excepthook, sys.unraisablehook

    def thread_ended(found: threading.ExceptHookArgs) -> None:
        if found.exc_type is not SystemExit and found.exc_value is not None:
            name = found.thread.name if found.thread is not None else ""
            log.error("thread_failed", exc_info=found.exc_value, extra={"thread_name": name})

    def ignored(found: sys.UnraisableHookArgs) -> None:
        where = found.err_msg or type(found.object).__name__
        log.error("exception_ignored", exc_info=found.exc_value, extra={"where": where})

    def give_back() -> None:
        threading.excepthook, sys.unraisablehook = of_threads, of_destructors
        logging.captureWarnings(False)  # noqa: FBT003 - its name in the standard library

    threading.excepthook, sys.unraisablehook = thread_ended, ignored
    logging.captureWarnings(True)  # noqa: FBT003 - its name in the standard library
    return give_back
