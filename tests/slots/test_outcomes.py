"""How a handler ends, in a child process and in a thread alike: the table of outcomes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from steadyworker.errors import InterruptReason
from steadyworker.link import (
    CallService,
    CancelCall,
    FindEnded,
    JobRequest,
    MayCommit,
    RememberFolder,
    SaveCheckpoint,
    SaveExportState,
)
from steadyworker.outcome import Done, Failed, Interrupted, Outcome, Rejected, Snoozed
from steadyworker.slots.base import Asked, Ended, Progressed
from tests.slots.conftest import MakeRig
from tests.slots.kit import Rig, rig_of

HERE = "tests.slots.workers"

TABLE: dict[str, Outcome] = {
    "nothing": Done(),
    "value": Done(),
    "result": Done('{"rows":17,"name":"café"}'.encode()),
    "result_too_large": Failed(
        "ValueError: Expected a result of at most 65536 bytes of JSON, got 65538: "
        "keep the data elsewhere, and pass its path or URL.",
        "ValueError",
    ),
    "result_then_raises": Failed("ValueError: boom", "ValueError"),
    "raises": Failed("ValueError: boom", "ValueError"),
    "unprintable": Failed("Unprintable: (cannot be printed)", f"{HERE}.Unprintable"),
    "retry_later": Failed("not yet", "Retry", 7, fresh=True, planned=True),
    "reject": Rejected("never"),
    "snooze": Snoozed(30),
    "unwelcome": Rejected("Unwelcome: of this kind", f"{HERE}.Unwelcome"),
    "target_exists": Rejected("target exists: out.csv", "steadyworker.errors.TargetExists"),
    "export_rejected": Rejected("Expected plain files, got a Delta table", "steadyworker.errors.ExportRejected"),
    "system_exit": Failed("SystemExit: 3", "SystemExit"),
    "keyboard_interrupt": Failed("KeyboardInterrupt", "KeyboardInterrupt"),
    "generator_exit": Failed("GeneratorExit", "GeneratorExit"),
    "unasked_interrupt": Failed("Interrupt: shutdown", "steadyworker.errors.Interrupt"),
    "checkpoint": Done(),
    "progress": Done(),
}

BY_REASON: dict[InterruptReason, Outcome] = {
    "shutdown": Interrupted(),
    "fenced": Interrupted(),
    "cancelled": Rejected("cancelled"),
    "time-limit": Failed("time-limit"),
}


@pytest.fixture(scope="module", params=["process", "thread"])
def slot(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """One slot for all of this module: each test also shows that the slot is fit to run."""
    shared = rig_of("Modes", request.param).start()
    yield shared
    shared.close(5)


def test_each_ending_has_its_outcome_and_the_slot_runs_the_next_job(slot: Rig) -> None:
    slot.received.clear()
    for do, outcome in TABLE.items():
        assert slot.ended(do).outcome == outcome, do
        assert slot.slot.warm
    assert sum(isinstance(event, Ended) for event in slot.received) == len(TABLE)


def test_a_result_that_json_cannot_express_is_an_error_of_the_line_that_gave_it(slot: Rig) -> None:
    outcome = slot.ended("result_no_json").outcome
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("ValueError: Expected a result that JSON can express, got set: $: ")


@pytest.mark.parametrize("do", ["generator", "awaitable"])
def test_a_result_that_was_never_started_is_a_failure_with_this_reason(slot: Rig, do: str) -> None:
    outcome = slot.ended(do).outcome
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("nothing ran: handle returned a ")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[]", "bad-payload: $: expected object, got array"),
        (b'{"do": NaN}', "bad-payload: $.do: expected JSON, got NaN"),
        (b"\xff", "bad-payload: $: expected UTF-8, got byte 0xff at 0"),
    ],
)
def test_a_bad_payload_never_reaches_the_handler(slot: Rig, body: bytes, reason: str) -> None:
    assert slot.ended(body=body).outcome == Rejected(reason, "BadPayload")


def test_soft_interrupts_check_only(slot: Rig) -> None:
    fence = slot.begun("until_checked")
    slot.slot.interrupt(fence, "shutdown", hard=False)
    assert slot.next(Ended).outcome == Interrupted()

    fence = slot.begun("until_progress_raises")
    slot.slot.interrupt(fence, "shutdown", hard=False)
    slot.next(Progressed)  # it goes on
    slot.slot.interrupt(fence, "shutdown", hard=True)
    assert slot.next(Ended).outcome == Interrupted()


@pytest.mark.parametrize("do", ["until_progress_raises", "swallows", "fails_in_cleanup"])
@pytest.mark.parametrize("reason", BY_REASON)
def test_a_run_that_was_ordered_to_end_ends_by_that_reason_whatever_it_does(
    slot: Rig, do: str, reason: InterruptReason
) -> None:
    fence = slot.begun(do)
    slot.slot.interrupt(fence, reason, hard=True)
    assert slot.next(Ended).outcome == BY_REASON[reason]


def test_a_checkpoint_is_saved_before_the_interrupt_is_raised(slot: Rig) -> None:
    fence = slot.begin("checkpoint", last_checkpoint=b"41")
    asked = slot.next(Asked)
    assert asked.request == SaveCheckpoint(b"42")
    slot.slot.interrupt(fence, "shutdown", hard=True)
    slot.slot.reply(fence, asked.id, True)
    assert slot.next(Ended).outcome == Interrupted()


def test_a_refused_checkpoint_ends_the_run(slot: Rig) -> None:
    fence = slot.begin("checkpoint")
    slot.slot.reply(fence, slot.next(Asked).id, None, refused="fenced")
    assert slot.next(Ended).outcome == Interrupted()


def test_progress_is_thinned_out_but_its_first_and_last_pass(slot: Rig) -> None:
    slot.received.clear()
    slot.ended("progress")
    reports = [event.done for event in slot.received if isinstance(event, Progressed)]
    assert reports[0] == 0
    assert reports[-1] == 999
    assert len(reports) < 20


def test_an_export_asks_for_everything_over_the_link(slot: Rig) -> None:
    fence = slot.begin("ask_service", export_state=b"before")
    seen: list[JobRequest] = []
    endless = 0
    while not isinstance(event := slot.event(), Ended):
        assert isinstance(event, Asked)
        seen.append(event.request)
        match event.request:
            case FindEnded():
                slot.slot.reply(fence, event.id, ["b"])
            case CallService(data={"number": number}):
                slot.slot.reply(fence, event.id, {"echo": number}, end=False)
                if number == 1:
                    slot.slot.reply(fence, event.id, {"end": True})
                else:
                    endless = event.id
            case SaveExportState() | MayCommit() | RememberFolder():
                slot.slot.reply(fence, event.id, True)
    assert event.outcome == Done()
    assert seen == [
        SaveExportState(b"after"),
        FindEnded(["a", "b"]),
        MayCommit(),
        RememberFolder(b"/out/\xe9"),
        CallService("echo", {"number": 1}),
        CallService("echo", {"number": 2}),
        CancelCall(endless),
    ]


def test_what_comes_for_another_run_is_ignored(slot: Rig) -> None:
    slot.slot.interrupt(99, "shutdown", hard=True)
    slot.slot.kill(99, Failed("nobody"))
    fence = slot.begin("checkpoint")
    asked = slot.next(Asked)
    slot.slot.interrupt(99, "shutdown", hard=True)
    slot.slot.kill(99, Failed("nobody"))
    slot.slot.reply(99, asked.id, None, refused="fenced")
    slot.slot.reply(fence, asked.id + 7, None, refused="fenced")
    slot.slot.reply(fence, asked.id, True)
    assert slot.next(Ended).outcome == Done()


def test_a_run_that_comes_before_ready_waits_for_it(rig: MakeRig) -> None:
    for kind in ("process", "thread"):
        early = rig("Modes", kind=kind)
        early.open()
        assert early.ended().outcome == Done()


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_async_handlers_share_one_loop_and_are_stopped_by_cancelling(rig: MakeRig, kind: str) -> None:
    slot = rig("Asynchronous", kind=kind).start()
    assert slot.ended("nothing").outcome == Done()
    assert slot.ended("checkpoint in a thread").outcome == Done()
    assert slot.ended("exit").outcome == Failed("SystemExit: 3", "SystemExit")
    assert slot.ended("cancel itself").outcome == Failed("CancelledError", "asyncio.exceptions.CancelledError")
    for do in ("sleep", "swallow"):
        fence = slot.begun(do)
        slot.slot.interrupt(fence, "shutdown", hard=True)
        assert slot.next(Ended).outcome == Interrupted()
    assert slot.ended("nothing").outcome == Done()
    fence = slot.begun("sleep")
    slot.slot.kill(fence, Failed("time-limit"))
    assert slot.next(Ended).outcome == Failed("time-limit")


def test_a_log_line_of_the_job_carries_what_it_is_about(rig: MakeRig, capfd: pytest.CaptureFixture[str]) -> None:
    assert rig("Modes").start().ended("log_line").outcome == Done()
    line = next(json.loads(line) for line in capfd.readouterr().err.splitlines() if "hello" in line)
    assert {
        "event": "hello",
        "queue": "q",
        "key": "k",
        "attempt": 1,
        "fence": 1,
        "merchant": "m-17",
    }.items() <= line.items()
