"""
Evidence that Spark computes while its counters stand still: the processor time of threads.

A query of 2,000 columns takes a minute to plan, and Spark has no task meanwhile.
Then the query's first tasks compile its code, and report nothing meanwhile.
A thread that computes uses processor time, and a thread that only waits uses no processor time.

| threads | whose | evidence |
|---|---|---|
| the job's thread in the host, and the thread in the JVM that serves it | the job's own | progress |
| the JVM's threads that run tasks | all jobs of the host | a longer limit, because another job's tasks look the same |

Linux keeps the processor time of each thread in `/proc`; on other systems, only counters are progress.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from steadyworker.system.procfs import cpu, threads_named

_STEP = 0.2  # seconds of processor time that are evidence
_TASKS = "Executor task launch worker"[:15]  # Linux keeps only the first 15 bytes of a thread's name


class Planning:
    """
    The processor time of one job's threads.

    Args:
        jvm: The process id of the JVM.
        name: A name for the thread in the JVM, of at most 15 letters, which no other thread has.
    """

    def __init__(self, jvm: int, name: str) -> None:
        self._jvm, self._name = jvm, name
        self._own: tuple[tuple[int, int], ...] = ()

    def begin(self, jvm: Any) -> None:
        """Record the threads; call this in the job's thread, because each Python thread has its own thread in the JVM."""
        jvm.java.lang.Thread.currentThread().setName(self._name)  # the JVM passes the name on to the system
        served = ((self._jvm, thread) for thread in threads_named(self._jvm, self._name))
        self._own = ((os.getpid(), threading.get_native_id()), *served)

    def planned(self) -> int:
        """Return a number that grows with the processor time of the job's own threads."""
        return int(sum(cpu(*place) for place in self._own) / _STEP)

    def computed(self) -> int:
        """Return a number that changes with the processor time of the JVM's tasks."""
        return int(sum(cpu(self._jvm, thread) for thread in threads_named(self._jvm, _TASKS)) / _STEP)
