"""Each command of SteadyWorker's that the catalogue advises is one that the real command line accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from steadyworker.cli import verbs
from steadyworker.diagnosis.catalogue import Entry
from steadyworker.diagnosis.own_lines import groups_of
from steadyworker.diagnosis.remedies import Remedies
from tests.diagnosis.explaining import catalogue

_QUOTED = re.compile(r"`(steadyworker [^`]+)`")
_AT_THE_END = re.compile(r"(?:^|: |; |\| )(steadyworker [a-z][^`;]*)$")
_NAME = re.compile(r"steadyworker( [a-z]+)+")


def commands() -> Iterator[tuple[str, str]]:
    """Each command in the texts of the catalogue, filled as far as without a record, with the entry's id."""
    for entry in catalogue().values():
        for text in (entry.what, entry.why, *entry.remedies, *entry.verify, entry.worker or ""):
            yield from ((entry.id, command) for command in _in(entry, text))


def _in(entry: Entry, text: str) -> Iterator[str]:
    filled = entry.filled(text, {})
    yield from (command for command in _QUOTED.findall(filled))
    if found := _AT_THE_END.search(filled):
        yield found[1]


COMMANDS: dict[str, list[str]] = {}
for _id, _command in commands():
    COMMANDS.setdefault(_command, []).append(_id)


def is_a_name(command: str) -> bool:
    """Return whether the text only names a verb, as a sentence does: `steadyworker check` says more."""
    return _NAME.fullmatch(command) is not None


def parsed(command: str) -> None:
    """Parse the command as the shell and the real command line do; raises click.UsageError."""
    group: click.Group = verbs
    context, arguments = click.Context(verbs), shlex.split(command, comments=True)[1:]
    while True:
        name, sub, arguments = group.resolve_command(context, arguments)
        assert sub is not None
        if not isinstance(sub, click.Group):
            sub.make_context(name, arguments, parent=context)
            return
        group, context = sub, click.Context(sub, parent=context)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_accepts_it(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in re.findall(r"[\w-]+\.pcap", command):
        (tmp_path / file).touch()
    if is_a_name(command):
        assert command.split()[1] in verbs.list_commands(click.Context(verbs)), COMMANDS[command]
    elif command.endswith(" --help"):
        with pytest.raises(click.exceptions.Exit):
            parsed(command)
    else:
        parsed(command)


def test_the_commands_are_found() -> None:
    found = {command.split()[1] for command in COMMANDS}
    assert {"jobs", "dead", "trace", "explain", "check", "exec"} <= found
    assert sum(map(len, COMMANDS.values())) > 60


@pytest.mark.parametrize(
    "command", ["steadyworker jobs --stat dead", "steadyworker dead sho exports", "steadyworker trac"]
)
def test_a_wrong_command_is_not_accepted(command: str) -> None:
    with pytest.raises(click.UsageError):
        parsed(command)


def test_the_remedy_of_a_line_names_the_key_and_the_queue_that_the_line_has() -> None:
    line = {"event": "job_settled", "key": "march", "queue": "exports", "explain": "steadyworker.dead-letter"}
    assert Remedies()(line).endswith("send the job again: steadyworker dead replay exports march")
    known = catalogue()["steadyworker.dead-letter"]
    groups = groups_of("job_settled key=march queue=exports explain=steadyworker.dead-letter")
    assert [known.filled(text, groups) for text in known.verify] == ["steadyworker dead show exports march"]
