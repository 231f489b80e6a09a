"""
The page of each story in a real browser: light and dark, from 320 to 3840 pixels, without JavaScript, for a screen reader.

If the variable STEADYWORKER_TEST_PICTURES names a folder, the pictures of all pages stay there, for people.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.diagnosis.browser import CONTRASTS, LEAST_CONTRAST, Browser, chromium
from tests.diagnosis.page_kit import page_of
from tests.diagnosis.page_stories import STORIES
from tests.diagnosis.test_page import long_trace

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

WIDTHS = (320, 390, 1280, 3840)
SCHEMES = ("light", "dark")
NAMES = [*STORIES, "many"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of each story, and of a long trace with many connections; the pictures come into the same folder."""
    named = os.environ.get("STEADYWORKER_TEST_PICTURES")
    folder = Path(named) if named else tmp_path_factory.mktemp("pages")
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        events = STORIES[name]() if name in STORIES else long_trace(500)
        (folder / f"trace-{name}.html").write_text(page_of(events), encoding="utf-8")
    return folder


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_quiet_and_fits_and_every_text_has_contrast(
    browser: Browser, folder: Path, name: str, scheme: str
) -> None:
    """No message in the console, no request, nothing wider than the window; cause and remedy are in the first window."""
    for width in WIDTHS:
        browser.open(folder / f"trace-{name}.html", width=width, scheme=scheme, script=width != 390)
        assert browser.complaints() == []
        assert browser.requested() == []
        browser.open(folder / f"trace-{name}.html", width=width, scheme=scheme)
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelectorAll('h1').length") == 1
        remedy = browser.run("document.querySelector('.banner.fine').getBoundingClientRect().bottom")
        assert remedy < 700 or name == "many"
        browser.picture(folder / f"trace-{name}-{width}-{scheme}.png")
    texts: list[tuple[float, str, str]] = browser.run(CONTRASTS)
    assert len(texts) > 50
    assert [text for text in texts if text[0] < LEAST_CONTRAST] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_silence_of_the_client_is_drawn_on_its_lane(browser: Browser, folder: Path, width: int) -> None:
    browser.open(folder / "trace-missed_heartbeat.html", width=width)
    boxes: dict[str, dict[str, float]] = browser.run(
        """Object.fromEntries(["rect.lost", "rect.client", "rect.broker", "svg.lanes"].map(
          (css) => [css, document.querySelector(`svg.lanes ${css}, main > section ${css}`).getBoundingClientRect().toJSON()]))"""
    )
    silent, client, broker, lanes = boxes.values()
    assert client["top"] <= silent["top"] < client["bottom"] <= broker["top"]
    assert silent["width"] / lanes["width"] == pytest.approx(28.9 / 155.8, abs=0.01)
    assert silent["right"] == pytest.approx(lanes["right"], abs=2)


def test_a_screen_reader_gets_the_cause_and_the_lanes(browser: Browser, folder: Path) -> None:
    browser.open(folder / "trace-client_id_taken.html")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    assert ("heading", "The broker refused the client id 'worker-1'.") in named
    (lanes,) = [name for role, name in named if role in {"image", "img"} and name]
    assert lanes.startswith("Connection 1: 2 flags, closed by the broker. Connection 2: 1 flag, closed by the broker.")
    assert [role for role, name in named if role == "link" and not name] == []
