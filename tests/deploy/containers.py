"""
Builds the images and starts containers, with Debian's buildah, podman and runc, in a storage of the tests' own.

No registry of images is needed: the base image is a minimal Debian that debootstrap makes once.
The images are built without containers (`--isolation chroot`), and started with them.
`podman` gets what it needs in a sandbox: a runtime that knows both versions of cgroups, and limits that the sandbox allows.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.brokers.install import MissingError, bootstrap, cache, codename, lock
from tests.deploy.judges.environment import program

ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "deploy/container"
BASE = "localhost/steadyworker-test-base"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class Engine:
    """Builds and runs; raises MissingError where this machine cannot."""

    def __init__(self) -> None:
        if os.geteuid():
            raise MissingError("containers are built and started as root here: run these tests as root on Debian")
        self._buildah = program("buildah", "buildah")
        self._podman = program("podman", "podman")
        self._runtime = program("runc", "runc")
        self._storage = ["--root", str(cache() / "containers"), "--runroot", "/run/steadyworker-test-containers"]
        with lock("containers"):
            self._import_base()

    def build(self, target: str, tag: str, *, app: Path | None = None) -> None:
        """Build a target of the Containerfile, or the image of the program in the folder `app` on top of `target`."""
        if app is None:
            command = [*self.building(f"BASE={BASE}"), "--file", str(CONTAINER / "Containerfile"), "--target", target]
            command += ["--tag", tag, str(ROOT)]
        else:
            command = [*self.building(f"BASE={target}"), "--file", str(CONTAINER / "app/Containerfile")]
            command += ["--tag", tag, str(app)]
        with lock("containers"):
            self._ran(command)

    def build_file(self, folder: Path, tag: str) -> None:
        """Build the Containerfile of this folder."""
        with lock("containers"):
            self._ran([*self.building(), "--tag", tag, str(folder)])

    def building(self, *arguments: str) -> list[str]:
        """Return the command that builds; it gets these arguments of the build, and the certificates of a site's own index."""
        command = [self._buildah, *self._storage, "build", "--isolation", "chroot", "--network", "host", "--layers"]
        if CERTIFICATES.exists():
            arguments = (*arguments, "PIP_CERT=/index-ca.crt")
            command += ["--volume", f"{CERTIFICATES}:/index-ca.crt:ro"]
        return command + [part for each in arguments for part in ("--build-arg", each)]

    def command(self, image: str, arguments: Sequence[str], *options: str) -> list[str]:
        """Return the command that runs a container as `compose.yaml` does: read-only, without rights, on the host's network."""
        files = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        return [
            *(self._podman, *self._storage, "--cgroup-manager", "cgroupfs", "--runtime", self._runtime),
            *("run", "--rm", "--network", "host"),
            *("--ulimit", f"nofile={files}:{files}", "--ulimit", "nproc=1000:1000", "--memory", "512m"),
            *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", *options),
            *(image, *arguments),
        ]

    def run(self, image: str, *arguments: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run a container to its end."""
        return subprocess.run(
            self.command(image, arguments, *options), capture_output=True, text=True, check=False, timeout=120
        )

    def podman(self, *arguments: str) -> str:
        """Return what another command of podman prints."""
        return self._ran([self._podman, *self._storage, *arguments])

    def _import_base(self) -> None:
        buildah = [self._buildah, *self._storage]
        if subprocess.run([*buildah, "inspect", BASE], capture_output=True, check=False).returncode == 0:
            return
        suite = codename()
        folder = cache() / f"container-base-{suite}"
        if not folder.exists():
            bootstrap(suite, "ca-certificates", folder)
        name = self._ran([*buildah, "from", "scratch"]).strip()
        self._ran([*buildah, "add", "--quiet", name, str(folder), "/"])
        self._ran([*buildah, "commit", "--quiet", name, BASE])
        self._ran([*buildah, "rm", name])
        shutil.rmtree(folder)

    def _ran(self, command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-3000:]}"
        return done.stdout
