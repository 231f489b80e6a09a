"""
The brokers as pytest fixtures: started when the first test asks, and shared by all tests that leave them as they are.

A test that kills or sets its broker asks for `rabbitmq_node`, `stomp_node`, `own_broker` or `postgres_cluster`.
It gets one that belongs to its xdist worker; without xdist, the one process that there is has no other.
What a test asks for also marks it, `rabbitmq`, `stomp`, `rocketmq` or `postgres`, and groups those that need a node of their own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.brokers.activemq import Classic, classic_program
from tests.brokers.address import Address
from tests.brokers.artemis import artemis_program
from tests.brokers.azurite import azurite_program
from tests.brokers.gcs import gcs_program
from tests.brokers.install import (
    SUITES,
    MissingError,
    jdbc_drivers,
    newest_rabbitmq,
    pgbouncer_program,
    postgres_programs,
    rabbitmq_root,
)
from tests.brokers.moto import moto_program
from tests.brokers.pgbouncer import Pooler
from tests.brokers.postgres import Cluster, Postgres
from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.brokers.rabbitmq_stomp import stomp_listener
from tests.brokers.rocketmq import RocketMQ4, RocketMQ5, RocketMQNode, rocketmq_program
from tests.brokers.s3proxy import S3Proxy, s3proxy_program
from tests.brokers.shared import MAKERS, POSTGRES, S3PROXY, STOMP, Ask, Owner, ask_by
from tests.brokers.stomp_broker import StompBroker
from tests.brokers.stomp_node import StompNode
from tests.brokers.trio import Trio

AMQP_URL = "STEADYWORKER_TEST_AMQP_URL"
MANAGEMENT_URL = "STEADYWORKER_TEST_AMQP_MANAGEMENT_URL"
POSTGRES_URL = "STEADYWORKER_TEST_POSTGRES_URL"
STOMP_URL = "STEADYWORKER_TEST_STOMP_URL"
JOLOKIA_URL = "STEADYWORKER_TEST_JOLOKIA_URL"

GIVEN, NEWEST = "given", "4.x"
"""In the place of a series or kind: the broker of the variable, and the newest RabbitMQ that can be had."""

GIVEN_STOMP = "given-stomp"
"""As GIVEN, where an argument may name a RabbitMQ too."""


VERSIONS_DIFFER = ("adapters", "brokers")
"""The folders of `tests` whose tests run on the oldest RabbitMQ too, without `--all-brokers`."""

SOCKET = "brokers_socket"
"""What an xdist worker is told: where it asks for the brokers that all workers share."""

owner_key = pytest.StashKey[Owner]()
brokers_key = pytest.StashKey["Brokers"]()

_SHOWN_OF_A_LOG = 6_000
"""Characters of a broker's log that are shown with a test that has failed."""

ROCKETMQ = {"rocketmq4": "4", "rocketmq5": "5"}
"""The fixtures of RocketMQ, each with its line; a place is at the first by the driver for brokers, at the second by that for proxies."""

DIRECT_5 = "rocketmq5-direct"
"""The kind of a place at the second line by the driver for brokers, for `--all-brokers`."""

ARocketMQ = TypeVar("ARocketMQ", RocketMQ4, RocketMQ5)
ANode = TypeVar("ANode", Node, StompNode)


