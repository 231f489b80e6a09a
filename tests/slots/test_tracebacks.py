"""The traceback and the peak of memory of a run, in the event of its end: of every way in which a run can end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from steadyworker.outcome import Crashed, Failed, Interrupted, Rejected
from steadyworker.slots.base import Ended
from steadyworker.slots.tracebacks import LONGEST, shortened, traceback_of
from tests.slots.conftest import MakeRig, Read

BEGINNING = "Traceback (most recent call last):\n"
KINDS = pytest.mark.parametrize("kind", ["process", "thread"])


def own_frames_first(traceback: str, function: str) -> bool:
    """Whether the first frame is the handler's, and the named function is in the frame after it."""
    lines = [line for line in traceback.splitlines() if line.startswith("  File ")]
    return all(
        "tests/slots/workers.py" in line and line.endswith(f"in {name}")
        for line, name in zip(lines, ("handle", function), strict=False)
    )


class TestOfEachEnd:
    @KINDS
    @pytest.mark.parametrize(
        ("do", "last"),
        [
            ("raises", "ValueError: boom"),
            ("retry_later", "steadyworker.errors.Retry: not yet"),
            ("reject", "steadyworker.errors.Reject: never"),
            ("unwelcome", "tests.slots.workers.Unwelcome: of this kind"),
            ("system_exit", "SystemExit: 3"),
            ("unprintable", "tests.slots.workers.Unprintable: <exception str() failed>"),
        ],
    )
    def test_an_exception_has_its_traceback(self, rig: MakeRig, kind: str, do: str, last: str) -> None:
        ended = rig(kind=kind).start().ended(do)
        assert isinstance(ended.outcome, Failed | Rejected)
        assert ended.traceback.startswith(BEGINNING)
        assert own_frames_first(ended.traceback, do), ended.traceback
        assert ended.traceback.splitlines()[-1] == last

    @KINDS
    def test_an_async_handler_has_its_traceback(self, rig: MakeRig, kind: str) -> None:
        ended = rig("AsyncFails", kind).start().ended()
        assert ended.outcome == Failed("ValueError: boom", "ValueError")
        assert "in handle\n" in ended.traceback
        assert "in far_away\n" in ended.traceback
        assert ended.traceback.splitlines()[-1] == "ValueError: boom"

    @KINDS
    def test_a_run_that_did_not_fail_has_none(self, rig: MakeRig, kind: str) -> None:
        slot = rig(kind=kind).start()
        assert [slot.ended(do).traceback for do in ("nothing", "snooze")] == ["", ""]

    @KINDS
    def test_a_payload_that_cannot_be_read_has_a_traceback(self, rig: MakeRig, kind: str) -> None:
        ended = rig(kind=kind).start().ended(body=b"[")
        assert isinstance(ended.outcome, Rejected)
        assert ended.traceback.startswith(BEGINNING)

    def test_a_native_crash_leaves_the_stacks(self, rig: MakeRig, printed: Read) -> None:
        """They are lines of the log, too, as all that a child writes to standard error."""
        ended = rig().start().ended("segfault")
        assert ended.outcome == Crashed("SIGSEGV")
        assert ended.traceback.startswith("Fatal Python error: Segmentation fault")
        first = next(line for line in ended.traceback.splitlines() if "tests/slots" in line)
        assert first.endswith("in segfault")
        assert "in _read\n" not in ended.traceback, "the thread of the child's own reader"
        assert [(key, stream, line) for key, stream, line in printed() if key is not None] == [
            ("k", "stderr", line) for line in ended.traceback.splitlines() if line
        ]

    def test_a_crash_of_a_fork_is_in_the_log_and_not_in_the_traceback_of_its_job(
        self, rig: MakeRig, printed: Read
    ) -> None:
        ended = rig().start().ended("fork_crashes_then_killed")
        assert (ended.outcome, ended.traceback) == (Crashed("SIGKILL"), "")
        assert ("k", "stderr", "Fatal Python error: Segmentation fault") in printed()

    def test_a_killed_child_has_no_traceback_but_its_peak_of_memory(self, rig: MakeRig) -> None:
        """No code of the child runs after SIGKILL."""
        ended = rig().start().ended("kill_itself")
        assert (ended.outcome, ended.traceback) == (Crashed("SIGKILL"), "")
        assert ended.peak_memory is not None
        assert ended.peak_memory > 10 << 20

    def test_a_child_over_its_memory_limit_leaves_the_stacks(self, rig: MakeRig) -> None:
        ended = rig(memory_limit="150 MiB").start().ended("eat_memory")
        assert isinstance(ended.outcome, Crashed)
        assert ended.outcome.cause.startswith("memory-limit: ")
        assert "in eat_memory\n" in ended.traceback
        assert ended.peak_memory is not None
        assert ended.peak_memory > 150 << 20

    @pytest.mark.parametrize(
        ("limits", "outcome"),
        [({"stall_limit": 0.3}, Failed("stalled")), ({"time_limit": 0.5}, Failed("time-limit"))],
        ids=["stalled", "time limit"],
    )
    def test_a_child_that_reaches_a_limit_leaves_the_stacks(
        self, rig: MakeRig, limits: dict[str, float], outcome: Failed
    ) -> None:
        ended = rig().start().ended("hold_gil", **limits)
        assert ended.outcome == outcome
        assert "in hold_gil\n" in ended.traceback

    def test_the_stacks_are_of_the_run_that_wrote_them(self, rig: MakeRig) -> None:
        slot = rig().start()
        assert "in hold_gil\n" in slot.ended("hold_gil", stall_limit=0.3).traceback
        assert slot.ended().traceback == ""
        assert slot.ended("leave_with_three").traceback == ""

    def test_a_handler_that_closes_every_descriptor_leaves_the_stacks(self, rig: MakeRig) -> None:
        """It also closes the child's socket, so it cannot send its outcome."""
        assert "in close_low_then_segfault\n" in rig().start().ended("close_low_then_segfault").traceback


