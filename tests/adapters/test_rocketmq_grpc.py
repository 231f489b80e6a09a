"""What RocketMQ's driver for proxies must outlast, on 5.4.0: long jobs, restarts, blackholes, kills, and any message."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.adapter import Adapter, Delivery, Lost, QueueSpec, Settings, Uncounted, Undelivered, Unreachable
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Settled, Target
from steadyworker.errors import BrokerUnavailable, ConfigError, MessageRefused
from steadyworker.testing.conformance.adapter_fixtures import Tape, message
from steadyworker_rocketmq.grpc import GrpcAdapter
from tests.adapters.rocketmq_bench import GrpcBench
from tests.brokers.process import free_ports
from tests.support.stage import eventually

Open = Callable[[], Adapter]

HOLDER = """
import sys, time
from steadyworker.adapter import Delivered, QueueSpec, Settings
from steadyworker_rocketmq.grpc import GrpcAdapter
adapter = GrpcAdapter(sys.argv[1], QueueSpec(sys.argv[2], sys.argv[2] + ".dead"), Settings())
adapter.start(lambda signal: print("held", flush=True) if isinstance(signal, Delivered) else None)
adapter.prefetch(1)
time.sleep(300)
"""

SENDER = """
import logging, sys, threading
from steadyworker.adapter import OutgoingMessage, QueueSpec, Settings, Target
from steadyworker.errors import PublishFailed
from steadyworker_rocketmq.grpc import GrpcAdapter

class Failed(logging.Handler):
    def emit(self, record):
        if "send heartbeat" in record.getMessage() and "exception" in record.getMessage():
            failed.set()

failed = threading.Event()
log = logging.getLogger("rocketmq-python-client")
log.setLevel("ERROR")
log.addHandler(Failed())
log.propagate = False
adapter = GrpcAdapter(sys.argv[1], QueueSpec(sys.argv[2], sys.argv[2] + ".dead"), Settings())
adapter.publish(OutgoingMessage(Target.WORK, b"{}", {}, first=True))
print("sent", flush=True)
sys.stdin.readline()
print(failed.wait(30), flush=True)
try:
    adapter.publish(OutgoingMessage(Target.WORK, b"{}", {}, first=True))
except PublishFailed:
    print("failed", flush=True)
if sys.argv[3:]:
    adapter.stop(5.0)
"""
"""Sends, waits until its client library has noticed an outage, and sends once more."""


class TestTime(GrpcBench):
    """Jobs that are longer than the broker's own limits."""

    options = "&invisible=10"

    @pytest.mark.long
    def test_a_job_that_outlasts_the_invisibility_is_delivered_once(self, open_adapter: Open) -> None:
        one, two = open_adapter(), open_adapter()
        one.publish(message())
        tape = self.started(one, 1)
        held = tape.delivery()
        other = self.started(two, 1)
        self.let_pass(25)  # two and a half invisibilities
        other.stays(deliveries=0)
        assert one.settle(held, Settle.ACK) is Settled.SENT
        self.let_pass(12)
        assert not other.deliveries
        assert len(tape.deliveries) == 1

    @pytest.mark.long
    def test_a_message_of_a_killed_worker_comes_again_when_its_invisibility_ends(self, adapter: Adapter) -> None:
        adapter.publish(message())
        url = self.node.url + self.options
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, url, self.queue], stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            killed = time.monotonic()
            holder.kill()
        tape = self.started(adapter, 1)
        again = tape.delivery()
        assert time.monotonic() - killed < 10 + 5
        assert again.headers[KEY] == "k-1"

    @pytest.mark.long
    def test_a_blackhole_that_is_shorter_than_the_invisibility_loses_nothing(self, adapter: Adapter) -> None:
        adapter.publish(message())
        tape = self.started(adapter, 2)
        held = tape.delivery()
        self.proxy.stall()
        self.let_pass(5)
        self.proxy.cut()
        self.proxy.resume()
        assert adapter.settle(held, Settle.ACK) is Settled.SENT
        tape.connected(2)
        tape.stays(deliveries=1)
        assert not any(isinstance(signal, Lost) for signal in tape.signals)

    @pytest.mark.long
    def test_a_delivery_is_lost_when_no_renewal_succeeds_in_time(self, open_adapter: Open) -> None:
        one, two = open_adapter(), open_adapter()
        one.publish(message())
        tape = self.started(one, 1)
        held = tape.delivery()
        self.proxy.refuse()
        self.proxy.cut()
        tape.until(lambda: [signal for signal in tape.signals if isinstance(signal, Lost)], "Lost")
        self.proxy.accept()
        again = self.started(two, 1).delivery()
        assert (again.message_id, again.headers[KEY]) == (held.message_id, "k-1")
        one.prefetch(0)


