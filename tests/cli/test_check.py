"""`steadyworker check`, `adapters` and `verify`: what is looked at without running anything."""

from __future__ import annotations

import hashlib
import re
import socket
import sqlite3
from contextlib import closing
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path

import pytest

from steadyworker.cli.adapters import record
from steadyworker.exports.formats import Csv
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stage import manifest_path
from tests.cli.kit import Queues, Shell


class TestCheck:
    def test_shows_every_setting_with_its_origin(self, shell: Shell) -> None:
        (shell.folder / "steadyworker.toml").write_text("max_jobs = 5\n[workers.Exports]\nconcurrency = 3\n")
        done = shell("check", "app:Exports", "--stop-within", "1h", environ={"STEADYWORKER_IDLE_EXIT": "90s"})
        assert done.code == 0, done.err
        rows = {line.split()[0]: re.split(r"\s{2,}", line) for line in done.lines if line}
        assert rows["stop_within"][1:] == ["3600", "--stop-within"]
        assert rows["idle_exit"][1:] == ["90", "STEADYWORKER_IDLE_EXIT"]
        assert rows["max_jobs"][1] == "5"
        assert "steadyworker.toml" in rows["max_jobs"][2]
        assert rows["log_level"][1:] == ["info", "default"]
        assert rows["concurrency"][1:] == ["3", "[workers.Exports]"]
        assert rows["queue"][1:] == ["exports", "Exports"]

    def test_as_json_is_one_object(self, shell: Shell) -> None:
        (printed,) = shell("check", "app:Exports", "--json").records
        assert printed["settings"]["stop_within"] == {"value": "28", "origin": "default"}
        assert printed["workers"]["app:Exports"]["time_limit"]["value"] == "60"
        assert [finding for finding in printed["findings"] if finding["level"] == "error"] == []

    def test_ends_with_78_on_an_error_and_names_the_remedy(self, shell: Shell) -> None:
        done = shell("check", "app:Exports", "--namespace", "two words")
        assert done.code == 78
        assert "error:" in done.out
        assert "remedy:" in done.out

    def test_strict_ends_with_1_on_a_warning_such_as_an_absent_broker(self, shell: Shell) -> None:
        away = ("check", "app:Exports", "--broker", "amqp://127.0.0.1:1/")
        assert shell(*away).code == 0
        done = shell(*away, "--strict")
        assert done.code == 1
        assert "warning: The broker does not respond, so queue 'exports' was not checked: " in done.out

    def test_strict_ends_with_0_on_notes_and_with_78_on_an_error(self, shell: Shell) -> None:
        done = shell("check", "app:Exports", "--strict")
        assert (done.code, done.out.count("note: "), done.out.count("warning: ")) == (0, 1, 0)
        assert shell("check", "app:Exports", "--strict", "--namespace", "two words").code == 78

    @pytest.mark.parametrize("command", [("check",), ("send",)], ids=" ".join)
    def test_refuses_a_payload_type_that_no_json_can_be_decoded_to(self, shell: Shell, command: tuple[str]) -> None:
        (shell.folder / "sockets.py").write_text(
            "import socket\nfrom steadyworker import Job, Worker\n"
            "class Sockets(Worker[dict[str, socket.socket]]):\n"
            "    queue = 'sockets'\n    time_limit = 60\n"
            "    def handle(self, job: Job[dict[str, socket.socket]]) -> None: ...\n"
        )
        done = shell(*command, "sockets:Sockets", *(["{}"] if command == ("send",) else []))
        assert done.code == 78
        assert "got dict[str, socket.socket], whose $[…] is <class 'socket.socket'>: use a dataclass" in done.err

    def test_shows_no_password(self, shell: Shell) -> None:
        done = shell("check", "app:Exports", "--ledger", "postgresql://me:hunter2@db/x")
        assert "hunter2" not in done.out + done.err

    def test_refuses_two_workers_on_one_queue(self, shell: Shell) -> None:
        (shell.folder / "more.py").write_text("from app import Exports\nclass More(Exports): pass\n")
        done = shell("check", "app:Exports", "more:More")
        assert done.code == 78
        assert "exports" in done.err + done.out


class TestAdapters:
    def test_lists_the_embedded_broker(self, shell: Shell) -> None:
        done = shell("adapters")
        assert done.code == 0
        assert re.search(r"^sqlite:\s+steadyworker_sqlite\s+built in$", done.out, re.MULTILINE)
        (sqlite,) = [one for one in shell("adapters", "--json").records if one["scheme"] == "sqlite"]
        assert sqlite["usable"] is True

    def test_names_the_extra_whose_library_is_missing(self, tmp_path: Path) -> None:
        info = tmp_path / "shop-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: shop\nVersion: 1.0\nProvides-Extra: sqs\nProvides-Extra: other\n"
            'Requires-Dist: no-such-client>=1.3; extra == "sqs"\n'
            "Requires-Dist: click\n"
            'Requires-Dist: also-missing; extra == "other"\n'
        )
        (info / "entry_points.txt").write_text("[steadyworker.adapters]\nsqs = steadyworker_sqs\n")
        (entry,) = Distribution.at(info).entry_points
        assert isinstance(entry, EntryPoint)
        printed = record("sqs", entry)
        assert printed["libraries"] == {"no-such-client": None}
        assert printed["usable"] is False
        assert printed["install"] == "pip install 'shop[sqs]'"


