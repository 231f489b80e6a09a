"""
The tools that judge files for platforms, each brought here once: by pip into an environment of its own, or by apt.

`kubectl` (or `kustomize`) is no package of Debian that is new enough; a machine that has neither skips what needs it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NoReturn

import pytest

from tests.brokers.install import MissingError, apt_install, cache, lock, may_install

HERE = Path(__file__).parent
JUDGE = HERE / "judge.py"


def judges_python() -> Path:
    """The interpreter of the environment with kubernetes-validate; it is made at the first call."""
    wanted = HERE.joinpath("requirements.txt").read_bytes()
    name = f"judges-{hashlib.sha256(wanted + sys.version.encode()).hexdigest()[:12]}"
    folder = cache() / name
    with lock("judges"):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            command = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--requirement"]
            done = subprocess.run(
                [*command, str(HERE / "requirements.txt")], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise MissingError(f"kubernetes-validate could not be installed: {done.stderr.strip()[-500:]}")
            (folder / "made").touch()
    return folder / "bin/python"


def program(name: str, package: str) -> str:
    """The path of this program, which apt installs where it may; raises MissingError."""
    if shutil.which(name) is None and may_install():
        with lock("apt"):
            apt_install(package)
    found = shutil.which(name)
    if found is None:
        raise MissingError(f"{name} was not found: sudo apt-get install {package}")
    return found


def kustomize() -> list[str]:
    """The command that builds a kustomize folder."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    raise MissingError("neither kubectl nor kustomize was found: install one of them (version 1.27, or 5.0, or newer)")


def missing(error: MissingError) -> NoReturn:
    """Skip the test, or fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))
