"""
The suite of faults that the adapter of every network broker must bear: said clearly, nothing lost, nothing settled twice, and back by itself.

`fault_bench.py` shows what a subclass fills in; the tests of the network are in `fault_suite_network.py`.
`FaultSuite` has all tests; `TlsFaultSuite` has those of the network again over TLS, and is slow.
A driver without TLS, or one that takes no file for it, has `BrokerFaults` and `NetworkFaults`.
Where a delivery outlives its connection (`Capabilities.loses_unacked`), the tests expect that in the place of its loss.
The seconds beside a test are what it takes on RabbitMQ 4; nearly all of them are waits.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from steadyworker.adapter import Connected, Delivered, Delivery, Lost, Unreachable
from steadyworker.delivery import KEY, Settle
from steadyworker.errors import (
    BrokerUnavailable,
    NotPublished,
    PublishFailed,
    StaleDelivery,
    SteadyWorkerError,
    Unsettled,
)
from tests.adapters.fault_bench import (
    CANARY,
    Eventually,
    FaultBench,
    Impostor,
    Logs,
    Node,
    OpenWorker,
    Tls,
    Wire,
    Worker,
    at,
    hosts_of,
    option,
    work,
)
from tests.adapters.fault_suite_network import NetworkFaults
from tests.faults.proxy import Proxy


class BrokerFaults(FaultBench):
    """Tests of a broker that ends, freezes, refuses or cannot be trusted, and of `stop`."""

    # --- It ends, or says nothing -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("how", ["kill", "stop"])
    def test_a_broker_that_ends_and_comes_back(
        self, node: Node, open_worker: OpenWorker, eventually: Eventually, how: str
    ) -> None:
        """
        The epoch ends, nothing of it can be settled, and the message comes again (8 s: the broker starts again).

        Where a delivery outlives its connection, it is settled after the restart, unless the broker has forgotten it.
        """
        worker = open_worker(prefetch=2)
        worker.start()
        worker.adapter.publish(work())
        old = worker.delivery(eventually)
        getattr(node, how)()
        if worker.outlives:
            self._outlived(node, worker, old, eventually)
            return
        lost = eventually(lambda: worker.all(Lost))[0]
        assert lost.epoch == old.epoch
        if how == "stop":
            assert self.ended in lost.cause
        with pytest.raises(StaleDelivery):
            worker.adapter.settle(old, Settle.ACK)
        with pytest.raises(PublishFailed):
            worker.adapter.publish(work("k-2"))
        eventually(lambda: worker.all(Unreachable))
        assert not worker.all(Unreachable)[0].final
        node.start()
        new = worker.delivery(eventually, 2)
        assert (new.headers[KEY], new.epoch) == ("k-1", worker.all(Connected)[-1].epoch)
        assert worker.adapter.settle(new, Settle.ACK) is self.settled
        assert [lost.epoch for lost in worker.all(Lost)] == [1]
        worker.adapter.stop(5)
        eventually(lambda: self.depth() == 0)

    def _outlived(self, node: Node, worker: Worker, held: Delivery, eventually: Eventually) -> None:
        """
        Settle a delivery after the broker's restart.

        What the broker delivers a second time is the same message: it may forget an acknowledgement that it confirmed.
        Each delivery is acknowledged or lost.
        """
        eventually(lambda: worker.all(Unreachable))
        assert not worker.all(Unreachable)[0].final
        with pytest.raises(PublishFailed):
            worker.adapter.publish(work("k-2"))
        node.start()
        eventually(lambda: len(worker.all(Connected)) == 2)
        assert {connected.epoch for connected in worker.all(Connected)} == {held.epoch}
        acknowledged: dict[str, bool] = {}

        def gone() -> bool:
            for signal in worker.all(Delivered):
                assert (signal.delivery.headers[KEY], signal.delivery.message_id) == ("k-1", held.message_id)
                if signal.delivery.id not in acknowledged:
                    acknowledged[signal.delivery.id] = False
                    with suppress(Unsettled, StaleDelivery):
                        assert worker.adapter.settle(signal.delivery, Settle.ACK) is self.settled
                        acknowledged[signal.delivery.id] = True
            return self.depth() == 0

        eventually(gone)
        lost = {signal.id for signal in worker.all(Lost)}
        assert lost == {id_ for id_, was in acknowledged.items() if not was}
        assert 0 <= len(acknowledged) - 1 - len(lost) <= self.forgets
        worker.adapter.stop(5)

    def test_a_frozen_broker_is_missed_and_stop_is_in_time(
        self, node: Node, open_worker: OpenWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Three heartbeats of 2 s (14 s)."""
        worker, other = (open_worker(self.missed_within(2, self.url, monkeypatch)) for _ in range(2))
        worker.start()
        other.start()
        worker.adapter.publish(work())
        eventually(lambda: worker.all(Connected) and other.all(Connected))
        node.freeze()
        stopper = threading.Thread(target=other.adapter.stop, args=(3.0,))
        stopper.start()
        stopper.join(15)  # five times what was asked for: the machine may be busy
        assert not stopper.is_alive()
        missed = eventually(lambda: worker.all(Unreachable if worker.outlives else Lost))[0]
        assert self.silent in missed.cause
        node.thaw()
        eventually(lambda: len(worker.all(Connected)) == 2)

    def test_senders_to_a_silent_broker_wait_together_and_not_in_turn(
        self, wire: Wire, open_worker: OpenWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They share one attempt to connect, and its error; each of eight would have waited for those before it (1 s)."""
        self.give_up_after(1.0, monkeypatch)
        wire.proxy.silent()
        adapter = open_worker(wire.url).adapter
        started = threading.Barrier(8)

        def send(_: int) -> str:
            started.wait(30)
            with pytest.raises(NotPublished) as raised:
                adapter.publish(work())
            return str(raised.value)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(send, range(8)))
        assert {text for text in answers if "no reply" not in text} == set()
        assert 1 <= wire.proxy.connections <= 2, "one attempt, and a second one for a thread that came late"

    # --- Refused ------------------------------------------------------------------------------------------------------

    def test_a_wrong_password_is_final_and_in_no_text(
        self, open_worker: OpenWorker, eventually: Eventually, logs: Logs
    ) -> None:
        """Neither in a signal, nor in an error with all its causes, nor in a line of a library's log (1 s)."""
        worker = open_worker(self.url.replace(self.password, CANARY))
        worker.start()
        gone = eventually(lambda: worker.all(Unreachable))[0]
        assert gone.final
        assert self.wrong_password in gone.cause
        adapter = worker.adapter

        def dead_letters() -> None:
            with adapter.dead_letters() as letters:
                list(letters)

        texts = [repr(worker.received), repr(adapter.__dict__)]
        attempts = {
            "publish": lambda: adapter.publish(work()),
            "exists": adapter.exists,
            "consumers": adapter.consumers,
            "dead_letters": dead_letters,
        }
        for name, attempt in attempts.items():
            if name in self.needs_no_login:
                continue
            with pytest.raises((NotPublished, BrokerUnavailable)) as raised:
                attempt()
            texts += traceback.format_exception(raised.value)
        texts += [*_said(adapter.identity), *_said(lambda: adapter.findings(worker.spec))]
        assert CANARY not in "".join([*texts, *logs.texts])

    def test_a_right_password_is_in_no_text_either(
        self, open_worker: OpenWorker, eventually: Eventually, logs: Logs
    ) -> None:
        """A client library logs much at DEBUG: frames, parameters, connections (1 s)."""
        worker = open_worker()
        worker.start()
        worker.adapter.publish(work())
        worker.adapter.settle(worker.delivery(eventually), Settle.ACK)
        texts = [*_said(worker.adapter.identity), *_said(lambda: worker.adapter.findings(worker.spec))]
        assert logs.texts or not self.loggers
        assert self.password not in "".join([*texts, *logs.texts, repr(worker.adapter.__dict__)])

    def test_a_password_that_is_rotated_is_read_again(
        self, wire: Wire, change_password: Callable[[str], None], open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        """Refused after a first success is not final, and the next connect asks for the URL as it is then (2 s)."""
        urls = [wire.url]
        worker = open_worker(urls[0], fresh_url=lambda: urls[-1])
        worker.start()
        eventually(lambda: worker.all(Connected))
        change_password(CANARY)
        wire.proxy.cut()
        eventually(lambda: [gone for gone in worker.all(Unreachable) if self.wrong_password in gone.cause])
        assert not [gone for gone in worker.all(Unreachable) if gone.final]
        urls.append(urls[0].replace(self.password, CANARY))
        eventually(lambda: len(worker.all(Connected)) == 2)

    def test_a_host_that_is_down_is_passed_by(
        self, wire: Wire, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        """Hosts are tried in a random order, each once: one without an address, one that refuses, one that is up (1 s)."""
        wire.proxy.refuse()
        down = self.down.replace("PORT", str(wire.proxy.port))
        worker = open_worker(at(self.url, f"{down}{hosts_of(self.url)}"))
        worker.start()
        worker.adapter.publish(work())
        assert worker.delivery(eventually).headers[KEY] == "k-1"
        assert not worker.all(Unreachable)

    # --- Stopped ------------------------------------------------------------------------------------------------------

    def test_a_stop_gives_everything_back_at_once(self, open_worker: OpenWorker, eventually: Eventually) -> None:
        """The next consumer gets all, however large the window was (1 s)."""
        first, second = (open_worker(prefetch=5, concurrency=5) for _ in range(2))
        first.start()
        for number in range(5):
            first.adapter.publish(work(f"k-{number}"))
        first.delivery(eventually, 5)
        second.start()
        eventually(lambda: second.all(Connected))
        first.adapter.stop(5)
        second.delivery(eventually, 5)
        assert Counter(signal.delivery.headers[KEY] for signal in second.all(Delivered)) == Counter(
            f"k-{number}" for number in range(5)
        )
        assert [type(signal) for signal in first.received] == [Connected, *[Delivered] * 5]

    def test_stop_is_in_time_in_any_state(self, open_worker: OpenWorker, eventually: Eventually) -> None:
        """Also where a call waits for the broker: it hears of the stop (3 s)."""
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(12))
            states = _States(self, stack, pool, open_worker, eventually)
            workers = states.entered()

            def stopped(worker: Worker) -> float:
                before = time.monotonic()
                worker.adapter.stop(2.0)
                worker.adapter.stop(2.0)  # harmless
                return time.monotonic() - before

            took = dict(zip(workers, pool.map(stopped, workers.values()), strict=True))
            # Five times what was asked for, as the machine may be busy; a wait for the broker would last for 20 s and more.
            assert {state: seconds for state, seconds in took.items() if seconds > 10} == {}
            raised = [call.exception(10) for call in states.calls]
        assert [
            type(error) for error in raised if not isinstance(error, (PublishFailed, Unsettled, StaleDelivery))
        ] == []
        assert len(raised) == 3


class CertificateFaults(FaultBench):
    """Tests of certificates, for a driver whose URL names the authority to trust."""

    def test_tls_with_the_brokers_authority_works_and_without_it_is_final(
        self, tls: Tls, open_worker: OpenWorker, eventually: Eventually
    ) -> None:
        """Neither an unknown authority nor another host's name is trusted (1 s)."""
        good = open_worker(tls.trusted)
        good.start()
        good.adapter.publish(work())
        good.adapter.settle(good.delivery(eventually), Settle.ACK)
        for url in (tls.url, option(tls.trusted, "server_name=broker.example")):
            worker = open_worker(url)
            worker.start()
            gone = eventually(lambda worker=worker: worker.all(Unreachable))[0]
            assert gone.final
            assert "certificate" in gone.cause

    def test_nothing_is_sent_to_a_server_whose_certificate_is_not_trusted(
        self, open_worker: OpenWorker, eventually: Eventually, tmp_path: Path
    ) -> None:
        """No credential, and no other byte, until the certificate is verified (1 s)."""
        with Impostor(tmp_path) as impostor:
            url = at(self.url, f"127.0.0.1:{impostor.port}")
            url = f"{self.tls_scheme}://{url.partition('://')[2]}"
            trusted = option(url, f"cafile={impostor.ca_file}")
            for untrusted in (url, option(trusted, "server_name=broker.example")):
                worker = open_worker(untrusted)
                worker.start()
                gone = eventually(lambda worker=worker: worker.all(Unreachable))[0]
                assert gone.final
                assert "certificate" in gone.cause
                with pytest.raises(NotPublished):
                    worker.adapter.publish(work())
                worker.adapter.stop(5)
            eventually(lambda: impostor.refused >= 4)
            assert impostor.received == []
            open_worker(trusted).start()
            eventually(lambda: impostor.received)  # so it would have heard the others


class _States:
    """Workers in the states that a stop can find, each behind a proxy of its own; the network does not heal."""

    def __init__(
        self,
        bench: FaultBench,
        stack: ExitStack,
        pool: ThreadPoolExecutor,
        open_worker: OpenWorker,
        eventually: Eventually,
    ) -> None:
        self._bench = bench
        self._stack = stack
        self._pool = pool
        self._open_worker = open_worker
        self._eventually = eventually
        self._proxies: dict[Worker, Proxy] = {}
        self.calls: list[Future[object]] = []
        """Calls of other threads that wait for the broker."""

    def entered(self) -> dict[str, Worker]:
        """Return a worker in each state."""
        # Before any fault: a worker that has settled, and hears nothing, would be sent the others' messages.
        holding, settling, publishing, writing = (self._holding() for _ in range(4))
        held = settling.delivery(self._eventually)
        self._proxies[holding].stall()
        self._proxies[writing].hold("up")
        self.calls.append(self._pool.submit(writing.adapter.publish, work(body=bytes(self._bench.large))))
        self._waits(settling, lambda: settling.adapter.settle(held, Settle.ACK))
        self._waits(publishing, lambda: publishing.adapter.publish(work()))
        return {
            "not started": self._behind_a_proxy(),
            "connects": self._connecting(),
            "waits for the next try": self._refused(),
            "holds a delivery": holding,
            "settles": settling,
            "publishes": publishing,
            "writes a large body": writing,
        }

    def _behind_a_proxy(self) -> Worker:
        proxy = self._stack.enter_context(Proxy(self._bench.url))
        worker = self._open_worker(self._bench.through(proxy, self._bench.url), max_body=self._bench.large)
        self._proxies[worker] = proxy
        return worker

    def _connecting(self) -> Worker:
        worker = self._behind_a_proxy()
        self._proxies[worker].silent()
        worker.start()
        self._proxies[worker].wait_connections(1)
        return worker

    def _refused(self) -> Worker:
        worker = self._behind_a_proxy()
        self._proxies[worker].refuse()
        worker.start()
        self._eventually(lambda: worker.all(Unreachable))
        return worker

    def _holding(self) -> Worker:
        """
        Return a worker that has published, and holds a delivery.

        Where a message waits behind another worker's delivery (`waits_behind`), it publishes another one.
        """
        worker = self._behind_a_proxy()
        worker.start()
        published = -math.inf

        def delivered() -> list[Delivered]:
            nonlocal published
            late = time.monotonic() - published > (5.0 if self._bench.waits_behind else math.inf)
            if not worker.all(Delivered) and (late or published == -math.inf):
                worker.adapter.publish(work())
                published = time.monotonic()
            return worker.all(Delivered)

        self._eventually(delivered)
        return worker

    def _waits(self, worker: Worker, call: Callable[[], object]) -> None:
        """Start a call in another thread, which waits for the broker's answer; return when it has written something."""
        proxy = self._proxies[worker]
        proxy.drop("down")
        before = proxy.passed("up")
        self.calls.append(self._pool.submit(call))
        proxy.wait_passed(before + 1, "up")


class FaultSuite(BrokerFaults, CertificateFaults, NetworkFaults):
    """The faults that every network broker's adapter must bear; a subclass fills in what `FaultBench` lists."""


@pytest.mark.slow
class TlsFaultSuite(NetworkFaults):
    """The faults of the network again, over TLS."""

    before_handshake = 3000
    stride = 6

    @pytest.fixture
    def wire(self, tls: Tls) -> Iterator[Wire]:
        """Return the way to the TLS listener."""
        with Proxy(tls.url) as proxy:
            yield Wire(proxy, self.through(proxy, tls.trusted), tls.trusted)


def _said(question: Callable[[], object]) -> list[str]:
    """Return the texts of the answer, or of the error in its place: some adapters answer without a connection."""
    try:
        return [repr(question())]
    except SteadyWorkerError as error:
        return traceback.format_exception(error)
