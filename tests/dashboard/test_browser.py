"""
The pages in a real browser: light and dark, from 320 to 3840 pixels, with a keyboard alone, without JavaScript, for a screen reader.

If the variable STEADYWORKER_TEST_PICTURES names a folder, the pictures of all pages stay there, for people.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.clock import Times
from steadyworker.config.resolve import load
from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.application import application
from steadyworker.depth import Depth
from steadyworker.ledger.base import JobId, Moving
from steadyworker.ledger.facts import Action
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.conftest import Eventually
from tests.dashboard.browser import CONTRASTS, LEAST_CONTRAST, Browser, chromium
from tests.dashboard.fleet_of_facts import FleetOfFacts, hostile
from tests.dashboard.kit import served
from tests.dashboard.test_pages import hung
from tests.dashboard.test_paging import register

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

PAGES = {
    "running": "/",
    "failures": "/failures",
    "queues": "/queues",
    "workers": "/workers",
    "warnings": "/warnings",
    "actions": "/actions",
    "job": "/job/shop/exports/export-m-23",
    "stuck": "/job/shop/exports/stuck",
    "nothing": "/nothing",
}
WIDTHS = (320, 390, 1280, 3840)
SCHEMES = ("light", "dark")
FIRST_SCREEN = 844
"""The height of a telephone, in pixels."""
OVERLAPS = """
[...document.querySelectorAll("main *")].filter((each) => !each.closest(".cards thead") && each.scrollWidth > each.clientWidth + 1
    && each.clientWidth && getComputedStyle(each).overflowX === "visible" && getComputedStyle(each).display !== "inline")
  .map((each) => each.outerHTML.slice(0, 120))
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def fleet() -> FleetOfFacts:
    clock, dead = FakeClock(), set[str]()
    fleet = FleetOfFacts(MemoryLedger(clock, Times(), is_dead=dead.__contains__), clock, dead)
    fleet.fill()
    return fleet


@pytest.fixture(scope="module")
def url(fleet: FleetOfFacts) -> Iterator[str]:
    with served(application(fleet.ledger, checked_access(), clock=fleet.clock)) as url:
        yield url


@pytest.fixture
def acting(tmp_path: Path) -> Iterator[tuple[FleetOfFacts, str]]:
    """A fleet of its own, and the address of its page with actions."""
    clock, dead = FakeClock(), set[str]()
    fleet = FleetOfFacts(MemoryLedger(clock, Times(), is_dead=dead.__contains__), clock, dead)
    fleet.fill()
    options = load({"state_dir": str(tmp_path / "state")}, {}, tmp_path)
    with served(application(fleet.ledger, checked_access(), clock=clock, acting=options)) as url:
        yield fleet, url


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("STEADYWORKER_TEST_PICTURES")
    folder = Path(named) if named else tmp_path_factory.mktemp("pictures")
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_page_of_a_large_fleet_fits(browser: Browser, pictures: Path, scheme: str) -> None:
    """Its lists have parts, and 37 dead worker processes are one notice."""
    clock, dead = FakeClock(), set[str]()
    fleet = FleetOfFacts(MemoryLedger(clock, Times(), is_dead=dead.__contains__), clock, dead)
    fleet.fill()
    for number in range(100):
        register(fleet, number, "host-a" if number < 37 else f"host-{number}")
        fleet.run(f"export-m-{number:03}", "new", None, None, seconds=0)
        fleet.end(f"waits-{number}", reason="no such merchant", delay=600.0 + number)
        fleet.end(f"dies-{number}", target=Moving.DEAD, reason="exhausted", error_class=f"Error{number}")
    dead |= {f"many-{number}" for number in range(37)}
    paths = {"running": "/?page=2&needs=2&broker=shop&queue=exports", "home": "/", "failures": "/failures?page=2"}
    with served(application(fleet.ledger, checked_access(), clock=clock)) as url:
        for name, path in {**paths, "workers": "/workers?page=2"}.items():
            for width in WIDTHS:
                browser.open(url + path, width=width, scheme=scheme)
                assert browser.run("document.documentElement.scrollWidth") <= width
                assert browser.run("document.querySelectorAll('.turn a[rel=prev], .turn a[rel=next]').length") > 0
                assert browser.run(OVERLAPS) == []
                browser.picture(pictures / f"large-{name}-{width}-{scheme}.png")


