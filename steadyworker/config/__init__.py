"""
Settings: the table of options (`options`), and the rule for which value of an option applies (`resolve`).

`load` returns all settings, checked, as one frozen `Options`.
"""

from steadyworker.config.options import OPTIONS, Kind, Option
from steadyworker.config.resolve import Options, load
from steadyworker.units import parse_seconds

__all__ = ["OPTIONS", "Kind", "Option", "Options", "load", "parse_seconds"]
