"""
Translates the errors of TLS, name service and operating system into SteadyWorker's errors.

An adapter adds the errors of its client library.
Each of SteadyWorker's messages states what was expected, what was got, and what to do.
Each of SteadyWorker's errors keeps the original error as its cause.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from steadyworker.errors import BrokerUnavailable, ConfigError, SteadyWorkerError

_LISTED = 200
"""The largest number of characters of a broker's text that a message repeats."""

_OUR_CERTIFICATE = re.compile(r"\w+_ALERT_(?:\w*CERTIFICATE\w*|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)")
"""The TLS alerts by which a broker refuses our certificate; in TLS 1.2, HANDSHAKE_FAILURE means a missing certificate."""

_WRONG_HOST = 62
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH."""

_UNREACHED = ("network.connection-refused", "network.unreachable", "network.no-reply", "network.unknown-host")
"""The catalogue's entries for errors that can mean a wrong address, or an address without a server."""

_HOP = "steadyworker_hop"
"""The attribute in which an error stores its `Hop`."""

NO_ANSWER = "check that the broker is up, and that no firewall is in between"
SEE_LOG = "see the broker's log"


class Refused(BrokerUnavailable):
    """A refusal of credentials, virtual host, certificate or protocol, which no retry can mend: a person must act."""


class Silent(Exception):
    """
    A reply of the broker that did not arrive in time.

    Args:
        text: What is missing, for people.
        id: The entry of the catalogue that explains the missing reply.
    """

    def __init__(self, text: str, id: str = "network.no-reply") -> None:
        super().__init__(text)
        self.id = id


class Foreign(Exception):
    """A reply that is not of the expected protocol."""


class Judged(NamedTuple):
    """
    A description of an error, with its remedy and the entry of the catalogue that explains it.

    `refused` is true if the error is a refusal (`Refused`).
    """

    got: str
    remedy: str
    refused: bool = False
    id: str = ""


class Hop(NamedTuple):
    """
    A server that another server named, or that has one of several roles in a URL.

    Errors name this server, because the URL does not show which server failed.

    Attributes:
        place: Its address and role, and the server that gave the address.
        remedy: The remedy if the server cannot be reached; empty for the usual remedy.
        id: The entry of the catalogue for a server that cannot be reached; empty for the usual entry.
    """

    place: str
    remedy: str = ""
    id: str = ""


def at_hop(error: Exception, hop: Hop | None) -> None:
    """
    Record the server at which an error arose, so that `Translator.unavailable` names this server.

    Only the first call for an error counts.
    """
    if hop is not None:
        vars(error).setdefault(_HOP, hop)


@contextmanager
def at(hop: Hop | None) -> Iterator[None]:
    """Record a server for all errors of this context, as `at_hop` does for one error."""
    try:
        yield
    except Exception as error:
        at_hop(error, hop)
        raise


