"""Alerts and board: judged by promtool, and each of their queries names a metric and labels that `/metrics` has."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from steadyworker.depth import Depth
from steadyworker.events import Adopted, DeliveryRejected, JobEnded, JobSettled
from steadyworker.telemetry.gauges import QueueReading
from steadyworker.telemetry.metrics import open_metrics
from tests.brokers.install import MissingError
from tests.deploy.judges.environment import missing, program

pytestmark = pytest.mark.processes

MONITORING = Path(__file__).parents[2] / "deploy/kubernetes/components/monitoring"
RULES = (MONITORING / "alerts.yaml", MONITORING.parents[1] / "overlays/monitoring/absent.yaml")
CASES = Path(__file__).with_name("alerts.test.yaml")
OF_THE_SCRAPE = {"namespace", "pod", "container", "job", "instance"}


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for path in RULES
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["groups"]
        for rule in group["rules"]
    ]


def queries() -> Iterator[tuple[str, str]]:
    """Every query, with the alert or panel that it is for."""
    yield from ((rule["alert"], rule["expr"]) for rule in rules())
    for panel in json.loads((MONITORING / "board.json").read_text(encoding="utf-8"))["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])


def served() -> dict[str, set[str]]:
    """The labels of each metric that a worker process serves, by the metric's name in queries."""
    metrics = open_metrics()
    assert metrics is not None
    everywhere: dict[str, Any] = {"key": "k", "queue": "q", "fence": 1, "at": 0.0}
    reading = QueueReading(
        *("q", 1, 1, 1),
        connected=True,
        blocked=False,
        ledger_up=True,
        oldest=1.0,
        time_limit=1.0,
        losses={"reset": 1},
        depth=Depth(1, 1, 1.0, 1, 1, 1, 1.0),
    )
    metrics.watch(["q"], lambda: [reading], lambda: {"alive": True, "ready": True}, lambda: 4096)
    counters: dict[str, Any] = {"attempts": 0, "crashes": 0, "losses": 0, "interruptions": 0}
    metrics(Adopted(**everywhere))
    metrics(DeliveryRejected(**everywhere, reason="no-key: …"))
    metrics(
        JobSettled(
            **everywhere, **counters, settlement="ack", outcome="done", reason="", settled="confirmed", seconds=1.0
        )
    )
    metrics(JobEnded(**everywhere, outcome="done", reason="", seconds=1.0))
    metrics.ledger_call("claim", 0.1, failed=False)
    return {
        sample.name: {*sample.labels}
        for family in text_string_to_metric_families(metrics.page("")[1].decode())
        for sample in family.samples
    }


def unknown(query: str, known: dict[str, set[str]]) -> list[str]:
    """The metrics and labels of the query that no worker process serves."""
    names = re.findall(r"\bsteadyworker_\w+", query)
    found = [name for name in names if name not in known]
    labels = OF_THE_SCRAPE.union(*(known.get(name, set()) for name in names))
    used = [label for group in re.findall(r"\bby \(([^)]*)\)", query) for label in re.split(r",\s*", group)]
    for name, matchers in re.findall(r"\b(steadyworker_\w+)\{([^}]*)\}", query):
        of_this = known.get(name, set()) | OF_THE_SCRAPE
        found += [label for label in re.findall(r"(\w+)\s*[=!]", matchers) if label not in of_this]
    return found + [label for label in used if label not in labels]


def test_each_query_names_metrics_and_labels_that_are_served() -> None:
    known = served()
    wrong = {title: found for title, query in queries() if (found := unknown(query, known))}
    assert wrong == {}
    assert all("steadyworker_" in query for _, query in queries())


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("steadyworker_job_stuck == 0", ["steadyworker_job_stuck"]),
        ('steadyworker_slots{que="q"}', ["que"]),
        ("sum by (queue, cause) (rate(steadyworker_dead_letters_total[5m]))", ["cause"]),
        ("rate(steadyworker_dead_letters[5m])", ["steadyworker_dead_letters"]),
    ],
)
def test_a_query_of_what_is_not_served_is_found(query: str, found: list[str]) -> None:
    assert unknown(query, served()) == found


