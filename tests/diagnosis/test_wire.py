"""Every flag of a trace is an entry of the catalogue, and has a remedy from there."""

from __future__ import annotations

import re

import pytest

from steadyworker.diagnosis.catalogue import load
from steadyworker.diagnosis.wire import FLAGS, Event, Wire


def test_every_flag_is_in_the_catalogue() -> None:
    assert not set(FLAGS) - set(load())


@pytest.mark.parametrize("flag", FLAGS)
def test_every_remedy_is_a_whole_sentence(flag: str) -> None:
    events: list[Event] = []
    Wire(0.0, [events.append]).flag(0.0, 1, flag, "What happened.")
    (event,) = events
    assert event["remedy"]
    assert not re.search(r"\{[a-z_]+[|}]|<[a-z_]+>", event["remedy"])
    assert event["level"] in {"error", "warning"}
