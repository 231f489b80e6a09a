"""Whatever a handler raises, returns, prints or reports: its outcome is one of the table, and its slot runs the next job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadyworker.errors import LONGEST_DELAY
from steadyworker.outcome import Done, Failed, Outcome, Rejected, Snoozed
from steadyworker.slots.base import Asked, Ended, Progressed, Unready
from tests.slots.kit import Rig, rig_of

pytestmark = pytest.mark.processes

URL = "postgresql://shop:hunter2@db/orders"
BIG = 17_000_000
"""More than a frame may have."""

STATED: dict[str, tuple[str, Outcome]] = {
    # The text of an outcome is text, and short.
    "Reject(e)": ("raise Reject(ValueError('no such merchant'))", Rejected("ValueError: no such merchant")),
    "Reject(404)": ("raise Reject(404)", Rejected("404")),
    "Reject(None)": ("raise Reject(None)", Rejected("Reject")),
    "Reject, much": (f"raise Reject('x' * {BIG})", Rejected("x" * 1999 + "…")),
    "Retry(fresh=1)": ("raise Retry('x', fresh=1)", Failed("x", "Retry", None, fresh=True, planned=True)),
    "Retry(Decimal)": ("raise Retry('x', delay=Decimal('1.5'))", Failed("x", "Retry", 1.5, planned=True)),
    "Retry(ten centuries)": (
        "raise Retry('x', delay=timedelta(days=365_000))",
        Failed(
            "ValueError: Expected a delay of 0 seconds to ten years, a timedelta, or a text such as '1h 30m', got datetime.timedelta(days=365000).",
            "ValueError",
        ),
    ),
    "Snooze(Fraction)": ("raise Snooze(Fraction(3, 2))", Snoozed(1.5)),
    "surrogate": (r"raise ValueError('\udce9')", Failed(r"ValueError: \udce9", "ValueError")),
    "nul": (r"raise ValueError('\0')", Failed(r"ValueError: \x00", "ValueError")),
    "error, much": (f"raise ValueError('x' * {BIG})", Failed("ValueError: " + "x" * 1987 + "…", "ValueError")),
    "a list of types": ("raise Unwelcome('no')", Rejected("Unwelcome: no", "tests.slots.anything.Unwelcome")),
    # A subclass that skips `super().__init__` is what its base is.
    "a silent Retry": ("raise SilentRetry(503)", Failed("SilentRetry: 503", "Retry", planned=True)),
    "a silent Reject": ("raise SilentReject(404)", Rejected("SilentReject: 404")),
    "a silent Snooze": (
        "raise SilentSnooze(5)",
        Failed(
            "Expected an exception whose text and attributes can be read, got one whose class raises an error when they are read (ValueError: Expected a delay of 0 seconds "
            "to ten years, a timedelta, or a text such as '1h 30m', got None.): "
            "correct its class; its `__init__` should call `super().__init__`."
        ),
    ),
    # Progress is checked in the handler's own line.
    "progress('50%')": (
        "job.progress('50%')",
        Failed(
            "TypeError: Expected the progress (done) as a number, got '50%': "
            "convert it first, for example with float().",
            "TypeError",
        ),
    ),
    "progress(nan)": (
        "job.progress(1, float('nan'))",
        Failed(
            "ValueError: Expected the progress (total) as a finite number, got nan: leave it out while it is unknown.",
            "ValueError",
        ),
    ),
    "progress(Decimal)": ("job.progress(Decimal(3), Fraction(7, 2))", Done()),
    "progress(numpy)": ("import numpy; job.progress(1); job.progress(numpy.int64(2), numpy.float32(3))", Done()),
    "progress(2**70)": ("job.progress(1); job.progress(2**70)", Done()),
    "checkpoint(nan)": (
        "job.checkpoint(float('nan'))",
        Failed(
            "ValueError: Expected a checkpoint of the Worker's checkpoint type, got float: "
            "$: expected a number that is finite, got nan.",
            "ValueError",
        ),
    ),
    "checkpoint(infinity inside)": (
        "job.checkpoint({'row': [1, float('inf')]})",
        Failed(
            "ValueError: Expected a checkpoint of the Worker's checkpoint type, got dict: "
            "$.row[1]: expected a number that is finite, got inf.",
            "ValueError",
        ),
    ),
    "note=bytes": ("job.progress(note=b'caf\\xe9')", Done()),
    "note, much": (f"job.progress(note='x' * {BIG})", Done()),
    # A job that succeeded is done, whatever it returned.
    "returns what refuses": ("result = Refusing()", Done()),
    "returns much": (f"result = 'x' * {BIG}", Done()),
    "returns a class": ("result = Nameless", Done()),
    # Secrets go where reasons are made.
    "a URL": (
        f"raise OSError('cannot connect to {URL}')",
        Failed("OSError: cannot connect to postgresql://shop:***@db/orders", "OSError"),
    ),
    "Reject(URL)": (f"raise Reject('no table in {URL}')", Rejected("no table in postgresql://shop:***@db/orders")),
    "Retry(URL)": ("raise Retry('password=hunter2 refused')", Failed("password=*** refused", "Retry", planned=True)),
    "don't retry": (f"raise KeyError('{URL}')", Rejected("KeyError: 'postgresql://shop:***@db/orders'", "KeyError")),
    "target exists": (
        f"raise TargetExists('{URL}')",
        Rejected("postgresql://shop:***@db/orders", "steadyworker.errors.TargetExists"),
    ),
    "a cut URL": (
        f"raise ValueError('x' * 1980 + ' {URL}')",
        Failed("ValueError: " + "x" * 1980 + " postgr…", "ValueError"),
    ),
}

ODD = [
    *("None", "True", "-1", "10**400", "2**70", "1e300", "float('nan')", "float('inf')", "Decimal('sNaN')", "3.5"),
    *("b'\\xff'", "''", "'\\ud800\\0'", "'50%'", f"'x' * {BIG}", f"b'x' * {BIG}", f"'{URL}'", "Text('a\\ud800')"),
    *("[]", "{'a': {1, 2}}", "(1,)", "object()", "type", "(n for n in [1])", "timedelta.max", "timedelta(days=-1)"),
    *("ValueError('e')", "RefusingError()", "LeavingError()", "Refusing()", "Leaving()", "Nameless", "Nameless('n')"),
]

_values = (
    st.sampled_from(ODD)
    | st.text(st.characters(exclude_categories=()), max_size=20).map(ascii)
    | st.integers().map(str)
    | st.floats().map(lambda number: f"float('{number!r}')")
    | st.binary(max_size=10).map(repr)
)

DEEDS = [
    *("raise ValueError({0})", "raise ValueError({0}, {1})", "raise OSError({0}, {1}, {2})", "raise KeyError({0})"),
    *("raise Unwelcome({0})", "raise BadPayload({0})", "raise TargetExists({0})", "raise Interrupt({0})"),
    *("raise SystemExit({0})", "raise KeyboardInterrupt({0})", "raise GeneratorExit({0})", "raise UnicodeError({0})"),
    *("raise BaseExceptionGroup('g', [KeyboardInterrupt({0})])", "raise Nameless({0})", "raise {0}"),
    *("raise ValueError({0}) from RefusingError({1})", "raise RefusingError({0})", "raise LeavingError({0})"),
    *("raise Reject({0})", "raise Retry({0}, delay={1}, fresh={2})", "raise Snooze({0})"),
    *("raise SilentRetry({0})", "raise SilentReject({0})", "raise SilentSnooze({0})"),
    *("raise having(Reject, reason={0})", "raise having(Snooze, delay={0})"),
    "raise having(Retry, reason={0}, delay={1}, fresh={2})",
    *("result = {0}", "print({0}, {1})", "job.log.info({0}, value={1})", "job.checkpoint({0})"),
    *("job.progress({0}, {1}, {2})", "job.progress(1); job.progress({0}, note={1})", "job.progress(note={0})"),
    "job.progress(1)\nwith contextlib.suppress(BaseException):\n    job.progress({0}, {1}, {2})\n    job.checkpoint({0})",
]

_deeds = st.builds(str.format, st.sampled_from(DEEDS), _values, _values, _values)


@pytest.fixture(scope="module", params=["process", "thread"])
def slot(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """One slot for all of this module: each test also shows that the slot is fit to run."""
    shared = rig_of("Anything", request.param, module="tests.slots.anything").start()
    yield shared
    shared.close(5)


def pid_of(slot: Rig) -> int | None:
    return getattr(slot.slot, "pid", None)


@pytest.mark.parametrize("stated", STATED)
def test_each_odd_ending_has_the_outcome_that_is_documented(slot: Rig, stated: str) -> None:
    do, outcome = STATED[stated]
    before = pid_of(slot)
    assert slot.ended(do).outcome == outcome
    assert slot.ended("").outcome == Done()
    assert pid_of(slot) == before


@given(_deeds)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_a_handler_does_its_outcome_is_documented_and_the_slot_runs_the_next_job(slot: Rig, do: str) -> None:
    before = pid_of(slot)
    slot.received.clear()
    outcome = slot.ended(do).outcome
    assert_documented(outcome)
    for event in slot.received:
        if isinstance(event, Progressed):
            assert all(number is None or is_number(number) for number in (event.done, event.total))
            assert is_storable(event.note, 500)
    assert slot.ended("").outcome == Done()
    assert pid_of(slot) == before


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_policy_that_raises_when_it_is_asked_makes_a_failure(kind: str) -> None:
    slot = rig_of("AnyRefusal", kind, module="tests.slots.anything").start()
    outcome = slot.ended("raise ValueError('boom')").outcome
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith(
        "Expected an exception whose text and attributes can be read, got one whose class raises an error when they are read (SystemExit: 5)"
    )
    assert slot.ended("").outcome == Done()
    slot.close(5)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_whatever_a_setup_raises_the_reason_is_text_without_secrets(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADYWORKER_TEST", "leak")
    slot = rig_of("Broken", kind)
    slot.open()
    reason = slot.next(Unready).reason
    assert reason.startswith(r"setup raised ValueError: no database at postgresql://shop:***@db\udce9\x00xxx")
    assert is_storable(reason, 2100)
    slot.close(5)


@pytest.mark.parametrize("place", ["{'text': '\\udce9'}", "{'\\udce9': 1}"])
def test_a_request_and_a_reply_may_have_any_text(slot: Rig, place: str) -> None:
    """What Spark reports about a job may have a lone surrogate, from the name of a file."""
    fence = slot.begin(f"print(list(job._services.call('echo', {place})))")
    asked = slot.next(Asked)
    slot.slot.reply(fence, asked.id, {"text": "caf\udce9", "caf\udce9": ["\ud800"]}, end=False)
    slot.slot.reply(fence, asked.id, {"end": True})
    assert slot.next(Ended).outcome == Done()
    assert slot.ended("").outcome == Done()


@pytest.mark.parametrize(
    ("do", "text"),
    [
        ("list(job._services.call(['echo'], {}))", "TypeError: Expected the name of a service, got ['echo']"),
        ("list(job._services.call(None, {}))", "TypeError: Expected the name of a service, got None"),
        ("job._services.save_export_state('text')", "TypeError: Expected an export's state as bytes or None, got str"),
        (f"list(job._services.call('echo', {{'x': 'x' * {BIG}}}))", "ValueError: Expected a request of at most 167772"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_the_handlers_own_line(slot: Rig, do: str, text: str) -> None:
    if "echo', {'x'" in do and pid_of(slot) is None:
        pytest.skip("a thread's request has no frame, and no limit")
    outcome = slot.ended(do).outcome
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith(text)
    assert slot.ended("").outcome == Done()


def assert_documented(outcome: Any) -> None:
    """Assert that it is an outcome that a handler can have, and that its fields can be stored, published and shown."""
    match outcome:
        case Done():
            pass
        case Rejected(reason=reason, error_class=name):
            assert reason
            assert is_storable(reason, 2100)
            assert is_storable(name, 300)
        case Snoozed(delay=delay):
            assert is_number(delay)
            assert 0 <= delay <= LONGEST_DELAY
        case Failed(reason=reason, error_class=name, delay=delay, fresh=fresh):
            assert reason
            assert is_storable(reason, 2300)
            assert is_storable(name, 300)
            assert delay is None or (is_number(delay) and 0 <= delay <= LONGEST_DELAY)
            assert type(fresh) is bool
        case _:
            pytest.fail(f"a handler cannot have {outcome}")


def is_number(value: object) -> bool:
    return type(value) is float and math.isfinite(value)


def is_storable(text: object, limit: int) -> bool:
    """Whether every ledger, broker and page takes this text."""
    if type(text) is not str:
        return False
    text.encode()
    return "\0" not in text and len(text) <= limit and "hunter2" not in text
