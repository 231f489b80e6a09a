"""Notices about worker processes and queues; many of one kind are one notice, such as `37 worker processes on host-a`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from msgspec.structs import replace

from steadyworker.backends.waiting import QueueNow
from steadyworker.dashboard.notices import NO_WORKER, Notice, queue_notices, worker_notices
from steadyworker.ledger.fleet import Trouble, WorkerNow
from steadyworker.units import count_text

MOST_ALIKE = 3
"""The largest number of notices of one kind, from one host, that stay separate; more of them are one notice."""

MOST_HOSTS = 5
"""The largest number of hosts whose notices of one kind stay separate."""

Thing = TypeVar("Thing")
Found = tuple[Notice, Thing]


def grouped_notices(processes: Iterable[WorkerNow], queues: Sequence[QueueNow], now: float) -> tuple[list[Notice], int]:
    """Return the notices about these worker processes and queues, and the number of notices before many became one."""
    of_workers = [
        (_with_messages(notice, process, queues), process)
        for process in processes
        for notice in worker_notices(process, now)
    ]
    # The notice of a dead process names its messages; a second notice about their queue would say the same.
    forsaken = {
        name for notice, process in of_workers if notice.kind == Trouble.GONE.value for name in process.forsaken
    }
    of_queues = [
        (notice, queue)
        for queue in queues
        for notice in queue_notices([queue])
        if not (notice.kind == NO_WORKER and queue.queue in forsaken)
    ]
    notices = []
    for kind in _by(of_workers, lambda found: found[0].kind).values():
        hosts = _by(kind, lambda found: found[1].seen.host)
        if len(hosts) > MOST_HOSTS:
            notices += _one(kind, f"{len(hosts)} hosts", now)
        else:
            for host, found in hosts.items():
                notices += _one(found, host, now)
    for alike in _by(of_queues, lambda found: found[0].kind).values():
        if len(alike) > MOST_ALIKE:
            first, others = alike[0][0], count_text(len(alike) - 1, "other queue")
            notices.append(Notice(first.level, first.kind, f"{first.what} and {others}", "", first.path, first.text))
        else:
            notices += [notice for notice, _ in alike]
    return notices, len(of_workers) + len(of_queues)


def _with_messages(notice: Notice, process: WorkerNow, queues: Sequence[QueueNow]) -> Notice:
    """Return the notice of a dead process with the number of messages that wait in its queues, which no other process consumes."""
    ready = sum(queue.depth.ready or 0 for queue in queues if queue.waits and queue.queue in process.forsaken)
    if notice.kind != Trouble.GONE.value or not ready:
        return notice
    return replace(notice, text=f"{notice.text} {count_text(ready, 'message')} {'waits' if ready == 1 else 'wait'}.")


def _one(found: Sequence[Found[WorkerNow]], where: str, now: float) -> list[Notice]:
    """Return these notices of one kind, or one notice for all of them; of dead processes, the last of its kind has the only notice."""
    number = sum(process.gone or 1 for _, process in found)
    if number <= MOST_ALIKE:
        return [notice for notice, _ in found]
    first = found[0][0]
    since = datetime.fromtimestamp(now - max(max(each.gone_for, each.seen.seen_ago) for _, each in found), UTC)
    gone = f" since {since:%H:%M}" if first.kind in ("gone", "silent") else ""
    what = f"{count_text(number, 'worker process', 'worker processes')} on {where}"
    return [
        Notice(
            first.level,
            first.kind,
            what,
            "",
            "/workers",
            f"{first.kind.capitalize()}{gone}; of {first.what}: {first.text}",
        )
    ]


def _by(found: Iterable[Found[Thing]], key: Callable[[Found[Thing]], str]) -> dict[str, list[Found[Thing]]]:
    parts: dict[str, list[Found[Thing]]] = {}
    for each in found:
        parts.setdefault(key(each), []).append(each)
    return parts
