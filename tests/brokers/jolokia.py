"""A Java program's MBeans over HTTP, by the Jolokia agent in its process: what JMX knows, without a JMX client."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from tests.brokers.process import BrokerError

_GONE = "No matching attributes"
"""The error for MBeans that match, and are gone when their attributes are read."""


class Jolokia:
    """The agent at this URL; every call raises OSError when nobody answers, BrokerError when the answer is a failure."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url = urlsplit(url)
        self._headers = {
            "authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}",
            "content-type": "application/json",
            "origin": f"{self._url.scheme}://{self._url.hostname}",  # a shipped broker refuses any other
        }

    def search(self, pattern: str) -> list[str]:
        """Return the names of the MBeans that match, such as `org.apache.activemq:type=Broker,*`."""
        found: list[str] = self._ask({"type": "search", "mbean": pattern})
        return found

    def read(self, pattern: str, *attributes: str) -> dict[str, dict[str, Any]]:
        """Return these attributes of each MBean that matches, by its name; empty when none does."""
        asked: dict[str, object] = {"type": "read", "mbean": pattern, "attribute": attributes}
        found: dict[str, dict[str, Any]] = self._ask(asked, {}) if "*" in pattern else {pattern: self._ask(asked)}
        return found

    def write(self, mbean: str, attribute: str, value: object) -> None:
        """Set an attribute of an MBean."""
        self._ask({"type": "write", "mbean": mbean, "attribute": attribute, "value": value})

    def execute(self, mbean: str, operation: str, *arguments: object) -> Any:
        """Return what an operation of an MBean returns; an overloaded one is named with its types, `purge()`."""
        return self._ask({"type": "exec", "mbean": mbean, "operation": operation, "arguments": arguments})

    def _ask(self, request: dict[str, object], unknown: object = None) -> Any:
        """Return the value of the answer; `unknown`, if there is one, when there is no such MBean."""
        connection = http.client.HTTPConnection(str(self._url.hostname), self._url.port, timeout=30)
        try:
            connection.request("POST", self._url.path, json.dumps(request), self._headers)
            said = connection.getresponse().read()
        finally:
            connection.close()
        try:
            answer = json.loads(said)
        except ValueError:
            raise BrokerError(f"Jolokia was asked {request}, and answered {said[:500]!r}") from None
        is_gone = answer["status"] == 404 or _GONE in str(answer.get("error"))
        if is_gone and unknown is not None:
            return unknown
        if answer["status"] != 200:
            raise BrokerError(f"Jolokia was asked {request}, and answered {answer.get('error')}")
        return answer["value"]
