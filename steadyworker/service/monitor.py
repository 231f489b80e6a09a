"""
Reports the state of the worker process to the watchdog, to `/livez` and `/readyz`, and to systemd.

All three use the same evidence, which the main thread collects once a second.
Another thread answers the probes.
If the evidence is more than 30 s old, the main thread is stuck, and the probes report that the process is not alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from steadyworker.clock import Clock, Times
from steadyworker.lifecycle import Stage
from steadyworker.runner.causes import PAUSED, Cause
from steadyworker.service.assemble import Assembly
from steadyworker.service.watchdog import Part, Snapshot, Watchdog
from steadyworker.system.systemd import Notifier
from steadyworker.telemetry.gauges import QueueReading
from steadyworker.telemetry.logs import explained, get_logger
from steadyworker.telemetry.metrics import Page

if TYPE_CHECKING:
    from steadyworker.service.health import HealthServer

_CHECK_EVERY = 1.0
_TURN_LIMIT = 30.0
"""
Seconds without a turn after which a thread counts as stuck.

An idle thread turns every 5 s; one turn can wait for two ledger calls.
"""
_SLOT_TURN_LIMIT = 60.0
"""
Seconds without a turn after which the keeper of a thread slot counts as stuck.

The keeper turns every 0.5 s while its run has a limit, but a handler that holds the GIL delays all threads.
A process slot has no thread.
"""

_EVIDENCE_LIMIT = 30.0
"""
Seconds after which evidence is too old to prove that the process is alive.

The main thread collects evidence each second.
"""

_EXTEND_BY = 10.0

_STARTS_WITHIN = 5.0
"""Seconds that a start takes on a busy machine: connections, queues, and the processes of the slots."""

_LASTS = 10.0
"""
Seconds that a new cause of a logged reason must last before the new cause is logged.

