"""
The search for the adapter of a broker's URL, by the URL's scheme, in the entry-point group `steadyworker.adapters`.

The entry point's name is the scheme, such as `stomp+ssl`.
If an adapter's client library is missing, `open_adapter` raises an error that names the extra to install.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import cast

from steadyworker.adapter import Adapter, OpenAdapter, QueueSpec, Settings
from steadyworker.errors import ConfigError
from steadyworker.system.entry_points import Extension, broken, installed, load

GROUP = "steadyworker.adapters"


def adapters() -> Mapping[str, Extension]:
    """Return the installed adapters by URL scheme, and import none of them."""
    return installed(GROUP)


def open_adapter(url: str, spec: QueueSpec, settings: Settings) -> Adapter:
    """
    Open the adapter that the URL's scheme names, for one queue; do not connect.

    Raises:
        ConfigError: The URL has no scheme, no adapter or two adapters have this scheme, or the adapter is broken or refuses the URL.
    """
    known = adapters()
    scheme, colon, _ = url.partition(":")
    adapter = known.get(scheme.lower())
    if not colon or adapter is None:
        # The message shows only the scheme, because the rest of a URL can contain a password.
        got = f"{scheme!r}" if colon else "a text without a scheme"
        remedy = _remedy(scheme.lower() if colon else "", known)
        raise ConfigError(
            f"Expected --broker with one of the schemes {', '.join(sorted(known))}, got {got}: {remedy}",
            id="config.no-adapter",
        )
    return _opener(adapter)(url, spec, settings)


def _remedy(scheme: str, known: Mapping[str, Extension]) -> str:
    """
    Return the remedy for a scheme that no installed adapter has; the scheme can be any text.

    The package `steadyworker_x` belongs to the extra `x`, and a user can write `x` instead of the scheme.
    If the files are newer than the installation, the package exists, but its schemes are missing.
    Installing the extra adds the schemes.
    """
    extra = scheme.partition("+")[0]
    package = f"steadyworker_{extra}"
    near = [name for name, adapter in known.items() if adapter.entry.module == package]
    if near := near or difflib.get_close_matches(scheme, known, n=1):
        return f"did you mean {near[0]}:?"
    for dist in (adapter.entry.dist for adapter in known.values()):
        if dist is not None and extra in (dist.metadata.get_all("Provides-Extra") or ()) and find_spec(package):
            return f"pip install '{dist.name}[{extra}]'."
    return "correct --broker, or install an adapter for this scheme."


def _opener(adapter: Extension) -> OpenAdapter:
    opener = getattr(load(adapter), "open_adapter", None)
    if not callable(opener):
        raise broken(adapter, "no open_adapter")
    return cast(OpenAdapter, opener)