@pytest.mark.slow
class TestRestarts(GrpcBench):
    """Parts of RocketMQ that are killed in mid-job."""

    options = "&invisible=300"
    within = 60.0

    def tape(self, adapter: Adapter) -> Tape:
        adapter.publish(message())
        tape = self.started(adapter, 4)
        tape.delivery()
        return tape

    @pytest.mark.long
    def test_a_killed_proxy(self, adapter: Adapter) -> None:
        tape = self.tape(adapter)
        self.node.proxy.kill()
        tape.until(lambda: any(isinstance(signal, Unreachable) for signal in tape.signals), "Unreachable")
        self.node.proxy.start()
        tape.connected(2)
        adapter.publish(message("k-2"))
        tape.delivery(2)
        for delivery in tape.deliveries:
            assert adapter.settle(delivery, Settle.ACK) is Settled.SENT
        tape.stays(deliveries=2)

    @pytest.mark.long
    def test_a_killed_proxy_while_nothing_polls(self, adapter: Adapter) -> None:
        """The first call on the new session is a settlement, which a proxy refuses in the session's first second."""
        adapter.publish(message())
        tape = self.started(adapter, 1)
        held = tape.delivery()
        self.node.proxy.kill()
        tape.until(lambda: any(isinstance(signal, Unreachable) for signal in tape.signals), "Unreachable")
        self.node.proxy.start()
        tape.connected(2)
        signals = len(tape.signals)
        assert adapter.settle(held, Settle.ACK) is Settled.SENT
        assert not any(isinstance(signal, Unreachable | Lost) for signal in tape.signals[signals:])
        tape.stays(deliveries=1)

    @pytest.mark.long
    def test_a_killed_broker(self, adapter: Adapter) -> None:
        """The broker may forget what it delivered, and then delivers it again; it is the same message by its id."""
        tape = self.tape(adapter)
        self.node.broker.kill()
        self.node.broker.start()
        adapter.publish(message("k-2"))
        tape.until(lambda: any(delivery.headers[KEY] == "k-2" for delivery in tape.deliveries), "k-2")
        ids = {delivery.message_id for delivery in tape.deliveries if delivery.headers[KEY] == "k-1"}
        assert len(ids) == 1

    @pytest.mark.long
    def test_a_name_server_that_is_down_at_the_start(self, adapter: Adapter) -> None:
        self.node.name_server.kill()
        tape = Tape(self)
        adapter.start(tape)
        adapter.prefetch(1)
        gone = tape.until(lambda: [signal for signal in tape.signals if isinstance(signal, Unreachable)], "Unreachable")
        assert not gone[0].final
        self.node.name_server.start()
        tape.until(self._known, "the broker at the name server")
        adapter.publish(message())
        assert tape.delivery().headers[KEY] == "k-1"

    def _known(self) -> bool:
        return bool(self.node.witness.brokers())


