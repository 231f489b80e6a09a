"""
The formats of logs, line by line: a collector's prefix, the beginning of a record, its time and its level.

Nothing here keeps state; `records.py` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

_ISO = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:[ ]?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_ZONED = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_PREFIX = re.compile(
    rf"""(?: <\d{{1,3}}> )?
        (?P<syslog> [A-Z][a-z]{{2}}\ [ \d]\d\ \d\d:\d\d:\d\d(?:\.\d{{1,6}})? )
        \ [\w.-]{{1,255}} \ (?P<unit> [^\s:\[\]]{{1,128}} (?: \[\d{{1,10}}\] )? ) :[ ]     # journald, syslog
      | (?P<iso> {_ZONED} ) \ [\w.-]{{1,255}} \ (?P<daemon> [^\s:\[\]]{{1,128}} \[\d{{1,10}}\] ) :[ ]
      | (?P<cri> {_ZONED} ) \ std(?:out|err)\ [FP]\                                         # the files of containerd
      | (?P<docker> {_ZONED} ) \                                                           # docker logs -t
        (?= [\[(]?\d{{4}}[-/]\d\d[-/]\d\d[T\ ] | =[A-Z]+\ REPORT==== | \{{ | [DIWEFAU],\ \[ )
      | (?P<nanos> \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{7,9}}(?:Z|[+-]\d\d:\d\d) ) \       # the same, before plain text
      | (?! (?: TRACE | DEBUG | INFO | WARN | WARNING | ERROR | FATAL ) \b )
        (?P<service> [A-Za-z][\w.-]{{0,63}} ) \ {{1,40}} \|\ ?                           # docker compose
      | \[(?P<pod> pod/[\w./-]{{1,300}} )\]\                                               # kubectl logs --prefix
    """,
    re.VERBOSE,
)
_MOST_PREFIXES = 3

_RABBIT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d) \[\w+\] <[\d.]+> ?")
_STAMP = re.compile(
    rf"""(?: [DIWEFAU],\ )? [\[(]{{0,1}} (?P<iso> {_ISO} )
      | =[A-Z]+\ REPORT====\ (?P<erlang> \d{{1,2}}-[A-Z][a-z]{{2}}-\d{{4}}::\d\d:\d\d:\d\d )
      | \[(?P<php> \d\d-[A-Z][a-z]{{2}}-\d{{4}}\ \d\d:\d\d:\d\d )
      | (?P<java> [A-Z][a-z]{{2}}\ \d{{1,2}},\ \d{{4}}\ \d{{1,2}}:\d\d:\d\d\ [AP]M )
      | (?P<clock> \d\d:\d\d:\d\d[.,]\d{{3}} )\ [\[A-Z]
    """,
    re.VERBOSE,
)
_LEVELED = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.-]*:"
    r"|\d{1,4}[smhd](?:\d{1,2}[smh])?\s{2,20}(?:Normal|Warning)\s{2,20}[A-Z]"  # kubectl get events
)
_BELONGS = re.compile(
    r"[\s})\]]|Caused by: |Suppressed: |\.\.\. \d+ more|Stack trace:|#\d+ |During handling of the above|The above exception was"
)
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above", "The above exception was")

_HEAD = 160  # the number of a record's first characters in which the level is searched
_LEVEL = re.compile(
    r"(?:^|[\s|\[(.:\"=,])(?P<level>trace|debug|info|notice|warn(?:ing)?|error|severe|fatal|critical|alert|emergency"
    r"|TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|SEVERE|FATAL|CRITICAL|ALERT|EMERGENCY)\s*(?=[\s|\]/):]|$)"
)
_LOWER = re.compile(r"\[(?P<level>debug|info|notice|warning|error|critical|alert|emergency)\s*\]")
_FAILED = re.compile(
    rf"^(?:{re.escape(_TRACEBACK)}|PHP Fatal error|Exception in thread|(?:Uncaught|Unhandled) |SEVERE: )|^=(?:ERROR|CRASH|SUPERVISOR) REPORT",
    re.MULTILINE,
)
_FAILING = re.compile(
    r"\b\w*(?:Error|Exception)(?=: |$)|\bpanic(?:: |ked at )|\bKilled process \d|\bSIG(?:KILL|SEGV|ABRT)\b|\bOOM ?[Kk]ill|\bOOM\b"
    r"|\b[Oo]ut of memory\b|\b[Ee]xit (?:code|status):? ?(?:137|139|134)\b|\bFATAL\b|^E/\w|^E\d{4} \d\d:\d\d:\d\d|\bTraceback \(",
    re.MULTILINE,
)
_UNCALM = frozenset({"", "warn", "warning"})
_ERRORS = frozenset({"error", "severe", "fatal", "critical", "alert", "emergency"})

ERROR_MARKS = (
    *("[error", "[critical", "[alert", "[emergency", "ERROR", "CRITICAL", "FATAL", "SEVERE", "CRASH REPORT===="),
    *(_TRACEBACK, "PHP Fatal error", "Exception in thread", "Uncaught ", "Unhandled ", "SUPERVISOR REPORT===="),
    *(
        f'"{name}":{space}"{spelled}"'
        for name in ("level", "severity")
        for space in ("", " ")
        for level in sorted(_ERRORS)
        for spelled in (level, level.title(), level.upper())
    ),
    *("Error: ", "Exception: ", "panic: ", "panicked at ", "Killed process", "SIGKILL", "SIGSEGV", "SIGABRT", "OOM"),
    *("ut of memory", "xit code", "xit status"),
)
"""Texts for the search of errors; each record with the level of an error (`is_error`) has one of them or `ERROR_NUMBER`."""
ERROR_NUMBER = re.compile(rb'level\\*": ?[56]0')
"""The levels of pino and bunyan."""

_MESSAGES = ("msg", "message", "event", "@message")
_TIMES = ("time", "timestamp", "datetime", "@timestamp", "ts", "asctime")
_LEVELS = ("level", "level_name", "severity", "levelname")
_TRACES = ("stack", "exception", "exc_info", "traceback")
_MILLISECONDS = 1e11  # a larger number is not a time in seconds
_NODE_LEVELS = {10: "trace", 20: "debug", 30: "info", 40: "warning", 50: "error", 60: "critical"}


@dataclass(frozen=True, slots=True)
class Start:
    """
    The beginning of a record.

    Attributes:
        stamp: The record's time, as it is written in the log.
        head: The text that each further line of this record repeats; empty in most formats.
        whole: Whether every line up to the beginning of the next record belongs to this record.
    """

    stamp: str = ""
    head: str = ""
    whole: bool = False


def prefix(line: str) -> tuple[str, str, str]:
    """Return the process that a collector names, the line without the collector's prefix, and the collector's time."""
    process, stamp, at = "", "", 0
    for _ in range(_MOST_PREFIXES):
        if (found := _PREFIX.match(line, at)) is None:
            break
        process += found["unit"] or found["daemon"] or found["service"] or found["pod"] or ""
        stamp = next(filter(None, (found[name] for name in ("syslog", "iso", "cri", "docker", "nanos"))), stamp)
        at = found.end()
    return process, line[at:] if at else line, stamp


def start(text: str) -> Start | None:
    """Return the beginning of a record if a record begins here; None if the line may belong to the record before."""
    if (found := _RABBIT.match(text)) is not None:
        return Start(found[1], found[0].rstrip(" ") + " ", whole=True)
    if (found := _STAMP.match(text)) is not None:
        return Start(found[found.lastgroup or 0], whole=True)
    return Start() if _LEVELED.match(text) else None


def continues(lines: Sequence[str], begun: Start, text: str, begins: Start | None) -> bool:
    """Return whether a line belongs to the record that begins with `lines`."""
    if begins is not None:
        return False
    if begun.whole or _BELONGS.match(text):
        return True
    traced = any(line.startswith(_TRACEBACK) for line in (lines[-1], *lines[:2]))
    if text.startswith(_TRACEBACK):
        return bool(_LEVELED.match(lines[0])) or _chained(lines)
    if not text:
        return traced
    return traced and not _ended(lines)


def _chained(lines: Sequence[str]) -> bool:
    """Return whether the last line that is not blank announces a second traceback."""
    return next((line.startswith(_CHAINED) for line in reversed(lines) if line), False)


def _ended(lines: Sequence[str]) -> bool:
    """Return whether a Python traceback has reached the line that names the exception."""
    return bool(lines[-1]) and not lines[-1][0].isspace() and not lines[-1].startswith((_TRACEBACK, *_CHAINED))


def as_line(text: str) -> str:
    """
    Return a line of JSON as the line of text that the same program writes without JSON; return other text unchanged.

    RabbitMQ, docker, structlog, monolog, pino, bunyan and winston use different names for time, level and message.
    """
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    if not isinstance(fields, dict):
        return text
    inner = fields.get("log") if "stream" in fields else fields.get("MESSAGE")  # docker's json-file, journalctl -o json
    if isinstance(inner, str):
        return inner.rstrip("\n")
    message = _first(fields, *_MESSAGES)
    if message is None or fields.get("kind") == "flag":
        return text
    time = _first(fields, *_TIMES)
    level = _first(fields, *_LEVELS)
    front = [_time(time), f"[{_level(level)}]" if level is not None else ""]
    front.append(str(pid) if str(pid := fields.get("pid", "")).startswith("<") else "")  # RabbitMQ's process
    used = {"msg", "message", "event", "time", "timestamp", "datetime", "level", "level_name", "severity", "stack"}
    rest = [
        f"{name}={_text(value)}" for name, value in fields.items() if name not in used and value not in ({}, [], "")
    ]
    line = " ".join(part for part in (*front, str(message), *rest) if part)
    traces = [str(value) for name in _TRACES if isinstance(value := fields.get(name), str)]
    if isinstance(cause := fields.get("err") or fields.get("error"), dict) and "stack" in cause:
        traces.append(str(cause["stack"]))
    return "\n".join([line, *traces])


def _first(fields: Mapping[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _time(value: Any) -> str:
    """Return a time as ISO 8601; Node.js gives milliseconds since 1970."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return datetime.fromtimestamp(value / 1000 if value > _MILLISECONDS else value, UTC).isoformat(
                timespec="milliseconds"
            )
        except (ValueError, OverflowError, OSError):
            return ""
    return str(value or "")


def _level(value: Any) -> str:
    return _NODE_LEVELS.get(value, str(value)) if isinstance(value, int) else str(value).lower()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def is_error(text: str, *, pasted: bool = False) -> bool:
    """
    Return whether a record reports a failure: by its level, as a stack trace, or in the words for a program's end.

    Of a warning, the words count only if a person pasted it.
    """
    if _FAILED.search(text):
        return True
    head = text[:_HEAD].partition("\n")[0]
    found = _LOWER.search(head) or _LEVEL.search(head)
    level = found["level"].lower() if found is not None else ""
    return level in _ERRORS or (level in (_UNCALM if pasted else {""}) and _FAILING.search(text) is not None)


def lacks_year(stamp: str) -> bool:
    """Return whether a time has a date without a year, as in lines of syslog and journald."""
    return _YEARLESS.match(stamp) is not None


def instant(stamp: str, year: int = 2000) -> float | None:
    """
    Return a record's time in seconds since 1970, or None if it cannot be read.

    A time without a zone counts as local time, and a time without a year gets `year`.
    A time without a date is good only for differences.
    """
    text = stamp.strip().replace(",", ".").replace("/", "-")
    text = _SPACE_BEFORE_ZONE.sub("", text.removesuffix("UTC") + "+00:00" if text.endswith("UTC") else text)
    whole, point, fraction = text.partition(".")
    if point:  # Python 3.11 reads at most six digits
        digits = re.match(r"\d+", fraction)
        kept = digits[0] if digits else ""
        text = f"{whole}.{kept[:6]}{fraction[len(kept) :]}"
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    for given, form in _FORMS:
        try:
            return datetime.strptime(given.format(text, year=year), form).timestamp()  # noqa: DTZ007 - local time, as above
        except (ValueError, OverflowError, OSError):
            continue
    return None


_YEARLESS = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:")
_SPACE_BEFORE_ZONE = re.compile(r" (?=[+-]\d\d:?\d\d$)")
_FORMS = (
    ("{}", "%d-%b-%Y::%H:%M:%S"),
    ("{}", "%d-%b-%Y %H:%M:%S"),
    ("{}", "%b %d. %Y %I:%M:%S %p"),
    ("{year} {}", "%Y %b %d %H:%M:%S"),
    ("{year} {}", "%Y %b %d %H:%M:%S.%f"),
    ("2000-01-01 {}", "%Y-%m-%d %H:%M:%S.%f"),
)
