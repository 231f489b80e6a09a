"""
RocketMQ for tests: 4.9.7, and 5.4.0 with a proxy, from Maven's jars; each part is a process of its own.

What a test asks about topics, groups and messages is answered by `rocketmq_witness.py`, never by the adapter.
"""

from __future__ import annotations

import json
import secrets
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from steadyworker.network.url import Address as HostPort
from tests.brokers.address import Address
from tests.brokers.maven import java, java_program
from tests.brokers.process import Guard, Server, free_ports
from tests.brokers.rocketmq_witness import (
    NO_TOPIC,
    Account,
    QueueAt,
    RefusalError,
    StoredMessage,
    Witness,
    witness_folder,
)
from tests.support.stage import eventually

VERSIONS = {"4": "4.9.7", "5": "5.4.0"}
"""The version of each line: the newest that Maven has whole."""

PARTS = {"4": ("namesrv", "broker"), "5": ("namesrv", "broker", "proxy")}
USER, LIMITED = "steadyworker", "limited"
"""The user with all rights, and one with those that a test gives; the second one's password is the first one's and `-2`."""

HALF, GAVE_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"

SHORT_LEVELS = " ".join(f"{seconds}s" for seconds in range(1, 19))
"""A `messageDelayLevel` by which retries take seconds; a broker as it is shipped begins with 1s 5s 10s 30s 1m."""

ALL = "ALL-UNNAMED"
OPENED = (
    *(f"--add-exports=java.base/{package}={ALL}" for package in ("sun.nio.ch", "jdk.internal.ref")),
    *(
        f"--add-opens=java.base/{package}={ALL}"
        for package in ("java.nio", "sun.nio.ch", "java.lang", "jdk.internal.ref")
    ),
)
"""What RocketMQ reaches into; without the last one, 4.9.7 does not start again with its store."""

IPV4 = "-Djava.net.preferIPv4Stack=true"
SMALL = (
    *("-Xms32m", "-Xmx192m", "-XX:MaxDirectMemorySize=1g", "-XX:+UseSerialGC"),
    *("-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", IPV4),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98",
)
"""A Java that stays small; without verification of its classes, 5.4.0 starts with 16 to 19 CPU seconds instead of 20 to 25."""

FAST = tuple(option for option in SMALL if option != "-XX:TieredStopAtLevel=1")
"""
A Java with its second compiler, for the broker of 5.4.0.

Once a second, the broker compares all 38 MB of its wheel of timers with the file, byte by byte (`TimerFlushService`).
With the first compiler alone, this takes 12 % of a core for as long as the broker runs; with both, 1 %, and the start takes 3 CPU seconds more.
"""

LOGBACK = """\
<configuration>
 <appender name="C" class="ch.qos.logback.core.ConsoleAppender">
  <encoder><pattern>%d %p %c %m%n</pattern></encoder>
 </appender>
 <root level="WARN"><appender-ref ref="C"/></root>
</configuration>
"""
"""4.9.7 does not start without such a file; 5.4.0 has its own, which writes to `logs` in the node's folder."""

AUTHENTICATION = "org.apache.rocketmq.auth.authentication.provider"
AUTHORIZATION = "org.apache.rocketmq.auth.authorization.provider"


def rocketmq_program(line: str) -> Path:
    """Return the folder of RocketMQ's program, of line 4 or 5, and bring it and the witness here if need be; raises MissingError."""
    witness_folder()
    version = VERSIONS[line]
    artifacts = tuple(f"org.apache.rocketmq:rocketmq-{part}:{version}" for part in PARTS[line])
    return java_program(f"rocketmq-{version}", artifacts)


