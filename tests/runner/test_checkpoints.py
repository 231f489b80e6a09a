"""Where a job begins again: at its last checkpoint, whatever ended the run before."""

from __future__ import annotations

from typing import Any

import pytest

from steadyworker.errors import Retry, Snooze
from steadyworker.testing.plugin import MakeHarness
from tests.runner.kit import Deed, Obedient, Seen, counted, raises, saves, worker


@pytest.mark.parametrize(
    ("ending", "found"),
    [
        (raises(ValueError("odd")), 17),
        (raises(Retry("busy", delay=1)), 17),
        (raises(Snooze(60)), 17),
        (raises(Retry("begin anew", fresh=True)), None),
    ],
    ids=["failed", "retry", "snoozed", "retry fresh"],
)
def test_the_next_run_begins_where_this_one_had_saved(harness: MakeHarness, ending: Deed, found: int | None) -> None:
    seen = Seen(lambda job: job.last_checkpoint)
    exports = worker(saves(3, saves(17, ending)), seen)
    h = harness(exports)

    h.wait(h.send(exports, {}))

    assert seen.values == [found]


def test_a_deploy_hands_the_position_over(harness: MakeHarness) -> None:
    seen = Seen(lambda job: (job.last_checkpoint, job.attempt))
    exports = worker(saves(17, Obedient()), seen)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")

    h.stop()
    h.start()
    h.wait(key)

    assert seen.values == [(17, 1)]
    assert counted(h, key) == (0, 0, 0, 1)


def test_none_clears_it(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.last_checkpoint)

    def clears(job: Any) -> None:
        job.checkpoint(None)
        raise ValueError("odd")

    exports = worker(saves(17, clears), seen)
    h = harness(exports)

    h.wait(h.send(exports, {}))

    assert seen.values == [None]


def test_it_is_in_the_ledger_before_the_call_returns(harness: MakeHarness) -> None:
    exports = worker(saves({"page": 2}, lambda job: found.append(h.ledger.read(h._id(job.key)))))  # type: ignore[arg-type]
    found: list[Any] = []
    h = harness(exports)

    h.wait(h.send(exports, {}))

    assert [row.checkpoint for row in found] == [b'{"page":2}']
