"""ActiveMQ Classic for tests: a node from Maven's jars and ClassicBroker.java, without XML and Spring."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.brokers.install import MissingError
from tests.brokers.maven import java_program
from tests.brokers.stomp_broker import ClassicQueues, StompBroker
from tests.brokers.stomp_node import AGENT, STORE_PASSWORD, StompNode

CLASSICS = {"5.18": "5.18.3", "6.3": "6.3.1"}
"""The version of each series, oldest first."""

PARTS = ("activemq-broker", "activemq-stomp", "activemq-kahadb-store", "activemq-jaas")
LIBRARIES = (
    "com.thoughtworks.xstream:xstream:1.4.21",  # with Jettison, what is in an advisory message as JSON
    "org.codehaus.jettison:jettison:1.5.4",
    "org.slf4j:slf4j-simple:2.0.17",
    AGENT,
)
GRACE = "transport.hbGracePeriodMultiplier=1.5"
"""Without it, Classic cuts off a client whose heartbeats are late by drift alone."""


def classic_program(series: str) -> Path:
    """Return the folder of Classic's program, and bring it here if need be; raises MissingError."""
    if series not in CLASSICS:
        raise MissingError(f"ActiveMQ Classic {series} is unknown here: expected one of {', '.join(CLASSICS)}")
    version = CLASSICS[series]
    artifacts = tuple(f"org.apache.activemq:{part}:{version}" for part in PARTS)
    return java_program(f"classic-{version}", (*artifacts, *LIBRARIES), Path(__file__).with_name("ClassicBroker.java"))


class Classic(StompNode):
    """
    A Classic that the tests start.

    A `bare` one has no scheduler and no statistics plugin, as shipped, and delivers delayed messages at once; it sends no advisory messages either.
    Its dead-letter queue is `ActiveMQ.DLQ`, for all queues but those named `NAME.unmovable`, whose own one is always full.
    """

    def __init__(self, series: str = "6.3", *, bare: bool = False) -> None:
        """Make a node of this series ready to start; raises MissingError when it cannot be brought here."""
        self.series = series
        self._bare = bare
        super().__init__(f"classic-{series}", classic_program(series))

    def close_connections(self) -> None:
        """Let the broker close every client's connection; clients notice a moment later."""
        connections = "connector=clientConnectors,connectorName=*,connectionViewType=clientId,connectionName=*"
        for mbean in self.jolokia.search(f"org.apache.activemq:type=Broker,brokerName=*,{connections}"):
            self.jolokia.execute(mbean, "stop()")

    def _main(self) -> Sequence[str]:
        connectors = (
            f"stomp://127.0.0.1:{self.plain}?{GRACE}",
            f"stomp+ssl://127.0.0.1:{self.tls}?{GRACE}",
            f"stomp+ssl://127.0.0.1:{self.mutual}?{GRACE}&needClientAuth=true",
            f"stomp+nio://127.0.0.1:{self.other}?{GRACE}",
        )
        settings = {
            "data": str(self.folder / "data"),
            "connectors": " ".join(connectors),
            "scheduler": str(not self._bare).lower(),
            "advisories": str(not self._bare).lower(),
            "statistics": str(not self._bare).lower(),
            "javax.net.ssl.keyStore": str(self.key_store),
            "javax.net.ssl.keyStorePassword": STORE_PASSWORD,
            "javax.net.ssl.trustStore": str(self.trust_store),
            "javax.net.ssl.trustStorePassword": STORE_PASSWORD,
        }
        return ("ClassicBroker", str(self._write("broker.properties", settings)), str(self.logins))


@contextmanager
def connector(broker: StompBroker, options: str, port: int = 0) -> Iterator[str]:
    """Give Classic another connector for a while, on this port or a free one; yield its URL."""
    with closing(socket.create_server(("127.0.0.1", port))) as free:
        port = free.getsockname()[1]
    (mbean,) = broker.jolokia.search(ClassicQueues.BROKER)
    name = broker.jolokia.execute(mbean, "addConnector(java.lang.String)", f"stomp://127.0.0.1:{port}?{options}")
    try:
        yield broker.url.replace(str(urlsplit(broker.url).port), str(port))
    finally:
        broker.jolokia.execute(mbean, "removeConnector(java.lang.String)", name)
