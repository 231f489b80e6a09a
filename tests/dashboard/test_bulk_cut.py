"""The page replays thousands of dead letters of RabbitMQ, whose connections are cut in the middle."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from steadyworker.adapter import OutgoingMessage
from steadyworker.backends.connections import Connections
from steadyworker.backends.opening import namespace_of, open_ledger
from steadyworker.config.resolve import Options, load
from steadyworker.ledger.base import JobFilter, JobId, State
from steadyworker_rabbitmq.deadletters import RabbitmqDeadLetters
from tests.adapters.test_rabbitmq_replay import QUEUE, died, messages
from tests.brokers.rabbitmq import Vhost
from tests.conftest import Eventually
from tests.dashboard.test_forms import Site, ended
from tests.faults.proxy import Proxy
from tests.support.ledgers import make_ledger
from tests.support.stage import processes_at


@pytest.fixture
def proxy(vhost: Vhost) -> Iterator[Proxy]:
    """The way to the broker, which can be cut."""
    with Proxy(vhost.url) as made:
        yield made


@pytest.fixture
def options(request: pytest.FixtureRequest, proxy: Proxy, tmp_path: Path) -> Options:
    on = getattr(request, "param", "sqlite")
    ledger = f"sqlite:{tmp_path}/ledger.db" if on == "sqlite" else request.getfixturevalue("database")
    settings = {"broker": f"{proxy.url}?management=off", "ledger": ledger, "state_dir": str(tmp_path)}
    return load(settings, {"STEADYWORKER_DELAYS": "1"}, tmp_path)


def fill(options: Options, vhost: Vhost, count: int) -> None:
    """Record dead jobs, and publish their letters without the proxy."""
    make_ledger(options)
    with Connections(options) as links:
        namespace = namespace_of(links.adapter(QUEUE), options, links.ledger(), "exports")
        for number in range(count):
            links.adapter(QUEUE).publish(died(links.ledger(), JobId(namespace, "exports", f"k-{number}", 0)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("options", "outage", "count"),
    [
        ("sqlite", "short", 600),
        pytest.param("sqlite", "short", 5_000, marks=pytest.mark.slow),
        ("sqlite", "long", 600),
        pytest.param("postgresql", "short", 5_000, marks=pytest.mark.slow),
        pytest.param("postgresql", "long", 5_000, marks=pytest.mark.slow),
    ],
    indirect=["options"],
)
def test_a_bulk_replay_whose_connection_is_cut_loses_none_and_doubles_none(
    vhost: Vhost,
    proxy: Proxy,
    options: Options,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
    outage: str,
    count: int,
) -> None:
    """After a short outage it goes on by itself; after a long one the page says how far it came, and a second click does the rest."""
    monkeypatch.setattr("steadyworker.dashboard.bulk.WAITS", (0.1,) * 50 if outage == "short" else ())
    fill(options, vhost, count)
    with closing(open_ledger(options)) as ledger:
        site = Site(options, ledger)
        where = site.choose("/choose?state=dead&kind=OperationalError")
        address = site.post(site.form(where, "replay-all"), number=str(count)).headers["location"]

        def done() -> int:
            (words,) = re.findall("<h1>([0-9,]+) of [0-9,]+ jobs replayed", site.get(address).text)
            return int(words.replace(",", ""))

        eventually(lambda: done() > count // 3)
        proxy.cut()
        first = ended(site, address, eventually)
        if outage == "long":
            came = done()
            assert count // 3 < came < count
            assert first.startswith(f"{came:,} of {count:,} jobs replayed. Then: ")
            rest = (
                rf"{count - came:,} jobs are as before\.( Of these, k-\d+ may be replayed: a next attempt is safe\.)?"
            )
            assert re.search(f"{rest}$", first)
            second = site.post(site.form(where, "replay-all"), number=str(count)).headers["location"]
            ended(site, second, eventually)
            assert [action.count for action in ledger.facts.actions()] == [count - came, came]
        else:
            assert first == f"{count:,} of {count:,} jobs replayed."
            assert [action.count for action in ledger.facts.actions()] == [count]
        rows = [row for row, _ in ledger.jobs(JobFilter(queue="exports", states=(State.MOVED,)))]
        assert Counter(row.id.round for row in rows) == {1: count}
    sent = messages(vhost, "exports")
    assert {(key, round_) for key, round_ in sent} == {(f"k-{number}", "1") for number in range(count)}
    assert len(sent) - count <= 1, "only the letter at the cut can have two messages, which are one job"
    assert messages(vhost, "exports.dead") == []


@pytest.mark.parametrize("outage", ["short", "long"])
def test_each_job_of_a_replay_that_was_cut_runs_once(
    vhost: Vhost,
    proxy: Proxy,
    options: Options,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
    outage: str,
) -> None:
    """The handler itself writes each run to a file; the cut comes between the publish of a letter and its removal."""
    monkeypatch.setattr("steadyworker.dashboard.bulk.WAITS", (0.1,) * 50 if outage == "short" else ())
    count, begun = 60, list[int]()
    fill(options, vhost, count)
    publish = RabbitmqDeadLetters.publish

    def cut(self: RabbitmqDeadLetters, message: OutgoingMessage) -> None:
        publish(self, message)
        begun.append(1)
        if len(begun) == count // 2:
            proxy.cut()

    monkeypatch.setattr(RabbitmqDeadLetters, "publish", cut)
    with closing(open_ledger(options)) as ledger:
        site = Site(options, ledger)
        where = site.choose("/choose?state=dead")
        text = ""
        for _ in range(2 if outage == "long" else 1):
            address = site.post(site.form(where, "replay-all"), number=str(count)).headers["location"]
            text = ended(site, address, eventually)
        assert text == (
            "60 of 60 jobs replayed." if outage == "short" else "31 of 60 jobs replayed; 29 jobs had changed before."
        )
    with processes_at(f"{vhost.url}?management=off", tmp_path) as place:
        place.worker("tests.dashboard.witness:Witness")
        place.notes("runs", count)
        for number in range(count):
            place.reaches("exports", State.DONE, f"k-{number}")
        assert Counter(place.lines("runs")) == {f"k-{number}": 1 for number in range(count)}
    assert messages(vhost, "exports") == []
    assert messages(vhost, "exports.dead") == []
