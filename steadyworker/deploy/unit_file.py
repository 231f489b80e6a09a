"""
A reader of systemd's unit files (systemd.syntax(7)), for a check that needs no systemd.

Also the output of `systemctl cat UNIT` can be read: the unit and its drop-ins, in one text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from steadyworker.errors import ConfigError

_SECTION = re.compile(r"\[([^\]]+)\]")
_ASSIGNMENT = re.compile(r"([A-Za-z][\w-]*)\s*=\s*(.*)", re.DOTALL)
_TRUE, _FALSE = {"1", "yes", "y", "true", "t", "on"}, {"0", "no", "n", "false", "f", "off"}
_MANY = {
    *("Environment", "EnvironmentFile", "ExecStart", "LoadCredential", "LoadCredentialEncrypted"),
    *("IPAddressAllow", "IPAddressDeny", "RestrictAddressFamilies", "RestartPreventExitStatus", "SuccessExitStatus"),
    *("StateDirectory", "ReadWritePaths", "SystemCallFilter"),
}
"""The directives that this check reads, and that collect values; an empty value removes those before it."""

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Zµ]*)\s*")
_UNITS: Mapping[str, float] = MappingProxyType(
    {
        name: seconds
        for names, seconds in (
            (("usec", "us", "µs"), 1e-6),
            (("msec", "ms"), 1e-3),
            (("seconds", "second", "sec", "s", ""), 1.0),
            (("minutes", "minute", "min", "m"), 60.0),
            (("hours", "hour", "hr", "h"), 3600.0),
            (("days", "day", "d"), 86400.0),
            (("weeks", "week", "w"), 604800.0),
        )
        for name in names
    }
)
_WORD = re.compile(r"""\s*((?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\\.|[^\s"'\\])+)""", re.DOTALL)
_PART = re.compile(r""""((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|((?:\\.|[^\s"'\\])+)""", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class UnitFile:
    """
    The directives of a unit, by section and name, each with its values in order.

    A directive that is not set has its default in the methods' `default`.
    """

    name: str
    sections: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)

    def values(self, directive: str, section: str = "Service") -> Sequence[str]:
        """Return the values of a directive; only the last one, if a later line replaces an earlier one."""
        found = self.sections.get(section, {}).get(directive, ())
        return found if directive in _MANY else found[-1:]

    def text(self, directive: str, default: str = "") -> str:
        """Return the effective value of a directive in [Service]."""
        found = self.values(directive)
        return found[-1] if found and found[-1] else default

    def words(self, directive: str) -> list[str]:
        """Return all words of a directive's values in [Service], with their quotes removed."""
        return [word for value in self.values(directive) for word in split(value)]

    def flag(self, directive: str) -> bool:
        """
        Return whether a directive in [Service] is on.

        Raises ConfigError if the value is no boolean.
        """
        text = self.text(directive, "no").lower()
        if text not in _TRUE | _FALSE:
            raise ConfigError(
                f"Expected yes or no for {directive} in {self.name}, got {text!r}: correct it; systemd ignores such a line."
            )
        return text in _TRUE

    def seconds(self, directive: str, default: float | None) -> float | None:
        """
        Return a time of [Service] in seconds; None means no limit.

        Raises ConfigError if the value is no time span of systemd.time(7), for example because a comment follows it.
        """
        text = self.text(directive)
        if not text:
            return default
        if text == "infinity":
            return None
        found = _SPAN.findall(text)
        if _SPAN.sub("", text) or any(unit not in _UNITS for _, unit in found):
            raise ConfigError(
                f"Expected a time such as 90 or 1min 30s for {directive} in {self.name}, got {text!r}: "
                "correct it; systemd ignores such a line, and has no comments at the end of a line."
            )
        return sum(float(number) * _UNITS[unit] for number, unit in found)

    def environment(self) -> dict[str, str]:
        """Return the variables that `Environment=` sets."""
        pairs = (word.partition("=") for word in self.words("Environment"))
        return {name: text.replace("%%", "%") for name, _, text in pairs}


def read_unit(name: str, text: str) -> UnitFile:
    """Return the unit; `name` is the name of its file, for errors."""
    sections: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in _lines(text):
        if match := _SECTION.fullmatch(line):
            section = match[1]
        elif match := _ASSIGNMENT.fullmatch(line):
            values = sections.setdefault(section, {}).setdefault(match[1], [])
            if match[1] in _MANY and not match[2]:
                values.clear()
            else:
                values.append(match[2])
    return UnitFile(name, sections)


def _lines(text: str) -> Iterator[str]:
    """Yield each logical line: without comments, and with the lines that follow a backslash."""
    whole = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith(("#", ";")):  # also between two lines that a backslash joins
            continue
        if stripped.endswith("\\"):
            whole += stripped[:-1] + " "
            continue
        if whole := (whole + stripped).strip():
            yield whole
        whole = ""
    if whole.strip():
        yield whole.strip()


def split(value: str) -> list[str]:
    """Return the words of a value, as systemd splits and unquotes it; an unfinished quote ends the last word."""
    return [
        "".join(_ESCAPE.sub(r"\1", part[0] or part[1] or part[2]) for part in _PART.findall(word))
        for word in _WORD.findall(value)
    ]
