"""Promises about publishing (work, delayed work, dead letters), and about the broker itself."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from steadyworker.adapter import Adapter, ChecksMessages, Delays, PublishesMany, Purges, QueueSpec
from steadyworker.clock import SystemClock
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Target
from steadyworker.errors import LettersHeld
from steadyworker.testing.conformance.adapter_fixtures import AdapterBench, message, messages

Open = Callable[[], Adapter]


class PublishPromises(AdapterBench):
    """Tests of published messages, dead letters, and the identity of the broker."""

    def test_publish_works_before_start_and_for_other_clients(self, open_adapter: Open) -> None:
        """A sender does not start its adapter."""
        sender, worker = open_adapter(), open_adapter()
        sender.publish(message())
        assert self.started(worker, 1).delivery().headers[KEY] == "k-1"

    def test_publish_is_thread_safe(self, adapter: Adapter) -> None:
        """Eight threads publish at once, and each message arrives once."""
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(adapter.publish, messages(80)))
        tape = self.started(adapter, self.most)
        deliveries = self.received(adapter, tape, 80)
        tape.stays(deliveries=80)
        assert Counter(delivery.headers[KEY] for delivery in deliveries) == Counter({f"k-{n}": 1 for n in range(1, 81)})

    def test_many_messages_come_once_each_in_their_order(self, adapter: Adapter) -> None:
        """Each message of the batch has a result of its own, and a message that arrived has no error."""
        if not isinstance(adapter, PublishesMany):
            pytest.skip("this adapter publishes one message at a time")
        assert list(adapter.publish_many(list(messages(80)))) == [None] * 80
        tape = self.started(adapter, self.most)
        deliveries = self.received(adapter, tape, 80)
        tape.stays(deliveries=80)
        assert [delivery.headers[KEY] for delivery in deliveries] == [f"k-{n}" for n in range(1, 81)]

    def test_a_message_over_the_limits_keeps_back_its_whole_batch(self, adapter: Adapter) -> None:
        """No message of the batch is published, so the sender can correct the batch and publish it again."""
        if not isinstance(adapter, PublishesMany):
            pytest.skip("this adapter publishes one message at a time")
        most = adapter.capabilities.max_body or 1 << 20
        large = replace(message("large"), body=bytes(most + 1), first=True)
        with pytest.raises(ValueError, match="Expected a body of at most"):
            adapter.publish_many([message("small"), large])
        self.started(adapter, 5).stays(deliveries=0)

    def test_a_check_finds_what_a_publish_refuses_and_sends_nothing(self, adapter: Adapter) -> None:
        """So a sender of many messages knows of the wrong one before the first one is sent."""
        if not isinstance(adapter, ChecksMessages):
            pytest.skip("this adapter knows no limits without the broker")
        new = replace(message("new"), first=True)
        large = replace(new, body=bytes((adapter.capabilities.max_body or 1 << 20) + 1))
        checks: list[str] = []
        for each in (new, large, *(replace(new, headers={**new.headers, "h": "x" * size}) for size in (90, 100_000))):
            try:
                adapter.check_message(each)
            except ValueError as error:
                checks.append(str(error))
                with pytest.raises(ValueError, match=re.escape(str(error))):
                    adapter.publish(each)
            else:
                adapter.publish(each)
        assert checks
        tape = self.started(adapter, 5)
        tape.delivery(4 - len(checks))
        tape.stays(deliveries=4 - len(checks))

    def test_a_message_that_is_sent_twice_comes_twice(self, adapter: Adapter) -> None:
        """The broker does not compare keys; only the ledger does."""
        tape = self.started(adapter, 5)
        adapter.publish(message())
        adapter.publish(message())
        tape.delivery(2)
        tape.stays(deliveries=2)

    def test_a_copy_for_later_comes_later(self, adapter: Adapter) -> None:
        """
        A delayed message is delivered once, after its delay.

        Work that is already due is delivered before the delayed message.
        """
        if adapter.capabilities.delays is Delays.NONE:
            pytest.skip("this broker does not delay")
        tape = self.started(adapter, 5)
        adapter.publish(message("later", to=Target.LATER, delay=self.delay))
        adapter.publish(message("now"))
        assert tape.delivery().headers[KEY] == "now"
        tape.stays(deliveries=1)
        self.let_pass(self.delay)
        assert tape.delivery(2).headers[KEY] == "later"
        tape.stays(deliveries=2)

    def test_a_delay_survives_its_sender(self, open_adapter: Open) -> None:
        """The broker keeps the copy, even if the process that published the copy has ended."""
        sender, worker = open_adapter(), open_adapter()
        if sender.capabilities.delays is Delays.NONE:
            pytest.skip("this broker does not delay")
        sender.publish(message(to=Target.LATER, delay=self.delay))
        sender.stop(self.within)
        tape = self.started(worker, 1)
        self.let_pass(self.delay)
        assert tape.delivery().headers[KEY] == "k-1"

    def test_a_purge_deletes_only_what_waits(self, open_adapter: Open) -> None:
        """A message that a consumer holds, a delayed message and a dead letter stay; the number of deleted messages is returned."""
        worker, sender = open_adapter(), open_adapter()
        if not isinstance(sender, Purges):
            pytest.skip("this adapter cannot purge a queue")
        tape = self.started(worker, 1)
        sender.publish(message("held"))
        held = tape.delivery()
        worker.prefetch(0)
        waiting = [message("k-1"), message("k-2")]
        for each in (*waiting, message("dead", to=Target.DEAD)):
            sender.publish(each)
        sender.publish(message("later", to=Target.LATER, delay=self.delay))
        assert sender.purge() == len(waiting)
        assert sender.purge() == 0
        with sender.dead_letters() as letters:
            assert [letter.headers[KEY] for letter in letters] == ["dead"]
        worker.settle(held, Settle.ACK)
        worker.prefetch(5)
        self.let_pass(self.delay)
        assert tape.delivery(2).headers[KEY] == "later"
        tape.stays(deliveries=2)

    def test_a_dead_letter_is_no_work(self, adapter: Adapter) -> None:
        """A dead letter goes to the dead-letter queue unchanged, and is never delivered as a job."""
        adapter.publish(message(body=b"broken", to=Target.DEAD))
        self.started(adapter, 5).stays(deliveries=0)
        if adapter.capabilities.reads_dead_letters:
            with adapter.dead_letters() as dead:
                assert [(letter.headers[KEY], letter.body) for letter in dead] == [("k-1", b"broken")]

    def test_dead_letters_are_held_while_they_are_read(self, open_adapter: Open) -> None:
        """
        A reader gets each dead letter once, oldest first.

        Until this reader's context ends, every other reader gets LettersHeld.
        """
        one, two = open_adapter(), open_adapter()
        self._needs_dead_letters(one)
        if not one.capabilities.holds_dead_letters:
            pytest.skip("this broker's dead letters are read, not held")
        for n in range(1, 4):
            one.publish(message(f"k-{n}", to=Target.DEAD))
        with one.dead_letters() as mine:
            letters = iter(mine)
            assert [next(letters).headers[KEY] for _ in range(2)] == ["k-1", "k-2"]
            with pytest.raises(LettersHeld):
                _dead_keys(two)
            assert [letter.headers[KEY] for letter in letters] == ["k-3"]
        assert self._all_dead_keys(two) == ["k-1", "k-2", "k-3"]

    def test_of_two_readers_at_once_none_mistakes_a_part_for_all(self, open_adapter: Open) -> None:
        """
        Each of two readers gets all dead letters or LettersHeld.

        A reader that tries again gets all dead letters.
        """
        readers = [open_adapter(), open_adapter()]
        self._needs_dead_letters(readers[0])
        for n in range(40):
            readers[0].publish(message(f"k-{n}", to=Target.DEAD))
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(self._all_dead_keys, readers * 2))
        assert [sorted(keys) for keys in found] == [sorted(f"k-{n}" for n in range(40))] * 4

    def test_a_dropped_dead_letter_is_gone(self, adapter: Adapter) -> None:
        """`drop` removes one dead letter, and leaves all other dead letters."""
        self._needs_dead_letters(adapter)
        for n in range(1, 4):
            adapter.publish(message(f"k-{n}", to=Target.DEAD))
        with adapter.dead_letters() as dead:
            for letter in dead:
                if letter.headers[KEY] == "k-2":
                    dead.drop(letter)
        with adapter.dead_letters() as dead:
            assert [letter.headers[KEY] for letter in dead] == ["k-1", "k-3"]

    def test_a_dead_letter_is_replayed_by_publishing_and_dropping(self, adapter: Adapter) -> None:
        """
        A replayed letter is delivered as work.

        A reader does not read letters that are published while it reads.
        """
        self._needs_dead_letters(adapter)
        adapter.publish(message("k-1", to=Target.DEAD))
        with adapter.dead_letters() as dead:
            for letter in dead:
                dead.publish(OutgoingMessage(Target.WORK, letter.body, letter.headers))
                dead.publish(OutgoingMessage(Target.DEAD, letter.body, {KEY: "k-2"}))
                dead.drop(letter)
        tape = self.started(adapter, 5)
        assert tape.delivery().headers[KEY] == "k-1"
        tape.stays(deliveries=1)

    def test_the_largest_body_is_accepted_whole_and_a_larger_one_is_refused(self, adapter: Adapter) -> None:
        """`max_body` limits the body of a new message (`first`)."""
        largest = adapter.capabilities.max_body
        if largest is None:
            pytest.skip("this broker accepts any body")
        adapter.publish(replace(message("k-1", b"x" * largest), first=True))
        with pytest.raises(ValueError, match=str(largest)):
            adapter.publish(replace(message("k-2", b"x" * (largest + 1)), first=True))
        tape = self.started(adapter, 5)
        delivery = tape.delivery()
        assert (delivery.headers[KEY], len(delivery.body)) == ("k-1", largest)
        adapter.settle(delivery, Settle.ACK)
        tape.stays(deliveries=1)

    def test_a_copy_of_an_accepted_message_is_over_no_limit(self, adapter: Adapter) -> None:
        """A larger body from another client is delivered whole, so that the dead letter of this message is whole."""
        largest = adapter.capabilities.max_body
        if largest is None:
            pytest.skip("this broker accepts any body")
        adapter.publish(message("k-1", b"x" * (largest + 1)))
        tape = self.started(adapter, 5)
        delivery = tape.delivery()
        assert (len(delivery.body), delivery.size) == (largest + 1, largest + 1)
        adapter.settle(delivery, Settle.ACK)

    def test_a_copy_has_every_header_whole(self, adapter: Adapter) -> None:
        """
        No header of a copy is cut or left out, even if the copy has more headers than the broker accepts.

        Any header can be the key, so each header matters.
        """
        headers = {KEY: "k-1", "order": "é" * 70_000, "a line": "x\ny" * 9_000, **{f"n{n}": str(n) for n in range(950)}}
        adapter.publish(OutgoingMessage(Target.WORK, b"{}", headers))
        tape = self.started(adapter, 5)
        delivery = tape.delivery()
        to = Target.WORK if adapter.capabilities.delays is Delays.NONE else Target.LATER
        adapter.publish(OutgoingMessage(to, delivery.body, delivery.headers, self.delay))
        adapter.settle(delivery, Settle.ACK)
        self.let_pass(self.delay)
        copy = tape.delivery(2)
        adapter.publish(OutgoingMessage(Target.DEAD, copy.body, copy.headers))
        adapter.settle(copy, Settle.ACK)
        arrived = [delivery, copy]
        if adapter.capabilities.reads_dead_letters:
            with adapter.dead_letters() as letters:
                arrived += letters
        for each in arrived:
            assert ({name: each.headers.get(name) for name in headers}, each.body) == (headers, b"{}")

    def test_the_broker_is_the_same_for_every_client_and_for_ever(self, open_adapter: Open) -> None:
        """`identity` stays the same, because a namespace is bound to it."""
        one, two = open_adapter(), open_adapter()
        before = one.identity()
        assert before
        self.started(one)
        assert one.identity() == two.identity() == before
        one.stop(self.within)
        assert open_adapter().identity() == before

    def test_a_queue_exists_once_it_was_used(self, open_adapter: Open) -> None:
        """`exists` returns False before the first message, and True afterwards; `exists` creates nothing."""
        one, two = open_adapter(), open_adapter()
        assert not one.exists()
        assert not two.exists()
        one.publish(message())
        assert one.exists()
        assert two.exists()

    def test_a_healthy_queue_has_no_errors_and_the_check_changes_nothing(
        self, adapter: Adapter, spec: QueueSpec
    ) -> None:
        """`findings` changes nothing, and a healthy queue has no errors."""
        adapter.publish(message())
        assert [finding for finding in adapter.findings(spec) if finding.level == "error"] == []
        tape = self.started(adapter, 5)
        tape.delivery()
        tape.stays(deliveries=1)

    def _all_dead_keys(self, adapter: Adapter) -> list[str]:
        """Return the keys of all dead letters; try again while another reader holds the letters."""
        clock = SystemClock()
        deadline = clock.monotonic() + self.within
        while True:
            try:
                return _dead_keys(adapter)
            except LettersHeld:
                if clock.monotonic() > deadline:
                    raise
            threading.Event().wait(random.uniform(0.02, 0.2))  # noqa: S311 - so that two waiting readers do not collide again

    @staticmethod
    def _needs_dead_letters(adapter: Adapter) -> None:
        if not adapter.capabilities.reads_dead_letters:
            pytest.skip("this broker's dead letters cannot be read")


def _dead_keys(adapter: Adapter) -> list[str]:
    with adapter.dead_letters() as letters:
        return [letter.headers[KEY] for letter in letters]
