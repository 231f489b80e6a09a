"""
The meaning of a program's exit code for its job.

The default meanings follow sysexits.h, which cron jobs and mail filters use.
The meanings of rabbitmq-cli-consumer follow its README: 0 acknowledges, 3 and 5 discard, 4 and 6 put the message back.
That tool puts a message back at once; SteadyWorker delays the message by the retry policy after every failed attempt.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

Codes = Literal["sysexits", "rabbitmq-cli-consumer"]


class Meaning(Enum):
    """The meaning of an exit code for the job."""

    DONE = "the job is done"
    FAILED = "the attempt failed: the job is tried again, up to the limit of attempts"
    DEAD = "no attempt can succeed: the job becomes a dead letter"
    INTERRUPTED = "the program stopped early, because it was asked to"
    UNFIT = "this host cannot run the program: the worker process gives the job back, and ends with exit code 78"


_SYSEXITS = {
    0: Meaning.DONE,
    64: Meaning.DEAD,  # EX_USAGE
    65: Meaning.DEAD,  # EX_DATAERR
    66: Meaning.DEAD,  # EX_NOINPUT
    77: Meaning.UNFIT,  # EX_NOPERM
    78: Meaning.UNFIT,  # EX_CONFIG
    79: Meaning.INTERRUPTED,
    126: Meaning.UNFIT,  # a shell found the command, but must not execute it
    127: Meaning.UNFIT,  # a shell did not find the command
}

_CLI_CONSUMER = {0: Meaning.DONE, 3: Meaning.DEAD, 5: Meaning.DEAD}

_TABLES: dict[Codes, dict[int, Meaning]] = {"sysexits": _SYSEXITS, "rabbitmq-cli-consumer": _CLI_CONSUMER}


def meaning(code: int, codes: Codes) -> Meaning:
    """Return the meaning of an exit code from 0 to 255; a code without an entry means a failed attempt."""
    return _TABLES[codes].get(code, Meaning.FAILED)
