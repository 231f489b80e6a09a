"""An earlier revision of SteadyWorker, for a benchmark that runs it beside this one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def unpack(revision: str, folder: Path) -> Path:
    """Write the package as it was at this revision into a folder, and return the folder; exit if git does not have the revision."""
    packed = subprocess.run(
        ["git", "archive", revision, "steadyworker"], cwd=REPOSITORY, capture_output=True, check=False
    )
    if packed.returncode:
        sys.exit(
            f"Expected revision {revision} in this repository, got: {packed.stderr.decode().strip()}: "
            "fetch the whole history (git fetch --unshallow)."
        )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def environment(tree: Path) -> Mapping[str, str]:
    """Return the environment of a process that imports SteadyWorker from this tree, and the benchmarks from this repository."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tree, Path(__file__).parent, REPOSITORY)))}
