"""The command line of a job: what its placeholders become, and which command lines are refused."""

from __future__ import annotations

import os
import re

import pytest

from steadyworker.errors import BadPayload, ConfigError
from steadyworker.programs.codes import Meaning, meaning
from steadyworker.programs.command import VARIABLE, Command, check_command, encoded, inherited_command

BODY = b'{"table": "payments; rm -rf /", "n": 17, "rate": 1.5, "full": true, "tags": ["a"]}'


def filled(*arguments: str, body: bytes = BODY) -> list[str]:
    return Command(arguments).filled(body, "k-1", "/dev/fd/7")


@pytest.mark.parametrize(
    ("argument", "becomes"),
    [
        ("{payload}", BODY.decode()),
        ("--table={payload.table}", "--table=payments; rm -rf /"),
        ("{payload.n}/{payload.rate}/{payload.full}", "17/1.5/true"),
        ("{payload.base64}", "e30="),
        ("{key}.sql", "k-1.sql"),
        ("{file}", "/dev/fd/7"),
        ("{print $1}", "{print $1}"),
        ("{}", "{}"),
    ],
)
def test_a_placeholder_becomes_one_value_and_no_shell_reads_it(argument: str, becomes: str) -> None:
    assert filled("program", argument, body=b"{}" if "base64" in argument else BODY) == ["program", becomes]


@pytest.mark.parametrize(
    ("argument", "body", "text"),
    [
        ("{payload.tbale}", BODY, r"\$.tbale: missing, but the command has {payload.tbale}"),
        ("{payload.tags}", BODY, r"\$.tags: expected a text, a number, true or false, got list"),
        ("{payload.n}", b"[17]", r"expected"),
        ("{payload}", b"caf\xe9", r"expected UTF-8 text"),
        ("{payload}", b"a\0b", r"expected no NUL"),
        ("{payload}", b"x" * (128 << 10), r"expected less than 131072 bytes for the argument '{payload}', got 131072"),
    ],
)
def test_a_body_that_does_not_fit_is_a_bad_payload(argument: str, body: bytes, text: str) -> None:
    with pytest.raises(BadPayload, match=text):
        filled("program", argument, body=body)


OPTION = b'{"name": "--file=/elsewhere", "n": -5, "empty": "", "key": "-k"}'


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("{payload.name}", "--file=/elsewhere"),
        ("{payload.n}", "-5"),
        ("{payload.name}.sql", "--file=/elsewhere.sql"),
        ("{payload.empty}{payload.key}", "-k"),
        ("{payload.empty}-x", "-x"),
    ],
)
def test_a_payload_is_no_option(argument: str, value: str) -> None:
    text = (
        f"expected a value that does not begin with - for {argument!r}, because the program could read it as an option"
    )
    with pytest.raises(BadPayload, match=re.escape(f"$: {text}")) as caught:
        filled("program", "-x", argument, "--", body=OPTION)
    assert "elsewhere" not in str(caught.value), "a dead letter's reason has no payload"
    assert filled("program", "--", argument, body=OPTION) == ["program", "--", value]
    assert filled("program", f"--name={argument}", body=OPTION) == ["program", f"--name={value}"]
    allowed = Command(("program", argument), allow_options=True)
    assert allowed.filled(OPTION, "k-1", "/dev/fd/7") == ["program", value]


@pytest.mark.parametrize(
    "wrapper",
    [
        ("kubectl", "exec", "pod", "--", "pg_dump"),
        ("env", "A=b", "--", "pg_dump"),
        ("timeout", "-s", "INT", "--", "60", "pg_dump"),
        ("nice", "--", "pg_dump", "{key}"),
        ("nice", "--", "{key}", "pg_dump", "{key}"),
        ("nice", "--", "pg_dump-{key}"),
    ],
)
def test_the_mark_of_a_wrapper_ends_no_options_of_the_program_behind_it(wrapper: tuple[str, ...]) -> None:
    """Behind the program itself, `--` counts, also with another placeholder between them."""
    with pytest.raises(BadPayload, match="write -- directly before it"):
        filled(*wrapper, "{payload.name}", body=OPTION)
    assert filled(*wrapper, "--", "{payload.name}", "{payload.n}", body=OPTION)[-2:] == ["--file=/elsewhere", "-5"]


def test_the_body_itself_is_no_option() -> None:
    with pytest.raises(BadPayload, match="does not begin with -"):
        filled("program", "{payload}", body=b"--file=/elsewhere")


def test_an_option_of_the_operator_is_an_option() -> None:
    assert filled("program", "-n{payload.n}", "-", "--x") == ["program", "-n17", "-", "--x"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Expected a program after `--`, got none"),
        (["{payload.program}"], "a message must not choose the program that runs"),
        (["pg_dump", "{paylod.table}"], r"no placeholder {paylod} .* did you mean {payload}\?"),
        (["cat", "{file.name}"], "only {payload.NAME} has fields"),
    ],
)
def test_a_command_line_that_no_payload_can_fit_is_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_command(arguments)


@pytest.mark.parametrize(
    ("argument", "body", "file"), [("{key}", False, False), ("{payload.n}", True, False), ("{file}", True, True)]
)
def test_the_body_comes_on_standard_input_if_no_argument_has_it(argument: str, body: bool, file: bool) -> None:
    command = Command(("program", argument))
    assert (command.has_body, command.has_file) == (body, file)


def test_the_command_reaches_a_child_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    command = Command(
        ("sh", "-c", "echo 'ü' \udce9".encode("utf-8", "surrogateescape").decode("latin-1")), "rabbitmq-cli-consumer"
    )
    monkeypatch.setitem(os.environ, VARIABLE, encoded(command))
    assert inherited_command() == command


def test_the_worker_of_exec_cannot_be_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="start this Worker by `steadyworker exec`"):
        inherited_command()


def test_the_exit_codes_are_those_of_the_page() -> None:
    dead, unfit = {64, 65, 66}, {77, 78, 126, 127}
    for code in range(256):
        expected = Meaning.DEAD if code in dead else Meaning.UNFIT if code in unfit else Meaning.FAILED
        expected = {0: Meaning.DONE, 79: Meaning.INTERRUPTED}.get(code, expected)
        assert meaning(code, "sysexits") is expected
        theirs = Meaning.DONE if code == 0 else Meaning.DEAD if code in (3, 5) else Meaning.FAILED
        assert meaning(code, "rabbitmq-cli-consumer") is theirs
