"""A file of captured packets as records, so that a capture is read as the relay's records are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from steadyworker.diagnosis.capture import Bytes, Closed, Event, Missing, Opened
from steadyworker.diagnosis.tap import Record, Side, What


def records_of(events: Iterable[Event]) -> Iterator[Record]:
    """Yield the records of a capture's events; at its end, all connections are closed."""
    ended: dict[int, set[Side]] = {}
    last = 0.0
    for event in events:
        last, number = event.at, event.connection
        match event:
            case Opened():
                ended[number] = set()
                yield Record(What.OPENED, number, Side.CLIENT, last, facts={"client": event.client, "tls": False})
                facts = {"broker": event.broker, "joined": event.joined}
                yield Record(What.CONNECTED, number, Side.BROKER, last, facts=facts)
            case Bytes():
                yield Record(What.DATA, number, _side(event.from_client), last, event.data)
            case Missing():
                facts = {"why": "bytes that the capture lacks"}
                yield Record(What.SKIPPED, number, _side(event.from_client), last, size=event.size, facts=facts)
            case Closed():
                side = _side(event.from_client)
                yield Record(What.RESET if event.reset else What.ENDED, number, side, last)
                ended[number].add(side)
                if event.reset or len(ended[number]) == len(Side):
                    del ended[number]
                    yield _closed(number, last)
    for number in ended:
        yield _closed(number, last)


def _side(from_client: bool) -> Side:  # noqa: FBT001 - as the capture has it
    return Side.CLIENT if from_client else Side.BROKER


def _closed(number: int, t: float) -> Record:
    return Record(What.CLOSED, number, Side.CLIENT, t, facts={"by_trace": False})
