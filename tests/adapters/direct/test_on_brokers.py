"""What RocketMQ's driver for brokers must outlast, on 4.9.7 and 5.4.0: long jobs, restarts, kills, other members, and any message."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.adapter import Adapter, Lost, QueueSpec, Settings, Unreachable
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Settled, Target
from steadyworker.errors import MessageRefused
from steadyworker.testing.conformance.adapter_fixtures import Tape, message, messages
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from tests.adapters.direct.bench import DirectBench, On4, On5

Open = Callable[[], Adapter]

pytestmark = pytest.mark.slow

HOLDER = """
import sys, time
from steadyworker.adapter import Delivered, QueueSpec, Settings
from steadyworker_rocketmq.direct.adapter import DirectAdapter
adapter = DirectAdapter(sys.argv[1], QueueSpec(sys.argv[2], sys.argv[2] + ".dead"), Settings())
adapter.start(lambda signal: print("held", flush=True) if isinstance(signal, Delivered) else None)
adapter.prefetch(1)
time.sleep(300)
"""


class Times(DirectBench):
    """Jobs that are longer than the broker's own limits."""

    within = 90.0

    @pytest.mark.timeout(240)
    def test_a_long_job_s_message_survives_its_worker(self, adapter: Adapter) -> None:
        """
        The broker replies to a pull at the end of a queue after 15 s.

        The client library rocketmq-client-python then moves the queue's place behind the message that still runs, and a kill loses it.
        """
        adapter.publish(message())
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, self.way.url, self.queue], stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            self.let_pass(35)
            killed = time.monotonic()
            holder.kill()
        tape = self.started(adapter, 1)
        again = tape.delivery()
        assert again.headers[KEY] == "k-1"
        assert time.monotonic() - killed < 60 + 5

    @pytest.mark.slow
    @pytest.mark.timeout(240)
    def test_a_long_job_runs_once(self, open_adapter: Open) -> None:
        """Its lock is renewed for longer than it lasts by itself, while others join and leave."""
        one = open_adapter()
        one.publish(message())
        tape = self.started(one, 1)
        held = tape.delivery()
        others = []
        for _ in range(4):
            others.append(self.started(another := open_adapter(), 4))
            self.let_pass(18)
            another.stop(self.within)
        others.append(self.started(open_adapter(), 4))
        assert one.settle(held, Settle.ACK) is Settled.SENT
        self.let_pass(3)
        assert [len(other.deliveries) for other in others] == [0] * 5
        assert len(tape.deliveries) == 1


class Faults(DirectBench):
    """Parts of RocketMQ that end in mid-job, and workers that do."""

    within = 60.0

    def test_a_stopped_worker_s_message_is_another_s_at_once(self, open_adapter: Open) -> None:
        one, two = open_adapter(), open_adapter()
        one.publish(message())
        self.started(one, 1).delivery()
        tape = self.started(two, 1)
        began = time.monotonic()
        one.stop(self.within)
        assert time.monotonic() - began < 1.0
        assert tape.delivery().headers[KEY] == "k-1"
        assert time.monotonic() - began < 3.0

    def test_a_failing_message_does_not_disturb_the_others(self, adapter: Adapter) -> None:
        """One is released twice; the others run once."""
        for each in messages(20):
            adapter.publish(each)
        tape = self.started(adapter, 4)
        for number in range(1, 23):
            delivery = tape.delivery(number)
            seen = Counter(each.headers[KEY] for each in tape.deliveries[:number])
            bad = delivery.headers[KEY] == "k-7" and seen["k-7"] < 3
            adapter.settle(delivery, Settle.RELEASE if bad else Settle.ACK)
        tape.stays(deliveries=22)
        assert Counter(each.headers[KEY] for each in tape.deliveries)["k-7"] == 3
        assert self.node.waiting(self.queue, self.queue) == 0

    def test_a_copy_above_the_brokers_limit_is_refused_for_good(self, adapter: Adapter) -> None:
        """4 MiB by default; the next message is stored."""
        with pytest.raises(MessageRefused, match="maxMessageSize") as refused:
            adapter.publish(message(body=bytes(5_000_000)))
        assert refused.value.id == "rocketmq.message-illegal"
        adapter.publish(message("k-2"))
        assert self.started(adapter, 1).delivery().headers[KEY] == "k-2"

    @pytest.mark.long
    def test_a_broker_that_is_killed_in_mid_job(self, open_adapter: Open) -> None:
        """One delivery; it settles after the restart, although another worker waits for it."""
        one, two = open_adapter(), open_adapter()
        one.publish(message())
        tape = self.started(one, 1)
        held = tape.delivery()
        other = self.started(two, 1)
        self.node.broker.kill()
        for each in (tape, other):
            each.until(lambda each=each: any(isinstance(signal, Unreachable) for signal in each.signals), "Unreachable")  # type: ignore[misc]
        self.node.broker.start()
        for each in (tape, other):
            assert each.connected(2).epoch == held.epoch
        assert one.settle(held, Settle.ACK) is Settled.SENT
        one.publish(message("k-2"))
        tape.until(lambda: len(tape.deliveries) + len(other.deliveries) == 2, "k-2")
        self.let_pass(2)
        assert Counter(each.headers[KEY] for each in tape.deliveries + other.deliveries) == {"k-1": 1, "k-2": 1}
        assert not any(isinstance(signal, Lost) for signal in tape.signals)

    @pytest.mark.long
    def test_a_frozen_broker(self, adapter: Adapter) -> None:
        """The adapter notices it, and goes on after it."""
        adapter.publish(message())
        tape = self.started(adapter, 2)
        held = tape.delivery()
        self.node.broker.freeze()
        tape.until(lambda: any(isinstance(signal, Unreachable) for signal in tape.signals), "Unreachable")
        self.node.broker.thaw()
        tape.connected(2)
        assert adapter.settle(held, Settle.ACK) is Settled.SENT
        adapter.publish(message("k-2"))
        assert tape.delivery(2).headers[KEY] == "k-2"

    @pytest.mark.long
    def test_a_name_server_that_is_down_at_the_start_and_in_mid_job(self, adapter: Adapter) -> None:
        self.node.name_server.kill()
        tape = Tape(self)
        adapter.start(tape)
        adapter.prefetch(1)
        gone = tape.until(lambda: [signal for signal in tape.signals if isinstance(signal, Unreachable)], "Unreachable")
        assert not gone[0].final
        self.node.name_server.start()
        tape.connected()  # once the broker has registered at the name server, after up to 10 s
        adapter.publish(message())
        held = tape.delivery()
        self.node.name_server.kill()
        self.way.proxy.cut()
        assert adapter.settle(held, Settle.ACK) is Settled.SENT
        assert self.node.broker.running

    @pytest.mark.long
    def test_many_starts_and_stops_leave_nothing(self, adapter: Adapter, spec: QueueSpec) -> None:
        adapter.publish(message())
        process = psutil.Process()

        def cycle() -> None:
            made = DirectAdapter(self.way.url, spec, Settings())
            tape = self.started(made, 1)
            tape.delivery()
            made.stop(self.within)

        for _ in range(5):
            cycle()
        threads, files, memory = threading.active_count(), process.num_fds(), process.memory_info().rss
        for _ in range(50):
            cycle()
        assert threading.active_count() <= threads + 4
        assert process.num_fds() <= files + 8
        assert process.memory_info().rss <= memory + (10 << 20)


