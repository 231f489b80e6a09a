"""RabbitMQ for tests: one that somebody runs, reached by its URLs, or a node of our own that can be frozen and killed."""

from __future__ import annotations

import base64
import http.client
import json
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pika
import trustme
from pika.exceptions import AMQPError

from tests.brokers.address import Address
from tests.brokers.install import HOST, rabbitmq_root
from tests.brokers.process import BrokerError, Guard, Served, Server, free_ports
from tests.support.stage import eventually

USER = "steadyworker"
CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
listeners.ssl.1 = 127.0.0.1:{amqps}
ssl_options.cacertfile = {inside}/ca.pem
ssl_options.certfile = {inside}/server.pem
ssl_options.keyfile = {inside}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
ssl_cert_login_from = common_name
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
default_user = {user}
default_pass = {password}
vm_memory_high_watermark.absolute = {memory}
disk_free_limit.absolute = 50MB
collect_statistics_interval = 1000
"""
PLUGINS = "rabbitmq_auth_mechanism_ssl, rabbitmq_management"
MEMORY = 1 << 30
"""Bytes at which a node of ours raises its memory alarm; an idle one has some 130 MB."""

SMALL = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
"""Erlang with one scheduler, which does not spin while it waits: the tests need the cores."""

COMMAND_WITHIN = 100.0
"""Seconds for a command of an operator's: each is an Erlang machine of its own, a second on an idle one of ours."""

SAYS_SOON = "-rabbit quorum_tick_interval 300"
"""Milliseconds, not 5 s: what the management API says of a quorum queue is as old."""


@dataclass(frozen=True)
class Vhost:
    """A virtual host and the one user who may enter it."""

    name: str
    user: str
    password: str
    url: str
    tls_url: str
    """Over TLS; empty where the broker offers none."""


