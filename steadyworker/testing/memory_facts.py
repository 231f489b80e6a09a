"""The facts in this process's memory, beside the jobs of a `MemoryLedger`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock

from msgspec.structs import replace
from typing_extensions import override

from steadyworker.adapter import Depth
from steadyworker.clock import Clock
from steadyworker.ledger import retention
from steadyworker.ledger.facts import (
    MOST_LISTED,
    TRACEBACK_END,
    Action,
    Attempt,
    CommandName,
    Facts,
    LinkEvent,
    MeasuredDepth,
    Minute,
    OwnerCommand,
    Pause,
)
from steadyworker.ledger.facts_rows import (
    counts_of,
    minutes_of,
    safe_action,
    safe_depth,
    safe_event,
    safe_key,
    safe_name,
    safe_text,
)
from steadyworker.ledger.job_id import JobId
from steadyworker.testing.memory_job import MemoryJob

_Queue = tuple[str, str]
"""A namespace and a queue."""


class MemoryFacts(Facts):
    """
    Facts that end with their process; the wall clock sets and judges their times.

    A MemoryLedger changes the jobs that `jobs` returns under the lock.
    """

    def __init__(self, clock: Clock, lock: Lock, jobs: Callable[[], Mapping[JobId, MemoryJob]]) -> None:
        self._clock = clock
        self._lock = lock
        self._jobs = jobs
        self._events: list[LinkEvent] = []
        self._counts: Counter[tuple[int, str, str, str, int]] = Counter()
        self._pauses: dict[_Queue, Pause] = {}
        self._commands: list[tuple[str, OwnerCommand]] = []
        self._actions: list[Action] = []
        self._asked: dict[_Queue, float] = {}
        self._depths: dict[_Queue, tuple[Depth, float]] = {}

    @override
    def attempts(self, id: JobId) -> Sequence[Attempt]:
        with self._lock:
            job = self._jobs().get(id)
            return () if job is None else tuple(job.attempts.values())

    @override
    def last_runs(self, ids: Sequence[JobId]) -> Mapping[JobId, tuple[int, str]]:
        with self._lock:
            runs = {id: list(self._jobs()[id].attempts.values()) for id in ids if id in self._jobs()}
        return {id: (len(each), each[-1].because) for id, each in runs.items() if each}

    @override
    def tracebacks(self, ids: Sequence[JobId]) -> Mapping[JobId, str]:
        with self._lock:
            jobs = self._jobs()
            runs = {id: [run.traceback for run in jobs[id].attempts.values()] for id in ids if id in jobs}
        return {
            id: texts[-1][-TRACEBACK_END:] for id, each in runs.items() if (texts := [text for text in each if text])
        }

    @override
    def result(self, id: JobId) -> bytes | None:
        with self._lock:
            job = self._jobs().get(id)
            return None if job is None else job.result

    @override
    def add_link_events(self, events: Sequence[LinkEvent]) -> None:
        with self._lock:
            self._events += map(safe_event, events)
            self._events.sort(key=lambda event: event.at)

    @override
    def link_events(
        self, since: float, *, owner: str | None = None, fences: Collection[int] = ()
    ) -> Sequence[LinkEvent]:
        with self._lock:
            return [
                event
                for event in self._events
                if event.at >= since and owner in (None, event.owner) and (not fences or event.fence in fences)
            ]

    @override
    def add_minutes(self, minutes: Sequence[Minute]) -> None:
        with self._lock:
            for *which, runs in counts_of(minutes):
                self._counts[tuple(which)] += runs  # type: ignore[index]

    @override
    def minutes(self, since: float, namespace: str | None = None, queue: str | None = None) -> Sequence[Minute]:
        with self._lock:
            return minutes_of(
                [
                    (*which, runs)
                    for which, runs in sorted(self._counts.items())
                    if which[0] >= since and namespace in (None, which[1]) and queue in (None, which[2])
                ]
            )

    @override
    def pause(self, namespace: str, queue: str, who: str, reason: str) -> None:
        pause = Pause(namespace, queue, safe_name(who), safe_text(reason), self._clock.wall())
        with self._lock:
            self._pauses[namespace, queue] = pause

    @override
    def resume(self, namespace: str, queue: str) -> bool:
        with self._lock:
            return self._pauses.pop((namespace, queue), None) is not None

    def is_paused(self, id: JobId) -> bool:
        """Return whether the queue of this job is paused; the caller has the lock."""
        return (id.namespace, id.queue) in self._pauses

    @override
    def pauses(self) -> Sequence[Pause]:
        with self._lock:
            return [self._pauses[queue] for queue in sorted(self._pauses)]

    @override
    def command(self, owner: str, name: CommandName, who: str) -> None:
        with self._lock:
            self._commands.append((owner, OwnerCommand(name, safe_name(who), self._clock.wall())))

    @override
    def commands(self, owner: str) -> Sequence[OwnerCommand]:
        with self._lock:
            found = [command for to, command in self._commands if to == owner]
            self._commands = [each for each in self._commands if each[0] != owner]
            return found

    def commanded(self, owner: str) -> bool:
        """Return whether a command waits for this owner."""
        with self._lock:
            return any(to == owner for to, _ in self._commands)

    @override
    def act(self, action: Action) -> None:
        with self._lock:
            self._actions.append(replace(safe_action(action), at=self._clock.wall()))

    @override
    def actions(
        self,
        since: float | None = None,
        namespace: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        limit: int = MOST_LISTED,
    ) -> Sequence[Action]:
        with self._lock:
            found = [
                action
                for action in reversed(self._actions)
                if (since is None or action.at >= since)
                and namespace in (None, action.namespace)
                and queue in (None, action.queue)
                and (key is None or safe_key(key) in action.keys)
            ]
        return found[:limit]

    @override
    def may_measure(self, namespace: str, queue: str, every: float) -> bool:
        with self._lock:
            now, last = self._clock.wall(), self._asked.get((namespace, queue))
            may = last is None or not last <= now < last + every
            if may:
                self._asked[namespace, queue] = now
            return may

    @override
    def record_depth(self, namespace: str, queue: str, depth: Depth) -> None:
        with self._lock:
            self._depths[namespace, queue] = safe_depth(depth), self._clock.wall()

    @override
    def depths(self) -> Sequence[MeasuredDepth]:
        with self._lock:
            now = self._clock.wall()
            return [
                MeasuredDepth(*queue, depth, max(0.0, now - at)) for queue, (depth, at) in sorted(self._depths.items())
            ]

    def purge(self) -> None:
        """Delete the facts whose time is over."""
        with self._lock:
            now = self._clock.wall()
            self._events = [event for event in self._events if event.at > now - retention.LINK_EVENTS]
            self._counts = Counter(
                {which: runs for which, runs in self._counts.items() if which[0] > now - retention.MINUTES}
            )
            self._commands = [each for each in self._commands if each[1].at > now - retention.COMMANDS]
            self._actions = [action for action in self._actions if action.at > now - retention.ACTIONS]
            self._depths = {
                queue: (depth, at) for queue, (depth, at) in self._depths.items() if at > now - retention.DEPTHS
            }
