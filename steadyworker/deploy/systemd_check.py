"""
The comparison of a systemd unit with a Worker and its settings.

`systemd-analyze verify` finds misspelt directives; this check finds values that are valid for systemd, and wrong for this Worker.
An *error* means that jobs would be killed or lost, or that the unit would not work; a *warning* means that something works less well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from steadyworker.config.options import OPTIONS, PREFIX
from steadyworker.config.resolve import Options
from steadyworker.deploy.expected import Expected
from steadyworker.deploy.numbers import Numbers
from steadyworker.deploy.unit_file import UnitFile, read_unit
from steadyworker.errors import ConfigError, Finding
from steadyworker.lifecycle import EX_CONFIG, EX_TERMINATED
from steadyworker.text.redaction import redact
from steadyworker.worker import WORKER

_DEFAULT_STOP = 90.0
"""TimeoutStopSec without a line (DefaultTimeoutStopSec in systemd-system.conf(5))."""

_FIRST_WORD = 10.0
"""Seconds in which a stopping worker process has certainly asked for more time once: it asks each second."""

_NOTIFYING = ("notify", "notify-reload")
_RESTARTING = ("always", "on-failure")
_STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "15", "2", "1", "TERM", "INT", "HUP")
_URLS = ("broker", "ledger", "state_dir")
_INTERNET = {"AF_INET", "AF_INET6"}


def findings(name: str, text: str, expected: Expected) -> list[Finding]:
    """Return every contradiction between this unit, a file of this name, and these Workers."""
    unit = read_unit(name, text)
    found: list[Finding] = []
    for part in (
        _command(unit, expected),
        _settings(unit, expected.options),
        _type(unit),
        _stop(unit, expected.numbers),
        _watchdog(unit, expected.numbers),
        _restart(unit),
        _memory(unit),
        _state(unit, expected),
        _sandbox(unit, expected),
        _secrets(unit),
    ):
        try:
            found += part
        except ConfigError as error:  # a value that systemd ignores
            found.append(Finding("error", *_halves(str(error)), id="systemd.ignored-value"))
    return list(dict.fromkeys(found))


def _halves(text: str) -> tuple[str, str]:
    what, _, remedy = text.rpartition(": ")
    return f"{what}.", remedy


def _is_notified(unit: UnitFile) -> bool:
    """Return whether systemd hears the worker process; Type=notify and a watchdog both imply NotifyAccess=main."""
    hears = unit.text("NotifyAccess", "none") != "none"
    return hears or unit.text("Type") in _NOTIFYING or bool(unit.seconds("WatchdogSec", 0.0))


def _command(unit: UnitFile, expected: Expected) -> Iterator[Finding]:
    """Compare the names of the classes only, because a class can be imported from several modules."""
    words = unit.words("ExecStart")
    # A program of one's own that calls `steadyworker.run` names no Worker, and neither does `steadyworker exec`.
    if "run" not in words or "exec" in words[: words.index("run")]:
        return
    given = [word for word in words[words.index("run") :] if WORKER.fullmatch(word)]
    ours = [spec.target for spec in expected.specs]
    if given and {word.rpartition(":")[2] for word in given} != {target.rpartition(":")[2] for target in ours}:
        what = f"{unit.name} runs {', '.join(given)}, and not {', '.join(ours)}."
        yield Finding(
            "error", what, "name the Workers of the unit for `check`, or correct ExecStart.", id="systemd.other-workers"
        )


def _settings(unit: UnitFile, options: Options) -> Iterator[Finding]:
    """Compare the settings that the unit itself sets with those of this check, because the numbers depend on them."""
    words, variables = unit.words("ExecStart"), unit.environment()
    for option in OPTIONS:
        if option.name in _URLS:
            continue
        raw = variables.get(f"{PREFIX}{option.name.upper()}")
        for place, word in enumerate(words):
            if word.startswith(f"{option.flag}="):
                raw = word.partition("=")[2]
            elif word == option.flag:
                raw = words[place + 1] if place + 1 < len(words) else None
        if raw is None:
            continue
        try:
            same = option.kind.read(raw) == getattr(options, option.name)
        except (ValueError, TypeError, OverflowError, RuntimeError, ConfigError):
            what = f"Expected {option.kind.expected} for {option.flag} in {unit.name}, got {redact(raw)!r}."
            yield Finding(
                "error",
                what,
                "correct the unit; the worker process would end with exit code 78.",
                id="systemd.wrong-setting",
            )
            continue
        if not same:
            what = (
                f"{unit.name} sets {option.flag} to {redact(raw)}, but this check has {getattr(options, option.name)}."
            )
            yield Finding(
                "warning",
                what,
                f"call `check` with the settings of the unit: {option.flag} {redact(raw)}.",
                id="systemd.other-setting",
            )


def _type(unit: UnitFile) -> Iterator[Finding]:
    kind = unit.text("Type", "simple")
    if kind in ("forking", "oneshot", "dbus"):
        what = f"{unit.name} has Type={kind}, but a worker process stays in the foreground and reports by sd_notify."
        yield Finding("error", what, f"set Type=notify in {unit.name}.", id="systemd.type")


def _stop(unit: UnitFile, numbers: Numbers) -> Iterator[Finding]:
    limit = unit.seconds("TimeoutStopSec", unit.seconds("TimeoutSec", _DEFAULT_STOP))
    limit = None if limit == 0 else limit
    if limit is not None and not _is_notified(unit) and limit < numbers.grace:
        what = f"systemd kills {unit.name} {limit:g} s after the start of a stop, but stop_within is {numbers.stop_within:g} s."
        remedy = f"set Type=notify, so that the worker process asks for more time, or TimeoutStopSec={numbers.grace}."
        yield Finding("error", what, remedy, id="systemd.short-stop")
    elif limit is not None and limit < min(numbers.grace, _FIRST_WORD):
        what = f"TimeoutStopSec={limit:g} in {unit.name} can end before a busy worker process has asked for more time."
        yield Finding("warning", what, f"set TimeoutStopSec={numbers.stop_silence}.", id="systemd.hasty-stop")
    mode = unit.text("KillMode", "control-group")
    if mode == "control-group":
        what = f"At the start of a stop, systemd sends SIGTERM to every program that a job of {unit.name} has started (KillMode=control-group)."
        yield Finding("warning", what, "set KillMode=mixed, so that jobs may finish.", id="systemd.kill-mode-group")
    elif mode in ("process", "none"):
        what = f"After a stop of {unit.name}, programs of its jobs can go on beside the next run (KillMode={mode})."
        yield Finding("error", what, "set KillMode=mixed.", id="systemd.kill-mode-process")
    if (sent := unit.text("KillSignal", "SIGTERM")) not in _STOP_SIGNALS:
        what = f"systemd stops {unit.name} with {sent}, which ends the worker process at once, without a graceful stop."
        yield Finding("error", what, "remove KillSignal, or set KillSignal=SIGTERM.", id="systemd.kill-signal")
    if unit.values("SendSIGKILL") and not unit.flag("SendSIGKILL"):
        what = f"systemd never kills {unit.name} when it hangs in its stop (SendSIGKILL=no)."
        yield Finding("warning", what, "remove SendSIGKILL.", id="systemd.no-sigkill")


def _watchdog(unit: UnitFile, numbers: Numbers) -> Iterator[Finding]:
    limit = unit.seconds("WatchdogSec", 0.0)
    if not limit:
        what = f"systemd does not notice when threads of {unit.name} hang, because it has no WatchdogSec."
        yield Finding("warning", what, f"set WatchdogSec={numbers.watchdog}.", id="systemd.no-watchdog")
    elif limit < numbers.watchdog:
        what = (
            f"WatchdogSec={limit:g} in {unit.name} is too short: a process that stands still for "
            f"up to {numbers.watchdog} s loses no job, and should not be ended."
        )
        yield Finding("warning", what, f"set WatchdogSec={numbers.watchdog}.", id="systemd.hasty-watchdog")


def _restart(unit: UnitFile) -> Iterator[Finding]:
    restart = unit.text("Restart", "no")
    if restart not in _RESTARTING:
        what = f"systemd does not start {unit.name} again after each failure (Restart={restart})."
        yield Finding("warning", what, "set Restart=on-failure.", id="systemd.no-restart")
    if restart != "no" and str(EX_CONFIG) not in _statuses(unit, "RestartPreventExitStatus"):
        what = (
            f"After a wrong setting or a refused login (exit code {EX_CONFIG}), {unit.name} restarts again and again."
        )
        yield Finding("error", what, f"set RestartPreventExitStatus={EX_CONFIG}.", id="systemd.restarts-in-vain")
    if str(EX_TERMINATED) not in _statuses(unit, "SuccessExitStatus"):
        what = f"A stop that has to kill a job (exit code {EX_TERMINATED}) leaves {unit.name} in the state failed."
        yield Finding("warning", what, f"set SuccessExitStatus={EX_TERMINATED}.", id="systemd.success-exit-status")


def _statuses(unit: UnitFile, directive: str) -> set[str]:
    return {{"CONFIG": str(EX_CONFIG)}.get(word, word) for word in unit.words(directive)}


def _memory(unit: UnitFile) -> Iterator[Finding]:
    if (policy := unit.text("OOMPolicy", "stop")) != "continue":
        what = f"When one job runs out of memory, systemd ends all of {unit.name} (OOMPolicy={policy})."
        yield Finding("warning", what, "set OOMPolicy=continue.", id="systemd.oom-policy")


def _state(unit: UnitFile, expected: Expected) -> Iterator[Finding]:
    folders = unit.words("StateDirectory")
    ledger_here, brokers = expected.options.ledger_is_local, expected.brokers
    if not folders:
        here = ledger_here or any(broker.one_host for broker in brokers)
        if here and (unit.flag("DynamicUser") or unit.text("ProtectSystem") == "strict"):
            what = f"{unit.name} has no StateDirectory, so its worker process cannot write its ledger and queues."
            yield Finding(
                "error",
                what,
                "set StateDirectory=steadyworker and StateDirectoryMode=0700.",
                id="systemd.no-state-directory",
            )
        return
    if unit.text("StateDirectoryMode", "0755").lstrip("0") != "700":
        what = f"Every user of the machine can read the state directory of {unit.name}, which has payloads and checkpoints."
        yield Finding("warning", what, "set StateDirectoryMode=0700.", id="systemd.readable-state")
    if ledger_here and not expected.on_one_host and re.search("%[iInNpj]", folders[0]):
        what = f"Each instance of {unit.name} has a ledger of its own, but all consumers of a queue must share one."
        yield Finding(
            "error",
            what,
            "set a StateDirectory without %i, or a ledger postgresql://….",
            id="systemd.ledger-per-instance",
        )


def _sandbox(unit: UnitFile, expected: Expected) -> Iterator[Finding]:
    if unit.text("ProcSubset") == "pid":
        what = (
            f"ProcSubset=pid in {unit.name} hides the id of this boot, without which a worker process does not start."
        )
        yield Finding("error", what, "remove ProcSubset=pid.", id="systemd.proc-subset")
    if expected.on_one_host:
        return
    if unit.flag("PrivateNetwork"):
        what = f"{unit.name} has no network (PrivateNetwork=yes), so it cannot reach its broker or ledger."
        yield Finding("error", what, "remove PrivateNetwork.", id="systemd.private-network")
    if not _allows_internet(unit.words("RestrictAddressFamilies")):
        what = f"RestrictAddressFamilies in {unit.name} allows no connection to a broker or ledger."
        yield Finding(
            "error", what, "set RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX.", id="systemd.address-families"
        )
    if "any" in unit.words("IPAddressDeny") and not unit.words("IPAddressAllow"):
        what = f"{unit.name} may reach no address (IPAddressDeny=any), so it cannot reach its broker or ledger."
        yield Finding("error", what, "add their addresses with IPAddressAllow.", id="systemd.ip-address-deny")


def _allows_internet(families: Sequence[str]) -> bool:
    """Return whether `RestrictAddressFamilies=` allows IPv4 or IPv6: a list that begins with `~` forbids its families."""
    if not families:
        return True
    named = {family.lstrip("~") for family in families} & _INTERNET
    return named != _INTERNET if families[0].startswith("~") else bool(named)


def _secrets(unit: UnitFile) -> Iterator[Finding]:
    for directive in ("Environment", "ExecStart"):
        if any(redact(value) != value for value in unit.values(directive)):
            what = f"{directive} in {unit.name} has a password, which every user of the machine can read."
            remedy = "put the URL into a file of root's; LoadCredential=broker-url:FILE, Environment=STEADYWORKER_BROKER_FILE=%d/broker-url."
            yield Finding("warning", what, remedy, id="systemd.readable-password")
