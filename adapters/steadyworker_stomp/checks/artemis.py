"""
Questions to Artemis's management address; to ask, the user needs the rights `send` and `manage`.

If Artemis refuses a management request, it closes the connection. So a connection that sends such a request must hold no message.
Artemis sends all replies to one address. It creates this address at the first question, and keeps the address only if its settings require this.
A visit is a short connection (`connection.Visit`). Each visit has a temporary queue on the address of the replies.
The queue has a filter, so the visit receives only its own replies.

STOMP cannot express the routing type of a temporary queue, so Artemis 2.55 uses `default-queue-routing-type`.
If this default is ANYCAST, Artemis refuses the second temporary queue.
The visits then share a multicast queue, which they create by management. This queue is not durable, and keeps 1,000 replies.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from steadyworker_stomp.connection import Visit
from steadyworker_stomp.errors import BrokerError, is_right

_MANAGEMENT = "activemq.management"
_REPLIES = "steadyworker.replies"
_SHARED = f"{_REPLIES}.shared"
_SHARED_QUEUE = {"name": _SHARED, "address": _REPLIES, "routing-type": "MULTICAST", "durable": False, "ring-size": 1000}
_MISSING = "AMQ229067"


class MissingError(Exception):
    """A question about a queue that does not exist."""


class FailedError(BrokerError):
    """A failure of an operation that the user may call. The connection stays open."""


class NoRepliesError(BrokerError):
    """A refusal of the queue for the broker's replies. Without this queue, the visit cannot ask a question."""


class ArtemisManagement:
    """
    The management of one Artemis, for one thread.

    Args:
        visited: A connection that holds no message. It is replaced if the broker refuses the queue for the replies.

    Attributes:
        newest: The number of the last reply. Each later message on this broker has a larger number.

    Raises:
        NoRepliesError: The broker refuses a queue for the replies.
        Silent: The broker did not answer in time.
    """

    def __init__(self, visited: Visit) -> None:
        self.newest = 0
        self._visited = visited
        self._mark = uuid.uuid4().hex
        try:
            self._listen(_REPLIES)
        except BrokerError:
            visited.reopen()
            self._listen_shared()

    def ask(self, resource: str, operation: str, *arguments: object) -> Any:
        """
        Return the result of an operation of a resource. A resource is `broker`, or `queue.` and a name.

        Raises:
            MissingError: The broker has no such resource.
            FailedError: The operation failed, or the broker has no such operation.
            BrokerError: The user may not ask. In most cases, the visit's connection has then ended.
            Silent: No reply came in time.
        """
        self._send(resource, operation, arguments, {"reply-to": _REPLIES, "correlation-id": self._mark})
        found, body = self._visited.message("reply to a question")
        self.newest = int(found["message-id"].partition(",")[2])
        (result,) = json.loads(body) or [None]
        if found.get("_AMQ_OperationSucceeded") != "true":
            if _MISSING in str(result):
                raise MissingError(resource)
            refused = BrokerError(f"{operation}: {result}")
            raise refused if is_right(refused) else FailedError(str(refused))
        return result

    def _send(
        self, resource: str, operation: str, arguments: Sequence[object], headers: Mapping[str, str] = {}
    ) -> None:
        """Send a question, and return when the broker has executed the operation."""
        asked = {"_AMQ_ResourceName": resource, "_AMQ_OperationName": operation, **headers}
        text = json.dumps(arguments).encode()
        self._visited.wait(self._visited.connection.send(_MANAGEMENT, text, asked, is_text=True))

    def _listen(self, destination: str) -> None:
        headers = {"subscription-type": "MULTICAST", "selector": f"JMSCorrelationID = '{self._mark}'"}
        self._visited.wait(self._visited.connection.subscribe(destination, "replies", headers, ack="auto"))

    def _listen_shared(self) -> None:
        """Subscribe to the queue that visits share; create the queue if it is missing."""
        self._send("broker", "createQueue", (json.dumps(_SHARED_QUEUE), True))
        try:
            self._listen(f"{_REPLIES}::{_SHARED}")
        except BrokerError as error:
            raise NoRepliesError(str(error)) from error

    def ask_json(self, resource: str, operation: str, *arguments: object) -> Any:
        """Return the result of an operation that returns JSON in a text; raises the errors of `ask`."""
        return json.loads(self.ask(resource, operation, *arguments))

    def attributes(self, name: str, by: str = "name") -> dict[str, str] | None:
        """Return the attributes of the queue with this name, or with this address; None if there is no such queue."""
        wanted = json.dumps({"field": by, "operation": "EQUALS", "value": name})
        queues: list[dict[str, str]] = self.ask_json("broker", "listQueues", wanted, 1, 1)["data"]
        return queues[0] if queues else None

    def moved_to(self, queue: str) -> str | None:
        """Return the address to which Artemis moves dead letters of this queue, which need not exist; None if Artemis deletes them."""
        address: str | None = self.ask_json("broker", "getAddressSettingsAsJSON", queue).get("deadLetterAddress")
        return address or None


def dead_letter_address(visited: Visit, queue: str, default: str) -> str | None:
    """
    Return the address to which Artemis moves dead letters of the queue `queue`; None if Artemis deletes them.

    The queue need not exist.
    If the user has no right to ask, return `default`. The visit's connection has then ended, so open a visit for this question only.
    Raises Silent or OSError if the connection fails.
    """
    try:
        return ArtemisManagement(visited).moved_to(queue)
    except BrokerError:
        return default


def newest(visited: Visit) -> int | None:
    """Return the number of the newest message, which later messages exceed; None if the user has no right to ask."""
    try:
        management = ArtemisManagement(visited)
        management.ask("broker", "getVersion")
    except BrokerError:
        return None
    return management.newest


def waiting(visited: Visit, queue: str, selector: str) -> list[int] | None:
    """Return the numbers of the queue's first messages that no consumer holds; None without the right to ask."""
    try:
        found = ArtemisManagement(visited).ask_json(f"queue.{queue}", "listMessagesAsJSON", selector)
    except BrokerError:
        return None
    return [int(each["messageID"]) for each in found]
