"""README, and the pages of the folders: their commands are typed in order, and print what the page shows."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.config import resolve as config
from steadyworker.telemetry.event_log import LINES
from steadyworker_rocketmq.grpc import GrpcAdapter
from tests.brokers.fixtures import NEWEST
from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.brokers.rocketmq import RocketMQ5
from tests.brokers.stomp_node import StompNode
from tests.examples.conftest import ROOT, Terminal
from tests.examples.pages import Command, Page, difference

README = Page("README.md")
RABBITMQ = Page("adapters/steadyworker_rabbitmq/README.md")
STOMP = Page("adapters/steadyworker_stomp/README.md")
ROCKETMQ = Page("adapters/steadyworker_rocketmq/README.md")
DEPLOY = Page("deploy/README.md")
LAKE = Page("examples/lake/README.md")
PAGES = [
    README,
    RABBITMQ,
    STOMP,
    ROCKETMQ,
    DEPLOY,
    Page("adapters/steadyworker_sqlite/README.md"),
    Page("examples/README.md"),
    Page("examples/cron/README.md"),
    LAKE,
    Page("examples/programs/README.md"),
    Page("examples/recipes/README.md"),
    Page("examples/diagnosis/README.md"),
    Page("tests/README.md"),
    Page("tests/benchmarks/README.md"),
    Page("tests/drills/README.md"),
    Page("CONTRIBUTING.md"),
]
EMBEDDED = [page for page in PAGES if page not in (RABBITMQ, STOMP, ROCKETMQ, LAKE) and page.commands()]
ON_RABBITMQ = "RabbitMQ in five steps"
ELSEWHERE = ("Containers", "Kubernetes")  # tests/deploy/test_pages.py types what is under these
ON_SYSTEMD = "systemd"  # tests/deploy/test_under_systemd.py types what is under it, on a machine that has systemd

NOT_TYPED = {
    "python3 -m venv ": "test_install.py types it; an environment takes a minute",
    "pip install ": "test_install.py types it, too",
    "steadyworker top": "tests/dashboard/test_top.py drives it; it needs a terminal",
    "steadyworker dashboard": "tests/dashboard/test_serving.py starts it; it serves until a signal",
    "mkdir ~/first-worker ": "the terminal is in an empty folder of its own",
}
"""Commands that no test here types, by their beginning, and why."""

PROOF = re.compile(r"\[`(\w+\.py)::(\w+)`\]\(([\w/.]+)\)")
Claim = tuple[tuple[str, str, str], ...]


def claims() -> list[Claim]:
    """
    Return the tests of each claim of the page, as PROOF finds them.

    The tests of one claim stand on lines one after the other, each of which but the last ends with a comma.
    """
    found: list[Claim] = []
    open_ = False
    for line in Page("tests/README.md").text.splitlines():
        proofs = tuple(PROOF.findall(line))
        if proofs and open_:
            found[-1] += proofs
        elif proofs:
            found.append(proofs)
        open_ = bool(proofs) and line.endswith(",")
    return found


CLAIMS = claims()


def by_id(page: Page) -> str:
    return str(page.path.parent.relative_to(ROOT) if page is not README else "README")


def tried(
    page: Page, commands: list[Command], desk: Path, terminal: Terminal, here: Mapping[str, str] | None = None
) -> None:
    """Type a page's commands; `here` has what this machine calls things that the page has other names for."""
    for name, text in {**README.files(), **page.files()}.items():
        (desk / name).write_text(text, encoding="utf-8")
    for file in page.path.parent.glob("*.log"):
        shutil.copy(file, desk)
    typed = [command for command in commands if not command.text.startswith(tuple(NOT_TYPED))]
    texts = [command.text for command in typed]
    for shown, real in (here or {}).items():
        assert any(shown in text for text in texts), f"{shown} is no longer typed"
        texts = [text.replace(shown, real) for text in texts]
    wrong = [
        f"$ {command.text}\n{found}"
        for command, output in zip(typed, terminal(texts), strict=True)
        if (found := difference(command.shown, output))
    ]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.processes
@pytest.mark.parametrize("page", EMBEDDED, ids=by_id)
def test_commands_print_what_is_shown(page: Page, desk: Path, terminal: Terminal) -> None:
    tried(page, page.commands(lambda heading: heading not in (ON_RABBITMQ, ON_SYSTEMD, *ELSEWHERE)), desk, terminal)


