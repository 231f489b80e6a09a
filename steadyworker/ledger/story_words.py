"""The words for the facts of a story, which the command line and the page share."""

from __future__ import annotations

from collections.abc import Mapping

BECAUSE: Mapping[str, str] = {
    "new": "its first message",
    "replayed": "it was replayed, or sent again",
    "retry": "its retry",
    "snoozed": "its snooze is over",
    "interrupted": "the run before was interrupted",
    "taken over": "taken over from a lost worker process",
    "dropped": "its worker process had dropped the run before",
}
"""Why a run began, by the first part of `Attempt.because`."""

ENDED: Mapping[str, str] = {"": "ended", "retry": "asked for a retry"}
"""How a run ended, by its outcome; another outcome is its own word."""

EVENTS: Mapping[str, str] = {
    "connected": "connected to the broker",
    "lost": "lost the connection to the broker",
    "blocked": "the broker blocks publishers",
    "unblocked": "the broker no longer blocks publishers",
    "draining": "the worker process stops",
    "adopted": "the run got a new delivery of its message",
    "delivery-lost": "the run lost its delivery, and goes on",
}
"""What happened to a connection, by `LinkEvent.event`."""
