"""Lines, as they are written; and that no line fails who logs it."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, cast

import pytest
import structlog
from msgspec import structs
from structlog.contextvars import bind_contextvars, bound_contextvars, get_contextvars
from structlog.stdlib import BoundLogger, ProcessorFormatter

from steadyworker import events
from steadyworker.events import Event, Fenced, JobSettled, MessageLost, TakenOver
from steadyworker.telemetry.event_log import LINES, log_events
from steadyworker.telemetry.line_context import LineContext
from steadyworker.telemetry.logs import _CLIENT_LIBRARIES, _STORES, configure, get_logger, structlog_logger


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    """JSON lines of every level."""
    root = logging.getLogger()
    handlers, levels = (
        list(root.handlers),
        {each: each.level for each in (root, *map(logging.getLogger, (*_CLIENT_LIBRARIES, *_STORES)))},
    )
    stream = io.StringIO()
    configure("json", "debug", stream)
    yield stream
    del vars(logging.getLogger("steadyworker"))["steadyworker_settled"]
    root.handlers[:] = handlers
    for logger, level in levels.items():
        logger.setLevel(level)


See = Callable[[logging.LogRecord], bool]
"""A function that notes a record and returns True, as a filter does."""


class Alone:
    """The logging of a process in which SteadyWorker's handler is alone and writes JSON to a file; and the records that events made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[logging.LogRecord] = []
        self.log = logging.getLogger("steadyworker")

    def make(self, *args: Any, **more: Any) -> logging.LogRecord:
        """Make a record as the logger's class does, and keep it."""
        self.records.append(type(self.log).makeRecord(self.log, *args, **more))
        return self.records[-1]

    def written(self) -> str:
        """Return the lines since the last call."""
        text = self.path.read_text("utf-8")
        os.truncate(self.path, 0)
        return text


@contextmanager
def alone_in(folder: Path) -> Iterator[Alone]:
    """Log without pytest's handlers, which are on the root logger in each test; the fixture `out` restores them."""
    alone, factory = Alone(folder / "log"), logging.getLogRecordFactory()
    with alone.path.open("a", encoding="utf-8") as file:
        configure("json", "debug", file)
        root = logging.getLogger()
        root.handlers[:] = [handler for handler in root.handlers if getattr(handler, "stream", None) is file]
        alone.log.makeRecord = alone.make  # type: ignore[method-assign]
        try:
            yield alone
        finally:
            del alone.log.makeRecord
            alone.log.handlers.clear()
            alone.log.filters.clear()
            alone.log.propagate = True
            logging.setLogRecordFactory(factory)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def settled(settlement: str, outcome: str = "Done") -> JobSettled:
    return JobSettled(
        key="m-17",
        queue="q",
        fence=7,
        at=0.0,
        settlement=settlement,
        outcome=outcome,
        reason="",
        attempts=1,
        crashes=0,
        losses=0,
        interruptions=0,
        settled="confirmed",
        seconds=1.5,
    )


def test_a_line_begins_with_time_level_event_and_logger(out: io.StringIO) -> None:
    get_logger("app").info("job_seen", key="m-17", count=3)
    (line,) = lines(out)
    assert list(line) == ["timestamp", "level", "event", "logger", "key", "count"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("timestamp"))
    assert line == {"level": "info", "event": "job_seen", "logger": "app", "key": "m-17", "count": 3}


def test_client_libraries_are_logged_at_debug_only(out: io.StringIO) -> None:
    """Their adapter says it in our words; a program that only uses our Client hears them as ever."""
    for level, heard in (("info", 0), ("debug", 1)):
        configure("json", level, out)
        logging.getLogger("pika.connection").error("AMQPConnector - reporting failure")
        assert len(lines(out)) == heard


