"""RocketMQ 4.9.7 with a slave, which has what the master has, and of which its operator can make the master."""

from __future__ import annotations

from steadyworker.network.url import Address as HostPort
from tests.brokers.rocketmq import RocketMQ4, ports_in_a_row
from tests.brokers.rocketmq_witness import Witness
from tests.support.stage import eventually

MASTER, SLAVE = 0, 1
"""The numbers by which a name server distinguishes the two."""


class RocketMQ4WithSlave(RocketMQ4):
    """A name server, a master that confirms a message once the slave has it, and the slave."""

    def __init__(self) -> None:
        super().__init__()
        self.slave_address = HostPort("127.0.0.1", ports_in_a_row(4) + 2)
        self._configure("broker.conf", self.broker_address, "store", "SYNC_MASTER", MASTER)
        self._configure_slave("SLAVE", SLAVE)
        startup = "org.apache.rocketmq.broker.BrokerStartup"
        self.slave = self.part("slave", startup, "-c", "slave.conf", ready=self._is_known)
        # The master is not ready without its slave, so it starts second.
        self.parts = [self.name_server, self.slave, self.broker]

    def start(self) -> None:
        """As any node; returns when the master confirms messages, which it does 10 s and more after the slave's start."""
        super().start()
        eventually(lambda: self.succeeds(self._confirms), "a master that confirms")

    def promote(self) -> None:
        """Make the slave the master, as an operator does when the master is lost for good: by its configuration and a restart."""
        self.broker.kill()
        self.broker_address, self.parts = self.slave_address, [self.name_server, self.slave]
        self.slave.stop()
        self._configure_slave("ASYNC_MASTER", MASTER)
        self.slave.start()

    def _configure_slave(self, role: str, number: int) -> None:
        self._configure("slave.conf", self.slave_address, "slave", role, number)

    def _configure(self, name: str, address: HostPort, store: str, role: str, number: int) -> None:
        settings = self._broker_settings(None, auto_create=True) | {
            "brokerId": number,
            "brokerRole": role,
            "listenPort": address.port,
            "storePathRootDir": self.folder / store,
            "storePathCommitLog": self.folder / store / "commitlog",
        }
        self._write(name, settings)

    def _is_known(self) -> bool:
        """Return whether the name server knows the slave, or the master that it has become."""

        def knows(witness: Witness) -> bool:
            known = witness.table(self.name_servers[0], "GET_BROKER_CLUSTER_INFO")["brokerAddrTable"]
            return str(self.slave_address) in str(known)

        return self.succeeds(knows)

    @staticmethod
    def _confirms(witness: Witness) -> bool:
        witness.make_topic("confirms", 1, "NORMAL")
        (queue,) = witness.route("confirms") or []
        witness.send(queue, "confirms", b"{}", {})
        return True