def test_a_hang_of_minutes_is_on_the_first_screen_of_a_telephone(browser: Browser, pictures: Path) -> None:
    """Beside 100 dead letters of 45 causes, and with its button in its box."""
    clock, dead = FakeClock(), set[str]()
    fleet = FleetOfFacts(MemoryLedger(clock, Times(), is_dead=dead.__contains__), clock, dead)
    fleet.ledger.bind("shop", "exports", "shop")
    fleet.beat()
    hung(fleet, "hung", 0.0)
    for number in range(100):
        fleet.end(f"dies-{number}", target=Moving.DEAD, reason="x", error_class=f"Error{max(0, number - 56)}")
    fleet.pass_time(315.0)
    options = load({"state_dir": "/nothing"}, {}, Path("/"))
    with served(application(fleet.ledger, checked_access(), clock=clock, acting=options)) as url:
        browser.open(url, width=390)
        browser.picture(pictures / "hang-390.png")
        tops = "[...document.querySelectorAll('.notice')].map((each) => [each.querySelector('.kind').textContent, each.getBoundingClientRect().bottom])"
        places: list[tuple[str, float]] = browser.run(tops)
        assert [kind for kind, _ in places] == ["may hang", *["dead"] * 11]
        assert places[0][1] < FIRST_SCREEN
        button = "document.querySelector(\"details[id^='cancel-'] summary\")"
        assert browser.run(f"{button}.textContent") == "Cancel hung"
        assert browser.run(f"{button}.getBoundingClientRect().bottom") < FIRST_SCREEN
        assert browser.run("document.querySelector('.state.warning').textContent") == "may hang"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_quiet_and_fits(browser: Browser, url: str, name: str, scheme: str, pictures: Path) -> None:
    """No message in the console, no request to another host, nothing wider than the window; the pictures are kept."""
    for width in WIDTHS:
        browser.open(url + PAGES[name], width=width, scheme=scheme)
        complaints = [text for text in browser.complaints() if "404" not in text]
        assert complaints == []
        assert [each for each in browser.requested() if not each.startswith(f"{url}/")] == []
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(OVERLAPS) == []
        assert browser.run("document.querySelectorAll('h1').length") == 1
        browser.picture(pictures / f"{name}-{width}-{scheme}.png")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_every_text_has_enough_contrast(browser: Browser, url: str, name: str, scheme: str) -> None:
    browser.open(url + PAGES[name], scheme=scheme)
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
    texts: list[tuple[float, str, str]] = browser.run(CONTRASTS)
    assert len(texts) > 5
    assert [text for text in texts if text[0] < LEAST_CONTRAST] == []


@pytest.mark.parametrize("name", PAGES)
def test_without_javascript_a_page_is_complete(browser: Browser, url: str, name: str) -> None:
    def texts() -> str:
        document = browser.call("DOM.getDocument", depth=0)["root"]["nodeId"]
        main = browser.call("DOM.querySelector", nodeId=document, selector="main")["nodeId"]
        text: str = browser.call("DOM.getOuterHTML", nodeId=main)["outerHTML"]
        return text

    browser.open(url + PAGES[name], script=False)
    without = texts()
    browser.open(url + PAGES[name])
    assert without == texts()
    assert browser.run("document.getElementById('pause').hidden") is False


