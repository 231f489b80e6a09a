"""The versions of installed distributions."""

from __future__ import annotations

import importlib.metadata


def version(distribution: str = "steadyworker") -> str:
    """Return the installed version, or "unknown" for a checkout that is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
