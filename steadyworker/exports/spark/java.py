"""The search for a Java installation on which Spark runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from steadyworker.errors import ConfigError

OLDEST = 17
_FOLDERS = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "/opt/homebrew/opt")
_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?((\d+)[^"]*)"')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation; `version` is the version that Java reports, like `17.0.15`."""

    home: Path
    version: str

    @property
    def major(self) -> int:
        """The major version: 17 for `17.0.15`."""
        return int(re.split(r"\D", self.version, maxsplit=1)[0])


def find_java(environ: Mapping[str, str], folders: tuple[str, ...] = _FOLDERS) -> Java:
    """
    Return the first Java of version 17 or newer: from JAVA_HOME, from PATH, or the oldest suitable Java of the system.

    The oldest Java is best, because Spark is tested first with versions that have long support.

    Raises:
        ConfigError: There is no such Java; the message lists the versions found, and how to install Java.
    """
    seen: list[Java] = []
    for home in _places(environ):
        seen += filter(None, [_java_at(home)])
        if seen and seen[-1].major >= OLDEST:
            return seen[-1]
    system = [java for folder in folders for home in _homes(Path(folder)) if (java := _java_at(home))]
    fitting = sorted((java for java in system if java.major >= OLDEST), key=lambda java: java.major)
    if fitting:
        return fitting[0]
    found = ", ".join(f"{java.version} at {java.home}" for java in [*seen, *system]) or "none"
    raise ConfigError(
        f"Expected Java {OLDEST} or newer for Spark in JAVA_HOME, on PATH or in {folders[0]}, got {found}: "
        "install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless; "
        "macOS: brew install openjdk@17), or set JAVA_HOME.",
        id="spark.no-java",
    )


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path).resolve().parent.parent


def _homes(folder: Path) -> Iterator[Path]:
    """Yield the installations under a folder, without symbolic links."""
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if not path.is_symlink():
                yield from (path, path / "Contents/Home")


def _java_at(home: Path) -> Java | None:
    """Return the installation, with the version from its `release` file, or otherwise from `java -version`."""
    java = home / "bin/java"
    if not java.is_file():
        return None
    text = ""
    with suppress(OSError):
        text = (home / "release").read_text(encoding="utf-8")
    if not _VERSION.search(text):
        with suppress(OSError, subprocess.TimeoutExpired):
            result = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=30)
            text = result.stderr
    match = _VERSION.search(text)
    return Java(home, match[1]) if match else None