@dataclass(frozen=True, slots=True)
class Translator:
    """
    The translator of one adapter.

    Args:
        broker: The broker's name in messages.
        ports: The schemes and their default ports, as messages give them.
        trusts: The broker's setting that names the authorities whose client certificates the broker trusts.
        judge: A function that judges the errors of the client library, and returns None for all other errors.
        root: A function that returns the error inside the client library's wrappers.
    """

    broker: str
    ports: str
    trusts: str
    judge: Callable[[BaseException], Judged | None]
    root: Callable[[BaseException], BaseException] = lambda error: error

    def unavailable(self, error: BaseException, place: str) -> BrokerUnavailable:
        """
        Return SteadyWorker's error for an error that ended or prevented a connection to `place`.

        The result is `Refused` if a person must act.
        Otherwise it is a plain BrokerUnavailable, after which the adapter tries again.
        If the error arose at another server (`at_hop`), the text names that server.
        """
        if isinstance(error, BrokerUnavailable):
            return error
        if isinstance(error, ConfigError):
            return _caused(Refused(str(error), id=error.id), error)
        root = self.root(error)
        got, remedy, refused, id_ = self._certificate(root) or self.judge(root) or self._common(root)
        hop: Hop | None = vars(error).get(_HOP)
        if hop is not None:
            place = hop.place
            if (
                hop.remedy
                and (id_ in (*_UNREACHED, hop.id) or isinstance(root, Foreign))
                and not isinstance(root, Silent)
            ):
                remedy, id_ = hop.remedy, hop.id
        kind = Refused if refused else BrokerUnavailable
        return _caused(kind(f"Expected a connection to {self.broker} at {place}, got: {got}; {remedy}.", id=id_), error)

    @contextmanager
    def translated(self, place: str, to: type[SteadyWorkerError] | None = None) -> Iterator[None]:
        """
        Translate errors of libraries that are raised in this context, as `unavailable` does.

        If `to` is given, the new error has this type, with the same text and id.
        """
        try:
            yield
        except SteadyWorkerError as error:
            if to is None or isinstance(error, to) or not isinstance(error, BrokerUnavailable):
                raise
            raise to(str(error), id=error.id) from error
        except Exception as error:
            ours = self.unavailable(error, place)
            raise (ours if to is None else to(str(ours), id=ours.id)) from error

    def _certificate(self, error: BaseException) -> Judged | None:
        """Judge an error that contains the broker's TLS alert about our certificate; return None for all other errors."""
        text = repr(error)
        if "ALERT_CERTIFICATE_EXPIRED" in text:
            return Judged(
                "a refusal, because our certificate has expired",
                "renew the file that ?certfile= names, which is read again at each connect",
                refused=True,
                id="tls.client-certificate-expired",
            )
        if alert := _OUR_CERTIFICATE.search(text):
            return Judged(
                f"a refusal, because our certificate is missing or untrusted ({alert[0]})",
                f"set ?certfile= to a certificate that the broker's {self.trusts} trusts, and ?keyfile= to its key",
                refused=True,
                id=_by_alert(alert[0]),
            )
        return None

    def _common(self, error: BaseException) -> Judged:  # noqa: PLR0911 - one case per kind of error
        match error:
            case ssl.SSLCertVerificationError(verify_code=9 | 10, verify_message=message):  # not yet valid, or expired
                return Judged(
                    f"a certificate that is not valid now ({message})",
                    "renew the broker's certificate, or correct the clock of this host",
                    refused=True,
                    id="tls.certificate-expired",
                )
            case ssl.SSLCertVerificationError(verify_message=message, verify_code=code):
                return Judged(
                    f"an untrusted certificate ({message})",
                    "set ?cafile= to the PEM file of the signing authority, and connect by a host name that the certificate contains",
                    refused=True,
                    id="tls.wrong-host" if code == _WRONG_HOST else "tls.certificate-not-trusted",
                )
            case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ssl.SSLSyscallError():
                return Judged(
                    "a connection that closed during the TLS handshake",
                    f"{SEE_LOG}, and check proxies and firewalls on the way",
                    id="tls.handshake-closed",
                )
            case ssl.SSLError():
                return Judged(
                    f"no TLS ({getattr(error, 'reason', None) or error})",
                    f"correct the scheme and the port ({self.ports})",
                    refused=True,
                    id="tls.plain-port",
                )
            case Silent():
                return Judged(str(error), "check whether the broker is frozen or overloaded", id=error.id)
            case socket.gaierror():
                remedy = "correct the host in --broker, or the name service"
                return Judged(f"no address ({error.strerror})", remedy, id="network.unknown-host")
            case TimeoutError():
                return Judged("no reply in time", NO_ANSWER, id="network.no-reply")
            case OSError():
                return Judged(error.strerror or short(repr(error)), NO_ANSWER, id=_by_kind(error))
            case _:
                return Judged(short(repr(error)), SEE_LOG)


def _by_alert(alert: str) -> str:
    """Return the id of the entry for a TLS alert about our certificate."""
    if "UNKNOWN_CA" in alert:
        return "tls.client-certificate-not-trusted"
    return "tls.client-certificate-missing" if "REQUIRED" in alert or "HANDSHAKE_FAILURE" in alert else ""


def _by_kind(error: OSError) -> str:
    """Return the id of the entry for an error of a socket; return an empty text for other errors."""
    match error:
        case ConnectionRefusedError():
            return "network.connection-refused"
        case ConnectionResetError() | BrokenPipeError() | ConnectionAbortedError():
            return "network.connection-reset"
        case OSError(errno=errno.EHOSTUNREACH | errno.ENETUNREACH):
            return "network.unreachable"
        case _:
            return ""


def worst(errors: Sequence[BrokerUnavailable]) -> BrokerUnavailable:
    """
    Return the error that represents a try in which every host failed.

    The result is `Refused` only if every host refused, because otherwise a later try can succeed.
    """
    return next((error for error in errors if not isinstance(error, Refused)), errors[-1])


def short(text: str) -> str:
    """Return the text as one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= _LISTED else line[: _LISTED - 1] + "…"


def _caused(ours: BrokerUnavailable, error: BaseException) -> BrokerUnavailable:
    ours.__cause__ = error
    return ours
