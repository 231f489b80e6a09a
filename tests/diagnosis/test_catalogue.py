"""The catalogue: its schema, and each entry of it against its own samples (`samples/*.toml`)."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import msgspec
import pytest

from steadyworker.diagnosis.catalogue import GROUPS, Entry, read
from steadyworker.diagnosis.matching import LEAST_LEFT, left
from steadyworker.diagnosis.protocols import OPENINGS
from steadyworker.diagnosis.records import Cutter
from steadyworker.diagnosis.scan import Scanner
from steadyworker.errors import ConfigError
from tests.diagnosis import sample_files
from tests.diagnosis.explaining import catalogue, search
from tests.test_words import REPLACED

CATALOGUE = catalogue()
SAMPLES = sample_files.load()
SEARCH = search()
ROOT = Path(__file__).parents[2]
ENTRIES = ROOT / "steadyworker/diagnosis/entries"

VALID = r"""
[[entry]]
id = "amqp.second-header"
title = "A client sent a second protocol header on an open connection"
what = "The broker read {size} in channel {channel|0} of {host}; {not_a_group} and {a,b} stay."
why = "Two parts of the program write to one socket."
remedies = ["One owner for each socket"]
sources = ["RabbitMQ 3.10.8, provoked"]
severity = "error"
bytes = "frame"
keys = ["connection"]
[[entry.pattern]]
hint = "frame_too_large"
regex = '''type (?P<type>\d+).*channel (?P<channel>\d+).*\{frame_too_large,(?P<size>\d+)'''
"""


SPELLED = {
    None: set[str](),
    "frame": {"type", "channel", "size"},
    "length": {"size"},
    "length-plus-4": {"size"},
    "raw": {"bytes"},
}


def by_id(value: object) -> str:
    return value.id if isinstance(value, Entry) else ""


# --- The schema -------------------------------------------------------------------------------------------------------


def test_an_entry_is_read_with_all_its_parts() -> None:
    (entry,) = read(VALID, "rabbitmq.toml")
    assert (entry.id, entry.family, entry.spelled, entry.general) == ("amqp.second-header", "amqp", "frame", False)
    assert entry.groups == {"type", "channel", "size"}


def test_the_texts_are_filled_with_the_groups() -> None:
    (entry,) = read(VALID, "rabbitmq.toml")
    filled = entry.filled(entry.what, {"size": "12"})
    assert filled == "The broker read 12 in channel 0 of <host>; {not_a_group} and {a,b} stay."


def test_a_text_that_ends_with_a_stop_gets_no_second_one() -> None:
    (entry,) = read(VALID, "rabbitmq.toml")
    assert entry.filled("Read {size}. Then {host}.", {"size": "12.", "host": "b..."}) == "Read 12. Then b..."


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("Server not started]", "Server not started"),
        ("error in [jobs]", "error in [jobs]"),
        (
            "Can't connect to 'db' ([Errno 111] Connection refused)\")",
            "Can't connect to 'db' ([Errno 111] Connection refused)",
        ),
        ("wait response timeout, the channel[", "wait response timeout, the channel"),
        ("Send message back fail, MQ is:", "Send message back fail, MQ is"),
        ("queue://DLQ.orders'", "queue://DLQ.orders"),
        ("no attribute 'recv'", "no attribute 'recv'"),
        ("unknown_destination,\\", "unknown_destination"),
        ("fe80::", "fe80::"),
        ("{", "<host>"),
    ],
)
def test_a_value_loses_the_marks_of_the_line_around_it(value: str, shown: str) -> None:
    (entry,) = read(VALID, "x.toml")
    assert entry.filled("{host}", {"host": value}) == shown


@pytest.mark.parametrize(
    ("text", "groups", "filled"),
    [
        ("nc -vz {host|BROKER} {port|5672}", {"host": "10.0.0.1:5671"}, "nc -vz 10.0.0.1 5671"),
        ("nc -vz {host|BROKER} {port|5672}", {"host": "10.0.0.1:5671", "port": "5671"}, "nc -vz 10.0.0.1 5671"),
        (
            "nc -vz {host|BROKER} {port|61613}",
            {"host": "stomp+ssl://mq.example", "port": "61614"},
            "nc -vz mq.example 61614",
        ),
        ("nc -vz {host|BROKER} {port|5672}", {"host": "::1", "port": "5552"}, "nc -vz ::1 5552"),
        ("nc -vz {host|BROKER} {port|5672}", {}, "nc -vz BROKER 5672"),
        ("to {host}", {"host": "10.0.0.1:5671"}, "to 10.0.0.1:5671"),
        ("the name `{name|in the line}` is", {}, "the name in the line is"),
        ("the name `{name|in the line}` is", {"name": "a.b"}, "the name `a.b` is"),
        ("the name `{name|NAME}` is", {}, "the name `NAME` is"),
    ],
)
def test_an_address_has_its_port_once_and_words_are_no_name(text: str, groups: dict[str, str], filled: str) -> None:
    (entry,) = read(VALID, "x.toml")
    assert entry.filled(text, groups) == filled


@pytest.mark.parametrize(
    ("change", "into", "said"),
    [
        ("[[entry]]", "[[entry", "expected TOML"),
        ("title =", "titel =", "amqp.second-header: Object contains unknown field `titel`"),
        (
            'hint = "',
            'tip = "',
            r"amqp.second-header: Object contains unknown field `tip` - at `\$.entry\[0\].pattern\[0\]`",
        ),
        ('id = "amqp.second-header"', 'id = "Second Header"', "Expected `str` matching regex"),
        ('severity = "error"', 'severity = "bad"', "Invalid enum value 'bad'"),
        ('remedies = ["One owner for each socket"]', "remedies = []", "Expected `array` of length >= 1"),
        ('keys = ["connection"]', 'keys = ["connection"]\nkey = 1', "unknown field `key`"),
    ],
)
def test_a_wrong_file_is_refused_with_place_and_reason(change: str, into: str, said: str) -> None:
    assert change in VALID
    with pytest.raises(ConfigError, match=f"rabbitmq.toml: .*{said}"):
        read(VALID.replace(change, into), "rabbitmq.toml")


SAMPLE = """
[["amqp.second-header"]]
from = "RabbitMQ 3.10.8"
how = "source"
text = "type 65 channel 19793"
"""


@pytest.mark.parametrize(
    ("change", "into", "said"),
    [
        ('how = "source"', 'how = "provoked"', "expected `test` for a provoked sample and only there"),
        (
            'how = "source"',
            'how = "source"\ntest = "test_x.py::test_x"',
            "expected `test` for a provoked sample and only",
        ),
        ('how = "source"', 'how = "guessed"', "Invalid enum value 'guessed'"),
        ('text = "type', 'line = "type', "Object contains unknown field `line`"),
        ('from = "RabbitMQ 3.10.8"\n', "", "Object missing required field `from`"),
    ],
)
def test_a_wrong_sample_is_refused(change: str, into: str, said: str) -> None:
    assert [sample.origin for sample in sample_files.read(SAMPLE)["amqp.second-header"]] == ["RabbitMQ 3.10.8"]
    assert change in SAMPLE
    with pytest.raises(msgspec.ValidationError, match=said):
        sample_files.read(SAMPLE.replace(change, into))


# --- Every entry ------------------------------------------------------------------------------------------------------


def test_each_entry_has_samples_but_those_that_speak_for_themselves() -> None:
    """They stand in the file that has the name of the entry's own file."""
    assert {entry.id for entry in CATALOGUE.values() if not entry.speaks_for_itself} == SAMPLES.keys()
    assert not {entry.id for entry in CATALOGUE.values() if entry.patterns} - SAMPLES.keys()
    for path in sorted(sample_files.FOLDER.iterdir()):
        samples = sample_files.read(path.read_text(encoding="utf-8"))
        entries = read((ENTRIES / path.name).read_text(encoding="utf-8"), path.name)
        assert samples.keys() <= {entry.id for entry in entries}, path.name
        assert all(samples.values()), path.name


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=by_id)
def test_each_sample_is_explained_by_its_own_entry(entry: Entry) -> None:
    """Entries that follow from it may be found beside it."""
    consequences = {other.id for other in CATALOGUE.values() if entry.id in other.follows}
    for sample in SAMPLES.get(entry.id, ()):
        found = {seen.entry.id for seen in Scanner("sample", SEARCH).whole([sample.text.encode()])}
        assert entry.id in found, sample.text
        assert found - consequences == {entry.id}, sample.text


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=by_id)
def test_each_pattern_keeps_its_promises(entry: Entry) -> None:
    """Its expression has the named groups, and its hint is in each record that it matches, and distinguishes lines from others."""
    assert SPELLED[entry.spelled] <= entry.groups, "the groups that `bytes` spells"
    assert set(entry.opens) <= {opening.kind for opening in OPENINGS}
    assert not entry.opens or entry.spelled
    assert set(entry.keys) <= entry.groups | GROUPS
    for pattern in entry.patterns:
        assert "\n" not in pattern.hint, "hints are searched line by line"
        expression = re.compile(pattern.regex, re.MULTILINE)
        assert set(expression.groupindex) <= entry.groups
        assert len(left(pattern.hint.encode())) >= LEAST_LEFT, "its letters a to f and u, and its digits, do not count"
        for sample in SAMPLES[entry.id]:
            for record in [*(cutter := Cutter("sample")).feed(sample.text.encode()), *cutter.end()]:
                hinted = any(each.hint in record.text for each in entry.patterns)
                assert hinted or not expression.search(record.text), pattern.hint


