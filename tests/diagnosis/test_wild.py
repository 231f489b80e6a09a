"""What `explain` finds in lines as people pasted them into tickets: clipped, quoted, with the prefixes of other programs, of old versions."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from steadyworker.diagnosis.scan import Scanner
from steadyworker.diagnosis.timeline import Sighting, Timelines
from tests.diagnosis.explaining import catalogue, search

pytestmark = pytest.mark.long

FILES = [Path(__file__).with_name("wild.toml"), *sorted(Path(__file__).parent.glob("world-*.toml"))]
LINES: list[dict[str, Any]] = [
    line for file in FILES for line in tomllib.loads(file.read_text(encoding="utf-8"))["line"]
]


@pytest.mark.parametrize("line", LINES, ids=[line["source"].rpartition("://")[2] for line in LINES])
def test_a_line_of_a_ticket_is_explained_or_unknown(line: dict[str, Any]) -> None:
    seen = list(Scanner("ticket", search()).whole([line["text"].encode()]))
    assert sorted({each.entry.id for each in seen}) == line["finds"]
    if len(line["finds"]) > 1:
        assert_the_first_finding_is_exact_if_any_is(seen)


def assert_the_first_finding_is_exact_if_any_is(seen: list[Sighting]) -> None:
    """A reader takes the first finding for the answer."""
    timelines = Timelines(catalogue().values())
    for each in seen:
        timelines.add(each)
    timelines.end()
    findings = sorted(timelines.findings.values(), key=lambda each: each.place)
    exact = [not (each.entry.general or each.entry.vague or each.probable) for each in findings]
    assert exact[0] == any(exact), [each.entry.id for each in findings]


def test_most_of_them_are_known() -> None:
    known = [line for line in LINES if line["finds"]]
    unknown = [line for line in LINES if line.get("unknown")]
    assert len(known) >= 200
    assert len(unknown) <= len(LINES) // 8


@pytest.mark.parametrize(
    ("text", "finds"),
    [
        ("bash: ./run.sh: Permission denied", []),
        ("2024/05/01 10:00:00 dial tcp: ssh: handshake failed: EOF", []),
        ('java.lang.NumberFormatException: For input string: "12a"', []),
        ("No FileSystem for scheme: hdfs", []),
        ("You have reached your daily limit of messages", []),
        ("[WinError 2] The system cannot find the file specified: 'C:\\\\jobs\\\\in.csv'", []),
        ("  Process: 12 ExecStop=/opt/app/stop (code=exited, status=22)", ["systemd.exited"]),
        ("curl: (7) proxy.example.org refused connection to port 8080", []),
        ("TypeError: Invalid input of type None for field 'name'", []),
        ("Error: Authentication required. Run `npm login`.", []),
        ("smtplib.SMTPServerDisconnected: Connection closed by server.", []),
        ("Error while reading from the file orders.csv: line 3 is too long", []),
        ("Timeout reading from the scanner on port COM3", []),
        ("java.util.concurrent.TimeoutException: Futures timed out after [10 seconds]", []),
        ("firmware: Watchdog timeout (channel 3)", []),
        ("iptables: No chain/target/match by that name.", []),
        ("could not obtain lock on /var/lib/apt/lists", []),
        ("mqtt: Connection to broker lost, trying again", []),
        ("proc 17 was sent SIGKILL", []),
        ("job 3 exited unexpectedly (code 1)", []),
        ("sh: can't find command in PATH", []),
        (" Compressed class space used 5012K, capacity 5304K", []),
        ("backup: failed to create local dir in /srv", []),
        ("the train is running beyond its timetable", []),
    ],
)
def test_a_line_of_another_program_is_not_explained_by_its_common_words(text: str, finds: list[str]) -> None:
    assert sorted({seen.entry.id for seen in Scanner("log", search()).whole([text.encode()])}) == finds
