"""How the driver for RocketMQ's brokers receives, holds and settles messages; at a broker in this process."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.adapter import (
    Connected,
    Delivered,
    Delivery,
    Lost,
    QueueSpec,
    Settings,
    Settle,
    Settled,
    Signal,
    Target,
    Unreachable,
)
from steadyworker.delivery import KEY
from steadyworker.errors import (
    ConfigError,
    MessageRefused,
    NotPublished,
    PublishFailed,
    StaleDelivery,
    TargetFull,
    TargetMissing,
    Unsettled,
)
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from tests.adapters.direct.fake import FakeRocketMQ
from tests.adapters.direct.kit import QUEUE, WITHIN, Worker, places, work
from tests.support.stage import eventually

pytestmark = pytest.mark.long


def test_a_place_is_set_only_by_an_acknowledgement(broker: FakeRocketMQ) -> None:
    """However long a message is held, nothing but its acknowledgement moves the place of its queue."""
    with Worker(broker.url, prefetch=2) as worker:
        worker.adapter.publish(work())
        held = worker.delivery()
        broker.asked.clear()
        eventually(lambda: broker.asked.count(41) >= 2, "two renewals", WITHIN)
        assert places(broker) == 0
        assert worker.adapter.settle(held, Settle.ACK) is Settled.SENT
        assert places(broker) == 1


def test_a_failing_message_does_not_disturb_the_others(broker: FakeRocketMQ) -> None:
    """Of ten messages, one is released twice before it is acknowledged; the others are delivered once."""
    with Worker(broker.url, prefetch=4) as worker:
        for n in range(10):
            worker.adapter.publish(work(f"k-{n}"))
        for number in range(1, 13):
            delivery = worker.delivery(number)
            runs = Counter(each.headers[KEY] for each in worker.deliveries[:number])
            bad = delivery.headers[KEY] == "k-3" and runs["k-3"] < 3
            worker.adapter.settle(delivery, Settle.RELEASE if bad else Settle.ACK)
        runs = Counter(each.headers[KEY] for each in worker.deliveries)
        assert runs == Counter({f"k-{n}": 3 if n == 3 else 1 for n in range(10)})
        assert places(broker) == 10


def test_a_sink_that_raises_acknowledges_nothing(broker: FakeRocketMQ) -> None:
    """The message stays where it is, and the next adapter gets it."""

    def fail(signal: Signal) -> None:
        if isinstance(signal, Delivered):
            raise ValueError("a defect in the runner")  # noqa: TRY004

    with Worker(broker.url, then=fail) as worker:
        worker.adapter.publish(work())
        worker.delivery()
        worker.wait(Connected, 2)
    assert places(broker) == 0
    with Worker(broker.url) as other:
        assert other.delivery().headers[KEY] == "k-1"


def test_a_stopped_worker_s_message_comes_to_another_at_once(broker: FakeRocketMQ) -> None:
    """`stop` ends the lock, so that the message does not wait for its end."""
    with Worker(broker.url) as one:
        one.adapter.publish(work())
        one.delivery()
        with Worker(broker.url) as two:
            two.wait(Connected)
            began = time.monotonic()
            one.adapter.stop(5.0)
            assert time.monotonic() - began < 1.0
            two.delivery()
            assert time.monotonic() - began < 3.0
    assert not broker.locks
    assert not broker.members(QUEUE)


def test_a_killed_worker_s_message_comes_when_its_lock_ends(broker: FakeRocketMQ) -> None:
    """A worker that ends without a word keeps its queue locked for a while."""
    broker.locked_for = 4.0
    with Worker(broker.url, prefetch=0) as sender:
        sender.adapter.publish(work())
    began = time.monotonic()
    broker.locks.update({(QUEUE, QUEUE, number): ("a dead client", began) for number in range(16)})
    with Worker(broker.url) as worker:
        worker.delivery()
        assert 4.0 < time.monotonic() - began < 8.0


HOLDER = """
import sys
from steadyworker.adapter import Delivered, Lost, QueueSpec, Settings, Settle
from steadyworker.errors import StaleDelivery
from steadyworker_rocketmq.direct import held as module
from steadyworker_rocketmq.direct.adapter import DirectAdapter
module.LOCKED_FOR, module._MARGIN = 3.0, 1.0
held = []
def sink(signal):
    if isinstance(signal, Delivered):
        held.append(signal.delivery)
    if isinstance(signal, (Delivered, Lost)):
        print(type(signal).__name__, flush=True)
