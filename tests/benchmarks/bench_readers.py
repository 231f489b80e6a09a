"""
The readers of AMQP and STOMP, beside the libraries: `make bench`, or `python -m tests.benchmarks.bench_readers`.

Each round reads the same bytes with every reader, one after the other, in pieces of 64 kB as a proxy receives them.
A library that expects whole frames is given the frames one by one, so the division of the stream costs it nothing.
The numbers are per second of processor time, so they are those of one core, whatever else the machine does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from pamqp import body, commands, frame, header
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from stomp.utils import parse_frame  # type: ignore[import-untyped]

from steadyworker.diagnosis.amqp import AmqpReader
from steadyworker.diagnosis.stomp import StompReader

ROUNDS, CHUNK, AIM = 7, 65_536, 100.0


@dataclass(frozen=True)
class Contest:
    """The same frames for two readers, and how many frames they are."""

    what: str
    frames: Sequence[bytes]
    ours: Callable[[Sequence[bytes]], int]
    theirs: Callable[[Sequence[bytes]], int]
    library: str
    aim: float | None = None


def main() -> int:
    """Measure and print; the exit code is 1 if a reader misses its aim."""
    table = Table("what", "MB/s", "frames/s", "beside", "aim", title="Readers, per core", box=SIMPLE_HEAD)
    missed = False
    for contest in contests():
        whole = b"".join(contest.frames)
        chunks = [whole[at : at + CHUNK] for at in range(0, len(whole), CHUNK)]
        ours: list[float] = []
        ratios: list[float] = []
        for _ in range(ROUNDS):
            mine = seconds(contest.ours, chunks, len(contest.frames))
            ours.append(mine)
            ratios.append(seconds(contest.theirs, contest.frames, len(contest.frames)) / mine)
        rate = len(whole) / 1e6 / median(ours)
        missed |= contest.aim is not None and rate < contest.aim
        table.add_row(
            contest.what,
            f"{rate:,.0f}",
            f"{len(contest.frames) / median(ours):,.0f}",
            f"{median(ratios):.1f} × {contest.library}",
            f"≥ {contest.aim:.0f} MB/s" if contest.aim else "",
        )
    Console(width=110).print(table)
    return int(missed)


def contests() -> list[Contest]:
    """Bodies of three sizes, messages, and STOMP."""
    found = []
    for size, count in ((131_064, 1_000), (4_096, 10_000), (500, 20_000)):
        bodies = [frame.marshal(body.ContentBody(b"x" * size), 1)] * count
        found.append(Contest(f"bodies of {size:,} bytes", with_header(bodies, size), amqp, by_pamqp, "pamqp", AIM))
    about = commands.Basic.Properties(headers={"attempt": 1}, delivery_mode=2, message_id="4f1c")
    messages = [
        frame.marshal(commands.Basic.Deliver("ctag1.2f6c", 17, False, "", "jobs"), 1),
        frame.marshal(header.ContentHeader(0, 200, about), 1),
        frame.marshal(body.ContentBody(b"x" * 200), 1),
    ]
    found.append(Contest("deliveries of 200 bytes", messages * 5_000, amqp, by_pamqp, "pamqp"))
    sent = b"MESSAGE\ndestination:/queue/jobs\nmessage-id:1\nack:1\ncontent-length:%d\n\n%b\0"
    for size, count in ((100_000, 500), (200, 5_000)):
        stomp_frames = [sent % (size, b"x" * size)] * count
        found.append(Contest(f"STOMP messages of {size:,} bytes", stomp_frames, stomp, by_stomp_py, "stomp.py"))
    return found


def with_header(bodies: list[bytes], size: int) -> list[bytes]:
    """One message of these bodies, so that no frame is out of place."""
    about = header.ContentHeader(0, size * len(bodies))
    return [frame.marshal(commands.Basic.Publish(), 1), frame.marshal(about, 1), *bodies]


def seconds(work: Callable[[Sequence[bytes]], int], data: Sequence[bytes], expected: int) -> float:
    """Return the processor time of this work, which must find so many frames."""
    began = time.process_time()
    found = work(data)
    took = time.process_time() - began
    assert found == expected, (found, expected)
    return took


def amqp(chunks: Sequence[bytes]) -> int:
    """Read with our reader."""
    reader = AmqpReader(opening=False, frame_max=0)
    return sum(len(reader.feed(chunk)) for chunk in chunks)


def by_pamqp(frames: Sequence[bytes]) -> int:
    """Read with pamqp."""
    return sum(frame.unmarshal(one)[0] > 0 for one in frames)


def stomp(chunks: Sequence[bytes]) -> int:
    """Read with our reader."""
    reader = StompReader()
    return sum(len(reader.feed(chunk)) for chunk in chunks)


def by_stomp_py(frames: Sequence[bytes]) -> int:
    """Read with stomp.py."""
    parsed = (parse_frame(one) for one in frames)
    return sum(found is not None and found.cmd == "MESSAGE" for found in parsed)


if __name__ == "__main__":
    sys.exit(main())
