"""
The servers on the way to a message, as errors name them: address, role, and the server that gave the address.

A URL names the first server only: a name server gives the brokers' addresses, and a proxy the address at which it accepts messages.
An operator sets both, and an address that is right inside a container leads a client outside to nothing, or to another program.
"""

from __future__ import annotations

from collections.abc import Iterable

from steadyworker.network.errors import Hop
from steadyworker.network.url import Address


def of_name_servers(servers: Iterable[Address]) -> Hop:
    """Return the name servers, which the URL names, and which are asked in turn."""
    texts = [*map(str, servers)]
    return Hop(f"name server{'s' * (len(texts) > 1)} {', '.join(texts)}")


def of_broker(name: str, address: Address, servers: object) -> Hop:
    """Return a broker, whose address a name server has given."""
    return Hop(
        f"{address}, the address of broker {name} at the name server {servers}",
        "start the broker, or set brokerIP1 (and listenPort) in its broker.conf to an address that this host reaches",
        "rocketmq.broker-unreachable",
    )


def of_members(proxy: Address) -> Hop:
    """Return the remoting port of a proxy, which the URL names, or which is the default one."""
    return Hop(f"{proxy}, the remoting port of a proxy")


def of_endpoints(given: Iterable[str], proxy: str) -> Hop:
    """Return the addresses to which a proxy leads its clients."""
    return Hop(
        f"{', '.join(given)}, the address to which the proxy {proxy} leads its clients",
        "set localServeAddr and grpcServerPort in its rmq-proxy.json to an address that this host reaches, "
        "or useEndpointPortFromRequest=true",
        "rocketmq.proxy-away",
    )
