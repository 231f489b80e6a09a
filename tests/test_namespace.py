"""The namespace of a queue's jobs is the broker's identity, and an operator may rename a broker under living workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from steadyworker.adapter import Adapter, Capabilities, QueueSpec, Renamable, Settings
from steadyworker.backends.opening import former_identity, namespace_of
from steadyworker.clock import Times
from steadyworker.config import resolve as config
from steadyworker.config.resolve import Options
from steadyworker.errors import ConfigError
from steadyworker.ledger.lease import registered_name
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker_rabbitmq import RabbitmqAdapter

OLD, NEW = "rabbit@a:/", "shop:/"


class Broker:
    """Has the name that the test gives it, and behind the colon its place."""

    capabilities = Capabilities()

    def __init__(self, identity: str) -> None:
        self._identity = identity

    def identity(self) -> str:
        return self._identity

    def may_have_been(self, identity: str) -> bool:
        return identity.rpartition(":")[2] == self._identity.rpartition(":")[2]


class Place:
    """A ledger, and brokers that use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.ledger = MemoryLedger(self.clock, Times())

    def options(self, namespace: str | None = None) -> Options:
        return config.load({"namespace": namespace, "state_dir": self.folder}, os.environ, self.folder)

    def namespace(self, identity: str, namespace: str | None = None, queue: str = "exports") -> str:
        return namespace_of(cast(Adapter, Broker(identity)), self.options(namespace), self.ledger, queue)

    def refused(self, identity: str, namespace: str | None = None) -> str:
        with pytest.raises(ConfigError) as raised:
            self.namespace(identity, namespace)
        return str(raised.value)

    def lives(self, namespace: str, owner: str = "other", queue: str = "exports") -> None:
        self.ledger.register(owner, "host", [registered_name(namespace, queue)])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    assert made.namespace(OLD) == OLD
    made.lives(OLD)
    return made


def test_a_new_name_is_refused_while_a_worker_lives_under_the_former_one_and_after_it_too(place: Place) -> None:
    """Afterwards too, because the checkpoints and the records of what is done have the former name."""
    assert f"--namespace {OLD!r}" in place.refused(NEW)
    place.ledger.unregister("other")
    assert f"--namespace {OLD!r}" in place.refused(NEW)
    assert place.namespace(OLD) == OLD


def test_the_former_name_as_namespace_keeps_the_jobs(place: Place) -> None:
    place.refused(NEW)
    assert place.namespace(NEW, OLD) == OLD


def test_a_namespace_that_any_of_several_brokers_could_have_belongs_to_the_first_of_them(tmp_path: Path) -> None:
    """Otherwise a key that one broker has done would be acknowledged at the other, and never run."""
    place = Place(tmp_path)
    assert place.namespace("rabbit@a:/", "prod:/") == "prod:/"
    refused = place.refused("rabbit@b:/", "prod:/")
    assert "Expected broker 'rabbit@a:/', to which namespace 'prod:/'" in refused
    assert "got 'rabbit@b:/'" in refused
    assert place.namespace("rabbit@a:/", "prod:/") == "prod:/"


def test_a_question_compares_the_namespace_and_binds_nothing(place: Place) -> None:
    def asked(identity: str, namespace: str) -> str:
        return namespace_of(
            cast(Adapter, Broker(identity)), place.options(namespace), place.ledger, "exports", bind=False
        )

    assert asked(NEW, "shop-b") == "shop-b"
    assert place.ledger.bindings() == [(OLD, "exports")]
    with pytest.raises(ConfigError, match="belong since their first use"):
        asked("third:/other", OLD)


def test_another_broker_has_a_namespace_of_its_own(place: Place) -> None:
    assert place.namespace(NEW, "shop-b") == "shop-b"
    assert "belong since their first use" in place.refused("third:/", "shop-b")
    assert "belong since their first use" in place.refused("third:/other", OLD)


def test_other_virtual_hosts_and_queues_are_other_places(place: Place) -> None:
    assert place.namespace("shop:/eu") == "shop:/eu"
    assert place.namespace(NEW, queue="reports") == NEW


def test_a_new_broker_is_taken_when_all_workers_of_the_former_one_have_ended(place: Place) -> None:
    """A container that was made anew has a new name, and its jobs are new, too."""
    place.clock.advance(91)
    assert place.namespace(NEW) == NEW


def test_a_name_that_changes_back_and_forth_is_refused_each_time(place: Place) -> None:
    place.ledger.unregister("other")
    assert place.namespace(NEW) == NEW
    place.lives(NEW)
    place.refused(OLD)
    place.ledger.unregister("other")
    assert place.namespace(OLD) == OLD


def test_a_broker_whose_name_cannot_change_asks_nothing(place: Place) -> None:
    class Fixed:
        capabilities = Capabilities()

        def identity(self) -> str:
            return NEW

    broker: Any = Fixed()
    assert former_identity(broker, place.options(), place.ledger, "exports") is None
    assert namespace_of(broker, place.options(), place.ledger, "exports") == NEW


@pytest.mark.parametrize(("vhost", "same"), [("%2F", OLD), ("eu", "rabbit@a:eu"), ("a%3Ab", "x:a:b")])
def test_a_cluster_of_rabbitmq_is_the_same_place_in_the_same_virtual_host_only(vhost: str, same: str) -> None:
    adapter = RabbitmqAdapter(f"amqp://localhost/{vhost}", QueueSpec("exports", "exports.dead"), Settings())
    assert isinstance(adapter, Renamable)
    assert adapter.may_have_been(same)
    assert not adapter.may_have_been("rabbit@a:other")
    adapter.stop(0)