class Brokers:
    """The brokers of this test process, each started once, and those that all test processes share."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self._nodes: dict[str, Node] = {}
        self._stomp: dict[str, StompNode] = {}
        self._rocketmq: dict[type[RocketMQNode], RocketMQNode] = {}
        self._cluster: Cluster | None = None
        self._s3: S3Proxy | None = None

    def rabbitmq(self, series: str) -> RabbitMQ:
        """A RabbitMQ that other tests use at the same time."""
        if not self._ask:
            return self.node(series)
        given = self._ask(f"rabbitmq-{series}")
        shared = RabbitMQ(given.url, given.management_url)
        shared.tls_url, shared.series = given.tls_url, series
        return shared

    def postgres(self) -> Postgres:
        """A PostgreSQL server that other tests use at the same time."""
        return Postgres(self._ask(POSTGRES).url) if self._ask else self.cluster()

    def node(self, series: str) -> Node:
        """A node of RabbitMQ that runs; no other test process uses it."""
        if series not in self._nodes:
            self._nodes[series] = Node(series)
        self._nodes[series].start()
        return self._nodes[series]

    def stomp(self, kind: str) -> StompBroker:
        """An ActiveMQ that other tests use at the same time."""
        return StompBroker(self._ask(kind)) if self._ask else self.stomp_node(kind)

    def stomp_node(self, kind: str) -> StompNode:
        """An ActiveMQ that runs; no other test process uses it."""
        if kind not in self._stomp:
            made = MAKERS[kind]()
            assert isinstance(made, StompNode)
            self._stomp[kind] = made
        self._stomp[kind].start()
        return self._stomp[kind]

    def rocketmq(self, line: type[ARocketMQ]) -> ARocketMQ:
        """A RocketMQ that runs; no other test process uses it."""
        if line not in self._rocketmq:
            self._rocketmq[line] = line()
        found = self._rocketmq[line]
        assert isinstance(found, line)
        found.start()
        return found

    def end_rocketmq(self) -> None:
        """End each RocketMQ; one that a later test asks for is a new one."""
        while self._rocketmq:
            self._rocketmq.popitem()[1].close()

    def cluster(self) -> Cluster:
        """A PostgreSQL server that runs; no other test process uses it."""
        if not self._cluster:
            self._cluster = Cluster()
        self._cluster.start()
        return self._cluster

    def s3(self) -> str:
        """The URL of an S3Proxy that other tests use at the same time, each in its own bucket."""
        if self._ask:
            return self._ask(S3PROXY).url
        if not self._s3:
            self._s3 = S3Proxy()
        self._s3.start()
        return self._s3.address.url

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()
        for stomp in self._stomp.values():
            stomp.close()
        self.end_rocketmq()
        if self._cluster:
            self._cluster.close()
        if self._s3:
            self._s3.close()


@contextmanager
def had() -> Iterator[None]:
    """A broker that cannot be had skips the test, with the remedy; with CI set, it fails it."""
    try:
        yield
    except MissingError as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


# --- What pytest asks -------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-brokers",
        action="store_true",
        help=f"every RabbitMQ ({', '.join(SUITES)}) and ActiveMQ ({', '.join(STOMP)}) for every test that needs one",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stomp_kind" in metafunc.fixturenames and not chosen(metafunc.definition, "stomp_kind"):
        metafunc.parametrize("stomp_kind", wanted_kinds(metafunc), indirect=True, scope="session")
    if "rabbitmq_series" in metafunc.fixturenames and not chosen(metafunc.definition, "rabbitmq_series"):
        metafunc.parametrize("rabbitmq_series", wanted_series(metafunc), indirect=True, scope="session")


def wanted_kinds(metafunc: pytest.Metafunc) -> list[str]:
    """Return the ActiveMQ that this test runs on: kinds of STOMP, or GIVEN."""
    if os.environ.get(STOMP_URL):
        return [GIVEN]
    return [*STOMP] if metafunc.config.getoption("--all-brokers") else [*STOMP[:-1]]


def wanted_series(metafunc: pytest.Metafunc) -> list[str]:
    """Return the RabbitMQ that this test runs on: its series, or NEWEST or GIVEN."""
    if os.environ.get(AMQP_URL):
        return [GIVEN]
    if metafunc.config.getoption("--all-brokers"):
        return [*SUITES]
    folder = metafunc.definition.path.parent.name
    return [next(iter(SUITES)), NEWEST] if folder in VERSIONS_DIFFER else [NEWEST]


def series_of(item: pytest.Item) -> str:
    """Return the one of `wanted_series` that a collected test runs on; empty for a test without RabbitMQ."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    kind = str(params.get("rabbitmq_series", params.get("place_kind", "")))
    return kind if kind in (GIVEN, NEWEST, *SUITES) else ""


def kind_of(item: pytest.Item) -> str:
    """Return the one of `wanted_kinds` that a collected test runs on; empty for a test without ActiveMQ."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    place = str(params.get("place_kind", ""))
    of_place = GIVEN if place == GIVEN_STOMP else place
    return str(params.get("stomp_kind", of_place if is_stomp(place) else ""))


def wanted_rocketmq(metafunc: pytest.Metafunc) -> list[str]:
    """Return the RocketMQ that this test's places are at: fixtures of it, or DIRECT_5."""
    return [*ROCKETMQ, *([DIRECT_5] if metafunc.config.getoption("--all-brokers") else [])]


def is_rocketmq(kind: str) -> bool:
    """Return whether a kind of place is a RocketMQ."""
    return kind in (*ROCKETMQ, DIRECT_5)


