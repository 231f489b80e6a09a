"""`steadyworker top`: its tables as text, each key, the ledger away and back, texts of others, and its actions."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from textual.pilot import Pilot

from steadyworker.backends.connections import Connections, job_queue
from steadyworker.backends.opening import open_ledger
from steadyworker.cli import job_lines, queues, verbs, workers
from steadyworker.clock import Clock, SystemClock
from steadyworker.config.resolve import Options, load
from steadyworker.dashboard.reader import Reader
from steadyworker.dashboard.top import command, view
from steadyworker.dashboard.top.orders import Obeyed, Order, obey
from steadyworker.dashboard.top.tables import MOST_ROWS, Tab, TopTable
from steadyworker.dashboard.top.view import TopApp
from steadyworker.delivery import OutgoingMessage, Target
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Ledger, Moving, Row, Verdict
from steadyworker.ledger.listing import ListedJob
from steadyworker.outcome import Counters
from tests.cli.kit import Queues, Shell
from tests.cli.night import SECRET
from tests.dashboard.fleet_of_facts import FleetOfFacts, hostile
from tests.dashboard.test_pages import EVERY_LEDGER
from tests.support.ledgers import make_ledger

RUNNING_80 = """\
 1 Running   2 Queues   3 Workers   4 Failures   5 Actions
4 run, 1 waits, 1 dead, 2 need a person
  KEY       STATE     ATTEMPTS  PROGRESS         ELAPSED  WHY
  crashing  retrying         0                         –  2 crashes; due in 9 …
  stuck     may hang         0  10% 10/100…  41 min 30 s  no progress for 41 m…
  lost      gone             0                      30 s  taken over by anothe…
  well      running          0  50% 50/100…   1 min 30 s  about 4 min 30 s left
  detached  running          0               41 min 30 s  its worker has no co…
"""
QUEUES_80 = """\
2 queues, 1 needs a person
  QUEUE    READY       OLDEST  DELAYED  DEAD  WORKERS  WHY
  exports     40  30 min 00 s        1     2        8  3 consumers that no wor…
  refunds      0            –        0     0        9  paused by ann@desk 5 s …
"""
WORKERS_80 = """\
10 worker processes, 5 need a person
  HOST     PID  QUEUES            BUSY  STAGE    BROKER  WHY
  host-4  4004  exports, refunds   0/8  gone     –       died 15 s ago; anothe…
  host-3  4003  exports, refunds   0/8  running  up      crash loop: 2 predece…
"""
FAILURES_80 = """\
2 failed jobs, 2 need a person
  KEY       STATE     ATTEMPTS  PROGRESS  ELAPSED  WHY
  crashing  retrying         0                  –  2 crashes; due in 9 min 30 …
  failed    dead             0                0 s  gave up: ValueError: cannot…
"""
ACTIONS_80 = """\
3 actions
  WHEN                  WHO         WHAT         QUEUE    KEYS        DETAIL
  2023-11-15T10:24:50Z  ben@laptop  cancel       exports  cancelled   wrong mon…
  2023-11-15T10:24:50Z  ann@desk    dead replay  exports  export-m-…  error Val…