def test_each_pattern_fills_the_title_and_what_happened() -> None:
    """A value that a pattern lacks has a default: a reader sees no `<queue>` where the line names no queue."""
    for entry in CATALOGUE.values():
        needed = {name for text in (entry.title, entry.what, entry.why) for name in re.findall(r"\{([a-z_]+)\}", text)}
        for pattern in entry.patterns:
            lacks = needed & (entry.groups | GROUPS) - re.compile(pattern.regex).groupindex.keys()
            assert lacks == set(), f"{entry.id}: {pattern.hint}"


def test_each_text_can_be_read_without_a_log() -> None:
    """A value that a record may lack has a default, or is a placeholder in a command."""
    for entry in CATALOGUE.values():
        assert not entry.title.endswith("."), f"{entry.id}: a title is a headline"
        assert set(entry.follows) <= CATALOGUE.keys(), entry.id
        for text in (entry.title, entry.what, entry.why, *entry.remedies, *entry.verify, entry.worker or ""):
            assert text == text.strip(), entry.id
            assert "{}" not in text, entry.id
            assert re.findall(r"\{[a-z_]+\|[^{}]*\}", entry.filled(text, {})) == [], entry.id
            bare = re.sub(r"\{[^{}]*\}|`[^`]*`", "", entry.filled(text, {}))
            assert not re.search(r"[{}|]", bare) or text in entry.verify, entry.id
            for pattern, instead in REPLACED.items():
                assert not re.search(rf"\b(?:{pattern})\b", text, re.IGNORECASE), f"{entry.id}: write {instead}: {text}"


