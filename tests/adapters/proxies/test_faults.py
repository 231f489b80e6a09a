"""How the driver for RocketMQ's proxies behaves when proxies, files and threads do not; at proxies in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from steadyworker.adapter import Connected, Lost, Settings, Settle, Settled, Target, Undelivered, Unreachable
from steadyworker.errors import ConfigError, NotPublished, Unsettled
from steadyworker.network.backoff import Backoff
from steadyworker_rocketmq.errors import ProxyError
from steadyworker_rocketmq.grpc import consumer, held, later
from steadyworker_rocketmq.grpc.later import Mover
from tests.adapters.cuts import noted_cuts
from tests.adapters.proxies.fake import INTERNAL, TOO_LARGE, FakeProxy
from tests.adapters.proxies.kit import DELAYED, QUEUE, WITHIN, Worker, work
from tests.support.stage import eventually

pytestmark = pytest.mark.long


def raising(error: Exception, *calls: tuple[str, str]) -> Callable[[str, str], None]:
    def fail(name: str, topic: str) -> None:
        if (name, topic) in calls:
            raise error

    return fail


class File:
    """The file of the broker's URL, which can be unreadable for a moment."""

    def __init__(self) -> None:
        self.readable = True
        self.failures = 0

    def __call__(self) -> str:
        if self.readable:
            return "rocketmq+grpc://proxy?members=off"
        self.failures += 1
        raise ConfigError("Expected a file with the broker's URL, got none.")


class TestUrl:
    """A file of the URL that cannot be read while an operator writes it."""

    def test_the_consumer_goes_on_afterwards(self, proxy: FakeProxy) -> None:
        file = File()
        with Worker(prefetch=0, settings=Settings(fresh_url=file)) as worker:
            worker.wait(Connected)
            worker.adapter.publish(work())
            file.readable = False
            worker.adapter.prefetch(1)
            eventually(lambda: file.failures, "a read of the file", WITHIN)
            file.readable = True
            assert worker.adapter.settle(worker.delivery(), Settle.ACK) is Settled.SENT

    def test_what_is_held_is_renewed_and_settled_without_the_file(self, proxy: FakeProxy) -> None:
        file = File()
        with Worker(settings=Settings(fresh_url=file), options="&invisible=10") as worker:
            worker.adapter.publish(work())
            delivery = worker.delivery()
            file.readable = False
            eventually(lambda: proxy.called("renew", QUEUE), "a renewal", WITHIN)
            assert worker.adapter.settle(delivery, Settle.ACK) is Settled.SENT
            assert not worker.all(Unreachable)

    def test_a_publish_that_fails_meanwhile_is_reported_as_such(self, proxy: FakeProxy) -> None:
        file = File()
        with Worker(prefetch=0, settings=Settings(fresh_url=file)) as worker:
            worker.adapter.publish(work())
            file.readable = False
            proxy.missing.add(QUEUE)
            with pytest.raises(NotPublished):
                worker.adapter.publish(work())


