"""
The pytest plugin: one fixture, `harness`.

pytest imports this file at every start, in every project that has SteadyWorker installed; so it imports the rest late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from steadyworker.testing.harness import Harness
    from steadyworker.worker import Worker


class MakeHarness(Protocol):
    """What the fixture `harness` is: call it as you would call `Harness`."""

    def __call__(self, *workers: type[Worker[Any, Any]], adoption: bool = True, processes: bool = False) -> Harness:
        """A started Harness for these Workers; stopped when the test ends."""
        ...


@pytest.fixture
def harness() -> Iterator[MakeHarness]:
    """Make a `steadyworker.testing.Harness` for the Workers that are given to it; it is stopped when the test ends."""
    from steadyworker.testing.harness import Harness

    made: list[Harness] = []

    def make(*workers: type[Worker[Any, Any]], adoption: bool = True, processes: bool = False) -> Harness:
        made.append(Harness(*workers, adoption=adoption, processes=processes))
        return made[-1]

    yield make
    for each in made:
        each.stop()
