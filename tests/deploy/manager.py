"""
systemd as the first process of namespaces of its own, on an overlay of this machine's files, for tests that run units for real.

It has its own processes, mounts, host name and cgroups, and nothing that it writes reaches this machine: the overlay is in memory.
It shares the network, so a unit reaches the brokers of the tests.
`systemctl` and `journalctl` are this machine's, inside the namespaces.
It needs root, overlayfs, and cgroups in which this user may make one: version 2, or version 1 with the hierarchy `systemd`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.support.stage import ROOT, eventually

CGROUPS = Path("/sys/fs/cgroup")
HIERARCHIES = ("systemd", "unified", "memory", "pids")
"""Of version 1: those that systemd uses for a unit here."""

SYSTEMD = Path("/lib/systemd/systemd")
CODE = "/opt/steadyworker"
"""Where the Worker's module is, for the unit."""

BOOT = r"""
set -eu
base=$1 python=$2 packages=$3 code=$4
mount --make-rprivate /
mount -t tmpfs tmpfs "$base"
mkdir "$base/up" "$base/work" "$base/root"
root=$base/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/up,workdir=$base/work" "$root"
mkdir -p "$root/opt/python" "$root/opt/packages" "$root/opt/code" "$root/old"
mount --bind "$python" "$root/opt/python"
mount --bind "$packages" "$root/opt/packages"
mount --bind "$code" "$root/opt/code"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
    mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
    mkdir "$root/sys/fs/cgroup/systemd" "$root/sys/fs/cgroup/unified" "$root/sys/fs/cgroup/memory" "$root/sys/fs/cgroup/pids"
    mount -t cgroup -o none,name=systemd systemd "$root/sys/fs/cgroup/systemd"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/unified"
    mount -t cgroup -o memory memory "$root/sys/fs/cgroup/memory"
    mount -t cgroup -o pids pids "$root/sys/fs/cgroup/pids"
fi
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/var/lib"
mount --bind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
rm -rf "$root/etc/systemd/system" "$root/lib/systemd/system/sysinit.target.wants" "$root/lib/systemd/system-generators"
mkdir "$root/etc/systemd/system"
# The kernel is this machine's, too: its messages stay outside, and its auditing stays as it is.
ln -s /dev/null "$root/etc/systemd/system/systemd-journald-audit.socket"
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\nRateLimitBurst=0\n' > "$root/etc/systemd/journald.conf"
: > "$root/etc/fstab"
printf '[Unit]\nRequires=systemd-journald.service\nAfter=systemd-journald.service\n' > "$root/etc/systemd/system/test.target"
cd "$root"
pivot_root . old
umount -l /old
mount --make-rshared /  # as outside of containers: systemd mounts credentials so that a unit sees them
exec env -i container=steadyworker-test PATH=/usr/sbin:/usr/bin:/sbin:/bin "$5" --system --unit=test.target --log-target=journal
"""

PROGRAM = """\
#!/bin/sh
export PYTHONPATH="/opt/code:/opt/code/adapters:/opt/packages:$PYTHONPATH"
export LD_LIBRARY_PATH=/opt/python/lib  # a Python that was moved finds its own library only there
exec /opt/python/bin/{python} -m steadyworker "$@"
"""


