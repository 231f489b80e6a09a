"""What needs no Spark: parts, tables, parameters, settings, and a Java or a driver that is there or not."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from steadyworker.errors import ConfigError, ExportError
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.params import from_param, to_param
from steadyworker.exports.spark.build import Build
from steadyworker.exports.spark.databases import load as load_table
from steadyworker.exports.spark.export import SparkExport, note
from steadyworker.exports.spark.hosts import Call, Limit, SparkHost
from steadyworker.exports.spark.java import DRIVER, REMEDY, Java, find_java, with_driver
from steadyworker.exports.spark.process import HostProcess
from steadyworker.exports.spark.protocol import ExportPlan
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from steadyworker.exports.tables import Files, source, source_of
from tests.exports.spark.sparkkit import LiveServices


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -(2**70),
        1.5,
        "",
        "O'Brien; --",
        Decimal("1E-8"),
        date(1, 1, 1),
        datetime(2024, 3, 31, 2, 30, tzinfo=UTC),
    ],
)
def test_a_parameter_keeps_its_type(value: object) -> None:
    back = from_param(to_param("p", value))
    assert back == value
    assert type(back) is type(value)


def test_a_parameter_without_a_literal_is_refused() -> None:
    with pytest.raises(ExportError, match="parameter 'p', got list"):
        to_param("p", [1])


def test_a_tables_format_is_that_of_its_first_visible_file(tmp_path: Path) -> None:
    for name in ("_SUCCESS", ".hidden.csv", "_temporary/0/x.csv", "month=3/b.json.gz", "z.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert source_of("t", tmp_path).format == "parquet"
    assert source_of("t", tmp_path / "month=3").format == "json"
    assert source_of("t", Files("s3a://bucket/t", format="csv")).path == "s3a://bucket/t"
    for name, table, says in [
        ("t", tmp_path / "none", "which does not exist"),
        ("t", Path(__file__), r"end in \.parquet"),
        ("a b", tmp_path, "table name"),
    ]:
        with pytest.raises(ExportError, match=says):
            source(name, table)


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    (home / "bin" / "java").chmod(0o755)
    return home


def test_the_java_that_fits_is_found(tmp_path: Path) -> None:
    old, lts = fake_java(tmp_path / "a" / "jdk8", "1.8.0_402"), fake_java(tmp_path / "b" / "jdk21", "21.0.2")
    newest = fake_java(tmp_path / "jdk25", "25")
    assert find_java({"JAVA_HOME": str(lts), "PATH": f"{old}/bin"}).home == lts
    assert find_java({"JAVA_HOME": str(old), "PATH": f"{lts}/bin"}).home == lts
    assert find_java({"JAVA_HOME": str(newest), "PATH": ""}).major == 25
    with pytest.raises(
        ConfigError, match=r"Java 17 or newer.*got 8\.0_402 at .*jdk8: install one .*apt-get install"
    ) as raised:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert "JAVA_HOME" in str(raised.value)


def test_an_export_without_java_or_pyspark_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def says() -> str:
        service = SparkService(SparkSettings(folder=tmp_path), environ={"PATH": ""})
        try:
            with pytest.raises(ExportError) as raised:
                SparkExport("SELECT 1 AS id", tables={}, order_by=("id",)).write(
                    LiveServices(service), tmp_path / "x.csv"
                )
            return str(raised.value)
        finally:
            service.stop(1)

    assert "unavailable" in (said := says())
    assert "openjdk-17" in said
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "steadyworker[spark]" in says()


def test_a_setting_that_would_undo_a_promise_is_refused(tmp_path: Path) -> None:
    for key in ("spark.local.dir", "spark.master", "sparkle"):
        with pytest.raises(ConfigError, match=key):
            SparkSettings(folder=tmp_path, conf={key: "x"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stuck_after": float("nan")}, "spark_stuck_after above 0 and at most a year, got nan"),
        ({"stuck_after": float("inf")}, "got inf"),
        ({"stuck_after": 0.0}, "got 0 s"),
        ({"conf": {"spark.sql.shuffle.partitions": 8}}, "text as the value of spark.sql.shuffle.partitions, got int"),
    ],
)
def test_a_setting_that_would_hang_or_fail_every_export_is_refused(
    tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        SparkSettings(folder=tmp_path, **given)


def test_settings_do_not_show_keys(tmp_path: Path) -> None:
    settings = SparkSettings(folder=tmp_path, conf={"spark.hadoop.fs.s3a.secret.key": "canary"})
    assert "canary" not in repr(settings)


def test_properties_are_read_back_as_they_were(tmp_path: Path) -> None:
    java = "-Dours=kept -XX:-ExitOnOutOfMemoryError"
    settings = SparkSettings(
        folder=tmp_path,
        conf={"spark.x": " a\\b\n#c", "spark.driver.memory": "2g", "spark.driver.extraJavaOptions": java},
    )
    text = settings.properties(tmp_path, {})
    assert "spark.x=\\ a\\\\b\\n#c\n" in text
    assert "spark.driver.memory=2g\n" in text
    assert f"{java} -XX:+ExitOnOutOfMemoryError -XX:-UsePerfData " in text, "the last one counts"
    assert os.fspath(settings.hosts).startswith(str(tmp_path))


class FakeProcess:
    """A host's process that only remembers what it was told."""

    def __init__(self, cpu: Iterable[float] = itertools.repeat(0.0)) -> None:
        self.told: list[str] = []
        self._cpu = iter(cpu)

    logged = 0

    @property
    def cpu(self) -> float:
        return next(self._cpu)

    def send(self, command: object) -> None:
        self.told.append(type(command).__name__)

    def kill(self) -> None:
        self.told.append("kill")

    def bound_log(self) -> None:
        pass


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        pytest.param([10.0, 40.0, 70.0], ["RunExport", "PingHost", "kill"], id="it hangs"),
        pytest.param([10.0, 40.0, 3600.0, 3630.0], ["RunExport", "PingHost"], id="we were paused"),
        pytest.param(
            [10.0, 3600.0, 3630.0, 3660.0], ["RunExport", "PingHost", "kill"], id="we were paused, and it hangs"
        ),
    ],
)
def test_only_a_host_that_hangs_while_we_do_not_is_killed(tmp_path: Path, looks: list[float], told: list[str]) -> None:
    process: Any = FakeProcess()
    host = SparkHost(process, SparkSettings(folder=tmp_path))
    host.became_ready({}, 0.0)
    host.submit(Call("job", ExportPlan(query="", tables={}, order_by=(), parts="/"), lambda _: None))
    for now in looks:
        host.attend(now)
    assert process.told == told


