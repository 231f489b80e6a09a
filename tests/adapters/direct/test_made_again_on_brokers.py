"""
A topic that is deleted and made again, on 4.9.7 and 5.4.0: no message of the new one is skipped.

4.9.7 keeps the places of groups, and 5.4.0 removes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from steadyworker.adapter import Adapter, QueueSpec, Settings
from steadyworker.delivery import KEY, Settle, Settled
from steadyworker.errors import TargetMissing
from steadyworker.testing.conformance.adapter_fixtures import Tape, message
from steadyworker_rocketmq.direct.adapter import DirectAdapter
from tests.adapters.direct.bench import DirectBench, On4, On5
from tests.adapters.test_rocketmq_readme import PAGE

pytestmark = pytest.mark.slow

LINGER = 2.0
"""Seconds of a job: the acknowledgement of a shorter one assumes that the queue is the one of a moment ago."""


class MadeAgain(DirectBench):
    """With one queue, so that each test knows the offsets."""

    within = 60.0

    @pytest.fixture
    def adapter(self, spec: QueueSpec) -> Iterator[DirectAdapter]:
        made = self.prepared(spec)
        yield made
        made.stop(self.within)

    def prepared(self, spec: QueueSpec) -> DirectAdapter:
        """Return an adapter after it has made its topic."""
        url = self.way.url
        made = DirectAdapter(f"{url}{'&' if '?' in url else '?'}queues=1", spec, Settings())
        made._preparation.prepared()
        return made

    def send(self, *keys: str) -> None:
        for key in keys:
            self.node.send(self.queue, b"{}", {KEY: key})

    @property
    def servers(self) -> str:
        return ";".join(map(str, self.node.name_servers))

    def remake(self) -> None:
        """As an operator does."""
        printed = self.node.mqadmin(f"mqadmin deleteTopic -n {self.servers} -c DefaultCluster -t {self.queue}")
        assert self.queue not in self.node.topics(self.queue), printed
        self.node.mqadmin(f"mqadmin updateTopic -n {self.servers} -c DefaultCluster -t {self.queue} -r 1 -w 1")
        assert self.node.count(self.queue) == 0

    def consumed(self) -> int | None:
        (queue,) = self.node.witness.route(self.queue) or []
        return self.node.witness.consumed(queue, self.queue, self.queue)

    def run_all(self, adapter: Adapter, tape: Tape, *wanted: str, after: int = 0) -> None:
        """Acknowledge the deliveries after so many, which must be these."""
        for number, key in enumerate(wanted, after + 1):
            assert tape.delivery(number).headers[KEY] == key
            assert adapter.settle(tape.delivery(number), Settle.ACK) is Settled.SENT

    @pytest.mark.parametrize("count", [2, 3, 5])
    def test_by_an_operator_while_a_worker_receives_no_messages(self, adapter: DirectAdapter, count: int) -> None:
        """Fewer, as many, and more messages than the worker has consumed before: its place is behind the end, at it, and before it."""
        tape = self.started(adapter, 1)
        self.send("old-0", "old-1", "old-2")
        self.run_all(adapter, tape, "old-0", "old-1", "old-2")
        self.let_pass(3)  # the worker asks for messages
        adapter.prefetch(0)
        self.let_pass(1)
        self.remake()
        wanted = [f"new-{n}" for n in range(count)]
        self.send(*wanted)
        adapter.prefetch(1)
        self.run_all(adapter, tape, *wanted, after=3)
        assert self.consumed() == count

    def test_by_an_operator_during_a_job(self, adapter: DirectAdapter) -> None:
        """The acknowledgement of the old message passes none of the new ones."""
        tape = self.started(adapter, 1)
        self.send("old-0")
        self.run_all(adapter, tape, "old-0")
        self.send("old-1")
        held = tape.delivery(2)
        self.remake()
        self.send("new-0", "new-1", "new-2")
        self.let_pass(LINGER)
        assert adapter.settle(held, Settle.ACK) is Settled.SENT
        self.run_all(adapter, tape, "new-0", "new-1", "new-2", after=2)
        assert self.consumed() == 3

    def test_by_an_operator_while_no_worker_runs(self, adapter: DirectAdapter, spec: QueueSpec) -> None:
        """With the command of the page, which deletes the group's places."""
        tape = self.started(adapter, 1)
        self.send("old-0", "old-1")
        self.run_all(adapter, tape, "old-0", "old-1")
        adapter.stop(self.within)
        self.remake()
        (command,) = re.findall("mqadmin deleteSubGroup .*", PAGE)
        command = command.replace("localhost:9876", self.servers).replace("payment-exports", self.queue)
        assert "success" in self.node.mqadmin(command)
        self.send("new-0", "new-1", "new-2")
        again = self.prepared(spec)
        try:
            self.run_all(again, self.started(again, 1), "new-0", "new-1", "new-2")
        finally:
            again.stop(self.within)

    def test_by_the_driver(self, adapter: DirectAdapter, spec: QueueSpec) -> None:
        """The group begins at the first message of the new topic, however many there are before a worker asks."""
        tape = self.started(adapter, 1)
        self.send("old-0")
        self.run_all(adapter, tape, "old-0")
        adapter.stop(self.within)
        self.node.delete_topic(self.queue)
        again = self.prepared(spec)
        try:
            self.send("new-0", "new-1")
            self.run_all(again, self.started(again, 1), "new-0", "new-1")
        finally:
            again.stop(self.within)

    def test_by_no_broker_that_makes_topics_by_itself(self, spec: QueueSpec) -> None:
        """A broker would make it with one queue; so it refuses the first message, and the driver makes the topic before the next."""
        adapter = DirectAdapter(self.way.url, spec, Settings())
        try:
            adapter.publish(message())
            self.node.delete_topic(self.queue)
            with pytest.raises(TargetMissing):
                adapter.publish(message("k-2"))
            adapter.publish(message("k-3"))
            assert len(self.node.witness.route(self.queue) or []) == 16
        finally:
            adapter.stop(self.within)


class TestMadeAgain4(On4, MadeAgain): ...


class TestMadeAgain5(On5, MadeAgain): ...
