"""The signal handlers of a child, restored after each job, so that the changes of one job do not affect the next."""

from __future__ import annotations

import faulthandler
import signal

from steadyworker.slots.frames import STACKS_SIGNAL

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class Dispositions:
    """
    The signal handlers, the mask of blocked signals, and the timers that send signals, as they are at construction.

    Call the constructor and `restore` in the main thread.
    """

    def __init__(self) -> None:
        numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        self._handlers = {number: signal.getsignal(number) for number in numbers}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._timers = [timer for timer in _TIMERS if signal.getitimer(timer) == (0.0, 0.0)]

    def restore(self) -> None:
        """Restore the handlers and the mask, and stop each timer that did not run at construction."""
        for timer in self._timers:
            signal.setitimer(timer, 0)
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:  # None: not set from Python
                signal.signal(number, handler)
                if number == STACKS_SIGNAL:
                    watch_for_stacks_signal()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def watch_for_stacks_signal() -> None:
    """Make STACKS_SIGNAL write the stacks of all threads, also after another handler has replaced this one."""
    faulthandler.unregister(STACKS_SIGNAL)
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
