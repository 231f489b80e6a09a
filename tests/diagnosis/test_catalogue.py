"""The catalogue: its schema, and each entry of it against its own samples."""

from __future__ import annotations

import re

import pytest

from steadyworker.diagnosis.catalogue import Entry, Pattern, Sample, load, read
from steadyworker.diagnosis.matching import LEAST_LEFT, left
from steadyworker.diagnosis.scan import Scanner, Search
from steadyworker.errors import ConfigError

CATALOGUE = load()
SEARCH = Search(CATALOGUE.values())
SAMPLES = [(entry, sample) for entry in CATALOGUE.values() for sample in entry.samples]
PATTERNS = [(entry, pattern) for entry in CATALOGUE.values() for pattern in entry.patterns]

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
[[entry.sample]]
from = "RabbitMQ 3.10.8"
how = "source"
text = "type 65 channel 19793 {frame_too_large,1342177289,131064}"
"""


def by_id(value: object) -> str:
    return value.id if isinstance(value, Entry) else ""


# --- The schema -------------------------------------------------------------------------------------------------------


def test_an_entry_is_read_with_all_its_parts() -> None:
    (entry,) = read(VALID, "rabbitmq.toml")
    assert (entry.id, entry.family, entry.spelled, entry.general) == ("amqp.second-header", "amqp", "frame", False)
    assert entry.groups == {"type", "channel", "size"}
    assert [sample.origin for sample in entry.samples] == ["RabbitMQ 3.10.8"]


def test_the_texts_are_filled_with_the_groups() -> None:
    (entry,) = read(VALID, "rabbitmq.toml")
    filled = entry.filled(entry.what, {"size": "12"})
    assert filled == "The broker read 12 in channel 0 of <host>; {not_a_group} and {a,b} stay."


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
        ("(?P<size>", "(?P<length>", r"expected the groups \['size'\] in a pattern"),
        ('"connection"', '"socket"', r"got \['socket'\]"),
        ('how = "source"', 'how = "provoked"', "expected `test` for a provoked sample"),
        ('hint = "frame', 'hint = "\\nframe', "expected a hint on one line"),
        ('keys = ["connection"]', 'keys = ["connection"]\nkey = 1', "unknown field `key`"),
    ],
)
def test_a_wrong_file_is_refused_with_place_and_reason(change: str, into: str, said: str) -> None:
    assert change in VALID
    with pytest.raises(ConfigError, match=f"rabbitmq.toml: .*{said}"):
        read(VALID.replace(change, into), "rabbitmq.toml")


# --- Every entry ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("entry", "sample"), SAMPLES, ids=by_id)
def test_each_sample_is_explained_by_its_own_entry(entry: Entry, sample: Sample) -> None:
    """Entries that follow from it may be found beside it."""
    found = {seen.entry.id for seen in Scanner("sample", SEARCH).whole([sample.text.encode()])}
    consequences = {other.id for other in CATALOGUE.values() if entry.id in other.follows}
    assert entry.id in found
    assert found - consequences == {entry.id}


@pytest.mark.parametrize(("entry", "pattern"), PATTERNS, ids=by_id)
def test_each_expression_can_be_compiled(entry: Entry, pattern: Pattern) -> None:
    assert set(re.compile(pattern.regex, re.MULTILINE).groupindex) <= entry.groups


@pytest.mark.parametrize(("entry", "pattern"), PATTERNS, ids=by_id)
def test_each_hint_distinguishes_lines(entry: Entry, pattern: Pattern) -> None:
    """Its letters a to f and its digits are deleted before the search; enough of it has to be left."""
    assert len(left(pattern.hint.encode())) >= LEAST_LEFT