While a broker starts again, one reason has several causes, for some seconds each.
"""


class Monitor:
    """
    The monitor of the parts, which reports their state to the probes and to systemd.

    1. `open` starts the health server and sends READY=1.
       `open` comes before the first contact with a broker, because a systemd unit must start while its broker is down.
    2. `wait` records the reason why the process is not ready; `begin` sets the parts to watch.
    3. `check` collects the evidence.
       It feeds systemd's watchdog only while every part turns.
       It logs once each reason why the process is not ready, and also the end of each reason.
       If another cause has replaced the logged cause for `_LASTS` seconds, `check` logs the reason again.
       A person may have to act on the new cause.
       It sends STOPPING=1 when the stop begins.
    4. `end` stops the health server.
    """

    def __init__(
        self,
        clock: Clock,
        times: Times,
        health: str | None,
        environ: Mapping[str, str],
        metrics: Page | None = None,
    ) -> None:
        self.address: str | None = None
        self._clock = clock
        self._times = times
        self._notifier = Notifier(environ)
        self._server: HealthServer | None = None
        if health is not None:
            from steadyworker.service.health import HealthServer

            self._server = HealthServer(health, self.snapshot, metrics)
        self._assembly: Assembly | None = None
        self._watchdog: Watchdog | None = None
        self._unready: Mapping[str, Cause] = {"worker": Cause("starting")}
        self._pauses: tuple[str, ...] = ()
        self._logged: dict[str, str] = {}
        """For each part that is not ready, the id of the explanation that was logged last."""
        self._changed: dict[str, tuple[str, float]] = {}
        """By part, the id of a newer explanation that is not logged yet, and the time since which it holds."""
        self._started_at = -_STARTS_WITHIN
        self._since_start: set[str] | None = None
        self._was_ready = False
        self._stopping = False
        self._checked_at = self._fed_at = -_EXTEND_BY
        self._turned_at = clock.monotonic()
        self._log = get_logger("steadyworker.service")

    def open(self) -> None:
        """Start the health server, and report READY=1 to systemd."""
        if self._server is not None:
            self._server.start()
            self.address = self._server.address
        self._notifier.ready()

    def wait(self, cause: str) -> None:
        """Report that the process is alive but not ready, and report the cause, if it is known."""
        if cause:
            self._unready = {"broker": Cause(cause)}
        self._turned_at = self._clock.monotonic()
        self._notifier.status("starting" + (f"; {cause}" if cause else ""))
        self._feed(self._turned_at)

    def begin(self, assembly: Assembly) -> None:
        """Start to watch the parts of this assembly."""
        self._started_at, self._since_start, self._was_ready = self._clock.monotonic(), None, False
        parts = [
            Part("keeper", lambda: assembly.keeper.last_turn, self._times.renew * 2 + self._times.call_timeout * 2)
        ]
        for runner in assembly.runners:
            queue, adapter = runner.deps.spec.queue, runner.deps.adapter
            parts.append(Part(f"runner of {queue}", lambda runner=runner: runner.last_turn, _TURN_LIMIT))  # type: ignore[misc]
            parts.append(Part(f"I/O thread of {queue}", lambda adapter=adapter: adapter.last_turn, _TURN_LIMIT))  # type: ignore[misc]
            parts += [
                Part(f"slot {slot.id} of {queue}", lambda slot=slot: slot.last_turn, _SLOT_TURN_LIMIT)  # type: ignore[misc]
                for slot in runner.deps.slots
            ]
        self._watchdog = Watchdog(self._clock, parts, _CHECK_EVERY)
        self._assembly = assembly
        assembly.reporter.snapshot = self.snapshot

    def check(self, assembly: Assembly, stage: Stage) -> None:
        """Collect the evidence, at most once a second, and report it to systemd."""
        now = self._turned_at = self._clock.monotonic()
        if self._watchdog is None or now - self._checked_at < _CHECK_EVERY:
            return
        self._checked_at = now
        if stage >= Stage.DRAINING:
            self._stops()
        self._watchdog.check()
        unready = {
            f"{runner.deps.spec.queue}: {part}": cause
            for runner in assembly.runners
            for part, cause in runner.not_ready().items()
        }
        self._pauses = tuple(
            f"{runner.deps.spec.queue}: {PAUSED} {pause.why}"
            for runner in assembly.runners
            if (pause := runner.pause) is not None
        )
        before, self._unready = self._unready, unready
        self._log_changes(now, before, unready)
        if not (unready or self._was_ready):
            self._was_ready = True
            assembly.keeper.hurry()  # so that people soon see that the process has started
        if not self.stuck:
            self._feed(now)
        if self._notifier.listening:
            running = sum(len(runner.state.by_fence) for runner in assembly.runners)
            self._notifier.status(
                f"{stage.name.lower()}, {running} running" + "".join(f"; {part}" for part in (*unready, *self._pauses))
            )
            if stage >= Stage.DRAINING:
                self._notifier.extend_timeout(_EXTEND_BY)

    def _feed(self, now: float) -> None:
        """Send WATCHDOG=1 if it is due."""
        every = self._notifier.watchdog_every
        if every is not None and now - self._fed_at >= min(every, _EXTEND_BY) - _CHECK_EVERY:
            self._fed_at = now
            self._notifier.watchdog()

    def _log_changes(self, now: float, before: Mapping[str, Cause], unready: Mapping[str, Cause]) -> None:
        """
        Log each reason why the process is not ready, if two checks in a row find the reason; also log the end of the reason.

        A reason that one round of checks finds, and the next does not, is not logged.
        A reason that has lasted since the start is logged only if it lasts longer than the start.
        """
        since_start = unready.keys() if self._since_start is None else self._since_start & unready.keys()
        self._since_start = set(since_start)
        starting = self._since_start if now - self._started_at < _STARTS_WITHIN else set()
        for part in (unready.keys() & before.keys()) - starting:
            cause = unready[part]
            if part not in self._logged or self._lasts(part, cause.explain, now):
                self._logged[part] = cause.explain
                self._log.warning("not_ready", part=part, why=cause.why, **explained(cause.explain))
        for part in self._logged.keys() - unready.keys():
            del self._logged[part]
            self._changed.pop(part, None)
            self._log.info("ready_again", part=part)

    def _lasts(self, part: str, explain: str, now: float) -> bool:
        """Return whether another cause has replaced the logged cause for `_LASTS` seconds."""
        if explain == self._logged[part]:
            self._changed.pop(part, None)
            return False
        seen, since = self._changed.get(part, ("", now))
        if seen != explain:
            self._changed[part] = (explain, now)
            return False
        return now - since >= _LASTS

    def _stops(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._notifier.stopping()

    @property
    def stuck(self) -> tuple[str, ...]:
        """The names of the parts that were stuck at the last check."""
        return self._watchdog.stuck if self._watchdog is not None else ()

    def snapshot(self) -> Snapshot:
        """Return the reasons why the process is not alive, and the reasons why it is not ready; callable from any thread."""
        age = self._clock.monotonic() - self._turned_at
        late = (f"main thread, for {age:.0f} s",) if age > _EVIDENCE_LIMIT else ()
        stuck = tuple(f"stuck: {part}" for part in (*late, *self.stuck))
        unready = tuple(f"{part}: {cause.why}" for part, cause in self._unready.items())
        return Snapshot(stuck, unready, self._pauses)

    def readings(self) -> Sequence[QueueReading]:
        """
        Return the state of each runner for `/metrics`; callable from any thread.

        Before the first contact with the broker, return nothing.
        """
        if (assembly := self._assembly) is None:
            return []
        depths = assembly.meter.depths
        return [
            replace(each, depth=depths.get(each.queue)) for each in (runner.reading() for runner in assembly.runners)
        ]

    def ledger_bytes(self) -> int | None:
        """Return the size of the ledger if this process has measured it, otherwise None; callable from any thread."""
        return None if self._assembly is None else self._assembly.meter.ledger_bytes

    def state(self) -> Mapping[str, bool]:
        """Return whether the process is alive and ready, as the probes report it; callable from any thread."""
        now = self.snapshot()
        return {"alive": not now.unlive, "ready": not (now.unlive or now.unready)}

    def end(self) -> None:
        """Report STOPPING=1 to systemd, and stop the health server."""
        self._stops()
        if self._server is not None:
            self._server.stop()
