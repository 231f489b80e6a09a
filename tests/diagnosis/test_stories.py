"""
The five stories of examples/diagnosis: the lines of each name the true cause, and the remedy that the story ended with.

How the page shows them is tested in tests/examples/test_readme.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from steadyworker.diagnosis.scan import Scanner, by_time
from steadyworker.diagnosis.timeline import LogFinding, Timelines
from tests.diagnosis.explaining import catalogue, search

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parents[2] / "examples" / "diagnosis"


def findings(*names: str, changes: tuple[tuple[str, str], ...] = ()) -> dict[str, LogFinding]:
    timelines = Timelines(catalogue().values())
    texts = {name: (FOLDER / name).read_text(encoding="utf-8") for name in names}
    for old, new in changes:
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    for seen in by_time(Scanner(name, search()).whole([text.encode()]) for name, text in texts.items()):
        timelines.add(seen)
    timelines.end()
    return timelines.findings


@pytest.mark.parametrize(
    ("files", "causes", "ends_with", "remedy"),
    [
        (["second-header.log"], ["amqp.second-header"], "amqp.frame-error-close", "Give each connection one owner"),
        (
            ["payment-exporter.log", "payment-exporter-rabbitmq.log"],
            ["amqp.frame-before-header", "amqp.interleaved-frames"],
            "phpamqplib.other-protocol",
            "Give each connection one owner",
        ),
        (["cut-write.log"], ["amqp.peer-not-reading"], "amqp.peer-not-reading", "which end does not read"),
        (["client-id.log"], ["stomp.client-id-taken"], "stomp.client-id-taken", "Leave `client-id` out"),
        (
            ["retries-consumer.log", "retries-broker.log"],
            ["rocketmq.illegal-retry-topic"],
            "rocketmq.half-topic-grows",
            "Give the group a name of at most 120 characters",
        ),
    ],
)
def test_a_story_names_its_cause_and_its_remedy(
    files: list[str], causes: list[str], ends_with: str, remedy: str
) -> None:
    found = findings(*files)
    assert list(found) == causes
    first = found[causes[0]]
    assert first.example.in_order()[-1].seen.entry.id == ends_with
    assert remedy in first.entry.remedies[0]
    assert any("steadyworker trace" in line or "mqadmin" in line for line in first.entry.verify)


@pytest.mark.parametrize(
    ("numbers", "cause"),
    [
        ((71, 17748, 539959368), "amqp.http-in-connection"),
        ((22, 769, 33554688), "amqp.tls-in-connection"),
        ((67, 20302, 1313162068), "amqp.stomp-in-connection"),
        ((2, 1, 200029), "amqp.frame-too-large"),
    ],
)
def test_the_same_line_with_other_numbers_is_another_story(numbers: tuple[int, int, int], cause: str) -> None:
    """The bytes decide, not the shape of the line."""
    type_, channel, size = numbers
    changes = (("type 65", f"type {type_}"), ("channel 19793", f"channel {channel}"), ("1342177289", str(size)))
    assert list(findings("second-header.log", changes=changes)) == [cause]
