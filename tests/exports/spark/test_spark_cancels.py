"""Cancels at random moments of an export's whole life, in a real worker process: nothing is published afterwards, and the disk is given back."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker import Client
from steadyworker.exports.stage import STAGES
from steadyworker.exports.verifying import verify
from steadyworker.ledger.base import Row, State
from tests.exports.spark.sparkkit import used
from tests.support.stage import Stage, WorkerProcess, eventually

pytestmark = [pytest.mark.spark]

QUEUE = "spark-rows"
LONG = 600.0
"""Seconds that a worker process may take to start, and to export."""

COMMITS_WITHIN = 1.0
"""Seconds in which a commit ends that had begun before the cancel: `cancel` lets none begin, and stops none."""

SLACK = 2 << 20
"""Bytes that a worker process may keep beside its logs and databases; the files of one sort of 300,000 rows have 7 MiB."""

GROWS = (".log", ".db", ".db-wal", ".db-shm")
"""The ends of the names of files that grow with each job: logs, the ledger and the broker."""

Phases = dict[str, Callable[[Path], object]]
PHASES: Phases = {
    "begins": lambda out: out.with_name("starts").exists(),
    "sorts": lambda out: any(out.glob(f"{STAGES}/*/*/*/parts/**/part-*")),
    "joins": lambda out: any(data.stat().st_size for data in out.glob(f"{STAGES}/*/*/*/data")),
    "commits": lambda out: any(out.glob(f"{STAGES}/*/*/*/manifest.json")),
    "ends": lambda out: any(out.glob("*.csv")),
}
"""What is seen of each phase in the folder of the target when it begins; the first one is seen beside it."""


class Exports:
    """One worker process, and what is seen of its exports."""

    def __init__(self, stage: Stage, rows: int) -> None:
        self._stage, self._rows, self.out = stage, rows, stage.folder / "out"
        self.process = stage.worker("tests.exports.spark.jobs:Rows")

    def begin(self, key: str) -> Path:
        """Send a job, and return its target."""
        (self._stage.folder / "starts").unlink(missing_ok=True)
        self._stage.send(QUEUE, {"rows": self._rows}, key=key)
        return self.out / f"{key}.csv"

    def wait(self, phase: str) -> float:
        """Return when this phase, or a later one, has begun."""
        later = [*PHASES.values()][[*PHASES].index(phase) :]
        deadline = time.monotonic() + LONG
        while not any(self._sees(seen) for seen in reversed(later)):
            assert time.monotonic() < deadline, f"{phase}: {self._stage.logs()}"
            time.sleep(0.002)
        return time.monotonic()

    def _sees(self, seen: Callable[[Path], object]) -> bool:
        try:
            return bool(seen(self.out))
        except FileNotFoundError:  # a folder went while its names were read
            return False

    def lengths(self, key: str) -> dict[str, float]:
        """Make one export; return how many seconds each phase took."""
        target = self.begin(key)
        began = [self.wait(phase) for phase in PHASES]
        self._stage.reaches(QUEUE, State.DONE, key, LONG)
        remove(target)
        return {phase: end - begin for phase, begin, end in zip(PHASES, began, began[1:], strict=False)}

    def cancel(self, key: str, phase: str, after: float) -> tuple[Path, bool]:
        """
        Begin a job, cancel it that many seconds after this phase has begun, and return its target, and whether it was published.

        Nothing is published later than a commit takes that had begun; all is gone when the job has ended.
        """
        target = self.begin(key)
        self.wait(phase)
        time.sleep(after)  # a random moment is no event
        with Client(**self._stage.urls) as client:
            client.cancel(QUEUE, key, "drill")
        returned, published = time.monotonic(), target.exists()
        row: Row | None = None
        deadline = returned + LONG
        while row is None or row.state not in {State.DONE, State.DEAD}:
            if target.exists() and not published:
                assert time.monotonic() - returned < COMMITS_WITHIN, f"{key}: published after `cancel` had returned"
                published = True
            row = self._stage.row(QUEUE, key)
            assert time.monotonic() < deadline, self._stage.logs()
            time.sleep(0.002)
        assert published == target.exists(), f"{key}: published when the job had ended"
        assert published or row.state is State.DEAD
        if published:
            assert verify(target).rows == self._rows
            remove(target)
        eventually(lambda: not used(self.out), f"{key}: an empty folder", report=self._stage.logs)
        return target, published


def remove(target: Path) -> None:
    """Remove what was published."""
    target.unlink()
    target.with_name(f"{target.name}.manifest.json").unlink()


def on_disk(folder: Path, process: WorkerProcess) -> int:
    """Return the bytes of all files below a folder but logs and databases, also of those that are removed while a process has them open."""
    kept = {path for path in folder.rglob("*") if not path.name.endswith(GROWS)}
    size = sum(map(_bytes, kept))
    for pid in process.family():
        for opened in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):  # it ends or closes the file meanwhile
                name = opened.readlink()
                size += opened.stat().st_size if name.name.endswith(" (deleted)") and folder in name.parents else 0
    return size


def _largest(folder: Path) -> str:
    return "\n".join(f"{_bytes(path):12,} {path}" for path in sorted(folder.rglob("*"), key=_bytes)[-20:])


def _bytes(path: Path) -> int:
    with suppress(OSError):  # it was removed meanwhile
        return path.stat().st_size if path.is_file() else 0
    return 0


@pytest.fixture
def stage(tmp_path: Path, archive: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("rows", "phases"),
    [
        pytest.param(300_000, ("sorts", "joins", "commits"), marks=pytest.mark.timeout(400), id="3 of 300,000 rows"),
        pytest.param(
            5_000_000,
            ("begins", "sorts", "joins", "commits") * 5,
            marks=[pytest.mark.slow, pytest.mark.timeout(5400)],
            id="20 of 5,000,000 rows",
        ),
    ],
)
def test_a_cancelled_export_is_never_published_and_gives_its_disk_back(
    stage: Stage, rows: int, phases: tuple[str, ...]
) -> None:
    """The moment in the phase is random; `STEADYWORKER_TEST_SEED` repeats a run."""
    seed = int(os.environ.get("STEADYWORKER_TEST_SEED") or random.randrange(1 << 32))
    print(f"STEADYWORKER_TEST_SEED={seed}")
    chance = random.Random(seed)
    exports = Exports(stage, rows)
    exports.lengths("cold")  # it starts the host
    lengths = exports.lengths("warm")
    print(", ".join(f"{phase} {length:.2f} s" for phase, length in lengths.items()))
    before = on_disk(stage.folder, exports.process)
    cancelled: list[Path] = []
    for number, phase in enumerate(chance.sample(phases, len(phases))):
        after = chance.uniform(0, lengths[phase])
        target, published = exports.cancel(f"job-{number}", phase, after)
        cancelled += [] if published else [target]
        now = on_disk(stage.folder, exports.process)
        print(
            f"{phase} + {after:.2f} s: {'published' if published else 'cancelled'}, {(now - before) >> 20:+} MiB on disk"
        )
        eventually(
            lambda: on_disk(stage.folder, exports.process) <= before + SLACK,
            "the disk as it was",
            report=lambda: _largest(stage.folder),
        )
    assert len(cancelled) >= len(phases) // 2, "most moments are before the commit"
    assert not [target for target in cancelled if target.exists()]
    assert psutil.pid_exists(exports.process.pid)
    exports.process.terminate()
    exports.process.ended(0, within=LONG)
    assert list((stage.folder / "state" / "spark" / "hosts").glob("*/")) == []
    assert used(exports.out) == 0
