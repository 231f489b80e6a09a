"""Delivery tags, beside a set of numbers that does the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steadyworker.diagnosis.tags import MOST_WAITING, AckResult, Tags

steps = st.lists(st.one_of(st.none(), st.just("auto"), st.tuples(st.integers(0, 30), st.booleans())), max_size=80)


@given(steps=steps)
def test_tags_do_what_a_set_of_numbers_does(steps: list[tuple[int, bool] | str | None]) -> None:
    tags, waiting, highest = Tags(), set[int](), 0
    for step in steps:
        if step is None or isinstance(step, str):
            highest += 1
            tags.delivered(highest, needs_ack=step is None)
            waiting |= {highest} if step is None else set()
        else:
            tag, multiple = step
            named = {each for each in waiting if each <= (tag or highest)} if multiple else waiting & {tag}
            named = set() if tag > highest else named
            known = tag <= highest if multiple else 0 < tag <= highest
            expected = AckResult.NOW if named else AckResult.BEFORE if known else AckResult.UNKNOWN
            if multiple and not tag:
                expected = AckResult.NOW
            assert tags.settle(tag, multiple=multiple) is expected
            waiting -= named
        assert tags.waiting == len(waiting)


def test_of_a_pile_a_limited_number_of_tags_is_kept_and_no_later_one_is_judged() -> None:
    tags = Tags()
    for tag in range(1, MOST_WAITING + 11):
        tags.delivered(tag, needs_ack=True, t=float(tag))
    assert (tags.waiting, tags.oldest) == (MOST_WAITING, (1, 1.0))
    assert tags.settle(MOST_WAITING + 5) is AckResult.NOW
    assert tags.settle(MOST_WAITING + 11) is AckResult.UNKNOWN
    assert tags.settle(0, multiple=True) is AckResult.NOW
    assert tags.waiting == 0
