"""Headers that must fit into what a broker accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Value = TypeVar("Value")

_OURS, _WORDY = "sw-", ("sw-reason", "sw-error")


def fitted(
    headers: Mapping[str, Value],
    fit: Callable[[Mapping[str, Value | str]], bool],
    text_of: Callable[[Value | str], str] = str,
) -> dict[str, Value | str]:
    """
    Return the headers with their longest texts cut until `fit` accepts them.

    So the broker never refuses a copy because its headers grew.
    When all texts are empty, headers are removed too, the header with the longest name first.
    Our own headers stay, except reason and error, because they identify the job.
    """
    found: dict[str, Value | str] = dict(headers)
    theirs = {name for name in found if not name.startswith(_OURS) or name in _WORDY}
    while theirs and not fit(found):
        longest = max(theirs, key=lambda name: len(text_of(found[name])))
        if text := text_of(found[longest]):
            found[longest] = text[: len(text) // 2]
        else:
            theirs.remove(longest := max(theirs, key=len))
            del found[longest]
    return found
