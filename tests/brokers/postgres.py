"""PostgreSQL for tests: one that somebody runs, reached by its URL, or a server of our own that can be frozen and killed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.brokers.address import Address
from tests.brokers.install import postgres_programs
from tests.brokers.process import BrokerError, Guard, Served, Server, free_ports

USER = "steadyworker"
STANDS_BY_WITHIN = 60.0
"""Seconds until a standby follows its primary."""
CONFIGURATION = """\
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
shared_buffers = 32MB
max_connections = 300
log_line_prefix = '%m [%p] %q%u@%d '
"""
"""Else as it is shipped: what is committed is on disk (`fsync`, `synchronous_commit`)."""


class Postgres:
    """A server, reached by a role that may create databases."""

    def __init__(self, url: str) -> None:
        self.url = url

    def add_database(self) -> str:
        """The URL of a fresh, empty database."""
        name = f"test_{secrets.token_hex(4)}"
        self._execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def remove_database(self, url: str) -> None:
        """Remove it; connections to it are ended by the server."""
        name = sql.Identifier(urlsplit(url).path.removeprefix("/"))
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url, autocommit=True, connect_timeout=30) as connection:
            connection.execute(statement)


class Cluster(Served, Postgres):
    """A server of our own, on a free loopback port, in a temporary folder; logins need the password (SCRAM)."""

    def __init__(self, primary: Cluster | None = None) -> None:
        """
        Make one ready to start (a second or two), empty or a hot standby of the primary, which must run.

        Raises MissingError when there are no programs and no apt.
        """
        programs = postgres_programs()
        self._guard = Guard("postgres")
        self.folder = self._guard.folder
        self.log = self.folder / "server.log"
        (self.port,) = free_ports(1)
        password = str(urlsplit(primary.url).password) if primary else secrets.token_hex(8)
        super().__init__(f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/postgres")
        data, secret = self.folder / "data", self.folder / "password"
        secret.write_text(password)
        unprivileged: list[str] = []
        if not os.geteuid():  # the server refuses root
            for path in (self.folder, secret):
                shutil.chown(path, "nobody")
            unprivileged = ["setpriv", "--reuid=nobody", "--clear-groups", "--"]
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        options = ["initdb", f"--username={USER}", "--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8"]
        if primary:
            options = ["pg_basebackup", f"--dbname={primary.url}", "--write-recovery-conf", "--checkpoint=fast"]
        program, *options = options
        made = subprocess.run(
            [*unprivileged, str(programs / program), f"--pgdata={data}", "--no-sync", *options],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            self._guard.close()
            raise BrokerError(f"{program} failed: {(made.stdout + made.stderr).strip()}")
        with data.joinpath("postgresql.conf").open("a") as file:
            file.write(CONFIGURATION.format(port=self.port))
        command = [*unprivileged, str(programs / "postgres"), "-D", str(data)]
        self._server = Server(self._guard, command, environment, log=self.log, ready=self._answers)

    @property
    def address(self) -> Address:
        """Where other test processes reach it."""
        return Address(self.url)

    def stop(self) -> None:
        """A fast shutdown: clients are cut off, everything is on disk."""
        self._server.stop(signal.SIGINT)

    def wait_for_standby(self) -> None:
        """Let every commit wait from now on until the standby has applied it; returns when that is so."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for name, value in (("synchronous_standby_names", "*"), ("synchronous_commit", "remote_apply")):
                connection.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value))
            connection.execute("SELECT pg_reload_conf()")
            deadline = time.monotonic() + STANDS_BY_WITHIN
            while not connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone():
                if time.monotonic() > deadline:
                    raise self._server.error(f"had no synchronous standby within {STANDS_BY_WITHIN:g} s")
                time.sleep(0.05)

    def promote(self) -> None:
        """Make a standby a primary, and return when it takes writes."""
        self._execute(sql.SQL("SELECT pg_promote()").format())

    @contextmanager
    def tls(self, name: str, roots: Path) -> Iterator[None]:
        """Speak TLS too, with a certificate for this name; it is its own authority, and is in the file `roots`."""
        data = self.folder / "data"
        key, shown = data / "server.key", data / "server.crt"
        made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        names = [
            "-subj",
            f"/CN={name}",
            "-addext",
            f"subjectAltName=DNS:{name}",
            "-keyout",
            str(key),
            "-out",
            str(roots),
        ]
        subprocess.run(["openssl", *made, *names], check=True, capture_output=True)
        shutil.copy(roots, shown)
        for file in (key, shown):
            file.chmod(0o600)
            os.chown(file, data.stat().st_uid, data.stat().st_gid)
        self._switch_tls("on")
        yield
        self._switch_tls("off")

    def _switch_tls(self, to: str) -> None:
        """The server reads its settings again when it comes to it."""
        self._execute(sql.SQL("ALTER SYSTEM SET ssl = {}").format(to))
        self._execute(sql.SQL("SELECT pg_reload_conf()").format())
        deadline = time.monotonic() + 30
        while True:
            with psycopg.connect(self.url, autocommit=True) as later:
                if later.execute("SHOW ssl").fetchall() == [(to,)]:
                    return
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def heal(self) -> None:
        """Whatever a test did to it: running and reachable."""
        self.thaw()
        self.start()

    def remove_database(self, url: str) -> None:
        """Remove it, even where a test has left the server dead or frozen."""
        self.heal()
        super().remove_database(url)

    def close(self) -> None:
        """Leave nothing behind: no process, no folder."""
        self._server.kill()
        self._guard.close()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=30).close()
        except psycopg.OperationalError:
            return False
        return True
