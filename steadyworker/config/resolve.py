"""
Finds the value of each setting, in the first source that has a value.

The sources are, in this order: `--x-y`, `STEADYWORKER_X_Y`, `x_y` in `steadyworker.toml`, and the default.
For a secret, each setting can name a file with the value: `--x-y-file`, `STEADYWORKER_X_Y_FILE` or `x_y_file`.
An empty environment variable is treated as not given.
One ConfigError reports all problems at once.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from steadyworker.config.options import OPTIONS, PREFIX, Option, as_variable
from steadyworker.config.services import options_for
from steadyworker.errors import ConfigError, Finding
from steadyworker.findings import FindingTexts
from steadyworker.text.redaction import redact
from steadyworker.units import parse_seconds

__all__ = ["OPTIONS", "Option", "Options", "handed_on", "load"]

FILE_NAME = "steadyworker.toml"

_VALUE_BYTES = 64 << 10
_finding = FindingTexts("steadyworker.config")
_FLAG = "--"
OF_A_CLIENT = ("broker", "ledger", "namespace", "state_dir", "topology", "delays")
"""The settings that a client needs; a client is a program or a command that sends jobs."""

_WORKER_DURATIONS = ("time_limit", "stall_limit")
# If a namespace has a Service named steadyworker or steadyworker-something, Kubernetes sets these variables in every container of the namespace.
_SERVICE_LINK = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """
    All settings of a process, after all checks; times are in seconds, and sizes in bytes.

    Attributes:
        workers: The attributes that `[workers.NAME]` of the file sets, by the Worker's name; `spec_of` checks them.
        origins: The source of each setting: a flag, a variable, the configuration file's path, or `default`.
        files: The path of the file for each setting that was given as a file.
        config: The path of the configuration file, or None if there is no such file.
        of_services: The given settings of services, by name. `value` also returns settings that are not given.
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
    orphan_after: float | None
    ledger_reach: Literal["host"] | None
    ledger_limit: int | None
    on_ledger_loss: Literal["stop", "finish"] | None
    topology: str
    delays: tuple[float, ...]
    health: str | None
    log_format: Literal["auto", "json", "pretty"]
    log_level: str
    concurrency: int | None
    workers: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    config: Path | None = None
    of_services: Mapping[str, Any] = field(default_factory=dict)

    def value(self, option: Option) -> Any:
        """Return the value of a setting of the core or of a service."""
        if option in OPTIONS:
            return getattr(self, option.name)
        return self.of_services.get(option.name, option.default)

    @property
    def ledger_is_local(self) -> bool:
        """True if the ledger is for this host only."""
        return self.ledger.partition(":")[0] == "sqlite"

    @property
    def stops_on_ledger_loss(self) -> bool:
        """True if a run must end when its lease expires; the default is True if the ledger serves several hosts."""
        return self.on_ledger_loss == "stop" if self.on_ledger_loss is not None else not self.ledger_is_local

    def fresh(self, name: Literal["broker", "ledger"]) -> str:
        """
        Return the URL that this setting has.

        If the URL was given as a file, read that file again, so that the next connect uses a rotated password.
        Raises ConfigError if the file can no longer be read.
        """
        if name not in self.files:
            return self.broker if name == "broker" else self.ledger
        return _content(self.files[name], self.origins[name])


def load(arguments: Mapping[str, object], environ: Mapping[str, str], cwd: Path, config: Path | None = None) -> Options:
    """
    Check every setting, and return the values.

    Args:
        arguments: The values of the command line or the caller, by option name; None means not given.
        environ: The environment.
        cwd: The folder of `steadyworker.toml`, unless `config` or STEADYWORKER_CONFIG names a file.
        config: A configuration file that must exist.

    Raises:
        ConfigError: There are wrong values or unknown keys.
            The message lists all problems, each with the expected value, the given value, and the remedy.
    """
    path = _file(environ, cwd, config)
    table = _toml(path) if path is not None else {}
    workers = table.pop("workers", {})
    layers = (
        _Layer({name: value for name, value in arguments.items() if value is not None}, _flag, cwd),
        _Layer(_variables(environ), _variable, cwd),
        _Layer(table, lambda name: f"{name} in {path}", path.parent if path is not None else cwd),
    )
    given = {name for layer in layers for name in layer.values}
    options = options_for(given)
    reading = _Reading([], {}, {})
    for layer in layers:
        reading.refuse_unknown(layer, options)
    values = {option.name: reading.value(option, layers) for option in OPTIONS}
    of_services = {
        option.name: reading.value(option, layers)
        for option in options[len(OPTIONS) :]
        if not given.isdisjoint(option.names)
    }
    tables = reading.workers(workers, path)
    if reading.problems:
        raise ConfigError("\n".join(map(str, reading.problems)), reading.problems)
    if values["state_dir"] is None:
        values["state_dir"], reading.origins["state_dir"] = _state_dir(environ)
    # The path is absolute, because child processes and services can have other working directories.
    values["state_dir"] = cwd / values["state_dir"]
    for name in ("broker", "ledger"):
        values[name] = values[name] or f"sqlite:{values['state_dir'] / name}.db"
    return Options(
        **values, workers=tables, origins=reading.origins, files=reading.files, config=path, of_services=of_services
    )


def handed_on(options: Options, cwd: Path, config: Path | None = None) -> dict[str, str | None]:
    """
    Return the variables of the environment by which a handler's `Client()` gets the settings of this process's command line.

    The caller must remove a variable whose value is None.
    The other settings need no variable: a handler's process inherits the environment, and reads the file in the working directory.
    If a setting was given as a file, its variable names the file, so that no environment contains the secret.
    """
    found: dict[str, str | None] = {}
    if config is not None:
        found[_variable("config")] = str(cwd / config)
    for name in OF_A_CLIENT:
        if not options.origins[name].startswith(_FLAG):
            continue
        value, file = _variable(name), _variable(f"{name}_file")
        if name in options.files:
            found |= {value: None, file: str(options.files[name].absolute())}
        else:
            found |= {value: as_variable(getattr(options, name) or ""), file: None}
    return found


