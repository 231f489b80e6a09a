"""Shell completion offers Workers, queues and keys, by the same protocol that the shells use."""

from __future__ import annotations

import socket
import time
from contextlib import closing

import pytest

from tests.cli.kit import Queues, Shell


def completing(*words: str) -> dict[str, str]:
    """The variables with which bash asks for the last of these words."""
    return {
        "_STEADYWORKER_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("steadyworker", *words)),
        "COMP_CWORD": str(len(words)),
    }


def offered(shell: Shell, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    return [line.partition(",")[2] for line in shell(environ=completing(*words)).lines if line]


@pytest.mark.parametrize("verb", ["run", "check", "show", "cancel", "jobs", "queues"])
def test_a_verb_offers_the_workers_of_the_folder(shell: Shell, verb: str) -> None:
    (shell.folder / "broken.py").write_text("class Worker(:")
    assert offered(shell, verb, "app") == ["app:Exports", "app:Raw"]
    assert offered(shell, verb, "app:R") == ["app:Raw"]


def test_queues_and_keys_come_from_the_ledger(shell: Shell, queues: Queues) -> None:
    for key in ("m-17", "m-18", "other"):
        queues.job(key)
    assert offered(shell, "show", "ex") == ["exports"]
    assert offered(shell, "show", "exports", "m-") == ["m-18", "m-17"]
    assert offered(shell, "jobs", "app:Exports", "m-17", "m-18") == ["m-18"]


def test_without_a_ledger_nothing_is_offered_and_no_file_appears(shell: Shell) -> None:
    before = sorted(shell.folder.iterdir())
    assert offered(shell, "show", "exports", "m") == []
    assert [each for each in sorted(shell.folder.iterdir()) if each.name != "__pycache__"] == before


HOSTILE = """
import pathlib, sys, time
pathlib.Path("imported").touch()
print("a print of the module")
print("a print of the module", file=sys.stderr)
from steadyworker import Job, Worker

class Sends(Worker[dict]):
    {queue}
    pattern = "\\d"

time.sleep(30)
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ('queue = "exports"', ["m-17"]),
        ('queue: str = "exports"', ["m-17"]),
        ('queue = "refunds"', []),
        ('queue = "".join(["exp", "orts"])', ["m-17"]),  # unknown without an import: the keys of all queues
    ],
)
def test_no_completion_imports_a_module(shell: Shell, queues: Queues, queue: str, expected: list[str]) -> None:
    queues.job("m-17")
    (shell.folder / "hostile.py").write_text(HOSTILE.format(queue=queue))
    environ = completing("show", "hostile:Sends", "m-")
    done = shell(environ=environ)
    assert (done.code, done.err) == (0, "")
    assert [line.partition(",")[2] for line in done.lines if line] == expected
    assert offered(shell, "run", "hostile") == ["hostile:Sends"]
    assert not (shell.folder / "imported").exists()


def test_a_completion_offers_the_keys_of_the_queue_in_the_settings_file(shell: Shell, queues: Queues) -> None:
    queues.job("m-17")
    (shell.folder / "steadyworker.toml").write_text('[workers.Raw]\nqueue = "exports"\n')
    assert offered(shell, "show", "app:Raw", "m-") == ["m-17"]


def test_a_completion_ends_within_two_seconds_and_offers_what_it_has_found(shell: Shell) -> None:
    """The ledger's server accepts the connection, and then sends nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        ledger = f"postgresql://ann:hunter2@127.0.0.1:{server.getsockname()[1]}/jobs"
        environ = {**completing("show", "app"), "STEADYWORKER_LEDGER": ledger}
        began = time.monotonic()
        done = shell(environ=environ)
        took = time.monotonic() - began
    assert (done.code, done.err) == (0, "")
    assert [line.partition(",")[2] for line in done.lines] == ["app:Exports", "app:Raw"]
    assert took < 10.0, "not the minute of a connection to a server; an idle machine needs 1.5 s"


@pytest.mark.parametrize(
    "environ",
    [
        {"STEADYWORKER_LEDGER": "nosuch:ledger"},
        {"STEADYWORKER_LEDGER": "sqlite:/dev/null"},
        {"STEADYWORKER_CONFIG": "nosuch.toml"},
        {"STEADYWORKER_STOP_WITHIN": "never"},
        {"COMP_CWORD": "x"},
    ],
)
def test_a_completion_that_fails_offers_nothing_and_prints_nothing(shell: Shell, environ: dict[str, str]) -> None:
    done = shell(environ={**completing("show", "exports", "m"), **environ})
    assert (done.code, done.out.strip(), done.err) == (0, "", "")
