"""
The pytest plugin: one fixture, `harness`.

pytest imports this file at every start, in every project that has SteadyWorker installed.
Therefore this file imports the other modules only when a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from steadyworker.testing.harness import Harness
    from steadyworker.worker import Worker


class MakeHarness(Protocol):
    """The type of the fixture `harness`; call it like `Harness`."""

    def __call__(self, *workers: type[Worker[Any, Any]], adoption: bool = True, processes: bool = False) -> Harness:
        """Return a started Harness for these Workers; the fixture stops this Harness when the test ends."""
        ...


@pytest.fixture
def harness() -> Iterator[MakeHarness]:
    """Return a function that starts a `steadyworker.testing.Harness` for Workers; the fixture stops each Harness when the test ends."""
    from steadyworker.testing.harness import Harness

    made: list[Harness] = []

    def make(*workers: type[Worker[Any, Any]], adoption: bool = True, processes: bool = False) -> Harness:
        made.append(Harness(*workers, adoption=adoption, processes=processes))
        return made[-1]

    yield make
    for each in made:
        each.stop()
