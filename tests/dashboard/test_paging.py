"""Long lists in parts, and many notices of one kind as one: no page grows with the number of jobs or worker processes."""

from __future__ import annotations

import html
import re

import pytest
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp

from steadyworker.adapter import Depth
from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.application import application
from steadyworker.dashboard.paging import ListPart, page_of, part_of, turned
from steadyworker.ledger.base import Began, Claimed, Ending, JobId, Moving, Verdict
from steadyworker.ledger.facts import Action, OwnerReport, QueueReport
from steadyworker.outcome import Counters
from tests.cli.night import EXPORTS
from tests.dashboard.fleet_of_facts import FleetOfFacts
from tests.dashboard.kit import request

LONG = "k" * 100


def links(text: str, label: str) -> list[str]:
    """Return the addresses of the links to the parts beside this one, of the list with this label."""
    found = re.findall(rf'<div class="turn" role="navigation" aria-label="{label}, parts">(.*?)</div>', text, re.DOTALL)
    assert len(found) == 1
    return [html.unescape(link) for link in re.findall('href="([^"]+)"', found[0])]


@pytest.mark.parametrize(
    ("text", "page"),
    [("", 1), ("3", 3), ("0", 1), ("-1", 1), ("x", 1), ("²", 1), ("10000", 10_000), ("99999", 10_000), ("9" * 5000, 1)],
)
def test_an_address_names_a_part(text: str, page: int) -> None:
    assert page_of(QueryParams([("page", text)])) == page


def test_a_part_beyond_the_end_is_the_first() -> None:
    assert part_of("abcde", 3, 2) == ListPart("e", 5, 4, 2)
    assert part_of("abcde", 4, 2) == ListPart("ab", 5, 0, 2)
    assert (part_of("abcde", 3, 2).page, part_of("abcde", 3, 2).pages) == (3, 3)
    assert (part_of("", 2, 2).page, part_of("", 2, 2).pages) == (1, 1)


def test_the_address_of_another_part_keeps_everything_else() -> None:
    query = QueryParams("broker=shop%2Feu&queue=a+b&page=2&waiting=3&did=secret")
    assert turned(query, "page", 3) == "broker=shop%2Feu&queue=a+b&waiting=3&page=3"
    assert turned(query, "page", 1) == "broker=shop%2Feu&queue=a+b&waiting=3"


def test_each_list_of_the_first_page_has_its_own_parts(facts: FleetOfFacts, page: ASGIApp) -> None:
    for number in range(130):
        facts.claim(f"{number:03}{LONG}", "worker-0")
        facts.end(f"waits-{number:03}{LONG}", reason=LONG, delay=600.0 + number)
        facts.end(f"dies-{number:03}{LONG}", target=Moving.DEAD, reason=LONG)
    first = request(page, "/?broker=shop&queue=exports").text
    assert len(first.encode()) < 100_000
    assert links(first, "Running jobs") == ["?broker=shop&queue=exports&page=2"]
    assert links(first, "Waiting jobs") == ["?broker=shop&queue=exports&waiting=2"]
    assert ">130 jobs</a>" in first  # dead jobs of one cause
    assert "Running 134" in request(page).words
    second = request(page, "/?broker=shop&queue=exports&page=2&waiting=2")
    assert links(second.text, "Running jobs") == [
        "?broker=shop&queue=exports&waiting=2",
        "?broker=shop&queue=exports&waiting=2&page=3",
    ]
    keys = [re.findall(r">(\d{3})k+</a>", request(page, f"/?page={number}").text) for number in (1, 2, 3, 4)]
    assert [int(key) for each in keys for key in each] == list(range(129, -1, -1))
    assert "41 to 80 of 134" in second.words
    waits = [re.findall(r">waits-(\d{3})k+</a>", request(page, f"/?waiting={number}").text) for number in range(1, 8)]
    assert sorted(int(key) for each in waits for key in each) == list(range(130))
    assert request(page, "/?page=77").words == request(page).words


def test_what_needs_a_person_is_counted_whole_and_shown_in_parts(facts: FleetOfFacts, page: ASGIApp) -> None:
    for number in range(30):
        facts.end(f"dies-{number:02}", reason="no", counters=Counters(crashes=2))
    first, second = request(page), request(page, "/?needs=2")
    assert links(first.text, "What needs a person") == ["?needs=2"]
    for answered in (first, second):
        assert "38 things need a person" in answered.words
    assert "gone host-4:4004" in first.words
    assert "gone host-4:4004" not in second.words
    needs = [answered.text.partition('id="running"')[0] for answered in (first, second)]
    assert [text.count('<span class="kind">dead</span>') for text in needs] == [0, 1]
    shown = [key for text in needs for key in re.findall(r">(dies-\d\d)</a>", text)]
    assert sorted(shown) == [f"dies-{number:02}" for number in range(30)]


