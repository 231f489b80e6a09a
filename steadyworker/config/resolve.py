"""
Settings: one rule, `--x-y` = `STEADYWORKER_X_Y` = `x_y` in `steadyworker.toml`, in this order, then the default.

Each may be given as a file that holds the value: `--x-y-file`, `STEADYWORKER_X_Y_FILE`, `x_y_file` (for secrets).
An empty environment variable counts as not given.
All that is wrong is said at once, in one ConfigError.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from steadyworker.config.options import OPTIONS, PREFIX, Kind, Option
from steadyworker.errors import ConfigError, Finding
from steadyworker.telemetry.redaction import redact
from steadyworker.units import parse_seconds

__all__ = ["OPTIONS", "Kind", "Option", "Options", "load", "parse_seconds"]

FILE_NAME = "steadyworker.toml"

_VALUE_BYTES = 64 << 10
_LOCAL_LEDGERS = ("sqlite", "memory")
_WORKER_DURATIONS = ("time_limit", "stall_limit")
# What Kubernetes sets in every container beside a Service named steadyworker, or steadyworker-something.
_SERVICE_LINK = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """
    Where and how a process runs, checked; times in seconds, sizes in bytes.

    Attributes:
        workers: Per Worker's name, what the file's `[workers.NAME]` sets; `spec_of` checks it.
        origins: Per setting, who said it: a flag, a variable, the file's path, or `default`.
        files: Per setting whose value is held by a file, that file.
    """

    broker: str
    ledger: str
    namespace: str | None
    state_dir: Path
    stop_within: float
    max_jobs: int | None
    max_rss: int | None
    idle_exit: float | None
    give_up_after: float | None
    ledger_reach: Literal["host"] | None
    on_ledger_loss: Literal["stop", "finish"] | None
    topology: str
    delays: tuple[float, ...]
    health: str | None
    log_format: Literal["auto", "json", "pretty"]
    log_level: str
    spark_master: str
    spark_conf: Mapping[str, str]
    spark_stuck_after: float
    concurrency: int | None
    workers: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def ledger_is_local(self) -> bool:
        """Whether the ledger reaches this host only."""
        return self.ledger.partition(":")[0] in _LOCAL_LEDGERS

    @property
    def stops_on_ledger_loss(self) -> bool:
        """Whether a run whose lease ran out unrenewed is ended: by default where another host may take it over."""
        return self.on_ledger_loss == "stop" if self.on_ledger_loss is not None else not self.ledger_is_local

    def fresh(self, name: Literal["broker", "ledger"]) -> str:
        """
        The URL as its file holds it now, so that a rotated password is heard at the next connect.

        Raises ConfigError when the file cannot be read any longer.
        """
        if name not in self.files:
            return self.broker if name == "broker" else self.ledger
        return _held(self.files[name], self.origins[name])


def load(arguments: Mapping[str, object], environ: Mapping[str, str], cwd: Path, config: Path | None = None) -> Options:
    """
    Resolve every setting.

    Args:
        arguments: What the command line or the caller says, by option name; None is not given.
        environ: The environment.
        cwd: Where `steadyworker.toml` is looked for, unless `config` or STEADYWORKER_CONFIG names a file.
        config: A configuration file that must be there.

    Raises:
        ConfigError: Every wrong value and unknown key, each with what was expected, what was got and the remedy.
    """
    path = _file(environ, cwd, config)
    table = _toml(path) if path is not None else {}
    workers = table.pop("workers", {})
    layers = (
        _Layer({name: value for name, value in arguments.items() if value is not None}, _flag, cwd),
        _Layer(_variables(environ), _variable, cwd),
        _Layer(table, lambda name: f"{name} in {path}", path.parent if path is not None else cwd),
    )
    reading = _Reading([], {}, {})
    for layer in layers:
        reading.refuse_unknown(layer)
    values = {option.name: reading.value(option, layers) for option in OPTIONS}
    tables = reading.workers(workers, path)
    if reading.problems:
        raise ConfigError("\n".join(map(str, reading.problems)), reading.problems)
    if values["state_dir"] is None:
        values["state_dir"], reading.origins["state_dir"] = _state_dir(environ)
    # Children and Spark's processes may stand in other folders.
    values["state_dir"] = cwd / values["state_dir"]
    for name in ("broker", "ledger"):
        values[name] = values[name] or f"sqlite:{values['state_dir'] / name}.db"
    return Options(**values, workers=tables, origins=reading.origins, files=reading.files)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One place that settings come from: its values, how it spells a name, and what a relative file is relative to."""

    values: Mapping[str, object]
    spelled: Callable[[str], str]
    base: Path


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was found so far."""

    problems: list[Finding]
    origins: dict[str, str]
    files: dict[str, Path]

    def refuse_unknown(self, layer: _Layer) -> None:
        known = [name for option in OPTIONS for name in (option.name, f"{option.name}_file")]
        for name in layer.values:
            if name not in known:
                remedy = _near(name, known, layer.spelled) or "take it out; `steadyworker run --help` lists them all."
                self.problems.append(Finding("error", f"There is no setting {layer.spelled(name)}.", remedy))

    def value(self, option: Option, layers: Iterable[_Layer]) -> Any:
        """The setting from the first layer that has it; a problem is noted, and the default stands in."""
        for layer in layers:
            given = [name for name in (option.name, f"{option.name}_file") if name in layer.values]
            if not given:
                continue
            origin = self.origins[option.name] = layer.spelled(given[0])
            if len(given) > 1:
                both = f"{origin} and {layer.spelled(given[1])}"
                self.problems.append(Finding("error", f"Expected one of {both}, got both.", "take one out."))
                return option.default
            raw = layer.values[given[0]]
            shown = redact(repr(raw))
            try:
                if given[0] != option.name:
                    self.files[option.name] = layer.base / Path(msgspec.convert(raw, str)).expanduser()
                    raw, shown = _held(self.files[option.name], origin), "what that file holds"
                return option.kind.read(raw)
            except ConfigError as error:
                self.problems.extend(error.findings)
            except (ValueError, TypeError, OverflowError):
                what = f"Expected {option.kind.expected} for {origin}, got {shown}."
                remedy = _near(str(raw), option.kind.choices, str) or "correct it, or take it out for the default."
                self.problems.append(Finding("error", what, remedy))
            return option.default
        self.origins[option.name] = "default"
        return option.default

    def workers(self, tables: object, path: Path | None) -> dict[str, dict[str, object]]:
        """`[workers.NAME]`, each duration that is a text in seconds."""
        found: dict[str, dict[str, object]] = {}
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            what = f"Expected tables [workers.NAME] in {path}, got {tables!r}."
            self.problems.append(Finding("error", what, "write [workers.NAME], then one attribute a line."))
            return found
        for name, table in tables.items():
            found[name] = dict(table)
            for attribute in _WORKER_DURATIONS:
                if isinstance(text := table.get(attribute), str):
                    try:
                        found[name][attribute] = parse_seconds(text)
                    except ValueError:
                        where = f"{attribute} of [workers.{name}] in {path}"
                        what = f"Expected seconds or a text like 3h for {where}, got {text!r}."
                        self.problems.append(Finding("error", what, "correct it."))
        return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _near(name: str, known: Iterable[str], spelled: Callable[[str], str]) -> str:
    near = difflib.get_close_matches(name.lower().replace("-", "_"), list(known), n=1)
    return f"did you mean {spelled(near[0])}?" if near else ""


def _variables(environ: Mapping[str, str]) -> dict[str, object]:
    """Our variables by option name, without those of tests, of the file's own name, and of Kubernetes."""
    links = "KUBERNETES_SERVICE_HOST" in environ
    found: dict[str, object] = {}
    for variable, value in environ.items():
        name = variable.removeprefix(PREFIX)
        if name == variable or not value or name == "CONFIG" or name.startswith("TEST_"):
            continue
        if not (links and _SERVICE_LINK.fullmatch(name)):
            found[name.lower()] = value
    return found