@dataclass(frozen=True, slots=True)
class _Layer:
    """One source of settings: its values, the spelling of its names, and the base folder of its relative paths."""

    values: Mapping[str, object]
    spelled: Callable[[str], str]
    base: Path


@dataclass(frozen=True, slots=True)
class _Reading:
    """The problems, origins and files that were found so far."""

    problems: list[Finding]
    origins: dict[str, str]
    files: dict[str, Path]

    def refuse_unknown(self, layer: _Layer, options: Sequence[Option]) -> None:
        known = [name for option in options for name in option.names]
        for name in layer.values:
            if name not in known:
                self.problems.append(_unknown(name, known, layer))

    def value(self, option: Option, layers: Iterable[_Layer]) -> Any:
        """
        Return the setting from the first layer that has it.

        If the value is wrong, record this, and return the default.
        """
        for layer in layers:
            given = [name for name in option.names if name in layer.values]
            if not given:
                continue
            origin = self.origins[option.name] = layer.spelled(given[0])
            if len(given) > 1:
                self.problems.append(_finding("config.given-twice", setting=origin, other=layer.spelled(given[1])))
                return option.default
            raw = layer.values[given[0]]
            shown = redact(repr(raw))
            try:
                if given[0] != option.name:
                    self.files[option.name] = layer.base / Path(msgspec.convert(raw, str)).expanduser()
                    raw, shown = _content(self.files[option.name], origin), "the content of that file"
                return option.kind.read(raw)
            except ConfigError as error:
                self.problems.extend(error.findings)
            except (ValueError, TypeError, OverflowError, RuntimeError):
                self.problems.append(_wrong(option, origin, raw, shown))
            return option.default
        self.origins[option.name] = "default"
        return option.default

    def workers(self, tables: object, path: Path | None) -> dict[str, dict[str, object]]:
        """Return the tables `[workers.NAME]`, and convert a duration that is a text to seconds."""
        found: dict[str, dict[str, object]] = {}
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            self.problems.append(_finding("config.workers-not-tables", path=path, value=tables))
            return found
        for name, table in tables.items():
            found[name] = dict(table)
            for attribute in _WORKER_DURATIONS:
                if isinstance(text := table.get(attribute), str):
                    try:
                        found[name][attribute] = parse_seconds(text)
                    except ValueError:
                        self.problems.append(
                            _finding("config.wrong-duration", attribute=attribute, worker=name, path=path, value=text)
                        )
        return found


def _unknown(name: str, known: Iterable[str], layer: _Layer) -> Finding:
    """Return the finding about a name that is no setting: a Worker's table, a misspelt setting, or an unknown name."""
    setting = layer.spelled(name)
    if layer.spelled is not _flag and isinstance(table := layer.values[name], dict):
        worker = next((inner for inner, value in table.items() if isinstance(value, dict)), name)
        return _finding("config.unknown-setting", "table", setting=setting, worker=worker)
    if near := _near(name, known):
        return _finding("config.unknown-setting", "misspelt", setting=setting, meant=layer.spelled(near))
    return _finding("config.unknown-setting", setting=setting)


def _wrong(option: Option, setting: str, value: object, shown: str) -> Finding:
    """Return the finding about a value that its setting cannot have; `shown` is the value without secrets."""
    expected = option.kind.expected
    if near := _near(str(value), option.kind.choices):
        return _finding("config.wrong-value", "misspelt", setting=setting, expected=expected, value=shown, meant=near)
    return _finding("config.wrong-value", setting=setting, expected=expected, value=shown)


def _flag(name: str) -> str:
    return _FLAG + name.replace("_", "-")


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _near(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, or None if no known name is similar."""
    return next(iter(difflib.get_close_matches(name.lower().replace("-", "_"), list(known), n=1)), None)


def _variables(environ: Mapping[str, str]) -> dict[str, object]:
    """Return SteadyWorker's variables by option name, without STEADYWORKER_CONFIG, and without the variables of tests and of Kubernetes."""
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
    """Return the configuration file's path, or None if no option or variable names a file, and `cwd` has no such file."""
    if named := config or environ.get(_variable("config")):
        return cwd / named
    path = cwd / FILE_NAME
    return path if path.exists() else None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        finding = _finding("config.unreadable-file", path=path, error=error)
    except tomllib.TOMLDecodeError as error:
        finding = _finding("config.no-toml", path=path, error=error)
    raise ConfigError(str(finding), [finding])


def _content(path: Path, origin: str) -> str:
    """Return the content of a setting's file, without trailing line ends."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_VALUE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        finding = _finding("config.unreadable-value-file", setting=origin, path=path, error=error)
        raise ConfigError(str(finding), [finding]) from error
    return text.rstrip("\r\n")


def _state_dir(environ: Mapping[str, str]) -> tuple[Path, str]:
    """
    Return the state directory and its source.

    systemd sets STATE_DIRECTORY to a list of directories; the first directory counts.
    A value of XDG_STATE_HOME that is not absolute is ignored.
    """
    if given := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(given), "$STATE_DIRECTORY"
    base = Path(environ.get("XDG_STATE_HOME", ""))
    if base.is_absolute():
        return base / "steadyworker", "$XDG_STATE_HOME"
    try:
        home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    except RuntimeError as error:
        finding = _finding("config.no-home")
        raise ConfigError(str(finding), [finding]) from error
    return home / ".local" / "state" / "steadyworker", "default"
