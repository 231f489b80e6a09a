"""
A headless Chromium, driven over a pipe by its DevTools protocol: this needs no library and no port.

Chromium reads commands from descriptor 3 and writes results and events to descriptor 4, each a JSON text that ends with NUL.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

from tests.brokers.install import MissingError
from tests.deploy.judges.environment import missing, program

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions"),
)
WITHIN = 60.0
"""Seconds for one answer of the browser."""

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


class BrowserError(Exception):
    """The browser refused a command, a script failed on the page, or no answer came."""


class Browser:
    """A running browser with one page; `events` are all that it reported of this page."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        for_it, self._to = os.pipe()
        self._from, of_it = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (for_it, of_it)]
        command = [program("chromium", "chromium"), *FLAGS, f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "bash", *command, "--remote-debugging-pipe"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=high,
        )
        for end in (for_it, of_it, *high):
            os.close(end)
        self._buffer = bytearray()
        self._sent = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Security"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._to)
        os.close(self._from)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(
        self,
        path: Path | str,
        *,
        width: int = 1280,
        height: int = 900,
        scheme: str = "light",
        media: str = "",
        script: bool = True,
    ) -> None:
        """Open a file or an address in a window of this size, and wait until it is loaded."""
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.resize(width, height)
        self.emulate(scheme, media)
        self.events.clear()
        self.call("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def emulate(self, scheme: str, media: str = "") -> None:
        """Have the page believe that the reader prefers `light` or `dark`."""
        self.call(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def run(self, expression: str) -> Any:
        """Return the value of an expression on the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, as a reader without a mouse does."""
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page as PNG."""
        width, height = self.run("[innerWidth, Math.max(innerHeight, document.documentElement.scrollHeight)]")
        self.resize(width, height)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def requested(self) -> list[str]:
        """Return the addresses that the page asked for, beside itself and data in itself."""
        asked = [event["params"]["request"]["url"] for event in self._of("Network.requestWillBeSent")]
        return [url for url in asked if not url.startswith("data:")][1:]

    def complaints(self) -> list[str]:
        """Return what the browser wrote to its console: errors, warnings, refusals by the policy."""
        logged = [event["params"]["entry"]["text"] for event in self._of("Log.entryAdded")]
        said = [str(event["params"]["args"]) for event in self._of("Runtime.consoleAPICalled")]
        thrown = [str(event["params"]["exceptionDetails"]) for event in self._of("Runtime.exceptionThrown")]
        return [*logged, *said, *thrown]

    def _of(self, method: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("method") == method]

    def _next(self) -> dict[str, Any]:
        until = monotonic() + WITHIN
        while (end := self._buffer.find(b"\0")) < 0:
            if not select.select([self._from], [], [], max(until - monotonic(), 0))[0]:
                raise BrowserError(f"Expected an answer of the browser within {WITHIN:.0f} s, got none.")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise BrowserError("Expected an answer of the browser, got its end: start chromium by hand to see why.")
            self._buffer += data
        message: dict[str, Any] = json.loads(self._buffer[:end])
        del self._buffer[: end + 1]
        return message


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for the tests of a module; without Chromium, they are skipped, or fail in CI."""
    try:
        started = Browser()
    except MissingError as error:
        missing(error)
    with started:
        yield started
