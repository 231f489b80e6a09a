"""
The files for systemd 250 and newer: a unit for worker processes, a target for several of them, and a timer that sends jobs.

| file | content |
|---|---|
| `NAME@.service` | one worker process; each instance is one more |
| `NAME.target` | all worker processes of a machine |
| `NAME-send.service`, `NAME-send.timer` | one job a day, instead of cron |

A URL that has a password never stands in a unit, because every user of the machine can read a unit.
It stays in a file of root's, and systemd hands the worker process a copy (`LoadCredential=` in systemd.exec(5)).
systemd has no comments at the end of a line, so each reason stands above its line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from steadyworker.config.options import PREFIX, as_variable
from steadyworker.config.resolve import Options
from steadyworker.config.services import all_options
from steadyworker.deploy.numbers import RESTART_AFTER, START_WITHIN, Numbers
from steadyworker.errors import ConfigError
from steadyworker.spec import WorkerSpec
from steadyworker.text.redaction import is_secret_name, redact

_TEMPLATES = "templates/systemd"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_CREDENTIALS = ("broker", "ledger")
_SYSTEM_FOLDERS = ("/etc/", "/run/")
_MINUTE, _HOUR = 60, 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """
    The names and places on the machine.

    Attributes:
        name: The name of the units, of their user, of the state directory below /var/lib, and of the folder below /etc.
        directory: The folder of the Worker's module.
        program: The `steadyworker` command; None is the one of a virtual environment `venv` in `directory`.

    Raises:
        ConfigError: The name is not fit for a unit and a user, or a path is not absolute.
    """

    name: str = "steadyworker"
    directory: Path = Path("/opt/steadyworker")
    program: Path | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"Expected a name of up to 31 lower-case letters, digits and hyphens, got {self.name!r}: "
                "it names units, a user and folders; set another --name."
            )
        for path in (self.directory, self.command):
            if not path.is_absolute():
                raise ConfigError(f"Expected an absolute path, got {str(path)!r}: systemd accepts no other one.")

    @property
    def command(self) -> Path:
        """The path of the `steadyworker` command."""
        return self.program or self.directory / "venv/bin/steadyworker"

    @property
    def folder(self) -> Path:
        """The folder of settings and secrets."""
        return Path("/etc", self.name)


@dataclass(frozen=True, slots=True)
class Send:
    """A job for each day: its Worker, its time (`OnCalendar=` in systemd.timer(5)), and its payload as JSON."""

    target: str
    calendar: str
    payload: str


def units(
    specs: Sequence[WorkerSpec],
    options: Options,
    numbers: Numbers,
    layout: Layout,
    *,
    instances: int = 1,
    spark: bool = False,
    send: Send | None = None,
) -> dict[str, str]:
    """
    Return the text of each file by its name.

    Args:
        specs: The Workers that one worker process runs.
        options: The settings; those of the command line and of the environment go into the unit, without secrets.
        numbers: The numbers of these Workers and settings.
        layout: The names and places on the machine.
        instances: The number of worker processes that the target starts.
        spark: True leaves out the settings under which Java does not run.
        send: A job for a timer.

    Raises:
        ConfigError: A setting of the command line or the environment has a secret, or a text has a line break.
    """
    values = {
        "name": layout.name,
        "targets": " ".join(spec.target for spec in specs),
        "directory": _text(layout.directory),
        "program": _text(layout.command),
        "settings": "\n".join(_settings(options, layout)),
        "hardening": (_template("hardening.conf") + _template("spark.conf" if spark else "strict.conf")).rstrip(),
    }
    found = {
        f"{layout.name}@.service": _filled("worker.service", values | _times(numbers)),
        f"{layout.name}.target": _filled(
            "worker.target",
            values
            | {
                "count": f"{instances} worker process{'es' if instances > 1 else ''}",
                "instances": " ".join(f"{layout.name}@{number}.service" for number in range(1, instances + 1)),
            },
        ),
    }
    if send is not None:
        values |= {"target": send.target, "calendar": _line(send.calendar), "command": _send_command(send, layout)}
        found[f"{layout.name}-send.service"] = _filled("send.service", values)
        found[f"{layout.name}-send.timer"] = _filled("send.timer", values)
    return found


def secret_files(options: Options, layout: Layout) -> dict[str, Path]:
    """Return the file of each URL that the unit gets as a credential, by the credential's name."""
    found = {}
    for name in _CREDENTIALS:
        path = options.files.get(name)
        if path is not None or (_is_given_here(name, options) and not _is_of_this_host(name, options)):
            found[f"{name}-url"] = path if path and _is_of_the_machine(path) else layout.folder / f"{name}-url"
    return found


def config_file(options: Options, layout: Layout) -> Path | None:
    """Return the settings file on the machine, or None if these settings come from no file."""
    path = options.config
    return path if path is None or _is_of_the_machine(path) else layout.folder / path.name


