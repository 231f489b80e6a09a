"""Messages on Classic that are above its present limit of frames: the limit was lowered, or they came by another protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.clock import SystemClock, Times
from steadyworker.delivery import KEY
from steadyworker.ledger.base import State
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker_stomp import StompAdapter
from tests.brokers.activemq import connector
from tests.brokers.process import free_ports
from tests.brokers.stomp_broker import StompBroker
from tests.support.stage import Processes

LARGE = b'{"pad": "' + b"x" * 20_000 + b'"}'
LIMIT = "wireFormat.maxFrameSize=20000"
REFUSAL = "The maximum frame size was exceeded"
QUEUES = ("fails", "shared.dead")


@pytest.fixture
def place(stomp_broker: StompBroker, tmp_path: Path) -> Iterator[Processes]:
    """Worker processes at a connector of their own, which a test opens; their ledger is a file."""
    for queue in QUEUES:
        stomp_broker.remove_queues(queue)
    path = tmp_path / "ledger.db"
    ledger = SqliteLedger(path, clock=SystemClock(), times=Times())
    url = stomp_broker.url.replace(str(urlsplit(stomp_broker.url).port), str(free_ports(1)[0]))
    made = Processes(tmp_path, ledger, broker_url=url, ledger_url=f"sqlite:{path}")
    yield made
    made.close()
    for queue in QUEUES:
        stomp_broker.remove_queues(queue)


@pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)
def test_a_worker_process_keeps_it_runs_the_jobs_behind_it_and_reports_it(
    stomp_broker: StompBroker, place: Processes
) -> None:
    """The limit is lowered while it runs; each command reports the job, a stop takes no time, and a raised limit ends it."""
    port = urlsplit(place.urls["broker"]).port or 0
    with connector(stomp_broker, "", port):
        worker = place.worker("tests.support.jobs:Fails", ledger_reach="host").started()
    with stomp_broker.client() as client:
        for number, body in enumerate((LARGE, b"{}"), 1):
            client.send("fails", body, {KEY: f"m-{number}"})
    with connector(stomp_broker, LIMIT, port):
        place.reaches("fails", State.DEAD, "m-2")
        row = place.reaches("fails", State.MOVING, "m-1")
        assert row.reason.startswith("exhausted; the broker refuses its copies: ")
        assert REFUSAL in row.reason
        assert worker.reports("message_refused")["explain"] == "stomp.frame-too-large"
        for command in (("jobs",), ("dead", "list", "tests.support.jobs:Fails")):
            shown = place.command(*command)
            shown.ended(0)
            assert REFUSAL in " ".join(shown.log_end().split())
        worker.terminate()
        assert worker.ended(0) < 10
    depths = [stomp_broker.depth(queue) for queue in QUEUES]
    assert (depths, stomp_broker.dead("fails")) == ([1, 1], 0)
    with connector(stomp_broker, "", port):
        place.worker("tests.support.jobs:Fails", ledger_reach="host").started()
        place.reaches("fails", State.DEAD, "m-1")
    assert [line for line in place.lines("starts") if "m-1" in line] == ["fails m-1 1 0"]
    assert [stomp_broker.depth(queue) for queue in QUEUES] == [0, 2]


@pytest.mark.parametrize("stomp_kind", ["classic", pytest.param("classic-5.18", marks=pytest.mark.slow)], indirect=True)
def test_classic_confirms_a_nack_of_a_message_that_it_cannot_move_and_has_it_no_longer(
    stomp_broker: StompBroker, queue: str
) -> None:
    """So the adapter does not offer to reject messages; here, the queue for dead letters is full, and refuses messages."""
    adapter = StompAdapter(stomp_broker.url, QueueSpec(queue, f"{queue}.dead"), Settings())
    assert not adapter.capabilities.rejects
    adapter.stop(1)
    for name, moved in ((queue, 1), (f"{queue}.unmovable", 0)):
        with stomp_broker.client() as client:
            client.send(name, LARGE)
            client.subscribe(name)
            client.send_frame("NACK", {"id": client.message().headers["ack"]}, receipt=True)
        assert stomp_broker.dead(name) == moved
        counts = stomp_broker.all_counts(name)
        assert [each.waiting + each.delivering for each in counts.values()] == [0] * len(counts)
    assert set(counts) == {f"{queue}.unmovable", f"{queue}.unmovable.full"}