class RocketMQ:
    """A RocketMQ, reached by its URLs: `url` for the driver that it is for, `remoting_url` for name servers and brokers."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.url, self.remoting_url = address.url, address.other_url
        parts = urlsplit(self.remoting_url)
        self.login = Account(unquote(parts.username or ""), unquote(parts.password or ""))
        self.name_servers = (HostPort(str(parts.hostname), parts.port or 9876),)

    @property
    def witness(self) -> Witness:
        """What answers questions about it."""
        return self.witness_within(10.0)

    def witness_within(self, seconds: float) -> Witness:
        """Return a witness whose requests wait for so long at most."""
        return Witness(self.name_servers[0], self.login, seconds)

    # --- What there is ------------------------------------------------------------------------------------------------

    def topics(self, prefix: str = "") -> list[str]:
        """Return the topics that the name server knows, and whose names begin with `prefix`."""
        return [name for name in self.witness.topics() if name.startswith(prefix)]

    def groups(self, prefix: str = "") -> list[str]:
        """Return the consumer groups that the brokers know, and whose names begin with `prefix`."""
        found = {name for broker in self.witness.brokers() for name in self.witness.groups(broker)}
        return sorted(name for name in found if name.startswith(prefix))

    def count(self, topic: str) -> int:
        """Return how many messages the topic has, consumed or not; 0 for one that does not exist."""
        return self.witness.count(topic)

    def waiting(self, topic: str, group: str) -> int:
        """Return how many messages are behind the place up to which the group has consumed by remoting."""
        witness = self.witness
        places = [(queue, witness.consumed(queue, topic, group)) for queue in witness.route(topic) or []]
        return sum(witness.end(queue, topic) - (at or witness.first(queue, topic)) for queue, at in places)

    def half(self, topic: str) -> int:
        """
        Return how many messages of transactions the brokers have stored for this topic; it only grows, decided or not.

        A broker stores an undecided message again before each question.
        """
        queues = [QueueAt(broker, 0) for broker in self.witness.brokers()]
        try:
            stored = [each for queue in queues for each in self.witness.messages(queue, HALF)]
        except RefusalError as error:
            if error.code != NO_TOPIC:  # a broker makes the topic a moment after its first such message
                raise
            return 0
        return sum(each.properties.get("REAL_TOPIC") == topic for each in stored)

    def gave_up(self, topic: str = "") -> int:
        """Return how many messages of transactions the brokers have given up, of all topics or of this one."""
        if not topic:
            return sum(self.witness.end(QueueAt(broker, 0), GAVE_UP) for broker in self.witness.brokers())
        return sum(stored.properties.get("REAL_TOPIC") == topic for stored in self.messages(GAVE_UP))

    def messages(self, topic: str) -> list[StoredMessage]:
        """Return all messages of the topic, queue by queue."""
        queues = self.witness.route(topic) or []
        return [stored for queue in queues for stored in self.witness.messages(queue, topic)]

    # --- What is made and removed -------------------------------------------------------------------------------------

    def make_topic(self, name: str, queues: int = 1, kind: str | None = None) -> None:
        self.witness.make_topic(name, queues, kind)

    def send(self, topic: str, body: bytes = b"{}", properties: Mapping[str, str] | None = None) -> str:
        """Send a message to the first queue of the topic; return its id."""
        queues = self.witness.route(topic)
        assert queues, f"expected the topic {topic}, got none"
        return self.send_to(queues[0], topic, body, properties)

    def send_to(
        self, queue: QueueAt, topic: str, body: bytes, properties: Mapping[str, str] | None = None, flags: int = 0
    ) -> str:
        """
        Send a message to this queue, with these `MessageSysFlag`s; return its id.

        A broker confirms a message before it is in its queue: this returns when it is, unless it is delayed or a half message.
        """
        named = {"UNIQ_KEY": secrets.token_hex(16).upper(), **(properties or {})}
        before = self.witness.end(queue, topic)
        self.witness.send(queue, topic, body, named, flags)
        if not {"DELAY", "TRAN_MSG"} & {*named}:
            eventually(lambda: self.witness.end(queue, topic) > before, f"the message in {topic}")
        return named["UNIQ_KEY"]

    def delete_topic(self, name: str) -> None:
        """Delete a topic at brokers and name server."""
        for broker in self.witness.brokers():
            self.witness.ask(broker.address, "DELETE_TOPIC_IN_BROKER", {"topic": name})
        self.witness.ask(self.name_servers[0], "DELETE_TOPIC_IN_NAMESRV", {"topic": name})

    def delete_group(self, name: str) -> None:
        """Delete a consumer group, and the places up to which it has consumed."""
        fields = {"groupName": name, "removeOffset": "true", "cleanOffset": "true"}  # of 4.9.7, and of 5.4.0
        for broker in self.witness.brokers():
            self.witness.ask(broker.address, "DELETE_SUBSCRIPTIONGROUP", fields)

    def remove(self, prefix: str) -> None:
        """Remove the topics and groups whose names begin with `prefix`, with the groups' topics for retries and dead letters."""
        for start in (prefix, f"%RETRY%{prefix}", f"%DLQ%{prefix}"):
            for topic in self.topics(start):
                self.delete_topic(topic)
        for group in self.groups(prefix):
            self.delete_group(group)