def _settings(options: Options, layout: Layout) -> Iterator[str]:
    if (path := config_file(options, layout)) is not None:
        yield _environment("CONFIG", str(path))
    secrets = secret_files(options, layout)
    for credential, path in secrets.items():
        yield f"LoadCredential={credential}:{_text(path)}"
        yield _environment(f"{credential.removesuffix('-url').upper()}_FILE", f"%d/{credential}", specifiers=True)
    for option in all_options():
        name, value = option.name, options.value(option)
        if name == "state_dir" or f"{name}-url" in secrets or not _is_given_here(name, options):
            continue
        text = as_variable(value)
        if redact(text) != text or (isinstance(value, Mapping) and any(map(is_secret_name, value))):
            raise ConfigError(
                f"Expected {options.origins[name]} without a secret, because every user of a machine can read a unit: "
                f"put it into {layout.folder / 'steadyworker.toml'}, and name that file with --config."
            )
        yield _environment(name.upper(), text)


def _is_given_here(name: str, options: Options) -> bool:
    """Return whether a setting comes from the command line or the environment of this process."""
    origin = options.origins.get(name, "default")
    return origin != "default" and (options.config is None or str(options.config) not in origin)


def _is_of_this_host(name: str, options: Options) -> bool:
    return getattr(options, name).partition(":")[0] in ("sqlite", "memory")


def _is_of_the_machine(path: Path) -> bool:
    """Return whether a path looks like one of the machine that gets the unit, and not like one of a developer."""
    return str(path).startswith(_SYSTEM_FOLDERS)


def _times(numbers: Numbers) -> dict[str, str]:
    limit, finishes = numbers.time_limit, numbers.finishes_within
    stop = f"A stop takes at most {span(numbers.stop_within)} (stop_within): "
    if finishes is None or numbers.interrupts_after < (limit or 0):
        stop += f"jobs may finish for {span(numbers.interrupts_after)}, then they are interrupted, and go on after the restart."
        if finishes is not None:
            stop += f"\n# With stop_within = {finishes}, every job could finish: its time limit is {span(limit or 0)}."
    else:
        stop += f"every job can finish, because the longest time limit is {span(limit or 0)}."
    waits = f"its jobs can be taken over after {span(numbers.lost_after)} (lease and margin)"
    if numbers.broker_notices:
        waits = f"the broker waits {span(numbers.broker_notices)} (three heartbeats), and " + waits
    return {
        "start_reason": "Only imports take time.",
        "start_within": str(START_WITHIN),
        "watchdog_reason": f"A process that stands still for less time loses nothing: {waits}.",
        "watchdog": str(numbers.watchdog),
        "stop_reason": stop,
        "stop_silence": str(numbers.stop_silence),
        "restart_after": str(RESTART_AFTER),
    }


def span(seconds: float) -> str:
    """Return a duration for people, exactly: `3 h`, `90 s`, `3 h 0 min 13 s`."""
    hours, rest = divmod(seconds, _HOUR)
    minutes, left = divmod(rest, _MINUTE)
    if seconds < 2 * _MINUTE:
        return f"{seconds:g} s"
    parts = [(hours, "h"), (minutes, "min"), (left, "s")]
    return " ".join(f"{value:g} {unit}" for value, unit in parts if value)


def _send_command(send: Send, layout: Layout) -> str:
    """Return the command line that sends the job; the day is part of the key, so a shell has to make it."""
    script = f'exec {shlex.quote(str(layout.command))} send {shlex.quote(send.target)} "$1" --key "{layout.name}-$(date +%F)"'
    return f"/bin/sh -c {_quoted(script)} send {_quoted(_line(send.payload))}"


def _environment(name: str, value: str, *, specifiers: bool = False) -> str:
    """Return the line that sets a variable; `specifiers` leaves systemd's own, such as %d, in the value."""
    text = _line(f"{PREFIX}{name}={value}")
    escaped = text if specifiers else text.replace("%", "%%")
    return f"Environment={escaped if _is_bare(text) else _in_quotes(escaped)}"


def _quoted(text: str) -> str:
    """Return one argument of a command line of systemd (systemd.service(5), "Command lines")."""
    return _in_quotes(text.replace("%", "%%").replace("$", "$$"))


def _in_quotes(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _is_bare(text: str) -> bool:
    return re.fullmatch(r"[\w./:@%+,=-]+", text, re.ASCII) is not None


def _text(path: Path) -> str:
    """Return a path for a unit; one that needs quotes is refused, because not every directive accepts quotes."""
    if not _is_bare(text := str(path)) or "%" in text:
        raise ConfigError(f"Expected a path of letters, digits and ./:@+,=-_ for a unit, got {text!r}: choose another.")
    return text


def _line(text: str) -> str:
    if not text.isprintable():
        raise ConfigError(f"Expected one line of printable text for a unit, got {text!r}: remove the other characters.")
    return text


def _template(name: str) -> str:
    return files("steadyworker.deploy").joinpath(_TEMPLATES, name).read_text(encoding="utf-8")


def _filled(name: str, values: Mapping[str, str]) -> str:
    text = Template(_template(name)).substitute(values)
    return re.sub(r"\n{3,}", "\n\n", text.replace("\n\nExecStart", "\nExecStart"))
