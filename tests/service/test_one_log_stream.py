"""Without a terminal, each line of a worker process is one JSON object, whatever a job prints and however it logs."""

from __future__ import annotations

import json
import os
import pty
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from steadyworker.ledger.base import State
from tests.examples.pages import Page
from tests.support.stage import Stage, WorkerProcess, eventually

PRINTING = "tests.slots.printing:Printing"


def lines_of(process: WorkerProcess) -> list[dict[str, Any]]:
    """Return every line of a process that has ended, each of which is JSON."""
    return [json.loads(line) for line in process.log.read_bytes().splitlines()]


def run(stage: Stage, target: str, queue: str, *jobs: str, **settings: Any) -> list[dict[str, Any]]:
    """Run these jobs in one process, one after the other, and return its lines."""
    for number, do in enumerate(jobs):
        name, _, force = do.partition(" ")
        stage.send(queue, {"do": name, "force": bool(force)}, key=f"job-{number}")
    process = stage.command("run", target, max_jobs=len(jobs), **settings)
    process.ended(0)
    return lines_of(process)


def output_of(lines: list[dict[str, Any]], key: str | None) -> list[tuple[str, str]]:
    return [(line["stream"], line["line"]) for line in lines if line["event"] == "output" and line.get("key") == key]


def test_each_print_of_a_child_is_one_json_line(stage: Stage) -> None:
    lines = run(stage, PRINTING, "printing", "everything", "nothing")
    found = output_of(lines, "job-0")
    assert sorted(line for stream, line in found if stream == "stderr") == ["from stderr", "its error"]
    assert [line for stream, line in found if stream == "stdout"][-1] == "half a line"
    assert len(found) == 11
    assert output_of(lines, "job-1") == []
    assert "hunter2" not in json.dumps(lines)


def test_each_print_of_a_thread_is_one_json_line(stage: Stage) -> None:
    lines = run(stage, f"{PRINTING}InThreads", "printing-in-threads", "prints", "half", "nothing")
    stdout, stderr = [("stdout", "from print"), ("stdout", "bytes")], [("stderr", "half a line")]
    assert sorted(output_of(lines, "job-0")) == sorted(stdout + stderr)
    assert ("stdout", "from another thread") in output_of(lines, None)
    assert output_of(lines, "job-1") == [("stdout", "the half line of this job")]


def test_of_a_thread_only_what_is_no_python_stays_as_it_is(stage: Stage) -> None:
    """So the last words of a crash, which the worker process itself writes to its standard error, are never lost."""
    stage.send("printing-in-threads", {"do": "everything"})
    process = stage.command("run", f"{PRINTING}InThreads", max_jobs=1)
    process.ended(0)
    found = process.log.read_bytes().splitlines()
    as_it_is = [line for line in found if not line.startswith(b"{")]
    raw = [b"from write(1)", b"from the C library", b"from a subprocess", b"its error", b"not \xff UTF-8"]
    assert sorted(as_it_is) == sorted(raw)
    lines = [json.loads(line) for line in found if line not in raw]
    assert [line for stream, line in output_of(lines, "job") if stream == "stderr"] == ["from stderr"]


@pytest.mark.parametrize(
    ("do", "last"),
    [
        ("fatal", ["Fatal Python error: what a C extension found", "in fatal\n"]),
        ("corrupt", ["double free", "Fatal Python error: Aborted", "in corrupt\n"]),
    ],
)
def test_the_last_words_of_a_worker_process_that_crashes_in_a_thread_are_in_its_log(
    stage: Stage, do: str, last: list[str]
) -> None:
    """With the stack of the job's thread."""
    stage.send("printing-in-threads", {"do": do})
    process = stage.command("run", f"{PRINTING}InThreads")
    process.ended(-signal.SIGABRT)
    assert [text for text in last if text not in process.log.read_text()] == []


CONFIGURED = ("log_lines", "basic_config", "basic_config force", "named_console", "dict_config")


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
@pytest.mark.parametrize("do", CONFIGURED)
def test_no_logging_configuration_doubles_a_line_or_loses_its_key(stage: Stage, do: str, threads: bool) -> None:
    target, queue = (f"{PRINTING}InThreads", "printing-in-threads") if threads else (PRINTING, "printing")
    lines = run(stage, target, queue, do, "log_lines")
    for key in ("job-0", "job-1"):
        for text in ("by the job", "by the standard library", "by structlog", "UserWarning: by warnings"):
            found = [line for line in lines if text in json.dumps(line) and line.get("key") == key]
            assert len(found) == (not text.startswith("UserWarning") or key == "job-0"), (key, text)
    after = {line["event"]: line for line in lines if line.get("key") == "job-1"}
    assert after["by the standard library"].items() >= {"level": "warning", "logger": "shop"}.items()
    assert after["by the job"]["page"] == 3
    assert {"job_started", "job_settled"} <= after.keys()
    failed = [line for line in lines if "boom" in json.dumps(line) and "Traceback" in json.dumps(line)]
    assert len(failed) == (do == "dict_config")


