"""What `check` finds on ActiveMQ: each finding has its remedy, a healthy broker has none, and nothing is changed by the look."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from steadyworker.adapter import Delivered, QueueSpec, Settings, Signal, Uncounted, Unreachable
from steadyworker.errors import BrokerUnavailable, Finding, NotPublished
from steadyworker.network import owed
from steadyworker_stomp import StompAdapter
from steadyworker_stomp.checks.risks import ArtemisQueue, risks
from steadyworker_stomp.checks.versions import OLDEST, version_findings
from steadyworker_stomp.dialects import ARTEMIS, CLASSIC, Dialect
from tests.adapters.stomp_kit import work
from tests.brokers.activemq import Classic
from tests.brokers.fixtures import NEWEST
from tests.brokers.stomp_broker import LACKING, LIMITED, StompBroker
from tests.faults.proxy import Proxy
from tests.support.stage import eventually

Find = Callable[..., list[Finding]]


@pytest.fixture
def spec(queue: str) -> QueueSpec:
    return QueueSpec(queue, f"{queue}.dead")


@pytest.fixture
def open_adapter(spec: QueueSpec) -> Iterator[Callable[..., StompAdapter]]:
    with ExitStack() as stack:

        def make(url: str, **settings: Any) -> StompAdapter:
            adapter = StompAdapter(url, spec, Settings(**settings))
            stack.callback(adapter.stop, 5)
            return adapter

        yield make


@pytest.fixture
def find(spec: QueueSpec, open_adapter: Callable[..., StompAdapter]) -> Find:
    """The findings of an adapter of its own, without those that every broker has as these tests start it."""

    def found(url: str, *, usual: bool = False, **settings: Any) -> list[Finding]:
        findings = open_adapter(url, **settings).findings(spec)
        return [each for each in findings if usual or not (is_note(each) or is_limit(each) or is_weakness(each))]

    return found


def is_note(finding: Finding) -> bool:
    """Classic reports no policies."""
    return finding.level == "note" and "does not report over STOMP" in finding.what


def is_weakness(finding: Finding) -> bool:
    """The oldest Classic of the tests is older than a mended weakness of another protocol."""
    return "CVE-2025-27533" in finding.what and " 5.18.3 " in finding.what


def is_limit(finding: Finding) -> bool:
    """Artemis gives a message up after ten lost connections unless its settings differ."""
    return finding.level == "warning" and "becomes a dead letter after 10 lost connections" in finding.what


def as_user(broker: StompBroker, user: str) -> str:
    parts = urlsplit(broker.url)
    return parts._replace(netloc=f"{user}:{quote(broker.password)}@{parts.netloc.rpartition('@')[2]}").geturl()


def give(broker: StompBroker, *queues: str) -> None:
    """Create the queues, each with two messages."""
    with broker.client() as client:
        for queue in queues:
            for number in range(2):
                client.send(queue, b"%d" % number)


# --- A healthy broker -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["declare", "verify", "trust"])
def test_a_healthy_broker_has_no_problem_and_is_not_changed(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find, topology: str
) -> None:
    """The messages are in their order, and none was delivered."""
    give(stomp_broker, spec.queue, spec.dead_letter_queue)
    assert find(stomp_broker.url, topology=topology) == []
    with stomp_broker.client() as client:
        for queue in (spec.queue, spec.dead_letter_queue):
            assert stomp_broker.depth(queue) == 2
            client.subscribe(queue, queue)
            for number in range(2):
                message = client.message()
                assert message.body == b"%d" % number
                assert message.headers.get("redelivered", "false") == "false"
                client.ack(message)


@pytest.mark.parametrize("topology", ["declare", "verify", "trust"])
def test_a_search_creates_no_queue(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find, open_adapter: Callable[..., StompAdapter], topology: str
) -> None:
    find(stomp_broker.url, topology=topology)
    assert not open_adapter(stomp_broker.url).exists()


def test_another_listener_of_the_broker_has_no_problem_and_leads_to_the_same_queue(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find, open_adapter: Callable[..., StompAdapter]
) -> None:
    """NIO on Classic; on Artemis one with prefixes for queues and topics."""
    assert find(stomp_broker.other_url) == []
    open_adapter(stomp_broker.other_url).publish(work())
    assert stomp_broker.depth(spec.queue) == 1


def test_what_is_usual_on_each_broker_is_reported(stomp_broker: StompBroker, find: Find) -> None:
    *weak, usual = find(stomp_broker.url, usual=True)
    assert all(is_weakness(each) for each in weak)
    if stomp_broker.is_artemis:
        assert is_limit(usual)
        assert "<max-delivery-attempts>-1</max-delivery-attempts>" in usual.remedy
    else:
        assert is_note(usual)
        assert "activemq.xml" in usual.remedy


def test_a_worker_that_consumes_is_not_asked_what_it_waits_for_itself(
    stomp_broker: StompBroker, spec: QueueSpec, open_adapter: Callable[..., StompAdapter]
) -> None:
    """Nor does it send probes; a missing dead-letter queue comes with the first dead letter."""
    adapter = open_adapter(stomp_broker.url, topology="verify")
    signals: list[Signal] = []
    give(stomp_broker, spec.queue)
    adapter.start(signals.append)
    adapter.prefetch(1)
    eventually(lambda: any(isinstance(signal, Delivered) for signal in signals), "a delivery")
    found = adapter.findings(spec)
    assert [each for each in found if not (is_note(each) or is_limit(each) or is_weakness(each))] == []


# --- Rights and missing queues ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", LACKING)
def test_a_missing_right_is_named_with_the_line_that_grants_it(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find, user: str
) -> None:
    give(stomp_broker, spec.queue, spec.dead_letter_queue)
    lacks, classic = {"no-consume": ("consume from", "read"), "no-send": ("send to", "write")}[user]
    right = user.removeprefix("no-") if stomp_broker.is_artemis else classic
    found = find(as_user(stomp_broker, user))
    assert [finding.level for finding in found] == ["error", "error"]
    for finding, queue in zip(found, (spec.queue, spec.dead_letter_queue), strict=True):
        assert finding.what.startswith(f"User {user!r} may not {lacks} {queue!r}: ")
        assert f"the right {right!r}" in finding.remedy
        assert ("broker.xml" if stomp_broker.is_artemis else f'queue="{queue}" {right}="GROUP"') in finding.remedy
    assert stomp_broker.depth(spec.queue) == 2


def test_a_message_that_the_user_may_not_send_was_not_sent(
    stomp_broker: StompBroker, spec: QueueSpec, open_adapter: Callable[..., StompAdapter]
) -> None:
    give(stomp_broker, spec.queue)
    with pytest.raises(NotPublished, match=r"not authorized|AMQ339011|AMQ229032"):
        open_adapter(as_user(stomp_broker, "no-send"), topology="trust").publish(work())
    assert stomp_broker.depth(spec.queue) == 2


def test_a_user_who_may_not_count_learns_which_right_is_missing(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find
) -> None:
    """The queues are then unknown, too, and no probe creates them."""
    (finding,) = find(stomp_broker.limited_url, topology="verify")
    if "ActiveMQ/5." in stomp_broker.server:  # which needs that right for our temporary queues, too
        assert finding.level == "error"
        assert "grant the user read, write and admin for the topics ActiveMQ.Advisory.>" in finding.what
        return
    assert finding.level == "warning"
    assert finding.what.startswith(f"User {LIMITED!r} cannot count the consumers of {spec.queue!r}")
    assert ("the rights manage" if stomp_broker.is_artemis else "ActiveMQ.Advisory.>") in finding.remedy
    assert stomp_broker.counts(spec.queue).consumers == 0


@pytest.mark.timeout(60)
def test_a_silent_host_delays_no_question_by_more_than_a_moment(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts, sends nothing, and is always the first to be asked; without a head start for the next one, each question took 20 s."""
    give(stomp_broker, spec.queue, spec.dead_letter_queue)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        login, _, hosts = stomp_broker.url.rpartition("@")
        url = f"{login}@127.0.0.1:{silent.getsockname()[1]},{hosts}"
        monkeypatch.setattr("random.sample", lambda addresses, _: list(addresses))
        began = time.monotonic()
        assert find(url) == []
        assert time.monotonic() - began < 12  # ten questions at most


@pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)  # whose part two sockets play
def test_each_question_to_a_silent_broker_ends_after_ten_seconds(
    spec: QueueSpec, open_adapter: Callable[..., StompAdapter]
) -> None:
    """Also if it has several hosts, all of them silent."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = [each.getsockname()[1] for each in (one, two)]
        adapter = open_adapter(f"stomp://u:p@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")

        def seconds(question: Callable[[], object]) -> float:
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable, match="no reply to the login within 10 s"):
                question()
            return time.monotonic() - began

        questions = (adapter.consumers, adapter.exists, lambda: adapter.findings(spec))
        with ThreadPoolExecutor(3) as threads:
            assert all(9 < each < 13 for each in threads.map(seconds, questions))


@pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)
def test_messages_that_the_broker_confirmed_and_dropped_are_counted(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find
) -> None:
    """A sender without a routing type comes before the queue: the broker confirms its messages, and no consumer gets its jobs."""
    (broker,) = stomp_broker.jolokia.search("org.apache.activemq.artemis:broker=*")
    stomp_broker.jolokia.execute(broker, "createAddress(java.lang.String,java.lang.String)", spec.queue, "MULTICAST")
    (empty,) = find(stomp_broker.url)
    assert f"The address {spec.queue!r} is multicast and has no queue" in empty.what
    with stomp_broker.client() as client:
        for _ in range(2):
            client.send_frame("SEND", {"destination": spec.queue, "persistent": "true"}, b"{}", receipt=True)
        (dropped,) = find(stomp_broker.url)
        assert f"has confirmed and dropped 2 messages to {spec.queue!r}" in dropped.what
        client.send(spec.queue, b"kept")
        client.subscribe(spec.queue)
        assert client.message().body == b"kept"
    (again,) = find(stomp_broker.url)
    assert again == dropped
    assert (dropped.level, dropped.id, empty.id) == ("warning", *["artemis.unrouted-messages"] * 2)
    assert "destination-type:ANYCAST" in dropped.remedy


def test_a_missing_queue_is_an_error_where_the_adapter_must_not_create_it(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find
) -> None:
    give(stomp_broker, spec.queue)
    (dead,) = find(stomp_broker.url, topology="verify")
    assert dead.level == "error"
    assert f"Expected the dead-letter queue {spec.dead_letter_queue!r} on the broker, got none" in dead.what
    assert ("broker.xml" if stomp_broker.is_artemis else "activemq.xml") in dead.remedy
    assert find(stomp_broker.url, topology="declare") == find(stomp_broker.url, topology="trust") == []


def test_a_wrong_password_is_an_error_and_a_broker_that_is_away_is_not(stomp_broker: StompBroker, find: Find) -> None:
    (finding,) = find(stomp_broker.url.replace(stomp_broker.password, "c4n4ry"))
    assert finding.level == "error"
    assert "user and password in --broker" in finding.what
    assert "c4n4ry" not in str(finding)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(BrokerUnavailable, match="Connection refused"):
        find(f"stomp://127.0.0.1:{port}")


@pytest.mark.parametrize("rabbitmq_series", [NEWEST], indirect=True)
def test_rabbitmqs_plugin_is_refused_with_the_remedy(rabbitmq_stomp: str) -> None:
    """It refuses us first, because the name of a host is no virtual host; with one of this name, its own name shows what it is."""
    spec = QueueSpec("exports", "exports.dead")
    adapter = StompAdapter(rabbitmq_stomp, spec, Settings())
    signals: SimpleQueue[Signal] = SimpleQueue()
    try:
        (finding,) = adapter.findings(spec)
        assert finding.level == "error"
        assert "RabbitMQ's STOMP plugin" in finding.what
        assert "amqp://" in finding.what
        adapter.start(signals.put)
        unreachable = signals.get(timeout=30)
        assert isinstance(unreachable, Unreachable)
        assert unreachable.final
    finally:
        adapter.stop(5)


# --- What the broker does ---------------------------------------------------------------------------------------------


def test_classic_without_its_scheduler_is_an_error_with_the_line_that_switches_it_on(
    bare_classic: Classic,
) -> None:
    """And one without advisory messages, which lists no consumer and no queue: that is no knowledge of them."""
    spec = QueueSpec("exports", "exports.dead")
    adapter = StompAdapter(bare_classic.url, spec, Settings())
    trusting = StompAdapter(bare_classic.url, spec, Settings(topology="trust"))
    try:
        finding, uncounted = [each for each in adapter.findings(spec) if not is_note(each)]
        assert finding.level == "error"
        assert 'schedulerSupport="true"' in finding.remedy
        assert 'advisorySupport="true"' in uncounted.remedy
        assert trusting.findings(spec) == [uncounted]
        found = adapter.consumers()
        assert isinstance(found, Uncounted)
        assert found.why.startswith("the broker sends no advisory messages")
        assert adapter.exists()
    finally:
        adapter.stop(5)
        trusting.stop(5)


@pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)
def test_a_body_over_the_brokers_limit_is_an_error_with_the_limit_to_raise(
    stomp_broker: StompBroker, find: Find
) -> None:
    (finding,) = find(stomp_broker.url, max_body=100 << 20)
    assert finding.level == "error"
    assert f"a message of {100 << 20} bytes" in finding.what
    assert "wireFormat.maxFrameSize" in finding.remedy
    assert find(stomp_broker.url, max_body=10 << 20) == []


@contextmanager
def rewriting(
    url: str, up: Mapping[bytes, bytes], down: Mapping[bytes, bytes], *, stalls: Sequence[bytes] = ()
) -> Iterator[str]:
    """A proxy that replaces bytes of the frames on the way up or down, and swallows all from one of `stalls` on; its URL."""
    parts = urlsplit(url)
    opened: list[socket.socket] = []

    def copy(source: socket.socket, target: socket.socket, replaced: Mapping[bytes, bytes]) -> None:
        stalled = False
        with suppress(OSError):
            while data := source.recv(1 << 16):
                stalled = stalled or any(part in data for part in stalls)
                if stalled:
                    continue
                for old, new in replaced.items():
                    data = data.replace(old, new)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                upstream = socket.create_connection((str(parts.hostname), parts.port))
                opened.extend((client, upstream))
                for pair in ((client, upstream, up), (upstream, client, down)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        host = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{server.getsockname()[1]}"
        yield parts._replace(netloc=host).geturl()
        server.shutdown(socket.SHUT_RDWR)
    for each in opened:
        each.close()


def unanswered(found: Sequence[Finding]) -> list[str]:
    """Return the texts of the findings about questions without an answer."""
    findings = [each for each in found if each.id == "stomp.unanswered"]
    assert {each.level for each in findings} <= {"warning"}
    return [each.what for each in findings]


@pytest.mark.parametrize(
    ("stomp_kind", "frame", "question"),
    [
        ("classic", b"ActiveMQ.Advisory.Consumer.Queue.", "how many consumers {queue!r} has"),
        ("artemis", b"listConsumersAsJSON", "how many consumers {queue!r} has"),
        pytest.param("classic", b"AMQ_SCHEDULED_DELAY", "whether the broker delays messages", marks=pytest.mark.slow),
        pytest.param(
            "classic", b"subscription:first", "whether the broker honours the prefetch", marks=pytest.mark.slow
        ),
        pytest.param("classic", b"content-length:1058576", "whether the broker accepts a body", marks=pytest.mark.slow),
        pytest.param("classic", b"ABORT", "whether the user may send to {queue!r}", marks=pytest.mark.slow),
        pytest.param("artemis", b"ABORT", "whether the user may send to {queue!r}", marks=pytest.mark.slow),
    ],
    indirect=["stomp_kind"],
)
def test_a_question_without_an_answer_is_named_and_the_others_are_asked(
    stomp_broker: StompBroker,
    spec: QueueSpec,
    find: Find,
    monkeypatch: pytest.MonkeyPatch,
    frame: bytes,
    question: str,
) -> None:
    """A proxy swallows one frame of one question, and all behind it; it is a warning, so `check` does not report that all is well."""
    monkeypatch.setattr(owed, "QUESTION_WITHIN", 3.0)
    give(stomp_broker, spec.queue)
    with rewriting(stomp_broker.url, {}, {}, stalls=[frame]) as url:
        began = time.monotonic()
        found = find(url, topology="verify")
        assert 3 < time.monotonic() - began < 6
    (text,) = unanswered(found)
    assert text.startswith(f"The check could not find out {question.format(queue=spec.queue)}")
    assert "within 3 s" in text
    assert [each.id for each in found if each.id != "stomp.unanswered"] == ["stomp.missing-queue"]


def test_after_two_questions_without_an_answer_the_check_names_what_it_did_not_ask(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker accepts each connection and its login, and answers nothing else."""
    monkeypatch.setattr(owed, "QUESTION_WITHIN", 1.0)
    give(stomp_broker, spec.queue)
    with rewriting(stomp_broker.url, {}, {}, stalls=[b"SUBSCRIBE", b"SEND"]) as url:
        began = time.monotonic()
        found = find(url, topology="verify")
        assert 2 < time.monotonic() - began < 4
    assert [each.id for each in found] == ["stomp.unanswered"] * 3
    first, second, unasked = unanswered(found)
    count, exists = f"how many consumers {spec.queue!r} has", f"whether {spec.queue!r} exists"
    asked = (count, exists) if stomp_broker.is_artemis else ("whether the broker delays", "whether the broker honours")
    assert [asked[0] in first, asked[1] in second] == [True, True]
    assert unasked.startswith("As questions got no answer, the check did not ask ")
    assert f"whether {spec.dead_letter_queue!r} exists" in unasked
    assert (count in unasked, exists in unasked) == (not stomp_broker.is_artemis,) * 2