class Manager:
    """systemd, started with an empty folder of units; `close` ends it and every process that it has started."""

    def __init__(self, folder: Path) -> None:
        self._cgroups = list(_own_cgroups(f"steadyworker-test-{os.getpid()}"))
        self._log = folder / "systemd.log"
        arguments = [str(folder), sys.base_prefix, sysconfig.get_path("purelib"), str(ROOT), str(SYSTEMD)]
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--cgroup"]
        joined = "".join(f"echo $$ > {cgroup}/cgroup.procs; " for cgroup in self._cgroups)
        with self._log.open("wb") as out:
            self._outer = subprocess.Popen(
                ["sh", "-c", f'{joined}exec "$@"', "sh", *namespaces, "sh", "-c", BOOT, "sh", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.pid = 0
        try:
            self.pid = eventually(self._first, "systemd starts", 30, self.log)
            eventually(self._running, "systemd runs", 30, self.log)
        except BaseException:
            self.close()
            raise
        self.write(f"{CODE}/venv/bin/steadyworker", PROGRAM.format(python=f"python3.{sys.version_info.minor}"))
        self.path(f"{CODE}/venv/bin/steadyworker").chmod(0o755)

    def _first(self) -> int:
        if self._outer.poll() is not None:
            pytest.fail(f"systemd ended with {self._outer.returncode}:\n{self.log()}")
        for child in psutil.Process(self._outer.pid).children():
            with suppress(psutil.NoSuchProcess):
                if child.cmdline()[:1] == [str(SYSTEMD)]:
                    return int(child.pid)
        return 0

    def _running(self) -> bool:
        return self.run("systemctl", "is-active", "test.target").stdout.strip() == "active"

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    # --- its files and commands ---

    def path(self, name: str) -> Path:
        """A file inside, from outside; every link on the way has to be relative."""
        return Path(f"/proc/{self.pid}/root") / name.lstrip("/")

    def write(self, name: str, text: str) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command inside, in the folder `/`."""
        namespaces = ["--mount", "--pid", "--uts", "--ipc", "--cgroup", "--root"]
        inside = ["nsenter", f"--target={self.pid}", *namespaces, "sh", "-c", 'cd / && exec "$@"', "sh"]
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"} | dict(env or {})
        return subprocess.run(
            [*inside, *command], capture_output=True, text=True, check=False, env=environ, timeout=100
        )

    def systemctl(self, *arguments: str) -> str:
        """Run systemctl, which has to end well."""
        done = self.run("systemctl", "--no-pager", *arguments)
        assert done.returncode == 0, f"systemctl {' '.join(arguments)}: {done.stderr}\n{self.journal()}"
        return done.stdout

    def units(self, files: Mapping[str, str]) -> None:
        """Install these units."""
        for name, text in files.items():
            self.write(f"/etc/systemd/system/{name}", text)
        self.systemctl("daemon-reload")

    def drop_in(self, unit: str, **settings: str) -> None:
        """Change settings of a unit's section [Service], as `systemctl edit` does."""
        lines = "".join(f"{name}={text}\n" for name, text in settings.items())
        self.write(f"/etc/systemd/system/{unit}.d/test.conf", f"[Service]\n{lines}")
        self.systemctl("daemon-reload")

    def show(self, unit: str, name: str) -> str:
        return self.systemctl("show", f"--property={name}", "--value", unit).strip()

    def journal(self, unit: str = "*") -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit).stdout

    def close(self) -> None:
        """End every process inside, and remove the cgroups."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        if self._outer.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._outer.pid, signal.SIGKILL)
        self._outer.wait()
        for cgroup in self._cgroups:
            folders = sorted((path for path in cgroup.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
            for each in (*folders, cgroup):
                eventually(partial(_removed, each), f"{each} removed", 20)


def _removed(cgroup: Path) -> bool:
    with suppress(FileNotFoundError):
        try:
            cgroup.rmdir()
        except OSError:  # a process of it is about to end
            return False
    return True


def _own_cgroups(name: str) -> Iterator[Path]:
    """A new cgroup in each hierarchy that systemd needs."""
    if (CGROUPS / "cgroup.controllers").exists():
        for controller in ("memory", "pids"):
            with suppress(OSError):  # a container without this controller
                (CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
        parents = [CGROUPS]
    else:
        parents = [CGROUPS / each for each in HIERARCHIES]
    for parent in parents:
        (parent / name).mkdir()
        yield parent / name


def lacking() -> str:
    """What this machine lacks to run systemd in namespaces; empty if it has everything."""
    if os.geteuid() != 0:
        return "needs root, to run systemd in namespaces of its own"
    for program in ("unshare", "nsenter", "systemctl", "journalctl"):
        if shutil.which(program) is None:
            return f"needs {program}: apt-get install systemd util-linux"
    if not SYSTEMD.exists():
        return "needs systemd: apt-get install systemd"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "needs overlayfs"
    if not (CGROUPS / "cgroup.controllers").exists() and not all((CGROUPS / each).is_dir() for each in HIERARCHIES):
        return f"needs cgroups at {CGROUPS}"
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--cgroup", "mount", "-t", "tmpfs", "tmpfs", folder],
            capture_output=True,
            text=True,
            check=False,
        )
    return f"may not make namespaces: {tried.stderr.strip()}" if tried.returncode else ""
