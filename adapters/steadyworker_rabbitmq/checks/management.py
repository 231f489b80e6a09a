"""
What the broker says of itself over HTTP, where the management plugin runs and lets us ask; only ever asked, never told.

Neither a proxy of the environment nor a redirection is followed: nobody else may see the credentials.
It is the only one who knows policies, and the delivery timeout that applies in the end.
Nothing depends on it: without it, the version's defaults are assumed, and a finding says so.
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
"""Seconds: where the port is closed by a firewall that says nothing, every start waits as long."""

_LARGEST = 4 << 20


class Unanswered(Exception):
    """The management API did not answer, or with no queue; its text says why, as part of a sentence, and `remedy` what to do."""

    def __init__(
        self, why: str, remedy: str = "see to what listens there, or write ?management=off into --broker."
    ) -> None:
        super().__init__(why)
        self.remedy = remedy


class _Consumer(msgspec.Struct):
    consumer_timeout: int | str | None = None


class _Queue(msgspec.Struct):
    """What is read of the answer; an empty policy is `{}`, `[]` or null."""

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
        url: `http://host:15672`, as far as `/api`.
        user: Who asks.
        password: Their password; in no text of ours.
        vhost: The virtual host that queues are looked up in.
        tls: For `https`.
        within: Seconds for the connection, and for each part of an answer.
    """

    url: str
    user: str
    password: str = field(repr=False)
    vhost: str
    tls: ssl.SSLContext | None = None
    within: float = WITHIN

    def queue(self, name: str) -> QueueState | None:
        """
        A queue with all that applies to it; None when it knows no such queue.

        Raises:
            Unanswered: Nobody is there, or we may not ask.
        """
        if (answer := self._get(f"queues/{quote(self.vhost, safe='')}/{quote(name, safe='')}")) is None:
            return None
        try:
            told = msgspec.json.decode(answer, type=_Queue)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unanswered(f"{self.url} answers with something else than a queue ({error})") from error
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
        assert parts.hostname is not None, "a URL is looked at before it is taken"
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
                            why = f"user {self.user!r} may not ask {self.url} (HTTP {status})"
                            raise Unanswered(
                                why, "give it the tag management with rabbitmqctl set_user_tags, beside those it has."
                            )
                        case status:
                            raise Unanswered(f"{self.url} answers with HTTP {status}")
        except (OSError, HTTPException) as error:
            why = f"{self.url} does not answer ({str(error) or type(error).__name__})"
            raise Unanswered(
                why,
                "rabbitmq-plugins enable rabbitmq_management, or say in --broker where it is: "
                f"?management={parts.scheme}://HOST:PORT, or off.",
            ) from error
