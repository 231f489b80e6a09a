"""
The worker process's settings, as environment variables that each child has: a handler's `Client()` reads them.

A spare is started before the settings are known, so Hello brings them to every child.
They are never on a command line, which every user of the machine can read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

PREFIX = "STEADYWORKER_"


def settings() -> dict[bytes, bytes]:
    """Return SteadyWorker's variables of this process, as they are now."""
    return {name: value for name, value in os.environb.items() if name.startswith(PREFIX.encode())}


def take_settings(given: Mapping[bytes, bytes]) -> None:
    """Replace SteadyWorker's variables of this process by these."""
    for name in settings().keys() - given.keys():
        del os.environb[name]
    os.environb.update(given)
