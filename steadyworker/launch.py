"""`run`: from Worker classes and settings to a worker process, and its exit code."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steadyworker import checks, config, logs
from steadyworker.assemble import Assembly, Plan, assemble, plan
from steadyworker.errors import ConfigError
from steadyworker.events import Listener
from steadyworker.logs import get_logger
from steadyworker.service import Service
from steadyworker.stopping import EX_CONFIG
from steadyworker.vigil import Vigil
from steadyworker.worker import Worker


def run(
    *workers: type[Worker[Any, Any]],
    broker: str | None = None,
    ledger: str | None = None,
    config_file: Path | None = None,
    listeners: Sequence[Listener] = (),
    **settings: object,
) -> int:
    """
    Run these Workers in this process until it is told to stop; blocks, and answers the exit code.

    Args:
        workers: Worker classes; two on one queue are refused.
        broker: Where the queues are; explicit arguments win over environment and file.
        ledger: Where jobs are recorded.
        config_file: A `steadyworker.toml` that must be there, instead of the working directory's.
        listeners: Called with each event (`steadyworker.events`), in the runner's thread; they observe and change nothing.
        settings: Any other run option by its name (`stop_within=3600`).

    Call it from the main thread: only that one can catch signals.
    A setting or a check that no retry can heal is logged with its remedy and answers 78.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "Expected run to be called from the main thread, which alone can catch signals: call it there."
        )
    wanted = {"broker": broker, "ledger": ledger, **settings}
    try:
        options = config.load(wanted, os.environ, Path.cwd(), config_file)
    except ConfigError as error:
        logs.configure("auto", "info")
        return _refused(error)
    logs.configure(options.log_format, options.log_level)
    try:
        planned = plan(workers, options)
        vigil = Vigil(planned.clock, planned.times, options.health, os.environ)
        return Service(options, planned.clock, lambda: _checked(planned, listeners), vigil).run()
    except ConfigError as error:
        return _refused(error)


def _checked(planned: Plan, listeners: Sequence[Listener]) -> Assembly:
    """Wire the parts, once every check has passed."""
    log = get_logger("steadyworker.check")
    findings = checks.check(planned.specs, planned.options, planned.adapters, planned.ledger)
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise ConfigError("\n".join(map(str, errors)), errors)
    for finding in findings:
        log.warning("check", what=finding.what, remedy=finding.remedy)
    return assemble(planned, listeners)


def _refused(error: ConfigError) -> int:
    log = get_logger("steadyworker.service")
    for finding in error.findings:
        log.error("refused", what=finding.what, remedy=finding.remedy)
    if not error.findings:
        log.error("refused", what=str(error))
    return EX_CONFIG
