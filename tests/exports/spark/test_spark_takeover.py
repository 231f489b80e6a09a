"""Two runs of one Spark export in real worker processes, the first frozen past its lease."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.exports.verifying import verify
from steadyworker.ledger.base import State
from tests.exports.spark.handed import ROWS
from tests.support.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

HANDED = "tests.exports.spark.handed:Handed"
BLIND = {"scale": 10, "silence": 3.0, "proof": False}
"""A lease of 6 s, which has to run out; the broker passes the message on after 3 s of silence."""
LONG = 240.0


@pytest.fixture
def stage(tmp_path: Path, archive: Path) -> Iterator[Stage]:
    """A broker, a ledger, and worker processes whose Spark hosts start quickly."""
    made = Stage(tmp_path)
    yield made
    made.close()


def test_a_run_that_was_frozen_past_its_lease_changes_nothing_when_it_goes_on(stage: Stage) -> None:
    """
    One file, the job done once, and the stale run says `fenced`.

    It is frozen before its stage is complete, so the next run makes the export again; test_commit.py has what comes after it.
    """
    out = stage.folder / "out" / "payments.csv"
    stage.send("handed", {"to": str(out)})
    first = stage.worker(HANDED, script=BLIND)
    stage.notes("waiting", 1, within=LONG)
    first.signal_all(signal.SIGSTOP)
    second = stage.worker(HANDED, script=BLIND)
    second.reports("taken_over", losses=1, within=LONG)
    done = stage.reaches("handed", State.DONE, within=LONG)
    stage.empties("handed")
    second.terminate()
    second.ended(0)
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in out.parent.iterdir() if path.is_file()}
    (made,) = stage.lines("made")

    stage.open()
    first.signal_all(signal.SIGCONT)
    first.reports("fenced", within=LONG)
    first.terminate()
    first.wait(LONG)  # 0, or 143 if its own copy of the message, which came back meanwhile, was still to be answered
    after = stage.reaches("handed", State.DONE)
    assert (after.fence, after.counters, after.export_state) == (done.fence, done.counters, done.export_state), (
        "nothing was written"
    )
    assert [line["outcome"] for process in stage.processes for line in process.lines("job_settled")] == ["done"]
    assert stage.lines("made") == [made]
    assert {
        path.name: (path.stat().st_ino, path.read_bytes()) for path in out.parent.iterdir() if path.is_file()
    } == before
    assert sorted(before) == ["payments.csv", "payments.csv.manifest.json"]
    manifest = verify(out)
    starts = [int(line.split()[1]) for line in stage.lines("starts")]
    assert len(starts) == 2
    assert manifest.fence == starts[1]
    assert manifest.rows == ROWS
    assert made == f"{starts[1]} {manifest.fence} {ROWS} {hashlib.sha256(out.read_bytes()).hexdigest()}"