def rocketmq_of(brokers: Brokers, kind: str) -> RocketMQNode:
    """Return the RocketMQ of this kind of place, which runs."""
    with had():
        return brokers.rocketmq(RocketMQ4) if ROCKETMQ.get(kind) == "4" else brokers.rocketmq(RocketMQ5)


def lines_of(item: pytest.Item) -> set[str]:
    """Return the lines of RocketMQ that a collected test runs on."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    kind = str(params.get("place_kind", ""))
    asked = {*getattr(item, "fixturenames", ()), *([kind.removesuffix("-direct")] if is_rocketmq(kind) else [])}
    return {line for fixture, line in ROCKETMQ.items() if fixture in asked}


def is_stomp(kind: str) -> bool:
    """Return whether a kind of place is an ActiveMQ."""
    return kind in (GIVEN_STOMP, *STOMP)


def chosen(test: pytest.Item, what: str) -> bool:
    """Whether the test itself says which versions or kinds it is for."""
    return any(what in mark.args[0] for mark in test.iter_markers("parametrize"))


@pytest.hookimpl(tryfirst=True)  # before `-m` is judged
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        asked = getattr(item, "fixturenames", ())
        series = series_of(item)
        if series:
            item.add_marker("rabbitmq")
        kind = kind_of(item)
        if kind or "bare_classic" in asked:
            item.add_marker("stomp")
        if lines_of(item):
            item.add_marker("rocketmq")
            item.add_marker(pytest.mark.xdist_group("rocketmq"))  # one line works at a time
            item.add_marker(pytest.mark.timeout(300))  # on a busy machine, 5.4.0 starts in two minutes
        if {"postgres", "postgres_cluster", "database", "pair"} & set(asked):
            item.add_marker("postgres")
        if "store" in asked:
            item.add_marker("s3")
        if series and {"rabbitmq_node", "own_broker"} & set(asked):
            folder = "fleet" if item.path.parent.name == "fleet" else "rabbitmq"
            item.add_marker(pytest.mark.xdist_group(f"{folder}-{series.replace(NEWEST, [*SUITES][-1])}"))
        elif kind and {"stomp_node", "own_broker"} & set(asked):
            folder = "fleet" if item.path.parent.name == "fleet" else "stomp"
            item.add_marker(pytest.mark.xdist_group(f"{folder}-{kind}"))
        elif "postgres_cluster" in asked:
            item.add_marker(pytest.mark.xdist_group("postgres"))


def stores_programs() -> None:
    """Bring the servers of Google Cloud's and Azure's requests."""
    gcs_program()
    azurite_program()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Bring what the tests need before the first one starts: a download counts against no test's time limit."""
    if session.config.option.collectonly:
        return
    for series in {series_of(item) for item in session.items} - {GIVEN, ""}:
        with suppress(MissingError):  # told by the tests that need it
            newest_rabbitmq() if series == NEWEST else rabbitmq_root(series)
    kinds = {kind_of(item) for item in session.items} - {""}
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if "bare_classic" in fixtures:
        kinds.add("classic")
    for kind in kinds - {GIVEN}:
        with suppress(MissingError):
            artemis_program() if kind == "artemis" else classic_program("5.18" if kind == "classic-5.18" else "6.3")
    for line in {line for item in session.items for line in lines_of(item)}:
        with suppress(MissingError):
            rocketmq_program(line)
    if any(item.get_closest_marker("postgres") for item in session.items) and not os.environ.get(POSTGRES_URL):
        with suppress(MissingError):
            postgres_programs()
    if any(item.get_closest_marker("s3") for item in session.items):
        with suppress(MissingError):
            s3proxy_program()
    programs = {"pooler": pgbouncer_program, "versioned": moto_program, "place": stores_programs}
    for fixture in fixtures & programs.keys():
        with suppress(MissingError):
            programs[fixture]()
    if any(item.get_closest_marker("spark") for item in session.items):
        with suppress(MissingError):  # before the first Spark host, which looks for them when it starts
            jdbc_drivers()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """End RocketMQ with the last of its tests, which an xdist worker runs in a row: idle, it takes 8 % of a core."""
    result = yield
    if (
        hasattr(item.config, "workerinput")
        and (brokers := item.config.stash.get(brokers_key, None))
        and nextitem
        and not nextitem.get_closest_marker("rocketmq")
    ):
        brokers.end_rocketmq()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of its brokers' logs with a test that has failed: their folders are gone afterwards."""
    report = yield
    if report.failed:
        given = getattr(item, "funcargs", {}).values()
        for log in {value.log for value in given if isinstance(getattr(value, "log", None), Path)}:
            if log.exists():
                end = log.read_text(encoding="utf-8", errors="replace")[-_SHOWN_OF_A_LOG:]
                report.sections.append((f"the end of {log}", end))
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each xdist worker where the brokers are that all workers share."""
    stash = node.config.stash
    if owner_key not in stash:
        stash[owner_key] = Owner()
    node.workerinput[SOCKET] = stash[owner_key].socket


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End the shared brokers, when every xdist worker has ended."""
    if owner := config.stash.get(owner_key, None):
        owner.close()


