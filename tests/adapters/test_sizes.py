"""The limit of a size: what every adapter asks before it sends a body or headers."""

from __future__ import annotations

import pytest

from steadyworker.adapter import check_size


@pytest.mark.parametrize("size", [0, 9, 10])
def test_a_size_up_to_the_limit_is_accepted(size: int) -> None:
    check_size("a body", size, 10)


def test_one_byte_above_the_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"^Expected a body of at most 10 bytes, got 11: send a reference to the data"):
        check_size("a body", 11, 10)