def test_an_attempt_after_the_first_names_its_number_and_why_it_began(facts: FleetOfFacts, page: ASGIApp) -> None:
    claim = Claimed(
        JobId("shop", "exports", "again"), None, "worker-0", 0, b"\1" * 32, Counters(), None, Began(1, "new")
    )
    for because in ("retry", "taken over"):
        row = facts.ledger.claim(claim)
        assert row is not None
        retry = Verdict(Moving.RETRY, "no", Counters(attempts=1))
        assert facts.ledger.moving(row.token, retry, Ending("failed", "no"))
        assert facts.ledger.moved(row.token)
        seen = facts.ledger.read(row.id)
        claim = Claimed(row.id, seen, "worker-0", 1, b"\1" * 32, Counters(attempts=1), None, Began(1, because))
    assert facts.ledger.claim(claim) is not None
    facts.run("first", "new", None, None, seconds=0)
    words = request(page).words
    assert "alive run 3, taken over from a lost worker process 1 failed attempt" in words
    assert "first message" not in words


def test_causes_and_actions_have_parts(facts: FleetOfFacts, page: ASGIApp) -> None:
    for number in range(70):
        facts.end(
            f"dies-{number}", target=Moving.DEAD, reason="no", error_class=f"Error{number}{LONG}", error_text=LONG
        )
    for number in range(450):
        facts.ledger.facts.act(Action("ann@desk", f"cancel {number}", "shop", "exports", (LONG,), 1, LONG))
    failures = request(page, "/failures?when=today").text
    assert links(failures, "Causes") == ["?when=today&page=2"]
    assert len(failures.encode()) < 100_000
    first, third = request(page, "/actions"), request(page, "/actions?page=3")
    assert links(first.text, "Actions") == ["?page=2"]
    assert links(third.text, "Actions") == ["?page=2", "?page=4"]
    assert "cancel 449 " in first.words
    assert len(first.text.encode()) < 100_000


def register(facts: FleetOfFacts, number: int, host: str, namespace: str = "shop") -> None:
    """Register a worker process that is ready."""
    name = f"{namespace}/exports"
    report = OwnerReport(
        number,
        "1.4.0",
        facts.began,
        "running",
        ready=True,
        queues={name: QueueReport(4, 0, 7200.0, connected=True)},
    )
    facts.ledger.register(f"many-{number}", host, [name], report)


def test_many_worker_processes_of_one_host_are_one_notice(facts: FleetOfFacts, page: ASGIApp) -> None:
    for number in range(37):
        register(facts, number, "host-a")
    facts.pass_time(45.0)
    answered = request(page)
    assert "43 things need a person" in answered.words
    assert "silent 37 worker processes on host-a Silent since 10:24; of host-a:0: No renewal for 45 s" in answered.words
    assert answered.text.count("host-a") == 2


def test_many_dead_worker_processes_of_one_host_are_one_notice(facts: FleetOfFacts, page: ASGIApp) -> None:
    """The ledger counts them as one, because one new process for each queue would replace them."""
    for number in range(37):
        register(facts, number, "host-a")
    facts.pass_time(120.0)
    words = request(page).words
    assert "7 things need a person" in words
    assert "gone 37 worker processes on host-a Gone since 10:24; of host-a:0: Died 2 min 00 s ago" in words


def test_a_dead_worker_process_and_the_messages_of_its_queue_are_one_notice(facts: FleetOfFacts, page: ASGIApp) -> None:
    facts.ledger.bind("shop", "alone", "shop")
    report = OwnerReport(
        7, "1.4.0", facts.began, "running", ready=True, queues={"shop/alone": QueueReport(1, connected=True)}
    )
    facts.ledger.register("worker-alone", "host-alone", ["shop/alone"], report)
    facts.pass_time(120.0)
    facts.ledger.facts.record_depth("shop", "alone", Depth(ready=2))
    words = request(page).words
    died = "Died 2 min 00 s ago; no other worker consumes alone: read its log, and start it again. 2 messages wait."
    assert f"gone host-alone:7 {died}" in words
    assert "no worker alone" not in words


def test_of_300_worker_processes_no_page_is_large(facts: FleetOfFacts) -> None:
    for number in range(300):
        register(facts, number, f"host-{number:03}-{LONG}")
    facts.pass_time(45.0)
    page = application(facts.ledger, checked_access(), clock=facts.clock)
    words = request(page).words
    assert "306 things need a person" in words
    assert "silent 300 worker processes on 300 hosts" in words
    pages = {path: request(page, path).text for path in ("/", "/workers", "/workers?page=8", "/queues", "/warnings")}
    assert max(len(text.encode()) for text in pages.values()) < 100_000
    assert links(pages["/workers?page=8"], "Worker processes") == ["?page=7"]
    names = set()
    for number in range(1, 9):
        names |= set(re.findall(r">(host-\d{3})-k+:", request(page, f"/workers?page={number}").text))
    assert len(names) == 300


def test_a_worker_process_of_another_broker_is_not_on_the_page(facts: FleetOfFacts) -> None:
    facts.ledger.bind("shop/eu", "exports", "other")
    register(facts, 1, "host-eu", "shop/eu")
    facts.pass_time(45.0)
    everything = application(facts.ledger, checked_access(), clock=facts.clock)
    alone = application(facts.ledger, checked_access(), "shop", clock=facts.clock)
    for path in ("/", "/workers"):
        assert "host-eu" in request(everything, path).words
        assert "host-eu" not in request(alone, path).words
    assert "9 worker processes live" in request(alone, "/").words
    assert EXPORTS == "shop/exports"
