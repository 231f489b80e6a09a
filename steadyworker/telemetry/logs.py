"""
Logs: one formatter for the lines of SteadyWorker, users and libraries, which removes secrets from every line.

On a terminal, a line is pretty (text with colours); elsewhere, a line is JSON.
The keys of a line are `timestamp` (ISO 8601 UTC, milliseconds), `level`, `event` and `logger`, and then all other fields.
In SteadyWorker's own lines, `event` is a stable id in snake_case.
A line whose cause is known has `explain`, the id of an entry of the catalogue (`steadyworker explain --id ID`), and its `remedy`.
`event_log.py` writes the lines of a job's events.

The logging handler formats and writes the lines; the handler never raises to its caller, and never waits for the lines' reader.
The handler replaces a line that it cannot format by a line `log_line_lost`.
If the reader is late, `line_writer.py` keeps the lines; a line `log_lines_lost` reports the lines that `line_writer.py` could not keep.
The formatter leaves out the middle of a text of more than 65,536 characters.
In a program that does not call `configure`, a logger from `get_logger` works like a plain stdlib logger.

With JSON, the standard streams belong to this formatter, because each line must be one JSON object.
So `settle` replaces each logging handler of a user's configuration that writes to standard output or standard error.
Every other handler stays, such as one for a file, for Sentry or for OpenTelemetry.
"""

from __future__ import annotations

import contextvars
import json
import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TextIO

import msgspec
from typing_extensions import override

from steadyworker.telemetry.field_logger import FieldLogger, marked
from steadyworker.telemetry.late_imports import libraries_first
from steadyworker.telemetry.line_writer import LineWriter
from steadyworker.text.plain_text import as_unicode
from steadyworker.text.redaction import LONGEST_VALUE, REDACTED, is_secret_name, may_hold_secret, redact

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

__all__ = ["configure", "get_logger", "redact"]

LogFormat = Literal["auto", "json", "pretty"]

_CLIENT_LIBRARIES = {"pika": logging.NOTSET, "rocketmq-python-client": logging.INFO, "stomp": logging.INFO}
"""
Client libraries whose lines appear only at log level debug, because the adapters report the same facts, with a remedy.

For each library, the value is the lowest level of the lines that appear at log level debug.
The debug lines of stomp.py contain each whole frame: the body of each message, and the passcode.
The library stomp.py logs to the logger `stomp.py`, which is a child of `stomp`.
The debug lines of rocketmq-python-client contain whole messages.
"""

_STORES = ("asyncssh", "azure", "botocore.credentials")
"""Libraries for the stores of exports, which log each request or login; their lines of level info appear only at log level debug."""

_OWN = "steadyworker"
_SETTLED = "steadyworker_settled"
"""The attribute of the logger `steadyworker` that has the handler and the root's level, because this module has no state."""

_CONSOLE = (1, 2)

EXPLAIN = "explain"
"""The key under which a line names its entry in the catalogue."""

_LAST_LINES = 0.5
"""The seconds that an ending process waits for the reader of its last lines."""

CONTEXT_PREFIX = "structlog_"
"""The beginning of the names of the context variables whose values are fields of each line; structlog uses this beginning, too."""

RemedyOf = Callable[[Mapping[str, Any]], str]

_LABORIOUS = frozenset({"exc_info", "stack_info", "positional_args"})
_METHODS = attrgetter("makeRecord", "handle", "callHandlers")
_STDLIB_METHODS = tuple(
    method
    for method in _METHODS(logging.Logger)
    if type(method) is FunctionType and method.__globals__ is vars(logging)
)
"""The methods by which a logger sends a record to its handlers; fewer than three if a library has already replaced one."""
_LOGGERS = frozenset({"logging", "telemetry", "structlog"})
"""The folders of the files whose frames are on top of each stack in a line."""

_RECORD = frozenset(vars(logging.makeLogRecord({})))
"""The attributes that each record has; a record has further attributes from `extra`."""