def test_a_host_that_computes_and_does_not_reply_is_killed_five_times_later(tmp_path: Path) -> None:
    process: Any = FakeProcess(itertools.count(0.0, 2.0))
    host = SparkHost(process, SparkSettings(folder=tmp_path))
    host.became_ready({}, 0.0)
    host.submit(Call("job", ExportPlan(query="", tables={}, order_by=(), parts="/"), lambda _: None))
    for now in range(10, 310, 2):
        host.attend(now)
    assert process.told == ["RunExport", "PingHost"]
    host.attend(310.0)
    assert process.told == ["RunExport", "PingHost", "kill"]
    assert host.problem == "the host's JVM did not respond for 300 s"


def test_a_host_that_waits_for_a_place_in_a_cluster_is_not_killed_while_it_reports(tmp_path: Path) -> None:
    """Its processes stand still, as the driver does for as long as a queue of YARN is full."""
    process: Any = FakeProcess(itertools.repeat(0.0))
    host = SparkHost(process, SparkSettings(folder=tmp_path, hung_after=10.0), Limit(process, 10.0, 0.0))
    for now in range(2, 1000, 2):
        host.replied(now)
        host.attend(now + 1.0)
    assert process.told == []
    host.attend(1009.0)
    assert process.told == ["kill"]
    assert host.problem == "the host was not ready after 11 s, and stood still"


def test_a_step_of_a_host_may_last_as_long_as_its_processes_move() -> None:
    """A program that the start only needs at its beginning takes its processor time with it when it ends."""
    process: Any = FakeProcess([0.0, 3.0, 1.0, 1.02, 1.04])
    limit = Limit(process, 10.0, 0.0)
    assert [limit.over(now) for now in (9.0, 10.0, 20.0, 29.0)] == [False] * 4
    process.logged = 1
    assert not limit.over(30.0), "it has written to its log"
    assert limit.over(40.0), "a fiftieth of a second in ten"


def test_a_database_may_be_silent_for_as_long_as_its_own_limit_and_a_job_that_was_stuck_four_times_as_long(
    tmp_path: Path,
) -> None:
    process: Any = FakeProcess()
    orders: list[tuple[float, bool]] = []
    process.send = lambda run: orders.append((run.stuck_after, run.stuck_before))
    host = SparkHost(process, SparkSettings(folder=tmp_path, stuck_after=90.0))
    host.became_ready({}, 0.0)
    database = Jdbc("postgresql://db/x", "t", statement_timeout=1800.0)
    host.submit(Call("job", ExportPlan(query="", tables={}, order_by=(), parts="/"), lambda _: None))
    call = Call("other", ExportPlan(query="", tables={"t": database}, order_by=(), parts="/"), lambda _: None)
    for stuck in ["", "", "slow", "slow", "", "slow"]:  # an empty text: its host died
        call.stuck = stuck
        host.submit(call)
    assert orders == [
        (90.0, False),
        (1800.0, False),
        (1800.0, False),
        (7200.0, True),
        (28_800.0, True),
        (28_800.0, True),
        (28_800.0, True),
    ]


