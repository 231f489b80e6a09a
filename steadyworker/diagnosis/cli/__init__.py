"""The verbs `explain` and `trace`, which the command line finds by the entry-point group `steadyworker.commands`."""

from __future__ import annotations

from steadyworker.cli.other_verbs import Verb

EXPLAIN = Verb(
    "Explain what brokers and clients write into their logs, and what to do.", "steadyworker.diagnosis.cli.explain"
)
TRACE = Verb(
    "Show what a client and a broker send to each other, and what ends their connections.",
    "steadyworker.diagnosis.cli.trace",
)
