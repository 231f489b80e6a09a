"""
The worker process's settings, as environment variables of each child, so that a handler's `Client()` can read them.

A spare is started before the settings are known, so Hello brings the settings to every child.
The settings are never part of a command line, because every user of the machine can read command lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

PREFIX = "STEADYWORKER_"


def settings() -> dict[bytes, bytes]:
    """Return the present environment variables of this process whose names begin with the prefix."""
    return {name: value for name, value in os.environb.items() if name.startswith(PREFIX.encode())}


def take_settings(given: Mapping[bytes, bytes]) -> None:
    """Replace the environment variables of this process whose names begin with the prefix."""
    for name in settings().keys() - given.keys():
        del os.environb[name]
    os.environb.update(given)
