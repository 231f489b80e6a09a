"""The standard streams of a command; a closed or full output ends the command with an exit code, without a traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO, cast

import click

from steadyworker.system.streams import open_standard_streams
from steadyworker.text.plain_text import printable


class OutputFailed(OSError):
    """A failed write to standard output; `by_reader` is true if the reader of a pipe has closed the pipe."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"Expected to write to standard output, got: {cause.strerror}: send it elsewhere.")
        self.by_reader = cause.errno == errno.EPIPE


class _Stream:
    """A text stream that passes every call on to another text stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Output(_Stream):
    """Standard output; a failed write to it raises OutputFailed, which no other file raises."""

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise OutputFailed(error) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputFailed(error) from error


class _Errors(_Stream):
    """Standard error; a failed write is ignored, because no command depends on it."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def prepare() -> None:
    """
    Make the standard streams safe to use.

    A character that standard output cannot encode is printed as its escape.
    """
    open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = cast(TextIO, _Output(sys.stdout)), cast(TextIO, _Errors(sys.stderr))


def echo(text: str, *, err: bool = False) -> None:
    """Print a text on one line, with an escape for each unprintable character."""
    click.echo(printable(text), err=err)


def discard_output() -> None:
    """
    Discard output that could not be written.

    Otherwise the interpreter would try to write this output again when it exits, and would fail.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
