"""MariaDB for tests: a server of our own from apt's programs, whose databases an SQL text makes when it starts."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from functools import partial
from pathlib import Path

from tests.brokers.install import mariadb_program
from tests.brokers.maven import java_program
from tests.brokers.process import BrokerError, Guard, Served, Server, free_ports, listens

USER = "reader"
DRIVERS = ("org.mariadb.jdbc:mariadb-java-client:3.5.6", "com.mysql:mysql-connector-j:9.5.0")
TABLES = Path("/usr/share/mysql/mysql_system_tables.sql")
"""The server's own tables, for its `--bootstrap`."""


def mysql_drivers() -> str:
    """Return the jars of both drivers, with commas between them; raises MissingError."""
    return ",".join(str(jar) for jar in sorted((java_program("mysql-drivers", DRIVERS) / "lib").glob("m*-*j*.jar")))


class MariaDB(Served):
    """A server on a free loopback port, with the database `shop`, which `USER` may read."""

    def __init__(self, setup: str) -> None:
        """Make a server ready to start, with the statements of `setup` in `shop`; raises MissingError."""
        program = mariadb_program()
        self._guard = Guard("mariadb")
        folder = self._guard.folder
        self.log = folder / "server.log"
        (self.port,) = free_ports(1)
        self.password = secrets.token_hex(16)
        data, statements = folder / "data", folder / "setup.sql"
        data.mkdir()
        options = ["--no-defaults", f"--datadir={data}", "--innodb-buffer-pool-size=16M"]
        if not os.geteuid():  # the server refuses root
            for path in (folder, data):
                shutil.chown(path, "nobody")
            options.append("--user=nobody")
        statements.write_text(
            f"""
SET NAMES utf8mb4;
CREATE DATABASE shop CHARACTER SET utf8mb4;
CREATE USER '{USER}'@'%' IDENTIFIED BY '{self.password}';
GRANT SELECT ON shop.* TO '{USER}'@'%';
USE shop;
{setup}""",
            encoding="utf-8",
        )
        made = subprocess.run(
            [program, *options, "--bootstrap"],
            input=f"CREATE DATABASE mysql;\nUSE mysql;\n{TABLES.read_text(encoding='utf-8')}",
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            self._guard.close()
            raise BrokerError(f"mariadbd --bootstrap failed: {made.stderr.strip()[-500:]}")
        command = [str(program), *options, f"--port={self.port}", "--bind-address=127.0.0.1"]
        command += [f"--socket={folder / 'socket'}", f"--init-file={statements}"]
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        self._server = Server(self._guard, command, environment, log=self.log, ready=partial(listens, self.port))

    def close(self) -> None:
        """End it, with its data."""
        self._server.kill()
        self._guard.close()
