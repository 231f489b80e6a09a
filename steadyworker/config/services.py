"""
The settings of services: each service that is installed declares its own settings (`service/job_services.py`).

To read a declaration, this module must import the module of the service.
So the declarations are read only if all settings are listed, or if a given setting is no setting of the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from itertools import chain
from pathlib import Path
from typing import Any

from steadyworker.clock import Clock
from steadyworker.config.options import OPTIONS, Option
from steadyworker.system.entry_points import broken, installed, load

GROUP = "steadyworker.services"


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """
    The settings of one service.

    Attributes:
        folder: The service's folder in the state directory; it may not exist yet.
        values: The value of each of the service's settings, by the setting's name.
        clock: The clock of the worker process.
    """

    folder: Path
    values: Mapping[str, Any]
    clock: Clock


def all_options() -> tuple[Option, ...]:
    """
    Return the settings of the core, and then the settings of all services.

    Raises:
        ConfigError: The entry point of a service is broken.
    """
    return (*OPTIONS, *chain.from_iterable(map(options_of, installed(GROUP).values())))


def options_of(entry: EntryPoint) -> tuple[Option, ...]:
    """
    Return the settings of the service that an entry point names.

    Raises:
        ConfigError: The entry point is broken.
    """
    options = getattr(load(entry), "OPTIONS", None)
    if not isinstance(options, tuple) or not all(isinstance(option, Option) for option in options):
        raise broken(entry, "no OPTIONS, a tuple of Option")
    for option in options:
        if not option.name.startswith(f"{entry.name}_") or any(option.name == other.name for other in OPTIONS):
            raise broken(
                entry,
                f"the setting {option.name!r}, which does not begin with {entry.name + '_'!r}, or which the core has",
            )
    return options
