"""The command that starts a Python process of SteadyWorker; the process starts without imports from the working directory."""

from __future__ import annotations

import sys
from pathlib import Path

# `-P` keeps the working directory off `sys.path`, so that a user's `queue.py` does not hide the standard library's module.
# The new process imports SteadyWorker from the same folder as this process; then this folder is last in `sys.path`.
_START = (
    "import importlib, sys, typing; sys.path.insert(0, sys.argv.pop(1)); import steadyworker; "
    "sys.path.append(sys.path.pop(0)); importlib.import_module(sys.argv.pop(1)).main()"
)
_FOLDER = Path(__file__).resolve().parents[2]


def command(module: str, *arguments: str, bare: bool = False) -> list[str]:
    """
    Return the command that calls `main` of a module of SteadyWorker with the arguments in `sys.argv[1:]`.

    With `bare`, the process starts faster, but it has no site-packages, and ignores Python's environment variables.
    """
    flags = ["-I", "-S"] if bare else ["-P"]
    return [sys.executable, *flags, "-c", _START, str(_FOLDER), module, *arguments]
