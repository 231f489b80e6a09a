"""
Read-only queries to the management API, where the management plugin runs and permits them.

Redirects are not followed, and proxies named in the environment are not used, so that no other host sees the credentials.
Only this API reports policies, and the delivery timeout that is in force.
Nothing depends on it: without it, the adapter assumes the version's defaults, and a finding reports that.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import quote, urlsplit

import msgspec

from steadyworker_rabbitmq.checks.queue_state import QueueState, Values, queue_type

WITHIN = 2.0
"""Seconds until a query fails; if a firewall drops packets to the port, every start waits this long."""

_LARGEST = 4 << 20


class Unanswered(Exception):
    """
    A management API that did not respond, or responded with something other than a queue.

    The text is the reason, as part of a sentence; `remedy` is what to do.
    """

    def __init__(self, why: str, remedy: str = "check what listens there, or add ?management=off to --broker.") -> None:
        super().__init__(why)
        self.remedy = remedy


class _Consumer(msgspec.Struct):
    consumer_timeout: int | str | None = None


class _Queue(msgspec.Struct):
    """The fields that we read from the response; an empty policy is `{}`, `[]` or null."""

    arguments: Values
    durable: bool = True
    type: str = "classic"
    policy: str | None = None
    effective_policy_definition: Values | list[None] | None = None
    consumer_details: list[_Consumer] = []


@dataclass(frozen=True, slots=True)
class Management:
    """
    The management API of one broker.

    Args:
        url: `http://host:15672`, the part before `/api`.
        user: The user name for the login.
        password: The user's password; no message or finding shows it.
        vhost: The virtual host of the queues.
        tls: The TLS context, for `https`.
        within: Seconds for the connection, and for each part of a response.
    """

    url: str
    user: str
    password: str = field(repr=False)
    vhost: str
    tls: ssl.SSLContext | None = None
    within: float = WITHIN

    def queue(self, name: str) -> QueueState | None:
        """
        Return a queue with the arguments and policies in force; None if there is no such queue.

        Raises:
            Unanswered: The API did not respond with a queue, or refused the user.
        """
        if (answer := self._get(f"queues/{quote(self.vhost, safe='')}/{quote(name, safe='')}")) is None:
            return None
        try:
            told = msgspec.json.decode(answer, type=_Queue)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unanswered(f"{self.url} responded with something other than a queue ({error})") from error
        policy = told.effective_policy_definition
        timeouts = [each.consumer_timeout for each in told.consumer_details]
        return QueueState(
            name,
            arguments=told.arguments,
            policy=policy if isinstance(policy, Mapping) else {},
            policy_name=told.policy or None,
            durable=told.durable,
            type=queue_type({"x-queue-type": told.type}),
            consumer_timeout=min((ms for ms in timeouts if isinstance(ms, int)), default=None),
        )

    def _get(self, path: str) -> bytes | None:
        parts = urlsplit(self.url)
        assert parts.hostname is not None, "a URL without a host was refused before"
        connection = (
            HTTPSConnection(parts.hostname, parts.port, timeout=self.within, context=self.tls)
            if parts.scheme == "https"
            else HTTPConnection(parts.hostname, parts.port, timeout=self.within)
        )
        credentials = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        headers = {"Authorization": f"Basic {credentials}", "Accept": "application/json"}
        try:
            with closing(connection):
                connection.request("GET", f"{parts.path}/api/{path}", headers=headers)
                with connection.getresponse() as answer:
                    match answer.status:
                        case HTTPStatus.OK:
                            return answer.read(_LARGEST)
                        case HTTPStatus.NOT_FOUND:
                            return None
                        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN as status:
                            why = f"user {self.user!r} may not read {self.url} (HTTP {status})"
                            raise Unanswered(
                                why,
                                "give the user the tag 'management' with rabbitmqctl set_user_tags, "
                                "and repeat its present tags in this command.",
                            )
                        case status:
                            raise Unanswered(f"{self.url} responded with HTTP {status}")
        except (OSError, HTTPException) as error:
            why = f"{self.url} does not respond ({str(error) or type(error).__name__})"
            raise Unanswered(
                why,
                "run rabbitmq-plugins enable rabbitmq_management, or add the address of this API to --broker "
                f"(?management={parts.scheme}://HOST:PORT), or switch it off (?management=off).",
            ) from error
