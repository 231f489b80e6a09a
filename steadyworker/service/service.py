"""
A worker process from its start to its exit code: signals, the one stop budget, health, systemd.

::

    SIGUSR1, the command quiet ──→ quiet ⇄ running ←── SIGUSR2, the command resume
    SIGTERM, SIGINT, SIGHUP ──→ draining; a second one ──→ interrupting; a third one kills
    stop_within: │←── draining ──→│ 13 s before the end: interrupting │ 3 s before the end: kill │ the end

| exit code | reason |
|---|---|
| 0 | every job ended, or stopped when it was interrupted; or --max-jobs or --idle-exit was reached |
| 143 | a job had to be killed, or a second signal came |
| 69 | the broker was unreachable for longer than --give-up-after |
| 70 | `setup` failed three times in a row, a handler's thread did not end in time, or a thread of the worker process died |
| 75 | --max-rss was reached |
| 78 | a wrong configuration, or a login, virtual host, certificate or protocol that the broker refused |
"""

from __future__ import annotations

import os
import queue
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from tenacity import wait_random_exponential

from steadyworker.clock import Clock
from steadyworker.config.resolve import Options
from steadyworker.errors import BrokerUnavailable, LedgerUnavailable
from steadyworker.ledger.facts import OwnerCommand
from steadyworker.lifecycle import (
    CLOSE_BEFORE_END,
    EX_OK,
    EX_SOFTWARE,
    EX_TERMINATED,
    EX_UNAVAILABLE,
    INTERRUPT_BEFORE_END,
    KILL_BEFORE_END,
    PAUSE_SIGNALS,
    STOP_SIGNALS,
    Budget,
    Stage,
    advance,
)
from steadyworker.retry import RetryPolicy
from steadyworker.runner.state import Staged
from steadyworker.service.assemble import Assembly
from steadyworker.service.deadline import Deadline
from steadyworker.service.monitor import Monitor
from steadyworker.service.reload import Reload
from steadyworker.service.stop_conditions import StopConditions
from steadyworker.system.orphans import OrphanReaper
from steadyworker.telemetry.logs import explained, get_logger
from steadyworker.text.redaction import redact

_CHECK_EVERY = 1.0
_CHECK_SOON = 0.02
_AGAIN = RetryPolicy(wait=wait_random_exponential(multiplier=1, max=10, min=0.5))
_FORCED_WITHIN = 0.25
_WIRED = 0
"""The number that the wiring thread puts into the queue of signals to wake the main thread."""

_ATTEMPT_LIMIT = 1800.0
"""
Seconds after which an attempt to wire counts as hung.

A Worker asks its broker three times, and waits 20 s at each frozen address.
With three frozen addresses, nine Workers take less than this limit.
"""

_PURGE_EVERY = 3600.0
_PURGE_FIRST = 3.0
"""
The largest number of seconds from the start to the first purge.

The first purge is early, so that short-lived processes purge too.
Its time is random, so that processes do not purge together.
"""


