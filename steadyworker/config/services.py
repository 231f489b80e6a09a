"""
The settings of services: each service that is installed declares its own settings (`service/job_services.py`).

To read a declaration, this module must import the module of the service.
So the declarations are read only if all settings are listed, or if a given setting is no setting of the core.
A broken service is an error only for a given setting that begins with the service's name and `_`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from steadyworker.clock import Clock
from steadyworker.config.options import OPTIONS, Option
from steadyworker.errors import ConfigError
from steadyworker.system.entry_points import Extension, broken, installed, load

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
    """Return the settings of the core, and then the settings of all services that are not broken."""
    return (*OPTIONS, *chain.from_iterable(_of_services()))


def options_for(names: Collection[str]) -> tuple[Option, ...]:
    """
    Return the settings of the core, and all settings of each service for which one of these names is a setting.

    If no setting has one of the names, return all settings, because one of them may have a similar name.

    Raises:
        ConfigError: A name is for a service whose entry point is broken.
    """
    if {*names} <= _names(OPTIONS):
        return OPTIONS
    needed = [each for service, each in installed(GROUP).items() if is_given(service, names)]
    options = (*OPTIONS, *chain.from_iterable(map(options_of, needed)))
    return options if {*names} <= _names(options) else all_options()


def is_given(service: str, names: Collection[str]) -> bool:
    """Return whether one of these names is for a setting of this service."""
    return any(name.startswith(f"{service}_") for name in names)


def options_of(extension: Extension) -> tuple[Option, ...]:
    """
    Return the settings of the service that an entry point names.

    Raises:
        ConfigError: The entry point is broken.
    """
    options = getattr(load(extension), "OPTIONS", None)
    if not isinstance(options, tuple) or not all(isinstance(option, Option) for option in options):
        raise broken(extension, "no OPTIONS, a tuple of Option")
    start = extension.entry.name + "_"
    for option in options:
        if not option.name.startswith(start) or any(option.name == other.name for other in OPTIONS):
            text = f"the setting {option.name!r}, which does not begin with {start!r}, or which the core has"
            raise broken(extension, text)
    return options


def _of_services() -> Iterator[tuple[Option, ...]]:
    for extension in installed(GROUP).values():
        with suppress(ConfigError):
            yield options_of(extension)


def _names(options: Collection[Option]) -> set[str]:
    return {name for option in options for name in option.names}
