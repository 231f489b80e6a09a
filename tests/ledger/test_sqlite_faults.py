"""What happens to the SQLite ledger's file, and what the ledger says of it: never a raw error, never a lost row."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import pytest

from steadyworker.backends.opening import open_ledger
from steadyworker.clock import Times
from steadyworker.config import resolve as config
from steadyworker.errors import ConfigError, LedgerUnavailable
from steadyworker.ledger.base import Claimed, JobId, Moving, Row, Verdict
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.system import mounts
from steadyworker.system.mounts import network_file_system
from steadyworker.testing.clock import FakeClock
from tests.support.schema_8 import version_before

ROOT = Path(__file__).parents[2]
JOB = JobId("shop", "exports", "m-17")
QUICK = Times().scaled(100)  # a call waits 0.1 s
NORMAL, FULL = 1, 2
"""SQLite's numbers of its levels."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(path, clock=FakeClock(), times=QUICK)) as ledger:
        yield ledger


def claim(ledger: SqliteLedger) -> Row:
    row = ledger.claim(Claimed(JOB, None, "me", 0, b"", Counters()))
    assert row is not None
    return row


def level_of(ledger: SqliteLedger) -> int:
    """Return the level of durability at which the connection is."""
    connection = ledger._file._connection
    assert connection is not None
    return int(connection.execute("PRAGMA synchronous").fetchone()[0])


def opened(path: Path) -> SqliteLedger:
    return SqliteLedger(path, clock=FakeClock(), times=QUICK)


class TestAtTheFirstCall:
    """What no retry can heal is a ConfigError, with its remedy, and a finding of `check`."""

    def refused(self, path: Path, match: str) -> None:
        with closing(opened(path)) as ledger:
            with pytest.raises(ConfigError, match=match):
                ledger.read(JOB)
            (finding,) = ledger.findings()
            assert finding.level == "error"
            assert str(path) in finding.what

    def test_what_is_not_a_database(self, path: Path) -> None:
        path.write_bytes(b"shopping list\n" * 1000)
        self.refused(path, "not a SQLite database")
        assert path.read_bytes().startswith(b"shopping list"), "it is left as it was"

    def test_another_programs_database(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE songs (name TEXT)")
        self.refused(path, "another program")
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",), "it is left as it was"

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            (1, "schema 8 to 9 at {path}, got 1: finish its jobs with the version of SteadyWorker that made it"),
            (7, "schema 8 to 9 at {path}, got 7: finish its jobs with the version of SteadyWorker that made it"),
            (99, "schema 9 at {path}, got 99, of SteadyWorker 7.1: install SteadyWorker 7.1 or newer here"),
        ],
        ids=["the first", "an old one", "a newer one"],
    )
    def test_another_schema(self, path: Path, schema: int, text: str) -> None:
        with closing(opened(path)) as ledger:
            claim(ledger)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE meta SET schema = ?, made_by = '7.1'", [schema])
        self.refused(path, text.format(path=path))

    def test_a_damaged_ledger(self, path: Path) -> None:
        with closing(opened(path)) as ledger:
            claim(ledger)
        os.truncate(path, 4096 * 2)
        self.refused(path, "damaged")

    def test_a_directory(self, path: Path) -> None:
        path.mkdir()
        self.refused(path, "cannot be opened")

    def test_a_place_below_a_file(self, path: Path) -> None:
        path.touch()
        self.refused(path / "state" / "ledger.db", "make its parent writable")

    def test_an_unknown_level(self, path: Path) -> None:
        with pytest.raises(ConfigError, match="synchronous=full"):
            SqliteLedger(path, synchronous="off", clock=FakeClock(), times=QUICK)