_DEPTH = 6
_HALF = 32 << 10
_PLAIN = frozenset({bool, int, float, type(None)})
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def configure(format: LogFormat, level: str, stream: TextIO | None = None, remedy_of: RemedyOf | None = None) -> None:
    """
    Send every logger of this process through SteadyWorker's formatter to `stream` (default: standard error).

    `remedy_of` returns the remedy for a line that names an entry of the catalogue (`explain`), or an empty text.

    `auto` is pretty on a terminal and JSON elsewhere; the variable NO_COLOR switches colours off.
    `level` is `debug`, `info`, `warning` or `error`, in upper or lower case.
    A second call replaces the handler of the first call, and keeps all other handlers.
    """
    target = sys.stderr if stream is None else stream
    terminal = _is_terminal(target)
    pretty = not writes_json(format, target)
    handler = _Handler(target)
    head = _Head(remedy_of)
    colors = terminal and not os.environ.get("NO_COLOR")
    handler.setFormatter(_PrettyFormatter(head, colors=colors) if pretty else _JsonFormatter(head))
    root = logging.getLogger()
    for old in _ours():
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    vars(logging.getLogger(_OWN))[_SETTLED] = handler, root.level
    settle()
    for name, lowest in _CLIENT_LIBRARIES.items():
        logging.getLogger(name).setLevel(logging.CRITICAL if root.level > logging.DEBUG else lowest)
    for name in _STORES:
        logging.getLogger(name).setLevel(logging.WARNING if root.level > logging.DEBUG else logging.NOTSET)


def settle() -> None:
    """
    Let the lines of all loggers reach SteadyWorker's handler once, after a user's code has configured logging.

    `logging.config.dictConfig` removes the root's handlers, and disables every logger that exists.
    Call this function after each part of a user's code that may do so; without a call of `configure`, it does nothing.
    """
    handler, level = vars(logging.getLogger(_OWN)).get(_SETTLED, (None, 0))
    if handler is None:
        return
    root = logging.getLogger()
    loggers = [each for each in tuple(root.manager.loggerDict.values()) if isinstance(each, logging.Logger)]
    for logger in loggers:
        if logger.name.partition(".")[0] in (_OWN, "py"):  # `py.warnings` has the warnings of Python
            logger.disabled = False
    if type(handler.formatter) is not _JsonFormatter:
        return
    for logger in (root, *loggers):
        if any(_is_console(each, besides=handler) for each in logger.handlers):
            # A new list, because another thread can be iterating over the old list.
            logger.handlers = [each for each in logger.handlers if not _is_console(each, besides=handler)]
    if handler not in root.handlers:
        root.addHandler(handler)
        root.setLevel(level)


def is_settled() -> bool:
    """Return False if a user's configuration has removed SteadyWorker's handler or disabled its loggers since the last `settle`."""
    own = logging.getLogger(_OWN)
    handler, _ = vars(own).get(_SETTLED, (None, 0))
    return handler is None or (not own.disabled and handler in logging.getLogger().handlers)


def _is_console(handler: logging.Handler, *, besides: logging.Handler) -> bool:
    """Return whether this handler writes to standard output or standard error, itself or by a console of rich."""
    if handler is besides:
        return False
    stream = getattr(handler, "stream", None) or getattr(getattr(handler, "console", None), "file", None)
    try:
        return stream is not None and stream.fileno() in _CONSOLE
    except Exception:  # noqa: BLE001 - a stream can be any object of a user, with or without a descriptor
        return False


def writes_json(format: str, stream: TextIO) -> bool:
    """Return whether `configure` with this format and stream writes each line as JSON."""
    return format == "json" or (format == "auto" and not _is_terminal(stream))


def _is_terminal(stream: TextIO) -> bool:
    return not getattr(stream, "closed", True) and stream.isatty()  # standard error can be closed, or None


def lines_lost() -> int:
    """Return the number of lines that this process could not write, because their reader was late for too long."""
    return sum(handler.lines.lost for handler in _ours() if handler.lines is not None)