def test_every_metric_is_on_the_board_or_in_an_alert() -> None:
    asked = " ".join(query for _, query in queries())
    named = {re.sub(r"_(bucket|count|sum)$", "", name) for name in served() if not name.endswith("_created")}
    # `ready` is for people who look at one process: while a process stops, which can take hours, it is not ready.
    assert {name for name in named if name not in asked} == {"steadyworker_ready"}


# --- promtool -------------------------------------------------------------------------------------------------------


def promtool(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        command = program("promtool", "prometheus")
    except MissingError as error:
        missing(error)
    return subprocess.run([command, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def filled(text: str, labels: dict[str, str]) -> str:
    """The text of an annotation with an alert's labels."""
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the rules as Prometheus reads them, and their cases."""
    text = yaml.safe_dump({"groups": [{"name": "steadyworker", "rules": rules()}]})
    (tmp_path / "rules.yaml").write_text(text, encoding="utf-8")
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    annotations = {rule["alert"]: rule["annotations"] for rule in rules()}
    for case in cases["tests"]:
        for expected in case["alert_rule_test"]:
            for alert in expected.get("exp_alerts", []):
                # promtool compares the annotations, too; what they say is filled in with the alert's own labels.
                alert["exp_annotations"] = {
                    name: filled(text, alert["exp_labels"]) for name, text in annotations[expected["alertname"]].items()
                }
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_prometheus_accepts_the_rules(folder: Path) -> None:
    done = promtool(folder, "check", "rules", "--lint-fatal", "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def expressions(folder: Path, found: list[str]) -> subprocess.CompletedProcess[str]:
    """Let Prometheus read these queries, with a value for each of Grafana's variables."""
    values = {"$__rate_interval": "1m", "$__range": "6h", "$queue": ".*"}
    plain = [re.sub(r"\$\w+", lambda name: values[name[0]], each) for each in found]
    recorded = [{"record": f"query_{number}", "expr": each} for number, each in enumerate(plain)]
    text = yaml.safe_dump({"groups": [{"name": "board", "rules": recorded}]})
    (folder / "board.yaml").write_text(text, encoding="utf-8")
    return promtool(folder, "check", "rules", "board.yaml")


@pytest.mark.slow
def test_prometheus_reads_every_query_of_the_board(folder: Path) -> None:
    found = [query for _, query in queries()]
    done = expressions(folder, found)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(found)} rules found" in done.stdout
    planted = expressions(folder, [*found, 'sum by (queue (steadyworker_slots{queue=~"$queue"})'])
    assert (planted.returncode, "could not parse expression" in planted.stderr) == (1, True)


@pytest.mark.slow
def test_each_alert_fires_when_it_should_and_is_silent_otherwise(folder: Path) -> None:
    done = promtool(folder, "test", "rules", "cases.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    tried = [each for case in cases for each in case["alert_rule_test"]]
    named = {rule["alert"] for rule in rules()}
    assert {each["alertname"] for each in tried if each.get("exp_alerts")} == named, "each fires in a case"
    assert {each["alertname"] for each in tried if not each.get("exp_alerts")} == named, "and is silent in another"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("steadyworker_alive == 0", "steadyworker_alive == 1"),
        ('reason!="cancelled"}[15m]', 'reason!="cancelled"}[45m]'),
        ('{reason!="cancelled"}', ""),
        ("for: 5m", "for: 2m"),
        ("> 0.8 * steadyworker_job_time_limit_seconds", "> 0.5 * steadyworker_job_time_limit_seconds"),
    ],
)
def test_promtool_finds_a_planted_fault(folder: Path, before: str, after: str) -> None:
    file = folder / "rules.yaml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    done = promtool(folder, "test", "rules", "cases.yaml")
    assert done.returncode == 1
    assert "FAILED" in done.stderr
