"""Programs as jobs, in real worker processes: every end that a program can have, and what is left of it."""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.cli.exec import command
from steadyworker.errors import BadPayload
from steadyworker.ledger.base import State
from steadyworker.programs.command import Command
from tests.programs.conftest import Exec
from tests.support.stage import Stage, WorkerProcess, eventually


def events(process: WorkerProcess, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]
    return [each for each in found if each["event"] == name]


def output(process: WorkerProcess) -> list[str]:
    return [each["line"] for each in events(process, "output")]


def alive(marker: str) -> list[int]:
    """The processes with this word on their command line."""
    return [each.pid for each in psutil.process_iter(["cmdline"]) if marker in (each.info["cmdline"] or [])]


def lives(pid: int) -> bool:
    """Whether the process runs; its zombie, which `init` reaps when it comes to it, does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# --- What the program gets ----------------------------------------------------------------------------------------------


def test_the_body_comes_on_standard_input_and_the_job_in_the_environment(stage: Stage, exec_: Exec) -> None:
    stage.send("work", {"merchant": "m-17"}, key="march", headers={"x-trace": "7"})
    script = 'cat; echo; echo "$SW_JOB_KEY $SW_QUEUE $SW_ATTEMPT $((SW_DEADLINE > 1700000000))" 2>/dev/null; cat "$SW_META"; env'
    process = exec_(script.replace("$((SW_DEADLINE > 1700000000))", "${SW_DEADLINE%.*}"), max_jobs=1)
    process.ended(0)
    body, facts, meta, *environment = output(process)
    assert json.loads(body) == {"merchant": "m-17"}
    assert facts.split()[:3] == ["march", "work", "1"]
    assert int(facts.split()[3]) > 1_700_000_000
    assert json.loads(meta)["headers"]["x-trace"] == "7"
    assert json.loads(meta)["redelivered"] is False
    assert "SW_REDELIVERED=false" in environment
    assert not [line for line in environment if line.startswith("SW_EXEC=")]
    assert events(process, "job_settled")[0]["outcome"] == "done"


def test_a_payload_is_an_argument_whatever_it_holds(stage: Stage, exec_: Exec) -> None:
    stage.send("work", {"name": "$(touch oops); `touch oops` 'a' \"b\" *"}, key="k")
    process = exec_(
        [sys.executable, "-c", "import sys; print(sys.argv[1]); print(sys.stdin.read() == '')", "{payload.name}"],
        max_jobs=1,
    )
    process.ended(0)
    assert output(process) == ["$(touch oops); `touch oops` 'a' \"b\" *", "True"]
    assert not (stage.folder / "oops").exists()


def test_a_payload_becomes_an_option_only_if_the_operator_allows_it(stage: Stage, exec_: Exec) -> None:
    """`touch --reference=FILE` and `touch -- NAME`: the text of a message is a name, or nothing."""
    stage.send("work", {"name": "-c"}, key="k")
    exec_(["touch", "{payload.name}"], max_jobs=1).ended(0)
    assert stage.reaches("work", State.DEAD, "k").reason.startswith(
        "bad-payload: $: expected a value that does not begin"
    )
    for key, options, program in (
        ("name", (), ["touch", "--", "{payload.name}"]),
        ("option", ("--allow-options",), ["touch", "{payload.name}", "made"]),
    ):
        stage.send("work", {"name": "-c"}, key=key)
        exec_(program, *options, max_jobs=1).ended(0)
        stage.reaches("work", State.DONE, key)
    assert [(stage.folder / name).exists() for name in ("-c", "made")] == [True, False]


def test_a_file_holds_a_body_that_is_too_large_for_an_argument(stage: Stage, exec_: Exec) -> None:
    stage.send("work", "x" * 300_000, key="k")
    process = exec_(["wc", "-c", "{file}"], max_jobs=1)
    process.ended(0)
    assert output(process)[0].split()[0] == "300002"


def test_reports_on_descriptor_3_are_progress_and_checkpoints(stage: Stage, exec_: Exec) -> None:
    """The second attempt gets the checkpoint of the first one."""
    script = """
    echo "progress 3 10 rows of June" >&3
    if [ -z "$SW_CHECKPOINT" ]; then echo 'checkpoint {"page": 3}' >&3; echo nonsense >&3; exit 1; fi
    echo "from $SW_CHECKPOINT at attempt $SW_ATTEMPT"
    """
    stage.send("work", {}, key="k")
    process = exec_(script, max_jobs=2)
    process.ended(0)
    assert output(process) == ['from {"page":3} at attempt 2']
    assert len(events(process, "report_ignored")) == 1
    found = [progress for row, progress in stage.ledger.jobs(_all()) if row.id.key == "k"]
    assert found[0] is not None
    assert (found[0].done, found[0].total, found[0].note) == (3, 10, "rows of June")


# --- How it ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "options", "outcome", "reason"),
    [
        ("exit 0", (), "done", ""),
        ("echo no such merchant >&2; exit 65", (), "rejected", "exit code 65: no such merchant"),
        ("exit 75", (), "failed", "exit code 75"),
        ("exit 1", (), "failed", "exit code 1"),
        ("exit 79", (), "failed", "exit code 79 (interrupted), but nothing had asked the program to stop"),
        ("exit 3", ("--exit-codes", "rabbitmq-cli-consumer"), "rejected", "exit code 3"),
        ("exit 4", ("--exit-codes", "rabbitmq-cli-consumer"), "failed", "exit code 4"),
        ("kill -SEGV $$", (), "crashed", "SIGSEGV"),
        ("kill -KILL $$", (), "crashed", "SIGKILL"),
        ("kill -TERM $$", (), "crashed", "SIGTERM"),
        ("kill -QUIT $$", (), "crashed", "SIGQUIT"),
        ("sleep 60", ("--time-limit", "1"), "failed", "time-limit"),
        ("trap '' TERM; sleep 60 & wait; sleep 60", ("--time-limit", "1"), "failed", "time-limit"),
        ("while :; do sleep 1; done", ("--stall-limit", "1"), "failed", "stalled"),
    ],
)
def test_every_end_of_a_program_has_its_outcome_and_the_next_job_runs(
    stage: Stage, exec_: Exec, script: str, options: tuple[str, ...], outcome: str, reason: str
) -> None:
    stage.send("work", {}, key="first")
    stage.send("work", {}, key="next")
    process = exec_(f'if [ "$SW_JOB_KEY" = next ]; then exit 0; fi; {script}', *options, max_jobs=2, delays="3600")
    process.ended(0)
    settled = {each["key"]: each for each in events(process, "job_settled")}
    assert (settled["first"]["outcome"], settled["first"]["reason"]) == (outcome, reason)
    assert settled["next"]["outcome"] == "done"
    if reason.startswith("exit"):
        assert not any("exception" in each for each in events(process, "job_failed"))


@pytest.mark.parametrize("script", ["exit 78", "exit 77", "no-such-command-anywhere"])
def test_a_host_that_cannot_run_the_program_gives_the_job_back_and_stops_with_78(
    stage: Stage, exec_: Exec, script: str
) -> None:
    stage.send("work", {}, key="k")
    process = exec_(script)
    process.ended(78)
    row = stage.reaches("work", State.INTERRUPTED, "k")
    assert (row.counters.attempts, row.counters.crashes) == (0, 0)
    assert stage.ready("work") == 1
    assert len(events(process, "job_started")) == 1
    assert "this host cannot run the jobs: sh: exit code" in events(process, "worker_stopped")[0]["reasons"][0]


def test_a_program_that_is_removed_while_the_worker_runs_loses_no_job(stage: Stage, exec_: Exec) -> None:
    program = stage.folder / "export.sh"
    program.write_text("#!/bin/sh\nrm $0\n")
    program.chmod(0o755)
    stage.send("work", {}, key="first")
    stage.send("work", {}, key="second")
    exec_([str(program)]).ended(78)
    assert stage.reaches("work", State.DONE, "first").counters.attempts == 0
    assert stage.reaches("work", State.INTERRUPTED, "second").counters.attempts == 0


def test_a_program_that_does_not_exist_is_refused_before_the_first_message(stage: Stage, exec_: Exec) -> None:
    stage.send("work", {}, key="k")
    process = exec_(["no-such-program"])
    process.ended(78)
    assert "Expected a program that this host can run, got 'no-such-program'" in process.log_end()
    assert stage.row("work", "k") is None


# --- What is left of it -------------------------------------------------------------------------------------------------


def test_a_deploy_terminates_the_program_and_the_next_worker_runs_it_again(stage: Stage, exec_: Exec) -> None:
    """It gets SIGTERM 13 s before the end of the stop, saves its place, and counts no attempt."""
    script = """
    echo "run $SW_REDELIVERED" >> runs
    if [ -n "$SW_CHECKPOINT" ]; then exit 0; fi
    trap 'echo "checkpoint 7" >&3; exit 79' TERM
    touch started; while :; do sleep 0.05; done
    """
    stage.send("work", {}, key="k")
    process = exec_(script, stop_within=12)
    stage.notes("runs", 1)
    eventually((stage.folder / "started").exists, "the program")
    process.send_signal(signal.SIGTERM)
    process.ended(0)
    row = stage.reaches("work", State.INTERRUPTED, "k")
    assert (row.counters.attempts, row.counters.crashes, row.counters.interruptions) == (0, 0, 1)
    exec_(script, max_jobs=1).ended(0)
    assert stage.reaches("work", State.DONE, "k").counters.attempts == 0
    assert stage.lines("runs") == ["run false", "run true"]


def test_a_cancel_ends_the_program_within_seconds(stage: Stage, exec_: Exec) -> None:
    stage.send("work", {}, key="k")
    process = exec_("touch started; exec sleep 60")
    eventually((stage.folder / "started").exists, "the program")
    assert stage.command("cancel", "work", "k", "--reason", "asked for twice").wait(30) == 0
    assert stage.reaches("work", State.DEAD, "k").reason == "cancelled: asked for twice"
    process.terminate()
    process.ended(0)


@pytest.mark.parametrize("end", ["exit 0", "exit 1", "kill -SEGV $$"])
def test_what_a_program_leaves_in_its_group_is_killed(stage: Stage, exec_: Exec, end: str) -> None:
    marker = f"6{os.getpid()}"
    stage.send("work", {}, key="k")
    exec_(f"sleep {marker} & sleep {marker} & echo $! > left; {end}", max_jobs=1, delays="3600").ended(0)
    assert (stage.folder / "left").read_text().strip()
    eventually(lambda: not alive(marker), "no process that is left")


def test_a_daemon_that_keeps_the_pipes_does_not_keep_the_job(stage: Stage, exec_: Exec) -> None:
    """With a session of its own, no slot kills it; the guide states this."""
    stage.send("work", {}, key="k")
    process = exec_("setsid sleep 30 & echo begun; exit 0", max_jobs=1)
    assert process.ended(0) < 25
    assert output(process) == ["begun"]
    for each in psutil.process_iter(["cmdline"]):
        if each.info["cmdline"] == ["sleep", "30"]:
            each.kill()


def test_a_worker_that_is_killed_leaves_no_program_beside_the_next_run(stage: Stage, exec_: Exec) -> None:
    script = (
        "echo $$ >> runs; if [ -e again ]; then exit 0; fi; trap '' TERM; touch started; while :; do sleep 0.05; done"
    )
    stage.send("work", {}, key="k")
    process = exec_(script, ledger_reach="host")
    eventually((stage.folder / "started").exists, "the program")
    (stage.folder / "again").touch()
    process.kill()
    process.wait()
    exec_(script, max_jobs=1, ledger_reach="host").ended(0)
    assert stage.reaches("work", State.DONE, "k").counters.losses == 1
    first, _ = stage.lines("runs")
    assert not lives(int(first))


def test_a_hundred_megabytes_of_output_are_neither_logged_nor_waited_for(stage: Stage, exec_: Exec) -> None:
    stage.send("work", {}, key="k")
    process = exec_("yes 0123456789012345678901234567890123456789 | head -c 100000000; echo the end >&2", max_jobs=1)
    process.ended(0)
    assert process.log.stat().st_size < 4 << 20
    assert "the end" in output(process)
    assert sum(each["lines"] for each in events(process, "output_left_out")) > 2_000_000


def _all() -> Any:
    from steadyworker.ledger.base import JobFilter

    return JobFilter(queue="work")


def test_the_examples_of_the_help_are_commands(tmp_path: Path) -> None:
    assert command.epilog is not None
    examples = [shlex.split(line)[2:] for line in command.epilog.splitlines() if line.startswith("  steadyworker exec")]
    assert [words[words.index("--") + 1] for words in examples] == ["pg_dump", "ffmpeg", "php"]
    body = b'{"database": "--file=/elsewhere", "source": "-f"}'
    pg_dump, ffmpeg, php = (Command(command.make_context("exec", words).params["arguments"]) for words in examples)
    assert pg_dump.filled(body, "k-1", "")[-2:] == ["--", "--file=/elsewhere"]
    with pytest.raises(BadPayload, match=r"does not begin with - for '\{payload.source\}'"):
        ffmpeg.filled(body, "k-1", "")
    assert php.filled(body, "k-1", "") == ["php", "mail.php", base64.b64encode(body).decode()]
