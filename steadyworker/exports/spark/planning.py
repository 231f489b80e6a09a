"""
Progress while Spark has no task: the processor time of the two threads that build and plan one query.

A query of 2,000 columns takes a minute to plan, and Spark's counters do not change meanwhile.
A thread that computes uses processor time, and a thread that waits in vain uses none.
The two threads are the job's thread in the host, and the thread in the JVM that serves it.
Linux keeps the processor time of each thread in `/proc`; on other systems, planning is no progress.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from steadyworker.system.procfs import cpu, thread_named

_STEP = 0.5  # seconds of processor time that are progress


class Planning:
    """
    The processor time of one job's threads.

    Args:
        jvm: The process id of the JVM.
        name: A name for the thread in the JVM, of at most 15 letters, which no other thread has.
    """

    def __init__(self, jvm: int, name: str) -> None:
        self._jvm, self._name = jvm, name
        self._threads: tuple[tuple[int, int], ...] = ()

    def begin(self, jvm: Any) -> None:
        """Note the threads; call it in the job's thread, because the JVM serves each thread of Python with one of its own."""
        jvm.java.lang.Thread.currentThread().setName(self._name)  # the JVM passes the name on to the system
        served = thread_named(self._jvm, self._name)
        here = (os.getpid(), threading.get_native_id())
        self._threads = (here,) if served is None else (here, (self._jvm, served))

    def __call__(self) -> int:
        """Return a number that grows with the processor time."""
        return int(sum(cpu(*place) for place in self._threads) / _STEP)
