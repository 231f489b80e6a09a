"""The command line as a stranger meets it: help that teaches, errors of one line, the exit codes of sysexits."""

from __future__ import annotations

import re
import resource
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from steadyworker import lifecycle
from steadyworker.cli import BROKEN_OFF, INTERNAL, OUTPUT, USAGE, exit_code, verbs
from steadyworker.errors import (
    BadPayload,
    BrokerUnavailable,
    ConfigError,
    ExportError,
    LedgerUnavailable,
    PublishFailed,
    SendError,
    SteadyWorkerError,
)
from tests.cli.kit import Shell

ROOT = Path(__file__).parents[2]
VERBS = (
    "run",
    "exec",
    "send",
    "check",
    "jobs",
    "find",
    "retry",
    "reschedule",
    "cancel",
    "dead",
    "pause",
    "resume",
    "purge",
    "actions",
    "deploy",
    "adapters",
)
OTHER_VERBS = {"explain": "diagnosis", "trace": "diagnosis", "verify": "exports"}


def test_help_names_every_verb_and_imports_none() -> None:
    done = CliRunner().invoke(verbs, ["--help"])
    assert done.exit_code == 0
    for verb in (*VERBS, *OTHER_VERBS):
        assert re.search(rf"^  {verb}\b", done.output, re.MULTILINE)


def test_help_answers_at_once(shell: Shell) -> None:
    """The aim is 0.3 s; five times as much processor time is allowed, which other tests do not lengthen as they do the wait."""

    def once() -> float:
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert shell("--help").code == 0
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime

    assert min(once() for _ in range(3)) < 1.5


def test_help_does_not_import_what_verbs_need(shell: Shell) -> None:
    done = shell("--help", environ={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = {line.rpartition("|")[2].strip() for line in done.err.splitlines() if line.startswith("import time:")}
    assert "steadyworker.cli" in imported
    assert not imported & {
        "rich",
        "msgspec",
        "structlog",
        "sqlite3",
        "tenacity",
        "http.client",
        "pika",
        "ssl",
        "subprocess",
        "steadyworker.config.resolve",
        "steadyworker.ledger.base",
        "steadyworker.service.launch",
        "steadyworker.telemetry.logs",
        "steadyworker.worker",
        "steadyworker.diagnosis.catalogue",
        "steadyworker.exports.manifest",
        "asyncio",
    }


@pytest.mark.parametrize("verb", [*VERBS, *OTHER_VERBS])
def test_each_verbs_help_has_a_sentence_and_an_example(verb: str) -> None:
    done = CliRunner().invoke(verbs, [verb, "--help"])
    assert done.exit_code == 0
    assert f"steadyworker {verb}" in done.output or verb == "adapters"
    room = f"{OTHER_VERBS[verb]}.cli" if verb in OTHER_VERBS else "cli"
    command = import_module(f"steadyworker.{room}.{verb}").command
    assert isinstance(command, click.Command)
    assert command.help


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 78),
        (BrokerUnavailable("x"), 69),
        (LedgerUnavailable("x"), 69),
        (PublishFailed("x"), 69),
        (SendError("x"), 69),
        (BadPayload("x"), 65),
        (ExportError("x"), 1),
        (SteadyWorkerError("x"), 1),
    ],
)
def test_errors_end_with_the_exit_code_of_their_kind(error: SteadyWorkerError, code: int) -> None:
    assert exit_code(error) == code


def test_the_help_lists_every_exit_code() -> None:
    listed = CliRunner().invoke(verbs, ["--help"]).output.partition("Exit codes:")[2]
    codes = {int(code) for code in re.findall(r"^  (\d+) ", listed, re.MULTILINE)}
    of_run = {value for name, value in vars(lifecycle).items() if name.startswith("EX_")}
    of_errors = {exit_code(kind("x")) for kind in (ConfigError, SendError, BadPayload, SteadyWorkerError)}
    assert codes == of_run | of_errors | {USAGE, INTERNAL, OUTPUT, BROKEN_OFF}
    for page in ("steadyworker run --help", "deploy/README.md"):
        text = CliRunner().invoke(verbs, ["run", "--help"]).output if "run" in page else (ROOT / page).read_text()
        rows = re.findall(
            r"^\|? *(\d+) +(?:\| )?\S", re.split(r"Exit codes:|\| exit code \||\n## systemd", text)[1], re.MULTILINE
        )
        assert set(map(int, rows)) == of_run, page


def printed_to(shell: Shell, redirection: str, *arguments: str) -> tuple[int, str]:
    """Run the command in a shell, with its streams changed; return its exit code, and what it wrote to standard error."""
    command = f"{shlex.join([sys.executable, '-m', 'steadyworker', *arguments])} {redirection}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=shell.folder,
        env=shell.environ,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


FULL = "error: Expected to write to standard output, got: No space left on device: send it elsewhere.\n"