class RabbitMQ:
    """A broker, reached as its administrator: `url` is the default virtual host's, `management_url` has no credentials."""

    tls_url = ""
    series = ""
    """Which of those that the tests can start, such as "4.3"; empty for a broker that somebody else runs."""

    def __init__(self, url: str, management_url: str) -> None:
        self.url, self.management_url = url, management_url.rstrip("/")

    @cached_property
    def version(self) -> tuple[int, ...]:
        """Such as (4, 3, 6)."""
        return tuple(int(part) for part in self.management("GET", "overview")["rabbitmq_version"].split(".")[:3])

    def management(self, method: str, path: str, body: object = None) -> Any:
        """
        The answer of the management API to `method` on `/api/{path}`; None where it has no body.

        Raises OSError when nobody listens, AssertionError on any other status than 2xx.
        """
        parts, address = urlsplit(self.url), urlsplit(self.management_url)
        assert address.hostname, f"expected http://HOST:PORT of the management API, got {self.management_url!r}"
        secret = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        headers = {
            "authorization": f"Basic {base64.b64encode(secret.encode()).decode()}",
            "content-type": "application/json",
        }
        secure = address.scheme == "https"
        make = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = make(address.hostname, address.port, timeout=30)
        try:
            connection.request(method, f"{address.path}/api/{path}", json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        assert answer.status < 300, f"{method} {path}: expected 2xx, got {answer.status} {said[:500]!r}"
        return json.loads(said) if said else None

    def add_vhost(self) -> Vhost:
        """A fresh virtual host with a fresh user, who may do anything in it and ask the management API about it."""
        name, password = f"test-{secrets.token_hex(4)}", secrets.token_hex(8)
        self.management("PUT", f"users/{name}", {"password": password, "tags": "management"})
        self.management("PUT", f"vhosts/{name}")
        self.management("PUT", f"permissions/{name}/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
        url, tls_url = (_with_login(base, name, password) for base in (self.url, self.tls_url))
        return Vhost(name, name, password, url, tls_url)

    def remove_vhost(self, vhost: Vhost) -> None:
        """Remove it, all in it, and its user; connections to it are closed by the broker."""
        self.management("DELETE", f"vhosts/{vhost.name}")
        self.management("DELETE", f"users/{vhost.user}")


def _with_login(url: str, name: str, password: str) -> str:
    """The URL of virtual host `name`, for the user of the same name."""
    parts = urlsplit(url)
    return (
        parts._replace(netloc=f"{name}:{password}@{parts.netloc.rpartition('@')[2]}", path=f"/{name}").geturl()
        if url
        else ""
    )


class Node(Served, RabbitMQ):
    """A node of our own, on free loopback ports, in a temporary folder, with an epmd of its own."""

    def __init__(self, series: str, *, beside: Node | None = None) -> None:
        """
        Make a node of this series ready to start; raises MissingError when it cannot be brought here.

        A node `beside` another shares its epmd, cookie and password, and so may join it in a cluster.
        """
        self._root = rabbitmq_root(series)
        self._guard = Guard(f"rabbitmq-{series}")
        self.series, self.folder = series, self._guard.folder
        self.log = self.folder / "node.log"
        self.amqp, self.amqps, management, self._dist, epmd_port = free_ports(5)
        self.name = f"test-{self._dist}@localhost" if beside else "test@localhost"
        """Erlang's name for it."""
        self._epmd_port: int = beside._epmd_port if beside else epmd_port
        self._cookie: str = beside._cookie if beside else secrets.token_hex(16)
        password = str(urlsplit(beside.url).password) if beside else secrets.token_hex(8)
        super().__init__(f"amqp://{USER}:{password}@127.0.0.1:{self.amqp}/%2F", f"http://127.0.0.1:{management}")
        self.tls_url = f"amqps://{USER}:{password}@127.0.0.1:{self.amqps}/%2F"
        self.ca = trustme.CA()
        """Signed the node's certificate (127.0.0.1, localhost), and signs whatever else a test needs."""
        self.ca_file = self.folder / "ca.pem"
        self._write_files(password, management)
        self._frozen = False
        self._owns_epmd = beside is None
        self._calls = threading.Lock()
        environment = self._environment()
        epmd = self._enter("epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1")
        names = self._enter("epmd", "-names")
        self._epmd: Server = (
            beside._epmd
            if beside
            else Server(
                self._guard,
                epmd,
                environment,
                log=self.folder / "epmd.log",
                ready=lambda: subprocess.run(names, env=environment, capture_output=True, check=False).returncode == 0,
            )
        )
        self._server = Server(
            self._guard, self._enter(self._program("rabbitmq-server")), environment, log=self.log, ready=self._answers
        )

    # --- Its life -----------------------------------------------------------------------------------------------------

    @property
    def address(self) -> Address:
        """Where other test processes reach it."""
        return Address(self.url, self.management_url, self.tls_url, certificates=str(self.folder))

    def start(self) -> None:
        """Start it, or start it again with its data; returns when it accepts connections."""
        self._epmd.start()
        super().start()

    def replace(self, series: str) -> None:
        """While it is down: it starts again as this later version, with its data; raises MissingError when that cannot be brought here."""
        self.series, self._root = series, rabbitmq_root(series)
        self.__dict__.pop("version", None)
        self._server.command = self._enter(self._program("rabbitmq-server"))
        self._server.environment = self._environment()

    def kill(self) -> None:
        """
        SIGKILL; `start` brings it back with what was on disk.

        Erlang's dets tables are written first: 3.10 keeps a quorum queue's term in one for seconds, and a queue that
        is killed as soon as it is declared never has a leader again (seen on 3.10.8, not on 4.3.6).
        """
        if self.running and not self._frozen:
            self.eval("[dets:sync(Table) || Table <- dets:all()]")
        super().kill()
        self._frozen = False

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, and nobody replies."""
        super().freeze()
        self._frozen = True

    def thaw(self) -> None:
        """SIGCONT; harmless when it was not frozen."""
        super().thaw()
        self._frozen = False

    def heal(self) -> None:
        """Whatever a test did to it: running, reachable, its settings as they were."""
        self.thaw()
        self.start()
        self.set_memory_alarm(on=False)
        self.set_delivery_timeout(1800, read_every=60)
        self.set_certificate()

    def join(self, other: Node) -> None:
        """Leave what it has, and become a node of the other's cluster (some seconds)."""
        for words in (["stop_app"], ["join_cluster", other.name], ["start_app"]):
            self.ctl(*words)

    def add_vhost(self) -> Vhost:
        """
        As any broker does, even where a test has left the node dead or frozen.

        A node of 3.10 that was killed, or whose queues were removed, may answer no declaration of a queue with
        at-least-once dead letters (541 INTERNAL_ERROR), because the process for them has ended: a restart brings it back.
        A node that takes no queue at all is made anew, so that it fails no other test.
        """
        self.thaw()
        self.start()
        if self.series == "3.10" and self.eval("whereis(rabbit_fifo_dlx_sup)") == "undefined":
            self.stop()
            self.start()
        made = super().add_vhost()
        if self._takes_queues(made):
            return made
        print(self._server.error("took no queue any more, and was made anew"), file=sys.stderr, flush=True)
        self._server.kill()
        shutil.rmtree(self.folder / "data")
        self.start()
        return super().add_vhost()

    def remove_vhost(self, vhost: Vhost) -> None:
        """Remove it, even where a test has left the node dead or frozen."""
        self.thaw()
        self.start()
        super().remove_vhost(vhost)

    def close(self) -> None:
        """Leave nothing behind: no process, no folder, and no epmd for the nodes beside it."""
        self._server.kill()
        if self._owns_epmd:
            self._epmd.kill()
        self._guard.close()

    # --- Its settings -------------------------------------------------------------------------------------------------

    def ctl(self, *arguments: str) -> str:
        """What `rabbitmqctl ARGUMENTS` prints (about a second); raises BrokerError when it fails."""
        return self._run(self._enter(self._program("rabbitmqctl"), "-n", self.name, *arguments))

    def eval(self, expression: str) -> str:
        """The value of an Erlang expression, evaluated in the node (some milliseconds)."""
        call = self._enter("erl_call", "-e", "-address", f"127.0.0.1:{self._dist}")
        with self._calls:  # two at a time have the same name, and the node refuses the second
            answer = self._called(call, f"{expression}.\n")
        if not answer.startswith("{ok, "):
            raise self._server.error(f"was told {expression}, and answered {answer}")
        return answer.removeprefix("{ok, ").removesuffix("}")

    def set_delivery_timeout(self, seconds: float, *, read_every: float = 1.0) -> None:
        """
        `consumer_timeout` of channels opened from now on, and how often it is looked at.

        From 4.3 on only quorum queues have one, and a consumer's `x-consumer-timeout` outranks this.
        """
        for key, value in (("consumer_timeout", seconds), ("channel_tick_interval", read_every)):
            self.eval(f"application:set_env(rabbit, {key}, {round(value * 1000)})")

    def set_memory_alarm(self, *, on: bool) -> None:
        """Raise the memory alarm (who publishes is blocked), or clear it."""
        self.eval(f"vm_memory_monitor:set_vm_memory_high_watermark({{absolute, {1 if on else MEMORY}}})")

    def set_certificate(self, not_after: datetime | None = None) -> None:
        """Give it another certificate, for the TLS connections to come; by default one that is valid for years."""
        self._write_certificate(not_after)
        self.eval("ssl:clear_pem_cache()")

    def set_authority(self) -> None:
        """Give it a new authority, which signs its certificate and those of its clients, for the TLS connections to come."""
        self.ca = trustme.CA()
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.set_certificate()

    @contextmanager
    def plugin(self, name: str) -> Iterator[None]:
        """Have this plugin for a while; as `rabbitmq-plugins` does it, without the Erlang machine that does it."""
        self._use_plugins(f"{PLUGINS}, {name}")
        try:
            yield
        finally:
            self._use_plugins(PLUGINS)

    def _use_plugins(self, names: str) -> None:
        self.folder.joinpath("plugins").write_text(f"[{names}].")
        file = f'"{self._inside}/plugins"'
        self.eval(f"rabbit:await_startup(), {{ok, _, _}} = rabbit_plugins:ensure({file})")

    @contextmanager
    def listener_for_certificates(self, tls: str) -> Iterator[int]:
        """The port of a TLS listener of one version ("tlsv1.2", "tlsv1.3") that takes no client without a certificate."""
        (port,) = free_ports(1)
        where = f'{{"127.0.0.1", {port}}}'
        self.eval(
            "{ok, Usual} = application:get_env(rabbit, ssl_options), "
            f"Ours = [{{fail_if_no_peer_cert, true}}, {{versions, ['{tls}']}}], "
            f"rabbit_networking:start_ssl_listener({where}, lists:ukeymerge(1, Ours, lists:ukeysort(1, Usual)), 1)"
        )
        try:
            yield port
        finally:
            self.eval(f"rabbit_networking:stop_tcp_listener({where})")

    # --- How it is started --------------------------------------------------------------------------------------------

    @property
    def _inside(self) -> Path:
        """The node's folder, as its processes see it."""
        return self.folder if self._root == HOST else Path("/mnt")

    def _enter(self, *command: str) -> list[str]:
        """
        The command, in the Debian that has this RabbitMQ.

        The mounts are seen by this command's processes only, and go with the last of them.
        """
        if self._root == HOST:
            return list(command)
        script = 'mount --rbind /proc "$1/proc"; mount --bind "$2" "$1/mnt"; cd "$1"; root=$1; shift 2; exec chroot "$root" "$@"'
        mounts = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script, "sh"]
        return [*mounts, str(self._root), str(self.folder), *command]

    def _program(self, name: str) -> str:
        """RabbitMQ's own script: Debian's wrapper changes the user and the folders."""
        (found,) = self._root.glob(f"usr/lib/rabbitmq/lib/rabbitmq_server-{self.series}.*/sbin/{name}")
        return f"/{found.relative_to(self._root)}"

    def _environment(self) -> dict[str, str]:
        inside = self._inside
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(inside),
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_CONFIG_FILE": f"{inside}/rabbitmq.conf",
            "RABBITMQ_MNESIA_BASE": f"{inside}/data",
            "RABBITMQ_LOG_BASE": f"{inside}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{inside}/plugins",
            "RABBITMQ_DIST_PORT": str(self._dist),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{SMALL} {SAYS_SOON} -kernel inet_dist_use_interface {{127,0,0,1}}",
            "RABBITMQ_CTL_ERL_ARGS": SMALL,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_BYTES": "0",  # a node that does not start would leave one in the folder of the tests
            "RUNNING_UNDER_SYSTEMD": "true",  # the start script becomes the Erlang machine: one pid, and signals reach it
        }

    def _write_certificate(self, not_after: datetime | None = None) -> None:
        certificate = self.ca.issue_cert("127.0.0.1", "localhost", not_after=not_after)
        certificate.private_key_pem.write_to_path(self.folder / "server.key")
        (self.folder / "server.pem").write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))

    def _write_files(self, password: str, management: int) -> None:
        self._write_certificate()
        self.ca.cert_pem.write_to_path(self.ca_file)
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)  # Erlang refuses one that others may read
        self.folder.joinpath("plugins").write_text(f"[{PLUGINS}].")
        self.folder.joinpath("rabbitmq.conf").write_text(
            CONFIGURATION.format(
                inside=self._inside,
                amqp=self.amqp,
                amqps=self.amqps,
                management=management,
                user=USER,
                password=password,
                memory=MEMORY,
            )
        )

    def _takes_queues(self, vhost: Vhost) -> bool:
        name = "canary"
        try:
            with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as connection:
                channel = connection.channel()
                for type_ in ("quorum", "classic"):
                    channel.queue_declare(name, durable=True, arguments={"x-queue-type": type_})
                    channel.queue_delete(name)
        except AMQPError:
            return False
        return True

    def _answers(self) -> bool:
        """Whether every listener takes connections, and the management API has its first numbers."""
        try:
            for port in (self.amqp, self.amqps):
                socket.create_connection(("127.0.0.1", port), timeout=30).close()
            self.management("GET", "overview")
        except (OSError, AssertionError):
            return False
        return True

    def _called(self, call: list[str], said: str) -> str:
        """Run erl_call; again while the node refuses it, because the call before has the same name, and is not gone yet."""

        def answer() -> str:
            try:
                return self._run(call, said)
            except BrokerError as error:
                if "failed to connect to node" not in str(error):
                    raise
                return ""

        found: str = eventually(answer, f"{self.name} to be called", 10)
        return found

    def _run(self, command: list[str], said: str | None = None) -> str:
        done = subprocess.run(
            command,
            env=self._environment(),
            input=said,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_WITHIN,
        )
        if done.returncode:
            raise self._server.error(f"was told {command[-2:]}, and answered {(done.stdout + done.stderr).strip()}")
        return done.stdout.strip()
