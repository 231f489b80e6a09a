"""The programs of examples/programs, with stand-ins for pg_dump and ffmpeg that write what those write; no PHP is needed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.programs.codes import Meaning, meaning
from tests.examples.conftest import ROOT
from tests.support.stage import eventually

PROGRAMS = ROOT / "examples/programs"

PG_DUMP = """#!/bin/sh
case "$2" in --file=*) echo "dump of $4" > "${2#--file=}";; esac
[ "$3 $4" != "-- broken" ]
"""

FFMPEG = """#!/bin/sh
echo "$@" > ffmpeg.arguments
while [ $# -gt 1 ]; do [ "$1" = -progress ] && progress=$2; shift; done
echo out_time_us=12000000 > "$progress"; echo film > "$1"; touch began
while [ ! -e gate ]; do sleep 0.05; done
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "bin").mkdir()
    for name, text in (("pg_dump", PG_DUMP), ("ffmpeg", FFMPEG)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    yield tmp_path
    (tmp_path / "gate").touch()  # ends a film that a failed test has left


def started(place: Path, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a program as `exec` does, with descriptor 3 in the file `reports`."""
    command = ["sh", "-c", 'exec "$@" 3>reports', "sh", str(PROGRAMS / program), *arguments]
    return subprocess.Popen(
        command, cwd=place, env={**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}, start_new_session=True
    )


def test_a_backup_appears_whole_or_not_at_all(place: Path) -> None:
    assert started(place, "backup.sh", "shop", "shop.dump").wait(20) == 0
    assert (place / "shop.dump").read_text() == "dump of shop\n"
    assert (place / "reports").read_text() == "progress 0 1 dumping shop\nprogress 1 1 done\n"
    assert started(place, "backup.sh", "broken", "broken.dump").wait(20) == 1
    assert not (place / "broken.dump").exists()


def test_a_transcode_reports_its_progress_and_ends_with_its_film(place: Path) -> None:
    (place / "in.mov").touch()
    program = started(place, "transcode.sh", "in.mov", "out.mp4", "60")
    eventually((place / "reports").exists, "the program")
    eventually(lambda: "progress 12 60" in (place / "reports").read_text(), "a report")
    assert not (place / "out.mp4").exists()
    (place / "gate").touch()
    assert program.wait(20) == 0
    assert (place / "out.mp4").read_text() == "film\n"
    assert "-i in.mov" in (place / "ffmpeg.arguments").read_text()


def test_a_transcode_without_its_source_is_a_dead_letter(place: Path) -> None:
    code = started(place, "transcode.sh", "none.mov", "out.mp4", "60").wait(20)
    assert meaning(code, "sysexits") is Meaning.DEAD


def test_a_transcode_that_is_asked_to_stop_stops_early(place: Path) -> None:
    (place / "in.mov").touch()
    program = started(place, "transcode.sh", "in.mov", "out.mp4", "60")
    eventually((place / "began").exists, "ffmpeg")
    began = time.monotonic()
    os.killpg(program.pid, signal.SIGTERM)
    assert meaning(program.wait(20), "sysexits") is Meaning.INTERRUPTED
    assert time.monotonic() - began < 10
    assert not (place / "out.mp4").exists()


def test_the_exit_codes_of_the_php_consumer_are_those_of_its_mode() -> None:
    text = (PROGRAMS / "mail.php").read_text()
    codes = {name: int(code) for name, code in re.findall(r"\b([A-Z_]+) = (\d+)", text)}
    found = {name: meaning(code, "rabbitmq-cli-consumer") for name, code in codes.items()}
    assert found == {"ACKNOWLEDGE": Meaning.DONE, "REJECT": Meaning.DEAD, "REJECT_AND_REQUEUE": Meaning.FAILED}
