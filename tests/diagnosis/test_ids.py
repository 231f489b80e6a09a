"""
The code names the entries of the catalogue by literal ids; here the two are compared.

Adapters import nothing of the catalogue, so nothing but this test tells a misspelt id from a right one.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from steadyworker.diagnosis.catalogue import Entry, find
from steadyworker.diagnosis.remedies import Remedies
from steadyworker.errors import ConfigError, Finding, LedgerUnavailable
from tests.diagnosis.explaining import catalogue

pytestmark = pytest.mark.xdist_group("ids")  # one process reads the code, and not each

ROOT = Path(__file__).parents[2]
CATALOGUE = catalogue()
FAMILIES = {entry.family for entry in CATALOGUE.values()} | {"steadyworker"}
ID = re.compile(r"[a-z0-9]+\.[a-z0-9]+(-[a-z0-9]+)*")
EVENT = re.compile("[a-z_]+")
NO_IDS = frozenset(
    {
        *("config.options", "config.resolve"),  # modules
        *("steadyworker.commands", "steadyworker.remedies", "steadyworker.services"),  # groups of entry points
        "steadyworker.outcome",  # an attribute of spans
        "java.version",  # a property of the JVM
        *("steadyworker.adapters", "steadyworker.deploy", "steadyworker.link", "steadyworker.toml"),
        *("steadyworker.spark", "steadyworker.job", "steadyworker.replies", "activemq.management"),
        *("spark.conf", "spark.jars", "spark.master", "spark.properties", "spark.speculation"),  # Spark's own settings
    }
)
REJECTED = ("key-conflict", "no-key", "bad-header", "bad-payload", "unshown")
"""The reasons of `delivery_rejected`, which are the names of their entries."""

ORDINARY = {"part_recovered", "check_warning", "thread_failed", "exception_ignored"}
"""Warnings that name no entry by a literal: the end of a problem; a finding, which has its own id; what Python reports."""


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for folder in ("steadyworker", "adapters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "diagnosis" not in path.parts and "testing" not in path.parts:
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def names_of_packages(tree: ast.Module) -> set[int]:
    """The literals that name a logger, or the package of a table of findings."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [call for call in calls if ast.unparse(call.func).endswith(("get_logger", "getLogger", "FindingTexts"))]
    return {id(argument) for call in named for argument in call.args}


@cache
def used() -> dict[str, list[str]]:
    """Every literal id, with the places where it stands."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in sources():
        loggers = names_of_packages(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in loggers:
                continue
            if ID.fullmatch(node.value) and node.value.partition(".")[0] in FAMILIES and node.value not in NO_IDS:
                found[node.value].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    for reason in REJECTED:
        found[f"steadyworker.{reason}"].append("steadyworker/runner/deliveries.py")
    return found


def test_each_id_of_the_code_is_in_the_catalogue() -> None:
    assert len(used()) > 200
    assert {id_: places for id_, places in used().items() if id_ not in CATALOGUE} == {}


def test_each_finding_of_the_catalogue_is_used() -> None:
    ours = {id_ for id_, entry in CATALOGUE.items() if entry.speaks_for_itself}
    assert len(ours) > 180
    assert ours - used().keys() == set()


def test_each_entry_of_the_runtimes_own_lines_is_used_or_has_a_pattern() -> None:
    ours = {id_ for id_, entry in CATALOGUE.items() if entry.family == "steadyworker" and not entry.patterns}
    assert ours - used().keys() == set()


@pytest.mark.long
def test_each_finding_in_the_code_has_a_literal_id() -> None:
    """An id that is only computed could be of no entry; `tests/test_findings.py` judges the findings of a table."""
    bare = []
    for path, tree in sources():
        if path == ROOT / "steadyworker/findings.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                given = next((word.value for word in node.keywords if word.arg == "id"), None)
                literals = [each.value for each in ast.walk(given or node) if isinstance(each, ast.Constant)]
                if given is None or not any(each in CATALOGUE for each in literals):
                    bare.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert bare == []


@pytest.mark.long
def test_each_warning_and_error_in_the_code_names_an_entry() -> None:
    bare = []
    for path, tree in sources():
        if path.is_relative_to(ROOT / "adapters"):
            continue  # an adapter logs nothing, but in a producer's process
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            text = ast.unparse(function)
            for node in ast.walk(function):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                    continue
                event = node.args[0]
                logs = node.func.attr in ("warning", "error", "exception", "critical")
                if (
                    logs
                    and isinstance(event, ast.Constant)
                    and isinstance(event.value, str)
                    and EVENT.fullmatch(event.value)
                ):
                    names = re.search("explain|fields_of", text) or "_ENTRY" in text
                    if not names and event.value not in ORDINARY:
                        bare.append(f"{path.relative_to(ROOT)}:{node.lineno} {event.value!r}")
    assert bare == []


# --- What the log makes of it -----------------------------------------------------------------------------------------


def test_a_line_gets_the_first_remedy_of_its_entry() -> None:
    entry = CATALOGUE["steadyworker.fenced"]
    assert Remedies()({"explain": "steadyworker.fenced", "queue": "exports"}) == entry.remedies[0]


def test_a_remedy_is_filled_with_the_fields_of_the_line() -> None:
    remedy = Remedies()({"explain": "steadyworker.dead-letter", "queue": "exports", "key": "rosa"})
    assert "steadyworker dead replay exports" in remedy


def test_no_remedy_asks_for_what_a_worker_process_does_by_itself() -> None:
    entry = CATALOGUE["amqp.connection-forced"]
    assert entry.remedies[0].startswith("Reconnect")
    assert Remedies()({"explain": entry.id}) == entry.worker


@pytest.mark.parametrize(
    "line",
    [
        {"explain": "rabbitmq.auto-delete-queue", "what": "…", "remedy": "…"},  # it has its remedy
        {"explain": "network.connection-refused", "error": "…"},  # and so has the text of an adapter's error
        {"explain": "no.entry"},
        {"explain": 5},
        {"explain": "steadyworker.fenced", "why": f"so: {CATALOGUE['steadyworker.fenced'].remedies[0]}!"},
    ],
)
def test_a_line_gets_no_remedy_that_it_has_or_that_there_is_not(line: dict[str, object]) -> None:
    assert Remedies()(line) == ""


def test_a_broken_catalogue_costs_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_id: str) -> Entry | None:
        raise ConfigError("broken")

    monkeypatch.setattr("steadyworker.diagnosis.remedies.find", broken)
    assert Remedies()({"explain": "steadyworker.fenced"}) == ""


def test_one_entry_is_found_without_the_others() -> None:
    assert find("rabbitmq.auto-delete-queue") == CATALOGUE["rabbitmq.auto-delete-queue"]
    assert find("no.entry") is None


# --- Errors carry their ids -------------------------------------------------------------------------------------------


def test_a_configuration_error_has_the_id_of_its_first_finding() -> None:
    finding = Finding("error", "what", "remedy", id="config.wrong-value")
    assert ConfigError("text", [finding]).id == "config.wrong-value"
    assert ConfigError("text").id == ""
    assert ConfigError("text", id="config.worker").id == "config.worker"


def test_a_kind_of_error_can_have_an_id_of_its_own() -> None:
    assert LedgerUnavailable("text").id == "ledger.unreachable"
    assert LedgerUnavailable("text", id="ledger.locked").id == "ledger.locked"