@pytest.fixture
def at_home(rabbitmq: RabbitMQ, vhost: Vhost, desk: Path) -> Mapping[str, str]:
    """What a page calls guest's default virtual host, and a `rabbitmqctl` that asks the node."""
    if not isinstance(rabbitmq, Node):
        pytest.skip("only a node of ours brings its rabbitmqctl")
    environ = [f"{name}={text}" for name, text in rabbitmq._environment().items()]
    command = ["env", "-i", *environ, *rabbitmq._enter(rabbitmq._program("rabbitmqctl"), "-n", rabbitmq.name)]
    (desk / "bin/rabbitmqctl").write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    (desk / "bin/rabbitmqctl").chmod(0o755)
    return {
        "amqp://guest:guest@localhost": f"{vhost.url}?management={rabbitmq.management_url}",
        " -p / guest ": f" -p {vhost.name} {vhost.user} ",
        " -p / ": f" -p {vhost.name} ",
    }


@pytest.mark.timeout(180)
@pytest.mark.parametrize("rabbitmq_series", [NEWEST], indirect=True)
def test_the_five_steps_on_rabbitmq_print_what_is_shown(
    desk: Path, terminal: Terminal, at_home: Mapping[str, str]
) -> None:
    here = {shown: real for shown, real in at_home.items() if "guest " not in shown}
    tried(README, README.commands(lambda heading: heading == ON_RABBITMQ), desk, terminal, here)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("rabbitmq_series", [NEWEST], indirect=True)
def test_the_page_on_rabbitmq_shows_what_is_printed(
    desk: Path, terminal: Terminal, at_home: Mapping[str, str], database: str
) -> None:
    tried(
        RABBITMQ,
        [*README.commands(lambda heading: heading == ON_RABBITMQ)[:2], *RABBITMQ.commands()],
        desk,
        terminal,
        {**at_home, "postgresql://shop:PASSWORD@ledger-1/shop": database},
    )


@pytest.mark.timeout(180)
def test_the_page_on_activemq_shows_what_is_printed_on_classic_and_on_artemis(
    desk: Path, terminal: Terminal, stomp_node: StompNode
) -> None:
    """Artemis has the address settings of the page; with its own, `check` has a warning."""
    here = {"stomp://shop:PASSWORD@localhost": stomp_node.url}
    here["stomp://shop:no-such-password@localhost"] = stomp_node.url.replace(stomp_node.password, "no-such-password")
    stomp_node.remove_queues("payment-exports")
    with stomp_node.address_settings(*address_settings()) if stomp_node.is_artemis else nullcontext():
        tried(STOMP, STOMP.commands(), desk, terminal, here)
    stomp_node.remove_queues("payment-exports")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("driver", ["grpc", pytest.param("remoting", marks=pytest.mark.slow)])
def test_the_page_on_rocketmq_shows_what_is_printed(
    desk: Path, terminal: Terminal, rocketmq5: RocketMQ5, driver: str
) -> None:
    """With both drivers: only the URL differs."""
    url = rocketmq5.url if driver == "grpc" else rocketmq5.remoting_url
    rocketmq5.remove("payment-exports")
    tried(
        ROCKETMQ, ROCKETMQ.commands(), desk, terminal, {"rocketmq+grpc://shop:SECRET@localhost?namesrv=localhost": url}
    )
    rocketmq5.remove("payment-exports")


@pytest.mark.slow
def test_the_lines_of_mqadmin_on_the_page_make_all_that_a_worker_needs(rocketmq5: RocketMQ5) -> None:
    """Each takes 4 s; `check` then finds nothing, also where the worker must not make anything."""
    rocketmq5.remove("payment-exports")
    (block,) = [block for block in ROCKETMQ.blocks if "mqadmin updateTopic" in block.text]
    for line in block.text.splitlines():
        assert "success" in rocketmq5.mqadmin(line.replace("localhost:9876", str(rocketmq5.name_servers[0])))
    spec = QueueSpec("payment-exports", "payment-exports.dead")
    adapter = GrpcAdapter(rocketmq5.url, spec, Settings(topology="verify"))
    try:
        assert [finding for finding in adapter.findings(spec) if finding.level != "note"] == []
    finally:
        adapter.stop(5)
        rocketmq5.remove("payment-exports")


def address_settings() -> tuple[str, dict[str, object]]:
    """The address that the page's lines of broker.xml are for, and the settings, as Artemis's management names them."""
    (lines,) = re.findall(r"<address-setting .*?</address-setting>", STOMP.text, re.DOTALL)
    element = ET.fromstring(lines)
    settings: dict[str, object] = {}
    for child in element:
        first, *more = child.tag.split("-")
        text = str(child.text)
        settings[first + "".join(map(str.capitalize, more))] = int(text) if text.lstrip("-").isdecimal() else text
    return element.attrib["match"], settings


# --- What no command shows --------------------------------------------------------------------------------------------


def test_readme_is_short() -> None:
    assert len(README.text.splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES, ids=by_id)
def test_every_link_leads_somewhere(page: Page) -> None:
    assert [str(path) for path in page.links() if not path.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=by_id)
def test_every_target_of_make_is_one(page: Page) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    code = "\n".join(page.code())
    for shown in filter(None, (command.shown for command in page.commands())):
        code = code.replace(shown, "\n")  # a program's text may have the word
    assert set(re.findall(r"\bmake ([a-z-]+)(?=[` \n])", code)) <= targets


