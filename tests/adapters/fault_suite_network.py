"""The part of `fault_suite.py` about the network: cut, silent, slow, byte by byte, and large bodies."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from steadyworker.adapter import Connected, Delivered, Delivery, Lost, Unreachable
from steadyworker.delivery import KEY, Settle
from steadyworker.errors import (
    NotPublished,
    PublishFailed,
    StaleDelivery,
    Unsettled,
)
from tests.adapters.fault_bench import (
    Eventually,
    FaultBench,
    OpenWorker,
    Wire,
    Worker,
    work,
)
from tests.faults.link import BOTH, Direction, Link
from tests.faults.proxy import Proxy


class NetworkFaults(FaultBench):
    """Tests of the network between adapter and broker: `wire` is that way."""

    before_handshake = 0
    """The bytes from the broker before its own: those of a TLS handshake, which is cut too."""
    stride = 1
    """The bytes between two cuts of the handshake."""

    @pytest.mark.parametrize("how", ["cut", "close"])
    def test_a_cut_is_noticed_at_once_and_the_message_comes_again(
        self, wire: Wire, open_worker: OpenWorker, eventually: Eventually, how: str
    ) -> None:
        """RST or FIN in the middle of a job; a delivery that outlives it comes once, and is settled after it (1 s)."""
        worker = open_worker(wire.url)
        worker.start()
        worker.adapter.publish(work())
        old = worker.delivery(eventually)
        getattr(wire.proxy, how)()
        if worker.outlives:
            assert worker.adapter.settle(old, Settle.ACK) is self.settled
            assert not {type(signal) for signal in worker.received} - {Connected, Delivered, Unreachable}
            assert len(worker.all(Delivered)) == 1
            worker.adapter.stop(5)
            eventually(lambda: self.depth() == 0)
            return
        new = worker.delivery(eventually, 2)
        assert [type(signal) for signal in worker.received] == [Connected, Delivered, Lost, Connected, Delivered]
        with pytest.raises(StaleDelivery):
            worker.adapter.settle(old, Settle.ACK)
        assert worker.adapter.settle(new, Settle.ACK) is self.settled
        worker.adapter.stop(5)
        eventually(lambda: self.depth() == 0)

    @pytest.mark.parametrize(
        "direction",
        [BOTH, ("up",), pytest.param(("down",), marks=pytest.mark.slow)],  # the adapter notices as it does with BOTH
        ids=["both-ways", "up", "down"],
    )
    def test_a_peer_that_is_gone_without_a_word_is_missed(
        self,
        wire: Wire,
        open_worker: OpenWorker,
        eventually: Eventually,
        direction: tuple[Direction, ...],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """
        Bytes vanish: heartbeats miss them, and what waited for an answer hears so (14 s; 6 s for "up").

        The settlement of a delivery that outlives it waits for the next connection.
        """
        worker = open_worker(self.missed_within(2, wire.url, monkeypatch))
        worker.start()
        worker.adapter.publish(work())
        held = worker.delivery(eventually)
        wire.proxy.change(direction, drop=True)
        with ThreadPoolExecutor(2) as pool:
            sending = pool.submit(worker.adapter.publish, work("k-2"))
            settling = pool.submit(worker.adapter.settle, held, Settle.ACK)
            if not worker.outlives:
                assert isinstance(settling.exception(), Unsettled)
            with pytest.raises(PublishFailed) as raised:
                sending.result()
            assert not isinstance(raised.value, NotPublished), "its bytes were written, so it may have arrived"
            eventually(lambda: worker.all(Unreachable if worker.outlives else Lost))
            wire.proxy.resume()
            wire.proxy.cut()
            eventually(lambda: len(worker.all(Connected)) == 2)
            if worker.outlives:
                assert settling.result() is self.settled
        assert [lost.epoch for lost in worker.all(Lost)] == [1] * (not worker.outlives)
        # The ack may have arrived or not; nothing else can have been settled by it.
        worker.adapter.publish(work("k-3"))
        eventually(lambda: any(signal.delivery.headers[KEY] == "k-3" for signal in _settling(worker)))

    def test_a_settlement_without_an_answer_ends_the_epoch(
        self, wire: Wire, open_worker: OpenWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        Also where heartbeats would not miss anything for long: the broker owes an answer.

        Where a delivery outlives its connection, it is settled on the next one.
        """
        self.answer_within(3.0, monkeypatch)  # a busy machine needs more than a second to connect and publish
        worker = open_worker(wire.url)
        worker.start()
        worker.adapter.publish(work())
        held = worker.delivery(eventually)
        wire.proxy.change(("down",), drop=True)
        if worker.outlives:
            with ThreadPoolExecutor(1) as pool:
                settling = pool.submit(worker.adapter.settle, held, Settle.ACK)
                eventually(lambda: worker.all(Unreachable))
                wire.proxy.resume()
                wire.proxy.cut()
                assert settling.result() is self.settled
        else:
            with pytest.raises(Unsettled, match="no reply to "):
                worker.adapter.settle(held, Settle.ACK)
            wire.proxy.resume()
        eventually(lambda: len(worker.all(Connected)) == 2)
        assert len(worker.all(Lost)) == (not worker.outlives)

    @pytest.mark.timeout(300)
    def test_the_handshake_may_be_cut_at_any_byte(
        self, wire: Wire, open_worker: OpenWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        Never final, never stuck, no descriptor left (8 s).

        Eight workers are each cut `stride` bytes later each time, and are whole at last: 608 cuts.
        """
        self.try_at_once(monkeypatch)
        length = self.before_handshake + self.handshake
        share = length // 8
        sender = open_worker()
        for number in range(self.fillers):  # the handshake alone may be shorter than that
            sender.adapter.publish(work(f"k-{number}", body=bytes(length + 400)))
        before = _open_files()

        def cut_from(first: int) -> None:
            with Proxy(wire.direct) as proxy:
                worker = self.make_worker(self.through(proxy, wire.direct))
                self.prepare(worker.adapter)
                proxy.wait_closed()
                tries = proxy.connections

                def cut_after(count: int) -> None:
                    def cut(link: Link) -> None:
                        cut_after(count + self.stride)
                        link.cut()

                    if count <= first + share:
                        proxy.after(count, "down", cut)
                    else:
                        proxy.resume()

                cut_after(first)
                worker.start()
                proxy.wait_connections(tries + share // self.stride + 2, within=200)
                eventually(lambda: isinstance(worker.received[-1], Connected | Delivered))
                assert not any(gone.final for gone in worker.all(Unreachable))
                worker.adapter.stop(5)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(cut_from, range(0, share * 8, share)))
        eventually(lambda: _open_files() <= before)

    def test_bytes_that_come_one_by_one(self, wire: Wire, open_worker: OpenWorker, eventually: Eventually) -> None:
        """No frame may be taken for granted (1 s)."""
        wire.proxy.slice(1)
        worker = open_worker(wire.url, topology="trust")
        self.prepare(open_worker().adapter)
        self.send("k-1", body=b"\0line\n\n\0" * 50)
        worker.start()
        first = worker.delivery(eventually)
        assert first.body == b"\0line\n\n\0" * 50
        worker.adapter.settle(first, Settle.ACK)
        worker.adapter.publish(work("k-2", body=bytes(500)))
        assert worker.delivery(eventually, 2).body == bytes(500)

    def test_a_large_body_arrives_whole(
        self, wire: Wire, open_worker: OpenWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As the adapter sends it, and as a foreign program does; every byte value is in it (2 s)."""
        worker = open_worker(self.missed_within(10, wire.direct, monkeypatch), max_body=self.large)
        body = bytes(range(256)) * (self.large // 256)
        worker.start()
        worker.adapter.publish(work("k-1", body=body))
        first = worker.delivery(eventually)
        assert (len(first.body), first.size) == (len(body), len(body))
        assert first.body == body, "its bytes differ"
        self.send("k-2", body=body)
        assert worker.adapter.settle(first, Settle.ACK) is self.settled
        second = worker.delivery(eventually, 2)
        assert second.headers[KEY] == "k-2"
        assert second.body == body, "its bytes differ"
        assert worker.adapter.settle(second, Settle.ACK) is self.settled
        assert not worker.all(Lost)

    def test_windows_that_change_all_the_time_lose_nothing_and_are_never_exceeded(
        self, wire: Wire, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        """Deliveries come, settlements and publishes go while the window changes; each message is settled once (3 s)."""
        worker, total = open_worker(wire.direct, prefetch=0, concurrency=8), 200
        worker.adapter.publish(work("k-0"))
        self.send(*(f"k-{number}" for number in range(1, total // 2)))
        held: set[str] = set()
        most, done = 0, Counter[str]()

        def settle(delivery: Delivery) -> None:
            held.discard(delivery.id)  # the next may come before the answer does
            assert worker.adapter.settle(delivery, Settle.ACK) is self.settled
            done[delivery.headers[KEY]] += 1

        with ThreadPoolExecutor(9) as threads:
            settling: list[Future[None]] = []

            def sink(signal: object) -> None:
                nonlocal most
                if isinstance(signal, Delivered):
                    held.add(signal.delivery.id)
                    most = max(most, len(held))
                    settling.append(threads.submit(settle, signal.delivery))
                else:
                    others.append(type(signal))

            def publish() -> None:
                for number in range(total // 2, total):
                    worker.adapter.publish(work(f"k-{number}"))

            others: list[type] = []
            worker.adapter.start(sink)
            publishing = threads.submit(publish)
            windows = random.Random(16)

            def settled() -> bool:
                worker.adapter.prefetch(windows.choice([0, 0, 1, 2, 3, 5, 8, 8]))
                return sum(done.values()) >= total

            eventually(settled)
            publishing.result()
        assert [each.exception() for each in settling if each.exception()] == []
        assert done == Counter({f"k-{number}": 1 for number in range(total)})
        assert 2 <= most <= 8
        assert others == [Connected]
        worker.adapter.stop(5)
        eventually(lambda: self.depth() == 0)


def _settling(worker: Worker) -> list[Delivered]:
    """Acknowledge what comes."""
    heard = worker.all(Delivered)[1:]
    for signal in heard:
        with suppress(StaleDelivery, Unsettled):
            worker.adapter.settle(signal.delivery, Settle.ACK)
    return heard


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
