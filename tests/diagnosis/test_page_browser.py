"""The page in a real browser: light and dark, wide and narrow, with a keyboard, without JavaScript, and printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.install import MissingError
from tests.deploy.judges.environment import missing
from tests.diagnosis.browser import Browser
from tests.diagnosis.page_kit import page_of
from tests.diagnosis.page_stories import STORIES, Event, long_trace

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

SCHEMES = ("light", "dark")
WIDTHS = (1280, 390)
LEAST_CONTRAST = 4.5
"""What WCAG asks of text, level AA."""

CONTRASTS = """
(() => {
  const parse = (text) => {
    const found = text.match(/rgba?\\(([^)]+)\\)/);
    if (!found) throw new Error("no colour: " + text);
    const [r, g, b, a = 1] = found[1].split(/[,\\/ ]+/).filter(Boolean).map(Number);
    return { r, g, b, a };
  };
  const over = (top, under) => ({
    r: top.r * top.a + under.r * (1 - top.a), g: top.g * top.a + under.g * (1 - top.a), b: top.b * top.a + under.b * (1 - top.a), a: 1,
  });
  const light = ({ r, g, b }) => [r, g, b].map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const contrast = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  // What is behind an element: its backgrounds, also those that a gradient of one or two colours paints.
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      const colours = [...style.backgroundImage.matchAll(/rgba?\\([^)]+\\)/g)].map((found) => parse(found[0])).filter((colour) => colour.a > 0);
      layers.push([...colours, parse(style.backgroundColor)]);
    }
    let possible = [{ r: 255, g: 255, b: 255, a: 1 }];
    for (const layer of layers.reverse()) possible = layer.flatMap((top) => possible.map((under) => over(top, under)));
    return possible;
  };
  const colour = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = parse(getComputedStyle(probe).color);
    probe.remove();
    return found;
  };
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest("script, style, title, .unseen")) continue;
    const style = getComputedStyle(element);
    if (style.visibility === "hidden" || !element.getClientRects().length) continue;
    const picture = element.closest("svg");
    const ink = parse(picture ? style.fill : style.color);
    const marker = element.closest(".marker");
    const grounds = marker ? [parse(getComputedStyle(marker.querySelector("circle")).fill)]
      : picture ? [...behind(picture.parentElement), colour("--panel")]
      : behind(element);
    const worst = Math.min(...grounds.map((ground) => contrast(over(ink, ground), ground)));
    texts.push([worst, node.textContent.trim().slice(0, 60), element.className.baseVal ?? element.className]);
  }
  return texts;
})()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        started = Browser()
    except MissingError as error:
        missing(error)
    with started:
        yield started