# --- What tests ask for -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def brokers(request: pytest.FixtureRequest) -> Iterator[Brokers]:
    socket = getattr(request.config, "workerinput", {}).get(SOCKET)
    made = request.config.stash[brokers_key] = Brokers(ask_by(socket) if socket else None)
    yield made
    made.close()


@pytest.fixture(scope="session")
def rabbitmq_series(request: pytest.FixtureRequest) -> str:
    """Which RabbitMQ; a test that is for some only says `@pytest.mark.parametrize("rabbitmq_series", ["4.3"], indirect=True)`."""
    series: str = request.param
    return series


@pytest.fixture
def rabbitmq(request: pytest.FixtureRequest, brokers: Brokers, rabbitmq_series: str) -> RabbitMQ:
    """
    A RabbitMQ that runs, in each version that is wanted; other tests use it too, so leave it as it is.

    It is the same as `rabbitmq_node` for a test that asks for both.
    """
    return rabbitmq_of(request, brokers, rabbitmq_series)


def rabbitmq_of(request: pytest.FixtureRequest, brokers: Brokers, series: str) -> RabbitMQ:
    """Return the RabbitMQ of this series, NEWEST or GIVEN; one of our own for a test that asks to kill or set it."""
    if series == GIVEN:
        return RabbitMQ(os.environ[AMQP_URL], os.environ.get(MANAGEMENT_URL, "http://127.0.0.1:15672"))
    with had():
        found = newest_rabbitmq() if series == NEWEST else series
        own = {"rabbitmq_node", "own_broker"} & set(request.fixturenames)
        return brokers.node(found) if own else brokers.rabbitmq(found)


@pytest.fixture
def rabbitmq_node(rabbitmq: RabbitMQ) -> Iterator[Node]:
    """A node of our own: to be killed, frozen, stopped and set, and healed after the test."""
    yield from ours(rabbitmq, Node, AMQP_URL)


def ours(broker: object, kind: type[ANode], variable: str) -> Iterator[ANode]:
    """Yield a broker of our own, and heal it after the test; skip the test at a broker that this variable names."""
    if not isinstance(broker, kind):
        pytest.skip(f"this test kills, stops or sets the broker, and that of {variable} is not ours to")
    yield broker
    broker.heal()


@pytest.fixture
def rabbitmq_stomp(rabbitmq_node: Node) -> Iterator[str]:
    """The URL of a RabbitMQ that speaks STOMP by its plugin, as long as the test runs."""
    with stomp_listener(rabbitmq_node) as url:
        yield url


@pytest.fixture(scope="session")
def stomp_kind(request: pytest.FixtureRequest) -> str:
    """Which ActiveMQ; a test that is for some only says `@pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)`."""
    kind: str = request.param
    return kind


@pytest.fixture
def stomp_broker(request: pytest.FixtureRequest, brokers: Brokers, stomp_kind: str) -> StompBroker:
    """
    An ActiveMQ that runs, of each kind that is wanted; other tests use it too, so leave it as it is.

    It is the same as `stomp_node` for a test that asks for both.
    """
    return stomp_of(request, brokers, stomp_kind)


def stomp_of(request: pytest.FixtureRequest, brokers: Brokers, kind: str) -> StompBroker:
    """Return the ActiveMQ of this kind, or GIVEN; one of our own for a test that asks to kill or set it."""
    if kind == GIVEN:
        jolokia = os.environ.get(JOLOKIA_URL, "http://127.0.0.1:8161/api/jolokia/")
        return StompBroker(Address(os.environ[STOMP_URL], jolokia))
    with had():
        own = {"stomp_node", "own_broker"} & set(request.fixturenames)
        return brokers.stomp_node(kind) if own else brokers.stomp(kind)