@pytest.mark.slow
@pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)
def test_a_queue_that_may_not_exist_is_not_probed_and_that_is_reported(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owed, "QUESTION_WITHIN", 3.0)
    with rewriting(stomp_broker.url, {}, {}, stalls=[b"/topic/ActiveMQ.Advisory.Queue\n"]) as url:
        *exist, unasked = unanswered(find(url))
    assert [f"whether {queue!r} exists" in text for text, queue in zip(exist, queues(spec), strict=True)] == [True] * 2
    assert all(f"which rights the user has on {queue!r}" in unasked for queue in queues(spec))
    assert "whether the broker accepts a body" in unasked
    assert stomp_broker.all_counts(spec.queue) == {}


@pytest.mark.slow
@pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)
def test_the_limit_is_for_the_question_and_not_for_each_of_its_requests(
    stomp_broker: StompBroker, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A distant broker answers each request in time; the question about the prefetch has eight requests, the count has two."""
    monkeypatch.setattr(owed, "QUESTION_WITHIN", 2.5)
    with Proxy(stomp_broker.url) as proxy:
        proxy.delay(0.25)
        (text,) = unanswered(find(proxy.url))
    assert "whether the broker honours the prefetch" in text


def queues(spec: QueueSpec) -> tuple[str, str]:
    return spec.queue, spec.dead_letter_queue


@pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)
def test_a_proxy_that_removes_the_prefetch_is_an_error(stomp_broker: StompBroker, find: Find) -> None:
    with rewriting(stomp_broker.url, {b"activemq.prefetchSize:1\n": b""}, {}) as url:
        (finding,) = find(url)
    assert finding.level == "error"
    assert "more messages than it asks for" in finding.what
    assert "activemq.prefetchSize" in finding.remedy


def test_heart_beats_that_one_side_does_not_want_are_warnings(stomp_broker: StompBroker, find: Find) -> None:
    def warnings(pair: bytes) -> list[str]:
        ours = {b"heart-beat:60000,60000": b"heart-beat:" + pair}
        with rewriting(stomp_broker.url, {}, ours) as url:
            found = find(url)
        assert {finding.level for finding in found} == {"warning"}
        return [finding.what for finding in found]

    (vanished_worker,) = warnings(b"60000,0")
    assert "never notices a vanished worker" in vanished_worker
    (vanished_broker,) = warnings(b"0,60000")
    assert "a vanished broker is noticed only" in vanished_broker
    assert len(warnings(b"0,0")) == 2


@pytest.mark.parametrize(("heartbeat", "part"), [(4, "a pause of 8 s"), (61, "wait up to 244 s")])
def test_a_heartbeat_that_is_too_short_or_too_long_is_a_warning(
    stomp_broker: StompBroker, find: Find, heartbeat: int, part: str
) -> None:
    (finding,) = find(f"{stomp_broker.url}?heartbeat={heartbeat}")
    assert (finding.level, part in finding.what) == ("warning", True)
    assert find(f"{stomp_broker.url}?heartbeat=5") == find(f"{stomp_broker.url}?heartbeat=60") == []


# --- Address settings of Artemis --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)
def test_the_settings_in_force_are_asked_of_artemis(stomp_broker: StompBroker, spec: QueueSpec, find: Find) -> None:
    drops, expires = {"maxDeliveryAttempts": -1, "addressFullMessagePolicy": "DROP"}, {"expiryDelay": 5000}
    with (
        stomp_broker.address_settings(spec.queue, drops),
        stomp_broker.address_settings(spec.dead_letter_queue, expires),
    ):
        work, dead = find(stomp_broker.url, usual=True)
    assert (work.level, "address-full-policy DROP" in work.what) == ("error", True)
    assert (dead.level, f"Dead letters in {spec.dead_letter_queue!r} are moved" in dead.what) == ("warning", True)


@pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)
def test_a_queues_own_attributes_count_and_not_those_of_new_queues(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find
) -> None:
    with stomp_broker.address_settings(spec.queue, {"maxDeliveryAttempts": -1, "defaultRingSize": 7}):
        (planned,) = find(stomp_broker.url, usual=True)
        give(stomp_broker, spec.queue)
    with stomp_broker.address_settings(spec.queue, {"maxDeliveryAttempts": -1}):
        (made,) = find(stomp_broker.url, usual=True)
    for finding in (planned, made):
        assert "more than 7 (ring-size)" in finding.what
    assert "default-ring-size" in planned.remedy
    assert "create it again" in made.remedy


@pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)
def test_dead_letters_that_no_queue_accepts_are_an_error(
    stomp_broker: StompBroker, spec: QueueSpec, find: Find
) -> None:
    """Artemis drops them: the address that it knows has no queue."""
    with stomp_broker.address_settings(spec.queue, {"deadLetterAddress": f"{spec.queue}.nowhere"}):
        (finding,) = find(stomp_broker.url, usual=True)
    assert finding.level == "error"
    assert "are lost after 10 lost connections" in finding.what


# --- Pure rules -------------------------------------------------------------------------------------------------------

SAFE = {"maxDeliveryAttempts": -1, "deadLetterAddress": "DLQ"}
OWN = {
    "durable": "true",
    "routingType": "ANYCAST",
    "filter": "",
    "purgeOnNoConsumers": "false",
    "ringSize": "-1",
    "lastValue": "false",
    "exclusive": "false",
    "maxConsumers": "-1",
    "paused": "false",
}


def judged(
    settings: Mapping[str, object] = SAFE,
    own: Mapping[str, str] | None = None,
    *,
    work: bool = True,
    dlq: str | None = None,
    kept: bool | None = True,
) -> list[Finding]:
    return [*risks(ArtemisQueue("exports", work, settings, own), dlq=dlq, letters_kept=kept)]


def test_a_safe_queue_has_no_risk_whether_it_exists_or_not() -> None:
    assert judged() == judged(own=OWN) == judged(work=False) == judged(own=OWN, work=False) == []


@pytest.mark.parametrize(
    ("settings", "level", "of_dead", "part"),
    [
        ({"maxDeliveryAttempts": 4}, "error", None, "gives a message up after 4"),
        ({"maxDeliveryAttempts": 5}, "warning", None, "a dead letter after 5 lost connections"),
        ({"maxDeliveryAttempts": None}, "warning", None, "a dead letter after 10 lost connections"),
        ({"maxDeliveryAttempts": 9, "deadLetterAddress": None}, "error", "warning", "there is no dead-letter address"),
        ({"expiryDelay": 5000}, "error", "warning", "lost after 5 s (expiry-delay)"),
        ({"maxExpiryDelay": 0, "expiryDelay": 9}, "error", "warning", "lost after 0 s (max-expiry-delay)"),
        ({"expiryDelay": 1500, "expiryAddress": "X"}, "error", "warning", "moved to 'X'"),
        ({"expiryDelay": 5000, "noExpiry": True}, None, None, ""),
        ({"minExpiryDelay": 5000}, None, None, ""),
        ({"addressFullMessagePolicy": "DROP"}, "error", "warning", "address-full-policy DROP"),
        ({"pageFullMessagePolicy": "DROP"}, "error", "warning", "page-full-policy DROP"),
        ({"addressFullMessagePolicy": "FAIL"}, None, None, ""),
        ({"addressFullMessagePolicy": "BLOCK"}, None, None, ""),
        ({"slowConsumerThreshold": 1, "slowConsumerPolicy": "KILL"}, "error", None, "threshold 1"),
        ({"slowConsumerThreshold": 1, "slowConsumerPolicy": "NOTIFY"}, None, None, ""),
        ({"slowConsumerThreshold": -1, "slowConsumerPolicy": "KILL"}, None, None, ""),
        ({"slowConsumerThreshold": 1}, None, None, ""),
        ({"defaultPurgeOnNoConsumers": True}, "error", "warning", "purge-on-no-consumers"),
        ({"defaultRingSize": 3}, "error", "warning", "more than 3 (ring-size)"),
        ({"defaultLastValueQueue": True}, "error", "warning", "last-value"),
        ({"defaultNonDestructive": True}, "error", "error", "non-destructive"),
        ({"autoDeleteQueuesMessageCount": -1}, "error", "warning", "with all its messages"),
        ({"autoDeleteQueuesMessageCount": 3}, "error", "warning", "with up to 3 messages"),
        ({"autoDeleteQueuesMessageCount": -1, "autoDeleteQueues": False}, None, None, ""),
        ({"autoDeleteQueues": True}, None, None, ""),
        ({"defaultExclusiveQueue": True}, "warning", None, "exclusive"),
        ({"defaultMaxConsumers": 2}, "warning", None, "accepts 2 consumers"),
    ],
    ids=str,
)
def test_each_setting_that_harms_is_found_with_its_level(
    settings: dict[str, object], level: str | None, of_dead: str | None, part: str
) -> None:
    given = {name: value for name, value in {**SAFE, **settings}.items() if value is not None}
    for of_work, expected in ((True, level), (False, of_dead)):
        found = judged(given, work=of_work)
        assert [finding.level for finding in found] == ([] if expected is None else [expected])
        assert all(part in finding.what and finding.remedy for finding in found)
        assert all(
            finding.loses == ("jobs" if of_work else "letters") for finding in found if "are lost" in finding.what
        )


@pytest.mark.parametrize(
    ("own", "level", "of_dead", "part"),
    [
        ({"routingType": "MULTICAST"}, "error", "error", "a multicast queue"),
        ({"durable": "false"}, "error", "error", "not durable"),
        ({"filter": "a = 1"}, "error", "error", "has a filter"),
        ({"purgeOnNoConsumers": "true"}, "error", "warning", "purge-on-no-consumers"),
        ({"ringSize": "5"}, "error", "warning", "more than 5"),
        ({"lastValue": "true"}, "error", "warning", "last-value"),
        ({"exclusive": "true"}, "warning", None, "exclusive"),
        ({"maxConsumers": "1"}, "warning", None, "accepts 1 consumers"),
        ({"paused": "true"}, "warning", None, "is paused"),
    ],
    ids=str,
)
def test_each_attribute_of_a_queue_that_harms_is_found_with_its_level(
    own: dict[str, str], level: str, of_dead: str | None, part: str
) -> None:
    for of_work, expected in ((True, level), (False, of_dead)):
        found = judged(own={**OWN, **own}, work=of_work)
        assert [finding.level for finding in found] == ([] if expected is None else [expected])
        assert all(part in finding.what and finding.remedy for finding in found)
        assert all(
            finding.loses == ("jobs" if of_work else "letters") for finding in found if "are lost" in finding.what
        )


def test_a_dead_letter_queue_that_the_url_names_wrongly_is_a_warning() -> None:
    (finding,) = judged(dlq="other")
    assert (finding.level, "'DLQ'" in finding.what, "'other'" in finding.what) == ("warning", True, True)
    assert judged(dlq="DLQ") == judged(dlq="other", work=False) == []


@pytest.mark.parametrize(
    ("dialect", "version", "parts"),
    [
        (CLASSIC, (5, 15, 15), ["5.18 or newer", "CVE-2023-46604", "CVE-2025-27533"]),
        (CLASSIC, (5, 15, 16), ["5.18 or newer", "CVE-2025-27533"]),
        (CLASSIC, (5, 17), ["5.18 or newer", "CVE-2023-46604", "CVE-2025-27533"]),
        (CLASSIC, (5, 18, 2), ["CVE-2023-46604", "CVE-2025-27533"]),
        (CLASSIC, (5, 18, 3), ["CVE-2025-27533"]),
        (CLASSIC, (5, 18, 7), []),
        (CLASSIC, (5, 19), []),
        (CLASSIC, (6, 0, 1), ["CVE-2025-27533"]),
        (CLASSIC, (6, 1, 5), ["CVE-2025-27533"]),
        (CLASSIC, (6, 1, 6), []),
        (CLASSIC, (6, 3, 1), []),
        (CLASSIC, (), []),
        (ARTEMIS, (2, 54, 0), ["2.55 or newer"]),
        (ARTEMIS, (2, 55), []),
        (ARTEMIS, (2, 55, 0), []),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_old_versions_and_known_weaknesses_are_warnings(
    dialect: Dialect, version: tuple[int, ...], parts: list[str]
) -> None:
    found = [*version_findings(dialect, version)]
    assert all(finding.level == "warning" for finding in found)
    assert len(found) == len(parts)
    assert all(text in finding.what for text, finding in zip(parts, found, strict=True))


def test_the_oldest_versions_are_those_of_the_packages_first_line() -> None:
    import steadyworker_stomp

    classic, artemis = (".".join(map(str, OLDEST[dialect.name])) for dialect in (CLASSIC, ARTEMIS))
    assert f"ActiveMQ Classic {classic} and newer, and Artemis {artemis} and newer" in str(steadyworker_stomp.__doc__)
