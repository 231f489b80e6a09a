"""
Read-only queries to the management API, if the management plugin runs and permits them.

The queries follow no redirect and use no proxy of the environment, so that no other host receives the credentials.
Only this API reports policies, and the delivery timeout in force.
Without the API, the adapter assumes the version's defaults, and a finding reports this.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import SHUT_RDWR
from threading import Event, Timer
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from steadyworker_rabbitmq.checks.queue_state import ExistingQueue, queue_type

WITHIN = 2.0
"""
Seconds until a query without a complete response fails.

If a firewall drops the packets, every start of a worker process waits this long.
"""

_LARGEST = 4 << 20


class Unanswered(Exception):
    """
    A failed query: the management API did not respond, or its response was not of the expected kind.

    The text is the reason, as part of a sentence; `remedy` is the remedy.
    """

    def __init__(self, why: str, remedy: str = "check what listens there, or add ?management=off to --broker.") -> None:
        super().__init__(why)
        self.remedy = remedy


class _ReportedConsumer(msgspec.Struct):
    consumer_timeout: int | str | None = None


class _ReportedQueue(msgspec.Struct):
    """
    The fields that the adapter reads from a response; an empty policy is `{}`, `[]` or null.

    If the response has no field for the policy, the policy is unknown: the API omits this field until the queue has its first statistics.
    """

    arguments: dict[str, Any]
    durable: bool = True
    auto_delete: bool = False
    type: str = "classic"
    policy: str | None = None
    effective_policy_definition: dict[str, Any] | list[None] | msgspec.UnsetType | None = msgspec.UNSET
    consumer_details: list[_ReportedConsumer] = []
    state: str | None = None
    messages: int | None = None
    message_bytes: int | None = None


class ReportedMessages(msgspec.Struct, frozen=True):
    """
    The numbers of a queue that only the management API reports, some seconds ago.

    Attributes:
        type: The queue's type.
        state: The queue's state, such as `running` or `minority`; None if unknown.
        leader: The node that leads a quorum queue; None or empty without a leader.
        messages_unacknowledged: The messages that consumers hold; None while the API has no statistics of the queue.
        head_message_timestamp: The timestamp of a classic queue's first message, in seconds since 1970, if its sender has set one.
    """

    type: str = "classic"
    state: str | None = None
    leader: str | None = None
    messages_unacknowledged: int | None = None
    head_message_timestamp: int | str | None = None


AReport = TypeVar("AReport")


@dataclass(frozen=True, slots=True)
class ManagementApi:
    """
    The management API of one broker.

    Args:
        url: `http://host:15672`, the part before `/api`.
        user: The user name for the login.
        password: The user's password; no message or finding shows it.
        vhost: The virtual host of the queues.
        tls: The TLS context, for `https`.
        within: The limit in seconds for the connect, and for a whole response.
    """

    url: str
    user: str
    password: str = field(repr=False)
    vhost: str
    tls: ssl.SSLContext | None = None
    within: float = WITHIN

    def queue(self, name: str) -> ExistingQueue | None:
        """
        Return a queue with the arguments and policies in force; None if there is no such queue.

        The queue's policy is None in the first 6 to 8 s after the queue's declaration, because the API does not yet report the policy.

        Raises:
            Unanswered: The API did not respond with a queue, or refused the user.
        """
        if (queue := self._queue(name, _ReportedQueue)) is None:
            return None
        policy = queue.effective_policy_definition
        timeouts = [each.consumer_timeout for each in queue.consumer_details]
        return ExistingQueue(
            name,
            arguments=queue.arguments,
            policy=None if policy is msgspec.UNSET else policy if isinstance(policy, Mapping) else {},
            policy_name=queue.policy or None,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            type=queue_type({"x-queue-type": queue.type}),
            consumer_timeout=min((ms for ms in timeouts if isinstance(ms, int)), default=None),
            state=queue.state or "",
            messages=queue.messages or 0,
            message_bytes=queue.message_bytes or 0,
        )

    def messages(self, name: str) -> ReportedMessages | None:
        """
        Return the numbers of a queue's messages; None if there is no such queue.

        Raises:
            Unanswered: The API did not respond with a queue, or refused the user.
        """
        return self._queue(name, ReportedMessages, f"?columns={','.join(ReportedMessages.__struct_fields__)}")

    def _queue(self, name: str, kind: type[AReport], query: str = "") -> AReport | None:
        body = self._get(f"queues/{quote(self.vhost, safe='')}/{quote(name, safe='')}{query}")
        if body is None:
            return None
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unanswered(f"{self.url} responded with something other than a queue ({error})") from error

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
            with closing(connection), _ended_after(connection, self.within):
                connection.request("GET", f"{parts.path}/api/{path}", headers=headers)
                with connection.getresponse() as answer:
                    match answer.status:
                        case HTTPStatus.OK:
                            return _whole(answer)
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


@contextmanager
def _ended_after(connection: HTTPConnection, within: float) -> Iterator[None]:
    """
    Close the connection after `within` seconds, if it is still in use.

    The connection's own timeout is for each single read, so a slow but steady response would never exceed that timeout.
    """
    late = Event()

    def end() -> None:
        late.set()
        with suppress(OSError):  # the connection has just closed by itself
            sock.shutdown(SHUT_RDWR)

    connection.connect()
    sock = connection.sock  # kept here, because the connection drops its socket when the response begins
    timer = Timer(within, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, HTTPException) as error:
        if late.is_set():
            raise TimeoutError("timed out") from error
        raise
    finally:
        timer.cancel()


def _whole(answer: HTTPResponse) -> bytes:
    """Return the body; raise HTTPException if the connection ended before the end of the body."""
    body = answer.read(_LARGEST)
    if answer.length:
        raise HTTPException("the response was not complete in time")
    return body
