"""
The outputs for the events of a trace: a terminal, a file of JSON Lines, a page.

An output that fails gets no more events, and the trace goes on, because the connections through the trace matter more.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import click
import msgspec

from steadyworker.diagnosis.terminal import Terminal
from steadyworker.diagnosis.wire import Event, Listener

STDOUT = "standard output"


class Outputs:
    """
    The outputs of one trace; the trace calls this object with each event.

    `jsonl` is the path of a file, or `-` for standard output, which then gets nothing else.
    `html` is the path of the page, which is written when the trace has ended.
    `failures` has the error of each output that failed, by its name.

    Raises:
        OSError: A file cannot be opened.
    """

    def __init__(self, *, jsonl: str | None, html: Path | None, frames: bool) -> None:
        self.failures: dict[str, OSError] = {}
        self._files = ExitStack()
        self._listeners: dict[str, Listener] = {}
        self._flushes: dict[str, Callable[[], object]] = {}
        self._write_page: Callable[[], object] | None = None
        self._page_name = str(html)
        if jsonl == "-":
            self._write_json(STDOUT, sys.stdout.buffer)
        elif jsonl is not None:
            file = Path(jsonl).open("wb")  # noqa: SIM115 - the file stays open until the trace ends
            self._write_json(jsonl, self._files.enter_context(file))
        if html is not None:
            self._add_page(html)
        if jsonl != "-":
            self._listeners[STDOUT] = Terminal(click.echo, frames=frames)
            self._flushes[STDOUT] = sys.stdout.flush

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # if a file could not be written, a flush fails, too
            self._files.close()

    @property
    def left(self) -> bool:
        """Whether an output still gets events."""
        return bool(self._listeners)

    def __call__(self, event: Event) -> None:
        """Pass an event to all outputs."""
        for name, listener in tuple(self._listeners.items()):
            try:
                listener(event)
            except OSError as error:
                self._failed(name, error)

    def flush(self) -> None:
        """Write the buffered output."""
        for name, flush in tuple(self._flushes.items()):
            try:
                flush()
            except OSError as error:
                self._failed(name, error)

    def finish(self) -> None:
        """Write the page and the buffered output."""
        if self._write_page is not None:
            try:
                self._write_page()
            except OSError as error:
                self._failed(self._page_name, error)
        self.flush()

    def _failed(self, name: str, error: OSError) -> None:
        self._listeners.pop(name, None)
        self._flushes.pop(name, None)
        self.failures.setdefault(name, error)

    def _add_page(self, path: Path) -> None:
        try:
            from steadyworker.diagnosis.page import Page
        except ImportError as error:
            text = f"the page needs jinja2 ({error}): pip install 'steadyworker[dashboard]'"
            click.echo(f"The trace goes on as text, without {path}: {text}", err=True)
            self._failed(self._page_name, OSError(errno.ENOENT, text))
            return
        page, file = Page(), self._files.enter_context(path.open("w", encoding="utf-8"))
        self._listeners[self._page_name] = page.add

        def write() -> None:
            page.write(file)
            file.flush()

        self._write_page = write

    def _write_json(self, name: str, out: IO[bytes]) -> None:
        encode = msgspec.json.Encoder().encode
        self._listeners[name] = lambda event: out.write(encode(event) + b"\n")
        self._flushes[name] = out.flush
