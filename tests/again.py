"""
Runs pytest, and what failed three times more, one test at a time: `python -m tests.again [ARGUMENTS OF PYTEST]`.

Thousands of tests with real brokers, signals and clocks share two cores: now and then one of them misses a deadline
because its neighbour had the machine, or a broker gives up.
A test that failed is forgiven only when it passes three times in a row by itself, and it is named at the end: unsteady.
Many that fail at once are no accident, and are not tried again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TIMES = 3
"""How often a test that failed must pass afterwards."""

FEW = 12
"""More failures than this are judged as they are."""

FAILED, NOTHING_TO_DO = 1, 5
"""Two of pytest's exit codes."""

BYTE_CODE = Path(".pytest_cache/bytecode")
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: list[str]) -> int:
    """Run the tests; the exit code is pytest's, 0 where all that failed proved only unsteady, or nothing was collected."""
    code = _pytest(*arguments, "--cache-clear")
    if code == NOTHING_TO_DO:
        return 0
    if code != FAILED:
        return code
    noted = LAST_FAILED.read_text(encoding="utf-8")
    unsteady = list(json.loads(noted))
    if len(unsteady) > FEW:
        return code
    for number in range(1, TIMES + 1):
        print(f"==> what failed, again, one at a time: {number} of {TIMES}", flush=True)
        LAST_FAILED.write_text(noted, encoding="utf-8")
        if code := _pytest(*arguments, "-n", "0", "-x", "--last-failed", "--last-failed-no-failures", "none"):
            return code
        if json.loads(LAST_FAILED.read_text(encoding="utf-8")):
            print("Expected every test that failed to be run again, and some were not found.", file=sys.stderr)
            return FAILED
    for test in unsteady:
        print(f"UNSTEADY {test}: failed once, then passed {TIMES} times", flush=True)
    return 0


def _pytest(*arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, env={**os.environ, **_byte_code()}, check=False).returncode


def _byte_code() -> dict[str, str]:
    """
    Return the settings that keep byte code, in the cache folder, where the environment forbids it beside the source.

    Else each of some hundred worker processes compiles all that it imports, and each xdist worker every test.
    """
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(BYTE_CODE.absolute())}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
