"""
The user's function that builds a DataFrame in the host: `Build("reports.frames:payments")`.

The host and Spark's Python workers have the worker's `sys.path`.
So they can import the function's module, and the user-defined functions in it, as the worker can.
"""

from __future__ import annotations

import hashlib
import importlib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from steadyworker.errors import ExportError


class Built:
    """
    The user's function, imported.

    Args:
        name: `module:function`.

    Raises:
        ExportError: The module or function does not exist, or the import fails; the message names the line that failed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        module, _, attribute = name.partition(":")
        try:
            self._module = importlib.import_module(module)
        except BaseException as error:  # noqa: BLE001 - a module may raise anything, and even exit
            _failed(f"import of {module}", error, Path(__file__))
        function: Any = self._module
        for part in attribute.split("."):
            function = getattr(function, part, None)
        if not callable(function):
            raise ExportError(
                f"Expected a function {attribute} in {module}, got {'none' if function is None else type(function).__name__}: "
                "correct Build's name, or restart the worker if the function is new."
            )
        self._function: Callable[..., Any] = function

    def __call__(self, session: Any, tables: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        """
        Call the function and return its DataFrame.

        Raises:
            ExportError: It raised (the message names the line), or it returned something else.
        """
        try:
            frame = self._function(session, dict(tables), dict(params))
        except BaseException as error:  # noqa: BLE001 - as above
            _failed(self._name, error, Path(__file__))
        if not (hasattr(frame, "schema") and hasattr(frame, "orderBy")):
            raise ExportError(
                f"Expected a DataFrame from {self._name}, got {type(frame).__name__}: return the DataFrame to export."
            )
        return frame

    @property
    def versions(self) -> dict[str, str]:
        """The function's module, and the SHA-256 of the module's file."""
        file = getattr(self._module, "__file__", None)
        try:
            digest = hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
        except OSError:  # it was imported from an archive
            return {}
        return {self._module.__name__: f"sha256:{digest}"}


def _failed(what: str, error: BaseException, here: Path) -> NoReturn:
    """Raise an ExportError with the last line of the user's code that ran, and the first line of the error."""
    line = _line(error.__traceback__, here)
    said = next((text for text in str(error).splitlines() if text.strip()), "").strip()
    raise ExportError(f"{what} failed{line}: {type(error).__name__}{': ' if said else ''}{said}") from error


def _line(trace: TracebackType | None, here: Path) -> str:
    """Return the place of the innermost frame that is neither ours, nor importlib's, nor in an installed library."""
    for frame in reversed(traceback.extract_tb(trace)):
        foreign = frame.filename.startswith("<") or {"site-packages", "dist-packages"} & {*Path(frame.filename).parts}
        if not foreign and Path(frame.filename) != here and Path(frame.filename).parent.name != "importlib":
            return f" at {frame.filename}:{frame.lineno} in {frame.name}"
    return ""
