"""ActiveMQ Artemis for tests: a node from Maven's jars and ArtemisBroker.java."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.brokers.maven import java_program
from tests.brokers.stomp_broker import LACKING, LIMITED
from tests.brokers.stomp_node import AGENT, STORE_PASSWORD, StompNode

VERSION = "2.55.0"
LIBRARIES = (
    f"org.apache.artemis:artemis-server:{VERSION}",
    f"org.apache.artemis:artemis-stomp-protocol:{VERSION}",
    "org.slf4j:slf4j-simple:2.0.17",
    AGENT,
)
CONFIGURATION = """\
<configuration xmlns="urn:activemq">
 <core xmlns="urn:activemq:core">
  <name>test</name>
  <journal-type>NIO</journal-type>
  <journal-min-files>2</journal-min-files>
  <journal-directory>{data}/journal</journal-directory>
  <bindings-directory>{data}/bindings</bindings-directory>
  <paging-directory>{data}/paging</paging-directory>
  <large-messages-directory>{data}/large</large-messages-directory>
  <max-disk-usage>-1</max-disk-usage>
  <critical-analyzer>false</critical-analyzer>
  <authorization-cache-size>0</authorization-cache-size>
  <acceptors>
   <acceptor name="stomp">tcp://127.0.0.1:{plain}?{stomp}</acceptor>
   <acceptor name="tls">tcp://127.0.0.1:{tls}?{stomp};{secure}</acceptor>
   <acceptor name="mutual">tcp://127.0.0.1:{mutual}?{stomp};{secure};needClientAuth=true</acceptor>
   <acceptor name="prefixes">tcp://127.0.0.1:{other}?{stomp};anycastPrefix=/queue/;multicastPrefix=/topic/</acceptor>
  </acceptors>
  <security-settings>
   <security-setting match="#">
    {permissions}
   </security-setting>
   <security-setting match="activemq.management">
    {management}
   </security-setting>
   <security-setting match="steadyworker.replies">
    {everything}
   </security-setting>
  </security-settings>
  <address-settings>
   <address-setting match="#">
    <dead-letter-address>DLQ</dead-letter-address>
    <expiry-address>ExpiryQueue</expiry-address>
    <address-full-policy>PAGE</address-full-policy>
    <auto-delete-queues>false</auto-delete-queues>
    <auto-delete-addresses>false</auto-delete-addresses>
   </address-setting>
  </address-settings>
  <addresses>
   <address name="DLQ"><anycast><queue name="DLQ"/></anycast></address>
   <address name="ExpiryQueue"><anycast><queue name="ExpiryQueue"/></anycast></address>
  </addresses>
 </core>
</configuration>
"""
"""As `artemis create` writes it, but for fewer files, no limit of the disk, no halt of a broker that was frozen, and rights that change at once."""

STOMP = "protocols=STOMP;heartBeatToConnectionTtlModifier=3.0"
SECURE = (
    "sslEnabled=true;keyStoreType=PKCS12;keyStorePath={key_store};keyStorePassword={password};"
    "trustStoreType=PKCS12;trustStorePath={trust_store};trustStorePassword={password}"
)
EVERYONE = (
    *("send", "consume", "browse", "createAddress", "deleteAddress"),
    *("createDurableQueue", "deleteDurableQueue", "createNonDurableQueue", "deleteNonDurableQueue"),
)
"""What all users may do; `manage`, by which consumers are counted, is not the limited user's, and two users lack one right."""


def _permissions(granted: Callable[[str, str], bool], *more: str) -> str:
    """The rights of each role, where `granted` says so."""
    roles = {
        right: [role for role in ("user", LIMITED, *LACKING) if granted(right, role)] for right in (*EVERYONE, *more)
    }
    return "\n    ".join(f'<permission type="{right}" roles="{",".join(who)}"/>' for right, who in roles.items())


def artemis_program() -> Path:
    """Return the folder of Artemis's program, and bring it here if need be; raises MissingError."""
    return java_program(f"artemis-{VERSION}", LIBRARIES, Path(__file__).with_name("ArtemisBroker.java"))


class Artemis(StompNode):
    """
    An Artemis that the tests start.

    Its dead-letter queue is `DLQ`, for all queues; a message goes there after ten deliveries.
    """

    def __init__(self) -> None:
        """Make a node ready to start; raises MissingError when it cannot be brought here."""
        super().__init__("artemis", artemis_program())

    def close_connections(self) -> None:
        """Let the broker close every client's connection; clients notice a moment later."""
        (broker,) = self.jolokia.search("org.apache.activemq.artemis:broker=*")
        self.jolokia.execute(broker, "closeConnectionsForAddress(java.lang.String)", "127.0.0.1")

    def _main(self) -> Sequence[str]:
        configuration = self.folder / "broker.xml"
        configuration.write_text(
            CONFIGURATION.format(
                data=self.folder / "data",
                plain=self.plain,
                tls=self.tls,
                mutual=self.mutual,
                other=self.other,
                stomp=STOMP,
                secure=SECURE.format(key_store=self.key_store, trust_store=self.trust_store, password=STORE_PASSWORD),
                permissions=_permissions(lambda right, user: user != f"no-{right}"),
                management=_permissions(lambda right, user: user != LIMITED, "manage"),
                everything=_permissions(lambda right, user: True),
            )
        )
        return ("ArtemisBroker", str(configuration), str(self.logins))
