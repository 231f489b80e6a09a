"""The sections on containers and Kubernetes: their commands are typed, and print what the page shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.brokers.install import MissingError
from tests.deploy.containers import BASE, ROOT, Engine
from tests.deploy.judges.environment import kubectl, missing
from tests.deploy.test_alerts import served
from tests.examples.conftest import Terminal, desk, terminal
from tests.examples.pages import Command, Page, difference

pytestmark = pytest.mark.processes

__all__ = ["desk", "terminal"]

DEPLOY = Page("deploy/README.md")

NOT_TYPED = {
    "kubectl create ": "the tests have no cluster",
    "kubectl apply ": "the tests have no cluster",
    "kubectl rollout ": "the tests have no cluster",
    "docker compose ": "the tests have no registry of images; test_container.py judges the file, and runs its worker",
}
"""Commands that no test here types, by their beginning, and why; the page has this, too."""


def commands(heading: str) -> list[Command]:
    found = DEPLOY.commands(lambda under: under == heading)
    return [command for command in found if not command.text.startswith(tuple(NOT_TYPED))]


def wrong(typed: list[Command], outputs: list[str]) -> str:
    pairs = zip(typed, outputs, strict=True)
    return "\n\n".join(
        f"$ {command.text}\n{found}" for command, output in pairs if (found := difference(command.shown, output))
    )


def test_every_command_is_typed_or_the_page_has_the_reason_why_not() -> None:
    found = [command.text for heading in ("Containers", "Kubernetes") for command in DEPLOY.commands(heading.__eq__)]
    assert all(any(text.startswith(each) for text in found) for each in NOT_TYPED)
    assert "The tests have no cluster" in DEPLOY.section("Kubernetes")
    assert "they have no registry" in DEPLOY.section("Containers")


@pytest.mark.slow
def test_the_page_leads_from_a_worker_to_manifests(desk: Path, terminal: Terminal) -> None:
    try:
        program = kubectl()
    except MissingError as error:
        missing(error)
    (desk / "bin").mkdir(exist_ok=True)
    (desk / "bin/kubectl").symlink_to(program)
    (desk / "exports.py").write_text(Page("README.md").files()["exports.py"], encoding="utf-8")
    typed = commands("Kubernetes")
    assert len(typed) == 5
    assert not (found := wrong(typed, terminal([command.text for command in typed]))), found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_page_leads_from_a_clone_to_an_image(desk: Path, terminal: Terminal) -> None:
    try:
        engine = Engine()
    except MissingError as error:
        missing(error)
    for name in ("deploy/container", "steadyworker", "adapters"):
        shutil.copytree(ROOT / name, desk / name, ignore=shutil.ignore_patterns("__pycache__", "secrets"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, desk)
    (desk / "app").mkdir()
    (desk / "app/exports.py").write_text(Page("README.md").files()["exports.py"], encoding="utf-8")
    run = shlex.join(engine.command("IMAGE", [])).split(" --read-only ")[0].removesuffix(" IMAGE")
    build = shlex.join(engine.building(f"BASE={BASE}"))
    program = (
        f'#!/bin/sh\nverb=$1; shift\ncase $verb in\n  build) exec {build} "$@";;\n  run) exec {run} "$@";;\nesac\n'
    )
    (desk / "bin/podman").write_text(program)
    (desk / "bin/podman").chmod(0o755)
    typed = commands("Containers")
    assert [command.text.split()[0] for command in typed] == ["podman"] * 3 + ["deploy/container/secrets.sh"]
    assert not (found := wrong(typed, terminal([command.text for command in typed]))), found


def test_the_metrics_of_the_page_are_those_that_are_served() -> None:
    rows = re.findall(r"^\| (`steadyworker_.*?) \|", DEPLOY.section("Metrics"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    known = {re.sub(r"_(bucket|count|sum)$", "", name) for name in served() if not name.endswith("_created")}
    assert named == known - {"steadyworker_info"}