class TestMessages(GrpcBench):
    """Any body, any header, and what other clients send."""

    @pytest.mark.parametrize(
        "body", [b"\0", b"a\0b" * 1000, bytes(4 << 20), b""], ids=["nul", "nuls", "4 MiB", "empty"]
    )
    def test_any_body(self, open_adapter: Open, spec: QueueSpec, body: bytes) -> None:
        # A poll that is too slow for 4 MiB, on a busy machine, hides the message until its invisibility ends.
        self.within = 60.0
        adapter = GrpcAdapter(f"{self.proxy.url}&invisible=10", spec, Settings(max_body=4 << 20))
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

    def test_a_copy_above_the_limit_is_refused_for_good(self, adapter: Adapter) -> None:
        """4 MiB by default; the next message is stored."""
        with pytest.raises(MessageRefused, match="maxMessageSize") as refused:
            adapter.publish(message(body=bytes(5_000_000)))
        assert refused.value.id == "rocketmq.body-too-large"
        adapter.publish(message("k-2"))
        assert self.started(adapter, 1).delivery().headers[KEY] == "k-2"

    def test_a_copy_above_the_limit_of_the_broker_alone_is_refused_for_good(self, adapter: Adapter) -> None:
        """A proxy passes on what the broker replies, with the code of any error."""
        adapter.publish(message())
        with (
            self.node.set("maxMessageSize", "100000"),
            pytest.raises(MessageRefused, match="maxMessageSize") as refused,
        ):
            adapter.publish(message(body=bytes(200_000)))
        assert refused.value.id == "rocketmq.message-illegal"

    def test_a_delayed_message_whose_copy_no_proxy_accepts_becomes_a_dead_letter(self, adapter: Adapter) -> None:
        """A client of the brokers has sent 4 MiB and 17 KB of keys, which a proxy does not accept; the broker moves it whole."""
        adapter.publish(message("first"))
        body, keys = bytes(4 << 20), "k" * 17_000
        self.node.send(f"{self.queue}-later", body, {"KEYS": keys})
        adapter.publish(message("k-2", to=Target.LATER, delay=1))
        tape = self.started(adapter, 2)
        (undelivered,) = tape.until(
            lambda: [each for each in tape.signals if isinstance(each, Undelivered)], "Undelivered"
        )
        assert undelivered.error.id == "rocketmq.body-too-large"
        tape.delivery(2)
        assert [each.headers[KEY] for each in tape.deliveries] == ["first", "k-2"]
        with adapter.dead_letters() as letters:
            (letter,) = letters
        assert (letter.body, letter.headers) == (body, {"KEYS": keys})
        assert not any(isinstance(signal, Unreachable | Lost) for signal in tape.signals)

    def test_a_delayed_message_above_a_lowered_limit_of_the_broker_is_kept(self, adapter: Adapter) -> None:
        """The broker does not move it either; the next one is moved, and both are there when the limit is raised."""
        adapter.publish(message("first"))
        adapter.publish(message(to=Target.LATER, delay=1, body=bytes(200_000)))
        later = f"{self.queue}-later"
        eventually(lambda: self.node.count(later) == 1, "it is due", self.within)
        adapter.publish(message("k-2", to=Target.LATER, delay=1))
        with self.node.set("maxMessageSize", "100000"):
            tape = self.started(adapter, 3)
            (undelivered,) = tape.until(
                lambda: [each for each in tape.signals if isinstance(each, Undelivered)], "Undelivered"
            )
            assert (undelivered.key, undelivered.error.id) == ("k-1", "rocketmq.message-illegal")
            assert "keeps the message" in undelivered.fate
            tape.delivery(2)
        assert [each.headers[KEY] for each in tape.deliveries] == ["first", "k-2"]
        assert self.node.count(f"%DLQ%{later}") == 0
        assert not any(isinstance(signal, Unreachable | Lost) for signal in tape.signals)

    def test_a_check_before_the_first_deployment_does_not_delay_the_first_job(
        self, adapter: Adapter, spec: QueueSpec
    ) -> None:
        """The proxy would remember for 20 s that the topic is missing; the first job comes in 2 s."""
        assert not self.node.topics(self.queue)
        assert not [finding for finding in adapter.findings(spec) if finding.level == "error"]
        began = time.monotonic()
        adapter.publish(message())
        self.started(adapter, 1).delivery()
        assert time.monotonic() - began < 10

    def test_the_longest_queue_and_its_delayed_messages(self) -> None:
        """The group for delayed messages has 120 characters, the most to which 5.4 delivers."""
        queue = f"{self.queue}-".ljust(114, "q")
        adapter = GrpcAdapter(self.proxy.url, QueueSpec(queue, f"{queue}.dead"), Settings())
        try:
            adapter.publish(message())
            tape = self.started(adapter, 2)
            assert adapter.settle(tape.delivery(), Settle.ACK) is Settled.SENT
            adapter.publish(message("k-2", to=Target.LATER, delay=1))
            assert adapter.settle(tape.delivery(2), Settle.ACK) is Settled.SENT
        finally:
            adapter.stop(self.within)

    def test_a_foreign_message_has_its_tag_keys_and_properties(self, adapter: Adapter) -> None:
        assert not adapter.exists()
        adapter.publish(message("first"))
        self.node.send(self.queue, b"{}", {"TAGS": "paid", "KEYS": "order-17", "shop": "Café"})
        tape = self.started(adapter, 2)
        tape.delivery(2)
        foreign = next(delivery for delivery in tape.deliveries if delivery.headers.get(KEY) != "first")
        assert foreign.headers == {"TAGS": "paid", "KEYS": "order-17", "shop": "Café"}
        assert foreign.message_id

    def foreign(self, adapter: Adapter, properties: dict[str, str]) -> tuple[Tape, Delivery]:
        """Return the delivery of a message that was sent without a proxy, and so without its limits."""
        adapter.publish(message("first"))
        self.node.send(self.queue, b"{}", properties)
        tape = self.started(adapter, 2)
        tape.delivery(2)
        return tape, next(delivery for delivery in tape.deliveries if delivery.headers.get(KEY) != "first")

    def test_a_foreign_message_with_17_kb_of_keys_can_be_tried_again(self, adapter: Adapter) -> None:
        """A proxy counts the keys in its limit of 16 KiB, so the copy carries them behind its body."""
        tape, foreign = self.foreign(adapter, {"KEYS": "k" * 17_000})
        assert foreign.headers == {"KEYS": "k" * 17_000}
        adapter.publish(OutgoingMessage(Target.DEAD, foreign.body, foreign.headers))
        adapter.publish(OutgoingMessage(Target.LATER, foreign.body, foreign.headers, self.delay))
        adapter.settle(foreign, Settle.ACK)
        copy = tape.delivery(3)
        assert (copy.headers, copy.body) == ({"KEYS": "k" * 17_000}, foreign.body)

    def test_a_foreign_message_with_128_properties_can_be_released(self, adapter: Adapter) -> None:
        """They are as many as a proxy accepts, and a copy has one more."""
        headers = {f"p{number}": "x" for number in range(128)}
        tape, foreign = self.foreign(adapter, headers)
        assert foreign.headers == headers
        assert adapter.settle(foreign, Settle.RELEASE) is Settled.SENT
        again = tape.delivery(3)
        assert (again.headers, again.message_id) == (headers, foreign.message_id)
        assert not any(isinstance(signal, Unreachable | Lost) for signal in tape.signals)

    def test_a_message_that_is_released_many_times_is_the_same_message(self, adapter: Adapter) -> None:
        adapter.publish(replace(message(), headers={KEY: "k-1", "empty": ""}))
        tape = self.started(adapter, 1)
        for number in range(1, 11):
            adapter.settle(tape.delivery(number), Settle.RELEASE)
        tape.delivery(11)
        assert {(each.message_id, each.headers[KEY], each.headers["empty"]) for each in tape.deliveries} == {
            (tape.deliveries[0].message_id, "k-1", "")
        }

    def test_nothing_is_written_to_the_half_topic(self, adapter: Adapter) -> None:
        """A copy of a message with TRAN_MSG would become a half message, which nobody sees."""
        adapter.publish(replace(message(), headers={KEY: "k-1", "TRAN_MSG": "true", "PGROUP": "shop"}))
        tape = self.started(adapter, 1)
        adapter.settle(tape.delivery(), Settle.RELEASE)
        assert tape.delivery(2).headers["TRAN_MSG"] == "true"
        assert self.node.half(self.queue) == 0


