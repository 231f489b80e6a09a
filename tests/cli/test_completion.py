"""Shell completion offers Workers, queues and keys, by the same protocol that the shells use."""

from __future__ import annotations

import pytest

from tests.cli.kit import Queues, Shell


def offered(shell: Shell, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    environ = {
        "_STEADYWORKER_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("steadyworker", *words)),
        "COMP_CWORD": str(len(words)),
    }
    return [line.partition(",")[2] for line in shell(environ=environ).lines if line]


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
