"""Payloads from another sender, through a whole worker process: a dead letter that names the field, and no handler called."""

from __future__ import annotations

from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.adapter import OutgoingMessage, QueueSpec, Settings, Target
from steadyworker.delivery import KEY
from steadyworker.ledger.base import State
from steadyworker_sqlite import SqliteAdapter
from tests.support.stage import Stage, WorkerProcess

MEGABYTE = 1 << 20


class Sender:
    """Whoever sends what he likes."""

    def __init__(self, stage: Stage) -> None:
        self._adapter = SqliteAdapter(stage.broker, QueueSpec("typed", "typed.dead"), Settings(max_body=64 * MEGABYTE))

    def send(self, body: bytes, **headers: str) -> None:
        self._adapter.publish(OutgoingMessage(Target.WORK, body, headers))

    def close(self) -> None:
        self._adapter.stop(1)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, WorkerProcess, Sender]]:
    stage = Stage(tmp_path_factory.mktemp("payloads"))
    process = stage.worker("tests.support.jobs:Typed").started()
    sender = Sender(stage)
    yield stage, process, sender
    sender.close()
    process.terminate()
    process.ended(0)
    stage.close()


House = tuple[Stage, WorkerProcess, Sender]

BAD = {
    "missing-field": (b'{"amount": 1}', "$.merchant: missing"),
    "wrong-type": (b'{"merchant": 17}', "$.merchant: "),
    "not-json": (b"hello", "$: "),
    "nan": (b'{"merchant": "m", "amount": NaN}', "$.amount: "),
    "huge-integer": (b'{"merchant": "m", "amount": ' + b"9" * 5000 + b"}", "$.amount: "),
    "duplicate-key": (b'{"merchant": "m", "merchant": "n"}', "$.merchant: "),
    "bad-utf8": (b'{"merchant": "\xff"}', "byte 0xff at 14"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, "$"),
    "oversized": (b'{"merchant": "' + b"m" * 20 * MEGABYTE + b'"}', "expected at most 1048576 bytes"),
    "empty": (b"", "$: "),
}


@pytest.mark.parametrize("key", BAD)
def test_a_bad_payload_is_a_dead_letter_that_names_the_field(house: House, key: str) -> None:
    stage, process, sender = house
    before = psutil.Process(process.pid).memory_info().rss
    body, names = BAD[key]
    sender.send(body, **{KEY: key})
    row = stage.reaches("typed", State.DEAD, key, within=15)
    assert row.reason.startswith("bad-payload: ")
    assert names in row.reason
    assert row.counters.attempts == 0
    assert stage.lines("starts") == []
    grown = psutil.Process(process.pid).memory_info().rss - before
    assert grown < 3 * len(body) + 32 * MEGABYTE
    assert process.poll() is None


def test_headers_that_make_no_sense_are_a_dead_letter_too(house: House) -> None:
    stage, _, sender = house
    dead = stage.depth("typed.dead")
    sender.send(b'{"merchant": "m"}', **{KEY: "odd", "sw-attempts": "-1"})
    stage.empties("typed")
    assert stage.depth("typed.dead") == dead + 1
    assert stage.row("typed", "odd") is None
    assert stage.lines("starts") == []


def test_a_good_payload_is_taken_after_all_of_them(stage: Stage) -> None:
    stage.send("typed", {"merchant": "m"})
    process = stage.worker("tests.support.jobs:Typed", max_jobs=1)
    process.ended(0)
    assert stage.lines("starts") == ["job 1 0"]
