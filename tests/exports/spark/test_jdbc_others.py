"""`Jdbc` tables of other databases than PostgreSQL: over real Spark and a real MariaDB, by the drivers of MariaDB and of MySQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.duckdb.export import DuckDBExport
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.spark.databases import read_other_table
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.brokers.fixtures import had
from tests.brokers.mariadb import USER, MariaDB, mysql_drivers
from tests.exports.kit import FakeServices
from tests.exports.spark.jdbckit import PASSWORD
from tests.exports.spark.sparkkit import SMALL_TASKS, LiveServices

over_mariadb = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("spark others"),
]
variations = [*over_mariadb, pytest.mark.slow]
SETUP = """
SET sql_mode = '';
SET time_zone = '+00:00';
SET GLOBAL time_zone = '+05:30';
CREATE TABLE nasty (
  id bigint unsigned PRIMARY KEY, `te``xt` varchar(100), amount decimal(38,10), flag tinyint(1), tiny tinyint unsigned,
  y year, moment datetime(6), instant timestamp(6) NULL, day date, number double, bit bit(1));
INSERT INTO nasty VALUES (1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO nasty VALUES (2, '', 0, 0, 0, 1901, '9999-12-31 23:59:59.999999', '2024-11-03 05:30:00', '1500-02-28', 1e-8, 0);
INSERT INTO nasty VALUES (3, 'a,b', -0.0000000001, 1, 1, 2155, '2024-03-10 02:30:00', '2024-11-03 06:30:00', '1911-01-01', -1, 1);
INSERT INTO nasty VALUES (18446744073709551615, 'ümläut 😀', 1234567890123456789012345678.0123456789, 5, 255, 2024,
  '1582-10-15 00:00:00', '2024-03-10 07:30:00.123456', '0001-01-01', 12345678.9, 1);
CREATE TABLE zero (id int, day date);
INSERT INTO zero VALUES (1, '0000-00-00');
CREATE TABLE old (id int, moment datetime);
INSERT INTO old VALUES (1, '1582-10-04 23:59:59');
CREATE TABLE big (id int, big decimal(65,30));
CREATE TABLE clock (id int, at time);
CREATE TABLE bits (id int, bits bit(8));
CREATE TABLE numbers AS SELECT seq AS id, CAST(seq AS CHAR) AS text FROM seq_1_to_5000;
"""
LINES = [
    "id,te`xt,amount,flag,tiny,y,moment,instant,day,number,bit",
    "1,,,,,,,,,,",
    '2,"",0.0000000000,0,0,1901,9999-12-31T23:59:59.999999,2024-11-03T05:30:00.000000Z,1500-02-28,1.0E-8,false',
    '3,"a,b",-0.0000000001,1,1,2155,2024-03-10T02:30:00.000000,2024-11-03T06:30:00.000000Z,1911-01-01,-1.0,true',
    (
        "18446744073709551615,ümläut 😀,1234567890123456789012345678.0123456789,5,255,2024,1582-10-15T00:00:00.000000,"
        "2024-03-10T07:30:00.123456Z,0001-01-01,1.23456789E7,true"
    ),
]


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    with had():
        made = MariaDB(SETUP)
    with closing(made):
        made.start()
        yield made


@pytest.fixture(scope="module")
def others(mariadb: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkService]:
    """A service whose JVM has a zone with clock changes, which no value may show."""
    with had():
        conf = {**SMALL_TASKS, "spark.jars": mysql_drivers()}
    environ = {**os.environ, PASSWORD: mariadb.password, "WRONG": "wr0ng-secret", "TZ": "America/New_York"}
    settings = SparkSettings(folder=tmp_path_factory.mktemp("others"), conf=conf, master="local[2,4]")
    service = SparkService(settings, environ=environ)
    yield service
    service.stop(10)


@pytest.fixture(params=["mariadb", "mysql"])
def url(request: pytest.FixtureRequest, mariadb: MariaDB) -> str:
    return f"jdbc:{request.param}://127.0.0.1:{mariadb.port}/shop"


def ask(
    service: SparkService, to: Path, url: str, table: str, password: str = PASSWORD, **options: object
) -> tuple[Manifest, list[str]]:
    """Export a table; the manifest and the file's lines."""
    source = Jdbc(url, table, user=USER, password_env=password, **options)  # type: ignore[arg-type]
    made = SparkExport("SELECT * FROM t", tables={"t": source}, order_by=("id",)).write(LiveServices(service), to)
    return made, to.read_text(encoding="utf-8").splitlines()


class TestValues:
    pytestmark = over_mariadb

    def test_values_survive_and_the_manifest_has_no_snapshot(
        self, others: SparkService, url: str, tmp_path: Path
    ) -> None:
        made, lines = ask(others, tmp_path / "out.csv", f"{url}?connectTimeout=9000", "nasty")
        assert (lines, made.snapshot) == (LINES, f"{url} none")


class TestMore:
    pytestmark = variations

    def test_ranges_have_each_row_once(self, others: SparkService, url: str, tmp_path: Path) -> None:
        _, lines = ask(others, tmp_path / "out.csv", url, "numbers", partition_by="id", partitions=4, fetch_rows=100)
        assert lines == ["id,text", *(f"{number},{number}" for number in range(1, 5001))]

    def test_the_ranges_of_unsigned_numbers_have_each_row_once(
        self, others: SparkService, url: str, tmp_path: Path
    ) -> None:
        query = "SELECT id FROM nasty -- all"
        _, lines = ask(others, tmp_path / "out.csv", url, query, partition_by="id", partitions=3)
        assert lines == ["id", "1", "2", "3", "18446744073709551615"]

    @pytest.mark.parametrize(
        ("table", "why"),
        [
            ("big", "round it to 3 places"),
            ("clock", "in 1970"),
            ("bits", "text of its bits"),
            ("old", "which Spark would move by days"),
        ],
    )
    def test_a_column_that_spark_would_change_is_refused(
        self, others: SparkService, url: str, tmp_path: Path, table: str, why: str
    ) -> None:
        with pytest.raises(ExportRejected, match=why):
            ask(others, tmp_path / "out.csv", url, table)

    def test_a_zero_date_is_an_error_of_the_driver_of_mysql_and_null_for_that_of_mariadb(
        self, others: SparkService, url: str, tmp_path: Path
    ) -> None:
        if "mariadb" in url:
            assert ask(others, tmp_path / "out.csv", url, "zero")[1] == ["id,day", "1,"]
        else:
            with pytest.raises(ExportError, match="Zero date value prohibited"):
                ask(others, tmp_path / "out.csv", url, "zero")

    def test_a_wrong_password_is_not_shown(self, others: SparkService, url: str, tmp_path: Path) -> None:
        with pytest.raises(ExportError, match="Access denied for user 'reader'") as caught:
            ask(others, tmp_path / "out.csv", url, "nasty", "WRONG")
        assert not isinstance(caught.value, ExportRejected)
        assert "wr0ng-secret" not in str(caught.value)

    def test_a_missing_table_and_a_column_without_whole_numbers_are_refused(
        self, others: SparkService, url: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ExportRejected, match="gone"):
            ask(others, tmp_path / "out.csv", url, "gone")
        with pytest.raises(ExportRejected, match="whole numbers as partition_by of table 't', got 'day', date"):
            ask(others, tmp_path / "out.csv", url, "nasty", partition_by="day", partitions=2)

    def test_a_database_that_takes_the_quotes_of_spark_for_those_of_a_text_is_refused(
        self, others: SparkService, mariadb: MariaDB, tmp_path: Path
    ) -> None:
        """MySQL's driver decodes the URL, and Spark does not, so Spark quotes names as in standard SQL."""
        url = f"jdbc:my%73ql://127.0.0.1:{mariadb.port}/shop"
        for table in ("numbers", "SELECT id, text FROM numbers -- all"):
            with pytest.raises(ExportRejected, match=r"names in Spark's quotes for table 't', got .*RowExport"):
                ask(others, tmp_path / "out.csv", url, table, driver="com.mysql.cj.jdbc.Driver")

    def test_a_missing_driver_is_named_with_its_remedy(self, others: SparkService, tmp_path: Path) -> None:
        with pytest.raises(ExportError, match=r"com\.example\.Driver, got no such class in Spark: set spark\.jars"):
            ask(others, tmp_path / "out.csv", "jdbc:odd://127.0.0.1:1/shop", "t", driver="com.example.Driver")


def test_each_url_that_spark_takes_for_mysql_gets_the_options_that_keep_its_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, str]] = []

    def load(_session: object, _driver: str, _remedy: str, options: dict[str, str]) -> object:
        asked.append(options)
        schema = StructType([StructField("id", LongType(), metadata={"scale": 0})])
        return SimpleNamespace(schema=schema, first=lambda: ("value", "", ""), select=lambda *_: None)

    monkeypatch.setattr("steadyworker.exports.spark.databases.load", load)
    source = Jdbc("jdbc:mysql+srv://db.example/shop", "t", driver="com.example.Driver", partition_by="id")
    none: Any = SimpleNamespace(password=lambda _: None)
    with pytest.raises(ExportRejected, match="whole numbers as the smallest"):
        read_other_table(none, none, "t", source)
    assert [options["tinyInt1isBit"] for options in asked] == ["false"] * 3
    assert "min(`id`)" in asked[-1]["dbtable"]


