"""Java programs of the tests: the jars that Maven resolves, and one source file if there is one, compiled, below the cache folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from functools import cache as once
from pathlib import Path

from tests.brokers.install import MissingError, apt_install, cache, lock, may_install

JAVA = 17
"""The oldest Java that the brokers run on."""

JVMS = Path("/usr/lib/jvm")
"""Where Debian keeps every Java; the one on PATH may be older than others that are there."""

PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>{name}</artifactId><version>1</version>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""
DEPENDENCY = """
    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
    </dependency>"""
WHOLE_JAR = """
    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
      <classifier>{classifier}</classifier>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""


def java_program(name: str, artifacts: tuple[str, ...], source: Path | None = None) -> Path:
    """
    Return the folder of a Java program: `lib` has its jars, `classes` what `source` compiles to, if there is one.

    An artifact is `GROUP:ARTIFACT:VERSION`; of one with `:CLASSIFIER`, which can be empty, only the jar itself comes.
    The folder's name has a digest of artifacts and source: if it exists, neither Maven nor a compiler is called.
    Raises MissingError when a tool or an artifact cannot be had.
    """
    pom = POM.format(name=name, dependencies="".join(map(_dependency, artifacts)))
    code = source.read_text(encoding="utf-8") if source else ""
    digest = hashlib.sha256(f"{PLUGIN}{pom}{code}".encode()).hexdigest()[:12]
    made = cache() / f"{name}-{digest}"
    if made.exists():
        return made
    with lock(name) as held:
        if made.exists():  # another process was first
            return made
        half = made.with_name(f"{name}.half")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir()
        javac = str(compiler()) if source else ""
        half.joinpath("pom.xml").write_text(pom)
        # Without --update-snapshots, Maven remembers for a day that it could not fetch something, and does not try again.
        fetch = [
            _maven(),
            "--batch-mode",
            "--quiet",
            "--update-snapshots",
            f"{PLUGIN}:copy-dependencies",
            "-DincludeScope=runtime",
        ]
        fetch += [f"-DoutputDirectory={half / 'lib'}", "-Dstyle.color=never"]
        _run(fetch, half, held)
        if source:
            options = ("--release", str(JAVA), "-cp", f"{half / 'lib'}/*", "-d", str(half / "classes"))
            _run([javac, *options, str(source)], half, held)
        half.rename(made)
    return made


def java() -> Path:
    """Return the program `java`, of version 17 or newer; raises MissingError."""
    return _program("java", "default-jre-headless")


def compiler() -> Path:
    """Return the program `javac`, of version 17 or newer; raises MissingError."""
    return _program("javac", "default-jdk-headless")


@once
def _program(name: str, package: str) -> Path:
    found = _newest(name)
    if not found and may_install():
        with lock("apt"):
            apt_install(package)
        found = _newest(name)
    if not found:
        raise MissingError(
            f"{name} of Java {JAVA} or newer was not found on PATH, in JAVA_HOME or below {JVMS}: "
            f"sudo apt-get install {package}"
        )
    return found


def _newest(name: str) -> Path | None:
    """Return the first program of this name that is new enough."""
    places = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    if home := os.environ.get("JAVA_HOME"):
        places.insert(0, Path(home, "bin"))
    places += sorted(JVMS.glob("*/bin"))
    for program in (place / name for place in places):
        if program.exists():
            done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
            version = re.search(r'(?:version "|javac )(\d+)', done.stderr + done.stdout)
            if version and int(version[1]) >= JAVA:
                return program.resolve()
    return None


def _maven() -> str:
    found = shutil.which("mvn")
    if not found and may_install():
        with lock("apt"):
            apt_install("maven")
        found = shutil.which("mvn")
    if not found:
        raise MissingError("Maven was not found: sudo apt-get install maven, or put mvn on PATH")
    return found


def _dependency(coordinates: str) -> str:
    group, artifact, version, *classifier = coordinates.split(":")
    if classifier:
        return WHOLE_JAR.format(group=group, artifact=artifact, version=version, classifier=classifier[0])
    return DEPENDENCY.format(group=group, artifact=artifact, version=version)


def _run(command: list[str], folder: Path, held: int) -> None:
    """Run it in this folder, with the lock; raises MissingError with the end of its output."""
    done = subprocess.run(command, cwd=folder, pass_fds=[held], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingError(f"{' '.join(command)} failed here: {(done.stdout + done.stderr).strip()[-500:]}")