@pytest.mark.parametrize("page", PAGES, ids=by_id)
def test_every_kind_of_block_is_looked_at(page: Page) -> None:
    """A `text` block is a picture, and the unit for systemd is nothing that can be run without systemd."""
    for block in page.blocks:
        assert block.language in {"console", "text", "ini"} or block.file is not None, block.text


def test_no_page_is_forgotten() -> None:
    folders = ("adapters", "deploy", "examples", "tests")
    found = {path for folder in folders for path in (ROOT / folder).rglob("*.md")}
    assert found <= {page.path for page in PAGES}


def test_the_settings_are_settings(tmp_path: Path) -> None:
    (tmp_path / "steadyworker.toml").write_text(DEPLOY.files()["steadyworker.toml"])
    options = config.load({}, {"HOME": str(tmp_path)}, tmp_path)
    assert (options.stop_within, options.log_level) == (60, "info")
    assert options.workers["PaymentExports"]["time_limit"] == 6 * 3600


def test_the_events_of_the_log_are_events() -> None:
    named = re.findall(r"^\| `(\w+)` \| (\w+)", DEPLOY.section("Logging"), re.MULTILINE)
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "steadyworker" / "runner").glob("*.py"))
    of_runner = {name: level for level, name in re.findall(r"\.(info|warning|error)\(\s*\"(\w+)\"", code)}
    of_log = {"log_lines_lost": "warning"}  # tests/service/test_log_nobody_reads.py
    levels = of_runner | of_log | {name: logging.getLevelName(level).lower() for name, level in LINES.values()}
    assert len(named) == 17
    assert {name: level for name, level in named if levels.get(name) != level} == {}


@pytest.mark.parametrize("proof", PROOF.findall(Page("tests/README.md").text), ids=lambda proof: proof[1])
def test_each_proof_is_a_test(proof: tuple[str, str, str]) -> None:
    file, test, path = proof
    assert Path(path).name == file
    assert re.search(rf"^ *def {test}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE), f"{path} has no {test}"


@pytest.fixture(scope="module")
def of_make_test() -> set[tuple[str, str]]:
    """File and name of each named test of which `make test` runs at least one case; pytest itself judges the marks."""
    named = sorted({path for claim in CLAIMS for _, _, path in claim})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not slow", *named]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=True)
    return set(re.findall(r"^(?:tests/)?([\w/]+\.py)::(?:\w+::)*(\w+)", done.stdout, re.MULTILINE))


@pytest.mark.processes
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim[0][1])
def test_each_claim_is_shown_by_make_test(claim: Claim, of_make_test: set[tuple[str, str]]) -> None:
    """A claim that only slow tests show could become false, and `make test` would still pass."""
    assert [test for _, test, path in claim if (path, test) in of_make_test], f"of {claim}, mark one as not slow"


def test_every_guarantee_has_its_proof() -> None:
    """A sentence of the guarantees ends with a colon and its proofs, or begins what is given, or follows from a proof."""
    text = Page("tests/README.md").section("Guarantees")
    promises = re.findall(r"^\d\. .*|^   [A-Z].*", text, re.MULTILINE)
    assert len(promises) == 13
    for promise in promises:
        assert promise.endswith(":"), promise
        assert PROOF.match(text.split(promise)[1].strip()), promise


# --- A test that cannot fail is no test -------------------------------------------------------------------------------

SHOWN = """\
2026-11-23T09:00:00.354Z [info     ] job_started [steadyworker] key=march … attempt=1 why=new
…
 QUEUE    STATE   ELAPSED
────────────────────────────
 exports  done        1 s
"""
PRINTED = """\
2027-01-01T00:00:00.001Z [info     ] job_started [steadyworker] key=march queue=exports fence=42 attempt=1 why=new
2027-01-01T00:00:00.001Z [info     ] anything
\x1b[1m QUEUE    STATE   ELAPSED \x1b[0m
─────────────────────────────────
 exports  done        2 s
"""


def test_what_differs_between_two_runs_is_no_difference() -> None:
    assert not difference(SHOWN, PRINTED)
    assert not difference("", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("attempt=1", "attempt=2"),
        ("key=march", "key=may"),
        ("why=new", "why=new more"),
        ("[info     ] job_started", "[warning  ] job_started"),
        (" exports  done        2 s\n", ""),
        (" exports  done        2 s\n", " exports  done        2 s\n exports  dead        2 s\n"),
        (" exports  done ", " exports  dead "),
        ("─────────────────────────────────\n", ""),
    ],
)
def test_every_other_difference_is_one(old: str, new: str) -> None:
    assert old in PRINTED
    assert difference(SHOWN, PRINTED.replace(old, new))
    assert difference("", PRINTED)