BROKEN, NO_MAJORITY = "rabbitmq.internal-error", "rabbitmq.no-majority"
UNFORMED = "INTERNAL_ERROR - Cannot declare quorum queue 'a' in vhost 'b' on node 'c' with leader on node"


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("ConnectionClosedByBroker: (541, 'INTERNAL_ERROR')", {BROKEN}),
        ('connection closed: 541 (INTERNAL-ERROR) with message "INTERNAL_ERROR"', {BROKEN}),
        ("(reply-code=541, reply-text=INTERNAL_ERROR, class-id=50, method-id=10)", {BROKEN}),
        ('operation queue.declare caused a connection exception internal_error: "Could not declare queue"', {BROKEN}),
        (f"ConnectionClosedByBroker: (541, \"{UNFORMED} 'c': cluster_not_formed\")", {NO_MAJORITY}),
        (f'ConnectionClosedByBroker: (541, "{UNFORMED} \'rabbit@a-very-long-na...")', {NO_MAJORITY}),
        ("stream error: stream ID 541; INTERNAL_ERROR; received from peer", set()),
        ("02:45:36,541 ERROR app: INTERNAL_ERROR", set()),
        ("took 541 ms, status INTERNAL_ERROR", set()),
        ('"GET / HTTP/1.1" 500 541 "-" "INTERNAL_ERROR"', set()),
    ],
)
def test_a_failure_of_the_broker_is_distinguished_from_other_numbers(text: str, ids: set[str]) -> None:
    assert {seen.entry.id for seen in Scanner("log", SEARCH).whole([text.encode()])} == ids


EMPTY = re.compile(
    r"(?:correct|remove|mend|fix) (?:what|the (?:cause|reason|error)(?: that)?) (?:that )?(?:the|is)\b[^;,:]*? (?:names?|says?|reports?)\b[^;,:]*$",
    re.IGNORECASE,
)


def test_each_remedy_has_content() -> None:
    """A reader who is sent back to the line has learned nothing."""
    assert EMPTY.search("Remove the cause that the text names.")
    assert EMPTY.search("Correct what the line names")
    remedies = [(entry.id, remedy) for entry in CATALOGUE.values() for remedy in entry.remedies]
    assert not [(id, remedy) for id, remedy in remedies if EMPTY.search(remedy.rstrip("."))]


def test_no_entry_is_its_own_cause() -> None:
    TopologicalSorter({entry.id: entry.follows for entry in CATALOGUE.values()}).prepare()


def test_each_provoking_test_exists() -> None:
    named = {sample.test for samples in SAMPLES.values() for sample in samples if sample.test}
    files = {test.partition("::")[0] for test in named}
    tests = {file: ast.parse((ROOT / file).read_text(encoding="utf-8")) for file in files}
    found = {
        f"{file}::{node.name}"
        for file, tree in tests.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert {test.partition("[")[0] for test in named} <= found


def test_the_catalogue_is_large_enough() -> None:
    """Without what our own checks report: these lines say themselves what to do."""
    seen = [entry for entry in CATALOGUE.values() if not entry.speaks_for_itself and entry.patterns]
    provoked = [entry for entry in seen if any(sample.how == "provoked" for sample in SAMPLES[entry.id])]
    assert len(seen) >= 120
    assert len(provoked) >= 70
