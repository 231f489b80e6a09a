"""The pictures of connections: what the events prove, and what they leave unknown."""

from __future__ import annotations

from msgspec.structs import replace

from steadyworker.dashboard.pictures import DAY, PictureSegment, lanes_of, strip
from steadyworker.ledger.facts import Attempt, LinkEvent, QueueReport

NOW = 1_000_000.0
HOUR = 3600.0


def event(kind: str, ago: float, why: str = "", fence: int | None = None) -> LinkEvent:
    return LinkEvent("me", "q", NOW - ago, 1, kind, why, fence)  # type: ignore[arg-type]


def parts(segments: list[PictureSegment]) -> list[tuple[str, float, float]]:
    return [(each.state, each.x, each.width) for each in segments]


def day(
    *events: LinkEvent, began: float = 48 * HOUR, connected: bool | None = True, until: float = 0.0
) -> list[tuple[str, float, float]]:
    report = None if connected is None else QueueReport(connected=connected)
    found = strip("q", report, events, NOW - began, NOW - until, NOW, 50)
    return parts(list(found.segments))


def test_a_day_without_an_event_is_what_the_process_reports() -> None:
    assert day() == [("connected", 0.0, 1440.0)]
    assert day(connected=False) == [("lost", 0.0, 1440.0)]
    assert day(connected=None) == [("unknown", 0.0, 1440.0)]
    assert day(began=6 * HOUR) == [("connected", 0.0, 1440.0)]


def test_an_event_proves_the_state_before_it() -> None:
    lost, again = event("lost", 12 * HOUR), event("connected", 6 * HOUR)
    assert day(lost, again) == [("connected", 0.0, 720.0), ("lost", 720.0, 360.0), ("connected", 1080.0, 360.0)]
    assert day(again) == [("unknown", 0.0, 1080.0), ("connected", 1080.0, 360.0)]
    assert day(event("unblocked", 6 * HOUR)) == [("blocked", 0.0, 1080.0), ("connected", 1080.0, 360.0)]


def test_a_report_that_contradicts_the_events_leaves_the_state_unknown() -> None:
    """The process drops events while the ledger does not respond."""
    found = day(event("lost", 6 * HOUR), connected=True)
    assert [state for state, _, _ in found] == ["connected", "lost", "unknown"]


def test_a_process_that_died_has_no_state_after_its_end() -> None:
    assert day(began=12 * HOUR, until=6 * HOUR, connected=None) == [("unknown", 0.0, 720.0)]
    died = strip("q", None, [event("connected", HOUR)], NOW - HOUR, NOW - 60.0, NOW, 50)
    assert died.text == "last sign 1 min 00 s ago, connected until then"


def test_a_short_loss_is_visible_and_has_its_cause() -> None:
    events = [event("lost", HOUR, "broker away"), event("connected", HOUR - 1)]
    found = strip("q", QueueReport(connected=True), events, NOW - 2 * HOUR, NOW, NOW, 50)
    assert found.segments[1].width == 2.2
    assert found.segments[1].text == "lost for 1 s: broker away"
    assert found.text == "connection lost 1 time in 24 hours, 1 s in all"


def test_a_connection_that_changed_often_has_a_bounded_picture() -> None:
    events = [event("lost" if number % 2 else "connected", 10000.0 - number) for number in range(1000)]
    found = strip("q", QueueReport(), events, NOW - DAY, NOW, NOW, 10)
    assert len(found.segments) == 11
    assert found.segments[0].text.endswith(": 991 changes not drawn")
    assert found.text == "connection lost 500 times in 24 hours, 2 h 38 min in all"


def attempt(began: float, ended: float | None, fence: int = 1, epoch: int | None = 3, outcome: str = "done") -> Attempt:
    end = None if ended is None else NOW - ended
    return Attempt(fence, "me", "host", 1, 0, "1", "new", epoch, NOW - began, end, outcome if ended is not None else "")