class Messages(DirectBench):
    """Any body, any header, and what other clients send."""

    @pytest.mark.parametrize(
        "body", [b"\0", b"a\0b" * 1000, b"\xff\0" * (1 << 21), b""], ids=["nul", "nuls", "4 MiB", "empty"]
    )
    def test_any_body(self, spec: QueueSpec, body: bytes) -> None:
        adapter = DirectAdapter(self.way.url, spec, Settings(max_body=4 << 20))
        try:
            adapter.publish(OutgoingMessage(Target.WORK, body, {KEY: "two words"}, first=True))
            tape = self.started(adapter, 1)
            delivery = tape.delivery()
            assert delivery.body == body
            adapter.settle(delivery, Settle.RELEASE)
            again = tape.delivery(2)
            assert (again.body, again.headers, again.message_id) == (body, delivery.headers, delivery.message_id)
        finally:
            adapter.stop(self.within)

    def test_the_longest_queue(self) -> None:
        """Its name is the group's, too; the broker makes longer names of it."""
        queue = f"{self.queue}-".ljust(120, "q")
        adapter = DirectAdapter(self.way.url, QueueSpec(queue, f"{queue}.dead"), Settings())
        try:
            adapter.publish(message())
            tape = self.started(adapter, 1)
            adapter.settle(tape.delivery(), Settle.RELEASE)
            assert adapter.settle(tape.delivery(2), Settle.ACK) is Settled.SENT
            assert self.node.waiting(queue, queue) == 0
        finally:
            adapter.stop(self.within)

    def test_a_foreign_message_has_its_tag_keys_and_properties(self, adapter: Adapter) -> None:
        adapter.publish(message("first"))
        self.node.send(self.queue, b"{}", {"TAGS": "paid", "KEYS": "order-17", "shop": "Café"})
        tape = self.started(adapter, 2)
        tape.delivery(2)
        foreign = next(delivery for delivery in tape.deliveries if delivery.headers.get(KEY) != "first")
        assert foreign.headers == {"TAGS": "paid", "KEYS": "order-17", "shop": "Café"}
        assert foreign.message_id

    def test_nothing_is_written_to_the_half_topic(self, adapter: Adapter) -> None:
        adapter.publish(replace(message(), headers={KEY: "k-1", "TRAN_MSG": "true", "PGROUP": "shop"}))
        tape = self.started(adapter, 1)
        adapter.settle(tape.delivery(), Settle.RELEASE)
        assert tape.delivery(2).headers["TRAN_MSG"] == "true"
        assert self.node.half(self.queue) == 0

    def test_delays_are_the_brokers_levels(self, adapter: Adapter) -> None:
        """1, 5 and 10 s are the first levels of a broker as it is shipped; 2 s becomes 5 s."""
        tape = self.started(adapter, 2)
        began = time.monotonic()
        adapter.publish(message("k-1", to=Target.LATER, delay=1))
        adapter.publish(message("k-2", to=Target.LATER, delay=2))
        assert tape.delivery().headers[KEY] == "k-1"
        assert 0.9 <= time.monotonic() - began < 4
        assert tape.delivery(2).headers[KEY] == "k-2"
        assert 4.5 <= time.monotonic() - began < 9


class TestTimes4(On4, Times): ...


@pytest.mark.slow
class TestTimes5(On5, Times): ...


class TestFaults4(On4, Faults): ...


class TestFaults5(On5, Faults): ...


class TestMessages4(On4, Messages): ...


class TestMessages5(On5, Messages): ...
