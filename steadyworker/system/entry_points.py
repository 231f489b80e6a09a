"""
The entry points with which installed packages extend SteadyWorker.

| group | an entry point's name | its object | described in |
|---|---|---|---|
| `steadyworker.adapters` | the scheme of a broker's URL | a module with `open_adapter` | `adapter.py` |
| `steadyworker.services` | the name of a service that jobs can call | a module with `OPTIONS`, `findings` and `open_service` | `service/job_services.py` |
| `steadyworker.commands` | a verb of the command line | a `Verb` | `cli/other_verbs.py` |
| `steadyworker.findings` | any | a package with a `findings.toml` | `findings.py` |
| `steadyworker.remedies` | any | a function without arguments that returns a `RemedyOf` | `service/remedies.py` |

SteadyWorker finds its own `steadyworker.exports`, `steadyworker.diagnosis` and `steadyworker.dashboard` only by entry points, like other packages.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from steadyworker.errors import ConfigError, Finding


@dataclass(frozen=True, slots=True)
class Extension:
    """
    One name in a group.

    Attributes:
        entry: The entry point.
        rival: An entry point of another distribution with the same name, or None. Only `load` refuses such a name.
    """

    entry: EntryPoint
    rival: EntryPoint | None = None


def installed(group: str) -> dict[str, Extension]:
    """Return the extensions of a group by name, sorted, and import none of them."""
    found: dict[str, Extension] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        first = found.setdefault(entry.name, Extension(entry)).entry
        if first.value != entry.value:
            found[entry.name] = Extension(first, entry)
    return found


def load(extension: Extension) -> Any:
    """
    Import an entry point's module, and return the object that the entry point names.

    Raises:
        ConfigError: The import failed, the module has no such object, or two distributions have this name.
            The message names the entry point.
    """
    entry, rival = extension.entry, extension.rival
    if rival is not None:
        what = f"Expected one entry point {entry.name!r} in the group {entry.group}, got {origin(entry)} and {origin(rival)}"
        raise _error(what, "uninstall one of them.")
    try:
        return entry.load()
    except Exception as error:  # any code can run in an import
        raise broken(extension, error) from error


def broken(extension: Extension, got: str | Exception) -> ConfigError:
    """Return the error for an entry point whose object does not fit its group, or raised an exception."""
    entry, got = extension.entry, got if isinstance(got, str) else f"{type(got).__name__}: {got}"
    what = f"Expected {origin(entry)} to be usable as {entry.name!r} in the group {entry.group}, got {got}"
    return _error(what, "install that distribution again, or uninstall it.")


def _error(what: str, remedy: str) -> ConfigError:
    return ConfigError(f"{what}: {remedy}", [Finding("error", f"{what}.", remedy, id="config.entry-point")])


def origin(entry: EntryPoint) -> str:
    """Return the entry point's module and distribution, for an error's text."""
    return f"{entry.value} (of {entry.dist.name})" if entry.dist is not None else entry.value