class TestInUse:
    """Whatever happens later is LedgerUnavailable, until it is put right; then everything is as it was."""

    def test_locked(self, path: Path, ledger: SqliteLedger) -> None:
        row = claim(ledger)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for write in (
                lambda: ledger.renew([row.token]),
                lambda: ledger.done(row.token),
                lambda: ledger.may_commit(row.token),
                lambda: ledger.claim(Claimed(JOB, row, "me", 0, b"", Counters())),
            ):
                with pytest.raises(LedgerUnavailable, match=r"locked.*fuser"):
                    write()
            assert ledger.read(JOB) == row, "a reader does not wait for a writer"
            with closing(opened(path)) as late, pytest.raises(LedgerUnavailable, match="locked"):
                late.read(JOB)
            other.execute("ROLLBACK")
        assert ledger.renew([row.token])[0].granted

    def test_gone_and_back(self, path: Path, ledger: SqliteLedger) -> None:
        """An unlinked file would go on taking writes that nobody else ever reads."""
        row = claim(ledger)
        away = path.with_name("away.db")
        path.rename(away)
        for _ in range(3):
            with pytest.raises(LedgerUnavailable, match="put it back"):
                ledger.renew([row.token])
            assert not path.exists(), "no new ledger is made in its place"
        with pytest.raises(LedgerUnavailable, match="removed"):
            ledger.read(JOB)
        away.rename(path)
        assert ledger.renew([row.token])[0].granted
        assert ledger.read(JOB) == row

    def test_removed_it_is_made_again_by_no_process(self, path: Path) -> None:
        """A second ledger at the path would know no job: a cancel would reach none, and every key would be new."""
        with closing(opened(path)) as ledger:
            ledger.ledger_id()
        path.unlink()
        with closing(opened(path)) as second:
            with pytest.raises(ConfigError, match=r"was removed: put it back; .* remove ledger\.db\.owners"):
                second.ledger_id()
            (finding,) = second.findings()
            assert finding.level == "error"
            assert not path.exists()
            second.owners_dir.rmdir()
            assert second.ledger_id(), "an empty one may begin"

    def test_replaced_by_an_empty_file(self, path: Path, ledger: SqliteLedger) -> None:
        """A copy that has just begun is empty: tables that were made in it would be another ledger, which knows no job."""
        row = claim(ledger)
        away = path.with_name("away.db")
        path.rename(away)
        path.touch()
        for match in ("replaced", "but the file is empty: put it back", "but the file is empty: put it back"):
            with pytest.raises(LedgerUnavailable, match=match):
                ledger.renew([row.token])
        with closing(opened(path)) as second, pytest.raises(ConfigError, match="but the file is empty: put it back"):
            second.ledger_id()
        assert path.stat().st_size == 0
        away.rename(path)
        assert ledger.renew([row.token])[0].granted

    def test_emptied_in_place(self, path: Path, ledger: SqliteLedger) -> None:
        """A program that puts another content into the file, such as `cp`, empties it first, and keeps its inode."""
        row = claim(ledger)
        ledger.close()
        good = path.with_name("good.db")
        shutil.copy(path, good)
        ledger = opened(path)
        assert ledger.renew([row.token])[0].granted
        os.truncate(path, 0)
        with pytest.raises(LedgerUnavailable, match="removed, replaced or emptied: put it back"):
            ledger.done(row.token)
        with pytest.raises(LedgerUnavailable):
            ledger.done(row.token)
        shutil.copy(good, path)
        assert ledger.renew([row.token])[0].granted
        assert ledger.done(row.token)
        ledger.close()

    def test_an_empty_file_may_become_a_ledger(self, path: Path) -> None:
        """Somebody who makes private files first."""
        path.touch(mode=0o600)
        with closing(opened(path)) as ledger:
            assert ledger.ledger_id()

    def test_replaced_by_another_workers_ledger(self, path: Path, ledger: SqliteLedger) -> None:
        """To close the file that was unlinked does no harm to the one that took its name."""
        row = claim(ledger)
        for leftover in path.parent.glob("ledger.db*"):
            leftover.rmdir() if leftover.is_dir() else leftover.unlink()
        with closing(opened(path)) as second:
            theirs = claim(second)
            with pytest.raises(LedgerUnavailable, match="replaced"):
                ledger.done(row.token)
            assert not ledger.done(row.token)
            assert second.checkpoint(theirs.token, b"17")
            seen = ledger.read(JOB)
            assert seen is not None
            assert (seen.fence, seen.checkpoint) == (theirs.fence, b"17")
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    def test_replaced_by_garbage(self, path: Path, ledger: SqliteLedger) -> None:
        row = claim(ledger)
        good = path.with_name("good.db")
        ledger.close()
        shutil.copy(path, good)
        ledger = opened(path)
        assert ledger.read(JOB) == row
        path.unlink()
        path.write_bytes(b"shopping list\n" * 1000)
        for match in ("replaced", "not a SQLite database", "not a SQLite database"):
            with pytest.raises(LedgerUnavailable, match=match):
                ledger.renew([row.token])
        good.replace(path)
        assert ledger.renew([row.token])[0].granted
        ledger.close()

    def test_damaged(self, path: Path, ledger: SqliteLedger) -> None:
        row = claim(ledger)
        ledger.close()
        whole = path.read_bytes()
        ledger = opened(path)
        assert ledger.ledger_id()
        with path.open("r+b") as file:  # the same inode, as a failing disk would have it
            file.seek(4096)
            file.write(b"\xff" * (len(whole) - 4096))
        with pytest.raises(LedgerUnavailable, match="damaged"):
            list(ledger.jobs())
        with path.open("r+b") as file:
            file.write(whole)
        assert ledger.read(JOB) == row
        ledger.close()

    def test_closed(self, ledger: SqliteLedger) -> None:
        row = claim(ledger)
        ledger.close()
        with pytest.raises(LedgerUnavailable, match="closed"):
            ledger.renew([row.token])

    def test_another_boot(self, path: Path, ledger: SqliteLedger) -> None:
        """The boot clock began anew: every lease of the boot before is over, and every delay, however short this one is."""
        row = claim(ledger)
        assert ledger.moving(row.token, Verdict(Moving.RETRY, "no", Counters(), delay=3600))
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE jobs SET lease_boot = 'before', due_boot = 'before'")
        with closing(SqliteLedger(path, clock=FakeClock(), times=Times(margin=86_400))) as just_booted:
            seen = just_booted.read(JOB)
        assert seen is not None
        assert (seen.lease_over, seen.due_in) == (True, 0.0)
        assert ledger.moved(row.token), "its owner is not refused: nobody took it"

    def test_leave_to_commit_is_on_disk_before_it_is_given(self, ledger: SqliteLedger) -> None:
        """Seen in the statements that are sent; a power cut cannot be had in a test."""
        row = claim(ledger)
        sent: list[str] = []
        connection = ledger._file._connection
        assert connection is not None
        connection.set_trace_callback(sent.append)
        assert ledger.may_commit(row.token).granted
        assert ledger.renew([row.token])[0].granted
        levels = [said.split("= ")[-1] if "PRAGMA" in said else said.split()[0] for said in sent]
        assert levels == ["full", "UPDATE", "normal", "BEGIN", "UPDATE", "COMMIT"]

    @pytest.mark.parametrize(("query", "level"), [("", NORMAL), ("?synchronous=full", FULL)])
    def test_each_commit_is_on_disk_before_it_is_answered_if_the_url_asks_for_it(
        self, path: Path, query: str, level: int
    ) -> None:
        """SQLite reports the level at which each call committed; it syncs its log at each commit of the level `full`."""
        options = config.load({"ledger": f"sqlite:{path}{query}"}, {}, path.parent)
        with closing(open_ledger(options, FakeClock(), QUICK, create=True)) as ledger:
            assert isinstance(ledger, SqliteLedger)
            row, other = (
                claim(ledger),
                ledger.claim(Claimed(JobId("shop", "exports", "m-18"), None, "me", 0, b"", Counters())),
            )
            levels = {"claim": level_of(ledger)}
            assert other is not None
            calls: dict[str, Callable[[], bool]] = {
                "renew": lambda: ledger.renew([row.token])[0].granted,
                "checkpoint": lambda: ledger.checkpoint(row.token, b"page 7"),
                "export_state": lambda: ledger.export_state(row.token, b"half"),
                "done": lambda: ledger.done(row.token),
                "moving": lambda: ledger.moving(other.token, Verdict(Moving.RETRY, "no", Counters())),
                "moved": lambda: ledger.moved(other.token),
            }
            for name, call in calls.items():
                assert call(), name
                levels[name] = level_of(ledger)
            assert levels == dict.fromkeys(["claim", *calls], level)
            connection = ledger._file._connection
            assert connection is not None
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


