"""
The entry points with which installed packages extend SteadyWorker.

| group | an entry point's name | its object | described in |
|---|---|---|---|
| `steadyworker.adapters` | the scheme of a broker's URL | a module with `open_adapter` | `adapter.py` |
| `steadyworker.services` | the name of a service that jobs can call | a module with `OPTIONS`, `findings` and `open_service` | `service/job_services.py` |
| `steadyworker.commands` | a verb of the command line | a `Verb` | `cli/other_verbs.py` |
| `steadyworker.findings` | any | a package with a `findings.toml` | `findings.py` |
| `steadyworker.remedies` | any | a function without arguments that returns a `RemedyOf` | `service/remedies.py` |

SteadyWorker finds its own `steadyworker.exports` and `steadyworker.diagnosis` only by entry points, like other packages.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from steadyworker.errors import ConfigError


def installed(group: str) -> dict[str, EntryPoint]:
    """
    Return the entry points of a group by name, sorted, and import none of them.

    Raises:
        ConfigError: Two distributions have an entry point with the same name.
    """
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise ConfigError(
                f"Expected one entry point {entry.name!r} in the group {group}, got {origin(other)} and {origin(entry)}: "
                "uninstall one of them.",
                id="config.entry-point",
            )
    return found


def load(entry: EntryPoint) -> Any:
    """
    Import an entry point's module, and return the object that the entry point names.

    Raises:
        ConfigError: The import failed, or the module has no such object; the message names the entry point.
    """
    try:
        return entry.load()
    except Exception as error:  # any code can run in an import
        raise broken(entry, f"{type(error).__name__}: {error}") from error


def broken(entry: EntryPoint, got: str) -> ConfigError:
    """Return the error for an entry point whose object does not fit its group."""
    return ConfigError(
        f"Expected {origin(entry)} to be usable as {entry.name!r} in the group {entry.group}, got {got}: "
        "install that distribution again, or uninstall it.",
        id="config.entry-point",
    )


def origin(entry: EntryPoint) -> str:
    """Return the entry point's module and distribution, for an error's text."""
    return f"{entry.value} (of {entry.dist.name})" if entry.dist is not None else entry.value
