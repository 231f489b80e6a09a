"""`steadyworker jobs`: on a terminal, off one, as JSON Lines; overdue jobs only."""

from __future__ import annotations

import math
import os
import platform
import pty
import select
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from msgspec.structs import replace
from rich.text import Text

from steadyworker.backends.opening import open_ledger
from steadyworker.cli.job_lines import COLUMNS, as_record, cells, progress_text, why
from steadyworker.cli.output import instant
from steadyworker.ledger.base import JobId, Ledger, Moving, Progress, Row, State, Verdict
from steadyworker.ledger.lease import registered_name
from steadyworker.ledger.listing import ListedJob, Liveness, OwnerNow
from steadyworker.names import normal_key
from steadyworker.outcome import Counters
from steadyworker.text.plain_text import printable
from steadyworker.units import amount, span
from tests.cli.kit import Queues, Shell, let_pass
from tests.support.stage import eventually

WRITE = {"x86_64": "1 ", "aarch64": "64 "}
"""The number of write(2) in the kernel's table of each kind of machine (`syscall_64.tbl`, `unistd.h`)."""
ROW = Row(JobId("n", "exports", "k-1"), "uid", State.MOVED)


def progress(done: float, total: float) -> Callable[[Ledger, Row], object]:
    return lambda ledger, row: ledger.progress(row.token, Progress(done, total, "pages", time.time()))


def test_without_jobs_prints_the_ledger_that_was_read(shell: Shell, queues: Queues) -> None:
    done = shell("jobs")
    assert (done.code, done.out) == (0, "")
    assert "ledger.db" in done.err


def died(ledger: Ledger, row: Row, reason: str) -> None:
    assert ledger.moving(row.token, Verdict(Moving.DEAD, reason, Counters()))
    assert ledger.moved(row.token)


def test_many_dead_jobs_of_one_reason_hide_no_run(shell: Shell, queues: Queues) -> None:
    queues.job("runs")
    for number in range(8):
        queues.job(f"m-{number}", partial(died, reason=f"no such merchant: m-{number}"))
    done = shell("jobs")
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == ["runs", "m-7", "m-6", "m-5"]
    assert done.err == "5 more dead jobs with the same reasons or older; --state dead for all\n"
    assert len(shell("jobs", "--limit", "0").out.splitlines()) == 10
    assert len(shell("jobs", "--state", "dead", "--json").records) == 8
    assert len(shell("jobs", "--json").records) == 9


def test_a_cancel_without_a_job_has_a_state_of_its_own_and_is_listed_on_request(shell: Shell, queues: Queues) -> None:
    queues.job("k-1", lambda ledger, row: ledger.done(row.token))
    assert shell("cancel", "exports", "k-2", "--reason", "wrong month").code == 0
    assert [job["key"] for job in shell("jobs", "--json").records] == ["k-1"]
    assert shell("jobs", "--state", "interrupted", "--json").records == []
    (marked,) = shell("jobs", "--state", "cancel-waiting", "--json").records
    assert (marked["key"], marked["state"], marked["cancelled"]) == ("k-2", "cancel-waiting", "wrong month")
    again = shell("cancel", "exports", "k-2")
    assert (again.code, again.out) == (0, "k-2 was cancelled before: a message with this key will not run.\n")
    assert (marked["started_at"], marked["interruptions"]) == (None, 0)
    states = shell("jobs", "--help").out
    assert "it was cancelled before its first message" in " ".join(states.split())


def test_off_a_terminal_are_plain_columns_that_nothing_is_cut_from(shell: Shell, queues: Queues) -> None:
    key = "k" * 150
    queues.job(key, progress(3, 10))
    done = shell("jobs")
    assert done.code == 0
    title, line = done.lines
    titles = "QUEUE KEY STATE ATTEMPTS PROGRESS LIMIT STARTED ELAPSED IN ALL LAST PROGRESS WORKER WHY"
    assert title.split() == titles.split()
    assert line.split()[:6] == ["exports", key, "running", "0", "30%", "3/10"]
    assert "\x1b" not in done.out


