"""What RocketMQ and its operators do to the adapter's drivers: the faults of every broker, on 4.9.7 and 5.4.0, with a login."""

from __future__ import annotations

import itertools
import json
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Generic, TypeVar

import pytest

from steadyworker.adapter import Adapter, QueueSpec, Settings
from steadyworker.delivery import KEY, Settled
from steadyworker.network.url import Address as HostPort
from steadyworker_rocketmq.direct import consumer as direct_consumer
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from steadyworker_rocketmq.grpc import GrpcAdapter
from steadyworker_rocketmq.grpc import client as grpc_client
from steadyworker_rocketmq.stored import text_of
from tests.adapters.direct.fake import FakeRocketMQ, fake_rocketmq
from tests.adapters.direct.kit import reply_within
from tests.adapters.fault_bench import FaultBench
from tests.adapters.fault_suite import BrokerFaults
from tests.adapters.fault_suite_network import NetworkFaults
from tests.brokers.fixtures import had
from tests.brokers.rocketmq import USER, RocketMQ4, RocketMQ5, RocketMQNode
from tests.brokers.rocketmq_front import Front
from tests.brokers.rocketmq_witness import Account, RefusalError, Witness
from tests.faults.proxy import Proxy
from tests.support.stage import eventually

Node = TypeVar("Node", bound=RocketMQNode)

REAL = [pytest.mark.slow, pytest.mark.rocketmq, pytest.mark.xdist_group("rocketmq"), pytest.mark.timeout(300)]

MOST = 4_000_000
"""Bytes of a body that a broker accepts, as it is shipped; properties are beside it."""


@pytest.fixture(scope="module")
def secured4() -> Iterator[RocketMQ4]:
    """A 4.9.7 that wants a login."""
    with had():
        made = RocketMQ4(login=True)
    with closing(made):
        made.start()
        yield made


@pytest.fixture(scope="module")
def secured5() -> Iterator[RocketMQ5]:
    """A 5.4.0 that wants a login."""
    with had():
        made = RocketMQ5(login=True)
    with closing(made):
        made.start()
        yield made


