"""Where a broker is, as one test process tells it to another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Address:
    """Where a broker is; what a kind of broker does not have is empty."""

    url: str
    management_url: str = ""
    """RabbitMQ's management API, or ActiveMQ's Jolokia."""
    tls_url: str = ""
    mutual_url: str = ""
    other_url: str = ""
    limited_url: str = ""
    certificates: str = ""
    """The folder with `ca.pem`, which signed the broker's certificate; ActiveMQ's has a client's certificate too."""
