"""
The texts of findings: a table beside the checks of each package.

A package whose checks report findings has a file `findings.toml`, with one table for each finding::

    [[finding]]
    id = "rabbitmq.transient-queue"
    level = "error"
    what = "The {role} {queue!r} is not durable: a restart of the broker deletes it with all its messages."
    remedy = "delete it when it is empty, and create it again as a durable queue."
    why = "A transient queue lives in the memory of one node."

The code names the finding and its values: `_finding("rabbitmq.transient-queue", role="work queue", queue="exports")`.
`check` and `run` show the texts with these values, and `steadyworker explain --id` shows them with `<role>` and `<queue>`.

| field | meaning |
|---|---|
| `id` | the family and a name; it never changes |
| `case` | distinguishes findings of one id with different texts; only the first case needs `why` |
| `level` | error, warning or note; without it, the code passes the level |
| `what`, `remedy` | the problem and what to do, as templates of `str.format` |
| `why` | the reason why the finding is a problem |
| `read` | where to read on: URLs |
| `title` | the conclusion, if it is not the first part of `what`; an error whose text is in the code has a `title` and no `what` |

`explain` finds the tables by the entry-point group `steadyworker.findings`, which lists the packages.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from steadyworker.errors import Finding, Level, Loss

TABLE = "findings.toml"
"""The name of the file that has the texts of a package's findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingText:
    """One table of a `findings.toml`; the module's docstring describes the fields."""

    id: str
    case: str = ""
    level: Level | None = None
    what: str = ""
    remedy: str = ""
    why: str = ""
    read: tuple[str, ...] = ()
    title: str = ""


@dataclass(frozen=True, slots=True)
class FindingTexts:
    """
    A maker of findings from the texts of one package; the first call reads the package's `findings.toml`.

    Args:
        package: The package whose folder has the `findings.toml`.
    """

    package: str

    def __call__(
        self, id: str, case: str = "", /, *, level: Level | None = None, loses: Loss | None = None, **values: object
    ) -> Finding:
        """
        Return the finding with this id and case, with the values in its texts.

        Args:
            id: The id in the table.
            case: The case, if several texts have this id.
            level: The level, if the table has none.
            loses: The same as in `Finding`.
            values: A value for each field of the templates.

        Raises:
            KeyError: The table has no such id and case, or a template has a field without a value.
        """
        text = _by_name(self.package)[id, case]
        level = level or text.level
        assert level is not None, f"{id} has no level"
        return Finding(level, text.what.format(**values), text.remedy.format(**values), id=id, loses=loses)


def read_texts(toml: str) -> Iterator[FindingText]:
    """
    Yield the texts of a `findings.toml`.

    Raises:
        TypeError: A table has a field that `FindingText` does not have.
        TOMLDecodeError: The text is not TOML.
    """
    for table in tomllib.loads(toml).get("finding", ()):
        yield FindingText(**{**table, "read": tuple(table.get("read", ()))})


def general(template: str) -> str:
    """Return a template as a text without values: `{queue!r}` becomes `<queue>`."""
    return "".join(
        literal + ("" if name is None else f"<{name}>") for literal, name, _, _ in string.Formatter().parse(template)
    )


@cache
def _by_name(package: str) -> dict[tuple[str, str], FindingText]:
    toml = files(package).joinpath(TABLE).read_text(encoding="utf-8")
    return {(text.id, text.case): text for text in read_texts(toml)}
