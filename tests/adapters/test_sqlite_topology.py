"""URLs, names, limits and checks of the embedded broker: what is wrong is reported before the first message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.adapter import OpenAdapter, QueueSpec, Settings
from steadyworker.backends.registry import open_adapter as open_by_scheme
from steadyworker.delivery import KEY, OutgoingMessage, Target
from steadyworker.errors import BrokerUnavailable, ConfigError, PublishFailed, TargetMissing
from steadyworker_sqlite import SqliteAdapter, open_adapter
from steadyworker_sqlite.errors import Unusable
from steadyworker_sqlite.topology import path_of, place_findings

SPEC = QueueSpec("exports", "exports.dead")


@pytest.fixture
def adapter(tmp_path: Path) -> Iterator[SqliteAdapter]:
    adapter = open_adapter(f"sqlite:{tmp_path}/broker.db", SPEC, Settings(max_body=100))
    yield adapter
    adapter.stop(5)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:/var/lib/broker.db", "/var/lib/broker.db"),
        ("sqlite:///var/lib/broker.db", "/var/lib/broker.db"),
        ("sqlite:broker 100%.db", "{cwd}/broker 100%.db"),
        ("sqlite:~/broker.db", "{home}/broker.db"),
    ],
)
def test_a_url_names_a_file(url: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(path_of(url)) == path.format(cwd=tmp_path, home="/home/somebody")


@pytest.mark.parametrize(
    "url", ["sqlite:", "sqlite://", "sqlite::memory:", "sqlite://host/path", "sqlite:a.db?mode=ro"]
)
def test_a_url_that_names_no_file_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigError, match="write sqlite:PATH"):
        open_adapter(url, SPEC, Settings())


@pytest.mark.parametrize("name", ["", "../exports", "a b", "x" * 201, "é"])
def test_a_queue_name_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="queue name"):
        open_adapter("sqlite:a.db", QueueSpec(name, "dead"), Settings())
    with pytest.raises(ConfigError, match="queue name"):
        open_adapter("sqlite:a.db", QueueSpec("work", name), Settings())


def test_a_queue_is_not_its_own_dead_letter_queue() -> None:
    with pytest.raises(ConfigError, match="for both"):
        open_adapter("sqlite:a.db", QueueSpec("work", "work"), Settings())


def test_opening_touches_nothing(tmp_path: Path) -> None:
    adapter = open_adapter(f"sqlite:{tmp_path}/no/broker.db", SPEC, Settings())
    assert adapter.findings(SPEC) == []
    adapter.stop(1)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_removed_before_any_worker_ran_is_not_made_again_and_check_reports_it(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    sender = SqliteAdapter(path, SPEC, Settings())
    sender.publish(OutgoingMessage(Target.WORK, b"", {}))
    sender.stop(1)
    for part in tmp_path.glob("broker.db*"):
        if part.is_file():
            part.unlink()

    for topology in ("declare", "check"):
        other = SqliteAdapter(path, SPEC, Settings(topology=topology))
        with pytest.raises(PublishFailed, match="it was removed: restore it"):
            other.publish(OutgoingMessage(Target.WORK, b"", {}))
        with pytest.raises(Unusable) as raised:
            other.identity()
        assert raised.value.id == "embedded.file-replaced"  # the entry that does not advise --topology declare
        (finding,) = other.findings(SPEC)
        assert (finding.level, finding.what) == ("error", f"Expected the broker file {path}, but it was removed.")
        assert "remove broker.db.consumers beside it" in finding.remedy
        other.stop(1)
    assert not path.exists()

    path.with_name("broker.db.consumers").rmdir()
    again = SqliteAdapter(path, SPEC, Settings())
    again.publish(OutgoingMessage(Target.WORK, b"", {}))
    assert again.findings(SPEC) == []
    again.stop(1)


def test_the_registry_finds_it_and_it_is_typed_as_an_adapter(tmp_path: Path) -> None:
    opener: OpenAdapter = open_adapter
    assert opener is open_adapter
    assert isinstance(open_by_scheme(f"sqlite:{tmp_path}/broker.db", SPEC, Settings()), SqliteAdapter)


def test_limits_are_judged_where_a_message_enters_and_not_on_its_copies(adapter: SqliteAdapter) -> None:
    """A copy of a message that is in already grew on the way; refusing it would hold the job up for ever."""
    large, headers = b"x" * 101, {KEY: "k-1", "trace": "x" * (64 << 10)}
    with pytest.raises(ValueError, match="body of at most 100 bytes, got 101"):
        adapter.publish(OutgoingMessage(Target.WORK, large, {}, first=True))
    with pytest.raises(ValueError, match="headers of at most 65536 bytes"):
        adapter.publish(OutgoingMessage(Target.WORK, b"", headers, first=True))
    adapter.publish(OutgoingMessage(Target.WORK, large, headers))
    adapter.publish(OutgoingMessage(Target.LATER, large, headers))
    adapter.publish(OutgoingMessage(Target.DEAD, large, headers))
    with adapter.dead_letters() as dead:
        assert [(letter.body, dict(letter.headers)) for letter in dead] == [(large, headers)]


def test_without_declaring_nothing_is_made(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    passive = SqliteAdapter(path, SPEC, Settings(topology="check"))
    assert [finding.what for finding in passive.findings(SPEC)] == [f"Expected a broker file at {path}, got none."]
    with pytest.raises(PublishFailed, match="no such file"):
        passive.publish(OutgoingMessage(Target.WORK, b"", {}))
    with pytest.raises(BrokerUnavailable, match="no such file"):
        passive.identity()
    assert not path.exists()

    other = SqliteAdapter(path, QueueSpec("exports", "elsewhere"), Settings())
    other.publish(OutgoingMessage(Target.WORK, b"", {}))
    assert [finding.what for finding in passive.findings(SPEC)] == [
        f"Expected the queue 'exports.dead' in {path}, got none."
    ]
    passive.publish(OutgoingMessage(Target.WORK, b"", {}))
    with pytest.raises(TargetMissing, match=r"exports\.dead.*--topology declare"):
        passive.publish(OutgoingMessage(Target.DEAD, b"", {}))
    other.stop(1)
    passive.stop(1)


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    everything_on_nfs = "21 1 0:40 / / rw - nfs4 server:/export rw\n"
    findings = place_findings(tmp_path / "broker.db", everything_on_nfs)
    assert [finding.level for finding in findings] == ["error"]
    assert "network file system (nfs4)" in findings[0].what


def test_a_folder_at_the_path_is_refused(tmp_path: Path) -> None:
    findings = place_findings(tmp_path, "")
    assert [finding.what for finding in findings] == [f"Expected a file at {tmp_path}, got something else."]
