"""A small catalogue for the tests of the search: its entries explain lines that no broker writes."""

from __future__ import annotations

from steadyworker.diagnosis.catalogue import Entry, read


def entry(identity: str, regex: str, hint: str, more: str = "") -> str:
    """One entry in TOML."""
    return f"""
[[entry]]
id = "{identity}"
title = "Title of {identity}"
what = "What happened to {{queue|a queue}}"
why = "The cause"
remedies = ["Do this"]
sources = ["This test"]
severity = "error"
{more}
[[entry.pattern]]
hint = "{hint}"
regex = '''{regex}'''
"""


TEXT = "".join(
    (
        entry("small.beats", r"beats missed on (?P<connection><[\d.]+>)", "beats missed", 'keys = ["connection"]'),
        entry(
            "small.closed",
            r"closed (?P<connection><[\d.]+>)(?: of (?P<message>\w+))?",
            "closed <",
            'keys = ["connection", "message"]\nfollows = ["small.beats"]',
        ),
        entry(
            "small.again",
            r"received (?P<message>\w+) again",
            "received ",
            'keys = ["message"]\nfollows = ["small.closed"]',
        ),
        entry("small.twice", r"ran (?P<message>\w+) twice", "twice", 'keys = ["message"]\nfollows = ["small.again"]'),
        entry("small.lost", r"^lost (?P<queue>\w+)$", "lost "),
        entry("small.any", "gone wrong", "gone wrong", "general = true"),
        entry("small.one", r"gone wrong with (?P<queue>'[^']*')", "gone wrong with '"),
        entry("small.unconnected", "no connection", "no connection", "vague = true"),
        entry("tls.small", "not trusted", "not trusted", "general = true"),
        entry("tls.vague", "was refused", "was refused", "general = true\nvague = true"),
        entry(
            "small.header",
            r"type (?P<type>\d+), channel (?P<channel>\d+), size (?P<size>\d+)",
            "type ",
            'bytes = "frame"\nopens = ["amqp"]',
        ),
    )
)
SMALL: dict[str, Entry] = {each.id: each for each in read(TEXT, "small.toml")}
