"""The conditions that end a worker process without a signal."""

from __future__ import annotations

import os
from collections.abc import Sequence

from steadyworker.config.resolve import Options
from steadyworker.errors import Finding
from steadyworker.lifecycle import EX_CONFIG, EX_OK, EX_SOFTWARE, EX_TEMPFAIL, EX_UNAVAILABLE
from steadyworker.runner.causes import BROKER, HOST, SETUP
from steadyworker.runner.runner import Runner
from steadyworker.system.procfs import rss

_SETUP_FAILURES = 3


class StopConditions:
    """
    The checks for a reason to end the process; the main thread repeats them.

    The checks remember how long the process has been idle, and how long the broker has been unreachable.
    """

    def __init__(self, options: Options, now: float) -> None:
        self._options = options
        self._busy_at = now
        self._away_since: float | None = None

    def to_stop(self, runners: Sequence[Runner], lasting: Sequence[Finding], now: float) -> list[tuple[str, int]]:
        """
        Return each reason to end the process, with its exit code; the most serious reason comes first.

        `lasting` are the errors that the broker's checks have found twice; `now` is monotonic.
        """
        options = self._options
        found = [*_broken(runners), *((str(finding), EX_CONFIG) for finding in lasting)]
        if options.max_rss is not None and (resident := rss(os.getpid())) > options.max_rss:
            found.append((f"--max-rss: the process uses {resident} bytes, the limit is {options.max_rss}", EX_TEMPFAIL))
        away = any(BROKER in runner.not_ready() for runner in runners)
        if self.gives_up(now, away=away):
            found.append(
                (f"--give-up-after: the broker was unreachable for {options.give_up_after:g} s", EX_UNAVAILABLE)
            )
        if options.max_jobs is not None and all(runner.deps.quota.spent and runner.idle for runner in runners):
            found.append((f"--max-jobs: {options.max_jobs}", EX_OK))
        if away or not all(runner.waiting for runner in runners):
            self._busy_at = now
        if options.idle_exit is not None and now - self._busy_at > options.idle_exit:
            found.append((f"--idle-exit: idle for {options.idle_exit:g} s", EX_OK))
        return found

    def gives_up(self, now: float, *, away: bool) -> bool:
        """Return whether the broker has been unreachable for longer than --give-up-after."""
        self._away_since = (now if self._away_since is None else self._away_since) if away else None
        patience = self._options.give_up_after
        return patience is not None and self._away_since is not None and now - self._away_since > patience


def _broken(runners: Sequence[Runner]) -> list[tuple[str, int]]:
    """Return the reasons that do not go away with time."""
    found: list[tuple[str, int]] = []
    for runner in runners:
        if runner.final is not None:
            found.append((f"refused by the broker: {runner.final}", EX_CONFIG))
        not_ready = runner.not_ready()
        if HOST in not_ready:
            why = not_ready[HOST].why
            found.append((f"{runner.deps.spec.queue}: this host cannot run the jobs: {why}", EX_CONFIG))
        audit = runner.audit_result
        if audit.lasting and (not audit.after_jobs or all(each.idle for each in runners)):
            found.append((f"{runner.deps.spec.queue}: {audit.cause}", EX_CONFIG))
        if runner.slot_health.setup_failures >= _SETUP_FAILURES:
            why = not_ready[SETUP].why if SETUP in not_ready else "the slot is ready again"
            found.append((f"setup failed {_SETUP_FAILURES} times in a row: {why}", EX_SOFTWARE))
        if any(slot.stuck for slot in runner.deps.slots):
            found.append(("a handler's thread did not end in time", EX_SOFTWARE))
    return found
