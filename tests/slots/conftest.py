"""The fixtures `rig`: slots that are closed when the test ends; and `printed`: what their children have printed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from tests.slots.kit import Rig, rig_of

Read = Callable[[], list[tuple[object, str, str]]]


class MakeRig(Protocol):
    def __call__(self, target: str = "Modes", kind: str = "process", **given: Any) -> Rig: ...


@pytest.fixture
def rig() -> Iterator[MakeRig]:
    """Make slots that are closed when the test ends; keywords are attributes of the Worker, or arguments of the slot."""
    made: list[Rig] = []

    def make(target: str = "Modes", kind: str = "process", **given: Any) -> Rig:
        made.append(rig_of(target, kind, **given))
        return made[-1]

    yield make
    for each in made:
        each.close(5)


@pytest.fixture
def printed(caplog: pytest.LogCaptureFixture) -> Read:
    """Return the lines that were logged since the last call: the key, the stream and the line."""
    caplog.set_level(logging.INFO)

    def read() -> list[tuple[object, str, str]]:
        lines: list[dict[str, Any]] = [record.msg for record in caplog.records if record.name == "steadyworker.output"]  # type: ignore[misc]
        caplog.clear()
        return [(line.get("key"), line["stream"], line["line"]) for line in lines if line["event"] == "output"]

    return read