adapter = DirectAdapter(sys.argv[1], QueueSpec(sys.argv[2], sys.argv[2] + "-dead"), Settings())
adapter.start(sink)
adapter.prefetch(1)
sys.stdin.readline()
try:
    adapter.settle(held[0], Settle.ACK)
except StaleDelivery:
    print("StaleDelivery", flush=True)
adapter.stop(5.0)
"""


def test_a_frozen_worker_s_message_is_another_s_and_settled_once(broker: FakeRocketMQ) -> None:
    """After the thaw, its worker gets `Lost`, and its late acknowledgement is refused."""
    broker.locked_for = 3.0
    command = [sys.executable, "-c", HOLDER, broker.url, QUEUE]
    with Worker(broker.url, prefetch=0) as worker:
        worker.adapter.publish(work("k-1"))
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as frozen:
            assert frozen.stdout is not None
            assert frozen.stdin is not None
            assert frozen.stdout.readline() == "Delivered\n"
            frozen.send_signal(signal.SIGSTOP)
            worker.adapter.prefetch(1)
            worker.adapter.settle(worker.delivery(), Settle.ACK)
            worker.adapter.prefetch(0)
            frozen.send_signal(signal.SIGCONT)
            assert frozen.stdout.readline() == "Lost\n"
            frozen.stdin.write("settle\n")
            frozen.stdin.flush()
            assert frozen.stdout.readline() == "StaleDelivery\n"
        assert places(broker) == 1


def test_a_joining_member_disturbs_no_running_message(broker: FakeRocketMQ) -> None:
    """Ten members join and leave, and what the first one holds is delivered to none of them."""
    with Worker(broker.url, prefetch=4) as worker:
        for n in range(4):
            worker.adapter.publish(work(f"k-{n}"))
        held = [worker.delivery(number) for number in range(1, 5)]
        for _ in range(10):
            with Worker(broker.url, prefetch=4) as other:
                other.wait(Connected)
                eventually(lambda other=other: len(broker.members(QUEUE)) == 2, "a second member", WITHIN)  # type: ignore[misc]
                assert other.deliveries == []
        for delivery in held:
            worker.adapter.settle(delivery, Settle.ACK)
        assert places(broker) == 4


def test_a_queue_that_another_member_has_is_a_lost_delivery(broker: FakeRocketMQ) -> None:
    """As after a restart of the broker, if another member locks the queue first."""
    with Worker(broker.url, prefetch=2) as worker:
        worker.adapter.publish(work("k-1"))
        held = worker.delivery()
        broker.steal(QUEUE)
        lost = worker.wait(Lost)
        assert (lost.epoch, lost.id) == (held.epoch, held.id)
        with pytest.raises(StaleDelivery):
            worker.adapter.settle(held, Settle.ACK)
        assert places(broker) == 0


def test_an_acknowledgement_moves_no_place_back_when_its_queue_has_moved(broker: FakeRocketMQ) -> None:
    """Another member has locked the queue, consumed this message and others, and unlocked it, while this one acknowledges."""
    with Worker(broker.url) as worker:
        worker.adapter._preparation.prepared()
        broker.put(QUEUE, 0, "k-1", "k-2", "k-3")
        held = worker.delivery()
        at = time.monotonic()
        eventually(lambda: time.monotonic() - at > 1.2, "a job of more than a second", WITHIN)

        def consume() -> None:
            broker.locks.clear()
            broker.places[QUEUE, QUEUE, 0] = 3

        broker.before[41] = consume
        assert worker.adapter.settle(held, Settle.ACK) is Settled.SENT
        assert places(broker) == 3
        broker.put(QUEUE, 0, "k-4")
        assert worker.delivery(2).headers[KEY] == "k-4"


def test_an_acknowledgement_sets_no_place_in_a_queue_of_another_member(broker: FakeRocketMQ) -> None:
    """The other member has the message, too, and acknowledges it itself."""
    with Worker(broker.url) as worker:
        worker.adapter.publish(work())
        held = worker.delivery()
        at = time.monotonic()
        eventually(lambda: time.monotonic() - at > 1.2, "a job of more than a second", WITHIN)
        broker.before[41] = lambda: broker.steal(QUEUE)
        with pytest.raises((Unsettled, StaleDelivery)):
            worker.adapter.settle(held, Settle.ACK)
        assert places(broker) == 0


def test_short_jobs_do_not_keep_a_queue_from_others(broker: FakeRocketMQ) -> None:
    """After some messages of one queue, the others have their turn."""
    with Worker(broker.url, prefetch=0) as sender:
        for n in range(16 * 40):
            sender.adapter.publish(work(f"k-{n}"))
    order: list[int] = []
    with Worker(broker.url) as worker:
        for number in range(1, 16 * 40 + 1):
            delivery = worker.delivery(number)
            order.append(int(delivery.headers[KEY][2:]) % 16)
            worker.adapter.settle(delivery, Settle.ACK)
    runs = [len(list(run)) for _, run in itertools.groupby(order)]
    assert max(runs) <= 2 * 33
    assert len(runs) >= 16
    assert places(broker) == 16 * 40


def test_windows_that_change_all_the_time_are_never_exceeded(broker: FakeRocketMQ) -> None:
    """Each message is delivered once, and settled once."""
    held: set[str] = set()
    most, total = 0, 300
    answers: list[object] = []

    def sink(signal: Signal) -> None:
        nonlocal most
        if isinstance(signal, Delivered):
            held.add(signal.delivery.id)
            most = max(most, len(held))
            threading.Timer(random.random() / 50, settle, (signal.delivery,)).start()

    def settle(delivery: Delivery) -> None:
        held.discard(delivery.id)
        worker.adapter.settle_async(delivery, Settle.ACK, answers.append)

    with Worker(broker.url, prefetch=8, then=sink) as worker:
        for n in range(total):
            worker.adapter.publish(work(f"k-{n}"))
            worker.adapter.prefetch(random.choice([0, 0, 1, 2, 3, 5, 8, 8]))

        def settled() -> bool:
            worker.adapter.prefetch(random.choice([0, 0, 1, 2, 3, 5, 8, 8]))
            return len(answers) >= total

        eventually(settled, "all settlements", 60.0, lambda: f"{len(answers)} of {total}, {len(held)} held")
        assert set(answers) == {Settled.SENT}
        assert Counter(each.headers[KEY] for each in worker.deliveries) == {f"k-{n}": 1 for n in range(total)}
        assert 2 <= most <= 8
        assert [type(signal) for signal in worker.signals if not isinstance(signal, Delivered)] == [Connected]
        assert places(broker) == total


def test_delay_levels_are_the_brokers_in_any_order(broker: FakeRocketMQ) -> None:
    """The URL repeats nothing; its levels are for brokers that do not show theirs."""
    broker.levels = "30s 2s 1h"
    with Worker(f"{broker.url}?delay_levels=1s,1m") as worker:
        worker.wait(Connected)
        assert worker.adapter.capabilities.levels == (2.0, 30.0, 3600.0)
        for delay in (1, 2.5, 100, 9999):
            worker.adapter.publish(replace(work(), to=Target.LATER, delay=delay))
    assert broker.delays == [2, 1, 3, 3]
    broker.refuse[26] = (16, "no permission")
    with Worker(f"{broker.url}?delay_levels=1s,1m") as worker:
        worker.wait(Connected)
        assert worker.adapter.capabilities.levels == (1.0, 60.0)


@pytest.mark.parametrize("levels", ["1s 2s 3s 4s 6s", "1s 2 weeks"])
def test_brokers_that_disagree_on_delay_levels_are_refused(
    broker: FakeRocketMQ, second: FakeRocketMQ, levels: str
) -> None:
    """The number of a level would be another delay at each of them; so would one that has no meaning."""
    second.levels = levels
    with Worker(broker.url) as worker:
        gone = worker.wait(Unreachable)
        assert gone.final
        assert f"got '1s 2s 3s 4s 5s' at b, {levels!r} at c" in gone.cause
        assert gone.explain == "rocketmq.delay-levels"
        with pytest.raises(NotPublished, match="write the same levels into each broker"):
            worker.adapter.publish(work())
        (found,) = [each for each in worker.adapter.findings(worker.adapter._spec) if each.level == "error"]
        assert f"{found}" == gone.cause


def test_a_message_that_the_user_may_not_send_was_not_sent(broker: FakeRocketMQ) -> None:
    """4.9.7 refuses with the code of an unknown result (1), and names the right in its text."""
    with Worker(broker.url) as worker:
        worker.adapter.publish(work())
        broker.refuse[10] = (1, "No default permission for topic: exports")
        with pytest.raises(NotPublished, match="add exports=PUB"):
            worker.adapter.publish(work("k-2"))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (2, TargetFull),
        (14, TargetFull),
        (17, TargetMissing),
        (13, MessageRefused),
        (3, NotPublished),
        (10, PublishFailed),
        (1, PublishFailed),
    ],
)
def test_a_send_that_is_not_ok_is_no_success(broker: FakeRocketMQ, code: int, error: type[PublishFailed]) -> None:
    """FLUSH_DISK_TIMEOUT (10) means that the message is stored, and not safe."""
    with Worker(broker.url) as worker:
        worker.adapter.publish(work())
        broker.refuse[10] = (code, "a reason")
        with pytest.raises(error) as caught:
            worker.adapter.publish(work("k-2"))
        assert type(caught.value) is error
        del broker.refuse[10]
        worker.adapter.publish(work("k-3"))


@pytest.mark.parametrize("body", [b"", b"\0", b"a\0b\0", bytes(range(256)) * 4096, b"\xff" * (4 << 20)])
def test_any_bytes_are_a_body(broker: FakeRocketMQ, body: bytes) -> None:
    """Empty, with NUL, 1 MiB, 4 MiB."""
    with Worker(broker.url) as worker:
        worker.adapter.publish(work(body=body))
        assert worker.delivery().body == body


def test_cycles_leave_nothing_behind(broker: FakeRocketMQ) -> None:
    """Threads and descriptors are as before after 50 starts and stops, each with a message."""
    process = psutil.Process()
    counts, before = [], {*threading.enumerate()}
    for n in range(50):
        with Worker(broker.url) as worker:
            worker.adapter.publish(work(f"k-{n}"))
            worker.adapter.settle(worker.delivery(), Settle.ACK)
        if n in (5, 49):
            eventually(
                lambda: not [each for each in {*threading.enumerate()} - before if "rocketmq" in each.name],
                "no thread",
                WITHIN,
            )
            counts.append((threading.active_count(), process.num_fds()))
    (threads, fds), (later_threads, later_fds) = counts
    assert later_threads <= threads + 2
    assert later_fds <= fds + 4


def test_a_wrong_secret_is_in_no_text() -> None:
    """The URL's error has no secret, either."""
    with pytest.raises(ConfigError) as caught:
        DirectAdapter("rocketmq://key:pass%0Aword@host", QueueSpec(QUEUE, f"{QUEUE}-dead"), Settings())
    assert "word" not in str(caught.value)