def nothing() -> list[Event]:
    return []


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of each story, and of a long trace with many connections."""
    folder = tmp_path_factory.mktemp("pages")
    traces: dict[str, Callable[[], Iterable[Event]]] = {
        **STORIES,
        "many": lambda: long_trace(40_000, 12),
        "nothing": nothing,
    }
    found = {}
    for name, events in traces.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(page_of(events()), encoding="utf-8")
    return found


NAMES = [*STORIES, "many", "nothing"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_quiet_and_fits(browser: Browser, pages: dict[str, Path], name: str, scheme: str) -> None:
    """No message in the console, no request, and nothing wider than the window."""
    for width in WIDTHS:
        browser.open(pages[name], width=width, scheme=scheme)

        assert browser.complaints() == []
        assert browser.requested() == []
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelectorAll('h1').length") == 1


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
def test_every_text_has_enough_contrast(browser: Browser, pages: dict[str, Path], name: str, scheme: str) -> None:
    browser.open(pages[name], scheme=scheme)
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")

    texts: list[tuple[float, str, str]] = browser.run(CONTRASTS)

    assert len(texts) > (5 if name == "nothing" else 100)
    assert [text for text in texts if text[0] < LEAST_CONTRAST] == []


def test_the_measure_of_contrast_finds_a_pale_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["second_header"])
    browser.run("document.querySelector('h1').style.color = 'rgb(190, 190, 190)'")

    texts: list[tuple[float, str, str]] = browser.run(CONTRASTS)

    assert [text[0] < LEAST_CONTRAST for text in texts if text[1].startswith("The client sent")] == [True, False]


def test_light_and_dark_differ(browser: Browser, pages: dict[str, Path]) -> None:
    papers = []
    for scheme in SCHEMES:
        browser.open(pages["second_header"], scheme=scheme)
        papers.append(browser.run("getComputedStyle(document.body).backgroundColor"))

    assert papers == ["rgb(255, 255, 255)", "rgb(18, 21, 26)"]


def boxes(browser: Browser, selector: str) -> list[dict[str, float]]:
    """The places and sizes of the elements on the page."""
    found: list[dict[str, float]] = browser.run(
        f"[...document.querySelectorAll({selector!r})].map((each) => each.getBoundingClientRect().toJSON())"
    )
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_both_lanes_are_drawn_with_what_was_sent(browser: Browser, pages: dict[str, Path], width: int) -> None:
    browser.open(pages["missed_heartbeat"], width=width)

    (client,), (broker,) = boxes(browser, ".bars.client"), boxes(browser, ".bars.broker")
    assert client["width"] > width * 0.7
    assert broker["width"] > width * 0.7
    assert client["bottom"] < broker["top"]
    (gap,) = boxes(browser, "rect.gap")
    assert client["top"] <= gap["bottom"] <= broker["top"]  # the client was silent
    assert 0.15 < gap["width"] / width < 0.25  # 28.9 of 155.8 s
    markers = boxes(browser, "a.marker circle")
    assert len(markers) == 2
    assert gap["left"] < markers[0]["left"] + 10 < gap["right"]
    assert len(boxes(browser, ".close")) == 1


def test_levels_are_drawn_over_the_same_time(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full_queue"])

    (waiting,), (queue,), (lane,) = (boxes(browser, css) for css in (".area.unacked", ".area.queue", ".bars.broker"))
    picture = boxes(browser, "svg.lanes")[0]
    assert waiting["width"] == pytest.approx(picture["width"], abs=2)
    assert waiting["right"] == pytest.approx(queue["right"], abs=2)
    assert lane["bottom"] < waiting["top"] < queue["top"]


def test_arrows_point_from_the_sender_to_the_other_end(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["second_header"])
    sides: dict[str, Any] = browser.run(
        """Object.fromEntries(["client", "broker"].map((side) => {
          const style = getComputedStyle(document.querySelector(`.frame.${side} > div`), "::after");
          return [side, [style.borderLeftWidth, style.borderRightWidth, style.left, style.right]];
        }))"""
    )

    assert sides["client"][:2] == ["8px", "0px"]
    assert sides["client"][3] == "0px"
    assert sides["broker"][:3] == ["0px", "8px", "0px"]


def test_the_keyboard_reaches_the_moment_of_the_verdict(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["second_header"], height=600)

    for _ in range(20):
        browser.press("Tab")
        if browser.run("document.activeElement.textContent").startswith("Look at the moment"):
            break
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Enter")

    assert browser.run("location.hash") == "#flag1"
    assert 0 <= boxes(browser, "#flag1")[0]["top"] < 600


def test_the_keyboard_reads_the_time_line(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full_queue"])
    browser.run("document.querySelector('.wide').focus()")

    for _ in range(80):
        browser.press("ArrowRight")
    told = browser.run("document.querySelector('[role=status]').textContent")
    browser.press("Enter")

    assert told.startswith("at 21.49")
    assert "without an ack: 441" in told
    assert "bytes waiting to be read: 2,38" in told
    assert browser.run("document.activeElement.closest('.frames') !== null")
    assert browser.complaints() == []


def test_zoom_widens_the_picture_and_not_the_page(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full_queue"])
    before = boxes(browser, "svg.lanes")[0]["width"]
    browser.run("document.querySelectorAll('.zoom button')[1].click()")

    assert boxes(browser, "svg.lanes")[0]["width"] == pytest.approx(4 * before, rel=0.02)
    assert browser.run("document.documentElement.scrollWidth") <= 1280
    assert browser.run("document.querySelectorAll('.zoom button')[1].getAttribute('aria-pressed')") == "true"


def test_the_short_list_keeps_what_matters(browser: Browser, pages: dict[str, Path]) -> None:
    """By style alone, so also where scripts do not run."""
    browser.open(pages["second_header"])
    browser.run("document.querySelector('.brief').click()")

    shown = "[...document.querySelectorAll('.frames > li')].filter((each) => each.offsetParent).map((each) => each.className)"
    kinds = {kind.split()[0] for kind in browser.run(shown)}
    assert kinds == {"login", "flag", "mark", "frame"}
    assert browser.run(f"({shown}).filter((each) => each.startsWith('frame'))") == ["frame broker wrong"]


@pytest.mark.parametrize("name", STORIES)
def test_without_javascript_all_is_there_but_zoom(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name], script=False)
    document = browser.call("DOM.getDocument", depth=0)["root"]["nodeId"]

    def number(selector: str) -> int:
        return len(browser.call("DOM.querySelectorAll", nodeId=document, selector=selector)["nodeIds"])

    assert number(".zoom") == 0
    assert number("svg.lanes .bars") >= 2
    assert number(".frames > .flag") >= 1
    assert number(".frames > .frame") >= 3
    browser.open(pages[name])  # scripts run again
    assert browser.run("document.querySelectorAll('.zoom').length") >= 1


def test_a_screen_reader_gets_who_sent_what(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["second_header"])
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    names = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]

    assert any(role == "heading" and name.startswith("The client sent a second") for role, name in names)
    pictures = [name for role, name in names if role in {"image", "img", "graphics-document"}]
    assert any("the client sent 1,251 frames, the broker sent 3,733 frames" in name for name in pictures)
    texts = "".join(name for role, name in names if role == "StaticText")
    assert "broker to client:" in texts


def test_a_printed_page_is_light_and_complete(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.open(pages["client_id_taken"], scheme="dark", media="print")
    browser.run("for (const each of document.querySelectorAll('details')) each.open = false")

    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("getComputedStyle(document.querySelector('.zoom')).display") == "none"
    rows: list[float] = browser.run(
        "[...document.querySelectorAll('section > details > .lanes-down')].map((each) => each.getBoundingClientRect().height)"
    )
    assert all(height > 50 for height in rows)  # closed details are printed, too
    browser.printed(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
