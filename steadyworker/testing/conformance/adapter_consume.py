"""Promises about signals: connections, deliveries, prefetch, and the end of an epoch."""
# ruff: noqa: PLR2004 - the expected number belongs in the assertion

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from steadyworker.adapter import (
    Adapter,
    Connected,
    Delivered,
    Lost,
    QueueSpec,
    Redelivered,
    Signal,
    Uncounted,
    Unreachable,
)
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Settled, Target
from steadyworker.errors import PublishFailed, StaleDelivery
from steadyworker.testing.conformance.adapter_fixtures import AdapterBench, message, messages

Open = Callable[[], Adapter]


class ConsumePromises(AdapterBench):
    """Tests of the signals that the sink receives."""

    def test_the_first_signal_is_a_connection(self, adapter: Adapter) -> None:
        """Connected arrives before any delivery."""
        adapter.publish(message())
        adapter.prefetch(1)
        tape = self.started(adapter, 1)
        tape.delivery()
        assert isinstance(tape.signals[0], Connected)

    def test_no_delivery_comes_without_credits(self, adapter: Adapter) -> None:
        """
        The prefetch is 0 at first, so no delivery arrives.

        When the prefetch is set above 0, a waiting message arrives within `answers_within`.
        """
        adapter.publish(message())
        tape = self.started(adapter)
        tape.stays(deliveries=0)
        adapter.prefetch(1)
        tape.delivery(within=adapter.capabilities.answers_within)

    def test_credits_are_a_window(self, adapter: Adapter) -> None:
        """There are never more un-settled deliveries than the prefetch; each settlement allows one more delivery."""
        for each in messages(5):
            adapter.publish(each)
        tape = self.started(adapter, 2)
        first = tape.delivery(2)
        tape.stays(deliveries=2)
        adapter.settle(first, Settle.ACK)
        tape.delivery(3)
        tape.stays(deliveries=3)
        adapter.prefetch(3)
        tape.delivery(4)
        tape.stays(deliveries=4)

    def test_zero_credits_stop_deliveries_and_nothing_else(self, adapter: Adapter) -> None:
        """
        With prefetch 0 no new delivery arrives, and un-settled deliveries stay valid.

        A higher prefetch brings new deliveries.
        """
        tape = self.started(adapter, 1)
        adapter.publish(message("k-1"))
        held = tape.delivery()
        adapter.prefetch(0)
        adapter.publish(message("k-2"))
        adapter.settle(held, Settle.ACK)
        tape.stays(deliveries=1)
        adapter.prefetch(1)
        assert tape.delivery(2).headers[KEY] == "k-2"
        assert not any(isinstance(signal, Lost) for signal in tape.signals)

    def test_a_delivery_is_what_was_published(self, adapter: Adapter, spec: QueueSpec) -> None:
        """Body and headers arrive exactly as they were sent."""
        body, headers = bytes(range(256)), {KEY: "k-1", "shop": "Café №7", "empty": ""}
        adapter.publish(OutgoingMessage(Target.WORK, body, headers))
        delivery = self.started(adapter, 1).delivery()
        assert delivery.body == body
        assert delivery.size == len(body)
        assert {name: delivery.headers.get(name) for name in headers} == headers
        assert delivery.queue == spec.queue

    def test_an_empty_body_is_a_body(self, adapter: Adapter) -> None:
        """An empty body arrives as an empty body."""
        adapter.publish(message(body=b""))
        assert self.started(adapter, 1).delivery().body == b""

    def test_a_message_is_handed_to_one_consumer(self, open_adapter: Open) -> None:
        """Two clients share a queue, and each message is delivered once."""
        one, two = open_adapter(), open_adapter()
        tapes = self.started(one, 5), self.started(two, 5)
        for each in messages(10):
            one.publish(each)
        tapes[0].until(lambda: sum(len(tape.deliveries) for tape in tapes) >= 10, "10 deliveries")
        keys = Counter(delivery.headers[KEY] for tape in tapes for delivery in tape.deliveries)
        assert keys == Counter({f"k-{n}": 1 for n in range(1, 11)})

    def test_signals_come_one_at_a_time_from_one_thread(self, adapter: Adapter) -> None:
        """The sink need not be thread-safe, because one thread calls the sink, with one signal at a time."""
        threads: set[int] = set()
        inside = threading.Semaphore(1)

        def watch(_: Signal) -> None:
            assert inside.acquire(blocking=False), "two signals at a time"
            threads.add(threading.get_ident())
            inside.release()

        tape = self.started(adapter, 5, then=watch)
        for each in messages(5):
            adapter.publish(each)
        tape.delivery(5)
        assert len(threads) == 1

    def test_a_cut_ends_the_epoch_and_a_new_one_follows(self, adapter: Adapter) -> None:
        """`Lost` names the old epoch, and `Connected` names a new epoch with a greater number."""
        self._needs_loss(adapter)
        tape = self.started(adapter)
        old = tape.connected()
        self.cut(adapter)
        lost, new = tape.lost(), tape.connected(2)
        assert lost.epoch == old.epoch
        assert lost.id is None
        assert lost.cause
        assert new.epoch > old.epoch

    def test_what_was_lost_in_a_cut_comes_again(self, adapter: Adapter) -> None:
        """
        The un-acked message comes in the new epoch with the same stable id.

        The prefetch stays the same without another call of `prefetch`.
        """
        self._needs_loss(adapter)
        tape = self.started(adapter, 1)
        adapter.publish(message())
        old = tape.delivery()
        self.cut(adapter)
        new = tape.delivery(2)
        assert new.epoch == tape.connected(2).epoch > old.epoch
        assert new.headers[KEY] == old.headers[KEY]
        assert new.redelivered is not Redelivered.NO
        if adapter.capabilities.stable_ids:
            assert new.message_id == old.message_id
            assert new.message_id
        with pytest.raises(StaleDelivery):
            adapter.settle(old, Settle.ACK)

    def test_a_delivery_outlives_a_cut(self, adapter: Adapter) -> None:
        """
        If nothing is lost with the connection, `Connected` names the same epoch again.

        The deliveries of this epoch can still be settled.
        """
        if adapter.capabilities.loses_unacked:
            pytest.skip("this broker delivers again what a lost connection held")
        tape = self.started(adapter, 2)
        adapter.publish(message())
        held = tape.delivery()
        self.cut(adapter)
        tape.until(lambda: any(isinstance(signal, Unreachable) for signal in tape.signals), "Unreachable")
        assert tape.connected(2).epoch == held.epoch
        adapter.publish(message("k-2"))
        assert tape.delivery(2).headers[KEY] == "k-2"
        for delivery in tape.deliveries:
            assert adapter.settle(delivery, Settle.ACK) in Settled
        tape.stays(deliveries=2)
        assert not any(isinstance(signal, Lost) for signal in tape.signals)

    def test_capabilities_are_the_same_before_and_after_start(self, adapter: Adapter) -> None:
        """
        Capabilities describe the broker, not a connection.

        Only the broker's levels, consumer counts and rejections may become known after the start.
        """
        before = adapter.capabilities
        self.started(adapter)
        after = adapter.capabilities
        late = ("levels", "counts_holders", "most_consumers", "rejects")
        assert before == replace(after, **{name: getattr(before, name) for name in late})

    def test_consumers_are_counted(self, open_adapter: Open) -> None:
        """
        An adapter with a prefetch above 0 is counted.

        An adapter that only publishes, or that has stopped, is not counted.
        """
        one, two, three = open_adapter(), open_adapter(), open_adapter()
        self._needs_counts(one)
        tape = self.started(one, 1)
        self.started(two, 1)
        three.publish(message())
        assert tape.until(lambda: three.consumers() == 2, "2 consumers")
        two.stop(self.within)
        assert tape.until(lambda: three.consumers() == 1, "1 consumer")

    def test_an_adapter_is_one_consumer_whatever_its_prefetch(self, open_adapter: Open) -> None:
        """An adapter with a prefetch of 3 and two un-settled deliveries counts as one consumer, also if another adapter does the counting."""
        one, two = open_adapter(), open_adapter()
        self._needs_counts(one)
        tape = self.started(one, 3)
        for each in messages(2):
            one.publish(each)
        tape.delivery(2)
        tape.stays(deliveries=2)
        for adapter in (one, two):
            assert tape.until(lambda adapter=adapter: adapter.consumers() == 1, "1 consumer")  # type: ignore[misc]

    def test_an_adapter_is_at_most_as_many_consumers_as_its_capabilities_name(
        self, open_adapter: Open, spec: QueueSpec
    ) -> None:
        """
        While deliveries are held, the prefetch grows, shrinks, and goes to 0 and back.

        The count of consumers is never over `most_consumers`.
        """
        one, two = open_adapter(), open_adapter()
        self._needs_counts(one)
        for each in messages(6):
            one.publish(each)
        tape = self.started(one)
        most = one.capabilities.most_consumers
        assert 1 <= most <= spec.concurrency
        first = 0  # the number of deliveries that are settled
        for prefetch, settled, delivered in [
            *((1, 0, 1), (2, 0, 2), (0, 0, 2), (3, 0, 3), (1, 0, 3), (1, 1, 3), (2, 1, 3)),
            *((2, 2, 4), (0, 2, 4), (4, 2, 6), (2, 2, 6), (2, 6, 6)),
        ]:
            one.prefetch(prefetch)
            for delivery in tape.deliveries[first:settled]:
                one.settle(delivery, Settle.ACK)
            first = settled
            tape.delivery(delivered)
            tape.stays(deliveries=delivered)
            count = two.consumers()
            assert not isinstance(count, Uncounted)
            assert min(1, prefetch) <= count <= most, f"{count} consumers with prefetch {prefetch}, {settled} settled"
        one.prefetch(0)
        assert tape.until(lambda: two.consumers() == 0, "no consumer")
        assert not any(isinstance(signal, Lost) for signal in tape.signals)

    def test_with_prefetch_0_only_a_holder_can_be_a_consumer(self, open_adapter: Open) -> None:
        """With prefetch 0, only a broker that `counts_holders` counts an adapter, and only while the adapter holds a delivery."""
        one, two = open_adapter(), open_adapter()
        self._needs_counts(one)
        one.publish(message())
        tape = self.started(one, 1)
        held = tape.delivery()
        assert tape.until(lambda: two.consumers() == 1, "1 consumer")
        one.prefetch(0)
        tape.stays(deliveries=1)  # so that the broker has noticed the prefetch
        holders = 1 if one.capabilities.counts_holders else 0
        assert tape.until(lambda: two.consumers() == holders, f"{holders} consumers while the delivery is held")
        one.settle(held, Settle.ACK)
        assert tape.until(lambda: two.consumers() == 0, "no consumer")
        one.prefetch(1)
        assert tape.until(lambda: two.consumers() == 1, "1 consumer again")

    def test_what_is_un_settled_at_stop_is_the_next_ones(self, open_adapter: Open) -> None:
        """
        After `stop`, another adapter gets the un-acked message at once.

        The stopped adapter cannot settle this message, and sends no signals.
        """
        one, two = open_adapter(), open_adapter()
        tape = self.started(one, 1)
        one.publish(message())
        held = tape.delivery()
        one.stop(self.within)
        assert self.started(two, 1).delivery().headers[KEY] == "k-1"
        with pytest.raises(StaleDelivery):
            one.settle(held, Settle.ACK)
        assert [type(signal) for signal in tape.signals] == [Connected, Delivered]

    def test_stop_is_safe_in_any_order(self, open_adapter: Open) -> None:
        """
        `stop` works before `start`, twice, and from another thread.

        After `stop`, `publish` fails, and `start` does nothing.
        """
        never, started = open_adapter(), open_adapter()
        never.stop(self.within)
        never.stop(self.within)
        signals: list[Signal] = []
        never.start(signals.append)
        with pytest.raises(PublishFailed):
            never.publish(message())
        tape = self.started(started)
        stopper = threading.Thread(target=started.stop, args=(self.within,))
        stopper.start()
        stopper.join(self.within)
        assert not stopper.is_alive()
        started.stop(self.within)
        tape.stays(deliveries=0)
        assert signals == []

    def test_the_io_thread_records_its_last_turn(self, adapter: Adapter) -> None:
        """
        `last_turn` is None before `start`, and for an adapter without a thread.

        Otherwise `last_turn` increases while the thread is alive.
        """
        assert adapter.last_turn is None
        tape = self.started(adapter, 1)
        before = adapter.last_turn
        if before is None:
            pytest.skip("this adapter has no thread of its own")
        tape.until(lambda: (adapter.last_turn or 0) > before, "another turn")

    @staticmethod
    def _needs_counts(adapter: Adapter) -> None:
        if not adapter.capabilities.counts_consumers:
            found = adapter.consumers()
            assert isinstance(found, Uncounted), "a broker that does not count names its reason"
            assert found.why
            assert found.remedy
            pytest.skip("this broker does not count consumers")
