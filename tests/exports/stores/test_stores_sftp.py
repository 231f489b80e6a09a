"""Exports by fsspec to a store that promises less: an SFTP server, as an example of all others."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import fsspec.config
import pytest
from click.testing import CliRunner

from steadyworker.errors import ExportError, ExportRejected, Interrupt, TargetExists
from steadyworker.exports.cli.verify import command
from steadyworker.exports.formats import Csv
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stores import filesystem
from steadyworker.exports.stores.url import LIMITS
from steadyworker.exports.verifying import verify
from tests.conftest import Eventually
from tests.exports.kit import FakeServices, Payments

pytestmark = pytest.mark.xdist_group("stores")

MANIFEST = "pay.csv.manifest.json"


@dataclass
class Partner:
    """The server: `folder` is what its user sees at `/`; `connections` returns those that are open."""

    url: str
    folder: Path
    connections: Callable[[], Any]

    def names(self) -> list[str]:
        """Return the files, and the folders but for an empty `.sw-stage`."""
        found = [path for path in self.folder.rglob("*") if path.name != ".sw-stage" or [*path.iterdir()]]
        return sorted(path.relative_to(self.folder).as_posix() for path in found)


class Plain(asyncssh.SFTPServer):
    """A server as most partners have it: without OpenSSH's own requests, and without a shell."""

    def posix_rename(self, oldpath: bytes, newpath: bytes) -> None:
        del oldpath, newpath
        raise asyncssh.SFTPOpUnsupported("posix-rename")


@pytest.fixture
def partner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Partner]:
    home, folder = tmp_path / "home", tmp_path / "partner"
    (home / ".ssh").mkdir(parents=True)
    folder.mkdir()
    keys = {name: asyncssh.generate_private_key("ssh-ed25519") for name in ("host", "client")}
    keys["client"].write_private_key(home / ".ssh" / "id_ed25519")
    keys["client"].write_public_key(tmp_path / "authorized")
    loop, connections = asyncio.new_event_loop(), list[asyncssh.SSHServerConnection]()

    async def listen() -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[keys["host"]],
            authorized_client_keys=str(tmp_path / "authorized"),
            acceptor=connections.append,
            sftp_factory=lambda channel: Plain(channel, chroot=bytes(folder)),
        )

    server = loop.run_until_complete(listen())
    port = server.get_port()
    public = keys["host"].export_public_key().decode()
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    logging.getLogger("asyncssh").setLevel(logging.WARNING)

    async def close() -> None:
        server.close()
        for connection in connections:
            connection.close()
            await connection.wait_closed()
        await server.wait_closed()

    try:
        yield Partner(
            f"sftp://partner@127.0.0.1:{port}", folder, lambda: [each for each in connections if not each.is_closed()]
        )
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_the_file_is_moved_into_place_and_the_manifest_names_what_is_not_promised(
    partner: Partner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    to = f"{partner.url}/out/pay.csv"
    local = Payments(9).export().write(FakeServices(tmp_path / "local"), tmp_path / "pay.csv")
    manifest = Payments(9).export().write(FakeServices(tmp_path / "ledger"), to)
    assert partner.names() == ["out", "out/pay.csv", f"out/{MANIFEST}"]
    assert (partner.folder / "out/pay.csv").read_bytes() == (tmp_path / "pay.csv").read_bytes()
    assert (manifest.sha256, manifest.limits) == (local.sha256, LIMITS)
    assert json.loads((partner.folder / "out" / MANIFEST).read_bytes())["limits"] == [*LIMITS]
    (warned,) = [record for record in caplog.records if "export_target_limited" in str(record.msg)]
    assert warned.levelname == "WARNING"
    assert verify(to) == manifest
    source = Payments(9)
    assert source.export().write(FakeServices(tmp_path / "ledger", fence=2), to) == manifest
    assert source.starts == []
    with pytest.raises(TargetExists, match="was made by job uid-1"):
        Payments(8).export().write(FakeServices(tmp_path / "other", uid="uid-2", key="another"), to)


class Died(Exception):
    """The end of a run after which nothing is tidied up, as after a kill."""


@pytest.mark.parametrize("point", ["before the move", "before the manifest"])
def test_the_next_run_on_another_host_finishes_what_a_killed_one_left(
    partner: Partner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    to, move = f"{partner.url}/out/pay.csv", filesystem.FileSystem._move

    def dies(self: filesystem.FileSystem, key: str, *more: object) -> None:
        if key.endswith("pay.csv") if point == "before the move" else key.endswith(MANIFEST):
            raise Died
        move(self, key, *more)  # type: ignore[arg-type]

    with monkeypatch.context() as mortal:
        mortal.setattr(filesystem.FileSystem, "_move", dies)
        with pytest.raises(Died):
            Payments(9).export().write(FakeServices(tmp_path / "ledger"), to)
    seen = [name for name in partner.names() if ".sw-stage" not in name]
    assert seen == (["out"] if point == "before the move" else ["out", "out/pay.csv"])
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "other"))
    source = Payments(9)
    manifest = source.export().write(FakeServices(tmp_path / "ledger", fence=2), to)
    assert partner.names() == ["out", "out/pay.csv", f"out/{MANIFEST}"]
    assert source.starts == ([0] if point == "before the move" else [])
    assert verify(to) == manifest