@pytest.mark.parametrize(
    ("redirection", "arguments", "expected"),
    [
        (">/dev/full", ("--help",), (74, FULL)),
        (">/dev/full", ("send", "exports", "{}"), (74, FULL)),
        ("| true", ("adapters",), (74, "")),
        ("0<&- 1>&- 2>&-", ("send", "exports", "{}"), (0, "")),
        ("2>/dev/full", ("nope",), (64, "")),
    ],
)
def test_a_stream_that_cannot_be_written_is_an_exit_code_and_no_traceback(
    shell: Shell, redirection: str, arguments: tuple[str, ...], expected: tuple[int, str]
) -> None:
    assert printed_to(shell, redirection, *arguments) == expected


def test_a_character_that_standard_output_cannot_encode_is_an_escape(shell: Shell) -> None:
    done = shell("check", "app:Exports", environ={"PYTHONIOENCODING": "latin-1"})
    assert done.code == 0
    assert "\\u2013" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rum", "app:Exports"], "got 'rum': did you mean run?"),
        (["dead", "lst", "exports"], "got 'lst': did you mean list?"),
        (
            ["nope"],
            (
                "Expected one of the commands run, exec, send, check, jobs, show, queues, workers, find, retry, reschedule, "
                "cancel, dead, pause, resume, purge, actions, deploy, adapters, dashboard, explain, top, trace, verify, got 'nope'"
            ),
        ),
        (["run", "app:Exports", "--max-job", "1"], "--max-jobs"),
        (["jobs", "--watch", "--json"], "Expected --watch or --json, got both"),
    ],
)
def test_wrong_usage_names_the_near_command_or_option(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(verbs, arguments)
    assert done.exit_code == 64
    assert message in done.stderr


def test_a_path_that_cannot_be_used_is_reported_without_a_traceback(tmp_path: Path) -> None:
    done = CliRunner().invoke(verbs, ["jobs", "--state-dir", str(tmp_path / ("a" * 300))])
    assert done.exit_code == 78
    assert "File name too long" in done.stderr
    assert "internal" not in done.stderr
    assert "--debug" not in done.stderr


def test_ctrl_c_is_130_and_not_a_negative_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("steadyworker.cli.adapters.adapters", interrupted)
    done = CliRunner().invoke(verbs, ["adapters"])
    assert (done.exit_code, done.stdout) == (130, "")


@pytest.mark.parametrize("arguments", [["nope"], ["jobs", "--nope"], ["send"], ["dead", "list"], ["run"]])
def test_wrong_usage_is_64(arguments: list[str]) -> None:
    done = CliRunner().invoke(verbs, arguments)
    assert done.exit_code == 64
    assert "Usage:" in done.stderr


def test_an_error_is_one_line_with_its_remedy(shell: Shell) -> None:
    done = shell("send", "app:Export", "{}")
    assert done.code == 78
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert "Exports" in done.err
    assert "Traceback" not in done.err


def test_debug_shows_the_traceback(shell: Shell) -> None:
    done = shell("--debug", "send", "app:Export", "{}")
    assert done.code == 78
    assert "Traceback" in done.err


def test_a_module_that_cannot_be_imported_is_reported_with_its_place(shell: Shell) -> None:
    (shell.folder / "broken.py").write_text("\n\nimport no_such_library\n")
    done = shell("check", "broken:Exports")
    assert done.code == 78
    assert "broken.py:3" in done.err
    assert "no_such_library" in done.err
    assert "Traceback" not in done.err


NO_LIMIT = """\
from steadyworker import Worker

class Exports(Worker[bytes]):
    queue = "exports"
"""


@pytest.mark.parametrize(
    ("written", "place", "message"),
    [
        (NO_LIMIT, ":3", "TypeError: Exports has a queue but no time_limit: set `time_limit = <seconds>`"),
        ("\n\ndef f(:\n    pass\n", ":3", "SyntaxError: invalid syntax: def f(:"),
        ("import json\njson.loads('x')\n", ":2", "JSONDecodeError: Expecting value"),
        (
            "from steadyworker import *\nRetryPolicy(max_attempts=0)\n",
            ":2",
            "ConfigError: Expected max_attempts as a whole number",
        ),
        ("import sys\nsys.exit(3)\n", ":2", "SystemExit: 3. A module that is imported must not end the program"),
    ],
)
def test_an_import_that_fails_is_reported_with_the_users_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, place: str, message: str
) -> None:
    module = tmp_path / f"own_{abs(hash(written))}.py"
    module.write_text(written)
    (tmp_path / f"{module.stem}_too.py").write_text(
        f"import {module.stem}\n"
    )  # the place is that of the fault, not of its import
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in (module.stem, f"{module.stem}_too"):
        done = CliRunner().invoke(verbs, ["check", f"{name}:Exports"])
        assert done.exit_code == 78
        assert done.stdout == ""
        assert f"but {module}{place} raised {message}" in done.stderr
        assert "Traceback" not in done.stderr
        assert "importlib" not in done.stderr


def test_an_unknown_setting_is_reported_with_the_near_one(shell: Shell) -> None:
    (shell.folder / "steadyworker.toml").write_text('brokr = "sqlite:x.db"\n')
    done = shell("jobs")
    assert done.code == 78
    assert "broker" in done.err


def test_python_dash_m_is_the_command(shell: Shell) -> None:
    done = shell("--version")
    assert done.code == 0
    assert re.fullmatch(r"steadyworker \d+\.\d+\.\d+\n", done.out)
