"""
The comparison of a deployed file with a Worker: each contradiction is a finding with its remedy.

The content of the file decides which check reads it, because names of files differ from site to site.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from steadyworker.deploy import kubernetes_check, systemd_check
from steadyworker.deploy.expected import Expected
from steadyworker.deploy.pods import is_manifest
from steadyworker.errors import ConfigError, Finding, by_level

_LONGEST = 1 << 20
"""The most characters of a file that are read; a unit or a manifest has some thousands."""


def _is_unit(text: str) -> bool:
    return any(line.strip() == "[Service]" for line in text.splitlines())


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of file: its name for people, the test of a text for it, and its check."""

    name: str
    matches: Callable[[str], bool]
    findings: Callable[[str, str, Expected], Sequence[Finding]]


# A new kind of file gets one entry here, and a module beside this one.
_KINDS = (
    _Kind(
        "a unit of systemd with a section [Service]",
        _is_unit,
        systemd_check.findings,
    ),
    _Kind(
        "a manifest of Kubernetes",
        is_manifest,
        kubernetes_check.findings,
    ),
)


def findings(path: Path, expected: Expected) -> list[Finding]:
    """
    Return every contradiction between the file and the Workers, errors first.

    Raises ConfigError if the file cannot be read, or is of no kind that this check knows.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LONGEST)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Expected to read {path} for --deployed, got: {error}. Correct the path.") from error
    kind = next((kind for kind in _KINDS if kind.matches(text)), None)
    if kind is None:
        known = ", or ".join(kind.name for kind in _KINDS)
        raise ConfigError(f"Expected {known} for --deployed, got {path}: name a file that `steadyworker deploy` knows.")
    return sorted(kind.findings(path.name, text, expected), key=by_level)
