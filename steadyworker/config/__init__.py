"""
Settings: which options exist (`options`), and which value counts (`resolve`).

`load` returns all of them, checked, as one frozen `Options`.
"""

from steadyworker.config.options import OPTIONS, Kind, Option, parse_seconds
from steadyworker.config.resolve import Options, load

__all__ = ["OPTIONS", "Kind", "Option", "Options", "load", "parse_seconds"]
