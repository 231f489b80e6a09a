"""The signal handlers of a child, restored after each job, so that the changes of one job do not affect the next."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # typeshed has no stub
import faulthandler
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from steadyworker.slots.frames import STACKS_SIGNAL

# These functions of `signal` convert each handler to an enum, which takes six times as long.
get_handler, set_handler = _signal.getsignal, _signal.signal

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


STDERR = 2
"""The descriptor of standard error."""


class Dispositions:
    """
    The signal handlers, the mask of blocked signals, the wake-up descriptor and the timers at construction.

    `calm` stops ITIMER_REAL, the timer of `signal.alarm`, in one call that no signal can interrupt half-way.
    `stacks` is the descriptor to which STACKS_SIGNAL writes.
    Call the constructor and all methods in the main thread.
    """

    def __init__(self, stacks: int = STDERR) -> None:
        self._stacks = stacks
        numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        self._handlers = {int(number): get_handler(number) for number in numbers}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._timers = [timer for timer in _TIMERS if signal.getitimer(timer) == (0.0, 0.0)]
        self._wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(self._wakeup)
        self.calm: Callable[[], object] = (
            partial(signal.setitimer, signal.ITIMER_REAL, 0.0) if signal.ITIMER_REAL in self._timers else lambda: None
        )

    def restore(self, ours: Collection[int]) -> None:
        """
        Restore the handlers and the mask, stop each timer that did not run at construction, and drop pending signals.

        Then the caller must set the handlers of the signals `ours` again, because a job can have registered `faulthandler` for these.
        """
        for timer in self._timers:
            signal.setitimer(timer, 0)
        for number in ours:
            faulthandler.unregister(number)
        pending = signal.sigpending()
        for number, handler in self._handlers.items():
            if handler is None:  # code outside Python has set this handler
                continue
            if number in pending:
                signal.signal(number, signal.SIG_IGN)  # SIG_IGN drops the pending signal
            if get_handler(number) is not handler:
                signal.signal(number, handler)
                if number == STACKS_SIGNAL:
                    watch_for_stacks_signal(self._stacks)
        signal.set_wakeup_fd(-1)
        with suppress(ValueError, OSError):  # the job has closed the descriptor
            signal.set_wakeup_fd(self._wakeup)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def watch_for_stacks_signal(file: int = STDERR) -> None:
    """Make STACKS_SIGNAL write the stacks of all threads to this descriptor, even after another handler has replaced this handler."""
    faulthandler.unregister(STACKS_SIGNAL)
    faulthandler.register(STACKS_SIGNAL, file, all_threads=True)