class TestLife(GrpcBench):
    """Starting and stopping."""

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_many_starts_and_stops_leave_nothing(self, adapter: Adapter, spec: QueueSpec) -> None:
        adapter.publish(message())
        process = psutil.Process()

        def cycle() -> None:
            made = GrpcAdapter(self.proxy.url, spec, Settings())
            tape = self.started(made, 1)
            tape.delivery()
            made.stop(self.within)

        for _ in range(3):
            cycle()
        threads, files, memory = threading.active_count(), process.num_fds(), process.memory_info().rss
        for _ in range(50):
            cycle()
        eventually(lambda: threading.active_count() <= threads + 8, "the threads of the last cycles ended")
        eventually(lambda: process.num_fds() <= files + 8, "their connections are closed")
        assert process.memory_info().rss <= memory + (20 << 20)

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("how", ["stop", "prefetch 0"])
    def test_a_message_that_comes_while_a_worker_stops_is_another_s_at_once(self, open_adapter: Open, how: str) -> None:
        """The poll under way may get it; without the release, it would come after its invisibility, 60 s."""
        self.options = "&queues=1"
        sender = open_adapter()
        for number in range(6):
            one, two = open_adapter(), open_adapter()
            self.started(one, 1)
            self.let_pass(1)  # a poll is under way
            sending = threading.Thread(target=sender.publish, args=(message(f"k-{number}"),))
            sending.start()
            self.let_pass(number * 0.004)
            if how == "stop":
                one.stop(30)
            else:
                one.prefetch(0)
            sending.join()
            began = time.monotonic()
            one.stop(30)  # after a prefetch of 0, it may hold the message, and releases it
            again = self.started(two, 1).delivery()
            assert again.headers[KEY] == f"k-{number}"
            assert time.monotonic() - began < 30
            two.settle(again, Settle.ACK)
            two.stop(30)

    def test_a_stop_without_a_broker_is_quick(self, adapter: Adapter) -> None:
        adapter.publish(message())
        tape = self.started(adapter, 1)
        tape.delivery()
        self.proxy.refuse()
        self.proxy.cut()
        began = time.monotonic()
        adapter.stop(5.0)
        assert time.monotonic() - began < 8

    @pytest.mark.parametrize("goodbye", [[], ["stop"]], ids=["ends", "stops"])
    def test_a_sender_whose_proxy_goes_away_prints_nothing(self, goodbye: list[str]) -> None:
        """Not the library's tracebacks, and not what asyncio prints of the library's tasks when the process ends."""
        command = [sys.executable, "-c", SENDER, self.proxy.url, self.queue, *goodbye]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as sender:
            assert sender.stdout is not None
            assert sender.stderr is not None
            assert sender.stdout.readline() == "sent\n", sender.stderr.read()
            self.proxy.refuse()
            self.proxy.cut()
            printed, errors = sender.communicate("cut\n", timeout=60)
        assert (printed, errors, sender.returncode) == ("True\nfailed\n", "", 0)

    def test_proxies_without_a_remoting_port_count_nobody(self, spec: QueueSpec) -> None:
        """A number that never comes is no number, so that a ledger of one host does not trust the one before it."""
        members = f"&members=127.0.0.1:{free_ports(1)[0]}"
        url = re.sub("&members=[^&]*", "", self.proxy.url) + members
        adapter = GrpcAdapter(url, spec, Settings())
        try:
            found = adapter.consumers()
            assert isinstance(found, Uncounted)
            assert f"{members.removeprefix('&members=')}, the remoting port of a proxy" in found.why
            assert "?members=host:8080" in found.remedy
            self.proxy.refuse()
            self.proxy.cut()
            with pytest.raises(BrokerUnavailable):
                adapter.consumers()
        finally:
            adapter.stop(self.within)

    def test_a_group_that_no_broker_can_serve_is_refused_before_the_first_message(self, spec: QueueSpec) -> None:
        """Without the check, 4.9.7 loses each retry of such a group, and 5.4.0 delivers nothing to it."""
        group = f"{'payments-' * 12}{self.queue}_paid"
        with pytest.raises(ConfigError, match="group of at most") as caught:
            GrpcAdapter(f"{self.proxy.url}&group={group}", spec, Settings())
        assert group in str(caught.value)


def test_a_home_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file")
    done = subprocess.run(
        [sys.executable, "-c", "import steadyworker_rocketmq.grpc"],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Expected a home directory in which rocketmq-python-client can write its log" in done.stderr
