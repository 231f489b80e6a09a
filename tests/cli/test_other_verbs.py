"""Packages of third parties add verbs, as `exports` and `diagnosis` do."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from steadyworker.cli import verbs
from steadyworker.cli.other_verbs import GROUP
from steadyworker.config.services import GROUP as SERVICES
from tests.cli.kit import APP
from tests.support.distributions import distribution

MODULES = ("third_party_verb", "third_party_command", "third_party_broken")
VERB = """
from steadyworker.cli.other_verbs import Verb
VERB = Verb("Greet people.", "third_party_command")
"""
COMMAND = """
import click

@click.command("greet")
def command():
    click.echo("Hello.")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


def test_a_verb_of_a_third_party_is_listed_and_its_command_is_imported_at_its_call(site: Path) -> None:
    distribution(site, "third_party_verb", GROUP, {"greet": "third_party_verb:VERB"}, VERB)
    (site / "third_party_command.py").write_text(COMMAND)

    listed = CliRunner().invoke(verbs, ["--help"])
    assert re.search(r"^  greet +Greet people\.$", listed.output, re.MULTILINE)
    assert "third_party_command" not in sys.modules

    called = CliRunner().invoke(verbs, ["greet"])
    assert (called.exit_code, called.output) == (0, "Hello.\n")
    assert "did you mean greet?" in CliRunner().invoke(verbs, ["great"]).stderr


def test_a_verb_of_ours_cannot_be_replaced(site: Path) -> None:
    distribution(site, "third_party_verb", GROUP, {"run": "third_party_verb:VERB"}, VERB)
    listed = CliRunner().invoke(verbs, ["--help"])
    assert len(re.findall(r"^  run\b", listed.output, re.MULTILINE)) == 1
    assert "Greet" not in listed.output
    assert "Greet" not in CliRunner().invoke(verbs, ["run", "--help"]).output


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("VERB = 'greet'", "str instead of a steadyworker.cli.other_verbs.Verb"),
    ],
)
def test_a_broken_verb_is_named_and_the_help_lists_the_others(site: Path, source: str, got: str) -> None:
    distribution(site, "third_party_broken", GROUP, {"greet": "third_party_broken:VERB"}, source)

    listed = CliRunner().invoke(verbs, ["--help"])
    assert listed.exit_code == 0
    assert re.search(r"^  greet +Expected third_party_broken:VERB", listed.output, re.MULTILINE)
    assert re.search(r"^  verify\b", listed.output, re.MULTILINE)

    called = CliRunner().invoke(verbs, ["greet"])
    assert called.exit_code == 78
    assert "Expected third_party_broken:VERB (of third_party_broken) to be usable as 'greet'" in called.stderr
    assert got in called.stderr
    assert CliRunner().invoke(verbs, ["verify", "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("command", "got"),
    [("import no_such_library", "ModuleNotFoundError"), ("", "AttributeError"), ("command = 5", "no click.Command")],
)
def test_a_verb_whose_command_is_broken_is_named(site: Path, command: str, got: str) -> None:
    distribution(site, "third_party_verb", GROUP, {"greet": "third_party_verb:VERB"}, VERB)
    (site / "third_party_command.py").write_text(command)
    called = CliRunner().invoke(verbs, ["greet"])
    assert called.exit_code == 78
    assert "Expected third_party_verb:VERB (of third_party_verb) to be usable as 'greet'" in called.stderr
    assert got in called.stderr


def test_two_verbs_of_one_name_are_refused_at_their_call_only(site: Path) -> None:
    for name in ("third_party_verb", "third_party_command"):
        distribution(site, name, GROUP, {"greet": f"{name}:VERB"}, VERB)

    listed = CliRunner().invoke(verbs, ["--help"])
    assert listed.exit_code == 0
    assert re.search(r"^  greet +Expected one entry point 'greet'", listed.output, re.MULTILINE)

    called = CliRunner().invoke(verbs, ["greet"])
    assert called.exit_code == 78
    assert "uninstall one of them" in called.stderr


@pytest.fixture
def broken_service(site: Path) -> None:
    distribution(site, "third_party_broken", SERVICES, {"broken": "third_party_broken"}, "import no_such_library")


@pytest.mark.usefixtures("broken_service")
@pytest.mark.parametrize("verb", ["run", "exec", "check"])
def test_a_broken_service_does_not_stop_the_help(verb: str) -> None:
    listed = CliRunner().invoke(verbs, [verb, "--help"])
    assert listed.exit_code == 0
    assert "--spark-conf" in listed.output


@pytest.mark.usefixtures("broken_service")
def test_a_broken_service_is_a_warning_of_check_and_an_error_if_its_setting_is_given(
    tmp_path: Path,
) -> None:
    (tmp_path / "app_with_exports.py").write_text(APP)  # `site` puts this folder into sys.path
    arguments = ["check", "app_with_exports:Exports", "--state-dir", str(tmp_path / "state"), "--json"]

    checked = CliRunner().invoke(verbs, [*arguments, "--spark-master", "local[2]"])
    assert checked.exit_code == 0, checked.output
    printed = json.loads(checked.stdout)
    assert printed["settings"]["spark_master"] == {"value": "local[2]", "origin": "--spark-master"}
    (warning,) = (each for each in printed["findings"] if each["id"] == "config.entry-point")
    assert warning["level"] == "warning"
    assert "third_party_broken (of third_party_broken)" in warning["what"]

    refused = CliRunner().invoke(verbs, [*arguments, "--broken-voice", "low"])
    assert refused.exit_code == 78
    assert "third_party_broken (of third_party_broken)" in refused.stderr


@pytest.mark.parametrize("verb", ["run", "exec", "check"])
def test_the_help_of_a_verb_lists_the_settings_of_services(verb: str) -> None:
    listed = CliRunner().invoke(verbs, [verb, "--help"])
    assert re.search(r"^  --spark-conf NAME=VALUE,...", listed.output, re.MULTILINE)


def test_a_misspelt_setting_of_a_service_names_the_near_one() -> None:
    called = CliRunner().invoke(verbs, ["run", "app:Exports", "--sparkmaster", "yarn"])
    assert called.exit_code == 64
    assert "--spark-master" in called.stderr
