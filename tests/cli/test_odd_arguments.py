"""Odd arguments, files and places: each ends with the exit code of its kind and a remedy, and never with a traceback."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from steadyworker.cli import verbs
from steadyworker.cli.output import Column, table
from tests.cli.kit import Shell

WORKER = "app:Exports"
JOB = '{"merchant": "m"}'

Command = Callable[..., Result]


@pytest.fixture
def command(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `steadyworker` in this process, in the folder of `shell`."""
    monkeypatch.chdir(shell.folder)
    monkeypatch.setenv("STEADYWORKER_STATE_DIR", str(shell.state))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "app", raising=False)
    return lambda *arguments: CliRunner().invoke(verbs, arguments)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("send", WORKER, JOB, "--delay", "soon"), 64, "or a text such as '1h 30m', got 'soon'"),
        (("send", WORKER, JOB, "--delay", "1e300"), 64, "Expected a delay of 0 seconds to ten years"),
        (("send", WORKER, JOB, "--delay", "3600000000"), 64, "Expected a delay of 0 seconds to ten years"),
        (("send", WORKER, JOB, "--header", "=b"), 64, "Expected --header NAME=VALUE, got '=b'"),
        (("send", WORKER, JOB, "--header", "a=" + "x" * 100_000), 65, "Expected headers of at most 65536 bytes"),
        (("send", WORKER, '"\udcff"'), 65, "expected UTF-8, got byte 0xff"),
        (("jobs", "--limit", "-1"), 64, "0<=x<="),
        (("jobs", "--limit", "9" * 30), 64, "0<=x<="),
        (("find", WORKER, "k-1", "--limit", str(2**63)), 64, "1<=x<="),
        (("cancel", WORKER, ""), 64, "Expected a key that is not empty"),
        (("check", WORKER, "--state-dir", "~no-such-user/x"), 78, "Expected a folder for --state-dir"),
        (("check", WORKER, "--broker-file", "~no-such-user/x"), 78, "Expected a URL for --broker-file"),
        (("check", "json:dumps"), 78, "name a Worker class"),
        (("check", "..app:Exports"), 78, "Expected a Worker as module:Class"),
    ],
)
def test_an_odd_argument_is_refused_in_words(
    command: Command, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = command(*arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in done.stderr
    assert "--debug" not in done.stderr


def test_a_delay_is_written_as_every_duration_is(command: Command, shell: Shell) -> None:
    assert command("send", WORKER, JOB, "--delay", "1h 30m").exit_code == 0
    (shell.folder / "jobs.jsonl").write_text(f'{{"payload": {JOB}, "delay": "2h"}}\n')
    assert command("send", WORKER, "--file", "jobs.jsonl").exit_code == 0


def test_a_file_of_jobs_may_have_a_byte_order_mark_and_may_be_empty(command: Command, shell: Shell) -> None:
    (shell.folder / "jobs.jsonl").write_text(f'{{"payload": {JOB}, "key": "k-1"}}\n', encoding="utf-8-sig")
    assert command("send", WORKER, "--file", "jobs.jsonl").stdout == "k-1\n"
    (shell.folder / "jobs.jsonl").write_text("\n")
    done = command("send", WORKER, "--file", "jobs.jsonl")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "jobs.jsonl has no job: nothing was sent.\n")


def test_a_name_that_is_not_utf_8_is_printed_as_its_escape(command: Command) -> None:
    done = command("verify", "\udcff", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["file"] == "\udcff"
    assert "\\udcff" in command("verify", "\udcff").stdout
    done = command("cancel", "exports", "k\udcff\x1b[2J")
    assert done.exit_code == 64
    assert r"Expected a key of valid Unicode, got 'k\udcff\x1b[2J'" in done.stderr


def test_what_a_module_prints_while_it_is_imported_is_no_output(command: Command, shell: Shell) -> None:
    (shell.folder / "loud.py").write_text("print('hello')\nfrom app import Exports\n")
    done = command("check", "loud:Exports", "--json")
    assert done.stderr == "hello\n"
    assert [found["id"] for found in json.loads(done.stdout)["findings"]] == ["ledger.missing"]


def test_a_module_that_calls_run_while_it_is_imported_is_refused(shell: Shell) -> None:
    """Each child process would import it, call run, and start children of its own."""
    (shell.folder / "unguarded.py").write_text(
        "from app import *\nclass Own(Exports):\n  pass\nimport steadyworker\nsteadyworker.run(Own)\n"
    )
    done = shell("check", "unguarded:Own")
    assert done.code == 78
    assert "put the call of run below `if __name__ == '__main__':`" in done.err
    assert "unguarded.py:5 raised SystemExit: 78" in done.err


def test_a_module_that_raises_no_exception_is_reported_too(command: Command, shell: Shell) -> None:
    (shell.folder / "odd_end.py").write_text("raise BaseException('odd')\n")
    done = command("check", "odd_end:Exports")
    assert done.exit_code == 78
    assert "odd_end.py:1 raised BaseException: odd" in done.stderr


def test_a_working_directory_that_was_deleted_is_reported(command: Command, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)  # the fixture goes back
    gone.rmdir()
    for arguments in (("jobs",), ("check", WORKER), ("run", WORKER)):
        done = command(*arguments)
        assert done.exit_code == 78
        assert "Expected a working directory, got one that was deleted" in done.stderr


def test_a_user_without_a_home_is_reported(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_: object = None) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("STEADYWORKER_STATE_DIR", "STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    done = command("jobs")
    assert done.exit_code == 78
    assert "Remedy: set --state-dir, or HOME." in done.stderr


def test_a_terminal_that_is_too_narrow_for_the_titles_loses_no_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for rich
    monkeypatch.setenv("COLUMNS", "6")
    table((Column("QUEUE"), Column("LAST PROGRESS"), Column("WHY")), [["exports", "1 s ago", "again"]])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert {"QUEUE", "LAST", "PROGRESS", "WHY", "exports", "again"} <= set(shown.split())
