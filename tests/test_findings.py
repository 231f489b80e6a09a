"""
Each finding has one home for its texts: the `findings.toml` of the package that reports it.

`check-texts.txt` shows all of them as `check` prints them, for a reader; `python -m tests.test_findings` writes it again.
"""

from __future__ import annotations

import ast
import string
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import pytest

from steadyworker.errors import Finding
from steadyworker.findings import TABLE, FindingText, FindingTexts, general, read_texts

ROOT = Path(__file__).parents[1]
TEXTS = Path(__file__).with_name("check-texts.txt")
TABLES = {path.parent.name: path for folder in ("steadyworker", "adapters") for path in (ROOT / folder).rglob(TABLE)}

VALUES: dict[str, object] = {
    "ahead": "db-2.example:5432",
    "apart": 12.0,
    "attribute": "time_limit",
    "behind": "db-1.example:5432",
    "consumers": "3 consumers",
    "enough": 62.0,
    "error": "Expected a file of SQLite, got something else.",
    "expected": "a whole number of at least 1",
    "file": "the ledger",
    "folder": "/var/lib/steadyworker",
    "former": "old-cluster/vhost",
    "free": 12,
    "fsync": "on",
    "hours": 5.25,
    "identity": "broker-1.example:61613",
    "jobs": "2 jobs",
    "kills_after": 30.0,
    "kind": "nfs4",
    "least": 64,
    "limit": "1 GiB",
    "listed": 2,
    "loss": "another file has its place",
    "meant": "concurrency",
    "name": "concurency",
    "namespace": "broker-2.example:61613,broker-3.example:61613",
    "other": "--broker-file",
    "otherwise": "; if it is another broker, set --namespace 'broker-1.example:61613'",
    "owner": 1001,
    "path": "/var/lib/steadyworker/broker.db",
    "platform": "darwin",
    "problem": "Expected a namespace of at most 200 characters, got one of 300.",
    "queue": "exports",
    "reason": "the management API does not respond",
    "remedy": "restart the workers, so that they open the new file.",
    "rights": 0o664,
    "scheme": "sqlite",
    "setting": "--broker",
    "slots": "2 GiB",
    "stop_within": 60.0,
    "synchronous": "off",
    "unit": "steadyworker@1.service",
    "url": "postgresql://joe@db.example/jobs",
    "user": 1000,
    "value": "'ten'",
    "worker": "exports:PaymentExports",
}
"""A real value for each field that the templates have."""


class Call(NamedTuple):
    """A place of the code that makes a finding."""

    place: str
    package: str
    names: tuple[str, ...]
    """All ids and cases that stand in the call, because a call can choose between two."""
    values: frozenset[str]
    level: bool
    fixed: bool
    """Whether each value is named in the call."""


def fields(text: FindingText) -> frozenset[str]:
    parsed = [part for template in (text.what, text.remedy) for part in string.Formatter().parse(template)]
    return frozenset(name for _, name, _, _ in parsed if name is not None)


def texts(package: str) -> list[FindingText]:
    return list(read_texts(TABLES[package].read_text(encoding="utf-8")))


def calls() -> Iterator[Call]:
    for folder in ("steadyworker", "adapters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            makers = {
                ast.unparse(node.targets[0]): ast.literal_eval(node.value.args[0]).rpartition(".")[2]
                for node in tree.body
                if isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and ast.unparse(node.value.func) == "FindingTexts"
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and (package := makers.get(ast.unparse(node.func))) is not None:
                    constants = [
                        part.value for each in node.args for part in ast.walk(each) if isinstance(part, ast.Constant)
                    ]
                    given = {word.arg for word in node.keywords}
                    yield Call(
                        f"{path.relative_to(ROOT)}:{node.lineno}",
                        package,
                        tuple(value for value in constants if isinstance(value, str)),
                        frozenset(name for name in given - {"level", "loses"} if name is not None),
                        "level" in given,
                        None not in given,
                    )


CALLS = list(calls())


def meant(call: Call) -> list[FindingText]:
    """The texts that a call can mean: those with its ids, and with its cases if it names any."""
    known = texts(call.package)
    cases = {text.case for text in known} & set(call.names)
    return [text for text in known if text.id in call.names and (text.case in cases if cases else not text.case)]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.place)
def test_each_call_gives_its_template_the_values(call: Call) -> None:
    assert call.fixed, "name each value in the call, so that this test can compare them"
    found = meant(call)
    assert found, f"{call.package} has no text for {call.names}"
    for text in found:
        assert call.values == fields(text), text.id
        assert call.level != (text.level is not None), f"{text.id}: the level stands in the table or in the call"


@pytest.mark.parametrize("package", TABLES)
def test_each_text_is_used_and_complete(package: str) -> None:
    used = {(text.id, text.case) for call in CALLS if call.package == package for text in meant(call)}
    first: dict[str, FindingText] = {}
    names = set()
    for text in texts(package):
        assert (text.id, text.case) not in names, f"{text.id} stands twice: give one of them a case"
        names.add((text.id, text.case))
        if text.what or text.remedy:
            assert (text.id, text.case) in used, f"no code reports {text.id} {text.case}"
            assert text.what, text.id
            assert text.remedy, text.id
        assert text.title or general(text.what) != f"<{text.what[1:-1]}>", f"{text.id} needs a title"
        assert first.setdefault(text.id, text).why, f"{text.id} has no why"


def test_explain_finds_each_table() -> None:
    assert {point.value.rpartition(".")[2] for point in entry_points(group="steadyworker.findings")} == TABLES.keys()


def test_a_finding_without_its_value_is_an_error() -> None:
    finding = FindingTexts("steadyworker_sqlite")
    with pytest.raises(KeyError, match="queue"):
        finding("embedded.missing-queue", path="broker.db")
    with pytest.raises(KeyError):
        finding("embedded.no-such-id")


def test_a_value_with_braces_stays_as_it_is() -> None:
    found = FindingTexts("steadyworker_sqlite")("embedded.missing-queue", path="{0}", queue="{queue}")
    assert found.what == "Expected the queue '{queue}' in {0}, got none."


def rendered() -> str:
    """Return all texts as `check` prints them, with the values above."""
    lines = ["The texts of `steadyworker check`, with example values.", ""]
    for package in sorted(TABLES):
        for text in texts(package):
            if text.what:
                values = {name: VALUES[name] for name in fields(text)}
                finding = Finding(
                    text.level or "warning", text.what.format(**values), text.remedy.format(**values), id=text.id
                )
                lines += [
                    f"{text.id}{text.case and ' (' + text.case + ')'}  {text.level or 'any level'}",
                    f"  {finding.what}",
                    f"  → {finding.remedy}",
                ]
    return "\n".join(lines) + "\n"


def test_the_file_for_readers_has_each_text() -> None:
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for package in TABLES:
        for text in texts(package):
            for name in fields(text) - VALUES.keys():
                missing[name].append(text.id)
    assert not missing, "give each field a real value in VALUES"
    assert TEXTS.read_text(encoding="utf-8") == rendered(), "run `python -m tests.test_findings`"


if __name__ == "__main__":
    TEXTS.write_text(rendered(), encoding="utf-8")
