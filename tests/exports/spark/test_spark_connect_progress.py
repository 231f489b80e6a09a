"""What is known of an export at a Spark Connect server while it runs: parts, what is left, and that it stands still."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steadyworker.errors import ExportError
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.handle import Handle
from tests.conftest import Eventually
from tests.exports.spark.clusters import ConnectServer
from tests.exports.spark.sparkkit import LiveServices, Made
from tests.exports.spark.test_spark_stuck import sleeping

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.xdist_group("spark servers")]

ROWS = 60_000


class Gate:
    """A port that answers nobody until it is opened, and hangs up then: what asks there stands still until then."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._waiting: list[socket.socket] = []
        self._open = False
        self._changes = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._waiting.append(self._listener.accept()[0])
                self._hang_up()

    def _hang_up(self) -> None:
        with self._changes:
            while self._open and self._waiting:
                self._waiting.pop().close()

    def open(self) -> None:
        """Let all pass that wait, and all that come; safe twice."""
        self._open = True
        self._hang_up()

    def close(self) -> None:
        """Open it, and give the port back."""
        self.open()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def gates() -> Iterator[list[Gate]]:
    """Make two gates, and give their ports back at the end."""
    made = [Gate(), Gate()]
    yield made
    for gate in made:
        gate.close()


def in_thirds(gates: list[Gate]) -> str:
    """Return a query of 30 parts: ten are written at once, ten when the first gate is opened, ten at the second one."""
    asked = " ".join(
        f"WHEN id % {ROWS // 30} = 0 AND id >= {ROWS // 3 * third} THEN "
        f"try_reflect('javax.naming.InitialContext', 'doLookup', 'ldap://127.0.0.1:{gates[third - 1].port}/gate')"
        for third in (2, 1)
    )
    return f"SELECT id, CASE {asked} END AS asked FROM range(0, {ROWS}, 1, 30)"


def export(query: str, services: LiveServices, to: Path, by: str = "id") -> Manifest:
    return SparkExport(query, tables={}, order_by=(by,)).write(services, to)


def test_parts_are_joined_while_later_ones_are_written(connected: Made, gates: list[Gate], tmp_path: Path) -> None:
    """And a user is told how many rows there are, how fast they come and how long it will take."""
    services = LiveServices(connected())
    joined: list[str] = []

    def told() -> bool:
        return any("rows/s, about" in note and "joined" in note for note in services.notes)

    def left() -> bool:
        return any(event.get("left") for event in services.events)

    def on_event(event: Mapping[str, Any]) -> None:
        if event["type"] == "progress" and services.notes and "joined" in services.notes[-1]:
            joined.append(services.notes[-1].split(", ")[-1])
            if event["done"]:  # the server has told of these ten, so that the next ten are seen to be written
                gates[0].open()
        if len(set(joined)) > 1 and services.kinds().count("part") > 5 and told() and left():
            gates[1].open()

    services.on_event = on_event
    assert export(in_thirds(gates), services, tmp_path / "out.csv").rows == ROWS
    assert services.kinds().count("part") > 5
    assert len(set(joined)) > 1, "some were in the file when others were still being written"
    indexes = [event["index"] for event in services.events if event["type"] == "part"]
    assert len(set(indexes)) == len(indexes)
    assert left()
    assert told(), services.notes


def test_a_part_that_is_written_a_second_time_is_joined_a_second_time(
    connected: Made, gates: list[Gate], tmp_path: Path
) -> None:
    """As when an executor dies after its task has committed: what is joined then is not what is there in the end."""
    replaced: list[Path] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event["type"] == "part" and event["index"] > 0 and not replaced:
            part = next(Path(event["path"]).parent.glob("part-00000-*"))
            shutil.copy(part, part.with_name("copy"))
            part.with_name("copy").replace(part)
            replaced.append(part)
            for gate in gates:
                gate.open()

    service = connected()
    services = LiveServices(service, uid="uid-2", on_event=on_event)
    disturbed = export(in_thirds(gates), services, tmp_path / "b.csv")
    assert replaced
    assert services.kinds()[-2:] == ["started", "done"]
    assert services.events[-1]["submissions"] == 1
    undisturbed = export(in_thirds(gates), LiveServices(service), tmp_path / "a.csv")
    assert (disturbed.sha256, disturbed.rows) == (undisturbed.sha256, undisturbed.rows)


@pytest.mark.slow
def test_a_stuck_function_is_caught_and_a_slow_one_is_spared(
    connected: Made, connect_server: ConnectServer, tmp_path: Path, eventually: Eventually
) -> None:
    """
    The slow one sleeps 0.3 s for each of 64 rows, longer than the limit in all, beside the stuck one, in the same host.

    The stuck one sleeps for an hour in its last task: cancelled, begun again in a session of its own, granted more, given up;
    and the ledger has both names, for the next run.
    """
    service = connected(stuck_after=1.0, resubmissions=1)
    slow, stuck = LiveServices(service, uid="slow"), LiveServices(service, uid="stuck")
    beside = threading.Thread(target=export, args=(sleeping("300", "64"), slow, tmp_path / "slow.csv"))
    beside.start()
    began = time.monotonic()
    with pytest.raises(
        ExportError, match=r"\(stuck\): nothing has moved for .* 31 of 32 tasks complete and 1 in flight"
    ):
        export(sleeping("if(id = 63, 3600000, 0)", "64"), stuck, tmp_path / "stuck.csv")
    took = time.monotonic() - began
    assert stuck.events[-1]["submissions"] == 2
    assert took > 50, "ten seconds of stillness, then forty"
    beside.join()
    assert slow.events[-1]["type"] == "done"
    assert slow.events[-1]["submissions"] == 1
    eventually(lambda: connect_server.running() == [], within=60)
    names = [name for _, name in msgspec.json.decode(stuck.stored or b"", type=Handle).spark]
    assert len(set(names)) == len(names) == 2
    assert not (tmp_path / "stuck.csv").exists()


@pytest.mark.slow
def test_a_task_that_was_slow_and_not_stuck_is_granted_more_the_next_time(connected: Made, tmp_path: Path) -> None:
    """A task that takes 28 s of which nothing is seen, where ten are granted at first: nothing tells it from a hung one."""
    services = LiveServices(connected(stuck_after=1.0))
    assert export(sleeping("if(id >= 62, 14000, 0)", "64"), services, tmp_path / "out.csv").rows == 64
    assert services.events[-1]["submissions"] == 2