DICT_CONFIG = """
console = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}
logging.config.dictConfig({"version": 1, "handlers": {"console": console}, "root": {"handlers": ["console"], "level": "INFO"}})
"""

STRUCTLOG = """
logging.basicConfig(level=logging.INFO)
structlog.configure(
    processors=[structlog.contextvars.merge_contextvars, structlog.stdlib.add_log_level, structlog.stdlib.render_to_log_kwargs],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
)
"""


@pytest.mark.parametrize("isolation", ["process", "thread"])
@pytest.mark.parametrize("configuration", [DICT_CONFIG, STRUCTLOG], ids=["dictConfig", "structlog"])
def test_a_configuration_in_the_module_of_the_worker_neither_doubles_a_line_nor_loses_its_key(
    stage: Stage, configuration: str, isolation: str
) -> None:
    imports = "import logging, logging.config, structlog\nfrom tests.slots.printing import Printing"
    worker = f"class Configured(Printing):\n    queue = 'configured'\n    isolation = '{isolation}'\n"
    (stage.folder / "configured.py").write_text(f"{imports}\n{configuration}\n{worker}")
    lines = run(stage, "configured:Configured", "configured", "log_lines")
    for text in ("by the job", "by the standard library", "by structlog", "UserWarning: by warnings"):
        (found,) = [line for line in lines if text in json.dumps(line)]
        assert (found["key"], found["queue"]) == ("job-0", "configured")
    for event in ("worker_started", "job_started", "job_settled", "worker_stopped"):
        assert [line["level"] for line in lines if line["event"] == event] == ["info"]


def test_a_handler_of_the_user_for_another_place_also_gets_the_lines_of_its_level(stage: Stage) -> None:
    """The worker process and the child import the module that adds the handler."""
    (stage.folder / "alarms.py").write_text(Page("deploy/README.md").files()["alarms.py"])
    exports = Page("README.md").files()["exports.py"]
    (stage.folder / "exports.py").write_text(f"import alarms, logging\n{exports}\nlogging.error('imported')\n")
    stage.send("payment-exports", {"merchant": 17}, key="wrong")
    process = stage.command("run", "exports:PaymentExports", max_jobs=1)
    process.ended(0)
    *imported, line = stage.lines("errors.log")
    assert imported == ["imported"] * 2
    assert "'event': 'job_settled'" in line
    assert "'key': 'wrong'" in line
    (settled,) = [line for line in lines_of(process) if line["event"] == "job_settled"]
    assert settled["level"] == "error"


def test_a_terminal_gets_the_prints_as_they_are(stage: Stage) -> None:
    master, slave = pty.openpty()
    stage.send("printing", {"do": "everything"})
    process = stage.command("run", PRINTING, output=slave, max_jobs=1)
    os.close(slave)
    text = b""
    while b"worker_stopped" not in text:
        text += os.read(master, 1 << 16)
    os.close(master)
    process.ended(0)
    for each in (b"from print\r\n", b"from write(1)\r\n", b"from a subprocess\r\n", b"half a line"):
        assert text.count(each) == 1
    assert b"stream" not in text


@pytest.fixture
def unread() -> Iterator[tuple[int, int]]:
    """A full pipe: the log of a process that no program reads."""
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        os.close(end)


def test_a_flood_ends_although_no_program_reads_the_log(stage: Stage, unread: tuple[int, int]) -> None:
    """100 MB: what the log has no room for is counted, in the limit of the run or in the limit of the log."""
    reader, writer = unread
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 4096)
    os.set_blocking(writer, True)
    stage.send("printing", {"do": "much"})
    process = stage.command("run", PRINTING, output=writer)
    assert stage.reaches("printing", State.DONE).counters.attempts == 0
    text = bytearray()

    def read() -> None:
        while data := os.read(reader, 1 << 16):
            text.extend(data)

    threading.Thread(target=read, daemon=True).start()
    eventually(lambda: b'"job_settled"' in text, "the end of the job")
    process.terminate()
    process.ended(0)
    lines = [json.loads(line) for line in bytes(text).splitlines() if line.strip()]
    shown = [line for line in lines if line["event"] == "output" and line.get("key") == "job"]
    left_out = sum(line["lines"] for line in lines if line["event"] == "output_left_out")
    assert len(shown) + left_out == 100_000
    assert [line for line in lines if line["event"] == "log_lines_lost"] == []