class TestNoRoom:
    """A ledger that cannot write says so, keeps what it has, and goes on when there is room."""

    def test_at_a_file_size_limit(self, tmp_path: Path) -> None:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

        self.fills(tmp_path, [], limit, "disk I/O error")

    def test_on_a_full_file_system(self, tmp_path: Path) -> None:
        self.fills(tmp_path, in_own_mounts(tmp_path, "mount -t tmpfs -o size=400k tmpfs"), None, "is full")

    def fills(self, tmp_path: Path, around: list[str], limit: Callable[[], None] | None, said: str) -> None:
        actor = [sys.executable, str(Path(__file__).with_name("actors.py")), "write", str(tmp_path / "room" / "l.db")]
        (tmp_path / "room").mkdir(exist_ok=True)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*around, *actor],
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            preexec_fn=limit,
            check=True,
            timeout=60,
        )
        lines = done.stdout.splitlines()
        assert lines[0] == "ok True"
        kinds = {line.split()[0] for line in lines}
        assert kinds == {"ok", "LedgerUnavailable"}
        assert any(said in line for line in lines)

    @pytest.mark.parametrize("version", [nullcontext, version_before], ids=["this version", "to be migrated"])
    def test_read_only(self, tmp_path: Path, version: Callable[[], AbstractContextManager[None]]) -> None:
        """At the first call it is a ConfigError: the deployment is wrong."""
        (tmp_path / "room").mkdir()
        with version(), closing(opened(tmp_path / "room" / "l.db")) as ledger:
            claim(ledger)
        around = in_own_mounts(tmp_path, "mount -o bind,ro " + str(tmp_path / "room"))
        script = (
            "import sys, pathlib; sys.path.insert(0, sys.argv[2]);"
            "from steadyworker.clock import *; from steadyworker.ledger.sqlite import *;"
            "ledger = SqliteLedger(pathlib.Path(sys.argv[1]), clock=SystemClock(), times=Times());"
            "[print(finding) for finding in ledger.findings()]"
        )
        command = [*around, sys.executable, "-c", script, str(tmp_path / "room" / "l.db"), str(ROOT)]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
        assert "make the file and its directory writable" in said or "directory must exist and be writable" in said


