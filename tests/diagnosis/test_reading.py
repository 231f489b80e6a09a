"""A file that grows, and that another file replaces."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from steadyworker.diagnosis.reading import Growing


def test_what_is_written_to_the_old_file_after_the_new_one_was_seen_is_read(tmp_path: Path) -> None:
    """As logrotate does it: the writer learns of the rotation later, and has written to the old file until then."""
    path = tmp_path / "worker.log"
    path.write_text("first\n")
    with closing(Growing(path)) as growing, path.open("a", buffering=1) as writer:
        assert growing.read() == b"first\n"
        path.rename(tmp_path / "worker.log.1")
        path.write_text("new\n")
        assert growing.read() == b"new\n"
        writer.write("late\n")
        assert growing.read() == b"late\n"
        assert growing.read() == b""
        path.rename(tmp_path / "worker.log.2")
        path.write_text("newest\n")
        assert growing.read() == b"newest\n"


def test_a_file_that_was_truncated_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_text("first line\n")
    with closing(Growing(path)) as growing:
        assert growing.read() == b"first line\n"
        path.write_text("again\n")
        assert growing.read() == b"again\n"
