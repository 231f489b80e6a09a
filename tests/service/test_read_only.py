"""A disk that fails in mid-job: the kernel makes its file system read-only, and an operator repairs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import State
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from tests.support.probes import free_address, probe, ready
from tests.support.stage import Processes, Stage, eventually

pytestmark = pytest.mark.slow  # the path of `test_ledger_faults.py`, with another cause

STEPS = "tests.support.jobs:Steps"


class Disk:
    """An ext4 of its own, in a file; `fail` does what an error of the disk does (errors=remount-ro)."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "disk"
        self._image = folder / "disk.img"
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(32 << 20)
        run("mkfs.ext4", "-q", "-F", self._image)
        self.mount()

    def mount(self) -> None:
        run("mount", "-o", "loop,errors=remount-ro", self._image, self.path)

    def fail(self) -> None:
        run("mount", "-o", "remount,abort", self.path)

    def repair(self) -> None:
        """What an operator does when nothing has a file open there any more, with a copy: a mount namespace can have the old one."""
        run("umount", self.path)
        self._image = Path(shutil.copy(self._image, self._image.with_suffix(".copy")))
        subprocess.run(
            ["fsck.ext4", "-y", self._image], capture_output=True, check=False
        )  # 1: it has repaired something
        self.mount()

    def close(self) -> None:
        run("umount", "--lazy", self.path)


def run(*command: str | Path) -> None:
    subprocess.run(command, capture_output=True, check=True)


class OnDisk(Stage):
    """A stage whose broker and ledger are on that disk, and whose notes are not."""

    def __init__(self, folder: Path, disk: Path) -> None:
        self.broker, self.ledger_path = disk / "broker.db", disk / "ledger.db"
        self.open_ledger(folder)

    def open_ledger(self, folder: Path) -> None:
        ledger = SqliteLedger(self.ledger_path, clock=SystemClock(), times=Times())
        # Without it, a disk that fails takes the last commits, as a power cut does.
        url = f"sqlite:{self.ledger_path}?synchronous=full"
        Processes.__init__(self, folder, ledger, broker_url=f"sqlite:{self.broker}", ledger_url=url)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        missing = "only root can mount a disk"
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    made = Disk(tmp_path)
    yield made
    made.close()


@pytest.fixture
def stage(tmp_path: Path, disk: Disk) -> Iterator[OnDisk]:
    made = OnDisk(tmp_path, disk.path)
    yield made
    made.close()


def test_a_disk_that_becomes_read_only_loses_no_job_and_repeats_no_step(stage: OnDisk, disk: Disk) -> None:
    health = free_address()
    stage.send("steps", {"gate": "gate", "at": 3}, key="running")
    stage.send("steps", {}, key="waiting")
    process = stage.worker(STEPS, script={"scale": 20}, health=health, stop_within=5)
    ready(health)
    stage.notes("waiting", 1)
    disk.fail()
    stage.open()
    why = process.reports("not_ready", part="steps: ledger")["why"]
    assert re.search("read-?only", why, re.IGNORECASE), why
    eventually(lambda: probe(health, "readyz")[0] == 503, "not ready")
    assert probe(health, "livez")[0] == 200, "a restart would not heal the disk"
    assert stage.lines("starts") == ["running 1 0"]
    process.terminate()
    assert process.wait(30) in (0, 143)
    stage.ledger.close()
    disk.repair()
    stage.open_ledger(stage.folder)
    again = stage.worker(STEPS, script={"scale": 20})
    for key in ("running", "waiting"):
        assert stage.reaches("steps", State.DONE, key).counters.attempts == 0
    stage.empties("steps")
    assert len(stage.lines("starts")) == 3, "the run that the disk ended began again, from its checkpoint"
    assert stage.lines("starts")[1:] == ["running 1 3", "waiting 1 0"]
    again.terminate()
    again.ended(0)
