"""Related records become one finding with its time line, and unrelated ones do not."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from steadyworker.diagnosis.records import Record
from steadyworker.diagnosis.scan import Scanner, Search, by_time
from steadyworker.diagnosis.timeline import NEAR, Incident, LogFinding, Sighting, Timelines
from tests.diagnosis.explaining import catalogue
from tests.diagnosis.small_catalogue import SMALL


def sighting(identity: str, time: float | None = None, line: int = 1, source: str = "log", **groups: str) -> Sighting:
    return Sighting(SMALL[identity], groups, Record(source, line, identity), line, time)


def joined(*sightings: Sighting) -> tuple[list[list[str]], dict[str, LogFinding]]:
    """The ids of each incident in order, and the findings."""
    timelines = Timelines(SMALL.values())
    for seen in sightings:
        timelines.add(seen)
    return [[step.seen.entry.id for step in each.in_order()] for each in timelines.end()], timelines.findings


BEATS = sighting("small.beats", 10, connection="<0.1.0>")
CLOSED = sighting("small.closed", 11, connection="<0.1.0>", message="march")
AGAIN = sighting("small.again", 4000, message="march")
TWICE = sighting("small.twice", 9000, message="march")
CHAIN = ["small.beats", "small.closed", "small.again", "small.twice"]


def test_an_exact_finding_stands_before_a_general_one_that_came_earlier() -> None:
    """Behind it stand a general, a probable and a vague one, which only reports a lost connection."""
    general, vague = sighting("small.any", line=1), sighting("small.unconnected", line=2)
    probable = replace(sighting("small.twice", line=3, message="march"), probable=True)
    exact = sighting("small.lost", line=4, queue="a")
    findings = joined(general, vague, probable, exact)[1].values()
    in_order = [finding.entry.id for finding in sorted(findings, key=lambda each: each.place)]
    assert in_order == ["small.lost", "small.any", "small.twice", "small.unconnected"]


def test_a_chain_is_one_finding_whose_root_is_the_cause() -> None:
    """Missed heartbeats, closed, redelivered, ran twice: joined by the connection, then by the message."""
    incidents, findings = joined(BEATS, CLOSED, AGAIN, TWICE)
    assert incidents == [CHAIN]
    (finding,) = findings.values()
    assert (finding.entry.id, finding.times, finding.values) == ("small.beats", 1, {"connection": {"<0.1.0>": 1}})


ON_PURPOSE = [
    *("amqp.connection-forced", "rabbitmq.closed-via-management", "rabbitmq.user-deleted"),
    *("rabbitmq.vhost-deleted", "rabbitmq.vhost-down", "rabbitmq.node-shutdown"),
]


@pytest.mark.parametrize("cause", ON_PURPOSE)
def test_a_client_that_hangs_up_when_the_broker_closes_on_purpose_is_no_finding_of_its_own(cause: str) -> None:
    """RabbitMQ says that the client closed unexpectedly, if it has not read connection.close-ok by then."""
    timelines = Timelines(catalogue().values())
    for line, identity in enumerate((cause, "amqp.closed-unexpectedly"), 1):
        at = {"connection": "<0.1.0>", "peer": "127.0.0.1:41170"}
        timelines.add(replace(sighting("small.closed", line, line, **at), entry=catalogue()[identity]))
    timelines.end()
    assert [finding.entry.id for finding in timelines.findings.values()] == [cause]


@given(st.permutations([BEATS, CLOSED, AGAIN, TWICE]))
def test_the_order_of_reading_does_not_change_the_root(order: list[Sighting]) -> None:
    """Neighbours in the chain meet whichever comes first; if the middle is read last, the ends are incidents of their own."""
    _, findings = joined(*order)
    assert findings["small.beats"].example.in_order()[0].seen is BEATS


def test_another_connection_is_another_incident_of_the_same_finding() -> None:
    other = sighting("small.closed", 12, connection="<0.2.0>")
    incidents, findings = joined(BEATS, sighting("small.beats", 10.5, connection="<0.2.0>"), CLOSED, other)
    assert sorted(incidents) == [["small.beats", "small.closed"]] * 2
    (finding,) = findings.values()
    assert finding.times == 2
    assert finding.values == {"connection": {"<0.1.0>": 1, "<0.2.0>": 1}}


def test_without_a_key_in_common_only_what_is_near_is_joined() -> None:
    keyless = sighting("small.beats", 10)
    assert joined(keyless, sighting("small.closed", 10 + NEAR))[0] == [["small.beats", "small.closed"]]
    assert joined(keyless, sighting("small.closed", 10.1 + NEAR))[0] == [["small.beats"], ["small.closed"]]


def test_without_times_the_lines_have_to_be_near() -> None:
    first = sighting("small.beats", line=1)
    assert joined(first, sighting("small.closed", line=201))[0] == [["small.beats", "small.closed"]]
    assert len(joined(first, sighting("small.closed", line=202))[0]) == 2
    assert len(joined(first, sighting("small.closed", line=2, source="other"))[0]) == 2


def test_unrelated_entries_are_never_joined() -> None:
    assert len(joined(BEATS, sighting("small.lost", 10, queue="a"))[0]) == 2


def test_repetitions_are_one_step() -> None:
    times = [sighting("small.lost", second, queue="a") for second in range(0, 300, 10)]
    timelines = Timelines(SMALL.values())
    for seen in times:
        timelines.add(seen)
    (incident,) = timelines.end()
    (step,) = incident.steps
    assert (step.times, step.seen, step.last) == (30, times[0], times[-1])
    finding = timelines.findings["small.lost"]
    assert (finding.times, finding.first, finding.last) == (30, times[0], times[-1])


def test_a_line_that_matches_twice_is_counted_once() -> None:
    first = sighting("small.lost", queue="a")
    again, below = replace(first, groups={"code": "404"}), replace(first, line=2, groups={"code": "405"})
    _, findings = joined(first, again, below)
    (finding,) = findings.values()
    assert (finding.times, finding.values) == (2, {"queue": {"a": 1}, "code": {"404": 1, "405": 1}})


def test_a_finding_shows_its_longest_incident_and_counts_all() -> None:
    """The values in its texts are those of the incident that is shown."""
    late = sighting("small.beats", 500, connection="<0.3.0>")
    _, findings = joined(late, sighting("small.beats", 1, connection="<0.4.0>"), BEATS, CLOSED)
    finding = findings["small.beats"]
    assert (finding.root, finding.example.steps[0].seen, finding.times) == (BEATS, BEATS, 3)
    assert (finding.first.time, finding.last.time) == (1, 500)


def test_a_step_without_a_time_stays_behind_the_one_before_it() -> None:
    incident = Incident()
    timelines = Timelines(SMALL.values())
    timelines.add(sighting("small.closed", 20, connection="<0.1.0>", message="march"))
    timelines.add(sighting("small.again", None, message="march"))
    timelines.add(sighting("small.beats", 10, connection="<0.1.0>"))
    (incident,) = timelines.end()
    assert [step.seen.entry.id for step in incident.in_order()] == ["small.beats", "small.closed", "small.again"]


def test_the_memory_is_bounded() -> None:
    timelines = Timelines(SMALL.values())
    chosen = random.Random(1)
    for number in range(3_000):
        timelines.add(sighting("small.lost", number * 100, queue=f"queue-{number}"))
        timelines.add(sighting("small.beats", number, connection=f"<0.{chosen.randrange(10_000)}.0>"))
        timelines.add(sighting("small.twice", 1, message="always"))
        timelines.add(sighting("small.again", number, message=f"message-{number}"))
    assert len(timelines._open) <= 200
    timelines.end()
    finding = timelines.findings["small.lost"]
    assert finding.times == 3_000
    assert len(finding.values["queue"]) == 100


def test_many_open_incidents_are_looked_through_quickly() -> None:
    """The keys of a sighting are computed once, not once for each of the 200 incidents that it can belong to."""
    computed: list[str] = []

    class Counted(dict[str, str]):
        @override
        def __getitem__(self, name: str) -> str:
            computed.append(name)
            return super().__getitem__(name)

    timelines = Timelines(SMALL.values())
    for number in range(1_000):
        groups = Counted(queue=f"queue-{number}")
        timelines.add(Sighting(SMALL["small.lost"], groups, Record("log", number, "lost"), number, number * 100.0))
    assert len(computed) < 10 * 1_000


def test_an_incident_of_many_steps_has_the_number_of_those_left_out() -> None:
    timelines = Timelines(SMALL.values())
    timelines.add(sighting("small.closed", 1, connection="<0.1.0>"))
    for number in range(100):
        timelines.add(sighting("small.closed", 1, connection="<0.1.0>", message=f"message-{number}"))
    (incident,) = timelines.end()
    assert (len(incident.steps), incident.left_out) == (40, 61)


def test_an_incident_settles_when_nothing_is_added() -> None:
    timelines = Timelines(SMALL.values())
    assert timelines.next_settles(4) is None
    timelines.add(BEATS, now=100)
    timelines.add(CLOSED, now=103)
    assert timelines.settled(106.9, 4) == []
    assert timelines.next_settles(4) == 107
    (incident,) = timelines.settled(107, 4)
    incident.shown = len(incident.steps)
    assert timelines.settled(200, 4) == []
    timelines.add(BEATS, now=201)
    assert timelines.settled(300, 4) == [], "a repetition is nothing new"
    timelines.add(AGAIN, now=301)
    assert timelines.settled(306, 4) == [incident]


def test_a_time_without_a_year_joins_one_with_a_year() -> None:
    """journald puts a time without a year in front of a worker's lines, and RabbitMQ writes its own with one."""
    lines = (
        "2026-03-02 09:00:00.000000+00:00 [error] <0.1.0> beats missed on <0.1.0>\n"
        "Mar  2 09:00:10 host worker[7]: closed <0.1.0> of march\n"
        "2025-12-31 23:59:59.000000+00:00 [error] <0.2.0> beats missed on <0.2.0>\n"
        "Jan  1 00:00:10 host worker[7]: closed <0.2.0> of april\n"
    )
    now = datetime(2026, 3, 3, tzinfo=UTC).timestamp()
    seen = [*Scanner("log", Search(SMALL.values(), now)).whole([lines.encode()])]
    times = [each.time for each in seen if each.time is not None]
    assert len(times) == 4
    # The two are apart by the zone of this machine, not by years.
    assert abs(times[1] - times[0]) < 86_400
    assert abs(times[3] - times[2]) < 86_400


@pytest.mark.parametrize(
    ("stamp", "expected"), [("Mar  2 09:00:00", 2026), ("Dec 24 09:00:00", 2025), ("Feb 29 09:00:00", None)]
)
def test_a_time_without_a_year_is_the_last_one_before_now(stamp: str, expected: int | None) -> None:
    now = datetime(2026, 11, 25, tzinfo=UTC).timestamp()
    time = Search(SMALL.values(), now).instant(stamp)
    assert (time and datetime.fromtimestamp(time, UTC).year) == expected


def test_several_logs_are_read_in_the_order_of_their_times() -> None:
    broker = b"2026-11-25T10:00:05Z ERROR closed <0.1.0> of march\n2026-11-25T10:00:01Z ERROR beats missed on <0.1.0>\n"
    worker = b"lost a\n2026-11-25T10:00:02Z ERROR received march again\nlost b\n2026-11-25T10:00:09Z ran march twice\n"
    search = Search(SMALL.values())
    found = by_time([Scanner("broker", search).whole([broker]), Scanner("worker", search).whole([worker])])
    assert [(seen.record.source, seen.line) for seen in found] == [
        *(("worker", 1), ("worker", 2), ("worker", 3), ("broker", 1), ("broker", 2), ("worker", 4)),
    ]
