"""
A test's place at a broker as pytest fixtures: at each kind of broker, and each version of it, that is wanted.

| fixture | what it is |
|---|---|
| `places` | a broker that runs, for a test that opens places itself |
| `place` | a place at it, for this test alone |
| `own_broker` | its broker, which no other test uses: to be killed, stopped and frozen; healed afterwards |
| `rabbitmq_place` | `place`, for a test of RabbitMQ alone |

A test that asks for anything of RabbitMQ, such as `rabbitmq_node`, has its place there only.
A test that is marked `needs(Ability.…)` runs on the brokers that have all of these.
An argument `queue_kind` is each kind of durable queue that the broker has.
A test is `slow` on RocketMQ, and outside of this folder on ActiveMQ, but on those kinds that its mark `also(…)` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.fixtures import (
    GIVEN,
    GIVEN_STOMP,
    ROCKETMQ,
    Brokers,
    chosen,
    is_rocketmq,
    is_stomp,
    rabbitmq_of,
    rocketmq_of,
    stomp_of,
    wanted_kinds,
    wanted_rocketmq,
    wanted_series,
)
from tests.brokers.place import OwnBroker, Place, Places
from tests.brokers.rabbitmq import RabbitMQ
from tests.brokers.rabbitmq_place import RabbitmqPlace, RabbitmqPlaces
from tests.brokers.rocketmq_place import DirectPlace, GrpcPlace, RocketmqPlaces
from tests.brokers.stomp_place import StompPlace, StompPlaces


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*abilities): runs on brokers that have these (tests/brokers/place.py)")
    config.addinivalue_line("markers", "also(*kinds): runs on these kinds without being `slow`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = metafunc.fixturenames
    if "place_kind" not in names or "rabbitmq_series" in names or chosen(metafunc.definition, "place_kind"):
        return
    needed = {ability for mark in metafunc.definition.iter_markers("needs") for ability in mark.args}
    kinds = [(kind, place) for kind, place in _wanted(metafunc) if needed <= place.abilities]
    soon = {kind for mark in metafunc.definition.iter_markers("also") for kind in mark.args}
    here = metafunc.definition.path.parent == Path(__file__).parent

    def marks(kind: str) -> list[pytest.MarkDecorator]:
        is_slow = is_rocketmq(kind) or (is_stomp(kind) and not here)
        return [pytest.mark.slow] if is_slow and kind not in soon else []

    if "queue_kind" in names:
        pairs = [(kind, queue) for kind, place in kinds for queue in place.queue_kinds]
        params = [pytest.param(*pair, id="-".join(filter(None, pair)), marks=marks(pair[0])) for pair in pairs]
        metafunc.parametrize(("place_kind", "queue_kind"), params, indirect=["place_kind"], scope="session")
    else:
        params = [pytest.param(kind, marks=marks(kind)) for kind, _ in kinds]
        metafunc.parametrize("place_kind", params, indirect=True, scope="session")


def _wanted(metafunc: pytest.Metafunc) -> list[tuple[str, type[Place]]]:
    """Return each kind of broker that this test runs on, with what a place there has."""
    kinds = [GIVEN_STOMP if kind == GIVEN else kind for kind in wanted_kinds(metafunc)]
    return [
        *((series, RabbitmqPlace) for series in wanted_series(metafunc)),
        *((kind, StompPlace) for kind in kinds),
        *((kind, _rocketmq_place(kind)) for kind in wanted_rocketmq(metafunc)),
    ]


def _rocketmq_place(kind: str) -> type[DirectPlace | GrpcPlace]:
    """Return what a place at this kind of RocketMQ is: by proxies at the second line, unless the kind says otherwise."""
    return GrpcPlace if kind == [*ROCKETMQ][-1] else DirectPlace


@pytest.fixture(scope="session")
def place_kind(request: pytest.FixtureRequest) -> str:
    """Which broker `places` is; empty in a test of RabbitMQ alone, to which `rabbitmq_series` says that."""
    return str(getattr(request, "param", ""))


@pytest.fixture
def places(request: pytest.FixtureRequest, brokers: Brokers, place_kind: str) -> Places:
    """A broker that runs; other tests use it too, but not in a test that asks for `own_broker`."""
    if "rabbitmq_series" in request.fixturenames:
        rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
        return RabbitmqPlaces(rabbitmq)
    if is_stomp(place_kind):
        return StompPlaces(stomp_of(request, brokers, GIVEN if place_kind == GIVEN_STOMP else place_kind))
    if is_rocketmq(place_kind):
        node = rocketmq_of(brokers, place_kind)
        node.heal()
        return RocketmqPlaces(node, _rocketmq_place(place_kind))
    return RabbitmqPlaces(rabbitmq_of(request, brokers, place_kind))


@pytest.fixture
def place(places: Places) -> Iterator[Place]:
    """A place at a broker, for this test alone."""
    made = places.open()
    yield made
    made.close()


@pytest.fixture
def own_broker(place: Place) -> Iterator[OwnBroker]:
    """The broker of `place`: to be killed, stopped and frozen, and healed after the test."""
    broker = place.broker
    if broker is None:
        pytest.skip("this test kills, stops or freezes the broker, and the one that was given is not ours to")
    yield broker
    broker.heal()


@pytest.fixture
def rabbitmq_place(rabbitmq: RabbitMQ, place: Place) -> RabbitmqPlace:
    """The same as `place`, for a test of RabbitMQ alone."""
    assert isinstance(place, RabbitmqPlace)
    assert place.rabbitmq is rabbitmq
    return place
