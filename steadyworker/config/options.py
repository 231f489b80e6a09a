"""
The table of settings, which has the name, the accepted values and the default of each setting.

The command line's flags, the environment, the configuration file, `check` and the help texts all use this table.
A service that is installed adds settings of its own (`services.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from steadyworker.adapter import DELAYS
from steadyworker.units import parse_seconds, parse_size

PREFIX = "STEADYWORKER_"

_PORTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: its name in the help, the text for an error's "Expected …", and the function that reads such a value."""

    metavar: str
    expected: str
    read: Callable[[Any], Any]
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """
    One setting.

    `default` is None if the default depends on the state directory, or if the option is off until it is set.
    """

    name: str
    kind: Kind
    default: Any
    help: str

    @property
    def flag(self) -> str:
        """The command line's flag, like `--stop-within`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable, like `STEADYWORKER_STOP_WITHIN`."""
        return PREFIX + self.name.upper()

    @property
    def names(self) -> tuple[str, str]:
        """The names by which the setting can be given: with its value, and with a file that holds the value."""
        return self.name, f"{self.name}_file"


def _at_least(least: float, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def bounded(value: Any) -> Any:
        number = read(value)
        if number < least:
            raise ValueError("too small")
        return number

    return bounded


def _whole(value: Any) -> int:
    return msgspec.convert(value, int, strict=False)


def _text(value: Any) -> str:
    text = msgspec.convert(value, str)
    if not text or "\0" in text:
        raise ValueError("empty, or has a NUL character")
    return text


def _size(value: Any) -> int:
    return parse_size(value) if isinstance(value, str) else msgspec.convert(value, int)


def _delay_levels(value: Any) -> tuple[float, ...]:
    steps = value.replace(",", " ").split() if isinstance(value, str) else value
    levels = tuple(parse_seconds(step) for step in msgspec.convert(steps, list[Any]))
    if not levels or levels[0] <= 0 or list(levels) != sorted(set(levels)):
        raise ValueError("not ascending")
    return levels


def _address(value: Any) -> str:
    host, _, port = str(value).rpartition(":")
    if not 0 <= _whole(port) < _PORTS:
        raise ValueError("no port")
    return f"{host or '127.0.0.1'}:{port}"


def _folder(value: Any) -> Path:
    path = Path(_text(str(value) if isinstance(value, Path) else value))
    try:
        return path.expanduser()
    except RuntimeError as error:  # `~name` names a user that does not exist
        raise ValueError("no such home directory") from error


def _choice(*choices: str) -> Kind:
    return Kind("|".join(choices), "one of " + ", ".join(choices), lambda value: _chosen(value, choices), choices)


def _chosen(value: Any, choices: tuple[str, ...]) -> str:
    text = msgspec.convert(value, str).lower()
    if text not in choices:
        raise ValueError("no such choice")
    return text


_URL = Kind("URL", "a URL", _text)
NAME = Kind("NAME", "a name", _text)
_FOLDER = Kind("DIR", "a folder", _folder)
SECONDS = Kind("SECONDS", "seconds, or a text like 90s, 15m or 1h 30m", parse_seconds)
_BUDGET = Kind(
    "SECONDS", "at least 1 second, as a number or a text like 90s, 15m or 1h 30m", _at_least(1, parse_seconds)
)
_COUNT = Kind("N", "a whole number of at least 1", _at_least(1, _whole))
_SIZE = Kind("SIZE", "bytes, or a text like '2 GiB'", _at_least(1, _size))
_DELAY_LEVELS = Kind("SECONDS,...", "ascending durations above 0, like 1s,5s,1m", _delay_levels)
_ADDRESS = Kind("[HOST:]PORT", "a port, or host:port", _address)

OPTIONS: tuple[Option, ...] = (
    Option(
        "broker",
        _URL,
        None,
        "The broker with the queues: sqlite:PATH, amqp[s]://USER:PASSWORD@HOST/VHOST for RabbitMQ, stomp[+ssl]://USER:PASSWORD@HOST for ActiveMQ, rocketmq+grpc://PROXY?namesrv=HOST or rocketmq://NAMESERVER for RocketMQ [default: a file in the state directory].",
    ),
    Option(
        "ledger",
        _URL,
        None,
        "The ledger, the record of jobs: sqlite:PATH for one host, postgresql://… for several hosts [default: a file in the state directory].",
    ),
    Option(
        "namespace",
        NAME,
        None,
        "Name that separates this broker's jobs from another broker's in the ledger [default: the broker's identity].",
    ),
    Option(
        "state_dir",
        _FOLDER,
        None,
        "Folder for the default files and locks [default: $STATE_DIRECTORY, else $XDG_STATE_HOME/steadyworker].",
    ),
    Option(
        "stop_within", _BUDGET, 28.0, "Time for a whole stop; keep it below the platform's limit (Kubernetes: 30 s)."
    ),
    Option("max_jobs", _COUNT, None, "Stop gracefully after this many jobs."),
    Option(
        "max_rss",
        _SIZE,
        None,
        "Stop gracefully, with exit code 75, when the worker process itself uses this much memory.",
    ),
    Option("idle_exit", SECONDS, None, "Stop gracefully after this time without a job."),
    Option(
        "give_up_after",
        SECONDS,
        None,
        "Stop with exit code 69 after this time without a connection to the broker [default: never].",
    ),
    Option(
        "orphan_after",
        SECONDS,
        None,
        "Time without a message after which a job's message counts as lost, and the job runs with the ledger's copy [default: the shortest that is safe with this broker, at least 90s].",
    ),
    Option(
        "ledger_reach",
        _choice("host"),
        None,
        "`host`: you state that all consumers of these queues are on this host and share this ledger. SteadyWorker does not check this.",
    ),
    Option(
        "ledger_limit",
        _SIZE,
        None,
        "Size above which a sqlite: ledger drops attempts, tracebacks and results, the oldest first; it never drops a job [default: no limit].",
    ),
    Option(
        "on_ledger_loss",
        _choice("stop", "finish"),
        None,
        "`stop` ends a run whose lease expires, `finish` lets it go on; its next checkpoint waits for the ledger [default: stop with a postgresql:// ledger, else finish].",
    ),
    Option(
        "topology",
        _choice("declare", "verify", "trust"),
        "declare",
        "Create missing queues (declare), only check that they exist (verify), or do not check (trust).",
    ),
    Option(
        "delays",
        _DELAY_LEVELS,
        tuple(map(float, DELAYS)),
        "Delay levels of retries; a broker without delayed messages gets a retry queue for each level.",
    ),
    Option(
        "health", _ADDRESS, None, "Serve /livez and /readyz at this address; a port without a host means 127.0.0.1."
    ),
    Option(
        "log_format", _choice("auto", "json", "pretty"), "auto", "auto: pretty on a terminal, JSON lines elsewhere."
    ),
    Option("log_level", _choice("debug", "info", "warning", "error"), "info", "The lowest level that is logged."),
    Option(
        "concurrency", _COUNT, None, "Number of slots, instead of the Worker's `concurrency`; for a single target only."
    ),
)


def as_variable(value: object) -> str:
    """Return a setting's value as the text of its environment variable."""
    match value:
        case tuple():
            return ",".join(f"{step:.15g}" for step in value)
        case float():
            return f"{value:.15g}"
        case Mapping():
            return ",".join(f"{name}={text}" for name, text in value.items())
        case _:
            return str(value)