def explained(id: str) -> dict[str, str]:
    """
    Return the field that names a cause's entry in the catalogue (`steadyworker explain --id ID`).

    Without an id, return no field.
    """
    return {EXPLAIN: id} if id else {}


def get_logger(name: str) -> FieldLogger:
    """
    Return a logger of fields over the stdlib logger of that name: `log.info("event_id", key=value)`.

    A logging call raises nothing if its line cannot be written.
    """
    return FieldLogger(logging.getLogger(name))


def structlog_logger(name: str) -> BoundLogger:
    """
    Return a structlog logger over the stdlib logger of that name, for the code of users; its lines have the same form as the lines of `get_logger`.

    The first call in a process imports structlog, which takes about 30 ms and 7 MB.
    """
    with libraries_first():
        import structlog

    if not is_settled():  # the handler that asks for the logger has configured logging
        settle()
    logger: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    return logger


def write_line(log: logging.Logger, level: int, event: str, at: float, fields: dict[str, Any]) -> None:
    """
    Write a line of SteadyWorker's own; each job writes two of them.

    A LogRecord, and its way through the logging module, take more than half of the time for a line.
    So this function makes a LogRecord only if more than SteadyWorker's handler would receive it; the line is the same.

    Args:
        log: The logger, which is enabled for the level.
        level: The level.
        event: The id of the event.
        at: The line's time (wall clock, seconds in UTC).
        fields: All other fields.
    """
    handler = _sole_handler(log)
    if handler is not None and EXPLAIN not in fields and _is_plain(fields):
        handler.write(_json(_head(at, logging.getLevelName(level), event, log.name) | fields))
        return
    line = {"event": event, **fields}
    record = log.makeRecord(log.name, level, "", 0, line, (), None, extra=marked(log, event))
    record.created, record.msecs = at, at % 1 * 1000
    log.handle(record)


def _sole_handler(log: logging.Logger) -> _Handler | None:
    """
    Return SteadyWorker's handler if nothing else would receive or change a record of this logger, otherwise None.

    A program can add handlers, filters and context variables, and set a formatter and a factory of records.
    Some libraries replace methods of `logging.Logger`, as sentry-sdk replaces `callHandlers`.
    """
    handlers = logging.getLogger().handlers
    if len(handlers) != 1 or type(handler := handlers[0]) is not _Handler or handler.lines is None:
        return None
    added = log.handlers or log.filters or handler.filters or handler.level or context_fields()
    replaced = (
        not log.propagate
        or type(handler.formatter) is not _JsonFormatter
        or logging.getLogRecordFactory() is not logging.LogRecord
        or _METHODS(type(log)) != _STDLIB_METHODS
    )
    return None if added or replaced else handler


