"""Each action of the page in a real browser: with and without JavaScript, and one with the keyboard alone; the ledger has each once."""

from __future__ import annotations

import os
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from steadyworker.backends.opening import open_ledger
from steadyworker.config.resolve import Options, load
from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.addresses import job_path
from steadyworker.dashboard.application import application
from steadyworker.delivery import KEY
from steadyworker.ledger.base import Ledger, Row
from steadyworker.ledger.facts import OwnerReport, QueueReport
from steadyworker.ledger.lease import registered_name
from steadyworker.runner.dead_jobs import DeadJobs
from tests.cli.kit import Queues
from tests.cli.test_retry import interrupt, wait_for_retry
from tests.conftest import Eventually
from tests.dashboard.browser import CONTRASTS, LEAST_CONTRAST, Browser, BrowserError, chromium
from tests.dashboard.kit import served
from tests.dashboard.test_browser import OVERLAPS
from tests.support.ledgers import make_ledger

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

TOKEN = "a-token-of-many-characters"
ANN = "ann from this machine"
SCRIPT = pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        login = b64encode(f"ann:{TOKEN}".encode()).decode()
        started.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {login}"})
        yield started


class Desk:
    """A page with actions on an embedded broker, and a person with a mouse, who needs no script."""

    def __init__(self, browser: Browser, url: str, ledger: Ledger, queues: Queues, eventually: Eventually) -> None:
        self.browser, self.url, self.ledger, self.queues = browser, url, ledger, queues
        self.eventually = eventually
        self.script = True

    @property
    def namespace(self) -> str:
        (namespace,) = {name for name, queue in self.ledger.bindings() if queue == "exports"}
        return namespace

    def job_path(self, key: str = "k-1") -> str:
        return job_path(self.namespace, "exports", key)

    def open(self, path: str) -> None:
        self.browser.open(self.url + path, script=self.script)
        self.eventually(lambda: self.place().startswith(path.partition("?")[0].replace("/choose", "/chosen")))

    def offers(self, path: str, do: str) -> bool:
        """Open a page, and return whether it has the form of an action."""
        self.open(path)
        return bool(self.node(f"button[value^='{do} ']"))

    def place(self) -> str:
        """The address of the page that the browser shows, below the server's."""
        root: str = self.browser.call("DOM.getDocument", depth=0)["root"]["documentURL"]
        return root.removeprefix(self.url)

    def node(self, selector: str) -> int:
        """The first element that fits; 0 without one, or while the next page comes."""
        try:
            document = self.browser.call("DOM.getDocument", depth=0)["root"]["nodeId"]
            found: int = self.browser.call("DOM.querySelector", nodeId=document, selector=selector)["nodeId"]
        except BrowserError:
            return 0
        return found

    def text(self, selector: str) -> str:
        """The markup of an element; empty without one."""
        try:
            found: str = self.browser.call("DOM.getOuterHTML", nodeId=self.node(selector))["outerHTML"]
        except BrowserError:
            return ""
        return found

    def click(self, selector: str) -> None:
        def clicked() -> bool:
            try:
                self._click(selector)
            except BrowserError:  # the page changes
                return False
            return True

        self.eventually(clicked)

    def _click(self, selector: str) -> None:
        node = self.node(selector)
        self.browser.call("DOM.scrollIntoViewIfNeeded", nodeId=node)
        quad = self.browser.call("DOM.getContentQuads", nodeId=node)["quads"][0]
        place = {"x": (quad[0] + quad[4]) / 2, "y": (quad[1] + quad[5]) / 2, "button": "left", "clickCount": 1}
        self.browser.call("Input.dispatchMouseEvent", type="mousePressed", **place)
        self.browser.call("Input.dispatchMouseEvent", type="mouseReleased", **place)

    def use(self, do: str, fields: dict[str, str]) -> None:
        """Fill in a form, and click its button."""
        self.eventually(lambda: self.node(f"button[value^='{do} ']"))
        if self.node(f"details[id^='{do}-']"):
            self.click(f"details[id^='{do}-'] summary")
            for name, typed in fields.items():
                self.browser.call("DOM.focus", nodeId=self.node(f"details[id^='{do}-'] input[name={name}]"))
                self.browser.call("Input.insertText", text=typed)
        self.click(f"button[value^='{do} ']")

    def ends(self, *, follow: bool = True) -> str:
        """Wait for the result of an action, and return its markup; without a script, `follow` the link of its page."""

        found: list[str] = []

        def result() -> bool:
            found[:] = [text for text in (self.text("#did"), self.text("[data-part=doing] .banner")) if text]
            if not found and not self.script and follow and self.place().startswith("/doing/"):
                with suppress(BrowserError):  # the next page comes
                    self._click("noscript a")
            return bool(found)

        self.eventually(result)
        return found[0]

    def log(self) -> list[tuple[str, str, int, str]]:
        return [(each.who, each.what, each.count, each.detail) for each in self.ledger.facts.actions()]


