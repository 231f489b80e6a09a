"""The lines of a terminal: what they show, how many, and that nothing from the wire moves the cursor."""

from __future__ import annotations

import click
import pytest

from steadyworker.diagnosis.terminal import MOST_LINES, Terminal
from steadyworker.diagnosis.wire import Wire


def shown(frames: bool = True) -> tuple[Wire, list[str]]:
    lines: list[str] = []
    return Wire(0.0, [Terminal(lambda line: lines.append(click.unstyle(line)), frames=frames)]), lines


def test_each_kind_has_a_line() -> None:
    wire, lines = shown()
    wire.event(0.5, 1, "trace", "open", client="10.0.0.1:5", broker="10.0.0.2:5672", tls=False)
    wire.event(1, 1, "client", "method", name="Basic.Ack", channel=1, size=21, delivery_tag=7)
    wire.event(1, 1, "broker", "frame", name="MESSAGE", size=90, headers={"message-id": "m1"})
    wire.event(2, 1, "trace", "queue", side="client", bytes=5000, since=2.0)
    wire.event(3, 1, "client", "gap", seconds=8.5, allowed=4)
    wire.event(4, 1, "client", "close", who="client", how="reset", first=True, in_frame=False)
    assert lines == [
        "    0.500    #1 open                     client 10.0.0.1:5, broker 10.0.0.2:5672",
        "    1.000    #1 client → Basic.Ack                channel 1, tag 7",
        "    1.000    #1 broker → MESSAGE                  message-id m1",
        "    2.000    #1 bytes wait for the client bytes 5000, since 2.0",
        "    3.000    #1 client → gap                      seconds 8.5, allowed 4",
        "    4.000    #1 client → close (reset)            who client, first",
    ]


def test_of_many_events_a_second_the_others_are_counted() -> None:
    wire, lines = shown()
    for number in range(500):
        wire.event(1 + number / 1000, 1, "client", "heartbeat", size=8)
    wire.flag(1.9, 1, "amqp.second-header", "A second header")
    wire.event(2, 1, "client", "heartbeat", size=8)
    assert len(lines) == MOST_LINES + 4
    assert lines[MOST_LINES].startswith("    1.900    #1 ! amqp.second-header: A second header")
    assert lines[-2] == f"       1      … {500 - MOST_LINES} more events in this second"


def test_without_frames_flags_and_closes_are_left() -> None:
    wire, lines = shown(frames=False)
    wire.event(1, 1, "client", "method", name="Basic.Ack")
    wire.event(1, 1, "client", "close", who="client", how="fin")
    wire.flag(
        1, 1, "amqp.second-header", "A second header", [{"field": "type", "number": 65, "hex": "41", "characters": "A"}]
    )
    assert "Basic.Ack" not in "".join(lines)
    assert lines[2].split() == ["type", "65", "41", "A"]
    assert lines[3].strip().startswith("→ Give each connection one owner")


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\r", "\n", "\u202e", "\x9b31m"])
def test_no_text_from_the_wire_moves_the_cursor(hostile: str) -> None:
    wire, lines = shown()
    wire.event(1, 1, "client", "method", name=hostile, queue=hostile, **{hostile: hostile})
    wire.flag(1, 1, "trace.unparsable", hostile, [{hostile: hostile}])
    assert hostile not in "".join(lines)


def test_the_totals() -> None:
    wire, lines = shown()
    wire.connections, wire.skipped, wire.unreachable = 2, 3_000_000, 1
    wire.frames["client"] = 1200
    wire.flag(1, 1, "amqp.second-header", "A second header")
    wire.end(12.5)
    assert lines[-6:] == [
        "12.5 s, 2 connections",
        "client → broker: 1,200 frames, 0 bytes",
        "broker → client: 0 frames, 0 bytes",
        "not read, because the traffic was faster than the trace: 2.9 MiB",
        "connections that did not reach the broker: 1",
        "flags: amqp.second-header 1",
    ]