class _Handler(logging.Handler):
    """
    A handler that writes lines; if a line cannot be formatted or written, the handler raises nothing, and prints no traceback.

    A `LineWriter` writes to a stream with a descriptor, so that no thread waits for the process that reads the stream.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self.lines: LineWriter | None = None
        with suppress(Exception):  # a program can replace standard error by any object, with or without a descriptor
            stream.flush()
            self._encoded("")
            self.lines = LineWriter(stream.fileno(), self._report)

    def emit(self, record: logging.LogRecord) -> None:
        """Format and write the record; raise nothing, not even RecursionError."""
        try:
            if type(self.formatter) is _JsonFormatter and self._is_printed(record):
                settle()
                return
            self.write(self.format(record))
        except RecursionError:
            pass
        except Exception:  # noqa: BLE001 - a record's text or the stream can raise anything
            self.handleError(record)

    def _is_printed(self, record: logging.LogRecord) -> bool:
        """Return whether another handler prints this record, because a user's code has configured it since the last `settle`."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            for each in logger.handlers:
                if record.levelno >= each.level and _is_console(each, besides=self):
                    return True
            logger = logger.parent if logger.propagate else None
        return False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - stdlib's name
        """
        Write one line that reports a lost line.

        The stdlib's method would print a long traceback with the record's arguments, which can contain secrets.
        """
        lost = {
            "level": "error",
            "event": "log_line_lost",
            "logger": record.name,
            "error": type(sys.exception()).__name__,
        }
        with suppress(Exception):
            self.write(json.dumps(lost))

    def flush(self) -> None:
        """Wait at most half a second for the lines that still wait; the stdlib calls this method at the end of the process."""
        if self.lines is not None:
            self.lines.drain(_LAST_LINES)

    def write(self, line: str) -> None:
        """Write a formatted line; a stream without a descriptor can raise anything."""
        if self.lines is not None:
            self.lines.write(self._encoded(line))
        else:
            self.stream.write(f"{line}\n")
            if hasattr(self.stream, "flush"):
                self.stream.flush()

    def _encoded(self, line: str) -> bytes:
        return f"{line}\n".encode(getattr(self.stream, "encoding", None) or "utf-8", "backslashreplace")

    def _report(self, lines: int) -> bytes:
        """Return the line that reports this number of lost lines."""
        about = {"lines": lines, EXPLAIN: "steadyworker.log-lines-lost"}
        head = {"name": "steadyworker", "levelno": logging.WARNING, "levelname": "WARNING"}
        return self._encoded(self.format(logging.makeLogRecord({**head, "msg": "log_lines_lost", **about})))


def _ours() -> list[_Handler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _Handler)]