class TestVerify:
    def file(self, folder: Path, text: bytes = b"id\n1\n2\n") -> Path:
        path = folder / "m-17.csv"
        path.write_bytes(text)
        manifest = Manifest(
            uid="u",
            key="k-1",
            fence=7,
            name=path.name,
            query="rows",
            columns=("id",),
            rows=2,
            bytes=7,
            sha256=hashlib.sha256(b"id\n1\n2\n").hexdigest(),
            format=Csv().options(),
            created_at="2024-06-01T00:00:00+00:00",
        )
        manifest_path(path).write_bytes(manifest.dump())
        return path

    def test_of_a_true_file(self, shell: Shell) -> None:
        self.file(shell.folder)
        done = shell("verify", "m-17.csv")
        assert done.code == 0, done
        assert done.out.startswith("ok  m-17.csv: 2 rows, 7 bytes, sha256 ")
        (printed,) = shell("verify", "m-17.csv", "--json").records
        assert (printed["ok"], printed["rows"]) == (True, 2)

    def test_of_a_changed_file_is_1(self, shell: Shell) -> None:
        self.file(shell.folder, b"id\n1\n3\n")
        done = shell("verify", "m-17.csv")
        assert done.code == 1
        assert done.out.startswith("failed  m-17.csv: ")
        assert shell("verify", "m-17.csv", "--json").records[0]["ok"] is False

    def test_of_no_file_is_1(self, shell: Shell) -> None:
        assert shell("verify", "nothing.csv").code == 1

    def test_asks_the_source(self, shell: Shell) -> None:
        self.file(shell.folder)
        with closing(sqlite3.connect(shell.folder / "shop.db")) as db:
            db.executescript("CREATE TABLE p (id INTEGER); INSERT INTO p VALUES (1), (2)")
        source = ("--source", "sqlite:shop.db", "--query")
        assert shell("verify", "m-17.csv", *source, "SELECT count(*) FROM p").code == 0
        done = shell("verify", "m-17.csv", *source, "SELECT count(*) + 1 FROM p")
        assert done.code == 1
        assert "m-17.csv differs from its source: expected rows to be 3, got 2" in done.out
        refused = shell("verify", "m-17.csv", *source, "DELETE FROM p")
        assert refused.code == 78, "1 would mean that the file does not match"
        assert "readonly" in refused.err
        assert shell("verify", "m-17.csv", "--source", "sqlite:none.db", "--query", "SELECT 2").code == 78
        with closing(sqlite3.connect(shell.folder / "shop.db", isolation_level=None)) as db:
            db.execute("BEGIN EXCLUSIVE")
            locked = shell("verify", "m-17.csv", *source, "SELECT count(*) FROM p")
        assert locked.code == 69
        assert "locked" in locked.err

    def test_of_a_source_that_is_down_is_69(self, shell: Shell) -> None:
        """As of a broker or ledger that is down: the file is neither right nor wrong."""
        self.file(shell.folder)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        down = f"postgresql://shop:hunter2@127.0.0.1:{port}/shop"
        done = shell("verify", "m-17.csv", "--source", down, "--query", "SELECT 2")
        assert done.code == 69, done
        assert "check that the source runs" in done.err
        assert "hunter2" not in done.err
        assert done.out == ""

    def test_asks_a_source_in_postgresql(self, shell: Shell, database: str) -> None:
        self.file(shell.folder)
        assert shell("verify", "m-17.csv", "--source", database, "--query", "SELECT 2").code == 0
        refused = shell("verify", "m-17.csv", "--source", database, "--query", "CREATE TABLE p (id integer)")
        assert refused.code == 78
        assert "read-only" in refused.err
        stranger = re.sub(r"//[^@/]*@", "//stranger:wrong@", database)
        assert shell("verify", "m-17.csv", "--source", stranger, "--query", "SELECT 2").code == 78

    @pytest.mark.parametrize(
        "asked",
        [
            ("m-17.csv", "--source", "sqlite:shop.db"),
            ("m-17.csv", "--query", "SELECT 2"),
            ("m-17.csv", "m-18.csv", "--source", "sqlite:shop.db", "--query", "SELECT 2"),
            ("m-17.csv", "--source", "mysql://shop", "--query", "SELECT 2"),
        ],
    )
    def test_a_source_needs_a_query_and_one_file(self, shell: Shell, asked: tuple[str, ...]) -> None:
        self.file(shell.folder)
        assert shell("verify", *asked).code == 64

    def test_needs_an_argument(self, shell: Shell) -> None:
        assert shell("verify").code == 64

    def test_reap_removes_the_stages_of_jobs_that_ended(self, shell: Shell, queues: Queues) -> None:
        ended = queues.job("k-1", lambda ledger, row: ledger.done(row.token))
        running = queues.job("k-2")
        for uid in (ended.uid, running.uid):
            (shell.folder / ".sw-stage" / uid / "7").mkdir(parents=True)
        done = shell("verify", "--reap", ".")
        assert done.code == 0
        assert [path.name for path in (shell.folder / ".sw-stage").iterdir()] == [running.uid]