class RocketMQNode(RocketMQ):
    """
    A name server, a broker, and on 5 a proxy, on free loopback ports, in a temporary folder.

    Each is a `process.Server`, to be killed, stopped and frozen alone; the methods of the node do it to all.

    Attributes:
        name_server: The name server's process.
        broker: The broker's process.
        parts: All processes, in the order in which they start.
        broker_address: Where the broker is.
    """

    LINE = ""
    BROKER_JAVA: Sequence[str] = SMALL

    def __init__(
        self,
        address: Callable[[HostPort, str], Address],
        *,
        delay_levels: str | None = None,
        login: bool = False,
        auto_create: bool = True,
        host: str = "127.0.0.1",
    ) -> None:
        """
        Make one ready to start; raises MissingError when it cannot be brought here.

        Args:
            address: Returns the URLs, from the name server's address and `user:password@`.
            delay_levels: The broker's `messageDelayLevel`; None for the 18 levels as they are shipped.
            login: Every request needs the login that is in the URLs.
            auto_create: A first message makes its topic, and a first consumer its group, as is shipped.
            host: The loopback address of all parts, of IPv4 or IPv6.
        """
        self._program = rocketmq_program(self.LINE)
        self._guard = Guard(f"rocketmq-{self.LINE}")
        self.folder = self._guard.folder
        self.log = self.folder / "broker.log"
        vip = ports_in_a_row(4)
        server, self.broker_address = HostPort(host, vip + 1), HostPort(host, vip + 2)
        self.password = secrets.token_hex(8) if login else ""
        super().__init__(address(server, f"{USER}:{self.password}@" if login else ""))
        conf = self.folder / "conf"
        conf.mkdir()
        for name in ("namesrv", "broker", "tools"):
            conf.joinpath(f"logback_{name}.xml").write_text(LOGBACK)
        self._write("namesrv.conf", {"listenPort": server.port, "bindAddress": server.host})
        self._write("broker.conf", self._broker_settings(delay_levels, auto_create=auto_create))
        self.name_server = self.part(
            "namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", "namesrv.conf", ready=self._names
        )
        self.broker = self.part(
            "broker",
            "org.apache.rocketmq.broker.BrokerStartup",
            *("-c", "broker.conf"),
            ready=self._stores,
            options=self.BROKER_JAVA,
        )
        self.parts = [self.name_server, self.broker]

    # --- Its life -----------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The broker's process; 0 while it is down."""
        return self.broker.pid

    @property
    def running(self) -> bool:
        return all(part.running for part in self.parts)

    def start(self) -> None:
        """Start every part that does not run, with its data; returns when clients can send and receive."""
        for part in self.parts:
            part.start()

    def stop(self) -> None:
        """SIGTERM to each part, the last one first; this takes up to half a minute."""
        for part in reversed(self.parts):
            part.stop()

    def kill(self) -> None:
        """SIGKILL; `start` brings it back with what was sent."""
        for part in self.parts:
            part.kill()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, and no part replies."""
        for part in self.parts:
            part.freeze()

    def thaw(self) -> None:
        """SIGCONT; harmless when it was not frozen."""
        for part in self.parts:
            part.thaw()

    def heal(self) -> None:
        """Make it run and reply, whatever a test did to it."""
        self.thaw()
        self.start()

    def close(self) -> None:
        """End the processes and remove the folder."""
        self.kill()
        self._guard.close()

    # --- Its settings -------------------------------------------------------------------------------------------------

    @contextmanager
    def set(self, name: str, value: str) -> Iterator[None]:
        """Give the broker another setting, as `mqadmin updateBrokerConfig` does, while the context is open."""
        before = self.witness.settings(self.broker_address)[name]
        self.witness.ask(self.broker_address, "UPDATE_BROKER_CONFIG", body=f"{name}={value}".encode())
        try:
            yield
        finally:
            self.witness.ask(self.broker_address, "UPDATE_BROKER_CONFIG", body=f"{name}={before}".encode())

    def forget_given_up(self) -> None:
        """Delete the topic of the transactions that the broker has given up; 4.9.7 refuses that, and keeps it."""
        if self.LINE == "5":
            with self.set("validateSystemTopicWhenUpdateTopic", "false"):
                self.delete_topic(GAVE_UP)

    def mqadmin(self, command: str) -> str:
        """Run a command of RocketMQ's own tool, as an operator types it, and return what it prints; this takes 4 s."""
        program, *arguments = shlex.split(command)
        assert program == "mqadmin", command
        java_command = [str(java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        java_command += [f"-D{key}={self.folder}" for key in ("rocketmq.home.dir", "user.home")]
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        java_command += ["-cp", f"{self._program / 'lib'}/*", main, *arguments]
        printed = ""
        for _ in range(5):  # the tool gives a server only 3 s for a reply
            done = subprocess.run(java_command, capture_output=True, text=True, check=True, timeout=120)
            printed = done.stdout + done.stderr
            if "RemotingTimeoutException" not in printed:
                break
        return printed

    def limit(self, *, topics: Sequence[str], groups: Sequence[str]) -> None:
        """Give the limited user the rights of a worker to these topics and groups, and no others; a node with logins only."""
        raise NotImplementedError

    # --- How it is started --------------------------------------------------------------------------------------------

    def part(
        self, name: str, main: str, *arguments: str, ready: Callable[[], bool], options: Sequence[str] = SMALL
    ) -> Server:
        """Return a process of the node, ready to start, in a Java with these options; its log is `NAME.log` in the folder."""
        command = [str(java()), *options, *OPENED]
        if ":" in self.broker_address.host:
            command.remove(IPV4)
        command += [f"-D{key}={self.folder}" for key in ("rocketmq.home.dir", "user.home", "java.io.tmpdir")]
        command += ["-cp", f"{self._program / 'lib'}/*", main, *arguments]
        environment = {"LANG": "C.UTF-8", "ROCKETMQ_HOME": str(self.folder), "RMQ_PROXY_HOME": str(self.folder)}
        return Server(self._guard, command, environment, log=self.folder / f"{name}.log", ready=ready)

    def _broker_settings(self, delay_levels: str | None, *, auto_create: bool) -> dict[str, object]:
        settings: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "namesrvAddr": self.name_servers[0],
            "listenPort": self.broker_address.port,
            **dict.fromkeys(("bindAddress", "brokerIP1", "brokerIP2"), self.broker_address.host),
            **dict.fromkeys(("autoCreateTopicEnable", "autoCreateSubscriptionGroup"), str(auto_create).lower()),
            "defaultTopicQueueNums": 4,
            "storePathRootDir": self.folder / "store",
            "storePathCommitLog": self.folder / "store" / "commitlog",
            "mappedFileSizeCommitLog": 1 << 26,
            "mappedFileSizeConsumeQueue": 600_000,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            "diskMaxUsedSpaceRatio": 95,
            **dict.fromkeys(("transactionTimeOut", "transactionCheckInterval"), 3000),
            "transactionCheckMax": 1000,  # so that what a test leaves undecided is no finding of a later test
            "registerNameServerPeriod": 10_000,
        }
        return settings | ({"messageDelayLevel": delay_levels} if delay_levels else {})

    def _write(self, name: str, settings: Mapping[str, object], *, as_json: bool = False) -> None:
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        self.folder.joinpath(name).write_text(json.dumps(settings) if as_json else lines)
        self.folder.joinpath(name).chmod(0o600)

    def _names(self) -> bool:
        """Return whether the name server replies."""
        return self.succeeds(lambda witness: witness.brokers() is not None)

    def _stores(self) -> bool:
        """Return whether the broker replies, and the name server knows all its topics, those from before a restart too."""

        def is_known(witness: Witness) -> bool:
            if self.broker_address not in [broker.address for broker in witness.brokers()]:
                return False
            stored = witness.table(self.broker_address, "GET_ALL_TOPIC_CONFIG")["topicConfigTable"]
            return set(stored) <= set(witness.topics())

        return self.succeeds(is_known)

    def succeeds(self, probe: Callable[[Witness], bool]) -> bool:
        """Return whether the servers reply to this within 5 s, and as it expects."""
        try:
            return probe(self.witness_within(5.0))
        except (OSError, RefusalError):
            return False


class RocketMQ4(RocketMQNode):
    """4.9.7: a name server and a broker; both listen on all addresses, because 4.x has no setting for that."""

    LINE = "4"

    def __init__(
        self,
        *,
        delay_levels: str | None = None,
        login: bool = False,
        auto_create: bool = True,
        host: str = "127.0.0.1",
    ) -> None:
        def address(server: HostPort, user: str) -> Address:
            return Address(url=f"rocketmq://{user}{server}", other_url=f"rocketmq://{user}{server}")

        super().__init__(address, delay_levels=delay_levels, login=login, auto_create=auto_create, host=host)

    def _broker_settings(self, delay_levels: str | None, *, auto_create: bool) -> dict[str, object]:
        settings = super()._broker_settings(delay_levels, auto_create=auto_create)
        if not self.password:
            return settings
        self._write_accounts()
        return settings | {"aclEnable": "true"}

    def limit(self, *, topics: Sequence[str], groups: Sequence[str]) -> None:
        """Give the limited user these rights; the broker reads the file again within a second."""
        self._write_accounts(
            {
                "accessKey": LIMITED,
                "secretKey": f"{self.password}-2",
                "admin": False,
                "defaultTopicPerm": "DENY",
                "defaultGroupPerm": "DENY",
                "topicPerms": [f"{topic}=PUB|SUB" for topic in topics],
                "groupPerms": [f"{group}=SUB" for group in groups],
            }
        )

    def _write_accounts(self, *more: Mapping[str, object]) -> None:
        account = {"accessKey": USER, "secretKey": self.password, "admin": True}
        rules = {"globalWhiteRemoteAddresses": [], "accounts": [account, *more]}
        self._write("conf/plain_acl.yml", rules, as_json=True)  # JSON is YAML


class RocketMQ5(RocketMQNode):
    """
    5.4.0: a name server, a broker, and a proxy that leads its clients back to the address at which they reached it.

    So a client that connects through a fault proxy stays behind it.

    Attributes:
        proxy: The proxy's process.
        grpc_address: Where the proxy accepts gRPC.
        proxy_address: Where the proxy accepts remoting.
    """

    LINE = "5"
    BROKER_JAVA = FAST

    def __init__(
        self,
        *,
        delay_levels: str | None = None,
        login: bool = False,
        auto_create: bool = True,
        certificate: trustme.LeafCert | None = None,
    ) -> None:
        """Make one ready to start, as `RocketMQNode` does; with a `certificate`, the proxy has it for TLS."""
        self.grpc_address, self.proxy_address = (HostPort("127.0.0.1", port) for port in free_ports(2))

        def address(server: HostPort, user: str) -> Address:
            options = f"namesrv={server}&members={self.proxy_address}"
            return Address(
                url=f"rocketmq+grpc://{user}{self.grpc_address}?{options}", other_url=f"rocketmq://{user}{server}"
            )

        super().__init__(address, delay_levels=delay_levels, login=login, auto_create=auto_create)
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": str(self.name_servers[0]),
            "proxyMode": "CLUSTER",
            "localServeAddr": "127.0.0.1",
            "grpcServerPort": self.grpc_address.port,
            "remotingListenPort": self.proxy_address.port,
            "grpcThreadPoolNums": 4,
            "useEndpointPortFromRequest": True,
        } | self._authentication(
            "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider",
            "org.apache.rocketmq.proxy.auth.ProxyAuthorizationMetadataProvider",
        )
        if self.password:
            settings["enableAclRpcHookForClusterMode"] = (
                True  # otherwise the proxy itself asks the broker without a login
            )
        if certificate is not None:
            files = {"tlsKeyPath": self.folder / "proxy.key", "tlsCertPath": self.folder / "proxy.crt"}
            key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # the one form that Java reads
            files["tlsKeyPath"].write_bytes(pem)
            certificate.cert_chain_pems[0].write_to_path(files["tlsCertPath"])
            settings |= {"tlsTestModeEnable": False, **{name: str(path) for name, path in files.items()}}
        self._write("proxy.json", settings, as_json=True)
        arguments = ("-pm", "cluster", "-n", str(self.name_servers[0]), "-pc", "proxy.json")
        self.proxy = self.part(
            "proxy", "org.apache.rocketmq.proxy.ProxyStartup", *arguments, ready=self._serves_clients
        )
        self.parts.append(self.proxy)

    def _broker_settings(self, delay_levels: str | None, *, auto_create: bool) -> dict[str, object]:
        settings = super()._broker_settings(delay_levels, auto_create=auto_create)
        # Without it, a check can overtake a rollback that the broker has confirmed.
        return (
            settings
            | {"transactionOpBatchInterval": 500}
            | self._authentication(
                f"{AUTHENTICATION}.LocalAuthenticationMetadataProvider",
                f"{AUTHORIZATION}.LocalAuthorizationMetadataProvider",
            )
        )

    def limit(self, *, topics: Sequence[str], groups: Sequence[str]) -> None:
        """Give the limited user these rights."""
        entries = [
            *(
                {"resource": f"Topic:{topic}", "actions": ["PUB", "SUB", "GET"], "decision": "ALLOW"}
                for topic in topics
            ),
            *(
                {"resource": f"Group:{group}", "actions": ["SUB", "GET", "UPDATE"], "decision": "ALLOW"}
                for group in groups
            ),
        ]
        user = {"username": LIMITED, "password": f"{self.password}-2", "userType": "NORMAL"}
        rights = {"subject": f"User:{LIMITED}", "policies": [{"policyType": "CUSTOM", "entries": entries}]}
        ask = self.witness.ask
        with suppress(RefusalError):  # the user exists
            ask(self.broker_address, "AUTH_CREATE_USER", {"username": LIMITED}, json.dumps(user).encode())
        ask(self.broker_address, "AUTH_CREATE_ACL", {"subject": f"User:{LIMITED}"}, json.dumps(rights).encode())

    def _authentication(self, *metadata: str) -> dict[str, object]:
        """Return the settings by which broker or proxy ask for login and rights, and find them in this class's store."""
        if not self.password:
            return {}
        return {
            "authenticationEnabled": "true",
            "authenticationProvider": f"{AUTHENTICATION}.DefaultAuthenticationProvider",
            "authenticationMetadataProvider": metadata[0],
            "authorizationEnabled": "true",
            "authorizationProvider": f"{AUTHORIZATION}.DefaultAuthorizationProvider",
            "authorizationMetadataProvider": metadata[1],
            "initAuthenticationUser": json.dumps({"username": USER, "password": self.password}),
            "innerClientAuthenticationCredentials": json.dumps({"accessKey": USER, "secretKey": self.password}),
        }

    def _serves_clients(self) -> bool:
        """Return whether the proxy replies at its remoting port, and accepts connections at the other one."""

        def replies(witness: Witness) -> bool:
            witness.members("nobody", self.proxy_address)
            with socket.create_connection((self.grpc_address.host, self.grpc_address.port), timeout=5):
                return True

        return self.succeeds(replies)


def ports_in_a_row(count: int) -> int:
    """Return the first of so many free ports in a row: a broker also opens the port 2 below its own, and the next one."""
    found: set[int] = set()
    while True:
        found.update(free_ports(count))
        for port in found:
            if found.issuperset(range(port, port + count)):
                return port
