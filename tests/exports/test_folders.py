"""The memory of folders with stages: private, and of any path that the file system takes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from steadyworker.exports.folders import StageFolders
from steadyworker.exports.stage import STAGES
from steadyworker.testing.clock import FakeClock


def remember(folders: StageFolders, folder: Path) -> None:
    folders.remember(os.fsencode(folder))


def test_the_memory_and_what_it_makes_above_are_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        remember(StageFolders(tmp_path / "state" / "stages"), tmp_path)
    finally:
        os.umask(before)
    made = [tmp_path / "state", tmp_path / "state" / "stages", *(tmp_path / "state" / "stages").iterdir()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("entry", [b"caf\xe9", b"/caf\xe9", b"/a\0b", b"\xff" * 40], ids=repr)
def test_an_entry_that_names_no_folder_stops_nothing_and_is_forgotten(tmp_path: Path, entry: bytes) -> None:
    clock = FakeClock()
    memory, out = tmp_path / "stages", tmp_path / "out"
    folders = StageFolders(memory, clock)
    (out / STAGES / "uid-1").mkdir(parents=True)
    remember(folders, out)
    (memory / "0").write_bytes(entry)
    for path in memory.iterdir():
        os.utime(path, (clock.wall(), clock.wall()))

    clock.advance(7200)
    folders.purge(lambda uids: uids)

    assert not (out / STAGES).exists()
    assert not (memory / "0").exists()


def test_a_folder_whose_name_is_not_utf_8_is_remembered_and_reaped(tmp_path: Path) -> None:
    folders = StageFolders(tmp_path / "stages")
    out = tmp_path / os.fsdecode(b"caf\xe9")
    (out / STAGES / "uid-1").mkdir(parents=True)
    remember(folders, out)
    folders.purge(lambda uids: uids)
    assert not (out / STAGES).exists()