class TestMover:
    """The thread that moves delayed messages."""

    def test_an_error_that_nothing_foresaw_does_not_end_it(self, proxy: FakeProxy) -> None:
        proxy.fail = raising(KeyError("a defect of the library"), ("receive", DELAYED))
        with Worker() as worker:
            eventually(lambda: proxy.called("receive", DELAYED), "a poll", WITHIN)
            proxy.fail = raising(KeyError())
            worker.adapter.publish(work(to=Target.LATER, delay=0.2))
            worker.delivery()

    def test_a_session_that_no_proxy_comes_to_know_is_replaced(
        self, proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(later, "EARLY_FOR", 0.2)
        monkeypatch.setattr(later, "EARLY_EVERY", 0.05)

        def fail(name: str, topic: str) -> None:
            sessions = [session for session in proxy.sessions if session.topic == DELAYED]
            if (name, topic) == ("receive", DELAYED) and len(sessions) == 1:
                raise ProxyError('"settings" is null', INTERNAL)

        proxy.fail = fail
        with Worker() as worker:
            worker.adapter.publish(work(to=Target.LATER, delay=0.2))
            worker.delivery()

    def test_a_lasting_failure_is_reported_and_so_is_its_end(self, proxy: FakeProxy) -> None:
        """The jobs go on meanwhile."""
        proxy.fail = raising(ProxyError("the group is gone", INTERNAL), ("receive", DELAYED))
        with Worker() as worker:
            worker.adapter.publish(work("k-1", Target.LATER, 0.2))
            assert f"the delayed messages of the topic '{DELAYED}'" in worker.wait(Unreachable).cause
            worker.adapter.publish(work("k-2"))
            assert worker.adapter.settle(worker.delivery(), Settle.ACK) is Settled.SENT
            assert len(worker.all(Connected)) == len(worker.all(Unreachable)) == 1
            proxy.fail = raising(KeyError())
            assert worker.wait(Connected, 2).epoch == 1
            worker.delivery(2)

    @staticmethod
    def two_due(worker: Worker, proxy: FakeProxy, refusals: list[tuple[str, str, ProxyError]]) -> None:
        """Let two messages be due and come in one poll; each refusal is of one call with its name and topic, and then removed."""

        def fail(name: str, topic: str) -> None:
            for refusal in [*refusals]:
                if refusal[:2] == (name, topic):
                    refusals.remove(refusal)
                    raise refusal[2]

        for key in ("k-1", "k-2"):
            worker.adapter.publish(work(key, Target.LATER, 0.1))
        time.sleep(0.2)  # both are due then; nothing polls yet, so no event shows it
        proxy.fail = fail
        worker.adapter.prefetch(2)

    def test_one_message_that_cannot_be_moved_does_not_keep_the_others(self, proxy: FakeProxy) -> None:
        with Worker(prefetch=0) as worker:
            self.two_due(worker, proxy, [("send", QUEUE, ProxyError("busy", 42900))])
            assert worker.delivery().headers["sw-job-key"] == "k-2"

    def test_a_message_whose_copy_is_refused_for_good_becomes_a_dead_letter(self, proxy: FakeProxy) -> None:
        with Worker(prefetch=0) as worker:
            self.two_due(worker, proxy, [("send", QUEUE, ProxyError("a limit of this proxy", TOO_LARGE))])
            undelivered = worker.wait(Undelivered)
            assert (undelivered.key, undelivered.error.id) == ("k-1", "rocketmq.properties-too-long")
            assert f"'%DLQ%{DELAYED}'" in undelivered.fate
            assert worker.delivery().headers["sw-job-key"] == "k-2"
            (letter,) = proxy.waiting(f"%DLQ%{DELAYED}")
            assert letter.wire.properties["sw-job-key"] == "k-1"
            eventually(lambda: not proxy.waiting(DELAYED), "both have left the topic", WITHIN)
            assert not worker.all(Unreachable)
            assert [session.topic for session in proxy.sessions].count(DELAYED) == 1, "no reconnect"

    def test_a_message_that_the_broker_does_not_move_either_is_kept_and_tried_ever_more_rarely(
        self, proxy: FakeProxy
    ) -> None:
        copy = ("send", QUEUE, ProxyError("a limit of this proxy", TOO_LARGE))
        move = ("forward", DELAYED, ProxyError("MESSAGE_ILLEGAL", INTERNAL))
        refusals = [copy, move]
        with Worker(prefetch=0) as worker:
            self.two_due(worker, proxy, refusals)
            other = worker.delivery()
            assert other.headers["sw-job-key"] == "k-2"
            assert worker.adapter.settle(other, Settle.ACK) is Settled.SENT
            assert "keeps the message" in worker.wait(Undelivered).fate
            for number, minutes in enumerate((10, 20), 1):
                eventually(lambda: proxy.called("renew", DELAYED) == number, "it is kept", WITHIN)  # noqa: B023
                (kept,) = proxy.waiting(DELAYED)
                assert 60 * minutes - 30 < kept.visible_at - time.time() - proxy.skew <= 60 * minutes
                refusals += [copy, move] if number == 1 else []
                proxy.skew += 60 * minutes
            assert worker.delivery(2).headers["sw-job-key"] == "k-1", "the limit was raised"
            assert not worker.all(Unreachable)
            assert len(worker.all(Undelivered)) == 1, "it is reported once"
            assert [session.topic for session in proxy.sessions].count(DELAYED) == 1, "no reconnect"

    def test_only_the_io_thread_starts_and_stops_it(self, proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        """Otherwise the runner's thread could stop it after a reconnect, because of what it read before."""
        threads: set[str] = set()
        wanted = Mover.wanted

        def noted(mover: Mover, *, wanted: bool, original: Callable[..., None] = wanted) -> None:
            threads.add(threading.current_thread().name)
            original(mover, wanted=wanted)

        monkeypatch.setattr(Mover, "wanted", noted)
        with Worker() as worker:
            worker.adapter.publish(work(to=Target.LATER, delay=0.1))
            worker.delivery()
            worker.adapter.prefetch(0)
        assert threads == {f"rocketmq {QUEUE}"}


class TestStop:
    """A stop answers every settlement, closes every session, and keeps to its time."""

    def test_while_no_proxy_replies(self, proxy: FakeProxy) -> None:
        answers: list[object] = []
        with Worker() as worker:
            worker.adapter.publish(work())
            delivery = worker.delivery()
            proxy.up = False
            worker.wait(Unreachable)
            worker.adapter.settle_async(delivery, Settle.ACK, answers.append)
            worker.adapter.stop(5.0)
            eventually(lambda: answers, "an answer", 1.0)
        assert [type(answer) for answer in answers] == [Unsettled]
        eventually(lambda: all(session.is_closed for session in proxy.sessions), "closed sessions", WITHIN)

    def test_when_its_settlements_fail(self, proxy: FakeProxy) -> None:
        answers: list[object] = []
        with Worker(prefetch=2) as worker:
            worker.adapter.publish(work("k-1"))
            worker.adapter.publish(work("k-2"))
            delivery = worker.delivery(2)
            begun, failing = threading.Event(), threading.Event()

            def fail(name: str, _topic: str) -> None:
                if name == "ack":
                    begun.set()
                    failing.wait(WITHIN)
                    raise ProxyError("the proxy is away", status="UNAVAILABLE")

            proxy.fail = fail
            worker.adapter.settle_async(delivery, Settle.ACK, answers.append)
            assert begun.wait(WITHIN)
            threading.Timer(0.2, failing.set).start()
            worker.adapter.stop(5.0)
            eventually(lambda: answers, "an answer", 1.0)
        assert [type(answer) for answer in answers] == [Unsettled]
        eventually(lambda: all(session.is_closed for session in proxy.sessions), "closed sessions", WITHIN)

    def test_when_no_call_ends(self, proxy: FakeProxy) -> None:
        answers: list[object] = []
        over = threading.Event()
        try:
            with Worker() as worker:
                worker.adapter.publish(work())
                delivery = worker.delivery()

                def hang(name: str, _topic: str) -> None:
                    if name in {"ack", "close"}:
                        over.wait(WITHIN)

                proxy.fail = hang
                worker.adapter.settle_async(delivery, Settle.ACK, answers.append)
                began = time.monotonic()
                worker.adapter.stop(1.0)
                assert time.monotonic() - began < 5
                eventually(lambda: answers, "an answer", 1.0)
            assert [type(answer) for answer in answers] == [Unsettled]
            eventually(lambda: all(session.is_closed for session in proxy.sessions), "closed sessions", WITHIN)
        finally:
            over.set()


class TestConnection:
    """Reconnects."""

    def test_a_restart_of_the_proxy_during_a_job_loses_nothing(
        self, proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a full window nothing polls: the first call on the new session is a renewal, for which it is too early."""
        monkeypatch.setattr(held, "EARLY_FOR", 2.0)
        with Worker(options="&invisible=10") as worker:
            worker.adapter.publish(work())
            delivery = worker.delivery()
            proxy.early_for = 1.0
            proxy.restart()
            worker.wait(Connected, 2)
            eventually(lambda: proxy.topics[QUEUE][0].visible_at > time.time() + 9.5, "a renewal", WITHIN)
            assert worker.adapter.settle(delivery, Settle.ACK) is Settled.SENT
            assert len(worker.all(Unreachable)) == 1
            assert not worker.all(Lost)

    def test_an_early_acknowledgement_waits(self, proxy: FakeProxy) -> None:
        proxy.early_for = 0.5
        with Worker() as worker:
            worker.adapter.publish(work())
            delivery = worker.delivery()
            error = ProxyError('"channel" is null', INTERNAL)
            proxy.fail = raising(error, ("ack", QUEUE))
            threading.Timer(0.3, lambda: setattr(proxy, "fail", raising(error))).start()
            assert worker.adapter.settle(delivery, Settle.ACK) is Settled.SENT
            assert not worker.all(Unreachable)

    def test_what_is_held_makes_the_reconnect_soon(self, proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        """A third refused try would come after 10 s to 20 s, and the broker keeps a message for 60 s only."""
        monkeypatch.setattr(Backoff, "refused", lambda _: 1000.0)
        with Worker() as worker:
            worker.adapter.publish(work())
            delivery = worker.delivery()
            proxy.up = False
            worker.wait(Unreachable)
            eventually(lambda: proxy.called("route", QUEUE) > 8, "some tries", WITHIN)
            proxy.up = True
            worker.wait(Connected, 2)
            assert worker.adapter.settle(delivery, Settle.ACK) is Settled.SENT

    def test_a_connection_that_has_settled_a_message_was_useful(
        self, proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So the reconnect comes soon, also after some cuts of connections that were short."""
        monkeypatch.setattr(consumer, "USEFUL_AFTER", 1000.0)
        with Worker() as worker:
            cuts = noted_cuts(worker.adapter._consumer._backoff, monkeypatch)
            worker.wait(Connected)
            proxy.up = False
            worker.wait(Unreachable)
            proxy.up = True
            worker.wait(Connected, 2)
            assert not cuts
            worker.adapter.publish(work())
            assert worker.adapter.settle(worker.delivery(), Settle.ACK) is Settled.SENT
            proxy.up = False
            eventually(lambda: cuts, "a cut", WITHIN)
            assert cuts == [True]

    def test_only_the_loss_of_a_connection_is_a_cut(self, proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        """If each refused try counted as the cut of a useful connection, all workers would try twice a second."""
        monkeypatch.setattr(consumer, "USEFUL_AFTER", 0.0)
        proxy.up = False
        worker = Worker(prefetch=0)
        cuts = noted_cuts(worker.adapter._consumer._backoff, monkeypatch)
        with worker:
            eventually(lambda: proxy.called("route", QUEUE) > 3, "some tries", WITHIN)
            assert not cuts
            proxy.up = True
            worker.wait(Connected)
            proxy.up = False
            tries = proxy.called("route", QUEUE)
            eventually(lambda: proxy.called("route", QUEUE) > tries + 3, "some tries", WITHIN)
        assert cuts == [True]
