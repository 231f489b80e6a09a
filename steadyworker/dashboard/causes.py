"""
The cause of a failure: what many failed jobs have in common.

With a place in own code, the last frame of the traceback that is no library's, a cause is queue, class of the error, and place.
The text of such an error does not matter, so a key or an amount in it makes no cause of its own.
Without such a place, a failure without a class of errors has its reason as its class, without its digits and quoted parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256

from msgspec import Struct

from steadyworker.ledger.base import JobId, Ledger, Row
from steadyworker.ledger.listing import kind_of
from steadyworker.text.redaction import redact

AT_ONCE = 500
"""The number of jobs whose tracebacks are read at once."""

REJECT = "Reject"
"""The class of a failure that own code decided without an error."""

_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+)(?:, in (\S+))?', re.MULTILINE)
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<")
_LONGEST_KIND = 80


class FailureCause(Struct, frozen=True):
    """
    The cause of a failure.

    Attributes:
        namespace, queue: The queue.
        kind: The class of the error, `REJECT`, or the reason without what varies from job to job.
        path: File with its whole path, line and function of the last own frame, or of the last frame at all; empty without one.
    """

    namespace: str
    queue: str
    kind: str
    path: str = ""

    @property
    def place(self) -> str:
        """File, line and function, without the folder of the file."""
        return self.path.rpartition("/")[2]

    @property
    def text(self) -> str:
        """The kind, and the place if it is known."""
        return f"{self.kind} at {self.place}" if self.path else self.kind

    @property
    def name(self) -> str:
        """The name of this cause in an address."""
        return sha256(f"{self.kind}\n{self.path}".encode(errors="surrogatepass")).hexdigest()[:12]


def causes_of(ledger: Ledger, rows: Sequence[Row]) -> Sequence[FailureCause]:
    """Return the cause of each of these failures, in their order."""
    causes: list[FailureCause] = []
    for start in range(0, len(rows), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        ends = ledger.facts.tracebacks(tuple(row.id for row in part))
        causes += [cause_of(row, ends) for row in part]
    return causes


def cause_of(row: Row, tracebacks: Mapping[JobId, str]) -> FailureCause:
    """Return the cause of a failure; `tracebacks` are those of `Facts.tracebacks`."""
    frame, is_own = own_frame(tracebacks.get(row.id, ""))
    kind = row.error_class
    if not kind:
        # The traceback of a job whose process died is that of an earlier run.
        decided = is_own and not row.counters.crashes and not row.counters.losses
        kind = REJECT if decided else kind_of(row)
    kind = redact(kind)[:_LONGEST_KIND] or "no error is recorded"
    return FailureCause(row.id.namespace, row.id.queue, kind, redact(frame))


def own_frame(traceback: str) -> tuple[str, bool]:
    """Return `path:line in function` of the last frame in own code, or of the last frame at all, and whether it is own code."""
    frames = _FRAME.findall(traceback)
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    if not frames:
        return "", False
    path, line, function = (own or frames)[-1]
    return f"{path}:{line} in {function}" if function else f"{path}:{line}", bool(own)