def test_the_end_of_a_hosts_log_begins_with_the_error_that_ended_its_jvm(tmp_path: Path) -> None:
    """Python's traceback of the connection that was lost stands behind it, and is left out; other lines follow."""
    traceback = [f'  File "py4j/clientserver.py", line {number}' for number in range(60)]
    lines = [
        "starting",
        "java.lang.OutOfMemoryError: Java heap space",
        *traceback,
        *"abcdefgh",
        "\tat a.b.c",
        "Py4JNetworkError: no reply",
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    host: Any = SimpleNamespace(folder=tmp_path)
    tail = HostProcess.log_tail(host).split(" | ")
    assert tail == [lines[1], "e", "f", "g", "h", lines[-1]]


@pytest.mark.parametrize(
    ("rows", "total", "seconds", "shown"),
    [
        (0, 10, 0.0, "0 rows written"),
        (1_200_000, 3_000_000, 14.3, "1,200,000 rows written, 84,000 rows/s, about 21 s left"),
        (10, 20_000, 0.5, "10 rows written, 20 rows/s, about 17 min left"),
        (1, 3_601, 2.0, "1 rows written, 1 rows/s, about 2.0 h left"),
    ],
)
def test_a_note_has_the_speed_and_the_time_that_is_left(rows: int, total: int, seconds: float, shown: str) -> None:
    assert note(rows, total, seconds) == shown


def test_spark_is_given_the_systems_driver_unless_the_user_names_one(tmp_path: Path) -> None:
    assert with_driver("", tmp_path) == ""
    folder = tmp_path / "usr/share/java"
    folder.mkdir(parents=True)
    system = folder / "postgresql.jar"
    system.touch()
    assert with_driver("", tmp_path) == str(system)
    for own in ("/opt/postgresql-42.7.4.jar", "https://example.com/postgresql.jar", "postgresql-42.2.29.jre7.jar"):
        assert with_driver(f" {own},hdfs:///x.jar ", tmp_path) == f"{own},hdfs:///x.jar"
    for other in (
        "other.jar",
        "debezium-connector-postgresql-3.jar",
        "spark-postgresql-udfs.jar",
        "postgresql-udfs.jar",
    ):
        assert with_driver(f"https://example.com/{other}", tmp_path).split(",")[1:] == [str(system)]


def test_the_error_without_the_driver_names_its_package() -> None:
    """As py4j shows the error of Java."""
    session = MagicMock()
    load = session.read.format.return_value.options.return_value.load
    load.side_effect = Exception(
        "calling o37.load.\n: java.lang.ClassNotFoundException: org.postgresql.Driver\n\tat java."
    )
    with pytest.raises(ExportError, match="got no such class in Spark: apt-get install libpostgresql-jdbc-java"):
        load_table(session, DRIVER, REMEDY, {})
    load.side_effect = OSError("full")
    with pytest.raises(OSError, match="full"):
        load_table(session, DRIVER, REMEDY, {})


def test_a_host_can_import_what_the_worker_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    settings = SparkSettings(folder=tmp_path, conf={"spark.jars": "/own.jar"})
    environment = settings.environment({}, tmp_path, Java(tmp_path, "17.0.1"), sys.executable)
    entries = environment["PYTHONPATH"].split(os.pathsep)
    assert entries[:2] == [str(Path.cwd()), str(tmp_path)]
    assert not any("site-packages" in entry for entry in entries)
    assert "spark.jars=/own.jar" in settings.properties(tmp_path, {})


@pytest.mark.parametrize(
    "name", ["", "payments", "reports/frames:payments", "reports.frames:", ":payments", "a:b c", "a:b()"]
)
def test_a_function_is_named_by_its_module(name: str) -> None:
    assert Build("reports.frames:Monthly.payments").name == "reports.frames:Monthly.payments"
    with pytest.raises(ExportError, match="module:function"):
        Build(name)


def test_make_looks_for_the_tests_of_spark_where_they_are() -> None:
    root = Path(__file__).parents[3]
    (folders,) = re.findall(
        r"^SPARK_TESTS = .*,,(.*)\)$", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    marks = re.compile(r"\bmark\.spark\b")
    marked = [path for path in root.glob("tests/**/*.py") if marks.search(path.read_text(encoding="utf-8"))]
    assert marked
    assert [path for path in marked if not any(path.is_relative_to(root / folder) for folder in folders.split())] == []
