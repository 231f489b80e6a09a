"""A Spark Connect server, as its client in the host sees it: sessions by name, their end, and what its errors mean."""

from __future__ import annotations

import atexit
import re
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportError
from steadyworker.exports.spark.address import ConnectAddress
from steadyworker.exports.spark.kills import Closed, Kills
from steadyworker.exports.spark.query import first_line
from steadyworker.text.redaction import redact

USER = "steadyworker"
"""Whose sessions they are unless the address says `user_id`: the same on every machine, so that each can end another's."""

PAUSE = 0.2  # seconds between two interrupts
_AGAIN = (0.25, 0.5, 1.0)  # seconds to wait for what an interrupted operation begins late
_TRIES, _LONGEST_WAIT = 4, 2000  # milliseconds; Spark's own policy keeps on for ten minutes
_DEADLINES = {"config": 30.0, "interrupt": 10.0, "release_session": 10.0, "fetch_error_details": 10.0}  # seconds
_NO_ANSWER = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
_DETAILS = re.compile(r'details = "(.*)"')


class Server:
    """One server; `url` may hold a token, and what this object shows of itself does not."""

    def __init__(self, url: str) -> None:
        self._url, self._address = url, ConnectAddress.of(url)
        self._clock = SystemClock()
        self._probe = self.attach(str(uuid.uuid4()))

    def __str__(self) -> str:
        return str(self._address)

    def wait(self, within: float) -> str:
        """
        The version of the server, as soon as it answers.

        Raises:
            ExportError: It does not, for so many seconds.
            Exception: What it answers to a client that it does not want.
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
                        "start it, or correct spark_master."
                    ) from None
                self._probe = self._fresh_probe()

    def try_out(self, conf: Mapping[str, str]) -> None:
        """Set what every session is to be given; raises what the server says of a setting that it does not take."""
        for key, value in conf.items():
            self._probe.conf.set(key, value)

    def answers(self) -> bool:
        """Whether the server answers, be it with an error; waits for as long as it hangs."""
        try:
            self._probe.conf.get("spark.sql.session.timeZone")
        except Exception as error:  # noqa: BLE001 - the server's, the client's and its socket's
            if not is_answer(error):
                return False
            self._probe = self._fresh_probe()  # the session was idle for too long, or the server is another
        return True

    def _fresh_probe(self) -> SparkSession:
        self._close(self._probe)
        return self.attach(str(uuid.uuid4()))

    def attach(self, session: str) -> SparkSession:
        """The session of this name, on a channel of its own; the server hears of it with the first call."""
        from pyspark.sql.connect.client import DefaultChannelBuilder, core
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        builder = DefaultChannelBuilder(self._url)
        builder.set("session_id", session)
        if builder.userId is None:
            builder.set("user_id", USER)
        made: Any = ConnectSession(builder)
        made.client.set_retry_policies([DefaultPolicy(max_retries=_TRIES, max_backoff=_LONGEST_WAIT)])
        deadlines = getattr(core, "RpcDeadlines", None)  # from Spark 4.3 on
        if deadlines is not None:
            made.client._rpc_deadlines = deadlines(**_DEADLINES)  # noqa: SLF001 - a session is given none
        return made  # type: ignore[no-any-return] # a SparkSession, as far as it is asked to be one here

    def release(self, session: SparkSession) -> None:
        """End a session with all that is in it; its name is used up."""
        session.stop()  # never raises
        self._close(session)

    def _close(self, session: SparkSession) -> None:
        client: Any = session.client
        with suppress(Exception):
            client.close()
        atexit.unregister(client._on_exit)  # noqa: SLF001 - or it would keep every client

    def end(self, name: str) -> None:
        """End what an earlier run left in its session; nothing can be begun in it any longer."""
        session = self.attach(name)
        with suppress(Closed):
            Kills(session, name).kill()  # what it has interrupted itself, in its last moments, is not told again
            self.clear(session, name)
        self.release(session)

    def clear(self, session: SparkSession, name: str) -> None:
        """
        End what runs in this session; at once when nothing does.

        Raises:
            Closed: The session was released: somebody else has ended it all.
        """
        if self.interrupt(session):
            kills = Kills(session, name)
            kills.kill()
            for pause in _AGAIN:
                threading.Event().wait(pause)
                self.interrupt(session)
                kills.kill()

    def interrupt(self, session: SparkSession) -> bool:
        """Interrupt the operations of this session; answers whether there was one that was not interrupted before."""
        try:
            return bool(session.interruptAll())
        except Exception as error:
            if "SESSION_CLOSED" in str(error):
                raise Closed from None
            raise

    def close(self) -> None:
        """Leave."""
        self.release(self._probe)


def tag(name: str) -> str:
    """What a session's operations are tagged with, as the server's own pages show them."""
    return f"steadyworker-{name}"


def is_answer(error: Exception) -> bool:
    """Whether this error is a server's answer, and not that there is none."""
    code = str(_code(error))
    return not any(name in code for name in _NO_ANSWER)


def words(error: Exception) -> str:
    """What a person needs of a client's pages, without secrets."""
    match = _DETAILS.search(str(error))
    return redact(match[1] if match else first_line(error))


def _code(error: Exception) -> object:
    """The status code of gRPC, as far as the error has one."""
    for name in ("getGrpcStatusCode", "code"):
        ask = getattr(error, name, None)
        if callable(ask):
            return ask()
    match = re.search(r"StatusCode\.\w+", str(error))
    return match[0] if match else None