def test_a_run_goes_on_while_its_connection_is_lost() -> None:
    events = [
        event("lost", 75.0),
        event("delivery-lost", 75.0, fence=1),
        event("connected", 50.0),
        event("adopted", 25.0, fence=1),
    ]
    found = lanes_of([attempt(100.0, 0.0)], events, NOW)
    assert parts(list(found.lanes["Run"])) == [("done", 0.0, 1000.0)]
    assert parts(list(found.lanes["Delivery"])) == [
        ("holds its message", 0.0, 250.0),
        ("lost", 250.0, 500.0),
        ("holds its message", 750.0, 250.0),
    ]
    assert parts(list(found.lanes["Connection"])) == [
        ("connected", 0.0, 250.0),
        ("lost", 250.0, 250.0),
        ("connected", 500.0, 500.0),
    ]
    assert found.text == "1 run"
    assert found.lanes["Connection"][1].text == "connection lost for 25 s"


def test_an_event_of_another_run_is_left_out() -> None:
    found = lanes_of([attempt(100.0, 0.0)], [event("delivery-lost", 50.0, fence=2)], NOW)
    assert parts(list(found.lanes["Delivery"])) == [("holds its message", 0.0, 1000.0)]


def test_the_time_before_the_events_that_are_kept_is_unknown() -> None:
    found = lanes_of([attempt(48 * HOUR, None)], [], NOW)
    assert parts(list(found.lanes["Run"])) == [("running", 0.0, 1000.0)]
    assert parts(list(found.lanes["Connection"])) == [("unknown", 0.0, 500.0), ("unknown", 500.0, 500.0)]


def test_a_message_from_the_ledger_needs_no_connection() -> None:
    found = lanes_of([attempt(100.0, 0.0, epoch=None)], [], NOW)
    assert parts(list(found.lanes["Delivery"])) == [("from the ledger", 0.0, 1000.0)]
    assert parts(list(found.lanes["Connection"])) == [("unknown", 0.0, 1000.0)]


def test_between_two_runs_delivery_and_connection_are_unknown() -> None:
    found = lanes_of([attempt(100.0, 75.0, outcome="failed"), attempt(50.0, 0.0, fence=2)], [], NOW)
    assert parts(list(found.lanes["Run"])) == [("failed", 0.0, 250.0), ("done", 500.0, 500.0)]
    for lane, state in (("Delivery", "holds its message"), ("Connection", "connected")):
        assert parts(list(found.lanes[lane])) == [
            (state, 0.0, 250.0),
            ("unknown", 250.0, 250.0),
            (state, 500.0, 500.0),
        ]
    assert found.lanes["Delivery"][1].text == "delivery unknown for 25 s: no run"


def test_the_acknowledgement_is_the_end_of_the_delivery() -> None:
    def end(settled: str) -> PictureSegment:
        return lanes_of([attempt(100.0, 0.0)], [], NOW, settled).lanes["Delivery"][-1]

    assert end("confirmed").state == end("sent").state == "acknowledged"
    assert end("confirmed").text == "acknowledged, and the broker has confirmed it"
    assert end("sent").text == "acknowledged, but the broker has not confirmed it"
    assert end("unknown").state == "unknown"


def test_an_event_of_a_connection_whose_begin_was_dropped_leaves_the_time_before_it_unknown() -> None:
    """The process drops events while the ledger does not respond; an epoch is the number of a connection."""
    lost = [replace(event("lost", ago), epoch=epoch) for ago, epoch in ((75.0, 3), (25.0, 5))]
    found = lanes_of([attempt(100.0, 0.0)], lost, NOW)
    assert parts(list(found.lanes["Connection"])) == [
        ("connected", 0.0, 250.0),
        ("unknown", 250.0, 500.0),
        ("lost", 750.0, 250.0),
    ]
    again = [lost[0], replace(event("adopted", 25.0, fence=1), epoch=4)]
    found = lanes_of([attempt(100.0, 0.0)], again, NOW)
    assert parts(list(found.lanes["Connection"]))[1:] == [("unknown", 250.0, 500.0), ("connected", 750.0, 250.0)]