@pytest.fixture
def stomp_node(stomp_broker: StompBroker) -> Iterator[StompNode]:
    """An ActiveMQ of this xdist worker: to be killed, frozen, stopped and set, and healed after the test."""
    yield from ours(stomp_broker, StompNode, STOMP_URL)


@pytest.fixture
def queue(stomp_broker: StompBroker) -> Iterator[str]:
    """
    The name of a queue of this test alone, as ActiveMQ has no virtual hosts.

    A test names its other queues by this one and a suffix: all are removed after the test.
    """
    name = f"test-{secrets.token_hex(4)}"
    yield name
    stomp_broker.remove_queues(name)


@pytest.fixture
def bare_classic() -> Iterator[Classic]:
    """A Classic without its scheduler, which delivers delayed messages at once, and without advisory messages and statistics; for this test alone."""
    with had():
        made = Classic(bare=True)
    with closing(made):
        made.start()
        yield made


@pytest.fixture
def rocketmq4(brokers: Brokers) -> Iterator[RocketMQ4]:
    """A RocketMQ 4.9.7 of this xdist worker: to be killed, frozen and stopped, and healed after the test."""
    with had():
        node = brokers.rocketmq(RocketMQ4)
    yield node
    node.heal()


@pytest.fixture
def rocketmq5(brokers: Brokers) -> Iterator[RocketMQ5]:
    """A RocketMQ 5.4.0 with a proxy, of this xdist worker: to be killed, frozen and stopped, and healed after the test."""
    with had():
        node = brokers.rocketmq(RocketMQ5)
    yield node
    node.heal()


@pytest.fixture
def trio(rabbitmq_series: str) -> Iterator[Trio]:
    """Three nodes of one cluster, for this test alone."""
    if rabbitmq_series == GIVEN:
        pytest.skip(f"this test kills nodes of a cluster, and the broker of {AMQP_URL} is not ours to kill")
    with had():
        made = Trio(newest_rabbitmq() if rabbitmq_series == NEWEST else rabbitmq_series)
    with closing(made):
        made.start()
        yield made


@pytest.fixture
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    """A PostgreSQL server whose commits wait for its synchronous standby (`remote_apply`), and the standby; for this test alone."""
    with had(), ExitStack() as stack:
        primary = stack.enter_context(closing(Cluster()))
        primary.start()
        standby = stack.enter_context(closing(Cluster(primary)))
        standby.start()
        primary.wait_for_standby()
        yield primary, standby


@pytest.fixture
def vhost(rabbitmq: RabbitMQ) -> Iterator[Vhost]:
    """A fresh virtual host of it, for this test alone."""
    made = rabbitmq.add_vhost()
    yield made
    rabbitmq.remove_vhost(made)


@pytest.fixture(scope="session")
def postgres(brokers: Brokers) -> Postgres:
    """A PostgreSQL server that runs; other tests use it too, so leave it as it is."""
    if url := os.environ.get(POSTGRES_URL):
        return Postgres(url)
    with had():
        return brokers.postgres()


@pytest.fixture(scope="session")
def drivers() -> None:
    """The JDBC drivers of PostgreSQL and SQLite, where Spark exports look for them."""
    with had():
        jdbc_drivers()


@pytest.fixture
def postgres_cluster(brokers: Brokers) -> Iterator[Cluster]:
    """A server of our own: to be killed, frozen and stopped, and healed after the test."""
    if POSTGRES_URL in os.environ:
        pytest.skip(f"this test kills or stops the server, and that of {POSTGRES_URL} is not ours to")
    with had():
        cluster = brokers.cluster()
    yield cluster
    cluster.heal()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a fresh, empty database, for this test alone; on `postgres_cluster` for a test that asks for that."""
    own = "postgres_cluster" in request.fixturenames
    server: Postgres = request.getfixturevalue("postgres_cluster" if own else "postgres")
    url = server.add_database()
    yield url
    server.remove_database(url)


@pytest.fixture
def pooler(postgres: Postgres) -> Iterator[Callable[..., Pooler]]:
    """Starts a pooler in transaction mode before the server, for this test alone."""
    with ExitStack() as stack:

        def start(**options: Any) -> Pooler:
            with had():
                return stack.enter_context(closing(Pooler(postgres.url, **options)))

        yield start
