"""
Settings: the table of options (`options`), those of services (`services`), and the rule that selects each value (`resolve`).

`load` checks all settings, and returns them as one frozen `Options`.
Names are imported when they are first used, because `steadyworker run` starts its first child before it needs settings.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyworker.config.options import OPTIONS, Kind, Option
    from steadyworker.config.resolve import Options, load
    from steadyworker.units import parse_seconds

__all__ = ["OPTIONS", "Kind", "Option", "Options", "load", "parse_seconds"]

_HOMES = {
    "OPTIONS": "config.options",
    "Kind": "config.options",
    "Option": "config.options",
    "Options": "config.resolve",
    "load": "config.resolve",
    "parse_seconds": "units",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"steadyworker.{_HOMES[name]}"), name)
