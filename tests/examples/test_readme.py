"""README: its programs are written into one folder, its commands run there in order, its proofs exist."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from steadyworker import config
from tests.brokers.rabbitmq import Vhost
from tests.examples.conftest import ROOT, Shell

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [(match[1], match[2]) for match in re.finditer(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)]
PROOF = re.compile(r"\[`(\w+\.py)::(\w+)`\]\(([\w/.]+)\)")


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def on_rabbitmq() -> list[str]:
    """What is typed once the extras are installed."""
    return section("RabbitMQ").split("```console\n")[1].split("```")[0].splitlines()[1:]


@pytest.mark.timeout(400)
def test_every_program_and_every_command_runs(tmp_path: Path, shell: Shell) -> None:
    """Programs are named by their first line; commands run in the order in which a reader would type them."""
    for text in blocks("python"):
        name = re.match(r"# (\w+\.py)\n", text)
        assert name is not None, f"a program without a name:\n{text}"
        (tmp_path / name[1]).write_text(text)
    said = "".join(shell(text) for text in blocks("sh"))
    shell("python -c 'import recipes'")
    assert said.count("wrong: replayed as wrong, round 1") == 1
    assert "$.merchant: expected str, got int" in said
    assert sorted(path.name for path in (tmp_path / "out/harbour-books-march").iterdir())[:2] == ["0.csv", "1.csv"]
    assert (tmp_path / "out/numbers.csv").read_text().startswith("id,cents\n0,0\n")


@pytest.mark.timeout(300)
def test_the_same_worker_runs_on_rabbitmq_and_postgresql(
    tmp_path: Path, shell: Shell, vhost: Vhost, database: str
) -> None:
    """The commands of the section, with the URLs of brokers that are there."""
    program = next(text for text in blocks("python") if text.startswith("# exports.py\n"))
    (tmp_path / "exports.py").write_text(program)
    (tmp_path / "broker.url").write_text(f"{vhost.url}\n")
    (tmp_path / "ledger.url").write_text(f"{database}\n")
    said = shell("\n".join([*on_rabbitmq(), "steadyworker jobs --json"]))
    assert said.count('"key":"harbour-books-may","round":0,"state":"done"') == 1
    assert len(list((tmp_path / "out/harbour-books-may").iterdir())) == 10


def test_other_kinds_of_blocks_are_few(tmp_path: Path) -> None:
    """What the others do not run: the unit for systemd, and `console` commands that .ci/run, test_packaging and RabbitMQ's test run."""
    assert {language for language, _ in BLOCKS} == {"python", "sh", "toml", "ini", "console"}
    commands = [line.split("#")[0].strip() for text in blocks("console") for line in text.splitlines()]
    assert commands[:3] == ["make demo", "pip install .", "pip install '.[rabbitmq,postgres]'"]
    assert commands[3:] == on_rabbitmq()
    assert "make demo" in (ROOT / ".ci/run").read_text()


def test_the_settings_are_settings(tmp_path: Path) -> None:
    (tmp_path / "steadyworker.toml").write_text(*blocks("toml"))
    options = config.load({}, os.environ, tmp_path)
    assert (options.stop_within, options.health) == (60, "127.0.0.1:8080")
    assert options.workers["PaymentExports"]["time_limit"] == 6 * 3600


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("proof", PROOF.findall(README), ids=lambda proof: proof[1])
def test_each_proof_is_a_test(proof: tuple[str, str, str]) -> None:
    file, test, path = proof
    assert Path(path).name == file
    assert re.search(rf"^ *def {test}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path} has no {test}"


def test_every_promise_has_its_proof() -> None:
    """A sentence of the guarantees ends with a colon and its proofs, or begins what is given, or follows from a proof."""
    text = section("Guarantees")
    promises = re.findall(r"^\d\. .*|^   [A-Z].*", text, re.MULTILINE)
    assert len(promises) == 7
    for promise in promises:
        assert promise.endswith(":"), promise
        following = text.split(promise)[1].lstrip("\n")
        assert PROOF.match(following.strip()), promise
