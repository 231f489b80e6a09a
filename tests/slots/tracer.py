"""
Exceptions at chosen places of a thread.

A place is a line with the lines that have called it, so that each way to a function counts.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

Place = tuple[tuple[str, int, str], ...]
"""For each line of the stack: its file, its number, and the type of the event that it sends."""


class Injected(Exception):
    pass


class InjectedBase(BaseException):
    """What `except Exception` does not catch."""


@cache
def lines_that_may_raise(file: str) -> dict[int, bool]:
    """
    The lines of a file that call something, or enter a context: a plain assignment raises nothing.

    True for the lines that call: Python comes to a `with` twice, and an exception at its end would keep its lock forever.
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    lines = {node.lineno: True for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return lines | {node.lineno: False for node in ast.walk(tree) if isinstance(node, ast.With)}


class Tracer:
    """Records the places in these modules that a thread reaches and that may raise; raises at one of them, once."""

    def __init__(
        self, modules: Sequence[ModuleType], at: Place | None = None, error: type[BaseException] = Injected
    ) -> None:
        self.places: dict[Place, None] = {}
        self.raised = False
        self.on_raise: Callable[[], object] = _nothing
        self._files = {str(module.__file__): lines_that_may_raise(str(module.__file__)) for module in modules}
        self._at = at
        self._error = error

    def around(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return this function with the tracer in its thread."""

        def traced(*arguments: Any) -> Any:
            sys.settrace(self._enter)
            try:
                return body(*arguments)
            finally:
                sys.settrace(None)

        return traced

    def _enter(self, frame: FrameType, event: str, _argument: object) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and frame.f_lineno in self._files[frame.f_code.co_filename]:
            self.reached(self._place(frame))
        return self._line

    def reached(self, place: Place) -> None:
        """Record a place, and raise there if it is the chosen one."""
        self.places[place] = None
        if place == self._at:
            self._at, self.raised = None, True
            self.on_raise()
            raise self._error(text_of(place))

    def _place(self, frame: FrameType | None) -> Place:
        lines = []
        while frame is not None:
            if (kinds := self._files.get(frame.f_code.co_filename)) is not None:
                event = frame.f_locals.get("event") if kinds.get(frame.f_lineno) else None
                lines.append((frame.f_code.co_filename, frame.f_lineno, type(event).__name__ if event else ""))
            frame = frame.f_back
        return tuple(lines)


def text_of(place: Place) -> str:
    return " ← ".join(f"{Path(file).name}:{line} {event}".rstrip() for file, line, event in place)


def _nothing() -> None:
    """Do nothing, because the test's own process needs no record of it."""
