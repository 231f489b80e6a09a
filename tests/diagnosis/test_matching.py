"""The search for entries: nothing is lost by its shortcuts, and no expression of the catalogue searches for long."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyworker.diagnosis.catalogue import Entry, Pattern, read
from steadyworker.diagnosis.loose import loosened
from steadyworker.diagnosis.matching import NEAR_HINT, Matcher, Sieve, left, spelled
from steadyworker.diagnosis.records import LONGEST
from steadyworker.diagnosis.scan import Scanner, Search
from tests.diagnosis import sample_files
from tests.diagnosis.explaining import catalogue
from tests.diagnosis.small_catalogue import SMALL
from tests.diagnosis.small_catalogue import entry as entry_text

MATCHER = Matcher(SMALL.values())
CATALOGUE = catalogue()
SAMPLES = sample_files.load()


def ids(text: str) -> list[str]:
    return [match.entry.id for match in MATCHER.match(text)]


def test_the_groups_name_what_was_matched() -> None:
    (match,) = MATCHER.match("x\nclosed <0.1.0> of march")
    assert (match.entry.id, match.groups, match.line) == (
        "small.closed",
        {"connection": "<0.1.0>", "message": "march"},
        1,
    )
    (match,) = MATCHER.match("closed <0.1.0>")
    assert match.groups == {"connection": "<0.1.0>"}


def test_other_values_are_another_match_and_the_same_are_not() -> None:
    matches = MATCHER.match("lost a\nlost b\nlost a")
    assert [(match.groups, match.line) for match in matches] == [({"queue": "a"}, 0), ({"queue": "b"}, 1)]


def test_a_general_entry_explains_only_what_no_other_does() -> None:
    assert ids("gone wrong") == ["small.any"]
    assert ids("gone wrong with 'x'") == ["small.one"]


def test_a_vague_entry_leaves_the_record_to_an_entry_that_has_the_cause() -> None:
    assert ids("no connection") == ["small.unconnected"]
    assert ids("no connection: not trusted") == ["tls.small"]
    assert ids("no connection: it was refused") == ["small.unconnected"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("type 65, channel 19793, size 1342177289", True),
        ("type 71, channel 17748, size 539959368", False),
        ("type 3, channel 1, size 200000", False),
        ("type 650, channel 1, size 200000", False),
    ],
)
def test_an_entry_for_a_protocol_explains_only_bytes_that_open_it(text: str, found: bool) -> None:
    assert ids(text) == ["small.header"] * found


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-25T10:00:00.123Z [error    ] delivery_lost [steadyworker] explain=small.beats key=march",
        "[error] delivery_lost logger=steadyworker explain=small.beats",
        '{"level":"error","explain":"small.beats"}',
        '{"level": "error", "explain": "small.beats"}',
        '{"t": 1.5, "conn": 1, "from": "trace", "kind": "flag", "id": "small.beats", "level": "error"}',
    ],
)
def test_our_own_lines_name_their_entry(text: str) -> None:
    search = Search(SMALL.values())
    assert [seen.entry.id for seen in Scanner("log", search).whole([text.encode()])] == ["small.beats"]
    assert ids(text.replace("small.beats", "small.unheard-of")) == []


@pytest.mark.parametrize(
    ("how", "groups", "raw", "protocol"),
    [
        ("frame", {"type": "22", "channel": "769", "size": "33554688"}, b"\x16\x03\x01\x02\0\x01\0", "TLS ClientHello"),
        ("frame", {"type": "65", "size": "1342177289"}, None, None),
        ("length", {"size": "1195725856"}, b"GET ", "HTTP request"),
        ("length-plus-4", {"size": "1195725860"}, b"GET ", "HTTP request"),
        ("raw", {"bytes": '<<"GET / HT">>'}, b"GET / HT", "HTTP request"),
        ("raw", {"bytes": "<<22,3,1,2,0,1,0,1>>"}, b"\x16\x03\x01\x02\0\x01\0\x01", "TLS ClientHello"),
        ("raw", {"bytes": "PING\r\n"}, b"PING\r\n", "PING"),
    ],
)
def test_bytes_are_computed_from_the_numbers(
    how: str, groups: dict[str, str], raw: bytes | None, protocol: str | None
) -> None:
    entry = SMALL["small.header"]
    changed = {field: getattr(entry, field) for field in entry.__struct_fields__} | {"spelled": how, "opens": ()}
    found = spelled(Entry(**changed), groups)
    assert found is not None
    if raw is not None:
        assert (found.raw, found.protocol) == (raw, protocol)


# --- The sieve --------------------------------------------------------------------------------------------------------

HINTS = [pattern.hint for entry in CATALOGUE.values() for pattern in entry.patterns]
SIEVE = Sieve(HINTS)


@settings(max_examples=300)
@given(st.sampled_from(HINTS), st.text(max_size=60), st.text(max_size=60))
def test_no_line_with_a_hint_is_ordinary(hint: str, before: str, after: str) -> None:
    """Neither as it is, nor in a line of JSON, however JSON escapes it, nor among other lines."""
    line = f"{before}{hint}{after}".replace("\n", " ")
    other = f"{line.replace(hint, hint[1:])}\n".encode("utf-8", "replace")
    for spelling in (line, json.dumps(line), json.dumps(line).replace("<", "\\u003c").replace("/", "\\/")):
        assert not SIEVE.ordinary(other + spelling.encode("utf-8", "replace") + b"\n")


def test_each_line_with_a_hint_or_the_mark_of_an_error_is_found_in_a_block() -> None:
    sieve = Sieve(["beats missed", "missed on"])
    assert sieve.ordinary(b"2026-11-25 INFO all is well 17\n2027-01-01 INFO all is well 4711\n")
    assert not sieve.ordinary(b"2027-01-01 INFO all is well 4711\nbeats missed\n")
    assert not sieve.ordinary(b"2027-01-01 10:00:00 ERROR unheard of\n")
    assert sieve.hints_in("beats missed on a") == {"beats missed", "missed on"}, "also hints that overlap"


@pytest.mark.parametrize("end", [',"msg":"gone"}', "}"])
@pytest.mark.parametrize("space", ["", " "])
def test_a_line_of_json_is_ordinary_unless_its_level_is_that_of_an_error(space: str, end: str) -> None:
    """Each line of such a log has a level, so that a mark without its value would make none of them ordinary."""
    sieve = Sieve(["beats missed"])
    for level in ('"info"', '"warning"', '"INFO"', '"Information"', "30"):
        assert sieve.ordinary(f'{{"level":{space}{level}{end}'.encode()), level
    for level in ('"error"', '"Error"', '"ERROR"', '"fatal"', '"Critical"', '"ALERT"', "50", "60"):
        assert not sieve.ordinary(f'{{"level":{space}{level}{end}'.encode()), level


LINES = st.sampled_from(
    [
        *("2026-11-25 10:00:00,000 INFO all is well", "2026-11-25 10:00:01,000 WARN slow", "\tat somewhere", "", "{"),
        *("2026-11-25 10:00:02,000 ERROR beats missed on <0.1.0>", "closed <0.1.0> of march", "lost a", "gone wrong"),
        *("Traceback (most recent call last):", "  File x", "KeyError: 1", '{"msg":"gone wrong","level":"error"}'),
    ]
)


@given(st.lists(LINES, max_size=120), st.integers(1, 50))
def test_skipping_loses_nothing(lines: list[str], repeated: int) -> None:
    filler = "2026-11-25 10:00:00,000 INFO nothing\n" * repeated
    log = filler.join(f"{line}\n" for line in lines).encode()
    with_skip, without = Search(SMALL.values()), Search(SMALL.values())
    scanner = Scanner("log", without)
    scanner.cutter._skip = None
    found = [(seen.entry.id, seen.groups, seen.line) for seen in Scanner("log", with_skip).whole([log])]
    assert found == [(seen.entry.id, seen.groups, seen.line) for seen in scanner.whole([log])]
    assert with_skip.unknown.count == without.unknown.count


@pytest.mark.parametrize("between", ["\n", " ", "#012 ", "#012", "\n "])
def test_a_report_whose_lines_were_joined_still_names_its_connection(between: str) -> None:
    """A copy into a ticket, and rsyslog, join the lines of a report."""
    text = (
        "2026-03-02 09:31:02.141 [error] <0.9.0> Error on AMQP connection <0.9.0> (10.0.3.17:46948 -> 10.0.3.5:5672, "
        f"vhost: 'shop', user: 'shop', state: running), channel 19793:{between}operation none caused a connection "
        'exception frame_error: "type 65, all octets = <<>>: {frame_too_large,1342177289,131064}"'
    )
    (match,) = Matcher(CATALOGUE.values()).match(text)
    assert match.entry.id == "amqp.second-header"
    assert (match.groups["connection"], match.groups["peer"]) == ("<0.9.0>", "10.0.3.17:46948")
    assert match.groups["channel"] == "19793"


# --- Expressions ------------------------------------------------------------------------------------------------------


FILLERS = (
    *("a", "1", " ", ".", "'", ",", "<", "(", "\n", "\\"),
    *("a ", "1.", "a: ", "'a' ", "0,", "a\n", "(a ", "-> "),
)


def hostile(pattern: Pattern, sample: str, near: int = NEAR_HINT) -> Iterator[str]:
    """Texts that nearly match: the hint, and all that the expression repeats, without the end that it needs."""
    for filler in FILLERS:
        yield (pattern.hint + filler * near)[: 2 * near]
        yield (filler * near)[: near - len(pattern.hint)] + pattern.hint
        yield (pattern.hint * 3 + filler * 20) * (2 * near // (3 * len(pattern.hint) + 20 * len(filler)))
    for end in range(1, len(sample), max(1, len(sample) // 6)):
        yield (sample[:end] * (2 * near // end + 1))[: 2 * near]
    behind = sample.find(pattern.hint) + len(pattern.hint)
    for end in {
        *range(behind, len(sample), max(1, (len(sample) - behind) // 6)),
        *range(behind, min(behind + 2, len(sample))),
    }:
        for filler in ("a", ":"):
            yield (sample[:end] + filler * 2 * near)[: 2 * near]
    for many in (sample.partition(pattern.hint)[0].rpartition("\n")[2], "127{{{{{{{{{{", "Table type a for key "):
        yield (many * 2 * near)[: 2 * near - len(pattern.hint)] + pattern.hint


def seconds(expression: re.Pattern[str], text: str) -> float:
    begin = time.process_time()
    for _ in expression.finditer(text):
        pass
    return time.process_time() - begin


@cache
def yardstick(size: int) -> float:
    """The CPU seconds of a plain quadratic search through a text of this size, on this machine."""
    return min(seconds(re.compile("a+b"), "a" * size) for _ in range(3))


MOST_TIMES = 40
"""The slowest expression of the catalogue takes 8 times as long as the yardstick; a cubic one takes thousands of times."""

SHORT = 1024
"""The size of a text of the same build that is searched before the whole one."""
GROWTH = (2 * NEAR_HINT // SHORT) ** 4
"""The whole text is not searched if an expression of the fourth power, as quick as this one, would keep the limit."""


@pytest.mark.long
@pytest.mark.parametrize("entry", [entry for entry in CATALOGUE.values() if entry.patterns], ids=lambda entry: entry.id)
def test_no_expression_is_worse_than_quadratic(entry: Entry) -> None:
    judge(entry, SAMPLES[entry.id][0].text.strip())


def judge(entry: Entry, sample: str) -> None:
    for pattern in entry.patterns:
        texts = list(zip(hostile(pattern, sample, SHORT // 2), hostile(pattern, sample), strict=True))
        for each in (re.compile(pattern.regex, re.MULTILINE), loosened(pattern.regex)):
            tried: set[str] = set()
            for short, text in texts:
                for size in (*range(16, 52, 4), 64, 256):  # short ones first: the worst would not end
                    if short[:size] not in tried:
                        tried.add(short[:size])
                        within(each, short[:size], MOST_TIMES * yardstick(SHORT))
                took = within(each, short, MOST_TIMES * yardstick(SHORT))
                if len(sample) > SHORT // 2 or took * GROWTH > MOST_TIMES * yardstick(len(text)):
                    within(each, text, MOST_TIMES * yardstick(len(text)))


def within(expression: re.Pattern[str], text: str, most: float) -> float:
    """Search the text; the slower of two searches can be the machine's fault."""
    took = seconds(expression, text)
    if took >= most:
        took = min(took, seconds(expression, text))
    assert took < most, f"{expression.pattern}: {text[:100]}"
    return took


def test_a_long_record_is_searched_near_its_hints() -> None:
    (entry,) = (each for each in SMALL.values() if each.id == "small.lost")
    text = f"lost a\n{'x' * LONGEST}\nlost b\n{'x' * 100}"
    assert [match.groups for match in Matcher([entry]).match(text)] == [{"queue": "a"}, {"queue": "b"}]


@pytest.mark.long
@pytest.mark.parametrize("regex", [r"\w+\w+\w+;", r"here(?:\w+\s?)+;", r"here(?:a|aa)*;"])
def test_a_planted_cubic_or_exponential_expression_is_found(regex: str) -> None:
    (entry,) = read(entry_text("small.slow", regex, "here"), "small.toml")
    with pytest.raises(AssertionError, match="here"):
        judge(entry, "here")


def test_what_is_left_of_a_hint_is_left_of_the_line() -> None:
    assert left(b"frame_too_large") == b"rm_too_lrg"
