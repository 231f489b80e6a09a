"""
The adapter for a broker's URL, found by the URL's scheme in the entry-point group `steadyworker.adapters`.

A `+` in the scheme is a `.` in the entry point's name: `stomp+ssl:` is `stomp.ssl`.
If an adapter's client library is missing, opening the adapter raises an error that names the extra to install.
"""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from steadyworker.adapter import Adapter, OpenAdapter, QueueSpec, Settings
from steadyworker.errors import ConfigError

GROUP = "steadyworker.adapters"


def adapters() -> dict[str, EntryPoint]:
    """
    Return the installed adapters by URL scheme, and import none of them.

    Raises:
        ConfigError: Two distributions have an adapter for the same scheme.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        scheme = entry.name.replace(".", "+")
        other = found.setdefault(scheme, entry)
        if other.value != entry.value:
            raise ConfigError(
                f"Expected one adapter for {scheme}:, got {_said(other)} and {_said(entry)}: uninstall one of them."
            )
    return found


def open_adapter(url: str, spec: QueueSpec, settings: Settings) -> Adapter:
    """
    Open the adapter that the URL's scheme names, for one queue, without connecting it.

    Raises:
        ConfigError: The URL has no scheme, no adapter has this scheme, the adapter is broken, or the adapter refuses the URL.
    """
    known = adapters()
    scheme, colon, _ = url.partition(":")
    entry = known.get(scheme.lower())
    if not colon or entry is None:
        # Only the scheme is shown: the rest of a URL can contain a password.
        got = f"{scheme!r}" if colon else "a text without a scheme"
        near = difflib.get_close_matches(scheme.lower(), known, n=1) if colon else []
        remedy = f"did you mean {near[0]}:?" if near else "correct --broker, or install an adapter for this scheme."
        raise ConfigError(f"Expected --broker with one of the schemes {', '.join(sorted(known))}, got {got}: {remedy}")
    return _opener(entry)(url, spec, settings)


def _opener(entry: EntryPoint) -> OpenAdapter:
    try:
        return cast(OpenAdapter, entry.load().open_adapter)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"Expected open_adapter in {_said(entry)}, got {type(error).__name__}: {error}: install this adapter again."
        ) from error


def _said(entry: EntryPoint) -> str:
    return f"{entry.value} (of {entry.dist.name})" if entry.dist is not None else entry.value
