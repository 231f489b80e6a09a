"""
The count of a queue's consumers, and the check whether a queue exists. The count and the check do not create a missing queue.

Classic has advisory topics. It sends a new subscriber one message for each consumer of a queue, or for each queue.
Classic sends all these messages before it reads the subscriber's next frame.
So if the subscriber then sends a message to a temporary queue, this message arrives after the last advisory message.
The subscription asks for no receipt, because Classic sends no list to a subscriber that asks for a receipt.
A Classic with `advisorySupport="false"` sends no advisory messages, as if no queue had a consumer.
So an empty list is valid only if the broker lists the temporary queue of this connection.

Artemis answers the same questions by management (`artemis.py`).

A refusal ends the visit's connection, so each question needs a new visit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from steadyworker.adapter import Uncounted
from steadyworker_stomp.checks.artemis import ArtemisManagement, FailedError, MissingError, NoRepliesError
from steadyworker_stomp.connection import Received, Visit
from steadyworker_stomp.dialects import ARTEMIS, CLASSIC
from steadyworker_stomp.errors import BrokerError, is_right

_CONSUMERS = "/topic/ActiveMQ.Advisory.Consumer.Queue."
_QUEUES = "/topic/ActiveMQ.Advisory.Queue"
_TEMPORARY = "/topic/ActiveMQ.Advisory.TempQueue"
_MARK = "/temp-queue/steadyworker"

_TRIES, _PAUSE = 20, 0.05
"""The number of tries to get a list, and the seconds between two tries."""


_ARTEMIS_RIGHTS = (
    "in broker.xml, grant the user's role the rights manage and send for activemq.management, "
    "and consume, createAddress and createNonDurableQueue for steadyworker.replies"
)
_REMEDIES = {
    CLASSIC.name: "grant the user's group "
    '<authorizationEntry topic="ActiveMQ.Advisory.>" read="GROUP" write="GROUP" admin="GROUP"/> in activemq.xml',
    ARTEMIS.name: _ARTEMIS_RIGHTS,
}
_REPLIES_REMEDY = (
    'add <address name="steadyworker.replies"><multicast/></address> to broker.xml, '
    "with default-queue-routing-type MULTICAST in an address-setting that matches it; "
    f"if it is there, {_ARTEMIS_RIGHTS}"
)


class NoAdvisoriesError(Exception):
    """A Classic that sends no advisory messages."""


def census(visited: Visit, queue: str) -> int | Uncounted:
    """
    Return the number of connections that consume the queue; Uncounted if the broker does not report the number to this user.

    Raises Silent or OSError if the connection fails, and BrokerError if the broker fails.
    """
    try:
        if visited.dialect is CLASSIC:
            advisories = [json.loads(body) for _, body in _advised(visited, _CONSUMERS + queue)]
            found = [each["ConsumerInfo"] for each in advisories if "ConsumerInfo" in each]
            return len({each["consumerId"]["connectionId"] for each in found if not each.get("browser")})
        return connections(ArtemisManagement(visited), queue)
    except (BrokerError, NoAdvisoriesError) as error:
        return uncounted(visited, error)


def uncounted(visited: Visit, error: BrokerError | NoAdvisoriesError) -> Uncounted:
    """Return the cause and the remedy if the broker does not answer this user's question; raise the error if the question failed."""
    if isinstance(error, NoAdvisoriesError):
        remedy = 'set advisorySupport="true" on <broker> in activemq.xml, and restart the broker'
        return Uncounted("the broker sends no advisory messages, which list the consumers", remedy)
    _check(visited, error)
    if isinstance(error, NoRepliesError):
        remedy = _ARTEMIS_RIGHTS if is_right(error) else _REPLIES_REMEDY
        return Uncounted(f"the broker refused a queue for its reply ({error})", remedy)
    return Uncounted(f"the broker refused the question ({error})", _REMEDIES[visited.dialect.name])


def connections(management: ArtemisManagement, queue: str) -> int:
    """Return the number of connections that consume a queue of Artemis; raises the errors of `ArtemisManagement.ask`."""
    try:
        consumers = _listed(management, queue)
    except MissingError:
        return 0
    return len({each["connectionID"] for each in consumers if not each.get("browseOnly")})


def subscriptions(visited: Visit, queue: str) -> int | None:
    """
    Return the number of the queue's subscriptions; None if the broker does not report the number to this user.

    The cost of the call does not depend on the number.

    Raises Silent or OSError if the connection fails, and BrokerError if the broker fails.
    """
    try:
        if visited.dialect is CLASSIC:  # Each message of the list has the number, so the first message is enough.
            return next((int(headers["consumerCount"]) for headers, _ in _advised(visited, _CONSUMERS + queue)), 0)
        return int(ArtemisManagement(visited).ask(f"queue.{queue}", "getConsumerCount"))
    except MissingError:
        return 0
    except NoAdvisoriesError:
        return None
    except BrokerError as error:
        _check(visited, error)
        return None


def has_queue(visited: Visit, queue: str) -> bool:
    """Return whether the broker has the queue; True if the broker does not report queues to this user; raises the errors of `seen`."""
    return seen(visited, queue) is not False


def seen(visited: Visit, queue: str) -> bool | None:
    """
    Return whether the broker has the queue; None if the broker does not report queues to this user.

    Raises Silent or OSError if the connection fails, and BrokerError if the broker fails.
    """
    try:
        if visited.dialect is CLASSIC:
            advisories = [json.loads(body) for _, body in _advised(visited, _QUEUES)]
            found = [each["DestinationInfo"] for each in advisories if "DestinationInfo" in each]
            return any(each["destination"]["string"] == queue for each in found)
        ArtemisManagement(visited).ask(f"queue.{queue}", "isPaused")
    except MissingError:
        return False
    except NoAdvisoriesError:
        return None
    except BrokerError as error:
        _check(visited, error)
        return None
    return True


def _check(visited: Visit, error: BrokerError) -> None:
    """Raise the error unless it is a refusal. Artemis gives no reason for a refusal in an ERROR frame."""
    if isinstance(error, FailedError) or (visited.dialect is CLASSIC and not is_right(error)):
        raise error


def _listed(management: ArtemisManagement, queue: str) -> list[dict[str, Any]]:
    """Return the consumers of a queue of Artemis. Artemis 2.55 fails to list them while a consumer begins or ends."""
    for _ in range(_TRIES - 1):
        with suppress(FailedError):
            return _consumers(management, queue)
        time.sleep(_PAUSE)
    return _consumers(management, queue)


def _consumers(management: ArtemisManagement, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = management.ask_json(f"queue.{queue}", "listConsumersAsJSON")
    return found


def _advised(visited: Visit, topic: str) -> Iterator[Received]:
    """Yield the messages that Classic sends to a new subscriber of an advisory topic; raises NoAdvisoriesError."""
    found = False
    for each in _sent_at_once(visited, topic):
        found = True
        yield each
    if not found and next(_sent_at_once(visited, _TEMPORARY), None) is None:
        raise NoAdvisoriesError


def _sent_at_once(visited: Visit, topic: str) -> Iterator[Received]:
    visited.connection.listen(_MARK, "mark", {})
    visited.connection.listen(topic, "advisory", {})
    visited.wait(visited.connection.send(_MARK, b"", {}))
    while True:
        headers, body = visited.message(f"list of {topic}")
        if headers.get("subscription") == "mark":
            return
        yield headers, body