def test_the_libraries_of_stores_log_no_request_at_info(out: io.StringIO) -> None:
    """Azure's library logs two lines of half a kilobyte for each request."""
    for level, shown in (("info", ["refused"]), ("debug", ["request", "refused"])):
        configure("json", level, out)
        for name in _STORES:
            logging.getLogger(name).info("request")
            logging.getLogger(name).warning("refused")
        lines = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
        assert lines == shown * len(_STORES)
        out.truncate(0)
        out.seek(0)


def test_a_client_library_that_logs_whole_frames_shows_none_at_debug(out: io.StringIO) -> None:
    """The logger is the one of stomp.py 9, which leaves passcode and bodies in its debug lines."""
    library = logging.getLogger("stomp.py")
    for level, heard in (("info", []), ("debug", ["attempt failed"])):
        out.truncate(out.seek(0))
        configure("json", level, out)
        library.debug("sending frame: %s", ["CONNECT\n", "passcode:canary\n"])
        library.debug("received frame: %r, headers=%r, body=%r", "MESSAGE", {}, b"canary")
        library.warning("attempt failed")
        assert [line["event"] for line in lines(out)] == heard
        assert "canary" not in out.getvalue()


def test_the_libraries_lines_look_like_ours_with_their_extras_and_the_context(out: io.StringIO) -> None:
    with bound_contextvars(key="m-17", attempt=2):
        logging.getLogger("lib").warning("%s of %s", 1, 2, extra={"part": "io"})
    (line,) = lines(out)
    assert (line["event"], line["logger"], line["level"]) == ("1 of 2", "lib", "warning")
    assert (line["part"], line["key"], line["attempt"]) == ("io", "m-17", 2)


def test_a_line_of_a_users_structlog_logger_looks_like_ours(out: io.StringIO) -> None:
    logger = structlog.wrap_logger(
        logging.getLogger("users"), processors=[ProcessorFormatter.wrap_for_formatter], wrapper_class=BoundLogger
    )
    with bound_contextvars(key="m-17", page=1):
        logger.bind(page=2).warning("seen", password="canary")
    (line,) = lines(out)
    del line["timestamp"]
    assert line == {
        "level": "warning",
        "event": "seen",
        "logger": "users",
        "page": 2,
        "password": "***",
        "key": "m-17",
    }


def test_a_logger_keeps_the_fields_that_were_bound_to_it(out: io.StringIO) -> None:
    log = get_logger("app")
    bound = log.bind(key="m-17", page=1)
    bound.error("one of %d", 2, page=3)
    bound.critical("two")
    bound.log(logging.DEBUG, "three", stack_info=True)
    log.debug("four")
    one, two, three, four = lines(out)
    assert (one["level"], one["event"], one["page"], one["key"]) == ("error", "one of 2", 3, "m-17")
    assert (two["level"], two["event"], two["page"], two["key"]) == ("critical", "two", 1, "m-17")
    assert "test_logs.py" in three["stack"]
    assert (four["event"], list(four)) == ("four", ["timestamp", "level", "event", "logger"])


@pytest.mark.parametrize("loaded", [True, False], ids=["structlog loaded", "structlog not loaded"])
def test_the_fields_of_a_run_are_in_the_context_of_structlog(
    out: io.StringIO, monkeypatch: pytest.MonkeyPatch, *, loaded: bool
) -> None:
    """A user's own configuration of structlog shows them; what a handler binds itself is in SteadyWorker's lines."""
    if not loaded:
        monkeypatch.delitem(sys.modules, "structlog.contextvars")
    context = LineContext()
    with context.bound({"key": "m-17", "attempt": 1}):
        assert get_contextvars() == {"key": "m-17", "attempt": 1}
        with context.bound({"key": "m-18"}), bound_contextvars(page=3):
            get_logger("app").info("inside")
        get_logger("app").info("outside")
    get_logger("app").info("after")
    assert [(line.get("key"), line.get("attempt"), line.get("page")) for line in lines(out)] == [
        ("m-18", 1, 3),
        ("m-17", 1, None),
        (None, None, None),
    ]


