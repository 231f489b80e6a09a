"""The screens of `dead list` and `actions`, exactly, at 80 and at 140 columns."""

from __future__ import annotations

import re

import pytest

from steadyworker.cli import actions, dead
from steadyworker.cli.output import table
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
export-m-17                      5  2023-11-14T22:13:20Z  exhausted (ValueError…
report-of-the-whole-yea…         0  –                     letter gone, kept in …
unkeyed-1f                       0  –                     (put here by the brok…
"""
DEAD_140 = """\
KEY                                  ROUND  ATTEMPTS  CRASHES  LOSSES  FIRST FAILED          COPIES  WHY
export-m-17                              0         5        0       1  2023-11-14T22:13:20Z       2  exhausted (ValueError: no such merchan…
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
    assert "\n  exhausted (ValueError: no such merchant: m-17 at amqp://app:***@broker/)\n" in letters(80, verbose=True)


def test_dead_letters_on_every_screen(width: int) -> None:
    assert letters(width) == {80: DEAD_80, 140: DEAD_140}[width]


def test_actions_on_every_screen(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    table(actions._COLUMNS, [actions._cells(action) for action in ACTIONS])
    assert shown(capsys) == {80: ACTIONS_80, 140: ACTIONS_140}[width]