def in_own_mounts(tmp_path: Path, mount: str) -> list[str]:
    """A command's beginning that gives it a mount of its own at `room`; skips where the kernel does not let us."""
    around = ["unshare", "-rm", "sh", "-c", f'{mount} "$0" && exec "$@"', str(tmp_path / "room")]
    (tmp_path / "room").mkdir(exist_ok=True)
    if not shutil.which("unshare") or subprocess.run([*around, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    return around


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:40 / /srv rw,relatime shared:5 - nfs4 server:/srv rw
24 22 0:41 / /srv/local\\040disk rw - xfs /dev/vdb rw
25 22 0:42 / /home/me/far rw - fuse.sshfs me@far: rw
26 22 0:43 / /mnt/c rw - 9p drvfs rw
27 22 0:44 / /mnt/share rw - cifs //nas/share rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/ledger.db", None),
        ("/srv/ledger.db", "nfs4"),
        ("/srvx/ledger.db", None),
        ("/srv/local disk/ledger.db", None),
        ("/home/me/far/a/ledger.db", "fuse.sshfs"),
        ("/mnt/c/ledger.db", "9p"),
        ("/mnt/share/ledger.db", "cifs"),
    ],
)
def test_a_network_file_system_is_known_by_its_mount(path: str, kind: str | None) -> None:
    assert network_file_system(Path(path), MOUNTS) == kind


def test_a_mount_point_that_is_no_utf8_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "mountinfo"
    info.write_bytes(b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /srv/\xff rw - nfs4 server:/x rw\n")
    monkeypatch.setattr(mounts, "_MOUNTS", info)
    assert network_file_system(Path(os.fsdecode(b"/srv/\xff/ledger.db")), mounts.mounted()) == "nfs4"
