"""Client libraries of other languages, brought here once: amqplib and rascal by npm, php-amqplib and bunny by apt."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.brokers.install import MissingError, apt_install, cache, lock, may_install

PEERS = Path(__file__).with_name("peers")
NODE_PACKAGES = ("amqplib@2.3.1", "rascal@21.0.1")


def node_modules() -> Path:
    """The folder with amqplib and rascal; raises MissingError when Node.js or a package cannot be had."""
    if not (npm := shutil.which("npm")):
        raise MissingError("npm was not found: install Node.js 18 or newer")
    made = cache() / f"node-{'-'.join(NODE_PACKAGES).replace('@', '-')}"
    with lock(made.name):
        if not made.exists():
            half = made.with_name(f"{made.name}.half")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            words = [
                npm,
                "install",
                "--prefix",
                str(half),
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
                *NODE_PACKAGES,
            ]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise MissingError(f"npm install {' '.join(NODE_PACKAGES)} failed here: {done.stderr.strip()[-500:]}")
            half.rename(made)
    return made / "node_modules"


def debian(program: str, library: Path, *packages: str) -> str:
    """A program and its library from Debian's packages; raises MissingError when they cannot be had."""
    if (not shutil.which(program) or not library.exists()) and may_install():
        with lock("apt"):
            for package in packages:
                apt_install(package)
    found = shutil.which(program)
    if not found or not library.exists():
        raise MissingError(f"{program} or {library} was not found: sudo apt-get install {' '.join(packages)}")
    return found


def php() -> str:
    return debian("php", Path("/usr/share/php/PhpAmqpLib/autoload.php"), "php-cli", "php-amqplib")


def ruby() -> str:
    return debian("ruby", Path("/usr/share/doc/ruby-bunny"), "ruby-bunny")


def run(*command: str, **environment: str) -> str:
    """Run a provoking program, and return what it said on both outputs; it ends by itself."""
    done = subprocess.run(
        command,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=240,
    )
    return done.stdout.decode(errors="replace")
