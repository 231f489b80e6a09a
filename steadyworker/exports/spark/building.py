"""
The user's function that builds a DataFrame in the host: `Build("reports.frames:payments")`.

The host and Spark's Python workers have the worker's `sys.path`.
So they can import the function's module, and the user-defined functions in this module, as the worker can.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pyspark

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.text.plain_text import plain_text

_CAUSES = 3  # the largest number of causes in the text of an error
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t].*\n)*)(\S.*)")
_CHAINED = re.compile(r"\n\n(?:The above exception was the direct cause|During handling of the above exception)")
_MODULE = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")  # of an error's class
_FRAME = re.compile(r'^ +File "(.+)", line (\d+)(?:, in (\S+))?$', re.MULTILINE)  # an error of syntax is in no function


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
        except BaseException as error:  # noqa: BLE001 - a module can raise anything, even SystemExit
            _failed(f"import of {module}", error)
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
            ExportError: The function raised an error; the message names the line.
            ExportRejected: The function returned no DataFrame.
        """
        try:
            frame = self._function(session, dict(tables), dict(params))
        except BaseException as error:  # noqa: BLE001 - a function can raise anything, even SystemExit
            _failed(self._name, error)
        if not (hasattr(frame, "schema") and hasattr(frame, "orderBy")):
            raise ExportRejected(
                f"Expected a DataFrame from {self._name}, got {type(frame).__name__}: return the DataFrame to export."
            )
        return frame

    @property
    def versions(self) -> dict[str, str]:
        """The function's module, and the SHA-256 of the module's file."""
        file = getattr(self._module, "__file__", None)
        try:
            digest = hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
        except OSError:  # the module has no file, because it was imported from an archive
            return {}
        return {self._module.__name__: f"sha256:{digest}"}


def _failed(what: str, error: BaseException) -> NoReturn:
    """Raise an ExportError with the last line of the user's code that ran, and the error with its causes."""
    shown = _shown("".join(traceback.format_exception(error)))
    raise ExportError(f"{what} failed{shown or ': ' + plain_text(error)}") from error


def from_traceback(text: str) -> str:
    """
    Return one line for the Python traceback in a text, or an empty text if there is no traceback.

    Spark shows an error of a user-defined function as such a text, because the error was raised in another process.
    """
    shown = _shown(text)
    return f"a Python function failed{shown}" if shown else ""


def _shown(text: str) -> str:
    """Return the place of the innermost stack frame in the user's own code, the error, and the first lines of its causes."""
    if (found := _TRACEBACK.search(text)) is None:
        return ""
    errors = [found[2].strip()]
    while after := _TRACEBACK.search(text, found.end()):
        if not _CHAINED.search(text, found.end(), after.start()):
            break
        found = after
        errors.append(found[2].strip())
    places = [place for place in _FRAME.findall(found[1]) if not _foreign(place[0])]
    at = " at {}:{} in {}".format(*places[-1]).removesuffix(" in ") if places else ""
    error, *causes = (_MODULE.sub("", line) for line in reversed(errors[-1 - _CAUSES :]))
    return f"{at}: {error}{''.join(f' (caused by {cause})' for cause in causes)}"


def _foreign(file: str) -> bool:
    """Return whether a file of Python code is not the user's own."""
    path = Path(file)
    libraries = {"site-packages", "dist-packages", "pyspark.zip"} & {*path.parts}
    spark = path.is_relative_to(Path(pyspark.__file__).parent)
    return file.startswith("<") or spark or bool(libraries) or path.parent.name == "importlib" or path == Path(__file__)
