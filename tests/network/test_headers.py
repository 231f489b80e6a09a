"""Headers for which a broker has no room: they come back whole, and no message is mistaken for one that has such headers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.network.headers import BEHIND, carried, restored

NAMES = st.sampled_from([BEHIND, "sw-job-key", "sw-hop"]) | st.text(max_size=5)
TEXTS = st.sampled_from(["0", "2", "x" * 99]) | st.text(max_size=30)


@given(st.dictionaries(NAMES, TEXTS, max_size=9), st.binary(max_size=9), st.integers(0, 200))
def test_every_header_and_the_body_come_back_as_they_were(headers: dict[str, str], body: bytes, room: int) -> None:
    def fit(some: Mapping[str, str]) -> bool:
        return sum(map(len, some.values())) <= room

    sent, behind = carried(headers, body, fit)
    assert fit(sent) or sent.keys() == {BEHIND}
    assert restored(sent, behind) == (headers, body)
    if fit(headers) and BEHIND not in headers:
        assert (sent, behind) == (headers, body)


def test_the_longest_headers_move_and_those_of_the_job_stay_while_they_can() -> None:
    job = {"sw-job-key": "k" * 50, "sw-hop": "1"}
    sent, _ = carried({"a": "x" * 40, **job, "b": "x" * 30}, b"", lambda some: sum(map(len, some.values())) < 90)
    assert sent == {**job, "b": "x" * 30, BEHIND: "0"}


@pytest.mark.parametrize("size", ["", "x", "-1", "1e3", "²", "9" * 40, "2", "3", 2, None])
@pytest.mark.parametrize("body", [b"", b"{}[1]", b'{}{"a": 1', b"{}\xff", b"{}" + b"[" * 100_000])
def test_what_another_sender_writes_into_the_header_is_a_header(size: object, body: bytes) -> None:
    assert restored({BEHIND: size, "a": "1"}, body) == ({BEHIND: size, "a": "1"}, body)


def test_a_header_in_the_frame_is_not_replaced_by_one_behind_the_body() -> None:
    assert restored({BEHIND: "1", "sw-job-key": "k"}, b'x{"sw-job-key": "other", "n": 5}') == (
        {"sw-job-key": "k", "n": "5"},
        b"x",
    )