@pytest.mark.parametrize("bounds", [("id", "id", 9), ("1", "id", 9), (float("nan"), 1.0, 9)])
def test_bounds_that_are_no_whole_numbers_are_refused(
    monkeypatch: pytest.MonkeyPatch, bounds: tuple[object, ...]
) -> None:
    """Databricks takes the column's name in these quotes for a text, and Spark reads its tables with others."""

    def load(_session: object, _driver: str, _remedy: str, options: dict[str, str]) -> object:
        schema = StructType([StructField("id", LongType(), metadata={"scale": 0})])
        row = ("value",) if "sw_probe" in options["dbtable"] else bounds
        return SimpleNamespace(schema=schema, first=lambda: row)

    monkeypatch.setattr("steadyworker.exports.spark.databases.load", load)
    source = Jdbc("jdbc:odd://db.example/shop", "t", driver="com.example.Driver", partition_by="id", partitions=2)
    none: Any = SimpleNamespace(password=lambda _: None)
    with pytest.raises(ExportRejected, match=r"smallest and largest 'id' of table 't', got .*leave partition_by out"):
        read_other_table(none, none, "t", source)


def test_a_url_of_another_database_becomes_a_driver_and_a_place() -> None:
    assert Jdbc("jdbc:mysql://db.example/shop", "t").driver == "com.mysql.cj.jdbc.Driver"
    url = "jdbc:sqlserver://db.example:1433;databaseName=shop"
    made = Jdbc(url, "SELECT 1", driver="com.example.Driver", user="reader", password_env="P")
    assert (made.driver, made.place) == ("com.example.Driver", "jdbc:sqlserver://db.example:1433")
    assert made.relation == "(SELECT 1\n) source"
    assert msgspec.json.decode(msgspec.json.encode(made), type=Jdbc) == made
    for url, user in (("postgresql://db.example/shop", "reader"), ("postgresql://reader@db.example/shop", None)):
        assert Jdbc(url, "t", user=user).user == "reader"
    with pytest.raises(ExportRejected, match="got two"):
        Jdbc("postgresql://reader@db.example/shop", "t", user="writer")