def test_a_handler_may_bind_a_field_of_its_run_to_another_value(out: io.StringIO) -> None:
    context = LineContext()
    with context.bound({"key": "m-17"}):
        bind_contextvars(key="mine")
        get_logger("app").info("one")
    with context.bound({"key": "m-18"}):
        get_logger("app").info("two")
    assert [line["key"] for line in lines(out)] == ["mine", "m-18"]
    assert get_contextvars() == {}


def test_the_event_names_and_levels_are_frozen() -> None:
    """A line's name is what alerts and dashboards are built on."""
    assert {kind.__name__: line for kind, line in LINES.items()} == {
        "JobStarted": ("job_started", logging.INFO),
        "JobEnded": ("job_ended", logging.DEBUG),
        "JobSettled": ("job_settled", logging.INFO),
        "DeliveryLost": ("delivery_lost", logging.WARNING),
        "Adopted": ("adopted", logging.INFO),
        "DeliveryDeferred": ("delivery_deferred", logging.INFO),
        "DuplicateAcked": ("duplicate_acked", logging.INFO),
        "DeliveryRejected": ("delivery_rejected", logging.ERROR),
        "TakenOver": ("taken_over", logging.WARNING),
        "MessageLost": ("message_lost", logging.WARNING),
        "Fenced": ("fenced", logging.WARNING),
        "Checkpointed": ("checkpointed", logging.DEBUG),
    }


def test_every_kind_of_event_has_a_line(out: io.StringIO) -> None:
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)} - {Event}
    assert kinds == set(LINES)
    listen = log_events()
    for kind in kinds:
        values: dict[str, Any] = {
            field.name: 1 if field.type in (int, float) else "x" for field in structs.fields(kind)
        }
        listen(kind(**values))
    assert sorted(line["event"] for line in lines(out)) == sorted(name for name, _ in LINES.values())


VALUES = {
    "plain": (7, 0.5, "x"),
    "empty": (0, 0.0, ""),
    "not ASCII": (-1, 1e300, "Zoë\n\x1b[31m"),
    "a secret": (1 << 70, 1e-9, "amqp://joe:canary@host"),
    "no number": (1, math.nan, "a lone \udce9"),
    "long": (1, 1.0, "x" * 70_000),
}


@pytest.mark.usefixtures("out")
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("kind", LINES, ids=lambda kind: kind.__name__)
def test_an_events_line_is_the_same_with_and_without_a_record(
    tmp_path: Path, kind: type[Event], values: tuple[int, float, str]
) -> None:
    by_type: dict[Any, Any] = dict(zip((int, float, str), values, strict=True))
    fields: dict[str, Any] = {field.name: by_type[field.type] for field in structs.fields(kind)}
    fields["at"] = 1_767_225_599.0625
    event = kind(**fields)
    with alone_in(tmp_path) as alone:
        log_events()(event)
        without = alone.written()
        alone.records.clear()
        logging.getLogger().addHandler(logging.NullHandler())
        log_events()(event)
        assert alone.written() == without
        assert len(alone.records) == 1
    assert json.loads(without)["timestamp"] == "2025-12-31T23:59:59.062Z"
    assert "canary" not in without


@pytest.mark.usefixtures("out")
@pytest.mark.parametrize("kind", LINES, ids=lambda kind: kind.__name__)
def test_an_event_makes_a_record_only_for_a_remedy(tmp_path: Path, kind: type[Event]) -> None:
    empty: dict[str, Any] = {field.name: "" if field.type is str else 1 for field in structs.fields(kind)}
    with alone_in(tmp_path) as alone:
        log_events()(kind(**empty))
        assert len(alone.records) == (kind in {MessageLost, TakenOver, Fenced})
        assert len(alone.written().splitlines()) == 1


