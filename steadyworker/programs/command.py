"""
The command line of the jobs, its placeholders, and its way from `steadyworker exec` to the slots.

| placeholder | becomes |
|---|---|
| `{payload}` | the message's body, as text |
| `{payload.NAME}` | the field NAME of a body that is a JSON object: a text, a number, true or false |
| `{payload.base64}` | the body in base64, as rabbitmq-cli-consumer passes the body; a field named `base64` is not reachable |
| `{file}` | the path of a file with the body; only this program can open the file |
| `{key}` | the job's key |

No shell reads the command line.
So a payload stays one argument, or a part of an argument, whatever characters the payload has.
No payload becomes an option: if an argument begins with a placeholder, the placeholder's value must not begin with `-`, except after `--`.
Between this `--` and the argument, only placeholders may stand.
The reason is that another word can be a program, as in `env -- pg_dump {payload}`.
The operator can allow options (`--allow-options`).
If the command has no placeholder for the body, the program reads the body from standard input.
"""

from __future__ import annotations

import base64
import difflib
import os
import re
from collections.abc import Sequence

import msgspec

from steadyworker.errors import BadPayload, ConfigError
from steadyworker.payload import decoder
from steadyworker.programs.codes import Codes

VARIABLE = "SW_EXEC"
"""
The environment variable that brings the command to the slots' child processes.

Every user can read a command line with `ps`, but only the same user can read an environment.
"""

FILE = "{file}"

_LONGEST_ARGUMENT = 128 << 10
"""The longest argument that Linux accepts (MAX_ARG_STRLEN, 32 pages); for a longer argument, execve fails with E2BIG."""

_PLACEHOLDER = re.compile(r"\{(payload|file|key)(?:\.([^{}]+))?\}")
_WORD = re.compile(r"\{(\w+)(?:\.[^{}]+)?\}")


class Command(msgspec.Struct, frozen=True):
    """
    A program with its arguments, and the meaning of its exit codes.

    With `allow_options`, a payload may become an option of the program.
    """

    arguments: tuple[str, ...]
    codes: Codes = "sysexits"
    allow_options: bool = False

    @property
    def has_body(self) -> bool:
        """True if an argument has the body, or a path to the body; otherwise the body comes on standard input."""
        found = (match for argument in self.arguments for match in _PLACEHOLDER.finditer(argument))
        return any(match[1] != "key" for match in found)

    @property
    def has_file(self) -> bool:
        """True if an argument has the path of a file with the body."""
        return any(FILE in argument for argument in self.arguments)

    def filled(self, body: bytes, key: str, file: str) -> list[str]:
        """
        Return the arguments with a value for each placeholder; raise BadPayload if the body does not fit the placeholders.

        `file` is the path of a file that holds the body.
        """
        values = _Values(body, key, file)
        filled = [_PLACEHOLDER.sub(values.of, argument) for argument in self.arguments]
        for place, (template, argument) in enumerate(zip(self.arguments, filled, strict=True)):
            if self._is_made_an_option(place, argument):
                raise BadPayload(
                    f"$: expected a value that does not begin with - for {template!r}, because the program could read it "
                    "as an option: write -- directly before it if the program knows that, or allow it by --allow-options"
                )
            if "\0" in argument:
                raise BadPayload(f"$: expected no NUL for {template!r}, because no argument can hold one: use {FILE}")
            if len(os.fsencode(argument)) >= _LONGEST_ARGUMENT:
                raise BadPayload(
                    f"$: expected less than {_LONGEST_ARGUMENT} bytes for the argument {template!r}, got "
                    f"{len(os.fsencode(argument))}: pass the body by {FILE}, or on standard input"
                )
        return filled

    def _is_made_an_option(self, place: int, argument: str) -> bool:
        """Return whether a value gives this argument its `-`, so that the program may read the argument as an option."""
        given = argument.startswith("-") and not self.arguments[place].startswith("-")
        return given and not self.allow_options and not self._ends_options(place)

    def _ends_options(self, place: int) -> bool:
        """
        Return whether a `--` stands before this argument, with only placeholders between them.

        If another word stands between them, the `--` can belong to a wrapper, and the word can be a program with its own options.
        """
        words = (word for word in reversed(self.arguments[1:place]) if not _PLACEHOLDER.fullmatch(word))
        return next(words, None) == "--"


class _Values:
    """The values of one job's placeholders; the body is parsed only if a placeholder names a field."""

    def __init__(self, body: bytes, key: str, file: str) -> None:
        self._body, self._key, self._file = body, key, file
        self._fields: object = None

    def of(self, match: re.Match[str]) -> str:
        """Return the value of one placeholder."""
        name, field = match[1], match[2]
        if name == "key":
            return self._key
        if name == "file":
            return self._file
        if field == "base64":
            return base64.b64encode(self._body).decode("ascii")
        return self._text() if field is None else self._field(field)

    def _text(self) -> str:
        try:
            return self._body.decode()
        except UnicodeDecodeError as error:
            raise BadPayload(f"$: expected UTF-8 text for {{payload}}, got other bytes ({error}): use {FILE}") from None

    def _field(self, name: str) -> str:
        if self._fields is None:
            self._fields = decoder(dict[str, object], len(self._body))(self._body)
        assert isinstance(self._fields, dict), "the decoder accepts only an object"
        if name not in self._fields:
            raise BadPayload(f"$.{name}: missing, but the command has {{payload.{name}}}")
        match self._fields[name]:
            case bool() as value:
                return str(value).lower()
            case str() | int() | float() as value:
                return str(value)
            case value:
                raise BadPayload(f"$.{name}: expected a text, a number, true or false, got {type(value).__name__}")


def check_command(arguments: Sequence[str]) -> None:
    """Raise ConfigError for a command line that cannot start, whatever the payload is."""
    if not arguments or not arguments[0]:
        raise ConfigError(
            "Expected a program after `--`, got none: write `steadyworker exec --queue Q … -- PROGRAM …`.",
            id="config.command",
        )
    if _PLACEHOLDER.search(arguments[0]):
        raise ConfigError(
            f"Expected the name of a program, got {arguments[0]!r}: a message must not choose the program that runs; "
            "name a program, and put placeholders only into its arguments.",
            id="config.command",
        )
    for argument in arguments:
        if "{file." in argument or "{key." in argument:
            raise ConfigError(
                f"Expected {{file}} or {{key}} without a field, got {argument!r}: only {{payload.NAME}} has fields.",
                id="config.command",
            )
        for word in _WORD.findall(argument):
            near = difflib.get_close_matches(word, ("payload", "file", "key"), n=1, cutoff=0.75)
            if near and word not in ("payload", "file", "key"):
                raise ConfigError(
                    f"There is no placeholder {{{word}}} (in {argument!r}): did you mean {{{near[0]}}}?",
                    id="config.command",
                )


def encoded(command: Command) -> str:
    """Return the value of `VARIABLE` for a command."""
    return msgspec.json.encode(command).decode()


def inherited_command() -> Command:
    """
    Return the command that this process has inherited from `steadyworker exec` in `VARIABLE`.

    Raises:
        ConfigError: This process was not started by `steadyworker exec`.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        raise ConfigError(
            "Expected the command of `steadyworker exec`, got none: start this Worker by `steadyworker exec`.",
            id="config.command",
        )
    return msgspec.json.decode(text, type=Command)