@pytest.mark.parametrize("url", ["jdbc:odd:s3cret", "jdbc:s3cret", "jdbc:"])
def test_an_unknown_database_needs_the_class_of_its_driver(url: str) -> None:
    with pytest.raises(
        ExportRejected, match=r"Expected driver= with the class .*, got none: .*known for jdbc:mysql: and jdbc:mariadb:"
    ) as caught:
        Jdbc(url, "t")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "begin"),
    [
        ("JDBC:mysql://db.example/s3cret", "jdbc:mysql:"),
        ("jdbc:MariaDB://db.example/s3cret", "jdbc:mariadb:"),
        ("Jdbc:s3cret", "jdbc:"),
    ],
)
def test_a_beginning_in_capitals_is_refused_with_the_one_in_lower_case(url: str, begin: str) -> None:
    with pytest.raises(
        ExportRejected, match=f"begins with {begin}, got capitals there: write it in lower case"
    ) as caught:
        Jdbc(url, "t", driver="com.example.Driver")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("jdbc:db2://db.example:50000/SHOP:odd=s3cret;", "jdbc:db2://db.example:50000/SHOP"),
        ("jdbc:odd://db.example/shop,odd = s3cret", "jdbc:odd://db.example/shop"),
        ("jdbc:odd://db.example/shop&odd=s3cret", "jdbc:odd://db.example/shop"),
        ("jdbc:teradata://db.example/ODD=s3cret", "jdbc:teradata://db.example"),
        ("jdbc:mysql://(host=db.example,odd=s3cret)/shop", "jdbc:mysql://"),
        ("jdbc:oracle:thin:@//db.example:1521/shop?odd=s3cret", "jdbc:oracle:thin:@//db.example:1521/shop"),
    ],
)
def test_the_place_ends_before_the_first_option(url: str, place: str) -> None:
    assert Jdbc(url, "t", driver="com.example.Driver").place == place


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:mysql://reader:s3cret@db.example/shop",
        "jdbc:mysql://db.example/shop?user=reader&password=s3cret",
        "jdbc:sqlserver://db.example;user=reader;pwd = s3cret",
        "jdbc:sqlserver://db.example;trustStorePassword=s3cret",
        "jdbc:oracle:thin:reader/s3cret@//db.example/shop",
        "jdbc:mysql://reader:s3cret:@db.example/shop",
        "jdbc:mysql://db.example/shop?p%61ssword=s3cret",
        "jdbc:db2://db.example/SHOP:apiKey=s3cret;",
        "jdbc:odd://db.example/shop,accessKey=s3cret",
        "jdbc:odd://db.example/shop?passcode=s3cret",
        "jdbc:odd://db.example/shop;PASSPHRASE=s3cret",
        "jdbc:odd://db.example/shop;encodedCredentials=s3cret",
        "jdbc:odd://db.example/shop;OAuthPvtKey=s3cret",
        "jdbc:odd://db.example/shop;private_key_base64=s3cret",
        "jdbc:odd://db.example/shop?sig=s3cret",
        "jdbc:teradata://db.example/LOGMECH=JWT,LOGDATA=s3cret",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ExportRejected, match="without user and password") as caught:
        Jdbc(url, "t", driver="com.example.Driver")
    assert "s3cret" not in str(caught.value)


def test_what_only_postgresql_has_is_refused(tmp_path: Path) -> None:
    for driver in ("com.example.Driver", None):
        with pytest.raises(
            ExportRejected, match=r"PostgreSQL as postgresql://.*got a URL of JDBC.*without driver="
        ) as caught:
            Jdbc("jdbc:postgresql:x?password=s3cret", "t", driver=driver)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(ExportRejected, match="driver= only for"):
        Jdbc("postgresql://db.example/shop", "t", driver="com.example.Driver")
    with pytest.raises(ExportRejected, match="schema= only for PostgreSQL"):
        Jdbc("jdbc:mysql://db.example/shop", "t", schema="a STRING")
    export = DuckDBExport(
        "SELECT * FROM t", tables={"t": Jdbc("jdbc:mysql://db.example/shop?a=1", "t")}, order_by=("id",)
    )
    with pytest.raises(ExportRejected, match=r"got jdbc:mysql://db\.example/shop: export it with SparkExport"):
        export.write(FakeServices(tmp_path / "ledger"), tmp_path / "out.csv")
