"""A Worker that prints in every way that a handler can; children import this module."""

from __future__ import annotations

import ctypes
import logging
import logging.config
import os
import subprocess
import sys
import threading
import warnings
from typing import Any

import structlog

from steadyworker import Job, Worker

print("imported")

LIBC = ctypes.CDLL(None)


class Printing(Worker[dict[str, Any], int]):
    """Prints as the payload's `do` names."""

    queue = "printing"
    time_limit = 60

    def setup(self) -> None:
        print("set up")

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        getattr(self, job.payload["do"])(job)

    def teardown(self) -> None:
        print("torn down")

    def nothing(self, job: Job[dict[str, Any], int]) -> None:
        pass

    def everything(self, job: Job[dict[str, Any], int]) -> None:
        print("from print")
        sys.stderr.write("from stderr\n")
        os.write(1, b"from write(1)\n")
        LIBC.puts(b"from the C library")
        subprocess.run(["sh", "-c", "echo from a subprocess; echo its error >&2"], check=True)
        print("\x1b[31mred\x1b[0m, 50 %\r100 %")
        os.write(1, b"not \xff UTF-8\n")
        print("postgresql://shop:hunter2@db")
        print("half a line", end="")

    def much(self, job: Job[dict[str, Any], int]) -> None:
        """Print 100 MB."""
        line = "x" * 989
        for number in range(100_000):
            print(f"{number:09d} {line}")

    def half_then_die(self, job: Job[dict[str, Any], int]) -> None:
        os.write(2, b"a whole line\nhalf a li")
        os.abort()

    def corrupt(self, job: Job[dict[str, Any], int]) -> None:
        """Make glibc abort: it detects the second free of the same memory."""
        LIBC.malloc.restype = ctypes.c_void_p
        memory = ctypes.c_void_p(LIBC.malloc(ctypes.c_size_t(5000)))
        LIBC.free(memory)
        LIBC.free(memory)

    def fatal(self, job: Job[dict[str, Any], int]) -> None:
        ctypes.pythonapi.Py_FatalError(b"what a C extension found")

    def leave_printer(self, job: Job[dict[str, Any], int]) -> None:
        """Leave a daemon that keeps the pipes open for longer than the test."""
        daemon = "import os, time; os.setsid(); os.write(1, b'from a daemon\\n'); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", daemon])
        job.progress(process.pid)

    def log_lines(self, job: Job[dict[str, Any], int]) -> None:
        job.log.info("by the job", page=3)
        logging.getLogger("shop").warning("by the standard library")
        structlog.get_logger("shop").warning("by structlog", page=4)
        warnings.warn("by warnings", stacklevel=1)

    def basic_config(self, job: Job[dict[str, Any], int]) -> None:
        logging.basicConfig(level=logging.INFO, force=bool(job.payload.get("force")))
        self.log_lines(job)

    def named_console(self, job: Job[dict[str, Any], int]) -> None:
        """Give a logger a handler for the console; its lines also go to the root."""
        console = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}
        loggers = {"shop": {"handlers": ["console"], "level": "INFO"}}
        logging.config.dictConfig({"version": 1, "handlers": {"console": console}, "loggers": loggers})
        self.log_lines(job)

    def dict_config(self, job: Job[dict[str, Any], int]) -> None:
        """Replace every handler of the root, and disable each logger that exists, as dictConfig does by default."""
        plain = {"format": "%(levelname)s %(message)s"}
        console = {"class": "logging.StreamHandler", "formatter": "plain"}
        root = {"handlers": ["console"], "level": "WARNING"}
        logging.config.dictConfig(
            {"version": 1, "formatters": {"plain": plain}, "handlers": {"console": console}, "root": root}
        )
        self.log_lines(job)
        raise ValueError("boom")


class HalfLine(Worker[dict[str, Any], int]):
    """Prints one and a half lines, and then waits for its end."""

    queue = "half-line"
    time_limit = 60

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        os.write(1, b"whole\nhalf")
        job.progress(1)
        threading.Event().wait()


class PrintingInThreads(Printing):
    """Prints in the worker process itself."""

    queue = "printing-in-threads"
    isolation = "thread"

    def prints(self, job: Job[dict[str, Any], int]) -> None:
        print("from print")
        sys.stderr.write("half a")
        threading.Thread(target=print, args=("from another thread",)).start()
        sys.stderr.write(" line\n")
        sys.stdout.buffer.write(b"bytes\n")

    def half(self, job: Job[dict[str, Any], int]) -> None:
        print("the half line of this job", end="")
