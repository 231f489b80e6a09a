"""Promises about settling: an ack is final, a released message is redelivered, and a delivery of an old epoch cannot be settled."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

import pytest

from steadyworker.adapter import Adapter, Redelivered, SettlesAsync
from steadyworker.delivery import KEY, Delivery, Settle, Settled
from steadyworker.errors import StaleDelivery, Unsettled
from steadyworker.testing.conformance.adapter_fixtures import AdapterBench, message, messages

Open = Callable[[], Adapter]


class SettlePromises(AdapterBench):
    """Tests of acknowledging and releasing deliveries."""

    @pytest.mark.parametrize("how", list(Settle))
    def test_settling_returns_how_much_is_known(self, adapter: Adapter, how: Settle) -> None:
        """`settle` returns CONFIRMED or SENT."""
        tape = self.started(adapter, 1)
        adapter.publish(message())
        assert adapter.settle(tape.delivery(), how) in Settled

    def test_an_acknowledged_message_never_comes_again(self, open_adapter: Open) -> None:
        """An acknowledged message is redelivered neither after a cut nor to the next consumer."""
        one, two = open_adapter(), open_adapter()
        tape = self.started(one, 1)
        one.publish(message())
        one.settle(tape.delivery(), Settle.ACK)
        self.cut(one)
        tape.connected(2)
        tape.stays(deliveries=1)
        one.stop(self.within)
        self.started(two, 1).stays(deliveries=0)

    def test_a_released_message_comes_again_as_it_was(self, adapter: Adapter) -> None:
        """A released message has the same key, body and stable id; the broker does not mark this message as new."""
        tape = self.started(adapter, 1)
        adapter.publish(message(body=b"payload"))
        first = tape.delivery()
        assert first.redelivered is not Redelivered.YES
        adapter.settle(first, Settle.RELEASE)
        second = tape.delivery(2)
        assert (second.headers[KEY], second.body) == (first.headers[KEY], first.body)
        assert second.id != first.id
        assert second.redelivered is not Redelivered.NO
        if adapter.capabilities.stable_ids:
            assert second.message_id == first.message_id

    def test_a_released_message_may_go_to_another(self, open_adapter: Open) -> None:
        """A released message goes to a consumer that has room in its prefetch."""
        one, two = open_adapter(), open_adapter()
        tape = self.started(one, 1)
        one.publish(message())
        held = tape.delivery()
        other = self.started(two, 1)
        one.prefetch(0)
        one.settle(held, Settle.RELEASE)
        assert other.delivery().headers[KEY] == "k-1"

    def test_a_rejected_message_becomes_a_dead_letter_as_it_was(self, adapter: Adapter) -> None:
        """`Settle.REJECT` needs `Capabilities.rejects`: the broker itself moves the message, with its headers and its body."""
        tape = self.started(adapter, 1)
        adapter.publish(message(body=b"payload"))
        delivery = tape.delivery()
        if not adapter.capabilities.rejects:
            adapter.settle(delivery, Settle.ACK)
            return
        assert adapter.settle(delivery, Settle.REJECT) in Settled
        tape.until(lambda: bool(self._letters(adapter)), "the dead letter")
        assert self._letters(adapter) == [("k-1", b"payload")]
        tape.stays(deliveries=1)

    @staticmethod
    def _letters(adapter: Adapter) -> list[tuple[str, bytes]]:
        with adapter.dead_letters() as dead:
            return [(letter.headers[KEY], letter.body) for letter in dead]

    def test_settling_is_idempotent_within_its_epoch(self, adapter: Adapter) -> None:
        """A second settlement of a delivery changes nothing, even after its message was delivered again."""
        tape = self.started(adapter, 1)
        adapter.publish(message())
        first = tape.delivery()
        adapter.settle(first, Settle.RELEASE)
        second = tape.delivery(2)
        adapter.settle(first, Settle.ACK)
        adapter.settle(first, Settle.RELEASE)
        tape.stays(deliveries=2)
        adapter.settle(second, Settle.ACK)
        adapter.settle(second, Settle.RELEASE)
        tape.stays(deliveries=2)

    def test_settling_affects_one_delivery_and_no_other(self, adapter: Adapter) -> None:
        """An acknowledgement does not include earlier deliveries."""
        self._needs_loss(adapter)
        tape = self.started(adapter, 3)
        for each in messages(3):
            adapter.publish(each)
        tape.delivery(3)
        kept, acked = tape.deliveries[0], tape.deliveries[2]
        adapter.settle(acked, Settle.ACK)
        self.cut(adapter)
        tape.delivery(5)
        tape.stays(deliveries=5)
        again = {delivery.headers[KEY] for delivery in tape.deliveries[3:]}
        assert kept.headers[KEY] in again
        assert acked.headers[KEY] not in again

    def test_a_delivery_of_an_old_epoch_cannot_be_settled(self, adapter: Adapter) -> None:
        """A settlement in an old epoch is refused, and does not affect the redelivered message."""
        self._needs_loss(adapter)
        tape = self.started(adapter, 1)
        adapter.publish(message())
        old = tape.delivery()
        self.cut(adapter)
        new = tape.delivery(2)
        for how in Settle:
            with pytest.raises(StaleDelivery):
                adapter.settle(old, how)
        adapter.settle(new, Settle.RELEASE)
        assert tape.delivery(3).headers[KEY] == "k-1"

    def test_nothing_can_be_settled_before_start(self, open_adapter: Open) -> None:
        """Only the adapter that received a delivery can settle it."""
        one, two = open_adapter(), open_adapter()
        tape = self.started(one, 1)
        one.publish(message())
        with pytest.raises(StaleDelivery):
            two.settle(replace(tape.delivery(), epoch=1), Settle.ACK)

    def test_settling_is_thread_safe(self, open_adapter: Open) -> None:
        """Many slots settle at once, and no message is left."""
        one, two = open_adapter(), open_adapter()
        count = min(40, self.most)
        tape = self.started(one, count)
        for each in messages(count):
            one.publish(each)
        tape.delivery(count)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda delivery: one.settle(delivery, Settle.ACK), tape.deliveries))
        one.stop(self.within)
        self.started(two, count).stays(deliveries=0)

    def test_settling_async_reports_each_settlement_once(self, adapter: Adapter) -> None:
        """If an adapter has `settle_async`, each caller gets the result or error of `settle` once."""
        if not isinstance(adapter, SettlesAsync):
            pytest.skip("this adapter settles in the call")
        answers: SimpleQueue[tuple[str, Settled | StaleDelivery | Unsettled]] = SimpleQueue()

        def settle(delivery: Delivery, how: Settle, name: str) -> None:
            adapter.settle_async(delivery, how, lambda answer: answers.put((name, answer)))

        tape = self.started(adapter, 2)
        for each in messages(2):
            adapter.publish(each)
        tape.delivery(2)
        first, second = tape.deliveries
        settle(first, Settle.ACK, "acknowledged")
        settle(second, Settle.RELEASE, "released")
        results = dict(answers.get(timeout=self.within) for _ in range(2))
        assert results.keys() == {"acknowledged", "released"}
        assert all(isinstance(answer, Settled) for answer in results.values())
        again = tape.delivery(3)
        assert again.headers[KEY] == second.headers[KEY]
        if adapter.capabilities.loses_unacked:
            self.cut(adapter)
            again = tape.delivery(4)
            settle(second, Settle.ACK, "of an old epoch")
            name, answer = answers.get(timeout=self.within)
            assert (name, type(answer)) == ("of an old epoch", StaleDelivery)
        adapter.stop(self.within)
        settle(again, Settle.ACK, "after the stop")
        name, answer = answers.get(timeout=self.within)
        assert (name, type(answer)) == ("after the stop", StaleDelivery)
        assert answers.empty()
