"""A shell in a folder of its own, with the virtual environment's programs on its PATH."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.exports.spark.archives import archive

__all__ = ["archive"]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

Shell = Callable[..., str]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Run a script in `tmp_path`; answers what it said on standard output, fails when any line of it fails."""

    def run(script: str, within: float = 300, **environ: str) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env={
                **kept,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "STEADYWORKER_STATE_DIR": str(tmp_path / "state"),
                **environ,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=within)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        assert process.returncode == 0, f"{script}\nended with {process.returncode}:\n{out}\n{err}"
        return out

    return run