def see_by_handler(log: logging.Logger, see: See, _patch: pytest.MonkeyPatch) -> None:
    class Seeing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            see(record)

    log.handlers.insert(0, Seeing())


def see_by_roots_handler(_log: logging.Logger, see: See, patch: pytest.MonkeyPatch) -> None:
    see_by_handler(logging.getLogger(), see, patch)


def see_by_filter(log: logging.Logger, see: See, _patch: pytest.MonkeyPatch) -> None:
    log.addFilter(see)


def see_by_handlers_filter(_log: logging.Logger, see: See, _patch: pytest.MonkeyPatch) -> None:
    logging.getLogger().handlers[0].addFilter(see)


def see_by_formatter(_log: logging.Logger, see: See, _patch: pytest.MonkeyPatch) -> None:
    class Seeing(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return str(see(record))

    logging.getLogger().handlers[0].setFormatter(Seeing())


def see_by_factory(_log: logging.Logger, see: See, _patch: pytest.MonkeyPatch) -> None:
    def factory(*args: Any, **more: Any) -> logging.LogRecord:
        record = logging.LogRecord(*args, **more)
        see(record)
        return record

    logging.setLogRecordFactory(factory)


def see_by_call_handlers(_log: logging.Logger, see: See, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(logging.Logger, "callHandlers", lambda _self, record: see(record))


def see_by_handle(_log: logging.Logger, see: See, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(logging.Logger, "handle", lambda _self, record: see(record))


@pytest.mark.usefixtures("out")
@pytest.mark.parametrize(
    "arrange",
    [
        see_by_handler,
        see_by_roots_handler,
        see_by_filter,
        see_by_handlers_filter,
        see_by_formatter,
        see_by_factory,
        see_by_call_handlers,
        see_by_handle,
    ],
)
def test_a_program_that_looks_at_records_sees_those_of_events(
    tmp_path: Path, arrange: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def see(record: logging.LogRecord) -> bool:
        seen.append(cast(dict[str, Any], record.msg)["event"])
        return True

    with alone_in(tmp_path) as alone:
        arrange(alone.log, see, monkeypatch)
        log_events()(settled("ack"))
    assert seen == ["job_settled"]


def test_a_library_that_replaced_a_method_before_our_import_sees_the_records_of_events() -> None:
    program = """if True:
        import logging
        logging.Logger.callHandlers = lambda self, record: print(record.msg["event"])
        from steadyworker.events import Adopted
        from steadyworker.telemetry.event_log import log_events
        from steadyworker.telemetry.logs import configure
        configure("json", "info")
        log_events()(Adopted(key="m-17", queue="q", fence=7, at=0.0))
    """
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("adopted\n", "")


@pytest.mark.usefixtures("out")
def test_an_events_line_has_the_context_variables(tmp_path: Path) -> None:
    with alone_in(tmp_path) as alone, bound_contextvars(tenant="acme"):
        log_events()(settled("ack"))
        assert json.loads(alone.written())["tenant"] == "acme"


@pytest.mark.usefixtures("out")
def test_an_events_line_obeys_the_handlers_level_and_propagate(tmp_path: Path) -> None:
    with alone_in(tmp_path) as alone:
        alone.log.propagate = False
        log_events()(settled("ack"))
        alone.log.propagate = True
        logging.getLogger().handlers[0].setLevel(logging.ERROR)
        log_events()(settled("ack"))
        assert alone.written() == ""
        log_events()(settled("dead-letter"))
        assert json.loads(alone.written())["level"] == "error"


@pytest.mark.parametrize("value", ["x" * 17_000_000, "é" * 200_000, "two words " * 100_000])
def test_a_text_of_any_length_is_a_line_that_a_collector_takes(out: io.StringIO, value: str) -> None:
    get_logger("app").info("much", value=value)
    (line,) = lines(out)
    assert len(line["value"]) < 66_000
    assert f"({len(value)} characters)" in line["value"]


def test_a_long_text_is_cut_where_it_leaves_no_half_of_a_password(out: io.StringIO) -> None:
    url = "amqp://joe:" + "hunter2" * 50 + "@host/"
    for before in range(32_500, 32_800, 30):
        get_logger("app").info("much", value=f"{'x ' * (before // 2)}{url} {'y ' * 50_000}{url}{' z' * (before // 2)}")
    assert "hunter2" not in out.getvalue()


def test_a_long_text_is_cut_where_it_leaves_no_half_of_a_quoted_password(out: io.StringIO) -> None:
    pair = f'password="{"hunter2 " * 300}"'
    for before in range(30_000, 33_000, 300):
        get_logger("app").info(
            "much", value=f"{'x ' * (before // 2)}{pair} {'y ' * 50_000}{pair}{' z' * (before // 2)}"
        )
    assert "hunter2" not in out.getvalue()


def test_the_canonical_line_of_a_settled_message(out: io.StringIO) -> None:
    log_events()(settled("ack"))
    log_events()(settled("dead-letter"))
    good, dead = lines(out)
    assert good["event"] == "job_settled"
    assert [good[name] for name in ("key", "queue", "fence", "settlement", "outcome")] == [
        "m-17",
        "q",
        7,
        "ack",
        "Done",
    ]
    assert "at" not in good
    assert (good["level"], dead["level"]) == ("info", "error")


@pytest.mark.parametrize(
    ("outcome", "settlement", "level"),
    [
        ("retry", "later", "info"),
        ("snoozed", "later", "info"),
        ("interrupted", "release", "info"),
        ("cancelled", "dead-letter", "info"),
        ("failed", "later", "warning"),
        ("crashed", "later", "warning"),
        *((outcome, "dead-letter", "error") for outcome in ("failed", "retry", "crashed", "rejected")),
    ],
)
def test_the_level_of_a_settled_message_shows_whether_a_person_must_act(
    out: io.StringIO, outcome: str, settlement: str, level: str
) -> None:
    log_events()(settled(settlement, outcome))
    (line,) = lines(out)
    assert line["level"] == level
    assert ("explain" in line) == (level == "error")


def test_no_secret_is_in_a_line_wherever_it_stands(out: io.StringIO) -> None:
    log = get_logger("app")
    try:
        raise ConnectionError("amqp://joe:canary@host refused")  # noqa: TRY301 - for its traceback
    except ConnectionError as error:
        log.exception("connect_failed", url="amqp://joe:can/ary@canary@h", error=error, config={"password": "canary"})
        logging.getLogger("lib").exception("frame passcode:canary")
    log.info("token=canary", headers=[b"Authorization: Bearer canary"], db_password="canary")
    assert len(lines(out)) == 3
    assert "canary" not in out.getvalue()
    assert "joe:***@" in out.getvalue()


def test_odd_values_are_written_as_valid_json(out: io.StringIO) -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError("no text for you")

    loop: list[object] = []
    loop.append(loop)
    get_logger("app").info(
        "odd",
        nan=float("nan"),
        odd=Odd(),
        half="\ud800",
        loop=loop,
        huge=1 << 200,
        when=datetime.max.replace(tzinfo=UTC),
    )
    (line,) = lines(out)
    assert line["nan"] == "nan"
    assert line["odd"] == "<Odd that cannot be shown: ValueError>"
    assert line["huge"] == 1 << 200


def test_a_line_that_cannot_be_formatted_is_reported_as_lost_and_raises_nothing(out: io.StringIO) -> None:
    root = logging.getLogger()
    root.handlers[:] = [
        handler for handler in root.handlers if getattr(handler, "stream", None) is out
    ]  # without pytest's
    get_logger("app").info("%d", "canary")
    logging.getLogger("lib").info("%d", "canary")
    assert [(line["event"], line["logger"]) for line in lines(out)] == [
        ("log_line_lost", "app"),
        ("log_line_lost", "lib"),
    ]
    assert "canary" not in out.getvalue()


def test_a_stream_that_can_only_write_is_one(out: io.StringIO) -> None:
    class Bare:
        """What a program puts in the place of standard error."""

        def write(self, text: str) -> None:
            out.write(text)

        def isatty(self) -> bool:
            return False

    configure("json", "debug", cast(TextIO, Bare()))
    get_logger("app").info("one")
    assert [line["event"] for line in lines(out)] == ["one"]


def test_a_broken_stream_fails_nobody() -> None:
    """The reader of our output went away: the job goes on."""
    program = """if True:
        import os, sys
        from steadyworker.telemetry.logs import configure, get_logger
        reader, writer = os.pipe()
        os.close(reader)
        configure("json", "info", os.fdopen(writer, "w", buffering=1))
        get_logger("app").info("into the void")
        sys.stderr.close()
        configure("json", "info")
        get_logger("app").info("into a closed file")
        os._exit(7)
    """
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7


def test_a_stream_with_an_unknown_encoding_gets_lines(out: io.StringIO, tmp_path: Path) -> None:
    class Odd(io.StringIO):
        encoding = "no-such"

        def fileno(self) -> int:
            return file.fileno()

    with (tmp_path / "log").open("w") as file:
        configure("json", "info", stream := Odd())
        get_logger("app").info("one")
    assert [line["event"] for line in lines(stream)] == ["one"]


def test_configure_twice_writes_each_line_once(out: io.StringIO) -> None:
    again = io.StringIO()
    configure("json", "warning", again)
    get_logger("app").info("below the level")
    get_logger("app").warning("once")
    assert out.getvalue() == ""
    assert [line["event"] for line in lines(again)] == ["once"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("out")
def test_a_terminal_gets_colours_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = Terminal()
    configure("auto", "info", coloured)
    get_logger("app").info("seen", key="k")
    assert "\x1b[" in coloured.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    configure("auto", "info", plain)
    get_logger("app").info("seen", key="k")
    assert "\x1b[" not in plain.getvalue()
    assert re.search(r"\[info +\] seen +\[app\] key=k", plain.getvalue())


@pytest.mark.usefixtures("out")
def test_no_control_character_of_a_message_reaches_the_terminal() -> None:
    stream = io.StringIO()
    configure("pretty", "info", stream)
    get_logger("app").info("from outside", key="\x1b]0;owned\x07", note="a\x1b[31m")
    assert "\x1b" not in stream.getvalue()
    assert r"\x1b" in stream.getvalue()


def test_an_unconfigured_logger_is_a_plain_stdlib_logger(caplog: pytest.LogCaptureFixture) -> None:
    """In a program of the user's, the Client logs through whatever logging that program has."""
    with caplog.at_level(logging.INFO):
        get_logger("steadyworker.client").info("sent", key="k")
    assert [record.name for record in caplog.records] == ["steadyworker.client"]


def test_a_run_begins_while_another_thread_imports_structlog(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "structlog.contextvars", types.ModuleType("structlog.contextvars"))
    with LineContext().bound({"key": "m-17"}):
        get_logger("app").info("inside")
    assert [line["key"] for line in lines(out)] == ["m-17"]


def test_a_name_of_a_field_can_be_a_number(out: io.StringIO) -> None:
    logging.getLogger("users").info("hello", extra={1: "a"})  # type: ignore[dict-item]
    assert [(line["event"], line["1"]) for line in lines(out)] == [("hello", "a")]


def test_a_stack_ends_with_the_caller_of_the_logger(out: io.StringIO) -> None:
    get_logger("app").info("one", stack_info=True)
    structlog_logger("app").info("two", stack_info=True)
    for line in lines(out):
        first, *_, last = line["stack"].splitlines()
        assert first == "Stack (most recent call last):"
        assert "stack_info=True" in last
