"""What is known of an export at a Spark Connect server while it runs: that it moves, or that it stands still."""

from __future__ import annotations

import threading
import time
from pathlib import Path

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


def export(query: str, services: LiveServices, to: Path, by: str = "id") -> Manifest:
    return SparkExport(query, tables={}, order_by=(by,)).write(services, to)


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