"""
KEYS: list[tuple[str, str]] = [
    ("tab", QUEUES_80),
    ("right right", WORKERS_80),
    ("2", QUEUES_80),
    ("3", WORKERS_80),
    ("4", FAILURES_80),
    ("5", ACTIONS_80),
    ("shift+tab", ACTIONS_80),
    ("left left", FAILURES_80),
    ("tab 1", RUNNING_80),
    ("j x", "* stuck  "),
    ("down down k x", "* stuck  "),
    ("end up x", "* well  "),
    ("l x", "* detached  "),
    ("l h x", "* crashing  "),
    ("x x x", "4 run, 1 waits, 1 dead, 2 need a person; 3 selected\n"),
    ("x up x", "4 run, 1 waits, 1 dead, 2 need a person\n"),
    ("A", "5 selected\n"),
    ("A A", "4 run, 1 waits, 1 dead, 2 need a person\n"),
    ("p", "; the refresh is stopped: p resumes it\n"),
    ("p p", "4 run, 1 waits, 1 dead, 2 need a person\n"),
    ("slash s t u c enter", "1 job, 1 needs a person; only with 'stuc'\n"),
    ("slash e x p o r t s enter", "4 run, 1 waits, 1 dead, 2 need a person; only with 'exports'\n"),
    ("slash s t u c enter slash ctrl+u enter", "4 run, 1 waits, 1 dead, 2 need a person\n"),
    ("slash q escape", "4 run, 1 waits, 1 dead, 2 need a person\n"),
    ("3 slash H O S T minus 4 enter", "1 worker process, 1 needs a person; only with 'HOST-4'\n"),
    ("j enter", "stuck in exports: may hang\n  0 attempts, 0 crashes, 0 losses; 41 min 30 s in all\n"),
    ("j enter escape", RUNNING_80),
    ("2 enter", "exports of shop\n3 consumers that no worker of this ledger explains;"),
    ("3 enter", "host-4\n4004\nexports, refunds\n"),
    ("5 enter", "cancel\nexports\n1\ncancelled\nwrong month\n"),
    ("question_mark", "x, A                          select a row; select all rows, or none\n"),
    ("question_mark q", RUNNING_80),
    ("c", "Expected --allow-actions for an action, got none: start `steadyworker top\n--allow-actions`.\n"),
]
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


def text_of(app: TopApp) -> str:
    """Return what the terminal shows, without spaces at the ends of lines."""
    lines = app.screen._compositor.render_strips()
    return "".join("".join(segment.text for segment in line).rstrip() + "\n" for line in lines)


async def shown(pilot: Pilot[None], wanted: str | re.Pattern[str]) -> str:
    """Wait until the terminal shows a text, and return all that it shows."""
    assert isinstance(pilot.app, TopApp)
    for _ in range(1000):
        text = text_of(pilot.app)
        if wanted in text if isinstance(wanted, str) else wanted.search(text):
            return text
        await pilot.pause(0.01)
    raise AssertionError(f"Expected {wanted!r} in:\n{text_of(pilot.app)}")


def driven(
    ledger: Ledger,
    steps: Callable[[Pilot[None]], Awaitable[None]],
    *,
    clock: Clock | None = None,
    options: Options | None = None,
    size: tuple[int, int] = (80, 24),
    allow_actions: bool = False,
) -> None:
    """Run the view in a terminal of this size, and do these steps."""

    async def run() -> None:
        reader = Reader(ledger, clock or SystemClock())
        app = TopApp(reader, options or load({}, {}, Path("/")), allow_actions=allow_actions)
        async with app.run_test(size=size) as pilot:
            await steps(pilot)

    asyncio.run(run())


@EVERY_LEDGER
def test_the_first_table_is_a_screen_of_80_columns(facts: FleetOfFacts) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        text = await shown(pilot, "refunds is paused by")
        assert text.startswith(RUNNING_80)
        lines = text.splitlines()
        assert len(lines) == 24
        assert max(map(len, lines)) <= 80
        assert lines[-1] == "? help  q quit  p stop  / filter  enter story  x select"
        assert lines[-3].startswith("refunds is paused by ann@desk 5 s ago; the bank is closed; `steadyworker resume")

    driven(facts.ledger, steps, clock=facts.clock)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@EVERY_LEDGER
def test_the_tables_are_those_of_the_command_line(facts: FleetOfFacts, number: int) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press(str(number))
        await shown(pilot, re.compile(r"\n  [A-Z]+ "))
        assert isinstance(pilot.app, TopApp)
        assert pilot.app.tables._page is not None
        table: TopTable = pilot.app.tables._page.content
        assert table.tab is list(Tab)[number - 1]
        rows, now = table.rows, facts.clock.wall()
        makers = {2: queues.lines_of, 3: workers.lines_of}
        lines = makers.get(number, job_lines.lines_of)(rows, 137, now, verbose=False)  # type: ignore[operator]
        assert text_of(pilot.app).splitlines()[2 : 3 + len(rows)] == [f"  {line.plain}".rstrip() for line in lines]

    driven(facts.ledger, steps, clock=facts.clock, size=(140, 40))


@pytest.mark.parametrize(("keys", "expected"), KEYS, ids=[keys for keys, _ in KEYS])
def test_each_key(facts: FleetOfFacts, keys: str, expected: str) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shown(pilot, "need a person\n")
        for key in keys.split():
            await pilot.press(key)
            if key.isdigit():
                await shown(pilot, re.compile(r"\n  [A-Z]+ "))
        await shown(pilot, expected)

    driven(facts.ledger, steps, clock=facts.clock)


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_the_view_ends(facts: FleetOfFacts, key: str) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shown(pilot, "need a person\n")
        await pilot.press(key)
        assert not pilot.app.is_running or pilot.app._exit

    driven(facts.ledger, steps, clock=facts.clock)


def test_while_the_ledger_is_away_the_last_rows_stay_with_their_age(
    facts: FleetOfFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "REFRESH", 0.05)

    def away() -> None:
        raise LedgerUnavailable(f"Expected an answer, got none: postgresql://app:{SECRET}@db/x")

    async def steps(pilot: Pilot[None]) -> None:
        await shown(pilot, RUNNING_80)
        with monkeypatch.context() as patch:
            patch.setattr(facts.ledger, "owners", away)
            facts.clock.advance(40.0)
            problem = "These rows are 40 s old: Expected an answer, got none: postgresql://app:***@db/x"
            text = await shown(pilot, problem[:79])
            assert text.startswith(RUNNING_80)
            assert SECRET not in text
            facts.clock.advance(4.0)
            assert (await shown(pilot, "These rows are 44 s old")).startswith(RUNNING_80)
            await pilot.press("3")
            text = await shown(pilot, "Expected an answer, got none")
            assert "HOST" not in text
            assert "old:" not in text
            await pilot.press("1")
            await shown(pilot, "These rows are 44 s old")
        facts.clock.advance(5.0)
        await shown(pilot, re.compile(r"4 run, .*(?!old)"))
        await shown(pilot, "42 min 19 s")

    driven(facts.ledger, steps, clock=facts.clock)


def test_a_stopped_refresh_reads_nothing(facts: FleetOfFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "REFRESH", 0.05)

    async def steps(pilot: Pilot[None]) -> None:
        await shown(pilot, RUNNING_80)
        await pilot.press("p")
        facts.clock.advance(60.0)
        await pilot.pause(0.3)
        assert "41 min 30 s" in text_of(pilot.app)  # type: ignore[arg-type]
        await pilot.press("p")
        await shown(pilot, "42 min 30 s")

    driven(facts.ledger, steps, clock=facts.clock)


@pytest.mark.parametrize("markup", ["[red]x[/]", "[@click=app.quit]x[/]", "\x1b[31mx\x1b]0;t\x07", "a\u202eb", "\\[b]"])
def test_a_text_of_others_is_neither_markup_nor_a_control_character(facts: FleetOfFacts, markup: str) -> None:
    key, *_ = hostile(facts, markup=markup)
    escaped = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in markup)

    async def steps(pilot: Pilot[None]) -> None:
        text = await shown(pilot, escaped)
        await pilot.press(*"2345")
        await shown(pilot, "actions")
        await pilot.press("1")
        await shown(pilot, escaped)
        await pilot.press("enter")
        text += await shown(pilot, " in queue-of-others: running")
        bad = {each for each in text if unicodedata.category(each) in ("Cc", "Cf") and each != "\n"}
        assert bad == set()

    assert markup in key
    driven(facts.ledger, steps, clock=facts.clock, size=(140, 40))


@pytest.fixture
def state(tmp_path: Path) -> Queues:
    """A ledger and a broker in this folder."""
    options = load({"state_dir": str(Shell(tmp_path).state)}, {}, tmp_path)
    make_ledger(options)
    return Queues(options)


def waits(ledger: Ledger, row: Row) -> None:
    verdict = Verdict(Moving.RETRY, "ValueError: no", Counters(attempts=1), 600.0, "ValueError", "no")
    assert ledger.moving(row.token, verdict)
    assert ledger.moved(row.token, 600.0)


def acted(
    state: Queues, *keys: str, says: str, allow_actions: bool = True
) -> tuple[list[tuple[str, str, tuple[str, ...], str]], str]:
    """Press these keys; return the log of actions, and what the terminal shows."""
    seen: list[str] = []

    async def steps(pilot: Pilot[None]) -> None:
        await shown(pilot, re.compile(r"\d+ runs?, "))
        for key in keys:
            await pilot.press(*([key] if len(key) == 1 or key in ("enter", "escape", "tab") else key))
            if key == "tab":
                await shown(pilot, "1 queue")
        seen.append(await shown(pilot, says))

    with closing(open_ledger(state.options)) as ledger:
        driven(ledger, steps, options=state.options, allow_actions=allow_actions)
        log = [(each.what, each.queue, each.keys, each.detail) for each in ledger.facts.actions()]
    return log, seen[0]


def test_an_empty_table_has_no_row_and_its_keys_do_nothing(state: Queues) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        for number, headline in enumerate(
            ("0 run, 0 wait, 0 dead", "0 queues", "0 worker processes", "0 failed jobs", "0 actions"), 1
        ):
            await pilot.press(str(number))
            await shown(pilot, f"\n{headline}\n\n")
            await pilot.press("x", "A", "j", "k", "h", "l", "enter", "c")
            await shown(pilot, "Expected jobs for this action, got none: select some in their table.")

    with closing(open_ledger(state.options)) as ledger:
        driven(ledger, steps, options=state.options, allow_actions=True)


def test_a_cancel_of_the_selected_jobs_asks_and_is_logged(state: Queues) -> None:
    rows = [state.job(f"m-{number}", waits) for number in range(3)]
    log, text = acted(state, "x", "x", "c", "wrong", "enter", "yes", "enter", says="Cancel: 2 of 2 jobs changed")
    ((what, queue, keys, detail),) = log
    assert (what, queue, detail) == ("cancel", "exports", "wrong")
    with closing(open_ledger(state.options)) as ledger:
        found = {row.id.key: ledger.read(row.id) for row in rows}
    assert sorted(key for key, row in found.items() if row and row.cancel_reason == "wrong") == sorted(keys)
    assert len(keys) == 2
    assert "selected" not in text


def test_a_job_that_waits_runs_now(state: Queues) -> None:
    state.job("m-17", waits)
    log, _ = acted(state, "r", "yes", "enter", says="Retry now: 1 of 1 job changed")
    assert log == [("retry", "exports", ("m-17",), "")]
    assert [delivery.queue for delivery in state.received("exports", 1)] == ["exports"]


def test_a_job_that_an_action_does_not_change_stays_selected(state: Queues) -> None:
    state.job("m-17")
    log, text = acted(state, "x", "r", "yes", "enter", says="Retry now: 0 of 1 job changed; m-17 runs now, in")
    assert log == []
    assert "1 selected" in text


def test_a_queue_is_paused_and_resumed(state: Queues) -> None:
    state.job("m-17")
    acted(state, "tab", "P", "closed", "enter", "yes", "enter", says="paused by")
    with closing(open_ledger(state.options)) as ledger:
        assert [(pause.queue, pause.reason) for pause in ledger.facts.pauses()] == [("exports", "closed")]
    log, _ = acted(state, "tab", "P", "enter", "yes", "enter", says="Pause or resume: 1 of 1 queue changed")
    assert [entry[0] for entry in log] == ["resume", "pause"]


@pytest.mark.parametrize("answer", ["no", "", "y", "YES", "escape"])
def test_an_action_without_a_yes_changes_nothing(state: Queues, answer: str) -> None:
    state.job("m-17", waits)
    log, _ = acted(state, "r", answer, "enter", says="m-17" if answer == "escape" else "Nothing was changed.")
    assert log == []


def test_an_action_on_more_than_50_jobs_needs_their_number(state: Queues) -> None:
    for number in range(51):
        state.job(f"m-{number}", waits)
    log, _ = acted(state, "A", "c", "enter", "yes", "enter", says="Nothing was changed.")
    assert log == []
    log, _ = acted(state, "A", "c", "enter", "51", "enter", says="Cancel: 51 of 51 jobs changed")
    assert [entry[0] for entry in log] == ["cancel"]


@pytest.mark.parametrize("key", ["c", "r", "P"])
def test_without_the_flag_no_action_is_possible(state: Queues, key: str) -> None:
    state.job("m-17", waits)
    log, text = acted(state, key, says="Expected --allow-actions", allow_actions=False)
    assert log == []
    assert "c cancel" not in text


def test_an_action_that_goes_on_is_neither_left_nor_joined_by_another(
    state: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.job("m-17", waits)
    may_end = threading.Event()

    def slow(*arguments: Any) -> Obeyed:
        assert may_end.wait(30)
        return obey(*arguments)

    async def steps(pilot: Pilot[None]) -> None:
        await shown(pilot, "0 run, 1 waits, 0 dead\n")
        await pilot.press("c", "enter", *"yes", "enter")
        await shown(pilot, "Cancel: goes on…")
        await pilot.press("q")
        await shown(pilot, "An action goes on: wait for its result.")
        await pilot.press("r", "r")
        await shown(pilot, "An action goes on: wait for its result.")
        may_end.set()
        await shown(pilot, "Cancel: 1 of 1 job changed")

    monkeypatch.setattr(view, "obey", slow)
    with closing(open_ledger(state.options)) as ledger:
        driven(ledger, steps, options=state.options, allow_actions=True)
        assert [each.what for each in ledger.facts.actions()] == ["cancel"]


def test_a_job_of_another_broker_is_left_alone(state: Queues, tmp_path: Path) -> None:
    row = state.job("m-17", waits)
    other = load({"state_dir": str(state.options.state_dir), "broker": f"sqlite:{tmp_path}/other.db"}, {}, tmp_path)
    with Connections(other) as links:
        links.adapter(job_queue("exports", other)).publish(OutgoingMessage(Target.WORK, b"{}", {}))
    with closing(open_ledger(other)) as ledger:
        before = ledger.bindings()
        obeyed = obey(other, Order.CANCEL, [ListedJob(row)], "")
        after = ledger.read(row.id)
        assert ledger.bindings() == before
        assert ledger.facts.actions() == []
    assert obeyed.changed == []
    assert obeyed.texts[0] == "Cancel: 0 of 1 job changed"
    assert "exports: Expected the broker" in obeyed.texts[1]
    assert after is not None
    assert after.cancel_reason is None


def test_once_prints_each_table_without_a_terminal(state: Queues, tmp_path: Path) -> None:
    state.job("m-17")
    done = CliRunner().invoke(verbs, ["top", "--once", "--state-dir", str(Shell(tmp_path).state)])
    assert done.exit_code == 0, done.output
    heads = [line for line in done.stdout.splitlines() if re.match("[A-Z]+: ", line)]
    assert heads == [
        "RUNNING: 1 runs, 0 wait, 0 dead",
        "QUEUES: 1 queue",
        "WORKERS: 0 worker processes",
        "FAILURES: 0 failed jobs",
        "ACTIONS: 0 actions",
    ]
    assert "\x1b" not in done.stdout


def died(ledger: Ledger, row: Row, reason: str) -> None:
    assert ledger.moving(row.token, Verdict(Moving.DEAD, reason, Counters()))
    assert ledger.moved(row.token)


def test_once_prints_a_run_before_a_few_dead_jobs_of_each_reason(state: Queues, tmp_path: Path) -> None:
    state.job("runs")
    for number in range(9):
        state.job(f"m-{number}", partial(died, reason=f"no such merchant: m-{number}"))
    arguments = ["--state-dir", str(Shell(tmp_path).state)]
    printed = CliRunner().invoke(verbs, ["top", "--once", *arguments]).stdout
    assert "RUNNING: 1 runs, 0 wait, 9 dead\n" in printed
    assert re.findall("^(runs|m-[0-9]) ", printed, re.MULTILINE) == ["runs", "m-8", "m-7", "m-6"]
    assert "FAILURES: 3 failed jobs, 3 need a person\n" in printed
    assert "6 more dead jobs with the same reasons or older.\n" in printed
    found = json.loads(CliRunner().invoke(verbs, ["top", "--json", *arguments]).stdout)
    assert len(found["failures"]) == 9


def test_json_is_one_object_with_each_table(state: Queues, tmp_path: Path) -> None:
    state.job("m-17")
    state.job("m-18", waits)
    done = CliRunner().invoke(verbs, ["top", "--json", "--state-dir", str(Shell(tmp_path).state)])
    found = json.loads(done.stdout)
    assert list(found) == ["at", "ledger", "more", "running", "queues", "workers", "failures", "actions"]
    assert [job["key"] for job in found["running"]] == ["m-17", "m-18"]
    assert [job["key"] for job in found["failures"]] == ["m-18"]
    assert [queue["queue"] for queue in found["queues"]] == ["exports"]
    assert found["more"] == []


def test_a_table_has_at_most_200_rows_and_names_the_fact(state: Queues, tmp_path: Path) -> None:
    for number in range(MOST_ROWS + 1):
        state.job(f"m-{number}", keep=False)
    arguments = ["--state-dir", str(Shell(tmp_path).state)]
    assert (
        "RUNNING: 201 run, 0 wait, 0 dead; the first 200 jobs"
        in CliRunner().invoke(verbs, ["top", "--once", *arguments]).stdout
    )
    found = json.loads(CliRunner().invoke(verbs, ["top", "--json", *arguments]).stdout)
    assert (found["more"], len(found["running"])) == (["running"], MOST_ROWS)


def test_without_a_terminal_the_command_names_the_remedy(state: Queues, tmp_path: Path) -> None:
    done = CliRunner().invoke(verbs, ["top", "--state-dir", str(Shell(tmp_path).state)])
    assert done.exit_code == 64
    assert "Expected a terminal, got none: add --once or --json." in done.stderr


def test_without_textual_the_command_names_the_extra(
    state: Queues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "textual" or name == view.__name__]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr(command, "is_terminal", lambda: True)
    done = CliRunner().invoke(verbs, ["top", "--state-dir", str(Shell(tmp_path).state)])
    assert done.exit_code == 78
    assert "pip install 'steadyworker[top]', or add --once." in done.stderr
    once = CliRunner().invoke(verbs, ["top", "--once", "--state-dir", str(Shell(tmp_path).state)])
    assert once.exit_code == 0


@pytest.mark.parametrize("no_color", [True, False])
def test_in_a_real_terminal_q_ends_it_and_no_color_is_obeyed(state: Queues, tmp_path: Path, no_color: bool) -> None:
    state.job("m-17")
    ours, theirs = pty.openpty()
    shell = Shell(tmp_path)
    kept = {name: value for name, value in shell.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    environ = {**kept, "TERM": "xterm-256color", **({"NO_COLOR": "1"} if no_color else {})}
    command = [sys.executable, "-m", "steadyworker", "top", "--state-dir", str(shell.state)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=tmp_path)
    os.close(theirs)
    output = b""
    try:
        while b"m-17" not in output:
            output += os.read(ours, 4096)
        os.write(ours, b"q")
        try:
            while chunk := os.read(ours, 4096):
                output += chunk
        except OSError:  # the command has closed the terminal
            pass
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert bool(COLOUR.search(output.decode(errors="replace"))) is not no_color
