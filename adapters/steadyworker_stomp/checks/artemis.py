"""
Questions to Artemis, sent to its management address; for that, the user needs the rights `send` and `manage`.

Artemis closes the connection on which it refuses a management request, so a connection that sends one must hold no message.
Replies go to one address, which Artemis creates at the first question and keeps only if its settings require it.
On that address, a visit has a temporary queue with a filter, so it receives only its own replies.

STOMP cannot express the routing type of a temporary queue, so Artemis 2.55 gives it `default-queue-routing-type`.
Where that is ANYCAST, the second such queue is refused.
The visits then share a queue that they create as a multicast queue, by management; it is not durable, and keeps 1,000 replies.
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
    """An operation that the user may call, and that failed; the connection lives on."""


class NoRepliesError(BrokerError):
    """A refusal of a queue for the replies of the broker, so that no question could be asked."""


class ArtemisManagement:
    """
    The management of one Artemis, for one thread.

    Args:
        visited: A connection that holds nothing; a refusal of the queue for the replies replaces it.

    Attributes:
        newest: The number of the last reply; each later message on this broker has a larger number.

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
        Return the result of an operation of a resource: `broker`, or `queue.` and a name.

        Raises:
            MissingError: The broker has no such resource.
            FailedError: The operation failed, or the broker has no such operation.
            BrokerError: The user may not ask; in most cases, the visit's connection has then ended.
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
        """Send a question, and return when the broker has done what it asks."""
        asked = {"_AMQ_ResourceName": resource, "_AMQ_OperationName": operation, **headers}
        text = json.dumps(arguments).encode()
        self._visited.wait(self._visited.connection.send(_MANAGEMENT, text, asked, is_text=True))

    def _listen(self, destination: str) -> None:
        headers = {"subscription-type": "MULTICAST", "selector": f"JMSCorrelationID = '{self._mark}'"}
        self._visited.wait(self._visited.connection.subscribe(destination, "replies", headers, ack="auto"))

    def _listen_shared(self) -> None:
        """Subscribe to the queue that visits share, which is created unless it exists."""
        self._send("broker", "createQueue", (json.dumps(_SHARED_QUEUE), True))
        try:
            self._listen(f"{_REPLIES}::{_SHARED}")
        except BrokerError as error:
            raise NoRepliesError(str(error)) from error

    def ask_json(self, resource: str, operation: str, *arguments: object) -> Any:
        """Return the result of an operation whose result is JSON in a text; raises as `ask` does."""
        return json.loads(self.ask(resource, operation, *arguments))


def dead_letter_address(visited: Visit, queue: str, default: str) -> str | None:
    """
    Return the address to which an Artemis moves dead letters of the queue `queue`, which need not exist; None if it deletes them.

    Return `default` if the user has no right to ask; the visit's connection has then ended, so make a visit for this question only.
    Raises Silent or OSError if the connection fails.
    """
    try:
        settings = ArtemisManagement(visited).ask_json("broker", "getAddressSettingsAsJSON", queue)
    except BrokerError:
        return default
    return settings.get("deadLetterAddress") or None


def newest(visited: Visit) -> int | None:
    """Return a number that every message so far has at most, and every later message exceeds; None without the right to ask."""
    try:
        management = ArtemisManagement(visited)
        management.ask("broker", "getVersion")
    except BrokerError:
        return None
    return management.newest


def waiting(visited: Visit, queue: str, selector: str) -> list[int] | None:
    """Return the numbers of the first messages of a queue that no consumer has; None without the right to ask."""
    try:
        found = ArtemisManagement(visited).ask_json(f"queue.{queue}", "listMessagesAsJSON", selector)
    except BrokerError:
        return None
    return [int(each["messageID"]) for each in found]
