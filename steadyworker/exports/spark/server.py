"""The client's side of a Spark Connect server: sessions by name, their end, and the meaning of the server's errors."""

from __future__ import annotations

import re
import uuid
from typing import Any

from pyspark.sql import SparkSession

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportError
from steadyworker.exports.spark.address import ConnectAddress, of_session
from steadyworker.exports.spark.query import first_line
from steadyworker.text.redaction import redact

_TRIES, _LONGEST_WAIT = 4, 2000  # tries, and milliseconds between two tries; Spark's own policy tries for ten minutes
_NO_ANSWER = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RetriesExceeded")  # the last is a class of Spark 4.0's client
_DETAILS = re.compile(r'details = "(.*)"')


class Server:
    """One server; `url` can contain a token, but `str(server)` shows only host and port."""

    def __init__(self, url: str) -> None:
        self._url, self._address = url, ConnectAddress.of(url)
        self._clock = SystemClock()
        self._probe = self.attach(str(uuid.uuid4()))

    def __str__(self) -> str:
        return str(self._address)

    def wait(self, within: float) -> str:
        """
        Wait until the server responds, and return its version.

        Raises:
            ExportError: The server does not respond within that many seconds.
            Exception: The server's error, if it refuses the client.
        """
        deadline = self._clock.monotonic() + within
        while True:
            try:
                return str(self._probe.version)
            except Exception as error:
                if is_answer(error):
                    raise
                if self._clock.monotonic() >= deadline:
                    raise ExportError(
                        f"Expected a Spark Connect server at {self}, got no answer for {within:g} s: "
                        "start the server, or correct spark_master."
                    ) from None
                self._probe = self._fresh_probe()

    def answers(self) -> bool:
        """Return whether the server responds, even with an error; while the server hangs, this call waits."""
        try:
            self._probe.conf.get("spark.sql.session.timeZone")
        except Exception as error:  # noqa: BLE001 - server, client and socket can raise anything
            if not is_answer(error):
                return False
            self._probe = self._fresh_probe()  # the session was idle for too long, or the server is new
        return True

    def _fresh_probe(self) -> SparkSession:
        client: Any = self._probe.client
        client.close()
        return self.attach(str(uuid.uuid4()))

    def attach(self, session: str) -> SparkSession:
        """Return the session of this name, on its own channel; the server gets the name with the first call."""
        from pyspark.sql.connect.client import reattach
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        replies: Any = reattach.ExecutePlanResponseReattachableIterator
        # In the clients of 4.0 and 4.1, the end of one session stops the threads of all sessions, or waits for them forever.
        if hasattr(replies, "shutdown"):
            replies.shutdown = lambda: None
        made: Any = ConnectSession.builder.remote(of_session(self._url, session)).create()
        made.client.set_retry_policies([DefaultPolicy(max_retries=_TRIES, max_backoff=_LONGEST_WAIT)])
        return made  # type: ignore[no-any-return] # it has all methods of SparkSession that are used here

    def end(self, name: str) -> None:
        """
        End the operations of an earlier session, and release it, so that its name cannot begin another operation.

        Raises:
            Exception: The server does not respond.
        """
        session = self.attach(name)
        try:
            session.interruptAll()
        except Exception as error:
            if "SESSION_CLOSED" not in str(error):
                raise
        session.stop()

    def close(self) -> None:
        """Close the connection to the server."""
        self._probe.stop()


def is_answer(error: Exception) -> bool:
    """Return whether this error is a response of the server; False means that there was no response."""
    code = f"{type(error).__name__} {_code(error)}"
    return not any(name in code for name in _NO_ANSWER)


def words(error: Exception) -> str:
    """Return the useful line of the client's long error, without secrets."""
    match = _DETAILS.search(str(error))
    return redact(match[1] if match else first_line(error))


def _code(error: Exception) -> object:
    """Return the gRPC status code of the error, or None."""
    for name in ("getGrpcStatusCode", "code"):
        ask = getattr(error, name, None)
        if callable(ask):
            return ask()
    match = re.search(r"StatusCode\.\w+", str(error))
    return match[0] if match else None