def _file(environ: Mapping[str, str], cwd: Path, config: Path | None) -> Path | None:
    """The configuration file, or None; one that was named must be there."""
    if named := config or environ.get(_variable("config")):
        return cwd / named
    path = cwd / FILE_NAME
    return path if path.exists() else None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        finding = Finding(
            "error", f"Expected a configuration file, but {path} cannot be read: {error}.", "correct --config."
        )
    except tomllib.TOMLDecodeError as error:
        finding = Finding("error", f"Expected TOML in {path}, got: {error}.", "correct that line.")
    raise ConfigError(str(finding), [finding])


def _held(path: Path, origin: str) -> str:
    """The value that a file holds, without its last line end."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_VALUE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        what = f"Expected {origin} to name a file that holds the value, but {path} cannot be read: {error}."
        finding = Finding("error", what, "correct the path, or let this user read the file.")
        raise ConfigError(str(finding), [finding]) from error
    return text.rstrip("\r\n")


def _state_dir(environ: Mapping[str, str]) -> tuple[Path, str]:
    """The state directory and who says so: systemd gives a list; an XDG path that is not absolute counts as none."""
    if given := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(given), "$STATE_DIRECTORY"
    base = Path(environ.get("XDG_STATE_HOME", ""))
    if base.is_absolute():
        return base / "steadyworker", "$XDG_STATE_HOME"
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    return home / ".local" / "state" / "steadyworker", "default"
