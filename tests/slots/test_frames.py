"""The frames between a worker process and its child: whatever text is in one, it can be packed, and comes out on the other side."""

from __future__ import annotations

import hashlib
import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.link import (
    CallService,
    CancelCall,
    FindEnded,
    JobRequest,
    MayCommit,
    RememberFolder,
    SaveCheckpoint,
    SaveExportState,
    Task,
)
from steadyworker.outcome import Failed, Outcome, Rejected
from steadyworker.slots.frames import (
    ANY_FRAME,
    MAX_FRAME,
    PROTOCOL,
    Begin,
    Frame,
    FromChild,
    ProgressMade,
    Reply,
    RequestMade,
    SetupFailed,
    ToChild,
    Unpacker,
    outcome_of,
    packed,
    run_ended,
)

_texts = st.text(st.characters(exclude_categories=()), max_size=20)
_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=9) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
)


def begin(text: str) -> Begin:
    return Begin(Task(key=text, queue=text, uid="u", fence=1, attempt=1, body=b"\xff", headers={text: text}))


def unpacked(frame: Any, kind: Any) -> Frame:
    there: list[Frame] = list(Unpacker[Any](kind, ANY_FRAME).feed(packed(frame)))
    assert [type(each) for each in there] == [type(frame)]
    return there[0]


@given(_texts, _data)
def test_any_text_can_be_packed_and_comes_out_valid(text: str, data: Any) -> None:
    for frame in (begin(text), Reply(1, 2, {"event": text, "rows": data}, None, end=True)):
        again = unpacked(frame, ToChild)
        assert packed(again) == packed(frame)  # type: ignore[arg-type]
    for report in (
        SetupFailed(text),
        ProgressMade(1, 1.0, None, text),
        RequestMade(1, 2, CallService(text, data)),
        run_ended(1, Failed(text, text)),
    ):
        again = unpacked(report, FromChild)
        assert packed(again) == packed(report)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "request_",
    [
        SaveCheckpoint(b"42"),
        SaveExportState(b"\xff"),
        SaveExportState(None),
        MayCommit(),
        FindEnded(["a", "b"]),
        RememberFolder(b"/out/\xe9"),
        CallService("echo", {"number": 1}),
        CancelCall(7),
    ],
    ids=str,
)
def test_each_request_comes_out_as_it_was(request_: JobRequest) -> None:
    frame = RequestMade(1, 2, request_)
    assert unpacked(frame, FromChild) == frame


PROTOCOLS = {1: "25775942d5ab21af", 2: "3f22069aa4fdbb20", 3: "16d817442a4678cc"}
"""The checksum of each version's frames, without their docstrings (those of 1 and 2 with them). If it changes, raise PROTOCOL, and add a line."""


def test_a_change_of_the_frames_is_a_new_protocol() -> None:
    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shape(each) for name, each in value.items() if name != "description"}
        return [shape(each) for each in value] if isinstance(value, list | tuple) else value

    schemas = shape(msgspec.json.schema_components([ToChild, FromChild, *get_args(Outcome)]))
    checksum = hashlib.sha256(json.dumps(schemas, sort_keys=True).encode()).hexdigest()[:16]
    assert checksum == PROTOCOLS[PROTOCOL]


def test_valid_text_comes_out_as_it_was() -> None:
    frame = Reply(1, 2, {"event": "Zürich 🙂", "rows": [b"\xff", 1.5, None]}, None, end=False)
    assert unpacked(frame, ToChild) == frame


@pytest.mark.parametrize("outcome", [Rejected("x" * 2000), Failed("é" * 2000, "ValueError", 5.0, fresh=True)])
def test_an_outcome_comes_out_as_it_was(outcome: Outcome) -> None:
    frame = unpacked(run_ended(7, outcome), FromChild)
    assert outcome_of(frame) == outcome  # type: ignore[arg-type]


def test_a_lone_surrogate_becomes_an_escape_and_the_bytes_beside_it_stay() -> None:
    frame = unpacked(begin("caf\udce9"), ToChild)
    assert isinstance(frame, Begin)
    assert frame.task.headers == {r"caf\udce9": r"caf\udce9"}
    assert frame.task.body == b"\xff"


def test_a_message_of_any_size_reaches_the_child_and_a_request_over_the_limit_is_refused_where_it_is_made() -> None:
    frame = unpacked(begin("x" * (MAX_FRAME + 1)), ToChild)
    assert isinstance(frame, Begin)
    with pytest.raises(ValueError, match=f"Expected a request of at most {MAX_FRAME} bytes"):
        packed(RequestMade(1, 1, CallService("spark", {"sql": "x" * MAX_FRAME})))
