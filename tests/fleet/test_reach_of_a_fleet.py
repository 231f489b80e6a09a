"""All consumers of a queue share our ledger, or the worker process stops; a peer in trouble is no reason to."""

from __future__ import annotations

import json
import signal

import pytest

from steadyworker_rabbitmq.checks.limits import CONTINUED_CONSUMERS
from tests.brokers.place import Ability
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.faults.proxy import Proxy
from tests.fleet.kit import LIGHT, Fleet

HEARTBEAT = 2
LOOKING = {"look": 0.25, "spare": 2.0}
SELDOM = LOOKING | {"look": 3.0}
"""What is not ready is logged after a second, and here there is to be one between the two looks."""


@pytest.mark.also("artemis")
def test_a_foreign_consumer_stops_a_worker_and_not_one_whose_settings_allow_it(fleet: Fleet) -> None:
    """Not ready first, then 78 with both remedies; `--ledger-reach host` says that others consume here."""
    url = fleet.place.url(heartbeat=HEARTBEAT)
    counting = fleet.worker(LIGHT, broker=url, script=SELDOM).started()
    told = fleet.worker(LIGHT, broker=url, script=SELDOM, ledger_reach="host").started()
    patience = 60 if Ability.HEARTBEATS in fleet.place.abilities else 200
    fleet.consumed_by(2)
    at_start = told.lines("not_ready")  # on a busy machine, connecting takes long
    with fleet.place.consumer(fleet.queue):
        assert counting.reports("surplus_consumers")["consumers"] == 3
        why = counting.reports("not_ready", within=patience, part=f"{fleet.queue}: consumers")["why"]
        counting.ended(78, within=patience)
        assert "--ledger postgresql://" in why
        assert "--ledger-reach host" in why
        assert counting.lines("worker_stopped")[0]["reasons"] == [f"{fleet.queue}: {why}"]
    fleet.send_all({"job": {}})
    fleet.ends_clean("job")
    assert told.lines("not_ready")[len(at_start) :] == []


@pytest.mark.needs(Ability.HEARTBEATS)
def test_a_foreign_consumer_stops_all_who_count(fleet: Fleet) -> None:
    """Two of them leave the queue, at one time or one after the other, and neither takes the foreign consumer for the other."""
    url = fleet.place.url(heartbeat=HEARTBEAT)
    counting = [fleet.worker(LIGHT, broker=url, script=SELDOM).started() for _ in range(2)]
    fleet.consumed_by(2)
    with fleet.place.consumer(fleet.queue):
        for worker in counting:
            worker.reports("not_ready", part=f"{fleet.queue}: consumers")
        for worker in counting:
            worker.ended(78, within=120)
        fleet.consumed_by(1)


@pytest.mark.needs(Ability.HEARTBEATS)
def test_a_peer_that_is_quiet_hides_no_foreign_consumer(fleet: Fleet) -> None:
    """It lives and renews its leases, and so it stood for the foreign consumer in the count."""
    url, script = fleet.place.url(heartbeat=HEARTBEAT), LOOKING | {"quiet": 0.5, "times": {"renew": 0.5}}
    counting = fleet.worker(LIGHT, broker=url, script=script).started()
    peer = fleet.worker(LIGHT, broker=url, script=script).started()
    fleet.consumed_by(2)
    peer.send_signal(signal.SIGUSR1)
    peer.reports("stage_changed", stage="quiet")
    with fleet.place.consumer(fleet.queue):
        fleet.consumed_by(2)
        counting.reports("surplus_consumers", consumers=2, known=1)
        counting.ended(78)
        assert peer.poll() is None


@pytest.mark.slow
@pytest.mark.needs(Ability.HEARTBEATS)
def test_peers_whose_setup_fails_hide_no_foreign_consumer(fleet: Fleet) -> None:
    """A service manager starts them again and again: each lived for seconds, and stood for the foreign consumer in the count."""
    url = fleet.place.url(heartbeat=HEARTBEAT)
    counting = fleet.worker(LIGHT, broker=url, script=LOOKING).started()
    fleet.consumed_by(1)
    fleet.open("broken")
    with fleet.place.consumer(fleet.queue):
        for _ in range(10):
            peers = [fleet.worker(LIGHT, broker=url, script=LOOKING) for _ in range(2)]
            for peer in peers:
                peer.ended(70)
            if counting.poll() is not None:
                break
        counting.ended(78)
    assert {line["known"] for line in counting.lines("surplus_consumers")} == {1}


