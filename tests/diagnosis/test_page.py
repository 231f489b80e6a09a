"""The page of a trace: what it shows, that nothing from the wire becomes markup, and that size and memory are bounded."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker import pages
from steadyworker.diagnosis.outputs import Outputs
from steadyworker.diagnosis.page import MOST_CONNECTIONS, NEIGHBOURS
from steadyworker.diagnosis.wire import Event
from tests.diagnosis.page_kit import check, headline, page_of, page_text
from tests.diagnosis.page_stories import BEGIN, STORIES

STORY_TEXTS = {
    "second_header": (
        "The client sent a second protocol header, 26238 bytes behind the first.",
        "It connects again over a connection that is open. The broker closed the connection 0.4 s later.",
        "The broker reported: “FRAME_ERROR - type 65, all octets = <<>>: {frame_too_large,1342177289,131064}” (code 501).",
        "type 65 41 A channel 19793 4D 51 MQ size 1342177289 50 00 00 09 P\\0\\0\\t together AMQP protocol header",
        "1 client Connection.StartOk client php-amqplib 3.5.4",
        "4,963 more events",
    ),
    "missed_heartbeat": (
        "The client sent nothing for 28.9 s, and had agreed to a heartbeat of 10 s.",
        "It is 18.9 s late, and the broker closed the connection.",
        "1 client gap seconds 28.904, allowed 10",
        "1 broker close (reset) who broker, first",
    ),
    "two_threads": (
        "The client mixed the frames of two messages on channel 1.",
        "Two threads write to this connection. The broker closed the connection at once.",
        "The broker reported: “UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead” (code 505).",
    ),
    "full_queue": (
        "The client has read nothing for 4.0 s, and 2.2 MiB wait for it.",
        "The broker can write no more to this connection. The broker closed the connection 11.0 s later.",
        "Also noticed warning 300 deliveries of the queue payments wait for an acknowledgement",
        "1 trace bytes wait for the client bytes 2359296, since 4.0",
    ),
    "client_id_taken": (
        "The broker refused the client id 'worker-1'.",
        "Connection 1 of this trace (10.0.0.1:51234), silent for 20.5 s, still holds it. The broker closed the connection at once.",
        "The broker reported: “Broker: b1 - Client: worker-1 already connected from tcp://10.0.0.1:51234”.",
        "The same was noticed on 2 other connections.",
        "5 connections, 40 frames, 5.8 KiB",
        "5: client 10.0.3.22:41816",
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_each_story_has_its_cause_its_remedy_and_its_evidence(story: str) -> None:
    events = STORIES[story]()
    page = page_of(events)
    check(page)
    first, *others = STORY_TEXTS[story]
    assert headline(page) == first
    text = page_text(page)
    for expected in others:
        assert expected in text
    flags = [event for event in events if event["kind"] == "flag"]
    for flag in flags:
        assert f"{flag['conn']} {flag['what']}" in text
    remedies = [each["remedy"].replace("`", "") for each in flags if each["what"].startswith(first[:-1])]
    assert f"What to do {remedies[0]} More: steadyworker explain --id" in text
    assert len(page.encode()) < 60_000


def event(t: float, kind: str, side: str = "trace", conn: int = 1, /, **detail: object) -> Event:
    return {"t": t, "conn": conn, "from": side, "kind": kind, **detail}


def flag(t: float, what: str, conn: int = 1, **more: object) -> Event:
    return event(
        t, "flag", "trace", conn, **{"id": "amqp.double-ack", "level": "error", "what": what, "remedy": "Stop.", **more}
    )


@pytest.mark.parametrize(
    ("how", "last", "level", "support"),
    [
        ("fin", {"kind": "method", "name": "Connection.CloseOk"}, "fine", ""),
        ("fin", {"kind": "frame", "name": "RECEIPT"}, "fine", ""),
        ("reset", {"kind": "method", "name": "Basic.Ack"}, "warning", "was reset by the client, without a reason."),
        ("fin", {"kind": "bytes", "size": 7}, "fine", ""),  # nobody knows what TLS carried
        ("refused", {"kind": "bytes", "size": 7}, "warning", "failed with the client, without a reason."),
    ],
)
def test_an_end_without_goodbye_is_shown_although_nothing_was_flagged(
    how: str, last: Event, level: str, support: str
) -> None:
    goodbyes = {"Connection.CloseOk": "Connection.Close", "RECEIPT": "DISCONNECT"}
    goodbye = (
        [event(60.0, "method", "client", name=goodbyes[last["name"]])] if level == "fine" and "name" in last else []
    )
    events = [BEGIN, event(0.0, "open", client="10.0.0.1:5"), *goodbye]
    page = page_of([*events, {"t": 61.0, "conn": 1, "from": "client", **last}, event(61.0, "close", "client", how=how)])
    check(page)
    assert headline(page) == "Nothing was noticed that ends connections, on 1 connection in 1 min 01 s."
    assert f'<h1 class="{level}">' in page
    assert ("without a reason" in page_text(page)) is bool(support)
    assert support in page_text(page)


def test_an_empty_trace_is_a_page() -> None:
    assert headline(page_of([BEGIN])) == "Nothing was noticed that ends connections, on 0 connections in 0 ms."


def test_a_cause_comes_before_what_follows_from_it_and_an_error_before_a_warning() -> None:
    flags = [
        flag(1.0, "A warning of three", id="amqp.unlimited-prefetch", level="warning"),
        flag(2.0, "A cut", id="amqp.frame-cut"),
        flag(3.0, "The cause", id="amqp.interleaved-frames"),
    ]
    page = page_of([BEGIN, event(0.0, "open"), *flags])
    assert headline(page) == "The cause."
    others = page_text(page).partition("Also noticed")[2].partition("Events")[0]
    assert others.index("A warning of three") < others.index("A cut")


HOSTILE = [
    "<script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "--></title><svg onload=alert(1)>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "\u202egnp.exe",
    "\u2066\u200b\x00\x1b[31m\ud800",
    "&lt;b&gt;&#x3c;script&#x3e;",
    "{{ 7 * 7 }}{% raw %}`<b>`",
    "<" * 300,
]


def hostile_events(text: str) -> Iterator[Event]:
    yield {**BEGIN, "listen": text, "to": text}
    yield flag(0.0, f"It was amqp://app:hunter2@broker/ {text}", level="warning")
    for conn in range(3):
        yield event(0.1, "open", "trace", conn, client=text, broker=text)
        for n in range(60):
            yield event(n, "method", "client", conn, name=text, channel=1, size=7, **{text: text}, reply_text=text)
            yield event(n, "frame", "broker", conn, name="ERROR", headers={text: text, "message": text})
            yield flag(n, text, conn, id=f"amqp.flag-{n % 50}", remedy=text, evidence=[{text: text, "a": text}] * 20)
        yield event(99.0, "close", "broker", conn, who="broker", how="reset", error=text)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_stay_texts(text: str) -> None:
    page = page_of(hostile_events(text))
    check(page)
    if text.isascii() and text.isprintable() and len(text) < 100:
        assert html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in page
    assert "hunter2" not in page
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\x00\x1b]", page)


def test_a_policy_allows_only_the_style_of_the_page() -> None:
    page = page_of(STORIES["second_header"]())
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', page)
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert (
        policy == f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert page.index("Content-Security-Policy") < page.index("<style>")
    assert not re.search(r"https?:|url\(|@import|<script", page)


def acks(t: float, number: int, conn: int = 1) -> Iterator[Event]:
    for n in range(number):
        yield event(t + n * 0.01, "method", "client", conn, name="Basic.Ack", channel=1, size=21, delivery_tag=n + 1)


def test_the_neighbours_of_a_flag_are_shown_and_all_others_counted() -> None:
    events = [BEGIN, event(0.0, "open"), *acks(1, 500), flag(6.0, "It broke"), *acks(7, 500)]
    text = page_text(page_of(events))
    before, after = text.partition("Details")[2].split("It broke")
    tags = [int(each) for each in re.findall(r"tag (\d+)", before)]
    assert tags == [*range(1, NEIGHBOURS + 1), *range(501 - NEIGHBOURS, 501)]
    assert [int(each) for each in re.findall(r"tag (\d+)", after)] == list(range(1, NEIGHBOURS + 1))
    assert f"{500 - 2 * NEIGHBOURS} more events" in before
    assert after.endswith(f"{500 - NEIGHBOURS} more events")


def long_trace(rounds: int) -> Iterator[Event]:
    """Many connections, each with texts as long as the wire allows, warnings, gaps, and bytes that wait."""
    yield BEGIN
    for n in range(rounds):
        t, conn = n * 1.0, n % 3_000
        if n < 3_000:
            yield event(t, "open", "trace", conn, client="c" * 300)
        yield from acks(t, 10, conn)
        yield event(t + 0.2, "frame", "broker", conn, name="MESSAGE", headers={f"h{x}": "<" * 300 for x in range(9)})
        yield event(t + 0.3, "gap", "client", conn, seconds=0.9, allowed=0.5)
        yield event(t + 0.3, "queue", "trace", conn, side="client", bytes=9, since=0.5)
        yield flag(
            t + 0.4, "w" * 300, conn, id="amqp.late-heartbeat", level="warning", evidence=[{"x": "<" * 300}] * 20
        )
        if n % 2:
            yield event(t + 0.5, "close", "client", conn, who="client", how="reset")
    yield flag(rounds * 1.0, "The only error", (rounds - 1) % 3_000, remedy="Mend it.")


def test_a_long_trace_keeps_its_only_error_and_its_memory_stays_bounded() -> None:
    peaks = []
    for rounds in (4_000, 12_000):
        tracemalloc.start()
        page = page_of(long_trace(rounds))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        check(page)
        assert headline(page) == "The only error."
        assert f"{3_000 - 6:,} more connections without lanes." in page_text(page)
    assert peaks[1] < 1.5 * peaks[0] < 20e6


def test_a_flag_brings_a_dropped_connection_back_with_its_end() -> None:
    opened = [event(0.1 * n, "open", "trace", n, client=f"10.0.0.1:{n}") for n in range(2 * MOST_CONNECTIONS)]
    closed = event(99.5, "close", "broker", 1, who="broker", how="reset")
    page = page_of(
        [
            BEGIN,
            *opened,
            flag(99.0, "It broke", 1),
            flag(99.0, "It broke", 2),
            closed,
            event(100.0, "gap", seconds=1, allowed=1),
        ]
    )
    check(page)
    text = page_text(page)
    assert "The broker closed the connection 0.5 s later. The same was noticed on 1 other connection." in text
    assert f"{2 * MOST_CONNECTIONS} connections" in text


def test_without_its_library_a_trace_goes_on_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    for name in ("steadyworker.diagnosis.page", "steadyworker.pages.environment"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(pages, "environment")
    path = tmp_path / "page.html"
    with Outputs(jsonl=None, html=path, frames=True) as outputs:
        outputs(BEGIN)
        outputs.finish()
    shown = capsys.readouterr()
    assert shown.out.startswith("127.0.0.1:5673 → 127.0.0.1:5672")
    assert "pip install 'steadyworker[dashboard]'" in shown.err
    assert list(outputs.failures) == [str(path)]
    assert not path.exists()
