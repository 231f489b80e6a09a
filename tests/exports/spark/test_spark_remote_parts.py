"""The parts of a Spark elsewhere that need none: addresses, findings, the names in the ledger, what errors mean."""

from __future__ import annotations

import importlib.util
import socket
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from steadyworker.errors import ConfigError
from steadyworker.exports.rows import Position
from steadyworker.exports.spark.address import ConnectAddress
from steadyworker.exports.spark.handle import Handle, SessionNames
from steadyworker.exports.spark.protocol import Connect
from steadyworker.exports.spark.server import is_answer, words
from steadyworker.exports.spark.settings import SparkSettings
from tests.exports.kit import FakeServices
from tests.exports.spark.clusters import free_port


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sc://host", "sc://host:15002"),
        ("sc://host:1/", "sc://host:1"),
        ("sc://10.0.0.7:443/;use_ssl=true;token=hunter2", "sc://10.0.0.7:443"),
        ("sc://host/;token=a%3Bb", "sc://host:15002"),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert str(ConnectAddress.of(url)) == shown
    settings = SparkSettings(folder=Path("/nowhere"), master=url)
    assert settings.place == shown
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    "url",
    [
        "sc://",
        "sc:///;token=hunter2",
        "sc://host:port/;token=hunter2",
        "sc://host:99999",
        "sc://user:hunter2@host",
        "sc://host/path;token=hunter2",
        "sc://host/?token=hunter2",
        "sc://host/;=hunter2",
        "sc://host/;session_id=hunter2",
    ],
)
def test_what_is_no_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="Expected a Spark Connect") as caught:
        SparkSettings(folder=Path("/nowhere"), master=url)
    assert "hunter2" not in str(caught.value)


def test_a_host_gets_its_server_through_the_pipe_alone(tmp_path: Path) -> None:
    """What a session may be given goes along: ours, and all of the user's on top."""
    conf = {"spark.sql.files.maxPartitionBytes": "1m", "spark.sql.x": "y"}
    settings = SparkSettings(folder=tmp_path, master="sc://host/;token=hunter2", conf=conf)
    told = settings.connect()
    assert isinstance(told, Connect)
    assert told.url == "sc://host/;token=hunter2"
    assert conf.items() <= told.conf.items()
    assert "spark.driver.memory" not in told.conf
    environ = settings.environment({"JAVA_HOME": "/java", "GRPC_TRACE": "all", "A": "b"}, tmp_path, None, "python")
    assert "hunter2" not in str(environ)
    assert "GRPC_TRACE" not in environ
    assert environ["A"] == "b"
    assert SparkSettings(folder=tmp_path).connect() is None


def test_a_server_needs_no_java(tmp_path: Path) -> None:
    settings = SparkSettings(folder=tmp_path, master="sc://host")
    assert settings.java({"PATH": ""}) is None


def test_the_check_names_what_an_export_at_a_server_would_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = SparkSettings(folder=tmp_path, master=f"sc://127.0.0.1:{listener.getsockname()[1]}/;token=hunter2")
        assert list(there.findings()) == []
    (gone,) = SparkSettings(folder=tmp_path, master=f"sc://127.0.0.1:{free_port()}/;token=hunter2").findings()
    assert gone.level == "warning"
    assert "does not answer" in gone.what
    assert "hunter2" not in str(gone)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "grpc" else find(name))
    (bare, _) = SparkSettings(folder=tmp_path, master=f"sc://127.0.0.1:{free_port()}").findings()
    assert bare.level == "error"
    assert "grpc: pip install 'steadyworker[spark-connect]'" in bare.what
    assert list(SparkSettings(folder=tmp_path, master="spark://nowhere:7077").findings()) == []


def test_a_run_is_named_in_the_ledger_before_spark_gets_it_and_knows_of_those_before_it(tmp_path: Path) -> None:
    """Those before it stay there until this one has begun: by then they have ended."""
    first = SessionNames(one := FakeServices(tmp_path))
    assert first.earlier == ()
    assert stored(one) == ((1, first.own),)
    second = SessionNames(two := FakeServices(tmp_path, fence=2))
    assert second.earlier == (first.own,)
    third = SessionNames(three := FakeServices(tmp_path, fence=3))  # the second died before it had begun
    assert third.earlier == (first.own, second.own)
    assert [fence for fence, _ in stored(three)] == [1, 2, 3]
    beside = SessionNames(three)  # another export of the same run, in another thread
    assert beside.earlier == (first.own, second.own)
    third.began({"server": "sc://host:1"})
    assert stored(three) == ((3, third.own), (3, beside.own))
    assert msgspec.json.decode(three.export_state() or b"", type=Handle).where == {"server": "sc://host:1"}
    again = str(uuid.uuid4())
    third.began({"server": "sc://host:1", "session": again})  # it was stuck, and begun again
    third.began({"server": "sc://host:1", "session": again})
    assert stored(three) == ((3, third.own), (3, beside.own), (3, again))
    assert two.saved[0] is not None
    assert len(two.saved) == 1


def test_a_handle_stays_small_and_where_spark_is_the_hosts_nothing_is_written_twice(tmp_path: Path) -> None:
    for fence in range(1, 200):
        SessionNames(FakeServices(tmp_path, fence=fence))
    last = FakeServices(tmp_path, fence=200)
    assert len(SessionNames(last).earlier) == 64
    assert len(last.export_state() or b"") < 1 << 14
    once = FakeServices(tmp_path / "other")
    SessionNames(once).began({})
    assert len(once.saved) == 1


@pytest.mark.parametrize("stored", [b"", b"{", b'{"committed":"a.csv","sha256":"00"}'])
def test_what_another_kind_of_export_stored_is_no_name(tmp_path: Path, stored: bytes) -> None:
    services = FakeServices(tmp_path)
    services.save_export_state(stored)
    assert SessionNames(services).earlier == ()
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(services.export_state() or b"", type=Position)


def stored(services: FakeServices) -> tuple[tuple[int, str], ...]:
    return msgspec.json.decode(services.export_state() or b"", type=Handle).spark


class Grpc(Exception):
    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code: Callable[[], str] = lambda: code


def test_silence_is_distinguished_from_an_answer() -> None:
    text = '<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "no token=hunter2"'
    assert not is_answer(Grpc("", "StatusCode.UNAVAILABLE"))
    assert not is_answer(Grpc("", "StatusCode.DEADLINE_EXCEEDED"))
    assert not is_answer(RuntimeError(text))
    assert not is_answer(type("RetriesExceeded", (Exception,), {})("the client of Spark 4.0 raises it without a code"))
    assert is_answer(Grpc("", "StatusCode.INTERNAL"))
    assert is_answer(RuntimeError("no code at all"))
    assert words(RuntimeError(text)) == "no token=***"
    assert words(RuntimeError("\n\n[TABLE_OR_VIEW_NOT_FOUND] t\nmore")) == "[TABLE_OR_VIEW_NOT_FOUND] t"