class TestPeakMemory:
    def test_the_peak_is_of_the_run_and_not_of_an_earlier_one(self, rig: MakeRig) -> None:
        slot = rig().start()
        small, large, after = (slot.ended(do).peak_memory for do in ("nothing", "eat_and_return", "nothing"))
        assert small is not None
        assert large is not None
        assert after is not None
        assert large - small > 90 << 20
        assert after < small + (50 << 20)

    def test_a_thread_has_none(self, rig: MakeRig) -> None:
        assert rig(kind="thread").start().ended().peak_memory is None

    def test_a_run_that_is_killed_has_the_peak_at_its_kill(self, rig: MakeRig) -> None:
        slot = rig().start()
        fence = slot.begun("sleep")
        slot.slot.kill(fence, Interrupted())
        peak = slot.next(Ended).peak_memory
        assert peak is not None
        assert peak > 10 << 20


def raised(act: Callable[[], object]) -> BaseException:
    """The exception that this call raises."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any
        act()
    return caught.value


def deep(left: int) -> None:
    if left:
        deep(left - 1)
    raise ValueError("x" * 20_000)


class TestTheText:
    def test_a_secret_is_not_in_it(self) -> None:
        def connect() -> None:
            raise ConnectionError("amqp://user:canary-secret@host/")

        text = traceback_of(raised(connect))
        assert "ConnectionError: amqp://user:***@host/" in text
        assert "canary-secret" not in text

    def test_a_secret_of_a_cause_is_not_in_it(self) -> None:
        def connect() -> None:
            raise ValueError("no") from OSError("password=canary-secret")

        text = traceback_of(raised(connect))
        assert "The above exception was the direct cause" in text
        assert "OSError: password=" in text
        assert "canary-secret" not in text.replace('OSError("password=canary-secret")', "")

    def test_a_long_one_keeps_its_beginning_and_its_end(self) -> None:
        text = traceback_of(raised(lambda: deep(300)))
        assert len(text.encode()) <= LONGEST
        assert text.startswith(BEGINNING)
        assert "cut by SteadyWorker" in text
        assert text.rstrip().endswith("x")

    def test_a_cut_is_valid_text(self) -> None:
        text = shortened("é" * LONGEST)
        assert LONGEST - 8 <= len(text.encode()) <= LONGEST
        assert set(text.replace("\n  [… cut by SteadyWorker …]\n", "")) == {"é"}

    def test_the_error_itself_stays_however_long_the_causes_are(self) -> None:
        """The last lines are those that people read first."""

        def fail() -> None:
            raise ValueError("boom") from KeyError("x" * (100 << 10))

        text = traceback_of(raised(fail))
        assert text.startswith("KeyError: ")
        assert text.endswith("ValueError: boom\n")
        assert text.count("[… cut by SteadyWorker …]") == 1
        assert LONGEST - 8 <= len(text.encode()) <= LONGEST

    def test_no_end_of_a_long_one_has_a_secret(self) -> None:
        url = "amqp://user:canary-secret@host/"
        ends = [
            f"{url} {'x' * rest}{middle}{'x' * rest} {url}"
            for rest in range(0, 40 << 10, 999)
            for middle in ("", url * 9_000)
        ]
        texts = [shortened(text) for text in ends]
        assert not [text for text in texts if "canary-secret" in text]
        assert all(text.endswith("amqp://user:***@host/") for text in texts)

    def test_a_short_one_stays_as_it_is(self) -> None:
        assert shortened("a\n  b\n") == "a\n  b\n"

    def test_no_exception_has_none(self) -> None:
        assert traceback_of(None) == ""

    def test_an_exception_without_frames_has_its_last_line(self) -> None:
        assert traceback_of(ValueError("no")) == "ValueError: no\n"

    def test_a_class_that_raises_when_it_is_printed_keeps_its_frames(self) -> None:
        """Even SystemExit must not end the slot."""

        class Odd(Exception):
            def __str__(self) -> str:
                raise SystemExit

        def fail() -> None:
            raise Odd

        text = traceback_of(raised(fail))
        assert "in fail\n" in text
        assert text.endswith("Odd: <exception str() failed>\n")

    def test_a_class_whose_attributes_raise_has_no_traceback(self) -> None:
        class Odd(Exception):
            def __getattribute__(self, name: str) -> object:
                raise SystemExit

        assert traceback_of(Odd()) == ""
