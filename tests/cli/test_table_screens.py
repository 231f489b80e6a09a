"""The screens of `dead list` and `actions`, exactly, at 80 and at 140 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from steadyworker.cli import actions, dead
from steadyworker.cli.output import Column, json_lines, padded, table
from steadyworker.ledger.facts import Action
from steadyworker.runner.letters import DeadLetter

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
AT = 1_700_000_000.0
LETTERS = [
    DeadLetter(
        "export-m-17", 0, "exports", b"", 2, reason="exhausted", error_class="ValueError",
        error="no such merchant: m-17 at amqp://app:hunter2@broker/", attempts=5, losses=1, first_failed_at=AT, copies=2,
    ),
    DeadLetter("report-of-the-whole-year-for-merchant-m-17", 2, "exports", b"", 2, reason="cancelled: wrong month", copies=0),
    DeadLetter("unkeyed-1f", 0, "exports", b"", 2, reason="expired", ours=False),
]  # fmt: skip
ACTIONS = [
    Action(
        "ann@desk", "cancel", "shop", "exports", ("export-m-17", "export-m-18", "export-m-19"), 40, "wrong month", AT
    ),
    Action(
        "bob.of.the.night.shift@desk-of-the-night", "pause", "shop", "refunds", (), 0, "the bank is closed", AT + 60
    ),
]
DEAD_80 = """\
KEY                       ATTEMPTS  FIRST FAILED          WHY
export-m-17                      5  2023-11-14T22:13:20Z  gave up after 5 failu…
report-of-the-whole-yea…         0  –                     letter gone, kept in …
unkeyed-1f                       0  –                     (put here by the brok…
"""
DEAD_140 = """\
KEY                                  ROUND  ATTEMPTS  CRASHES  LOSSES  FIRST FAILED          COPIES  WHY
export-m-17                              0         5        0       1  2023-11-14T22:13:20Z       2  gave up after 5 failures (ValueError: …
report-of-the-whole-year-for-merch…      2         0        0       0  –                          0  letter gone, kept in the ledger: cance…
unkeyed-1f                               0         0        0       0  –                          1  (put here by the broker) expired
"""
ACTIONS_80 = """\

 WHEN          WHO          WHAT     QUEUE     JOBS   KEYS          DETAIL
 ──────────────────────────────────────────────────────────────────────────────
 2023-11-14T   ann@desk     cancel   exports     40   export-m-17   wrong month
 22:13:20Z                                            export-m-18
                                                      export-m-19
                                                      +37
 2023-11-14T   bob.of.the   pause    refunds      –                 the bank is
 22:14:20Z     .night.shi                                           closed
               ft@desk-of
               -the-night

"""
ACTIONS_140 = """\

 WHEN                   WHO                                 WHAT     QUEUE     JOBS   KEYS                               DETAIL
 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
 2023-11-14T22:13:20Z   ann@desk                            cancel   exports     40   export-m-17 export-m-18            wrong month
                                                                                      export-m-19 +37
 2023-11-14T22:14:20Z   bob.of.the.night.shift@desk-of-th   pause    refunds      –                                      the bank is closed
                        e-night

"""


@pytest.fixture(params=[80, 140])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The columns of a terminal without colours."""
    columns: int = request.param
    for name, value in {"COLUMNS": str(columns), "FORCE_COLOR": "1", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return columns


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return "".join(f"{_STYLE.sub('', line).rstrip()}\n" for line in capsys.readouterr().out.splitlines())


def letters(width: int, *, verbose: bool = False) -> str:
    return "".join(f"{line.plain}\n" for line in dead.lines_of(LETTERS, width, verbose=verbose))


def test_verbose_has_the_whole_cause_of_a_dead_letter_below_it() -> None:
    assert "\n  gave up after 5 failures (ValueError: no such merchant: m-17 at amqp://app:***@broker/)\n" in letters(
        80, verbose=True
    )


def test_dead_letters_on_every_screen(width: int) -> None:
    assert letters(width) == {80: DEAD_80, 140: DEAD_140}[width]


def test_actions_on_every_screen(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    table(actions._COLUMNS, [actions.cells(action) for action in ACTIONS])
    assert shown(capsys) == {80: ACTIONS_80, 140: ACTIONS_140}[width]


def test_a_long_table_is_printed_while_its_rows_are_read_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []

    def rows() -> Iterator[list[str]]:
        for number in range(2000):
            if number == 1500:
                printed.append(capsys.readouterr().out)
            yield [f"{number:04}", "x" * 100 if number == 1600 else "–"]

    padded((Column("NUMBER"), Column("TEXT")), rows())
    first, rest = printed[0], capsys.readouterr().out
    assert first.startswith("NUMBER  TEXT\n0000    –\n")
    assert [line.split()[0] for line in (first + rest).splitlines()] == ["NUMBER", *(f"{n:04}" for n in range(2000))]
    assert f"1600    {'x' * 100}\n" in rest


def test_json_lines_are_printed_while_their_values_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []

    def values() -> Iterator[int]:
        for number in range(1001):
            if number == 1000:
                printed.append(capsys.readouterr().out)
            yield number

    json_lines(values())
    lines = (printed[0] + capsys.readouterr().out).splitlines()
    assert printed[0].startswith("0\n1\n")
    assert lines == [str(number) for number in range(1001)]
