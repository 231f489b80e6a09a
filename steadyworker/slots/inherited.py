"""
The worker process's settings, as environment variables that each child has: a handler's `Client()` reads them.

A spare is started before the settings are known, so Hello brings them to every child.
They are never on a command line, which every user of the machine can read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

PREFIX = "STEADYWORKER_"


def settings() -> dict[str, str]:
    """Return SteadyWorker's variables of this process, as they are now."""
    return {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}


def take_settings(given: Mapping[str, str]) -> None:
    """Replace SteadyWorker's variables of this process by these."""
    for name in settings().keys() - given.keys():
        del os.environ[name]
    os.environ.update(given)
