"""`run` runs Worker classes in a worker process; the exit code shows why the process stopped."""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from steadyworker.config import resolve
from steadyworker.errors import ConfigError, Finding
from steadyworker.events import Listener
from steadyworker.lifecycle import EX_CONFIG
from steadyworker.service.assemble import Assembly, Plan, assemble, plan
from steadyworker.service.broker_recheck import fields_of
from steadyworker.service.monitor import Monitor
from steadyworker.service.reload import Reload
from steadyworker.service.remedies import InstalledRemedies
from steadyworker.service.service import Service
from steadyworker.service.timed_ledger import timed
from steadyworker.slots.dispositions import STDERR
from steadyworker.system.leaving import awaited_threads, name_threads
from steadyworker.system.streams import open_standard_streams
from steadyworker.telemetry import logs
from steadyworker.telemetry.logs import explained, get_logger
from steadyworker.telemetry.metrics import open_metrics
from steadyworker.telemetry.printed_lines import log_prints
from steadyworker.telemetry.python_messages import log_python_messages
from steadyworker.worker import Worker


def run(
    *workers: type[Worker[Any, Any]],
    broker: str | None = None,
    ledger: str | None = None,
    config_file: Path | None = None,
    listeners: Sequence[Listener] = (),
    **settings: object,
) -> None:
    """
    Run these Workers in this process until a signal or an option such as `max_jobs` stops the Workers.

    Call `run` from the main thread, because only that thread can catch signals.
    `run` returns after a stop in which every job ended or was given back (exit code 0).
    After any other stop, `run` raises SystemExit, so that a program that ends with `run(MyWorker)` has the right exit code.
    A thread that a handler has started and not ended can keep your program alive; the log names such threads.

    Args:
        workers: Worker classes; each must have its own queue.
        broker: URL of the broker; an argument of `run` has precedence over the environment and the settings file.
        ledger: URL of the ledger, which records the jobs.
        config_file: A settings file that must exist, instead of `steadyworker.toml` in the working directory.
        listeners: Functions that the runner calls with each event (`steadyworker.events`), in the runner's thread.
        settings: Any other run option by its name (`stop_within=3600`).

    Raises:
        SystemExit: The exit code is not 0; `steadyworker run --help` lists the exit codes.
            The code is 78 if a setting is wrong or a check finds an error; the log has the remedy.
        RuntimeError: The caller is not the main thread.
    """
    before = awaited_threads()
    code = launch(workers, {"broker": broker, "ledger": ledger, **settings}, config_file, listeners)
    name_threads("threads_awaited", [each for each in awaited_threads() if each not in before])
    if code:
        raise SystemExit(code)


def launch(
    workers: Sequence[type[Worker[Any, Any]]],
    settings: Mapping[str, object],
    config_file: Path | None = None,
    listeners: Sequence[Listener] = (),
    *,
    inline: bool = False,
    reload: Reload | None = None,
) -> int:
    """
    Run the Workers as `run` does, and return the exit code.

    A setting of None counts as not given.
    With `inline`, each Worker runs one job at a time in a thread of this process, without time and stall limits.
    With `reload`, the call returns after `reload` has found a changed file.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "Expected a call of run from the main thread, got another thread: only the main thread can catch signals."
        )
    open_standard_streams()
    if not faulthandler.is_enabled():  # a fatal signal then leaves the stacks of all threads, also of a job in a thread
        faulthandler.enable(STDERR)
    try:
        options = resolve.load(settings, os.environ, Path.cwd(), config_file)
    except ConfigError as error:
        logs.configure("auto", "info", remedy_of=InstalledRemedies())
        return _refused(error)
    logs.configure(options.log_format, options.log_level, remedy_of=InstalledRemedies())
    # With `inline`, a debugger needs the streams.
    give_back = [log_python_messages()] if inline else [log_prints(options.log_format), log_python_messages()]
    try:
        planned = plan(workers, options, inline=inline)
        metrics = open_metrics() if options.health is not None else None
        page = metrics.page if metrics is not None else None
        receivers: Sequence[Listener] = listeners if metrics is None else (*listeners, metrics)
        monitor = Monitor(planned.clock, planned.times, options.health, os.environ, page)
        if metrics is not None:
            metrics.watch([spec.queue for spec in planned.specs], monitor.readings, monitor.state, monitor.ledger_bytes)
            planned = replace(planned, ledger=timed(planned.ledger, planned.clock, metrics.ledger_call))
        logged: set[Finding] = set()
        with _environment(resolve.handed_on(options, Path.cwd(), config_file)):
            return Service(options, planned.clock, lambda: _checked(planned, receivers, logged), monitor, reload).run()
    except ConfigError as error:
        return _refused(error)
    finally:
        for each in reversed(give_back):
            each()


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set these variables, which a handler's `Client()` reads, and restore the environment at the end."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _checked(planned: Plan, listeners: Sequence[Listener], logged: set[Finding]) -> Assembly:
    """
    Run the checks, log their warnings, and wire the parts if no check found an error.

    A warning that is in the set `logged` is not logged again.
    """
    log = get_logger("steadyworker.check")
    findings = planned.findings()
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise ConfigError("\n".join(map(str, errors)), errors)
    for finding in findings:
        if finding.level == "warning" and finding not in logged:
            log.warning("check_warning", **fields_of(finding))
    logged.update(findings)
    return assemble(planned, listeners, known=logged)


def _refused(error: ConfigError) -> int:
    log = get_logger("steadyworker.service")
    for finding in error.findings:
        log.error("startup_refused", **fields_of(finding))
    if not error.findings:
        log.error("startup_refused", what=str(error), **explained(error.id))
    return EX_CONFIG