def test_json_is_a_line_per_job_running_ones_first(shell: Shell, queues: Queues) -> None:
    queues.job("k-2", progress(3, 10))
    queues.job("k-1", lambda ledger, row: ledger.done(row.token))
    second, first = shell("jobs", "--json").records
    assert (first["key"], first["state"]) == ("k-1", "done")
    assert first["ended_at"].endswith("Z")
    assert (second["key"], second["state"], second["done"], second["total"]) == ("k-2", "running", 3, 10)


def test_can_be_limited_to_a_state_a_queue_and_a_number(shell: Shell, queues: Queues) -> None:
    queues.job("k-1", lambda ledger, row: ledger.done(row.token))
    queues.job("k-2")
    queues.job("k-3")

    def keys(*arguments: str) -> list[str]:
        return [job["key"] for job in shell("jobs", "--json", *arguments).records]

    assert keys("--state", "done") == ["k-1"]
    assert keys("--limit", "1") == ["k-3"]
    assert keys("elsewhere") == []
    assert keys("exports", "--limit", "0") == ["k-3", "k-2", "k-1"]
    assert keys("app:Exports", "k-1", "k-3", "k-4") == ["k-1", "k-3"]
    assert keys("--state", "done", "--state", "running") == ["k-3", "k-2", "k-1"]
    assert keys("--grep", "K-2") == ["k-2"]
    assert keys("--since", "yesterday", "--state", "done") == ["k-1"]
    assert shell("jobs", "--limit", "2").err == "2 of 3; --limit 0 for all\n"
    assert shell("jobs", "--limit", "3").err == ""


def test_named_keys_are_found_and_filtered_as_all_other_jobs(shell: Shell, queues: Queues) -> None:
    queues.job("k-1", lambda ledger, row: ledger.done(row.token))
    queues.job("k-2", progress(3, 10))
    queues.job(normal_key("merchant 17"))

    def keys(*arguments: str) -> list[str]:
        return [job["key"] for job in shell("jobs", "exports", *arguments, "--json").records]

    assert keys("merchant 17") == [normal_key("merchant 17")]
    assert keys("k-1", "k-2", "merchant 17", "--grep", "PAGES") == ["k-2"]
    assert keys("k-1", "k-2", "--state", "done") == ["k-1"]
    assert keys("k-1", "k-2", "--since", "today") == ["k-1", "k-2"]
    assert keys("k-1", "k-2", "--since", "2099-01-31") == []
    assert keys("k-1", "k-2", "--overdue") == []
    shown = shell("jobs", "exports", "k-2", "--grep", "another text")
    assert (shown.code, shown.out) == (0, "")
    assert "No matching jobs" in shown.err
    wrong = shell("jobs", "exports", "")
    assert wrong.code == 64
    assert "Expected a key that is not empty" in wrong.err


def test_actions_on_a_key_are_found_by_the_key_that_the_sender_gave(shell: Shell, queues: Queues) -> None:
    queues.job("k-1")
    assert shell("cancel", "exports", "merchant 17").code == 0
    (action,) = shell("actions", "--key", "merchant 17", "--json").records
    assert action["keys"] == [normal_key("merchant 17")]


def test_overdue_is_empty_while_all_is_well(shell: Shell, queues: Queues) -> None:
    queues.job("k-1")
    queues.job("k-2", lambda ledger, row: ledger.moving(row.token, Verdict(Moving.RETRY, "again", Counters(), 60)))
    assert shell("jobs", "--overdue", "--json").out == ""


