"""The fixture `rig`: slots that are closed when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from tests.slots.kit import Rig, rig_of


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
