"""Promises about the numbers of waiting messages, and about browsing: both change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import islice

import pytest

from steadyworker.adapter import Adapter, Browsed, Browses, Delays, Depth, PublishesMany, Redelivered, Unbrowsed
from steadyworker.delivery import KEY, Settle, Target
from steadyworker.testing.conformance.adapter_fixtures import AdapterBench, Tape, message, messages

Open = Callable[[], Adapter]

_EMPTY = Depth(ready=0, delayed=0, unacked=0, dead=0, consumers=0)
_NAMES = tuple(each.name for each in fields(Depth) if each.name != "why")


class DepthPromises(AdapterBench):
    """Tests of `depth` and `browse`."""

    def test_an_unused_queue_has_no_messages_and_depth_creates_nothing(self, adapter: Adapter) -> None:
        """`depth` works before `start`, and a queue that does not exist has 0 messages and 0 consumers."""
        assert _differences(adapter.depth(), _EMPTY) == {}
        assert not adapter.exists()

    def test_each_unknown_number_has_a_reason_and_each_reason_an_unknown_number(self, adapter: Adapter) -> None:
        """Only `next_due` and `oldest_age` can be None without a reason, if there is no such message."""
        adapter.publish(message())
        found = adapter.depth()
        unknown = {name for name in _NAMES if getattr(found, name) is None}
        assert unknown - {"next_due", "oldest_age"} <= found.why.keys() <= unknown
        assert all(why and not why.endswith(".") for why in found.why.values())

    def test_every_message_is_counted_where_it_is(self, open_adapter: Open) -> None:
        """A ready, a delayed, a held and a dead message are four numbers, also for another client."""
        one, two = open_adapter(), open_adapter()
        delays = one.capabilities.delays is not Delays.NONE
        for each in messages(3):
            one.publish(each)
        one.publish(message("dead", to=Target.DEAD))
        tape = self.started(one, 1)
        held = tape.delivery()
        consumers = 1 if one.capabilities.counts_consumers else None
        expected = Depth(ready=2, delayed=0, unacked=1, dead=1, consumers=consumers)
        for adapter in (one, two):
            self.counts(adapter, expected, tape)
        if delays:
            one.publish(message("later", to=Target.LATER, delay=self.long_delay))
            self.counts(two, Depth(ready=2, delayed=1, unacked=1, dead=1, consumers=consumers), tape)
        one.prefetch(0)
        one.settle(held, Settle.ACK)
        self.counts(two, Depth(ready=2, delayed=int(delays), unacked=0, dead=1), tape)

    def test_the_next_due_time_is_within_the_longest_wait(self, adapter: Adapter) -> None:
        """`next_due` is a time of the wall clock, or None with a reason."""
        if adapter.capabilities.delays is Delays.NONE:
            pytest.skip("this broker does not delay")
        adapter.publish(message(to=Target.LATER, delay=self.long_delay))
        self.counts(adapter, Depth(ready=0, delayed=1, unacked=0, dead=0), Tape(self))
        found = adapter.depth()
        if found.next_due is None:
            assert "next_due" in found.why
        else:
            assert 0 < found.next_due - self.wall() <= self.long_delay

    def test_the_age_of_the_oldest_ready_message_grows(self, adapter: Adapter) -> None:
        """`oldest_age` is the age of the oldest ready message in seconds; without a ready message, there is no age."""
        assert adapter.depth().oldest_age is None
        adapter.publish(message())
        self.let_pass(self.delay)
        adapter.publish(message("k-2"))
        self.counts(adapter, Depth(ready=2, delayed=0, unacked=0, dead=0), Tape(self))
        age = adapter.depth().oldest_age
        if age is None:
            assert "oldest_age" in adapter.depth().why
        else:
            assert self.delay - 1 <= age <= self.delay + self.within

    def test_counting_and_browsing_change_nothing(self, adapter: Adapter) -> None:
        """After a count and a browse, each message arrives once, and is not marked as redelivered."""
        for each in messages(3):
            adapter.publish(each)
        for _ in range(3):
            adapter.depth()
            if isinstance(adapter, Browses):
                list(adapter.browse(10))
        tape = self.started(adapter, 5)
        tape.delivery(3)
        tape.stays(deliveries=3)
        assert sorted(delivery.headers[KEY] for delivery in tape.deliveries) == ["k-1", "k-2", "k-3"]
        assert Redelivered.YES not in [delivery.redelivered for delivery in tape.deliveries]

    def test_a_browse_shows_at_most_the_limit_in_order(self, open_adapter: Open) -> None:
        """A browse shows the headers and ids of the first messages, again at each call, and also before `start`."""
        one, two = open_adapter(), open_adapter()
        if not isinstance(one, Browses) or not isinstance(two, Browses):
            pytest.skip("this broker does not show messages without a delivery")
        for each in messages(3):
            one.publish(each)
        keys = ["k-1", "k-2", "k-3"]
        # A broker with several queues can show a confirmed message a moment later.
        Tape(self).until(lambda: _keys(one.browse(10)) == keys, "the three messages")
        for adapter, limit in ((two, 2), (two, 3), (one, 1)):
            assert _keys(adapter.browse(limit)) == keys[:limit]
        assert _keys(islice(one.browse(10), 1)) == ["k-1"], "a browse can end early"
        found = next(iter(one.browse(1)))
        assert isinstance(found, Browsed)
        assert found.due is None
        assert found.sent_at is None or abs(found.sent_at - self.wall()) < self.within

    def test_a_browse_of_an_unused_queue_is_empty(self, adapter: Adapter) -> None:
        """A browse creates nothing."""
        if not isinstance(adapter, Browses):
            pytest.skip("this broker does not show messages without a delivery")
        assert _keys(adapter.browse(10)) == []
        assert not adapter.exists()

    def test_a_browse_shows_every_message_or_the_reason_why_not(self, adapter: Adapter) -> None:
        """So a search that finds no message of a key knows whether it has read the whole queue."""
        if not isinstance(adapter, Browses):
            pytest.skip("this broker does not show messages without a delivery")
        sent = list(messages(450))  # More than a page of any broker.
        if isinstance(adapter, PublishesMany):
            assert not any(adapter.publish_many(sent))
        else:
            for each in sent:
                adapter.publish(each)
        if adapter.capabilities.delays is not Delays.NONE:
            adapter.publish(message("later", to=Target.LATER, delay=self.long_delay))
            sent.append(message("later"))
        found = list(adapter.browse(1000))
        missing = {each.headers[KEY] for each in sent} - set(_keys(found))
        reasons = [each.why for each in found if isinstance(each, Unbrowsed)]
        assert reasons or not missing
        assert all(why and not why.endswith(".") for why in reasons)
        assert [each for each in found if isinstance(each, Unbrowsed)] == found[len(found) - len(reasons) :]

    def counts(self, adapter: Adapter, expected: Depth, tape: Tape) -> None:
        """Wait until the adapter's depth has these numbers; a number that is unknown, or not expected, matches."""
        tape.until(lambda: not _differences(adapter.depth(), expected), f"{expected}, got {adapter.depth()}")


def _keys(found: Iterable[Browsed | Unbrowsed]) -> list[str]:
    return [each.headers[KEY] for each in found if isinstance(each, Browsed)]


def _differences(found: Depth, expected: Depth) -> dict[str, tuple[float | None, float]]:
    """Return the numbers that are known and differ; `oldest_age` and `next_due` are not compared."""
    pairs = {name: (getattr(found, name), getattr(expected, name)) for name in _NAMES}
    return {name: (got, wanted) for name, (got, wanted) in pairs.items() if None not in (got, wanted) and got != wanted}