def test_a_job_of_which_no_message_came_is_listed_with_the_hindrance_and_the_command(
    shell: Shell, queues: Queues
) -> None:
    """Also one that was interrupted, which is late by no clock; `--overdue` and the list show the same of each."""
    queues.job("k-1", lambda ledger, row: ledger.interrupted(row.token, Counters()))
    queues.job("k-2", lambda ledger, row: ledger.interrupted(row.token, Counters()), keep=False)
    queues.job("k-3")  # its worker process is lost
    queues.job("k-4", lambda ledger, row: ledger.interrupted(row.token, Counters()))
    attend(queues)
    queues.job("k-5", lambda ledger, row: ledger.interrupted(row.token, Counters()))
    queues.job("k-6", lambda ledger, row: ledger.interrupted(row.token, Counters()), keep=False)
    let_pass(queues, 7200.0)
    queues.job("k-7", lambda ledger, row: ledger.interrupted(row.token, Counters()))
    queues.job("k-4", lambda ledger, row: ledger.done(row.token), round_=1)  # sent again: it only has to end
    listed = {job["key"]: job for job in shell("jobs", "--json").records if not job["round"]}
    old, none = "old record", "no message"
    expected = {"k-1": old, "k-2": old, "k-3": old, "k-4": None, "k-5": None, "k-6": none, "k-7": None}
    assert {key: job["hindrance"] for key, job in listed.items()} == expected
    assert [key for key, job in listed.items() if job["message_missing_for"] is None] == ["k-7"]

    overdue = shell("jobs", "--overdue", "--json").records
    assert sorted(job["key"] for job in overdue) == ["k-1", "k-2", "k-3", "k-6"]
    named = ("jobs", "exports", "k-1", "k-4", "k-5", "k-6", "k-7")
    assert [job["key"] for job in shell(*named, "--overdue", "--json").records] == ["k-1", "k-6"]
    text = shell("jobs").out
    assert (
        "no message came for 2 h 00 min; no worker runs it by itself, because another ledger may have done it" in text
    )
    assert "`steadyworker retry exports k-1`" in text
    assert "`steadyworker send exports … --key k-6 --again`" in text
    assert "a worker with a free slot runs it by itself" in text
    assert {job["key"] for job in shell("jobs", "--json", "--limit", "4").records} == {"k-1", "k-2", "k-3", "k-6"}
    assert [job["need"] for job in shell("jobs", "--json", "--limit", "4").records] == ["stranded"] * 4


def attend(queues: Queues) -> None:
    """A worker process of the queue registers, the first one for more than an hour."""
    with closing(open_ledger(queues.options)) as ledger:
        ((namespace, queue),) = ledger.bindings()
        ledger.register("host/boot/2", "host", [registered_name(namespace, queue)])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (replace(ROW, due_in=90.0, reason="again"), "due in 1 min 30 s; again"),
        (replace(ROW, late_by=7300.0), "late by 2 h 01 min"),
        (replace(ROW, late_by=60.0), "due for 1 min 00 s"),
        (replace(ROW, cancel_reason="wrong month"), "cancelled: wrong month"),
        (replace(ROW, counters=Counters(crashes=2, losses=1)), "2 crashes, 1 loss"),
        (replace(ROW, counters=Counters(crashes=1, losses=2)), "1 crash, 2 losses"),
        (replace(ROW, state=State.DONE, conflicts=2), "dead letters with this key and another payload: 2"),
    ],
)
def test_why_has_the_reason_of_a_wait(row: Row, expected: str) -> None:
    assert why(ListedJob(row), 0.0) == expected


def test_a_record_has_every_counter() -> None:
    record = as_record(ListedJob(replace(ROW, counters=Counters(1, 2, 3, 4))), 0.0)
    assert [record[name] for name in ("attempts", "crashes", "losses", "interruptions")] == [1, 2, 3, 4]