class RocketmqFaults(FaultBench, Generic[Node]):
    """A queue of a RocketMQ that wants a login, for each test alone."""

    large = MOST
    silent = "reply"
    wrong_password = "access key"

    rocketmq: Node

    @pytest.fixture(autouse=True)
    def access(self, secured: Node) -> Iterator[None]:
        self.rocketmq = secured
        self.password = secured.password
        self.queue = f"q-{secrets.token_hex(4)}"
        self._known()
        with self.served():
            yield
        secured.heal()
        self._known()
        secured.remove(self.queue)

    @abstractmethod
    def served(self) -> AbstractContextManager[object]:
        """Set `url`; what is opened for it is closed after the test."""

    def _known(self) -> None:
        """Wait until the name server knows the broker: after its own restart, that takes up to 10 s."""

        eventually(self.rocketmq.witness.brokers, "a broker that the name server knows")

    @pytest.fixture
    def node(self) -> RocketMQNode:
        return self.rocketmq

    def missed_within(self, seconds: int, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
        """As `FaultBench`; no option sets for how long the adapter waits for a reply."""
        self.give_up_after(float(seconds), monkeypatch)
        return url

    def prepare(self, adapter: Adapter) -> None:
        assert isinstance(adapter, DirectAdapter | GrpcAdapter)
        adapter._preparation.prepared()

    def send(self, *keys: str, body: bytes = b"{}") -> None:
        for key in keys:
            self.rocketmq.send(self.queue, body, {KEY: key})

    def depth(self) -> int:
        topics = [self.queue, *(topic for topic in self.rocketmq.topics("%RETRY%") if topic.endswith(self.queue))]
        return sum(self.rocketmq.waiting(topic, self.queue) for topic in topics)

    def answer_within(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.give_up_after(seconds, monkeypatch)


class DirectFaults(RocketmqFaults[RocketMQNode]):
    """By the driver for brokers, on 4.9.7; a front is before name server and broker, so that a proxy is before both."""

    settled = Settled.SENT
    waits_behind = True
    needs_no_login = ("exists", "dead_letters")  # a name server replies to everybody that there is no such topic yet
    handshake = 900
    fillers = 8

    @pytest.fixture
    def secured(self, secured4: RocketMQ4) -> RocketMQ4:
        return secured4

    def served(self) -> AbstractContextManager[object]:
        self.front = Front(self.rocketmq)
        self.url = f"rocketmq://{USER}:{self.password}@127.0.0.1:{self.front.port}"
        return closing(self.front)

    def through(self, proxy: Proxy, url: str) -> str:
        self.front.serve(proxy)
        return proxy.through(url)

    @pytest.fixture
    def change_password(self) -> Iterator[Callable[[str], None]]:
        """Rewrite the broker's file, which it reads every few seconds."""
        file = self.rocketmq.folder / "conf/plain_acl.yml"
        before = file.read_text()

        def change(password: str) -> None:
            rules = json.loads(before)
            rules["accounts"][0]["secretKey"] = password
            file.write_text(json.dumps(rules))
            eventually(lambda: self._accepts(password), "the broker accepts the other password")

        yield change
        file.write_text(before)
        eventually(lambda: self._accepts(self.password), "the broker accepts its usual password")

    def _accepts(self, password: str) -> bool:
        try:
            return bool(
                Witness(self.rocketmq.name_servers[0], Account(USER, password)).settings(self.rocketmq.broker_address)
            )
        except RefusalError:
            return False

    def make_adapter(self, url: str, spec: QueueSpec, settings: Settings) -> DirectAdapter:
        return DirectAdapter(url, spec, settings)

    def give_up_after(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        reply_within(seconds, monkeypatch)

    def try_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().try_at_once(monkeypatch)
        monkeypatch.setattr(direct_consumer, "_HURRY", (0.0, 0.0))
        monkeypatch.setattr(direct_consumer, "_BEAT_EVERY", 0.05)  # a cut is noticed by the next request


class GrpcFaults(RocketmqFaults[RocketMQ5]):
    """By the driver for proxies, on 5.4.0."""

    settled = Settled.SENT
    loggers = ("rocketmq-python-client",)
    forgets = 1
    needs_no_login = ("exists",)
    down = "127.0.0.1:PORT,"  # a name beside an address is refused by the client library
    handshake = 480
    fillers = 8

    @pytest.fixture
    def secured(self, secured5: RocketMQ5) -> RocketMQ5:
        return secured5

    def served(self) -> AbstractContextManager[object]:
        self.url = self.rocketmq.url
        return nullcontext()

    @pytest.fixture
    def change_password(self) -> Iterator[Callable[[str], None]]:
        """Change it at the broker, and restart the proxy, which remembers logins, and has the same one."""
        now = [self.password]
        settings = self.rocketmq.folder / "proxy.json"

        def change(password: str) -> None:
            user = {"username": USER, "password": password, "userType": "Super", "userStatus": "enable"}
            witness, body = self.rocketmq.witness, json.dumps(user).encode()
            witness.ask(self.rocketmq.broker_address, "AUTH_UPDATE_USER", {"username": USER}, body)
            settings.write_text(settings.read_text().replace(now[-1], password))
            now.append(password)
            self.rocketmq.login = Account(USER, password)  # by which the node asks whether the proxy is there again
            self.rocketmq.proxy.kill()
            self.rocketmq.proxy.start()

        yield change
        change(self.password)

    def make_adapter(self, url: str, spec: QueueSpec, settings: Settings) -> GrpcAdapter:
        return GrpcAdapter(url, spec, settings)

    def give_up_after(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(grpc_client, "_REQUEST_WITHIN", max(2, int(seconds)))


class FakeNode:
    """The broker in this process, as far as a front and the bench ask it."""

    def __init__(self, fake: FakeRocketMQ) -> None:
        self.broker_address = HostPort("127.0.0.1", fake.port)
        self.name_servers = (self.broker_address,)


class TestFakeFaults(DirectFaults, NetworkFaults):
    """The faults of the network, at a broker in this process, so that every run has them."""

    large = 1_000_000
    handshake, stride = 400, 4  # a cut costs a tenth of a second, and those at the brokers are at each byte
    password = "no-login"
    pytestmark = pytest.mark.long

    @pytest.fixture(autouse=True)
    def access(self) -> Iterator[None]:
        with fake_rocketmq() as self.fake, closing(Front(FakeNode(self.fake))) as self.front:
            self.url = f"rocketmq://127.0.0.1:{self.front.port}?{self.fake.url.partition('?')[2]}"
            yield

    def send(self, *keys: str, body: bytes = b"{}") -> None:
        queues = itertools.cycle(self.fake.topics[self.queue])
        for key, queue in zip(keys, queues, strict=False):
            self.fake.store(queue, (body, text_of({KEY: key, "UNIQ_KEY": secrets.token_hex(16)}), 0))

    def depth(self) -> int:
        logs = enumerate(self.fake.topics[self.queue])
        return sum(len(log.messages) - self.fake.places[self.queue, self.queue, number] for number, log in logs)


class TestDirectFaults(DirectFaults, BrokerFaults, NetworkFaults):
    """The faults of every broker."""

    pytestmark = REAL


class TestGrpcFaults(GrpcFaults, BrokerFaults, NetworkFaults):
    """The faults of every broker."""

    stride = 4
    pytestmark = REAL
