"""The page of a trace: what it tells, that nothing from the wire becomes markup, and that size and memory are bounded."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from steadyworker.diagnosis.page import LARGEST_PAGE, Page
from steadyworker.diagnosis.picture import words
from steadyworker.diagnosis.picture.curves import BINS, Counts, Level
from steadyworker.diagnosis.picture.event_fields import details_of, text_of
from steadyworker.diagnosis.picture.flags import table_of
from steadyworker.diagnosis.picture.markup import Markup, tag
from steadyworker.diagnosis.picture.pending import Ids
from steadyworker.diagnosis.picture.rows import NEIGHBOURS, ROWS, FoldedRun, Moment, Rank, Row, Rows, moment_of
from steadyworker.diagnosis.picture.trace import MOST_STORIES, Trace
from tests.diagnosis.page_kit import check, headline, page_of, page_text
from tests.diagnosis.page_stories import STORIES, Event, Teller, long_trace

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]
MEGABYTE = 1 << 20
MOST_MEMORY = 200 * MEGABYTE

# --- The five stories -------------------------------------------------------------------------------------------------

VERDICTS = {
    "second_header": "The client sent a second protocol header, 26255 bytes behind the first, 0.4 s before the broker closed the connection.",
    "missed_heartbeat": "The client sent nothing for 28.9 s, and had agreed to a heartbeat of 10 s.",
    "two_threads": "The client mixed the frames of two messages on channel 1, and the broker closed the connection at once.",
    "full_queue": "The client has read nothing for 5.4 s, and 2.3 MiB wait for it.",
    "client_id_taken": "The broker refused the client id 'worker-1' and closed the connection at once.",
}
SAID = {
    "second_header": [
        "It connects again over a connection that is open.",
        "The broker reported when it closed the connection: “FRAME_ERROR - type 65, all octets = <<>>: {frame_too_large,1342177289,131064}” (code 501).",
        "type 65 41 A channel 19793 4D 51 MQ size 1342177289 50 00 00 09 P\\0\\0\\t together AMQP protocol header",
        "What to do Give each connection one owner",
        "steadyworker explain --id amqp.second-header",
        "1,241 deliveries 1,240 acks",
        "Both ends agreed: a heartbeat of 60 s, frames of up to 128.0 KiB.",
        "In the broker's log, this connection comes from 127.0.0.1:40001.",
        "1 delivery had no ack when the connection ended, so the broker delivers it again.",
        "AMQP 0-9-1 sends the protocol header again",
        "The broker closed the connection",
        "The client closed its side, too",
    ],
    "missed_heartbeat": [
        "It is 18.9 s late, and the broker closed the connection.",
        "a heartbeat of 10 s (the broker proposed 60 s)",
        "No byte from the client for 28.9 s. 10 s were allowed.",
        "28.9 s silent",
        "The broker reset the connection (TCP reset)",
        "29 heartbeats",
    ],
    "two_threads": [
        "expected content header for class 60, got non content header frame instead",
        "Two threads write to this connection.",
        "message header channel 1",
        "305 messages sent",
    ],
    "full_queue": [
        "The broker can write no more to this connection.",
        "The broker closed the connection 10.4 s later.",
        "Deliveries without an ack: peak 441",
        "Waiting to be read by the client: peak 2.3 MiB",
        "Also noticed 1 300 deliveries of the queue payments wait for an acknowledgement",
        "441 deliveries had no ack when the connection ended",
        "51.8 KiB wait in the kernel for 0.9 s: the client does not read them",
        "The broker reset the connection (TCP reset) in the middle of a frame",
    ],
    "client_id_taken": [
        "Connection 1 of this trace (10.0.3.22:41770), silent for 20.5 s, still holds it.",
        "The same was noticed on 2 other connections.",
        "The broker reported an error: “Broker: b1 - Client: worker-1 already connected from tcp://10.0.3.22:41770”.",
        "All connections Connection 1 10.0.3.22:41770",
        "Connection 5 10.0.3.22:41816",
        "a heartbeat of the client every 10 s, a heartbeat of the broker every 10 s, version 1.2",
        "Broker 127.0.0.1:61613 ActiveMQ/6.1.8",
        "The trace ended, and closed the connection",
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_each_story_is_shown(story: str) -> None:
    page = page_of(STORIES[story]())

    check(page)
    assert headline(page) == VERDICTS[story]
    text = page_text(page)
    for expected in SAID[story]:
        assert expected in text
    assert len(page.encode()) < 60_000


@pytest.mark.parametrize("story", STORIES)
def test_each_flag_stands_at_its_moment_with_evidence_and_remedy(story: str) -> None:
    events = STORIES[story]()
    page = page_of(events)
    flags = [event for event in events if event["kind"] == "flag"]

    cards = re.findall(r'<li class="flag (\w+)" id="flag(\d+)" data-t="([\d.]+)">(.*?)</li>(?=<li|</ol>)', page)

    assert len(cards) == len(flags)
    by_number = {
        int(number): (level, float(t), page_text(f"<main>{inner}</main>")) for level, number, t, inner in cards
    }
    explained = set()
    for number, flag in enumerate(flags, start=1):
        level, t, text = by_number[number]
        assert level == flag["level"]
        assert t == pytest.approx(flag["t"], abs=0.001)
        assert flag["what"] in text
        for row in flag.get("evidence", ()):
            assert all(str(value) in text for value in row.values())
        if (flag["conn"], flag["id"]) not in explained:  # the first of its kind explains it
            assert f"What to do: {flag['remedy']}" in text
        explained.add((flag["conn"], flag["id"]))


def test_a_trace_without_flags_states_that_nothing_was_noticed() -> None:
    to = Teller()
    to.login()
    to.method("client", "Connection.Close", channel=0, reply_code=200, reply_text="Normal shutdown", after=61.0)
    to.method("broker", "Connection.CloseOk", channel=0)
    to.add("close", "client", who="client", how="fin", in_frame=False)

    page = page_of(to.events)

    check(page)
    assert headline(page) == "Nothing was noticed that ends connections, on 1 connection in 1 min 01 s."
    assert 'class="top fine"' in page


def test_an_end_without_goodbye_is_shown_although_nothing_was_flagged() -> None:
    to = Teller()
    to.login()
    to.add("close", "client", who="client", how="reset", in_frame=False)

    text = page_text(page_of(to.events))

    assert "But the client reset the connection (TCP reset) without a reason." in text


def test_a_cause_comes_before_what_follows_from_it_and_an_error_before_a_warning() -> None:
    to = Teller()
    to.login()
    for id_, level in (
        ("amqp.unlimited-prefetch", "warning"),
        ("amqp.frame-cut", "error"),
        ("amqp.interleaved-frames", "error"),
    ):
        to.add("flag", "trace", id=id_, level=level, what=f"It was {id_}", after=1.0)

    page = page_of(to.events)

    assert headline(page) == "It was amqp.interleaved-frames."
    others = page_text(page).partition("Also noticed")[2]
    assert others.index("It was amqp.unlimited-prefetch") < others.index("It was amqp.frame-cut")


def test_an_empty_trace_is_a_page() -> None:
    check(page_of([]))
    assert headline(page_of([])) == "Nothing was noticed that ends connections, on 0 connections in 0 ms."


def test_opaque_bytes_are_counted_by_size_and_time() -> None:
    to = Teller()
    to.add("open", "trace", client="10.0.0.1:5", broker="10.0.0.2:5671", tls=True)
    for _ in range(30):
        to.add("bytes", "client", size=700, after=0.3)

    text = page_text(page_of(to.events))

    assert "20.5 KiB" in text


# --- Nothing from the wire becomes markup -----------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "--></title><svg onload=alert(1)>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "javascript:alert(1)",
    "\u202egnp.exe",
    "\u2066\u200b\x00\x1b[31m\ud800",
    "&lt;b&gt;&#x3c;script&#x3e;",
    "$title ${script} $$",
    "]]><script>alert(1)</script>",
    "x" * 300_000,
    "<" * 300_000,
]


def hostile_events(text: str) -> Iterator[Event]:
    yield {"kind": "trace", "version": text, "started": text, "listen": text, "to": text}
    for conn in (1, text):
        yield {"t": 0.1, "conn": conn, "from": "trace", "kind": "open", "client": text, "broker": text, "tls": text}
        for n in range(60):
            head = {"t": 0.2 + n, "conn": conn, "from": ("client", "broker", text)[n % 3]}
            yield {**head, "kind": "method", "name": text, "channel": text, "size": 7, text: text, "reply_text": text}
            yield {**head, "kind": "frame", "name": "ERROR", "headers": {text: text, "message": text}, "size": 9}
            yield {**head, "kind": text, "name": "Connection.Start", "server_properties": {"product": text}}
            yield {**head, "kind": "gap", "seconds": text, "allowed": text}
            yield {**head, "kind": "queue", "bytes": text, "side": text}
            yield {**head, "kind": "tuned", "heartbeat": text}
            yield {
                **head, "kind": "flag", "id": text[: n % 9] or text, "level": text, "what": text, "remedy": text,
                "evidence": [{text: text}, text, [text] * 40] * 20 if n % 2 else {text: {text: [text]}},
            }  # fmt: skip
        yield {"t": 99.0, "conn": conn, "kind": "close", "who": text, "how": text, "in_frame": text}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_stay_texts(text: str) -> None:
    page = page_of(hostile_events(text))

    check(page)
    if len(text) < 100 and text.isascii() and text.isprintable():
        assert html.escape(text) in page
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\x00\x1b]", page)


def test_a_text_that_reorders_others_is_shown_by_its_code() -> None:
    assert text_of("a\u202eb\nc") == "a\\u202eb\\nc"


def test_secrets_are_not_shown() -> None:
    to = Teller()
    to.add("frame", "client", name="CONNECT", headers={"login": "app", "passcode": "hunter2", "client-id": "w1"})
    to.method("client", "Connection.UpdateSecret", channel=0, new_secret="hunter2")
    to.add(
        "flag",
        "trace",
        id="x",
        level="error",
        what="It said amqp://app:hunter2@broker/",
        evidence=[{"password": "hunter2"}],
    )

    page = page_of(to.events)

    assert "hunter2" not in page
    assert "w1" in page


def test_a_policy_allows_only_the_style_and_the_script_of_the_page() -> None:
    page = page_of(STORIES["second_header"]())
    policy = re.search('Content-Security-Policy" content="([^"]*)"', page)[1]  # type: ignore[index]
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)[1]  # type: ignore[index]
    script = re.search("<script>(.*?)</script>", page, re.DOTALL)[1]  # type: ignore[index]

    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (style, script)]

    assert html.unescape(policy) == (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    assert page.index("Content-Security-Policy") < page.index("<style>")
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in page
    assert "url(" not in re.sub(r"url\(#hatch\)", "", page)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.sampled_from(HOSTILE[:11]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
kinds = st.sampled_from(
    [
        *(
            "trace",
            "open",
            "header",
            "method",
            "frame",
            "content",
            "body",
            "heartbeat",
            "tuned",
            "gap",
            "queue",
            "close",
        ),
        *("flag", "skipped", "bytes", "end"),
    ]
)
names = st.sampled_from(
    [
        *("Basic.Deliver", "Basic.Ack", "Basic.Get", "Basic.GetOk", "Basic.Consume", "Basic.Qos", "Channel.Close"),
        *("Connection.Close", "MESSAGE", "SUBSCRIBE", "ACK", "ERROR"),
    ]
)
fields = (
    *("id", "level", "what", "evidence", "remedy", "seconds", "allowed", "bytes", "side", "who", "how", "headers"),
    *("properties", "multiple", "no_ack", "started", "count"),
)
wild_events = st.fixed_dictionaries(
    {},
    optional={
        "t": st.floats(0, 1e4) | json_values,
        "conn": st.integers(1, 3) | json_values,
        "from": st.sampled_from(["client", "broker", "trace"]) | json_values,
        "kind": kinds | json_values,
        "name": names | json_values,
        "channel": st.integers(0, 3) | json_values,
        "size": st.integers(0, 1 << 20) | json_values,
        "delivery_tag": st.integers(0, 9) | json_values,
        **dict.fromkeys(fields, json_values),
    },
)


@settings(max_examples=150)
@given(st.lists(wild_events, max_size=40))
def test_whatever_the_events_are_they_are_a_page(events: list[Event]) -> None:
    check(page_of(events))


@given(st.text())
def test_only_tag_makes_markup(text: str) -> None:
    made = tag("p", text, title=text)

    assert isinstance(made, Markup)
    assert re.fullmatch(r'<p title="[^"<>]*">[^<>]*</p>', made, re.DOTALL)
    assert html.unescape(made.partition(">")[2].removesuffix("</p>")) == html.unescape(html.escape(text))


def test_a_page_can_be_written_while_the_trace_goes_on() -> None:
    page, events = Page(), STORIES["second_header"]()
    for event in events[:100]:
        page.add(event)
    first, second = io.StringIO(), io.StringIO()
    page.write(first)
    for event in events[100:]:
        page.add(event)
    page.write(second)

    assert headline(first.getvalue()).startswith("Nothing was noticed")
    assert second.getvalue() == page_of(events)


# --- Folding ----------------------------------------------------------------------------------------------------------


def counted(rows: Iterable[Row]) -> Counter[tuple[str, str, str]]:
    total: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        if isinstance(row, FoldedRun):
            total.update(row.counts)
        else:
            total[row.side, row.kind, row.name] += 1
    return total


def moments(number: int, ranks: dict[int, Rank]) -> Iterator[Moment]:
    for n in range(number):
        rank = ranks.get(n, Rank.RUN)
        kind = "flag" if rank is Rank.FLAG else "method"
        yield Moment(n * 0.01, "client", kind, f"name {n % 5}", 10, rank, None)


@given(
    st.integers(0, 3000),
    st.dictionaries(st.integers(0, 2999), st.sampled_from(list(Rank)), max_size=60),
    st.integers(12, 240),
)
def test_folding_loses_no_event_and_keeps_their_order(number: int, ranks: dict[int, Rank], most: int) -> None:
    rows = Rows()
    for moment in moments(number, ranks):
        rows.add(moment)

    shown = rows.shown(most)

    assert counted(shown) == counted(moments(number, ranks))
    assert [row.t for row in shown] == sorted(row.t for row in shown)
    assert len(shown) <= max(most, 30)
    assert sum(row.sizes.get("client", 0) if isinstance(row, FoldedRun) else row.size for row in shown) == number * 10


def test_the_neighbours_of_a_flag_are_kept_exactly() -> None:
    rows = Rows()
    for moment in moments(50_000, {25_000: Rank.FLAG}):
        rows.add(moment)

    shown = rows.shown()
    at = next(index for index, row in enumerate(shown) if row.rank is Rank.FLAG)
    near = shown[at - NEIGHBOURS : at + NEIGHBOURS + 1]

    assert all(isinstance(row, Moment) for row in near)
    assert [round(row.t * 100) for row in near] == list(range(25_000 - NEIGHBOURS, 25_000 + NEIGHBOURS + 1))
    assert isinstance(shown[at - NEIGHBOURS - 1], FoldedRun)


def test_a_flood_of_flags_keeps_the_first_and_the_last() -> None:
    rows = Rows()
    for moment in moments(20_000, dict.fromkeys(range(20_000), Rank.FLAG)):
        rows.add(moment)

    shown = rows.shown()

    assert len(shown) <= ROWS * 3 // 2 + NEIGHBOURS
    assert counted(shown) == counted(moments(20_000, dict.fromkeys(range(20_000), Rank.FLAG)))
    assert [round(row.t * 100) for row in shown[:20]] == list(range(20))
    assert [round(row.t * 100) for row in shown[-20:]] == list(range(19_980, 20_000))


def test_of_many_gaps_the_longest_are_drawn() -> None:
    to = Teller()
    to.login()
    for n in range(500):
        to.add("gap", "client", seconds=40.0 if n == 250 else 2.0, allowed=1.0, after=50.0)

    page = page_of(to.events)

    text = page_text(page)
    assert page.count('class="gap"') <= 60
    assert "No byte from the client for 40 s, allowed 1 s" in text
    assert "The 60 longest gaps are drawn, of 500." in text


def test_a_large_value_is_not_kept() -> None:
    moment = moment_of({"kind": "method", "name": "Basic.Publish", "routing_key": "x" * 100_000}, 0.0, Rank.RUN)

    assert moment.event is None
    assert sum(len(value) for _, value in moment.details) <= 200


def test_a_message_is_one_row_and_a_broken_one_shows_its_frames() -> None:
    whole, broken = Teller(), Teller()
    whole.method("client", "Basic.Publish")
    whole.add("content", "client", channel=1, size=38, body_size=640)
    whole.add("flag", "trace", id="x", what="It was noticed in the middle")
    whole.add("body", "client", channel=1, size=648)
    broken.method("client", "Basic.Publish")
    broken.method("client", "Basic.Publish")
    broken.add("content", "client", channel=1, size=38, body_size=640)

    text = page_text(page_of(whole.events))
    assert "message header" not in text
    assert "message body" not in text
    assert "710 bytes" in text
    assert text.rindex("Basic.Publish") < text.rindex("It was noticed in the middle")
    assert page_text(page_of(broken.events)).count("message header") == 1


# --- Curves and what waits --------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(1, 9)), max_size=60))
def test_counts_over_time_lose_nothing(given_: list[tuple[float, int]]) -> None:
    counts = Counts(0.0)
    for t, number in given_:
        counts.add(t, number)

    assert sum(counts.counts) == sum(number for _, number in given_)
    assert len(counts.counts) == BINS
    for group in (1, 2, 8):
        assert sum(counts.grouped(group)) == sum(counts.counts)
    for t, _ in given_:
        assert counts.counts[int(t / counts.width)] > 0


@example([(0.0, 1), (0.998046875, 0)])
@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 99)), min_size=1, max_size=60))
def test_a_level_shows_its_highest_value_and_holds_the_last(given_: list[tuple[float, int]]) -> None:
    level = Level(0.0)
    for t, value in sorted(given_, key=lambda pair: pair[0]):
        level.set(t, value)

    level.set(2e4, level.last)  # a bin of its own: the highest value in a bin can be one from before it
    shown = level.grouped(1)

    assert max(shown) == level.highest == max(value for _, value in given_)
    assert shown[-1] == level.last


def test_ids_of_a_subscription_wait_until_they_are_acknowledged() -> None:
    single, all_before = Ids(cumulative=False), Ids(cumulative=True)
    for ids in (single, all_before):
        for n in range(5):
            ids.add(str(n))
        assert ids.remove("3")
        assert not ids.remove("3")

    assert (single.count, all_before.count) == (4, 1)


# --- Words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"), (0.0004, "0.4 ms"), (0.012, "12 ms"), (0.4, "0.4 s"), (20, "20 s"), (29.84, "29.8 s"),
        (59.97, "1 min 00 s"), (125, "2 min 05 s"), (11_520, "3 h 12 min"), (100_000, "1 d 03 h"),
        (float("nan"), "–"), (float("inf"), "–"),
    ],
)  # fmt: skip
def test_durations_are_read_easily(seconds: float, text: str) -> None:
    assert words.lapse(seconds).replace(words.NO_BREAK, " ") == text


def test_evidence_becomes_a_table() -> None:
    rows = table_of([{"field": "type", "number": 65}, {"field": "size", "hex": "50"}])
    assert rows is not None
    assert rows.head == ("field", "number", "hex")
    assert rows.rows == (("type", "65", ""), ("size", "", "50"))

    many = table_of([{"number": number} for number in range(100)])
    assert many is not None
    assert len(many.rows) + many.more == 100
    assert table_of([]) is table_of("no table") is None


def test_details_show_the_most_telling_first() -> None:
    event = {
        "t": 1.0,
        "kind": "method",
        "exchange": "",
        "mandatory": False,
        "consumer_tag": "c",
        "delivery_tag": 7,
        "class_id": 0,
    }

    assert details_of(event)[:2] == (("tag", "7"), ("consumer", "c"))


# --- Size and memory --------------------------------------------------------------------------------------------------


def test_many_connections_have_a_line_or_a_number() -> None:
    to = Teller()
    for conn in range(1, 3001):
        to.login(conn)
        if conn % 100 == 0:
            to.add(
                "flag",
                "trace",
                conn,
                id="amqp.second-header",
                level="error",
                what="It sent a second header",
                remedy="Do not",
            )
        to.add("close", "client", conn, who="client", how="fin", in_frame=False)

    trace = Trace()
    for event in to.events:
        trace.add(event)
    page = page_of(to.events)

    check(page)
    assert len(trace.stories) <= MOST_STORIES
    assert trace.connections == 3000
    assert sum(alike.count for _, alike in trace.all_flags()) == 30
    text = page_text(page)
    assert "3,000 connections" in text
    assert "30 flags" in text
    assert "and 2,970 more connections" in text
    assert "without a picture" in text


def measured(events: str) -> tuple[int, int, float]:
    """The bytes of the page and of the memory, and the CPU seconds, of a process that reads these events."""
    program = f"""
import re, time
from pathlib import Path
from tests.diagnosis.page_kit import page_of
from tests.diagnosis.page_stories import *
page = page_of({events})
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]  # `ru_maxrss` is the parent's, if that is larger
print(len(page.encode()), int(peak) * 1024, time.process_time())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    size, memory, seconds = done.stdout.split()
    return int(size), int(memory), float(seconds)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("connections", [1, 200])
def test_a_trace_of_a_million_frames_stays_small(connections: int) -> None:
    size, memory, _ = measured(f"long_trace(1_000_000, {connections})")

    assert size < LARGEST_PAGE
    assert memory < MOST_MEMORY


@pytest.mark.timeout(300)
@pytest.mark.slow  # half a minute of computing; the one above has the usual events
def test_no_events_make_the_memory_grow() -> None:
    """Hundreds of connections, each with long names, many channels, and a flag for each frame."""
    size, memory, _ = measured("greedy_trace(320)")

    assert size < LARGEST_PAGE
    assert memory < MOST_MEMORY


def test_the_page_of_a_long_trace_has_all_of_it() -> None:
    page = page_of(long_trace(40_000))

    check(page)
    assert "10,000 deliveries" in page_text(page)
