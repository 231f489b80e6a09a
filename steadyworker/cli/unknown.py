"""The queues that neither the broker nor the ledger has; a verb that only reads finds this out without creating a file."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.errors import NoLedger, UnknownQueue


def check_known(links: Connections, queue: JobQueue) -> None:
    """
    Check that the broker or the ledger has this queue.

    To ask a broker for its identity can create a broker that is a file, so a verb that only reads calls this first.

    Raises:
        UnknownQueue: Neither has a queue of this name; the text gives similar names.
        NoLedger: The broker does not have the queue of this Worker, and there is no ledger.
        BrokerUnavailable, LedgerUnavailable: The broker or the ledger does not respond.
    """
    if links.adapter(queue).exists():
        return
    if not isinstance(queue.opened_as, str):
        links.ledger().bindings()
    elif queue.name not in (known := names(links)):
        raise UnknownQueue(f"Expected the name of a queue, got {queue.name!r}: {no_queue(queue.name, known)}.")


def names(links: Connections) -> Collection[str]:
    """Return the names of the ledger's queues; none without a ledger."""
    try:
        return {name for _, name in links.ledger().bindings()}
    except NoLedger:
        return ()


def no_queue(queue: str, known: Collection[str]) -> str:
    """Return the clause about a queue that is not among these known names, and that the broker does not have either."""
    near = difflib.get_close_matches(queue, known)
    remedy = f"did you mean {' or '.join(near)}?" if near else "correct the name, or name the Worker"
    return f"neither the broker nor the ledger has a queue of this name: {remedy}"