@pytest.mark.needs(Ability.HEARTBEATS)
def test_a_peer_that_is_quiet_and_still_runs_a_job_stops_nobody(fleet: Fleet) -> None:
    """The queue counts it until its job is settled; a deploy that waits for long jobs would end its successor with 78."""
    url, script = fleet.place.url(heartbeat=HEARTBEAT), LOOKING | {"quiet": 0.5, "times": {"renew": 0.5}}
    peer = fleet.worker(LIGHT, broker=url, script=script).started()
    fleet.send_all({"long": {"gate": "gate"}})
    fleet.notes("starts", 1)
    peer.send_signal(signal.SIGUSR1)
    peer.reports("stage_changed", stage="quiet")
    counting = fleet.worker(LIGHT, broker=url, script=script).started()
    fleet.consumed_by(2)
    fleet.send_all({"meanwhile": {"delays": [1, 1, 1]}})
    fleet.notes("ends", 1)
    fleet.open()
    fleet.notes("ends", 2)
    fleet.consumed_by(1)
    assert counting.lines("surplus_consumers") == []
    assert peer.poll() is None


def test_a_worker_whose_prefetch_changes_while_it_runs_a_long_job_stops_nobody(
    fleet: Fleet, rabbitmq_place: RabbitmqPlace
) -> None:
    """
    The queue counts a replaced consumer until its job is settled: the worker process and all its peers saw a surplus.

    Where the broker can continue the consumer, there is one; elsewhere the ledger lists two. A foreign one is seen.
    """
    busies = 1 if rabbitmq_place.rabbitmq.version >= CONTINUED_CONSUMERS else 2
    url, script = fleet.place.url(heartbeat=HEARTBEAT), LOOKING | {"times": {"renew": 0.5}}
    busy = fleet.worker(LIGHT, broker=url, script=script, concurrency=2).started()
    fleet.send_all({"long": {"gate": "gate"}})
    fleet.notes("starts", 1)
    busy.send_signal(signal.SIGUSR1)
    busy.reports("stage_changed", stage="quiet")
    busy.send_signal(signal.SIGUSR2)
    busy.reports("stage_changed", stage="running")
    fleet.send_all({"second": {"gate": "gate"}})
    fleet.notes("starts", 2)
    peer = fleet.worker(LIGHT, broker=url, script=script).started()
    fleet.consumed_by(busies + 1)
    fleet.send_all({"meanwhile": {"delays": [1, 1, 1]}})
    fleet.notes("ends", 1)
    assert [worker.lines("surplus_consumers") for worker in (busy, peer)] == [[], []]
    with fleet.place.consumer(fleet.queue):
        for worker in (busy, peer):
            worker.reports("surplus_consumers", consumers=busies + 2, known=busies + 1)
    fleet.open()
    fleet.notes("ends", 3)
    fleet.consumed_by(2)
    for process in (busy, peer):
        process.terminate()
        process.ended(0)
    assert fleet.left() == {}


@pytest.mark.needs(Ability.HEARTBEATS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "frozen"])
def test_a_peer_that_is_dead_or_frozen_never_stops_a_healthy_one(fleet: Fleet, how: signal.Signals) -> None:
    """Not even when its host died with it, so that the broker hears no end of the connection and counts it for a while."""
    with Proxy(fleet.place.address()) as proxy:
        healthy = fleet.worker(LIGHT, broker=fleet.place.url(heartbeat=HEARTBEAT), script=LOOKING).started()
        peer = fleet.worker(LIGHT, broker=fleet.place.url(heartbeat=HEARTBEAT, through=proxy), script=LOOKING).started()
        fleet.consumed_by(2)
        at_start = healthy.lines("not_ready")  # on a busy machine, connecting takes long
        proxy.stall()
        peer.signal_all(how)
        if how is signal.SIGKILL:
            healthy.reports("surplus_consumers", known=1)
        fleet.consumed_by(1)
        fleet.send_all({"job": {}})
        fleet.notes("ends", 1)
        fleet.empties()
        assert len(healthy.lines("surplus_consumers")) == (how is signal.SIGKILL)
        assert healthy.lines("not_ready")[len(at_start) :] == []
        healthy.terminate()
        healthy.ended(0)


@pytest.mark.also("classic", "rocketmq4")
def test_check_warns_of_a_connection_without_tls_that_leaves_the_machine(fleet: Fleet) -> None:
    """0.0.0.0 reaches this machine, too, but is no address of its own; with a loopback address, no way can be read."""
    url = fleet.place.url()
    host = next(host for host in ("localhost", "127.0.0.1") if host in url)
    found = []
    for broker in (url, url.replace(host, "0.0.0.0", 1)):
        check = fleet.command("check", LIGHT, "--json", broker=broker)
        check.ended(78 if fleet.place.namespace and broker != url else 0)  # its name is the address
        (told,) = (line for line in check.log.read_text().splitlines() if line.startswith("{"))
        found.append([each for each in json.loads(told)["findings"] if each["id"] == "check.no-tls"])
    assert found[0] == []
    ((level, what, remedy),) = [(each["level"], each["what"], each["remedy"]) for each in found[1]]
    assert level == "warning"
    assert what.startswith("The connection to 0.0.0.0:")
    assert remedy.endswith("or protect the way to the broker.")
