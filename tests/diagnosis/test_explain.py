"""`steadyworker explain` as a reader meets it: files, pipes, logs that grow, and input that is no log."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from typing_extensions import override

from steadyworker.cli import verbs
from steadyworker.diagnosis.catalogue import FINDINGS, find
from steadyworker.diagnosis.following import QUIET, SETTLE, follow
from steadyworker.diagnosis.reading import Pipe
from steadyworker.diagnosis.report import WIDEST, Report, as_data, safe
from steadyworker.diagnosis.scan import Scanner, Search
from steadyworker.diagnosis.timeline import Incident, Timelines
from steadyworker.units import count_text
from tests.cli.kit import Shell
from tests.conftest import Eventually
from tests.diagnosis.explaining import catalogue
from tests.diagnosis.small_catalogue import SMALL
from tests.support.distributions import distribution

pytestmark = pytest.mark.long

ID, OTHER = "amqp.consumer-cancelled", "amqp.silent-broker"
TITLES = {identity: entry.title for identity, entry in catalogue().items()}
LINE = (
    f"2026-11-25T10:00:00.123Z [error    ] delivery_lost [steadyworker] explain={ID} key=march what=gone remedy=rest\n"
)
LATER = f"2026-11-25T10:00:09.123Z [error    ] delivery_lost [steadyworker] explain={OTHER} key=april what=gone remedy=rest\n"
ORDINARY = "2026-11-25T10:00:01.123Z [info     ] job_started [steadyworker] key=march\n"
UNKNOWN = "2026-11-25T10:00:02.123Z [error    ] a_thing_that_no_broker_says [app] number={}\n"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def log(shell: Shell, name: str, *lines: str) -> str:
    (shell.folder / name).write_text("".join(lines))
    return name


# --- Files and pipes --------------------------------------------------------------------------------------------------


def test_a_finding_begins_with_its_conclusion_and_ends_with_exit_code_1(shell: Shell) -> None:
    said = shell("explain", log(shell, "worker.log", ORDINARY, LINE))
    assert (said.code, said.err) == (1, "")
    assert said.lines[0] == f"1. {TITLES[ID]}"
    assert said.lines[1] == f"   {ID}, worker.log:2, 2026-11-25T10:00:00Z"
    assert said.lines[-1] == "1 finding in 2 lines."


@pytest.mark.parametrize("lines", ["", ORDINARY, "\n\n", ORDINARY * 5000])
def test_an_ordinary_log_has_no_finding(shell: Shell, lines: str) -> None:
    said = shell("explain", log(shell, "worker.log", lines))
    assert (said.code, said.err, said.out) == (0, "", f"Nothing found in {count_text(lines.count(chr(10)), 'line')}.\n")


def test_what_is_not_in_the_catalogue_is_named_as_unknown(shell: Shell) -> None:
    lines = [UNKNOWN.format(number) for number in range(12)]
    said = shell("explain", log(shell, "worker.log", *lines))
    assert said.code == 0
    assert said.lines == [
        "Nothing known in 12 lines.",
        "12 lines look like failures, and are not in the catalogue:",
        "   worker.log:1, 12 times",
        "     a_thing_that_no_broker_says [app] number=0",
    ]
    (record,) = shell("explain", "worker.log", "--json").records
    assert (record["kind"], record["count"], record["most_frequent"][0]["times"]) == ("unknown", 12, 12)


def test_standard_input_is_read_without_a_file_and_for_a_dash(shell: Shell) -> None:
    for arguments in ((), ("-",)):
        said = shell("explain", *arguments, stdin=LINE)
        assert (said.code, said.lines[1]) == (1, f"   {ID}, line 1, 2026-11-25T10:00:00Z")
    with (shell.folder / log(shell, "worker.log", LINE)).open() as file:
        command = [sys.executable, "-m", "steadyworker", "explain"]
        done = subprocess.run(command, stdin=file, env=shell.environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"1. {TITLES[ID]}")


def test_what_can_be_read_is_explained_before_what_cannot(shell: Shell) -> None:
    """A file without its end, and a file that may not be read, do not hide what stands in the others."""
    good = log(shell, "worker.log", LINE)
    (shell.folder / "cut.gz").write_bytes(gzip.compress(LATER.encode() + os.urandom(100_000))[:-20])
    (shell.folder / "other.zst").write_bytes(b"\x28\xb5\x2f\xfd more")
    said = shell("explain", "--json", "cut.gz", good, "other.zst", "/proc/self/mem")
    assert said.code == 69
    assert [json.loads(line)["id"] for line in said.lines] == [ID, OTHER]
    assert said.err.splitlines() == [
        "error: Expected to read other.zst, got: compressed data: `zstdcat FILE | steadyworker explain` explains it.",
        "Expected to read /proc/self/mem, got: Input/output error.",
        "Expected to read cut.gz, got: compressed data without its end.",
    ]


def test_several_files_are_one_story(shell: Shell) -> None:
    said = shell("explain", log(shell, "a.log", LATER), log(shell, "b.log", LINE), "--json")
    assert [(record["id"], record["first"]["source"]) for record in said.records] == [(ID, "b.log"), (OTHER, "a.log")]


def test_many_findings_are_listed_before_they_are_explained(shell: Shell) -> None:
    ids = [*TITLES][:4]
    lines = [LINE.replace(ID, identity) for identity in ids]
    said = shell("explain", log(shell, "worker.log", *lines, lines[2]))
    assert sorted(line[6:] for line in said.lines[:4]) == sorted(
        f"{'2 lines' if identity == ids[2] else '1 line '}  {TITLES[identity]}" for identity in ids
    )
    assert said.lines[5].startswith("1. ")
    assert shell("explain", log(shell, "few.log", *lines[:3])).lines[0].startswith("1. ")


def test_json_has_the_documented_fields(shell: Shell) -> None:
    said = shell("explain", log(shell, "worker.log", LINE, LINE), "--json")
    (record,) = said.records
    assert said.code == 1
    assert (record["kind"], record["number"], record["id"], record["times"]) == ("finding", 1, ID, 2)
    assert (record["severity"], record["bytes"]) == (catalogue()[ID].severity, None)
    assert record["first"] == {"time": "2026-11-25T10:00:00.123Z", "source": "worker.log", "line": 1}
    assert record["last"]["line"] == 2
    assert [step["times"] for step in record["timeline"]] == [2]
    documented = re.findall(r"^\| ([a-z, ]+) \|", str(sys.modules[as_data.__module__].__doc__), re.MULTILINE)
    assert set(record) == {name for cell in documented for name in cell.split(", ")} - {"field"}


@pytest.mark.parametrize(
    ("arguments", "said_of_it"),
    [
        (("no-such.log",), "does not exist"),
        (("--list", "--id", ID), "Expected FILEs, --list or --id"),
        (("--id", "amqp.consumer-canceled"), f"did you mean {ID}?"),
        (("--id", "nonsense"), "see steadyworker explain --list"),
        ((".",), "is a directory"),
    ],
)
def test_wrong_usage_ends_with_64(arguments: tuple[str, ...], said_of_it: str) -> None:
    said = CliRunner().invoke(verbs, ["explain", *arguments])
    assert said.exit_code == 64
    assert said_of_it in " ".join(said.output.split())


def test_the_catalogue_can_be_listed_and_each_entry_shown() -> None:
    said = CliRunner().invoke(verbs, ["explain", "--list"])
    assert said.exit_code == 0
    listed = re.findall(r"^  (\S+) +(\S.*)$", said.output, re.MULTILINE)
    assert dict(listed) == TITLES
    said = CliRunner().invoke(verbs, ["explain", "--list", "--json"])
    assert [json.loads(line)["id"] for line in said.output.splitlines()] == list(TITLES)
    said = CliRunner().invoke(verbs, ["explain", "--id", ID])
    assert (said.exit_code, said.output.splitlines()[0]) == (0, TITLES[ID])


TABLES_THAT_CANNOT_BE_USED = {
    "a package that is gone": ("third_party_gone", "", "ModuleNotFoundError: No package named 'third_party_gone'"),
    "a package whose parent is gone": ("no_such_parent.inner", "", "ModuleNotFoundError: No module named"),
    "a package without a table": ("third_party", "", "FileNotFoundError: "),
    "a table without a title": ("third_party", '[[finding]]\nid = "shop.odd"', "shop.odd: expected a title, or a text"),
    "no TOML": ("third_party", "[[finding]", "findings.toml: expected TOML, got: "),
    "an id that is known": ("third_party", f'[[finding]]\nid = "{ID}"\ntitle = "Odd"', f"got {ID} again: rename"),
}


@pytest.mark.parametrize(
    ("package", "table", "got"), TABLES_THAT_CANNOT_BE_USED.values(), ids=TABLES_THAT_CANNOT_BE_USED
)
def test_a_package_whose_table_cannot_be_used_is_named_and_the_others_are_explained(
    package: str, table: str, got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    distribution(tmp_path, "third_party_findings", FINDINGS, {"odd": package}, "")
    (tmp_path / "third_party").mkdir()
    (tmp_path / "third_party/__init__.py").touch()
    if table:
        (tmp_path / "third_party/findings.toml").write_text(table)

    said = CliRunner().invoke(verbs, ["explain", "--id", "rabbitmq.transient-queue"])

    assert said.exit_code == 0, said.output
    assert f"in {package} (of third_party_findings), an entry point of the group {FINDINGS}, got " in said.stderr
    assert got in said.stderr
    assert len(said.stderr.splitlines()) == 2
    assert find("steadyworker.fenced") == catalogue()["steadyworker.fenced"]
    assert find("system.no-such-id") is None


def test_an_entry_is_shown_with_the_hints_of_its_lines() -> None:
    said = CliRunner().invoke(verbs, ["explain", "--id", "rabbitmq.internal-error"])
    _, _, end = said.output.partition("   Lines with  ")
    hints = [line.strip() for line in end.splitlines()]
    assert hints == list(dict.fromkeys(pattern.hint for pattern in catalogue()["rabbitmq.internal-error"].patterns))
    assert len(hints) > 1
    said = CliRunner().invoke(verbs, ["explain", "--id", "rabbitmq.internal-error", "--json"])
    assert json.loads(said.output)["hints"] == hints


def test_every_entry_can_be_shown() -> None:
    for entry in catalogue().values():
        console = Console(file=io.StringIO(), width=80, highlight=False)
        Report(console).entry(entry)
        assert isinstance(console.file, io.StringIO)
        assert console.file.getvalue().startswith(f"{entry.title}\n{entry.id}, {entry.severity}\n")
        assert not re.search("[<{]", entry.title), (
            f"{entry.id}: give it a title, because its text has a place for a value"
        )


def test_it_imports_no_client_library_and_no_ledger() -> None:
    code = "import sys, steadyworker.diagnosis.cli.explain; print(*sys.modules)"
    modules = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "steadyworker.diagnosis.matching" in modules
    assert not modules & {
        *(
            "pamqp",
            "pika",
            "stomp",
            "rocketmq",
            "psycopg",
            "prometheus_client",
            "sqlite3",
            "asyncio",
            "structlog",
        ),
        *(f"steadyworker.{name}" for name in ("runner", "service", "ledger", "backends", "config", "slots", "worker")),
    }


def test_a_reader_that_has_enough_ends_it_quietly(shell: Shell) -> None:
    log(shell, "worker.log", LINE)
    command = f"set -o pipefail; {sys.executable} -m steadyworker explain worker.log | head -1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=shell.folder, env=shell.environ, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"1. {TITLES[ID]}\n", "")


# --- What is shown ----------------------------------------------------------------------------------------------------


def shown(text: str, width: int = 100, **more: Any) -> str:
    """The findings of the small catalogue in a text, as they are shown."""
    timelines, search = Timelines(SMALL.values()), Search(SMALL.values())
    for seen in Scanner("app.log", search).whole([text.encode()]):
        timelines.add(seen)
    timelines.end()
    console = Console(file=io.StringIO(), width=width, highlight=False, **more)
    report = Report(console, ["app.log"])
    for number, finding in enumerate(timelines.findings.values(), 1):
        report.finding(number, finding)
    report.unknown(search.unknown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


CHAIN = """\
2026-11-25 10:00:00,000 ERROR beats missed on <0.1.0>
2026-11-25 10:00:01,000 ERROR closed <0.1.0> of march
2026-11-25 10:10:00,000 WARN received march again
2026-11-25 10:40:00,000 ERROR ran march twice
"""


def test_a_chain_is_shown_as_one_time_line() -> None:
    assert shown(CHAIN).splitlines() == [
        "1. Title of small.beats",
        "   small.beats, app.log:1, 2026-11-25 10:00:00",
        "",
        "   What        What happened to a queue",
        "   Why         The cause",
        "",
        "   Seen        10:00:00,000  app.log:1",
        "                 ERROR beats missed on <0.1.0>",
        "               10:00:01,000  app.log:2  Title of small.closed",
        "                 ERROR closed <0.1.0> of march",
        "               10:10:00,000  app.log:3  Title of small.again",
        "                 WARN received march again",
        "               10:40:00,000  app.log:4  Title of small.twice",
        "                 ERROR ran march twice",
        "",
        "   What to do  1. Do this",
        "",
    ]


def test_bytes_are_shown_as_a_table() -> None:
    text = shown("2026-11-25 10:00:00 ERROR type 65, channel 19793, size 1342177289\n")
    table = [line[15:] for line in text.splitlines() if re.search(r"type  |channel  |size  ", line)]
    assert table == [
        "type             65  41           A",
        "channel       19793  4D 51        MQ",
        r"size     1342177289  50 00 00 09  P\0\0\t",
    ]
    assert r"= AMQP\0\0\t  the beginning of an AMQP protocol header" in text


def test_a_count_that_stops_at_its_limit_is_shown_as_at_least() -> None:
    few, many = (
        shown("".join(f"2026-11-25 10:00:00,000 ERROR gone wrong with 'queue-{n}'\n" for n in range(10, number)))
        for number in (20, 60)
    )
    assert "queue: 10 different ones, such as 'queue-10'" in few
    assert "queue: at least 20 different ones, such as 'queue-10'" in many


@pytest.mark.parametrize("width", [64, 80, 200])
def test_text_keeps_to_the_width(width: int) -> None:
    text = shown(CHAIN + "2026-11-25 10:50:00,000 ERROR lost " + "a" * 300 + "\n", width)
    longest = max(line.rstrip() for line in text.splitlines() if "aaa" not in line)
    assert len(longest) <= max(width, 50)
    assert all(len(line) <= WIDEST for line in text.splitlines() if "aaa" not in line)


def test_a_terminal_has_colours_and_a_pipe_has_none() -> None:
    assert "\x1b[" not in shown(CHAIN)
    coloured = shown(CHAIN, force_terminal=True, color_system="standard")
    assert coloured.startswith("\x1b[1;31m1. Title of small.beats")
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == shown(CHAIN)


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("amqp://bob:hunter2@host", "amqp://bob:***@host"),
        ("password=hunter2", "password=***"),
        ("\x07\x08\x7f", r"\x07\x08\x7f"),
        ("\0a\x08", r"\x00a\x08"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202e", r"\u202e"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
        ("{queue}", "{queue}"),
    ],
)
def test_the_text_of_a_log_is_shown_safely(hostile: str, harmless: str) -> None:
    """As a line of text, and as JSON, in which control characters are escaped; as the line that is quoted, and as a value."""
    for line in (
        f"2026-11-25 10:00:00 ERROR gone wrong with '{hostile}'",
        json.dumps({"level": "error", "msg": f"gone wrong with '{hostile}'"}),
        json.dumps({"level": "error", "msg": f"unheard of {hostile}"}),
    ):
        text = shown(f"{line}\n", force_terminal=True, color_system=None)
        assert harmless in text
        assert hostile not in text or hostile == harmless
        assert "hunter2" not in text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_a_quoted_line_is_cut_after_its_secrets_are_removed() -> None:
    assert "hunter2" not in safe(f"{'x' * 380} password={'hunter2' * 20}")
    assert "hunter2" not in safe("amqp://bob:" + "hunter2" * 300 + "@host")


# --- Logs that grow ---------------------------------------------------------------------------------------------------


class Script(Pipe):
    """A source with a script: bytes to read, or the seconds that pass before there is more; it is its own clock."""

    def __init__(self, *script: bytes | float) -> None:
        super().__init__(-1)
        self._script = list(script)
        self.now = 1000.0
        self.waits: list[float | None] = []

    @override
    def read(self) -> bytes:
        block = self._script.pop(0) if self._script and isinstance(self._script[0], bytes) else b""
        self.ended = not self._script
        assert isinstance(block, bytes)
        return block

    @override
    def wait(self, seconds: float | None) -> None:
        self.waits.append(seconds)
        left = self._script[0]
        assert isinstance(left, float)
        passed = left if seconds is None else min(left, seconds)
        self.now += passed
        if left - passed > 0:
            self._script[0] = left - passed
        else:
            self._script.pop(0)
        self.ended = not self._script

    def monotonic(self) -> float:
        return self.now

    boottime = wall = monotonic


def followed(script: Script) -> list[tuple[float, list[str]]]:
    """When each incident was shown, and its steps."""
    timelines, times = Timelines(SMALL.values()), []

    def show(incident: Incident) -> None:
        times.append((script.now - 1000, [step.seen.entry.id for step in incident.steps[incident.shown :]]))
        incident.shown = len(incident.steps)

    follow(Scanner("-", Search(SMALL.values())), script, timelines, show, script)
    for incident in timelines.end():
        if incident.shown < len(incident.steps):
            show(incident)
    return times


def test_a_finding_is_shown_when_it_is_complete_enough() -> None:
    """The last line could go on; half a second later it cannot, and then the incident has the time to settle."""
    beats, closed, again, twice = (f"{line}\n".encode() for line in CHAIN.splitlines())
    script = Script(beats, 2.0, closed, 1000.0, again, 1000.0, twice)
    assert followed(script) == [
        (2 + QUIET + SETTLE, ["small.beats", "small.closed"]),
        (1002 + QUIET + SETTLE, ["small.again"]),
        (2002, ["small.twice"]),
    ]
    assert len(script.waits) < 20


def test_a_quiet_source_is_waited_for_without_end() -> None:
    script = Script(b"2026-11-25 10:00:00 INFO well\n", 1e6, b"2026-11-25 10:00:00 ERROR lost\n")
    assert followed(script) == []
    assert script.waits == [QUIET, None]


def test_a_line_that_comes_in_pieces_is_one_line() -> None:
    assert followed(Script(b"lo", 10.0, b"st a", 10.0, b"\n", 10.0)) == [(20 + QUIET + SETTLE, ["small.lost"])]


_MAIN = "from steadyworker.cli import main; main()"
_SOON = f"from steadyworker.diagnosis import following; following.SETTLE = 0.2; {_MAIN}"


class Explain:
    """The command in a process of its own, with its output as it comes."""

    def __init__(
        self,
        shell: Shell,
        eventually: Eventually,
        *arguments: str,
        stdin: Any = subprocess.DEVNULL,
        soon: bool = False,
    ) -> None:
        self._eventually = eventually
        self._output = (shell.folder / "output").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SOON if soon else _MAIN, "explain", *arguments],
            cwd=shell.folder,
            env=shell.environ,
            stdin=stdin,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    @property
    def output(self) -> str:
        self._output.seek(0)
        return self._output.read().decode()

    def until(self, text: str) -> None:
        self._eventually(lambda: text in self.output)

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


Start = Callable[..., Explain]


@pytest.fixture
def start(shell: Shell, eventually: Eventually) -> Iterator[Start]:
    started: list[Explain] = []

    def run(*arguments: str, **more: Any) -> Explain:
        started.append(Explain(shell, eventually, *arguments, **more))
        return started[-1]

    yield run
    for each in started:
        with suppress(ProcessLookupError):
            each.process.kill()
        each.process.wait()
        if each.process.stdin:
            each.process.stdin.close()
        each._output.close()


def test_a_growing_file_is_followed_by_tail_through_its_rotation(shell: Shell, start: Start) -> None:
    path = shell.folder / log(shell, "worker.log", LINE)
    with subprocess.Popen(["tail", "-qF", "-n+1", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tail:
        explain = start("-", stdin=tail.stdout, soon=True)
        explain.until(f"1. {TITLES[ID]}")
        path.rename(shell.folder / "worker.log.1")
        path.write_text(UNKNOWN.format(1) + ORDINARY + LATER)
        explain.until(f"2. {TITLES[OTHER]}")
        with path.open("a") as file:
            file.write(LINE.replace("march", "may").replace("10:00", "11:00"))
        explain.until(f"1. Again: {TITLES[ID]}")
        tail.terminate()
        assert explain.process.wait(60) == 1
    assert explain.output.count("Why  ") == 2
    assert "2 findings in 5 lines." in explain.output
    assert "a_thing_that_no_broker_says" in explain.output


def test_a_pipe_is_explained_while_it_is_open(start: Start) -> None:
    explain = start("--json", stdin=subprocess.PIPE)
    pipe = explain.process.stdin
    assert pipe is not None
    pipe.write(LINE.encode())
    pipe.flush()
    explain.until(f'"id":"{ID}"')
    assert explain.process.poll() is None
    pipe.close()
    assert explain.process.wait(60) == 1
    assert len(explain.output.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_open_pipe_ends_by_sigterm_as_by_an_interrupt(start: Start, number: int) -> None:
    """`timeout` and systemd send SIGTERM; what was found until then is shown."""
    explain = start(stdin=subprocess.PIPE, soon=True)
    pipe = explain.process.stdin
    assert pipe is not None
    pipe.write(LINE.encode())
    pipe.flush()
    explain.until(f"1. {TITLES[ID]}")
    pipe.write(LATER.encode())
    pipe.flush()
    assert explain.end(number) == 1
    assert "1 finding in " in explain.output or "2 findings in " in explain.output


def test_at_a_terminal_it_prints_what_to_do(shell: Shell, start: Start) -> None:
    master, slave = pty.openpty()
    try:
        explain = start(stdin=slave)
        explain.until("Paste lines of a log, then press Ctrl-D.")
        os.write(master, LINE.encode() + b"\x04")
        assert explain.process.wait(60) == 1
        assert f"1. {TITLES[ID]}" in explain.output
    finally:
        os.close(master)
        os.close(slave)


# --- Large and hostile logs -------------------------------------------------------------------------------------------


_MEASURED = """
import atexit, pathlib
def note():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    pathlib.Path("memory").write_text(line.split()[1])
atexit.register(note)
from steadyworker.cli import verbs
verbs(prog_name="steadyworker")
"""


def measured(shell: Shell, *arguments: str) -> tuple[int, list[Any], float]:
    """The exit code of a run, its records, and its largest memory in MB."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, "explain", "--json", *arguments],
        cwd=shell.folder,
        env=shell.environ,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, records, int((shell.folder / "memory").read_text()) / 1024


@pytest.mark.timeout(180)
def test_a_log_of_200_mb_needs_little_memory(shell: Shell) -> None:
    """Each line has another number, and one line in 100,000 is a finding."""
    block = "".join(
        f"2026-11-25 10:00:{n % 60:02}.{n:06}+00:00 [info] <0.{n}.0> connection 10.0.0.{n % 255}:{n} -> 10.0.0.1:5672: user 'shop' authenticated\n"
        for n in range(100_000)
    )
    with (shell.folder / "large.log").open("w") as file:
        for _ in range(17):
            file.write(block + LINE)
        size = file.tell() / 1e6
    assert size > 200
    code, (record,), memory = measured(shell, "large.log")
    assert (code, record["times"]) == (1, 17)
    assert memory < 100


def test_random_bytes_have_no_finding_and_no_traceback(shell: Shell) -> None:
    (shell.folder / "random").write_bytes(os.urandom(1 << 20))
    said = shell("explain", "random")
    assert (said.code, said.err) == (0, "")