class Service:
    """
    The life of one worker process.

    1. `run` starts all parts, watches them, stops them in order, and returns the exit code.
    2. A signal handler only puts the signal into a queue; the main thread does everything else.
    3. Heartbeats, lease renewals and the watchdog continue until the last stage ends.
    4. If the main thread does not keep the stop budget, another thread ends the process (`deadline.py`).

    `wire` creates the parts; `run` calls it again while the broker or the ledger cannot be reached.
    With `reload`, a changed file makes the process quiet, and ends the process when all runners are idle.
    """

    def __init__(
        self,
        options: Options,
        clock: Clock,
        wire: Callable[[], Assembly],
        monitor: Monitor,
        reload: Reload | None = None,
    ) -> None:
        self.stage = Stage.RUNNING
        self.reasons: list[str] = []
        self._options = options
        self._clock = clock
        self._wire = wire
        self._monitor = monitor
        self._reload = reload
        self._assembly: Assembly | None = None
        self._log = get_logger("steadyworker.service")
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._budget: Budget | None = None
        self._deadline = Deadline(options.stop_within, clock, lambda: os._exit(self._code or EX_TERMINATED))
        self._killing = False
        self._stop_signals = 0
        self._code = EX_OK
        self._reasons = StopConditions(options, clock.monotonic())
        self._purge_at = clock.monotonic() + random.uniform(0, _PURGE_FIRST)  # noqa: S311 - spreads load, keeps no secret
        self._chores_at = clock.monotonic()
        self._orphans = OrphanReaper()
        self._quieted = False
        self._threads: list[threading.Thread] = []

    # --- from start to exit code -----------------------------------------------------------------------------------

    def run(self) -> int:
        """
        Run until a signal or a stop condition, stop every part, and return the exit code.

        Raises ConfigError if the parts cannot be wired with this configuration.
        """
        before = self._catch_signals()
        self._deadline.start()
        self._monitor.open()
        try:
            self._assembly = self._wired()
            if self._assembly is not None:
                self._start(self._assembly)
                self._monitor.begin(self._assembly)
                while not self._over():
                    self._wait_for_signal()
                    self._obey(self._assembly.commands)
                    self._check(self._assembly)
                    self._monitor.check(self._assembly, self.stage)
                    for runner in self._assembly.runners:
                        runner.inbox.ping_if_late()
                    self._pause_while_stuck(self._monitor.stuck)
        finally:
            try:
                if self._assembly is not None:
                    self._stop(self._assembly)
            finally:
                self._monitor.end()
                self._deadline.met()
                for number, handler in before.items():
                    signal.signal(number, handler)
        return self._exit_code()

    def _wired(self) -> Assembly | None:
        """
        Return the wired parts, or None if a stop signal or --give-up-after comes first.

        While the broker or the ledger cannot be reached, the service wires again after growing waits.
        """
        tries, cause = 0, ""
        while self._budget is None:
            try:
                return self._attempt(cause)
            except (BrokerUnavailable, LedgerUnavailable) as error:
                tries += 1
                if str(error) != cause:
                    cause = str(error)
                    self._log.warning("backend_unreachable", error=cause, **explained(error.id))
            now = self._clock.monotonic()
            if self._reasons.gives_up(now, away=True):
                self._code = EX_UNAVAILABLE
                return None
            again_at = now + _AGAIN.delay(min(tries, 10))
            while self._budget is None and (left := again_at - self._clock.monotonic()) > 0:
                self._monitor.wait(cause)
                self._wait_for_signal(min(left, _CHECK_EVERY))
        return None

    def _attempt(self, cause: str) -> Assembly | None:
        """
        Wire the parts once, or return None if a stop signal comes first.

        Another thread does this, because each address of a frozen broker takes up to 20 s.
        Meanwhile the main thread handles signals and feeds the watchdog.
        After `_ATTEMPT_LIMIT`, the main thread stops feeding the watchdog.
        """
        ended: queue.SimpleQueue[Assembly | BaseException] = queue.SimpleQueue()

        def wire() -> None:
            try:
                ended.put(self._wire())
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                ended.put(error)
            self._signals.put(_WIRED)

        threading.Thread(target=wire, name="wiring", daemon=True).start()
        until = self._clock.monotonic() + _ATTEMPT_LIMIT
        while ended.empty() and self._budget is None:
            if self._clock.monotonic() < until:
                self._monitor.wait(cause)
            self._wait_for_signal(_CHECK_EVERY)
        if ended.empty():
            return None
        result = ended.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def _start(self, assembly: Assembly) -> None:
        keeper = assembly.keeper
        keeper.turn()
        self._threads.append(threading.Thread(target=keeper.run, name="keeper", daemon=True))
        for runner in assembly.runners:
            runner.start()
            thread = threading.Thread(target=runner.run, name=f"runner-{runner.deps.spec.queue}", daemon=True)
            runner.inbox.thread = thread  # before its start, so that no other thread serves the inbox at the same time
            self._threads.append(thread)
        queues = [runner.deps.spec.queue for runner in assembly.runners]
        broker = redact(self._options.broker)
        self._log.info("worker_started", queues=queues, owner=assembly.owner, broker=broker, ledger=assembly.ledger.url)
        for thread in self._threads:  # only now, so that the log lines of the first job follow the line above
            thread.start()
        for work in assembly.repeated:
            work.start()
        assembly.dead_calls.start()

    def _catch_signals(self) -> dict[int, Any]:
        """Install handlers that put each signal into a queue; only the main thread can do this."""

        def caught(number: int, frame: FrameType | None) -> None:
            del frame
            self._signals.put(number)
            if number in STOP_SIGNALS:
                self._deadline.begin()

        signals = (*STOP_SIGNALS, *PAUSE_SIGNALS)
        before: dict[int, Any] = {number: signal.signal(number, caught) for number in signals}
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited; slots could not wait for children
            before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return before

    def _over(self) -> bool:
        """Return whether every runner and every call of `on_dead` has finished, or the stop budget has only the time for closing left."""
        if self._budget is None or self._assembly is None:
            return False
        spent = self._left() <= CLOSE_BEFORE_END
        called = self.stage >= Stage.INTERRUPTING or not self._assembly.dead_calls.busy
        return spent or (called and all(runner.finished for runner in self._assembly.runners))

    def _left(self) -> float:
        """
        Return the seconds that are left for the stop.

        Without a stop budget, return 3 s: the time from the kill to the end of a stop.
        """
        return self._budget.left(self._clock.monotonic()) if self._budget is not None else KILL_BEFORE_END

    def _stop(self, assembly: Assembly) -> None:
        """Stop every part within the budget, in order: jobs first, connections and the ledger last."""
        runners = assembly.runners
        slots = [slot.close for runner in runners for slot in runner.deps.slots]
        self._close(assembly, [*slots, assembly.dead_calls.stop], self._left() - CLOSE_BEFORE_END)
        self._close(assembly, [service.stop for service in assembly.services.values()], self._left() - CLOSE_BEFORE_END)
        for runner in runners:
            runner.end()
        for work in assembly.repeated:
            work.end()
        connections = [*(team.stop for team in assembly.pools), *(runner.deps.adapter.stop for runner in runners)]
        self._close(assembly, connections, min(self._left(), CLOSE_BEFORE_END) / 2)
        assembly.keeper.end()
        for thread in self._threads:
            if thread.ident is not None:  # otherwise the start failed before it started this thread
                thread.join(min(self._left(), 1.0))
        self.stage = advance(self.stage, Stage.STOPPED)
        self._close(assembly, [lambda _within: assembly.close()], min(self._left(), CLOSE_BEFORE_END))
        self._log.info("worker_stopped", reasons=self.reasons, exit_code=self._exit_code())

    def _close(self, assembly: Assembly, closers: Sequence[Callable[[float], object]], within: float) -> None:
        """
        Call these closers in parallel, and wait for their ends, at most `within` seconds and 0.25 s more.

        Meanwhile the main thread handles signals and feeds the watchdog, because closing can take long.
        A third signal ends the wait, and calls the closers again with 0 s.
        """
        within, hurried = (0.0 if self._killing else max(0.0, within)), self._killing
        end = self._clock.monotonic() + within + _FORCED_WITHIN
        closing: list[threading.Thread] = []
        for close in closers:
            thread = threading.Thread(target=close, args=(within,), daemon=True)
            try:
                thread.start()
                closing.append(thread)
            except RuntimeError:  # the system allows no further thread
                with suppress(Exception):  # after any error, the next part must still be closed
                    close(max(0.0, end - _FORCED_WITHIN - self._clock.monotonic()))
        while any(thread.is_alive() for thread in closing) and self._clock.monotonic() < end:
            self._wait_for_signal(_CHECK_SOON)
            self._monitor.check(assembly, self.stage)
            if self._killing and not hurried:
                self._close(assembly, closers, 0.0)
                return

    def _exit_code(self) -> int:
        if self._code != EX_OK:
            return self._code
        runners = self._assembly.runners if self._assembly is not None else ()
        if any(slot.stuck for runner in runners for slot in runner.deps.slots):
            return EX_SOFTWARE
        killed = any(runner.killed or not runner.finished for runner in runners)
        return EX_TERMINATED if killed or self._stop_signals > 1 else EX_OK

    # --- signals and evidence --------------------------------------------------------------------------------------

    def _wait_for_signal(self, patience: float | None = None) -> None:
        """
        Wait for a signal for at most `patience` seconds, and handle it.

        By default, `patience` is 1 s, or 0.02 s while the process stops.
        """
        if patience is None:
            patience = _CHECK_EVERY if self._budget is None else _CHECK_SOON
        try:
            number = self._signals.get(timeout=patience)
        except queue.Empty:
            return
        if number == _WIRED:
            return
        if number == signal.SIGUSR1:
            self._quiet("SIGUSR1")
        elif number == signal.SIGUSR2:
            self.enter(Stage.RUNNING, "SIGUSR2")
        else:
            self._stop_signals += 1
            name = signal.Signals(number).name
            self._explain_stop(number)
            self.drain(name)
            if self._stop_signals > 1:
                self.enter(Stage.INTERRUPTING, name, kill=self._stop_signals > 2)  # noqa: PLR2004 - the third signal

    def _explain_stop(self, number: int) -> None:
        """Log what this signal does, and what the next one will do, because a person at a terminal waits for the end."""
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if self._stop_signals == 1:
            within = max(0.0, self._options.stop_within - INTERRUPT_BEFORE_END)
            now = f"receives no more messages; running jobs may finish within {within:g} s"
            then = f"a second {name} interrupts the jobs, which go on later from their last checkpoints"
        elif self._stop_signals == 2:  # noqa: PLR2004 - the second signal
            now, then = "interrupts the jobs", f"a third {name} kills them"
        else:
            now, then = "kills the jobs", "it ends within 3 s"
        self._log.info("stop_requested", now=now, then=then)

    def _quiet(self, reason: str) -> None:
        """Make the process quiet by the order of a person; the recovery of a part then does not end this stage."""
        self._quieted = False
        self.enter(Stage.QUIET, reason)

    def _obey(self, commands: deque[OwnerCommand]) -> None:
        """Carry out the commands that the keeper has read in the ledger, each like the signal of the same meaning."""
        while commands:
            command = commands.popleft()
            reason = f"the command {command.name} by {command.who}"
            if command.name == "quiet":
                self._quiet(reason)
            elif command.name == "resume":  # a later version can have other commands, which must not mean this
                self.enter(Stage.RUNNING, reason)

    def _pause_while_stuck(self, stuck: Sequence[str]) -> None:
        """Make the process quiet while a part is stuck."""
        if stuck and self.stage is Stage.RUNNING:
            self._quieted = True
            self.enter(Stage.QUIET, f"stuck: {', '.join(stuck)}")
        elif not stuck and self._quieted:
            self._quieted = False
            self.enter(Stage.RUNNING, "no thread is stuck any more")

    def _check(self, assembly: Assembly) -> None:
        now = self._clock.monotonic()
        if now >= self._chores_at:  # a stop makes fifty turns a second
            self._chores_at = now + _CHECK_EVERY
            assembly.guard.check()
            threads = any(runner.deps.spec.isolation == "thread" for runner in assembly.runners)
            self._orphans.reap(own_session=not threads)
        dead = (
            any(not thread.is_alive() for thread in self._threads)
            or any(team.broken for team in assembly.pools)
            or any(slot.broken for runner in assembly.runners for slot in runner.deps.slots)
        )
        if dead and (self._budget is None or self._budget.left(now) > INTERRUPT_BEFORE_END):
            # Without that thread, the runner misses the ends of jobs, or leases expire, so a long draining stage is useless.
            self._code = EX_SOFTWARE
            self._deadline.begin()
            self._budget = Budget(now, min(self._options.stop_within, INTERRUPT_BEFORE_END))
            self.enter(Stage.INTERRUPTING, "a thread of the worker process has died")
        if self._budget is not None:
            stage, kill = self._budget.stage(now)
            if stage > self.stage or (kill and not self._killing):
                self.enter(stage, "the stop budget", kill=kill)
            return
        if self._reload is not None and self._reload.changed is not None:
            if self.stage is Stage.RUNNING:
                self.enter(Stage.QUIET, f"--reload: {self._reload.changed} changed")
            elif all(runner.idle for runner in assembly.runners):
                self.drain("--reload")
                return
        for reason, code in self._reasons.to_stop(assembly.runners, assembly.recheck.lasting, now):
            self._code = code
            self.drain(reason)
            return
        if now >= self._purge_at:
            self._purge_at = now + _PURGE_EVERY
            with suppress(RuntimeError):  # the system allows no further thread; a later purge deletes the rows
                threading.Thread(target=assembly.purge, name="purge", daemon=True).start()

    # --- stages ----------------------------------------------------------------------------------------------------

    def drain(self, reason: str) -> None:
        """Begin the stop; the first call starts the stop budget, and later calls do nothing."""
        if self._budget is None:
            self._deadline.begin()
            self._budget = Budget(self._clock.monotonic(), self._options.stop_within)
            if self._assembly is not None:
                self._assembly.dead_calls.drain()
            self.enter(Stage.DRAINING, reason)

    def enter(self, stage: Stage, reason: str, *, kill: bool = False) -> None:
        """Enter a stage if this change of stage is legal, and notify the runners; `kill` ends the jobs that still run."""
        reached = advance(self.stage, stage)
        if reached is self.stage and not (kill and not self._killing):
            return
        self.stage = reached
        self._killing = self._killing or kill
        self.reasons.append(reason)
        self._log.info("stage_changed", stage=reached.name.lower(), reason=reason, kill=kill)
        for runner in self._assembly.runners if self._assembly is not None else ():
            runner.post(Staged(reached, kill=self._killing))
