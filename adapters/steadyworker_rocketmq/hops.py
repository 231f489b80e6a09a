"""
The servers on the way to a message. An error names a server with its address, its role, and the server that gave the address.

A URL names only the first server. A name server gives the brokers' addresses, and a proxy gives the address at which it accepts messages.
An operator sets both. An address that is right inside a container can lead a client outside to no server, or to another program.
"""

from __future__ import annotations

from collections.abc import Iterable

from steadyworker.network.errors import Hop
from steadyworker.network.url import Address


def of_name_servers(servers: Iterable[Address]) -> Hop:
    """Return the hop for the name servers of the URL, which are asked in turn."""
    texts = [*map(str, servers)]
    return Hop(f"name server{'s' * (len(texts) > 1)} {', '.join(texts)}")


def of_broker(name: str, address: Address, servers: object) -> Hop:
    """Return the hop for a broker. A name server has given the broker's address."""
    return Hop(
        f"{address}, the address of broker {name} at the name server {servers}",
        "start the broker, or set brokerIP1 (and listenPort) in its broker.conf to an address that this host reaches",
        "rocketmq.broker-unreachable",
    )


def of_members(proxy: Address) -> Hop:
    """Return the hop for the remoting port of a proxy. The URL names this port; otherwise it is the default port."""
    return Hop(f"{proxy}, the remoting port of a proxy")


def of_endpoints(given: Iterable[str], proxy: str) -> Hop:
    """Return the hop for the addresses that a proxy gives to its clients."""
    return Hop(
        f"{', '.join(given)}, the address to which the proxy {proxy} leads its clients",
        "set localServeAddr and grpcServerPort in its rmq-proxy.json to an address that this host reaches, "
        "or useEndpointPortFromRequest=true",
        "rocketmq.proxy-away",
    )