class _Head:
    """
    The step that puts the four fixed keys first, and adds the remedy to each line that names an entry of the catalogue.

    The timestamp is the record's time.
    """

    def __init__(self, remedy_of: RemedyOf | None) -> None:
        self._remedy_of = remedy_of

    def of(self, record: logging.LogRecord, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the line of this record."""
        head = _head(record.created, record.levelname, line.pop("event", ""), record.name)
        if (
            EXPLAIN in line
            and "remedy" not in line
            and self._remedy_of is not None
            and (remedy := self._remedy_of(line))
        ):
            line["remedy"] = remedy
        return {**head, **line, **head}


class _JsonFormatter(logging.Formatter):
    """
    The formatter of JSON lines.

    It formats the records of every logger: of a `FieldLogger`, of the standard library's loggers, and of structlog's loggers.
    """

    def __init__(self, head: _Head) -> None:
        super().__init__()
        self._head = head

    @override
    def format(self, record: logging.LogRecord) -> str:
        if hasattr(record, "_logger") and isinstance(record.msg, dict):
            line = {**record.msg}
        else:
            line = {"event": record.getMessage(), "exc_info": record.exc_info, "stack_info": record.stack_info}
            line |= {name: value for name, value in vars(record).items() if name not in _RECORD}
        line = {**line, **context_fields(), **line}
        if not _LABORIOUS.isdisjoint(line):
            _work_out(line)
        return self.text(self._head.of(record, line))

    def text(self, line: Mapping[str, Any]) -> str:
        """Return the text of a line."""
        return _json(line if _is_plain(line) else _clean(line))


class _PrettyFormatter(_JsonFormatter):
    """The formatter of lines for people, with or without colours."""

    def __init__(self, head: _Head, *, colors: bool) -> None:
        super().__init__(head)
        from structlog.dev import ConsoleRenderer

        self._renderer = ConsoleRenderer(colors=colors, sort_keys=False, pad_event_to=20)

    @override
    def text(self, line: Mapping[str, Any]) -> str:
        return str(self._renderer(None, "", _visible(_clean(line))))


def _work_out(line: dict[str, Any]) -> None:
    """Put the arguments of the line into its event, and replace an exception and a stack by their texts."""
    if arguments := line.pop("positional_args", ()):
        line["event"] %= (
            arguments[0] if len(arguments) == 1 and arguments[0] and isinstance(arguments[0], dict) else arguments
        )
    if stack := line.pop("stack_info", None):
        line["stack"] = stack if isinstance(stack, str) else _stack()
    found = line.pop("exc_info", None)
    if found and not isinstance(found, BaseException):
        found = found[1] if isinstance(found, tuple) else sys.exception()
    if found:
        line["exception"] = "".join(traceback.format_exception(found)).rstrip("\n")


def _stack() -> str:
    """Return the stack of the call that writes the line, without the frames of the loggers."""
    frames = traceback.extract_stack()
    while frames and os.path.basename(os.path.dirname(frames[-1].filename)) in _LOGGERS:  # noqa: PTH119, PTH120
        frames.pop()
    return "Stack (most recent call last):\n" + "".join(frames.format()).rstrip("\n")


def context_fields() -> dict[str, Any]:
    """Return the fields that are bound in the present context, by `LineContext` or by structlog."""
    return {
        variable.name.removeprefix(CONTEXT_PREFIX): value
        for variable, value in contextvars.copy_context().items()
        if variable.name.startswith(CONTEXT_PREFIX) and value is not Ellipsis  # structlog's mark of a removed field
    }


def _head(at: float, level: str, event: Any, logger: str) -> dict[str, Any]:
    """Return the four fixed keys of a line."""
    return {
        "timestamp": f"{_second(int(at))}.{int(at % 1 * 1000):03d}Z",
        "level": level.lower(),
        "event": event,
        "logger": logger,
    }


@lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _clean(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line with plain JSON values, free of secrets."""
    return {str(key): _plain(value, str(key), _DEPTH) for key, value in line.items()}


def _is_plain(line: Mapping[str, Any]) -> bool:
    """Return True if one test of all texts together shows that no value needs a change."""
    texts = []
    for value in line.values():
        kind = type(value)
        if kind is str:
            texts.append(value)
        elif kind not in _PLAIN or (kind is float and not math.isfinite(value)):
            return False
    text = "\n".join(texts)  # no sign of a secret contains a line break
    if len(text) > 2 * _HALF or not text.isascii():
        return False
    return not may_hold_secret(text) and not _has_secret_name(tuple(line))


@lru_cache(maxsize=100)
def _has_secret_name(names: tuple[str, ...]) -> bool:
    """Return whether a name is the name of a secret, or is not text, so that the line needs a change."""
    return any(not isinstance(name, str) or is_secret_name(name) for name in names)


def _plain(value: Any, name: str, depth: int) -> Any:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return REDACTED if is_secret_name(name) else _redacted(value)
    if value is None or isinstance(value, int):
        return value if value is None or isinstance(value, bool) else int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and depth:
        return {str(key): _plain(inner, str(key), depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        return [_plain(inner, name, depth - 1) for inner in value]
    try:
        text = repr(value) if isinstance(value, BaseException) else str(value)
    except Exception as error:  # noqa: BLE001 - a user's `__str__` can raise anything
        text = f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
    return _plain(text, name, depth)


def _redacted(text: str) -> str:
    """
    Return the text without secrets; leave out the middle of a text of more than 65,536 characters.

    Log collectors refuse longer texts. The end stays, because it often names the error.
    """
    if len(text) <= 2 * _HALF:
        return redact(as_unicode(text))
    # This cuts only between words, because another cut could remove the `@` that marks a URL's password.
    head = text[:_HALF].rsplit(None, 1)
    # A secret can lie across the cut, and `redact` does not recognise its second half alone.
    # So the search in the last part begins before the cut.
    tail = redact(as_unicode(text[-_HALF - LONGEST_VALUE :]))[LONGEST_VALUE:].split(None, 1)
    left_out = f" … ({len(text)} characters) … "
    return left_out.join((redact(as_unicode(head[0])) if len(head) > 1 else "", tail[-1] if len(tail) > 1 else ""))


def _json(line: Mapping[str, Any]) -> str:
    return msgspec.json.encode(line).decode()


def _visible(line: Mapping[str, Any]) -> dict[str, Any]:
    """Escape control characters, so that the text of a message cannot control the terminal."""
    return {key: _CONTROL.sub(_escape, value) if isinstance(value, str) else value for key, value in line.items()}


def _escape(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"