@pytest.fixture
def desk(browser: Browser, tmp_path: Path, eventually: Eventually) -> Iterator[Desk]:
    options: Options = load({"state_dir": str(tmp_path / "state")}, {}, tmp_path)
    make_ledger(options)
    of_page = open_ledger(options)  # the end of the page closes it
    with closing(open_ledger(options)) as ledger:
        page = application(of_page, checked_access(token=TOKEN, acting=True), acting=options)
        with served(page) as url:
            yield Desk(browser, url, ledger, Queues(options), eventually)


def register(desk: Desk, stage: str) -> None:
    name = registered_name(desk.namespace, "exports")
    report = OwnerReport(77, "1.0", 1.0, stage, ready=True, queues={name: QueueReport(1, connected=True)})
    desk.ledger.register("owner-1", "host-1", [name], report)


Then = Callable[[Ledger, Row], object]
RETRIES: Then = wait_for_retry(3600.0)
OF_A_JOB: dict[str, tuple[str, Then | None, dict[str, str], str, str]] = {
    "cancel": ("cancel", interrupt, {"reason": "wrong month"}, "cancel", "wrong month"),
    "retry": ("retry", RETRIES, {}, "retry", ""),
    "reschedule": ("reschedule", RETRIES, {"delay": "2h"}, "reschedule", "in 7200 s"),
    "replay": ("replay", None, {}, "replay", ""),
    "replay later": ("replay", None, {"delay": "1h"}, "replay", "in 3600 s"),
    "replay from the start": ("restart", None, {}, "replay", "from the start"),
    "replay from the start, later": ("restart", None, {"delay": "90s"}, "replay", "in 90 s; from the start"),
    "drop": ("drop", None, {}, "drop", ""),
}


@SCRIPT
@pytest.mark.parametrize("name", OF_A_JOB)
def test_an_action_on_a_job(desk: Desk, name: str, script: bool) -> None:
    do, then, fields, what, detail = OF_A_JOB[name]
    desk.script = script
    desk.queues.dead("k-1") if then is None else desk.queues.job("k-1", then)
    register(desk, "running")
    desk.open(desk.job_path())
    desk.use(do, fields)
    assert 'class="banner fine"' in desk.ends()
    assert desk.log() == [(ANN, what, 1, detail)]
    if do == "cancel":
        desk.open(desk.job_path())
        desk.use("undo", {})
        assert "no longer cancelled" in desk.ends()
        assert desk.log() == [(ANN, "undo cancel", 1, ""), (ANN, what, 1, detail)]
    assert desk.browser.complaints() == []


@SCRIPT
@pytest.mark.parametrize("name", OF_A_JOB)
def test_an_action_on_many_jobs(desk: Desk, name: str, script: bool) -> None:
    do, then, fields, what, detail = OF_A_JOB[name]
    desk.script = script
    for number in range(51):
        key = f"k-{number}"
        desk.queues.dead(key) if then is None else desk.queues.job(key, then)
    register(desk, "running")
    desk.open("/failures" if then is not interrupt else "/")
    desk.click("a[href^='/choose']")
    desk.eventually(lambda: desk.node(f"details[id^='{do}-all-']"))
    desk.use(f"{do}-all", {**fields, "number": "51"})
    assert 'class="banner fine"' in desk.ends()
    assert desk.log() == [(ANN, what, 51, detail)]
    if do == "retry":
        keys = [each.headers[KEY] for each in desk.queues.received("exports", 51)]
        assert sorted(keys) == sorted(f"k-{number}" for number in range(51))
    assert desk.browser.complaints() == []


@SCRIPT
def test_a_queue_and_a_worker_process(desk: Desk, script: bool) -> None:
    desk.script = script
    desk.queues.job("k-1")
    for path, do, fields, stage in (
        ("/queues", "pause", {"reason": "the bank is closed"}, "running"),
        ("/queues", "resume", {}, "running"),
        ("/workers", "quiet", {}, "running"),
        ("/workers", "loud", {}, "quiet"),
    ):
        register(desk, stage)
        desk.eventually(partial(desk.offers, path, do))  # the page reads the ledger once in a second
        desk.use(do, fields)
        assert 'class="banner fine"' in desk.ends()
    assert desk.log() == [
        (ANN, "resume worker", 0, "host-1:77"),
        (ANN, "quiet worker", 0, "host-1:77"),
        (ANN, "resume", 0, ""),
        (ANN, "pause", 0, "the bank is closed"),
    ]
    assert [each.name for each in desk.ledger.facts.commands("owner-1")] == ["quiet", "resume"]


