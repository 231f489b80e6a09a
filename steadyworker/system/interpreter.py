"""The start of further Python processes of SteadyWorker, without a look into the user's folders."""

from __future__ import annotations

import sys
from pathlib import Path

# `-P` keeps the working directory off the path, so that a user's `queue.py` does not stand for the standard library's.
# SteadyWorker itself comes from the folder that this process has it from: first, and for this one package only.
_START = (
    "import importlib, sys, typing; sys.path.insert(0, sys.argv.pop(1)); import steadyworker; "
    "sys.path.append(sys.path.pop(0)); importlib.import_module(sys.argv.pop(1)).main()"
)
_FOLDER = Path(__file__).resolve().parents[2]


def command(module: str, *arguments: str, bare: bool = False) -> list[str]:
    """
    Return the command that calls `main` of a module of SteadyWorker; its `sys.argv[1:]` are the arguments.

    `bare` also leaves out site-packages and all variables of the environment, for a module that needs neither: it starts faster.
    """
    flags = ["-I", "-S"] if bare else ["-P"]
    return [sys.executable, *flags, "-c", _START, str(_FOLDER), module, *arguments]
