"""The ledger refuses one request of a job, and nothing else: the run ends there, and a later run does the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steadyworker.errors import Interrupt
from steadyworker.events import Checkpointed, Fenced
from steadyworker.exports.rows import RowExport
from steadyworker.ledger.base import Renewal, State
from steadyworker.testing.flaky_ledger import FlakyLedger
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from tests.runner.kit import QUEUE, Gate, counted, events, saves, worker

REFUSALS: dict[str, Any] = {"checkpoint": False, "export_state": False, "may_commit": Renewal(granted=False)}


@pytest.mark.parametrize("write", REFUSALS)
def test_a_refused_request_ends_its_run_and_changes_nothing(harness: MakeHarness, tmp_path: Path, write: str) -> None:
    out, reasons = tmp_path / "out" / "payments.csv", []

    def asks(job: Any) -> None:
        try:
            job.checkpoint(1)
            job.export(RowExport([(1,)], columns=("id",)), to=out)
        except Interrupt as interrupt:
            reasons.append((job.fence, interrupt.reason, out.exists()))
            raise

    exports = worker(asks)
    h = harness(exports)
    line = h.processes[0].ledger
    refused: list[Any] = []

    def refuses_once(token: Any, *_value: Any) -> Any:
        refused.append(token)
        delattr(line, write)
        return REFUSALS[write]

    setattr(line, write, refuses_once)
    key = h.send(exports, {})
    row = h.wait(key)

    (token,) = refused
    assert row is not None
    assert row.state is State.DONE
    assert [(event.fence, event.write) for event in events(h, key, Fenced)] == [(token.fence, write)]
    # Of the three, only the export's state is written after the commit.
    assert reasons == [(token.fence, "fenced", write == "export_state")]
    assert h.starts(key) == 2
    assert counted(h, key) == (0, 0, 0, 0)
    saved = [event.fence for event in events(h, key, Checkpointed)]
    assert saved == ([row.fence] if write == "checkpoint" else [token.fence, row.fence])
    assert sorted(path.name for path in out.parent.iterdir()) == ["payments.csv", "payments.csv.manifest.json"]
    assert h.broker.depth(QUEUE) == 0


def without_trust(harness: MakeHarness, gate: Gate) -> tuple[Harness, str, FlakyLedger]:
    """
    Start a run, let its trust end, and open its gate.

    The ledger responds, but cannot judge the renewal, because another session keeps the row locked.
    """
    exports = worker(saves(1, gate))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")
    line: FlakyLedger = h.processes[0].ledger
    line.renew = lambda tokens: [Renewal(granted=False, locked=True) for _ in tokens]  # type: ignore[attr-defined]
    h.advance(55)
    assert h.not_ready == {}, "only the trust is missing"
    gate.open()
    h.advance(5)
    return h, key, line


@pytest.mark.parametrize("until", ["granted", "refused"])
def test_a_run_that_is_not_trusted_writes_nothing_until_the_ledger_has_renewed_its_lease(
    harness: MakeHarness, until: str
) -> None:
    h, key, line = without_trust(harness, Gate(saves(2)))
    waits = h.job(key)
    assert waits is not None
    assert waits.checkpoint == b"1"

    if until == "refused":
        line.renew = lambda tokens: [Renewal(granted=False) for _ in tokens]  # type: ignore[attr-defined]
        for _ in range(16):  # no further, because the handler's thread has only some fake seconds to end
            if not events(h, key, Fenced):
                h.advance(1)
        assert [event.write for event in events(h, key, Fenced)] == ["renew"]
    vars(line).pop("renew")
    row = h.wait(key)

    assert row is not None
    assert (row.state, row.checkpoint) == (State.DONE, b"2")
    assert h.starts(key) == (1 if until == "granted" else 2)
    assert counted(h, key) == (0, 0, 0, 0)


def test_an_outcome_of_a_run_that_is_not_trusted_waits_for_a_renewal(harness: MakeHarness) -> None:
    h, key, line = without_trust(harness, Gate())
    waits = h.job(key)
    assert waits is not None
    assert (waits.state, h.broker.depth(QUEUE)) == (State.RUNNING, 1)

    vars(line).pop("renew")
    row = h.wait(key)
    assert row is not None
    assert row.state is State.DONE
    assert h.starts(key) == 1
