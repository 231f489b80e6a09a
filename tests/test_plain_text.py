"""Text from outside: whatever comes in, what comes out can be stored, published, logged and shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.text.plain_text import LONGEST, as_unicode, plain_text, surrogate_in

ANY_TEXT = st.text(st.characters(exclude_categories=()))


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no such merchant", "no such merchant"),
        (None, ""),
        (404, "404"),
        (ValueError("no such merchant"), "ValueError: no such merchant"),
        (KeyError(), "KeyError"),
        (b"caf\xe9", r"caf\xe9"),
        ("caf\udce9", r"caf\udce9"),
        ("a\0b", r"a\x00b"),
        (Unprintable(), "(cannot be printed)"),
        ("cannot reach postgresql://shop:hunter2@db/orders", "cannot reach postgresql://shop:***@db/orders"),
        ("x" * 20_000_000, "x" * (LONGEST - 1) + "…"),
    ],
)
def test_every_value_has_a_text(value: object, text: str) -> None:
    assert plain_text(value) == text


def test_a_secret_is_replaced_before_the_text_is_cut() -> None:
    """A cut in its middle would hide the `@` by which a password is recognised."""
    assert "hunter2" not in plain_text("x" * (LONGEST - 25) + " amqp://joe:hunter2" + "y" * 5000 + "@host/")


@given(ANY_TEXT, st.integers(1, 60))
def test_whatever_comes_in_can_be_stored(text: str, limit: int) -> None:
    plain = plain_text(text, limit)
    plain.encode()
    assert "\0" not in plain
    assert len(plain) <= limit
    assert plain_text(plain, limit) == plain


@given(ANY_TEXT)
def test_valid_unicode_stays_as_it_is_and_other_text_becomes_it(text: str) -> None:
    assert surrogate_in(as_unicode(text)) is None
    assert (as_unicode(text) == text) == (surrogate_in(text) is None)