@pytest.mark.parametrize("name", PAGES)
def test_a_screen_reader_has_a_name_for_everything(browser: Browser, url: str, name: str) -> None:
    browser.open(url + PAGES[name])
    nodes = [node for node in browser.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
    roles = {role for role, _ in named}
    assert {"banner", "navigation", "main", "contentinfo", "heading"} <= roles
    assert [
        role
        for role, text in named
        if role in {"link", "button", "image", "img", "progressbar", "navigation"} and not text
    ] == []


def test_the_keyboard_reaches_each_page_and_a_job(browser: Browser, url: str) -> None:
    browser.open(url)
    reached = []
    for _ in range(12):
        browser.press("Tab")
        named = "document.activeElement.textContent.trim() || document.activeElement.ariaLabel"
        reached.append(browser.run(named))
        assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert reached == [
        "Skip to the content",
        "steadyworker",
        "Running",
        "Failures",
        "Queues",
        "Workers",
        "Warnings",
        "Actions",
        "Key of a job",
        "Stop refreshing",
        "crashing",
        "stuck",
    ]
    browser.open(url)
    browser.press("Tab")
    browser.press("Enter")
    assert browser.run("location.hash") == "#main"
    browser.press("Tab")
    assert browser.run("document.activeElement.getAttribute('href')") == "/job/shop/exports/crashing"


def test_the_page_refreshes_what_changed_and_keeps_what_the_reader_opened(
    browser: Browser, url: str, fleet: FleetOfFacts, eventually: Eventually
) -> None:
    browser.open(f"{url}/job/shop/exports/export-m-23")
    browser.run("document.getElementById('traceback-1').open = true")
    browser.run("document.querySelector('#traceback-1 summary').focus()")
    fleet.ledger.facts.act(_action("a second look"))
    fleet.clock.advance(2.0)
    eventually(lambda: "a second look" in browser.run("document.body.textContent"))
    assert browser.run("document.getElementById('traceback-1').open") is True
    assert browser.complaints() == []


def test_a_pause_stops_the_refresh(browser: Browser, url: str, fleet: FleetOfFacts, eventually: Eventually) -> None:
    browser.open(f"{url}/actions")
    browser.run(
        "window.asked = 0; const ask = fetch; window.fetch = (...all) => { window.asked += 1; return ask(...all); }"
    )
    eventually(lambda: browser.run("window.asked") >= 1)
    browser.run("document.getElementById('pause').focus()")
    browser.press("Enter")
    assert browser.run("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    assert browser.run("document.getElementById('pause').textContent") == "Refresh again"
    assert "no longer refreshes" in browser.run("document.getElementById('refresh').textContent")
    fleet.ledger.facts.act(_action("while paused"))
    fleet.clock.advance(2.0)
    before = browser.run("window.asked")
    # The timer of the refresh runs on; it asks for nothing.
    browser.run("new Promise((done) => setTimeout(done, 2500))")
    assert browser.run("window.asked") == before
    browser.press("Enter")
    eventually(lambda: "while paused" in browser.run("document.body.textContent"))


def test_a_page_that_lost_its_server_shows_this(browser: Browser, fleet: FleetOfFacts, eventually: Eventually) -> None:
    with served(application(fleet.ledger, checked_access(), clock=fleet.clock)) as url:
        browser.open(url)
    eventually(lambda: "does not respond" in browser.run("document.getElementById('refresh').textContent"))


def test_hostile_texts_run_no_script(browser: Browser, eventually: Eventually) -> None:
    clock, dead = FakeClock(), set[str]()
    fleet = FleetOfFacts(MemoryLedger(clock, Times(), is_dead=dead.__contains__), clock, dead)
    fleet.fill()
    hostile(
        fleet,
        markup="</script></title><img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>'\"",
    )
    with served(application(fleet.ledger, checked_access(), clock=clock)) as url:
        for path in ("/", "/failures", "/queues", "/workers", "/warnings", "/actions"):
            browser.open(url + path)
            browser.run(
                "window.asked = 0; const ask = fetch; window.fetch = (...all) => { window.asked += 1; return ask(...all); }"
            )
            eventually(lambda: browser.run("window.asked") >= 2)
            assert "pwned" not in browser.run("document.title")
            assert browser.run("document.querySelectorAll('main img, main script').length") == 0
            assert browser.complaints() == []


def test_another_site_cannot_frame_the_page(browser: Browser, url: str, tmp_path: Path) -> None:
    frame = tmp_path / "frame.html"
    frame.write_text(f'<!doctype html><iframe src="{url}/"></iframe>')
    browser.open(frame)
    assert any("frame-ancestors" in text or "frame" in text for text in browser.complaints())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "path", ["/", "/failures", "/queues", "/workers", "/job/shop/exports/crashing", "/job/shop/exports/failed"]
)
def test_a_page_with_forms_is_quiet_fits_and_can_be_read(
    browser: Browser, acting: tuple[FleetOfFacts, str], path: str, scheme: str, pictures: Path
) -> None:
    _, url = acting
    for width in (320, 390, 1280):
        browser.open(url + path, width=width, scheme=scheme)
        browser.run("for (const each of document.querySelectorAll('details.act')) each.open = true")
        assert browser.complaints() == []
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(OVERLAPS) == []
        assert [text for text in browser.run(CONTRASTS) if text[0] < LEAST_CONTRAST] == []
        browser.picture(pictures / f"forms-{path.rpartition('/')[2] or 'running'}-{width}-{scheme}.png")
    nodes = [node for node in browser.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
    assert {"button"} <= {role for role, _ in named}
    assert [role for role, text in named if role in {"button", "textbox", "DisclosureTriangle"} and not text] == []


def test_each_action_by_keyboard(browser: Browser, acting: tuple[FleetOfFacts, str], eventually: Eventually) -> None:
    fleet, url = acting
    ledger = fleet.ledger

    def did(path: str, do: str, typed: str = "") -> str:
        browser.open(url + path)
        place = f"[id^='{do}-']"
        if typed:
            browser.run(f'document.querySelector("details{place} summary").focus()')
            browser.press("Enter")
            browser.press("Tab")
            browser.call("Input.insertText", text=typed)
        else:
            browser.run(f'document.querySelector("button{place}").focus()')
        browser.press("Enter")
        eventually(lambda: browser.run("document.activeElement?.id") == "did")
        assert browser.complaints() == []
        text: str = browser.run("document.getElementById('did').textContent")
        return text

    job = "/job/shop/exports/crashing"
    assert did(job, "cancel", "<b>no</b>") == "crashing is cancelled (it was retrying): it will not run again."
    row = ledger.read(JobId("shop", "exports", "crashing"))
    assert row is not None
    assert row.cancel_reason == "<b>no</b>"
    assert browser.run("document.querySelectorAll('main b').length") == 0
    assert did(job, "undo") == "crashing is no longer cancelled: it runs when its message arrives."
    assert did("/queues", "pause", "the bank is closed").startswith("exports is paused")
    assert "the bank is closed" in browser.run("document.querySelector('main').textContent")
    assert did("/queues", "resume").endswith("goes on: its worker processes receive messages again.")
    assert did("/workers", "quiet").endswith("receives no new message within 2 s. Its jobs go on.")


def test_a_refresh_keeps_what_the_reader_has_typed(
    browser: Browser, acting: tuple[FleetOfFacts, str], eventually: Eventually
) -> None:
    fleet, url = acting
    browser.open(f"{url}/queues")
    browser.run("document.querySelector(\"details[id^='pause-'] summary\").focus()")
    browser.press("Enter")
    browser.press("Tab")
    browser.call("Input.insertText", text="the bank")
    browser.run("document.getElementById('pause').focus()")
    fleet.ledger.facts.record_depth("shop", "exports", Depth(ready=4_321))
    fleet.clock.advance(2.0)
    eventually(lambda: "4,321" in browser.run("document.querySelector('main').textContent"))
    assert browser.run("document.querySelector(\"details[id^='pause-']\").open") is True
    assert browser.run("document.querySelector('input[name=reason]').value") == "the bank"


def _action(detail: str) -> Action:
    return Action("ann@desk", "note", "shop", "exports", ("export-m-23",), 1, detail)
