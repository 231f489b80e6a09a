"""PgBouncer for tests: a pooler of our own before a PostgreSQL server, which lends a session for one transaction only."""

from __future__ import annotations

import os
import shutil
from urllib.parse import urlsplit

import psycopg

from tests.brokers.install import pgbouncer_program
from tests.brokers.process import Guard, Server, free_ports

CONFIGURATION = """\
[databases]
* = host={host} port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {logins}
pool_mode = transaction
default_pool_size = {sessions}
{settings}
"""
"""Else as it is shipped, with every startup parameter that it does not know refused."""


class Pooler:
    """PgBouncer in transaction mode, on a free loopback port; `settings` are lines of its configuration."""

    def __init__(self, server: str, *, sessions: int = 2, settings: str = "") -> None:
        """Start one for the server of this URL, with that many sessions; raises MissingError without program and apt."""
        program = pgbouncer_program()
        parts = urlsplit(server)
        self._guard = Guard("pgbouncer")
        self.log = self._guard.folder / "pooler.log"
        (self.port,) = free_ports(1)
        logins, configuration = self._guard.folder / "logins", self._guard.folder / "pgbouncer.ini"
        logins.write_text(f'"{parts.username}" "{parts.password}"\n')
        configuration.write_text(
            CONFIGURATION.format(
                host=parts.hostname,
                server_port=parts.port,
                port=self.port,
                logins=logins,
                sessions=sessions,
                settings=settings,
            )
        )
        unprivileged: list[str] = []
        if not os.geteuid():  # it refuses root
            for path in (self._guard.folder, logins, configuration):
                shutil.chown(path, "nobody")
            unprivileged = ["setpriv", "--reuid=nobody", "--clear-groups", "--"]
        command = [*unprivileged, str(program), str(configuration)]
        self._probe = self.through(server)
        self._server = Server(self._guard, command, {"PATH": os.defpath}, log=self.log, ready=self._answers)
        self._server.start()

    def through(self, url: str) -> str:
        """The URL of the same database, through the pooler."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{login}@127.0.0.1:{self.port}").geturl()

    def close(self) -> None:
        """Leave nothing behind: no process, no folder."""
        self._server.kill()
        self._guard.close()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self._probe, connect_timeout=30).close()
        except psycopg.OperationalError:
            return False
        return True