@SCRIPT
def test_a_person_stops_an_action_on_many_jobs(desk: Desk, monkeypatch: pytest.MonkeyPatch, script: bool) -> None:
    for number in range(3):
        desk.queues.dead(f"k-{number}")
    begin, goes_on = DeadJobs.begin_round, threading.Event()

    def slow(self: DeadJobs, *arguments: Any, **options: Any) -> bool:
        assert goes_on.wait(60)
        return begin(self, *arguments, **options)

    monkeypatch.setattr(DeadJobs, "begin_round", slow)
    desk.script = script
    try:
        desk.open("/choose?state=dead")
        desk.use("replay-all", {})
        desk.eventually(lambda: desk.node("button[value^='stop ']") and "0 of 3 jobs replayed" in desk.text("h1"))
        desk.use("stop", {})
        assert "This stops after its present job." in desk.ends(follow=False)
    finally:
        goes_on.set()
    desk.eventually(desk.log)
    assert desk.log() == [(ANN, "replay", 1, f"1 of 3 jobs; stopped by {ANN}")]


def test_a_group_is_replayed_by_the_keyboard_alone(desk: Desk, eventually: Eventually) -> None:
    for number in range(2):
        desk.queues.dead(f"k-{number}")
    desk.open("/failures")
    browser = desk.browser

    def tab_to(text: str) -> None:
        for _ in range(40):
            browser.press("Tab")
            if browser.run("document.activeElement.textContent.trim()").startswith(text):
                assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                return
        raise AssertionError(f"no Tab reaches {text}")

    tab_to("Act on 2 jobs")
    browser.press("Enter")
    eventually(
        lambda: (
            browser.run("location.pathname + document.readyState").endswith("complete")
            and desk.node("[data-part=chosen]")
        )
    )
    tab_to("Replay 2 jobs")
    browser.press("Enter")
    browser.press("Tab")
    assert browser.run("document.activeElement.name") == "delay"
    browser.press("Tab")
    browser.press("Enter")
    assert "2 of 2 jobs replayed." in desk.ends()
    assert desk.log() == [(ANN, "replay", 2, "")]
    assert [desk.ledger.last_round(desk.namespace, "exports", f"k-{number}") for number in range(2)] == [1, 1]


def test_an_address_with_a_login_refreshes_itself(desk: Desk, browser: Browser, eventually: Eventually) -> None:
    """A script cannot fetch an address that has a login in it."""
    desk.queues.job("k-1")
    browser.call("Network.setExtraHTTPHeaders", headers={})
    try:
        browser.open(desk.url.replace("//", f"//ann:{TOKEN}@") + "/actions")
        browser.run(
            "window.asked = 0; const ask = fetch; window.fetch = (...all) => { const got = ask(...all); got.then(() => { window.asked += 1; }); return got; }"
        )
        eventually(lambda: browser.run("window.asked") >= 1)
        assert "does not respond" not in browser.run("document.getElementById('refresh').textContent")
        assert browser.complaints() == []
    finally:
        login = b64encode(f"ann:{TOKEN}".encode()).decode()
        browser.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {login}"})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_many_jobs_are_quiet_fit_and_can_be_read(desk: Desk, scheme: str, tmp_path: Path) -> None:
    pictures = Path(os.environ.get("STEADYWORKER_TEST_PICTURES", tmp_path))
    for number in range(60):
        desk.queues.dead(f"k-{number}")
    browser = desk.browser
    desk.open("/choose?state=dead")
    chosen = browser.run("location.pathname")
    desk.use("replay-all", {"number": "60"})
    desk.ends()
    places = {"chosen": chosen, "doing": browser.run("location.pathname"), "not-kept": "/chosen/none"}
    for place, path in places.items():
        for width in (320, 1280):
            browser.open(desk.url + path, width=width, scheme=scheme)
            browser.run("for (const each of document.querySelectorAll('details.act')) each.open = true")
            assert [text for text in browser.complaints() if "404" not in text] == []
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.run(OVERLAPS) == []
            assert [text for text in browser.run(CONTRASTS) if text[0] < LEAST_CONTRAST] == []
            browser.picture(pictures / f"many-{place}-{width}-{scheme}.png")