def test_what_a_job_brought_along_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2Jb\nc\u202e") == "a\\x1b[2Jb\\nc\\u202e"


def test_a_number_of_any_size_can_be_shown() -> None:
    """A sender's timestamp in milliseconds is in the year 55,000, which no calendar of Python's has."""
    odd = (math.inf, -math.inf, math.nan, 1e300, 1.7e12)
    assert [instant(number) for number in odd] == [None] * 5
    assert [amount(number) for number in odd] == ["inf", "-inf", "nan", "1e+300", "1,700,000,000,000"]
    assert [span(number) for number in odd[:3]] == ["–"] * 3


@pytest.mark.parametrize(
    ("done", "total", "expected"),
    [
        (997, 1000, "99% 997/1,000"),
        (9_999_999, 10_000_000, "99% 9,999,999/10,000,000"),
        (1 - 1e-12, 1, "99% 1.0/1"),
        (1000, 1000, "100% 1,000/1,000"),
        (1005, 1000, "100% 1,005/1,000"),
        (29, 100, "29% 29/100"),
        (58, 100, "58% 58/100"),
        (0, 10, "0% 0/10"),
        (1e308, 0.5, "?% 1e+308/0.5"),
    ],
)
def test_a_share_is_rounded_down_so_that_a_part_is_never_the_whole(done: float, total: float, expected: str) -> None:
    assert progress_text(Progress(done, total, "", 0.0)) == expected


def test_a_run_just_below_its_time_limit_has_not_used_all_of_it_and_its_bar_is_not_full() -> None:
    owner = OwnerNow(Liveness.ALIVE, 1.0, 89.0, 0, time_limit=1000.0)
    row = replace(ROW, state=State.RUNNING, started_at=0.0)
    shown = cells(ListedJob(row, Progress(997, 1000, "", 997.0), owner=owner), 997.0, bar=True)
    assert shown[COLUMNS.index(next(column for column in COLUMNS if column.title == "LIMIT"))] == "99% of 16 min 40 s"
    (bar,) = [cell for cell in shown if isinstance(cell, Text)]
    assert [bar.plain[span.start : span.end] for span in bar.spans] == ["━" * 9, "━"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "–"), (0.4, "0 s"), (61, "1 min 01 s"), (3661, "1 h 01 min"), (90000, "1 d 01 h"), (-5, "0 s")],
)
def test_a_span_has_its_two_largest_units(seconds: float | None, expected: str) -> None:
    assert span(seconds) == expected


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, shell: Shell, *arguments: str, **environ: str) -> None:
        self.master, slave = pty.openpty()
        self.seen = ""
        # A suite that was started in the background ignores SIGINT, and its children would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "steadyworker", *arguments],
            cwd=shell.folder,
            env={**shell.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "40", **environ},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)

    def until(self, text: str, within: float = 20) -> str:
        """Everything that was shown until this text was."""
        deadline = time.monotonic() + within
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, self.seen
            if select.select([self.master], [], [], left)[0]:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
        return self.seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        os.close(self.master)

    def end(self, number: int = signal.SIGINT) -> int:
        """Signal it, and read on until it has ended: a terminal that nobody reads holds up whoever writes."""
        self.process.send_signal(number)
        deadline = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.1)[0]:
                with suppress(OSError):  # its end is closed
                    self.seen += os.read(self.master, 65536).decode(errors="replace")
        return self.process.wait(1)


def test_watch_shows_progress_as_it_happens_and_ends_with_ctrl_c(shell: Shell, queues: Queues) -> None:
    row = queues.job("k-1", progress(3, 10))
    with Terminal(shell, "jobs", "--watch") as terminal:
        assert "━" in terminal.until("3/10")
        queues.progress(row, Progress(7, 10, "pages", time.time()))
        terminal.until("7/10")
        assert terminal.end() == 0


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="only Linux shows what a process waits in")
@pytest.mark.skipif(platform.machine() not in WRITE, reason="the number of write(2) is not known")
def test_a_watch_whose_terminal_is_held_holds_nothing_of_the_ledger(shell: Shell, queues: Queues) -> None:
    """Ctrl-S: its write waits for hours, and the ledger's log would grow as long as it read."""
    row = queues.job("k-1", progress(3, 10))
    with Terminal(shell, "jobs", "--watch") as terminal:
        terminal.until("3/10")
        pid = terminal.process.pid
        held = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY | os.O_NOCTTY)
        termios.tcflow(held, termios.TCOOFF)
        eventually(
            lambda: Path(f"/proc/{pid}/syscall").read_text().startswith(WRITE[platform.machine()]),
            "it waits in its write(2)",
        )
        queues.progress(row, Progress(7, 10, "pages", time.time()))
        with closing(sqlite3.connect(queues.options.ledger.removeprefix("sqlite:"))) as ledger:
            busy, _, _ = ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert busy == 0, "no reader"
        os.close(held)
        terminal.process.terminate()
        assert terminal.process.wait(10) == -signal.SIGTERM


def test_no_color_is_respected_on_a_terminal(shell: Shell, queues: Queues) -> None:
    queues.job("k-1", lambda ledger, row: ledger.done(row.token))
    with Terminal(shell, "jobs") as coloured, Terminal(shell, "jobs", NO_COLOR="1") as plain:
        assert "\x1b[32m" in coloured.until("done")
        assert "\x1b[32m" not in plain.until("done")


def test_watch_off_a_terminal_prints_once(shell: Shell, queues: Queues) -> None:
    queues.job("k-1")
    assert len(shell("jobs", "--watch").lines) == 2