def test_what_another_put_there_stays(partner: Partner, tmp_path: Path) -> None:
    (partner.folder / "pay.csv").write_bytes(b"not ours")
    with pytest.raises(TargetExists, match="has no uid of a SteadyWorker job"):
        Payments(9).export().write(FakeServices(tmp_path / "ledger"), f"{partner.url}/pay.csv")
    assert partner.names() == ["pay.csv"]


def test_a_job_whose_target_has_appeared_before_its_move_learns_whose_it_is(partner: Partner, tmp_path: Path) -> None:
    to = f"{partner.url}/pay.csv"

    def overtake() -> None:
        Payments(8).export().write(FakeServices(tmp_path / "other", uid="uid-2", key="another"), to)

    with pytest.raises(TargetExists, match="was made by job uid-2"):
        Payments(9).export().write(FakeServices(tmp_path / "ledger", on_leave=overtake), to)
    assert verify(to).rows == 8


def test_a_file_that_appears_during_the_upload_stays(
    partner: Partner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, write = f"{partner.url}/pay.csv", filesystem.FileSystem._write
    winner: list[Manifest] = []

    def overtaken(self: filesystem.FileSystem, key: str, data: object, *more: object) -> None:
        write(self, key, data, *more)  # type: ignore[arg-type]
        if key.endswith(".new") and not isinstance(data, bytes) and "uid-1" in key:
            services = FakeServices(tmp_path / "other", uid="uid-2", key="another")
            winner.append(Payments(8).export().write(services, to))

    monkeypatch.setattr(filesystem.FileSystem, "_write", overtaken)
    with pytest.raises(TargetExists, match="was made by job uid-2"):
        Payments(9).export().write(FakeServices(tmp_path / "ledger"), to)
    assert [verify(to)] == winner
    assert [name for name in partner.names() if not name.startswith(".sw-stage")] == ["pay.csv", MANIFEST]


def test_a_file_that_appears_just_before_the_move_stays(
    partner: Partner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol's own request for a move refuses it, unlike OpenSSH's."""
    to, rename = f"{partner.url}/pay.csv", filesystem.FileSystem._rename
    winner: list[Manifest] = []

    def overtaken(self: filesystem.FileSystem, old: str, new: str) -> None:
        if not winner:
            monkeypatch.setattr(filesystem.FileSystem, "_rename", rename)
            winner.append(Payments(8).export().write(FakeServices(tmp_path / "other", uid="uid-2", key="another"), to))
        rename(self, old, new)

    monkeypatch.setattr(filesystem.FileSystem, "_rename", overtaken)
    with pytest.raises(TargetExists, match="was made by job uid-2"):
        Payments(9).export().write(FakeServices(tmp_path / "ledger"), to)
    assert [verify(to)] == winner


def test_a_run_frozen_in_its_upload_puts_no_second_file_into_the_drop_folder(
    partner: Partner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partner has already taken the file of the next run."""
    to, write = f"{partner.url}/pay.csv", filesystem.FileSystem._write
    taken: list[Manifest] = []

    def frozen(self: filesystem.FileSystem, key: str, data: Any, *more: object) -> None:
        if key.endswith(".new") and not isinstance(data, bytes):
            monkeypatch.setattr(filesystem.FileSystem, "_write", write)
            taken.append(Payments(9).export().write(FakeServices(tmp_path / "ledger", fence=2), to))
            for name in ("pay.csv", MANIFEST):
                (partner.folder / name).unlink()
        write(self, key, data, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(filesystem.FileSystem, "_write", frozen)
    with pytest.raises(Interrupt, match="fenced"):
        Payments(9).export().write(FakeServices(tmp_path / "ledger"), to)
    assert (len(taken), partner.names()) == (1, [])


def test_a_cancelled_export_leaves_nothing(partner: Partner, tmp_path: Path) -> None:
    def cancel() -> None:
        raise Interrupt("cancelled")

    with pytest.raises(Interrupt, match="cancelled"):
        Payments(9).export().write(FakeServices(tmp_path / "ledger", on_leave=cancel), f"{partner.url}/pay.csv")
    assert partner.names() == []


def test_several_files_and_a_replacement_are_refused(partner: Partner, tmp_path: Path) -> None:
    to = f"{partner.url}/pay.csv"
    with pytest.raises(ExportRejected, match=r"Expected one file for sftp://.*the files of two jobs could mix"):
        Payments(9).export().write(FakeServices(tmp_path / "ledger"), f"{partner.url}/pay", format=Csv(), split_rows=3)
    with pytest.raises(ExportRejected, match=r'Expected if_exists="fail" for sftp://.*put job.name into the key'):
        Payments(9).export().write(FakeServices(tmp_path / "ledger"), to, if_exists="replace-own")
    assert partner.names() == []


def test_an_unknown_server_is_refused(partner: Partner, tmp_path: Path) -> None:
    (tmp_path / "home" / ".ssh" / "known_hosts").write_text("")
    with pytest.raises(ExportError, match=r"connect sftp://.*HostKeyNotVerifiable.*must be in ~/.ssh/known_hosts"):
        Payments(9).export().write(FakeServices(tmp_path / "ledger"), f"{partner.url}/pay.csv")


def test_fsspecs_configuration_names_the_known_hosts(
    partner: Partner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = (tmp_path / "home" / ".ssh" / "known_hosts").rename(tmp_path / "hosts-of-partners")
    monkeypatch.setitem(fsspec.config.conf, "sftp", {"known_hosts": str(known)})
    assert Payments(9).export().write(FakeServices(tmp_path / "ledger"), f"{partner.url}/pay.csv").rows == 9


def test_a_library_that_accepts_each_servers_key_is_not_used(
    partner: Partner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sshfs", None)
    with pytest.raises(ExportError, match="run pip install sshfs"):
        Payments(9).export().write(FakeServices(tmp_path / "ledger"), f"{partner.url}/pay.csv")


def test_an_export_leaves_no_connection(partner: Partner, tmp_path: Path, eventually: Eventually) -> None:
    manifest = Payments(9).export().write(FakeServices(tmp_path / "ledger"), f"{partner.url}/pay.csv")
    assert verify(f"{partner.url}/pay.csv") == manifest
    assert eventually(lambda: not partner.connections())


def test_the_trial_of_a_target_leaves_no_file(partner: Partner, tmp_path: Path) -> None:
    (partner.folder / "there").mkdir()
    for target in ("in/march.csv", "there/"):
        done = CliRunner().invoke(command, ["--target", f"{partner.url}/{target}"])
        assert done.exit_code == 0, done.output
    assert partner.names() == ["in", "there"]
    assert Payments(9).export().write(FakeServices(tmp_path / "ledger"), f"{partner.url}/in/march.csv").rows == 9


def test_the_command_reports_before_a_deploy_what_is_not_promised(partner: Partner) -> None:
    done = CliRunner().invoke(command, ["--target", f"{partner.url}/out.csv", "--json"])
    assert (done.exit_code, json.loads(done.output).get("limits")) == (0, [*LIMITS]), done.output
    assert partner.names() == []
