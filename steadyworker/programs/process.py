"""
One run of a program: its start in a process group of its own, the wait for its end, and the end of the group.

A thread starts the program and waits for its end, because a signal can raise Interrupt only in the main thread.
So no Interrupt can come between the start of the program and the code that ends the program.
The program is in the session of the slot's child process.
A kill of this child process also kills its whole session.
So the program ends even if the worker process dies.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from steadyworker.programs.pipes import Pipes

REPORTS = 3
"""The descriptor to which the program can write reports."""


class ProgramProcess:
    """
    One program; `run` waits for its end, and `terminate` sends SIGTERM to its process group.

    `code` is the program's exit code, or the negative number of the signal that ended the program.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._terminating = False

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], stdin: int, pipes: Pipes) -> None:
        """
        Start the program, wait for its end, and kill what is left of its process group.

        Raises:
            OSError: The program could not be started.
        """
        ends = pipes.theirs
        actions = [
            (os.POSIX_SPAWN_DUP2, stdin, 0),
            (os.POSIX_SPAWN_DUP2, ends["stdout"], 1),
            (os.POSIX_SPAWN_DUP2, ends["stderr"], 2),
            (os.POSIX_SPAWN_DUP2, ends["reports"], REPORTS),
        ]
        with self._lock:
            self._pid = os.posix_spawnp(
                arguments[0],
                list(arguments),
                environment,
                file_actions=actions,
                setpgroup=0,
                setsigmask=(),
                # Python ignores these two signals, and an exec keeps ignored signals.
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        if self._terminating:
            self.terminate()
        pipes.start()
        # The zombie keeps its process id until `waitpid`, so no other group can have this id.
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            with suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a zombie
                os.killpg(self._pid, signal.SIGKILL)
            _, status = os.waitpid(self._pid, 0)
            self._pid = None
        self.code = os.waitstatus_to_exitcode(status)

    def terminate(self) -> None:
        """Send SIGTERM to the program's process group, now or as soon as it has started; thread-safe."""
        with self._lock:
            self._terminating = True
            if self._pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._pid, signal.SIGTERM)
