"""State is made for one user alone, and a place where another user could change it is a warning."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.system.private import access_findings, make_private_file


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_link_to_no_file_gets_a_private_file_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "el").mkdir()
    (tmp_path / "state").mkdir()
    link = tmp_path / "state" / "ledger.db"
    link.symlink_to("../el/ledger.db")
    make_private_file(link)
    assert stat.S_IMODE((tmp_path / "el" / "ledger.db").stat().st_mode) == 0o600
    assert link.is_symlink()


def test_a_file_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("content")
    file.chmod(0o640)
    link.symlink_to(file)
    make_private_file(file)
    make_private_file(link)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("content", 0o640)


def test_a_file_in_another_user_s_folder_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    file = folder / "ledger.db"
    make_private_file(file)
    assert access_findings("the ledger", file) == []

    stranger = 4321
    real = Path.stat

    def of_stranger(self: Path) -> os.stat_result:
        status = list(real(self))
        status[4] = stranger if self == folder else os.geteuid()
        return os.stat_result(status)

    monkeypatch.setattr(Path, "stat", of_stranger)
    (finding,) = access_findings("the ledger", file)
    assert finding.level == "warning"
    assert f"Expected {folder} to belong to this user, {os.geteuid()}, or to root, got the user 4321" in finding.what
    assert finding.remedy.startswith(f"chown {os.geteuid()} {folder}")
