"""The page while its ledger, or its visitors, behave badly: a database that goes away and comes back, 10,000 connections."""

from __future__ import annotations

import gc
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.types import ASGIApp

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.postgres.ledger import PostgresLedger
from tests.cli.test_drill_screens import sqlite
from tests.conftest import Eventually
from tests.dashboard.fleet_of_facts import FleetOfFacts
from tests.dashboard.kit import request
from tests.dashboard.test_pages import ADDRESSES
from tests.dashboard.test_serving import Command, answers, connected, ledger, started, status_of
from tests.faults.proxy import Proxy
from tests.ledger.pgkit import claim

__all__ = ["ledger", "started"]

CONNECTIONS = 10_000
"""Each holds a file descriptor of the test, too."""


def text_of(url: str, path: str = "/") -> tuple[int, str]:
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
        connection.request("GET", path)
        answered = connection.getresponse()
        return answered.status, answered.read().decode()


def cut(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.cut()


def mend(proxy: Proxy) -> None:
    proxy.accept()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("goes", "comes"),
    [
        pytest.param(cut, mend, id="refused"),
        pytest.param(Proxy.stall, Proxy.resume, id="silent", marks=pytest.mark.slow),
    ],
)
def test_a_ledger_that_goes_away_and_comes_back(
    database: str,
    tmp_path: Path,
    started: list[Command],
    eventually: Eventually,
    goes: Callable[[Proxy], None],
    comes: Callable[[Proxy], None],
) -> None:
    """A page that was read shows what it knew, with its age; a page that was never read shows why it cannot be drawn."""
    clock, times = SystemClock(), Times()
    owner = PostgresLedger(lambda: database, owners_dir=tmp_path, clock=clock, times=times)
    with Proxy(database) as proxy, closing(owner):
        owner.bind("shop", "exports", "shop")
        claim(owner)
        command = Command("--ledger", proxy.url)
        started.append(command)
        assert "m-17" in text_of(command.url)[1]
        goes(proxy)
        eventually(lambda: "so this page shows what it last read" in text_of(command.url)[1])
        status, text = text_of(command.url)
        assert (status, "m-17" in text) == (200, True)
        status, text = text_of(command.url, "/queues")
        assert (status, "The ledger cannot be read" in text) == (503, True)
        comes(proxy)
        eventually(lambda: text_of(command.url, "/queues")[0] == 200)
        eventually(lambda: "so this page shows what it last read" not in text_of(command.url)[1])


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, CONNECTIONS + 2000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.processes
@pytest.mark.usefixtures("many_files")
def test_ten_thousand_connections(ledger: str, started: list[Command], eventually: Eventually) -> None:
    """Those above the limit are closed, the page needs no more memory than it may, and serves again when they have gone."""
    command = Command("--ledger", ledger)
    started.append(command)
    assert status_of(command.url) == 200
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(connected(command.url))
        assert command.pss() < 60 << 20
        assert command.process.poll() is None
    eventually(lambda: answers(command.url))
    assert command.pss() < 60 << 20


AN_HOUR = 1800
"""The refreshes of a page in an hour."""

MOST_GROWTH = 256 << 10
"""Bytes; one object of 100 bytes that each refresh leaves would be more in all pages together."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("facts", [sqlite], ids=["sqlite"], indirect=True)
def test_the_memory_of_an_hour_of_refreshes_is_flat(facts: FleetOfFacts, page: ASGIApp) -> None:
    def refresh(times: int) -> int:
        for _ in range(times):
            facts.clock.advance(2.0)  # each page is read again
            for address in ADDRESSES:
                assert request(page, address).status == 200
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = refresh(AN_HOUR // 10)
        assert refresh(AN_HOUR) - before < MOST_GROWTH
    finally:
        tracemalloc.stop()
