"""
Histories of several jobs, whose broker may lose each message once its job is claimed: retries, deferred copies and letters, too.

Each host has its own monotonic clock, which stands still while the host is suspended.
The ledger is away for up to an hour, for one worker process or for everybody, and an operator may restore an old copy of it.
Here time passes as it does for threads: the broker delivers what it can, and a process that is not frozen renews its leases.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from steadyworker.clock import Times
from steadyworker.delivery import HOP, KEY, ROUND, WORKER, Delivery, OutgoingMessage, Target
from steadyworker.events import Event, MessageLost
from steadyworker.ledger.base import JobId, Orphan, Row, State
from steadyworker.link import Task
from steadyworker.outcome import Done, Failed, Outcome, Snoozed
from steadyworker.runner.envelope import envelope_of, in_round, kept, names_of
from steadyworker.runner.orphans import orphan_after
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker.testing.queues import QueuedMessage
from tests.simulation.world import CALM, NAMESPACE, QUEUE, SPEC, TIMES, Faults, SimWorker, Violation, World, history

HEARTBEAT = 45.0
"""Seconds after which the broker cuts the connection of a process that is frozen or suspended."""

REST = 60.0
"""Seconds after its return in which a process may not yet know that another has taken its job."""

LONG = 41.0
"""Seconds of absence that a process must notice: longer than two renewals and the limit of a call."""

ENDED = (State.DONE, State.DEAD)

STORM = Faults(
    lose=0.10, outage=0.008, suspend=0.006, restore=0.003, kill=0.003, freeze=0.003, cut=0.03, ledger_away=0.004
)
NO_LOSS = replace(STORM, lose=0.0, restore=0.0)
"""All but losses: so nothing may be called lost."""


class HostClock:
    """The clocks of one host, whose monotonic clock stands still while the host is suspended."""

    def __init__(self, world: FakeClock) -> None:
        self._world = world
        self.suspended = 0.0
        self.boottime = world.boottime
        self.wall = world.wall

    def monotonic(self) -> float:
        return self._world.monotonic() - self.suspended


@dataclass
class Seen:
    """What a history met, for the tests that ask whether it meets what it is about."""

    lost: int = 0
    letters_lost: int = 0
    orphans: int = 0
    reserved: int = 0
    held: int = 0
    overlaps: int = 0
    of_orphans: int = 0
    outages: int = 0
    suspends: int = 0
    restores: int = 0
    stranded: int = 0
    replays: int = 0


class LossyWorld(World):
    """
    One history of a few jobs.

    The seed decides whether a ledger serves one host or a fleet, whether the broker has delay levels, whether its queue is never empty,
    and whether the Worker keeps messages.
    If it is `busy`, a dozen jobs share two worker processes of eight slots, so that a turn often has several writes.
    """

    def __init__(
        self, seed: int, *, orphan_poll: float = TIMES.orphan_poll, busy: bool = False, **options: Any
    ) -> None:
        drawn = random.Random(seed * 31 + 7)
        self.fleet = drawn.choice((1, 2, 3, 3))
        self.names = [f"job-{number}" for number in range(drawn.choice((1, 1, 2, 3, 4)))]
        self.slots = drawn.choice((1, 1, 2))
        if busy:
            self.fleet, self.slots, self.names = 2, 8, [f"job-{number}" for number in range(12)]
        self.backlog = drawn.choice((0, 0, 0, 1, 5))
        self.stops = drawn.random() < 0.5
        self.keeps = drawn.random() < 0.95
        self.never_empty = drawn.random() < 0.05
        self.levels = drawn.choice(((60.0, 300.0), (300.0, 900.0))) if drawn.random() < 0.2 else ()
        self.times = Times(orphan_reserve=400.0, orphan_poll=orphan_poll)
        self.spec = replace(SPEC, keep_message=self.keeps)
        self.seen = Seen()
        self.replayed: set[tuple[str, int]] = set()
        self.lost_letters: set[tuple[str, int]] = set()
        self.ids: dict[int, JobId] = {}
        self.restored_up_to = 0
        self._saved: tuple[Any, ...] | None = None
        self._away: dict[str, float] = {}
        self._orphans: set[int] = set()
        self._away_for_long: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._asleep: set[str] = set()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._fed = 0
        super().__init__(seed, **options)

    def send(self) -> None:
        """Send the jobs, and those that wait before them."""
        new = [f"new-{number}" for number in range(self.backlog)]
        for key in (*new, *self.names):
            self._publish(key)
        self.names = [*self.names, *new]

    def _publish(self, key: str) -> None:
        self.operator.publish(OutgoingMessage(Target.WORK, key.encode(), {KEY: key}))

    def _new_worker(self) -> SimWorker:
        worker = super()._new_worker()
        if not self.ledger_out:  # a worker process registers before it takes messages
            self.ledger.register(worker.owner, "host", worker.keeper._queues)
        return worker

    def clock_of_a_host(self) -> HostClock:
        return HostClock(self.clock)

    # --- time ---

    def pass_time(self, seconds: float) -> None:
        """Time passes for all threads that are not frozen: none of them sleeps through a message, a settlement or a renewal."""
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 0:
            self.broker.pump(self.rng.randrange)
            for worker in list(self.workers):
                if self._free(worker) and worker in self.workers:
                    self._do(worker, lambda worker=worker: self._turn(worker))  # type: ignore[misc]
            event = self._due[0][0] - self.clock.monotonic() if self._due else left
            self.clock.advance(max(0.001, min(left, event, 120.0 if self.ledger_out else 15.0)))
            while self._due and self._due[0][0] <= self.clock.monotonic():
                heapq.heappop(self._due)[2]()

    def _turn(self, worker: SimWorker) -> None:
        if worker.clock.monotonic() >= worker.next_turn:
            worker._keep()
        while worker.runner.inbox:
            worker.runner._receive(worker.runner.inbox.pop())
        worker.runner.tick()
        for _ in range(len(worker.pending)):
            worker.pending.pop(0)()

    def _free(self, worker: SimWorker) -> bool:
        return not worker.busy and worker.frozen_until <= self.clock.monotonic()

    def _let_time_pass(self) -> None:
        if self.never_empty:
            self._feed()
        waits = [self.broker.due_in() or 0.0]
        waits += [worker.next_turn - worker.clock.monotonic() for worker in self.workers if not worker.keeper.away]
        waits += [self._due[0][0] - self.clock.monotonic()] if self._due else []
        ahead = min((wait for wait in waits if wait > 0), default=15.0)
        self.pass_time(ahead if self.rng.random() < 0.7 else self.rng.choice([1.0, 7.0, 31.0]))

    def _feed(self) -> None:
        """Send new messages, so that some always wait."""
        while self._fed < 60 and sum(message.holder is None for message in self.broker.messages(QUEUE)) < 2:
            self._fed += 1
            self.names = [*self.names, f"fed-{self._fed}"]
            self._publish(self.names[-1])

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.clock.monotonic() + seconds, next(self._numbers), do))

    # --- faults ---

    def _fault(self) -> None:
        super()._fault()
        faults, rng = self.faults, self.rng
        if faults is CALM:
            return
        if rng.random() < faults.lose:
            self._lose()
        if rng.random() < faults.outage:
            self._outage(rng.choice((20.0, 100.0, 400.0, 3500.0)))
        if rng.random() < faults.suspend:
            self._suspend(rng.choice((20.0, 100.0, 300.0)))
        if rng.random() < faults.restore and isinstance(self.ledger, MemoryLedger):
            self._save_or_restore(self.ledger)

    def _victim(self) -> str:
        message = self.rng.choice(self.broker.messages(QUEUE))
        return str(message.headers[KEY])

    def _lose(self) -> None:
        """The broker loses a message, if its job is claimed, or is the replay of one that was."""
        messages = [*self.broker.messages(QUEUE), *self.broker.dead(QUEUE)]
        if not messages:
            return
        message = self.rng.choice(messages)
        id_, letter = _id(message), WORKER in message.headers
        row = self.ledger.read(id_)
        if (row is None or row.fence == 0) and id_.round == 0:
            return
        self.broker.lose(message, silent=self.rng.random() < 0.5)
        self.seen.lost += 1
        if letter:
            self.seen.letters_lost += 1
            self.lost_letters.add((id_.key, id_.round))

    def _outage(self, seconds: float) -> None:
        """The ledger is away for everybody, or, if it serves a fleet, for one process, whose runs then end."""
        if self.ledger_out or any(worker.ledger_away for worker in self.workers):
            return
        self.seen.outages += 1
        since = self.clock.boottime()
        if self.stops and self.rng.random() < 0.5:
            worker = self.rng.choice(self.workers)
            worker.ledger_away = True
            self._later(seconds, lambda: self._ledger_is_back([worker], since))
        else:
            self.ledger_out = True
            self._later(seconds, lambda: self._ledger_is_back(self.workers, since))

    def _ledger_is_back(self, workers: list[SimWorker], since: float) -> None:
        self.ledger_out = self.ledger_out and workers is not self.workers
        for worker in workers:
            worker.ledger_away = False
            worker.next_turn = worker.clock.monotonic() + self.rng.uniform(0.0, 11.0)  # a call's limit, and a second
            self._back(worker, since)

    def _ledger_fails(self, worker: SimWorker) -> None:
        self._outage(self.rng.choice((1.0, 10.0)))

    def _suspend(self, seconds: float) -> None:
        """One host, or all hosts, are suspended: boot and wall clock go on, and the broker gives up their connections."""
        self.seen.suspends += 1
        if self.rng.random() < 0.5:
            self.clock.sleep(seconds)
            for worker in self.workers:
                self._back(worker, self.clock.boottime() - seconds)
                if seconds > HEARTBEAT:
                    self.broker.drop_connection(worker.adapter.real)
            return
        worker = self.rng.choice(self.workers)
        if not self._free(worker):
            return
        worker.frozen_until = self.clock.monotonic() + seconds + 1e-6
        wake = self._cut_off(worker)

        def wakes() -> None:
            worker.clock.suspended += seconds  # type: ignore[attr-defined]
            worker.next_turn = min(worker.next_turn, worker.clock.monotonic() + self.times.renew)
            worker.frozen_until = 0.0
            wake()

        self._later(seconds, wakes)

    def freeze(self, worker: SimWorker) -> None:
        """The process is stopped in a call: its monotonic clock goes on."""
        wake = self._cut_off(worker)
        for _ in range(self.rng.randrange(20)):
            self.step()
        self.pass_time(self.rng.choice([1.0, 20.0, 70.0, 120.0, 400.0]))
        wake()

    def _cut_off(self, worker: SimWorker) -> Callable[[], None]:
        """Let the broker give up a process that does nothing, after a while, until the returned function is called."""
        consumer, since = worker.adapter.real.consumer, self.clock.boottime()
        ended: list[int] = []
        self._asleep.add(worker.owner)

        def gives_up() -> None:
            if not ended:
                ended.append(consumer.window)
                consumer.window = 0
                self.broker.drop_connection(worker.adapter.real)

        def wake() -> None:
            consumer.window = ended[0] if ended else consumer.window
            ended.append(0)
            self._asleep.discard(worker.owner)
            self._back(worker, since)

        self._later(HEARTBEAT, gives_up)
        return wake

    def _back(self, worker: SimWorker, since: float) -> None:
        now = self.clock.boottime()
        self._away[worker.owner] = now
        if now - since > LONG:
            self._away_for_long[worker.owner] = now

    def _was_away(self, worker: SimWorker) -> bool:
        """Whether the process is frozen or cut off from the ledger, or was so a moment ago."""
        back = self._away.get(worker.owner, -float("inf"))
        away = worker.ledger_away or self.ledger_out or worker.owner in self._asleep
        return away or self.clock.boottime() - back < REST

    def _save_or_restore(self, ledger: MemoryLedger) -> None:
        if self._saved is None:
            self._saved = ledger.saved(), list(self.final)
        elif not self.seen.restores:
            saved, final = self._saved
            self.seen.restores += 1
            ledger.restore(saved)
            self.final = list(final)
            self.restored_up_to = max(self.ids, default=0)
            self.granted = {row.id: row.fence for row in self.rows()}
            for worker in self.workers:
                self._back(worker, self.clock.boottime())

    def _move_letters(self) -> None:
        """An operator moves the letters as they are, or replays them."""
        if self.rng.random() < 0.5 and not self.ledger_out:
            self._replay_letters()
        else:
            super()._move_letters()

    def _replay_letters(self) -> None:
        with self.operator.dead_letters() as letters:
            for letter in letters:
                id_ = JobId(NAMESPACE, QUEUE, letter.headers[KEY], int(letter.headers[ROUND]))
                row = self.ledger.read(id_)
                if row is not None and row.state is State.DEAD:
                    self._replay(id_, letter)
                    if self.rng.random() < 0.8:
                        letters.drop(letter)

    def _replay(self, id_: JobId, letter: Delivery) -> None:
        """Write the next round's row, then publish its message; the operator may die between the two."""
        next_ = JobId(id_.namespace, id_.queue, id_.key, id_.round + 1)
        headers = in_round(letter.headers, next_)
        message = OutgoingMessage(Target.WORK, letter.body, headers)
        self.replay_row(next_, replace(letter, headers=headers))
        self.seen.replays += 1
        self.replayed.add((id_.key, id_.round))
        if not self.faults.lose or self.rng.random() < 0.9:
            self.operator.publish(message)

    def replay_row(self, id_: JobId, message: Delivery) -> None:
        """Write the row of a replay."""
        self.ledger.replay(id_, kept(message), hashlib.sha256(message.body).digest())
        row = self.ledger.read(id_)
        if row is not None:
            self.ids[row.fence] = id_

    def died(self, worker: SimWorker) -> None:
        self.kills += max(1, len(worker.runner.state.by_fence))

    # --- what the wrappers tell ---

    def outcome(self) -> Outcome:
        drawn = self.rng.random()
        if drawn < 0.05:
            return Failed("the job's own fault", delay=600.0)
        if drawn < 0.1:
            return Snoozed(250.0)
        return Done() if self._fed and drawn < 0.9 else super().outcome()

    def began(self, task: Task, worker: SimWorker) -> None:
        """Two runs of a job go on at once only while an owner is frozen or cut off from the ledger."""
        super().began(task, worker)
        orphan = task.fence in self._orphans
        if orphan and 0 <= self._asked[worker.owner] - self._away_for_long.get(worker.owner, -float("inf")) < 90.0:
            raise Violation(f"{task.key} is taken by a process that was away itself until just now: {self.describe()}")
        for other, run in ((each, slot.computing) for each in self.workers for slot in each.slots):
            if other is worker or run is None or (run.key, run.round) != (task.key, task.round):
                continue
            self.seen.overlaps += 1
            self.seen.of_orphans += orphan
            if not (self._was_away(other) or self._was_away(worker)):
                raise Violation(f"{task.key} runs twice, and {other.owner} is well: {self.describe()}")

    def observed(self, name: str, arguments: tuple[Any, ...], answer: Any) -> None:
        super().observed(name, arguments, answer)
        if name == "orphans":
            self._asked[self.caller.owner] = self.clock.boottime()
        if name in ("claim", "take_over", "lose") and isinstance(answer, Row):
            self.ids[answer.fence] = answer.id

    def received(self, event: Event) -> None:
        """What is called lost is lost: no message of the job is in the broker, for a process that could act on it."""
        super().received(event)
        if not isinstance(event, MessageLost) or event.fate == "left":
            return
        self.seen.orphans += 1
        only_ends = event.fate == "dead" and "sent again" in event.why
        if (
            not only_ends
            and self.seen.restores
            and event.fence <= self.restored_up_to
            and event.fence in self._old_fences()
        ):
            raise Violation(f"{event} ran by itself after its ledger was restored: {self.describe()}")
        row = self.ledger.read(self.ids[event.fence])
        self._orphans.add(0 if row is None else row.fence)
        here = list(self._of(event))
        if here and event.unseen_for > self.times.orphan_reserve:  # no slot was free for so long
            self.seen.reserved += 1
        elif here and all(holder is not None and self._was_away(holder) for holder in map(self._holder, here)):
            self.seen.held += 1
        elif here:
            raise Violation(f"{event} is no loss: {here} {self.describe()}")

    def _old_fences(self) -> set[int]:
        return {fence for fence in self.ids if fence <= self.restored_up_to}

    def _of(self, event: MessageLost) -> Iterator[QueuedMessage]:
        """The messages in the work queue for which this job could have waited."""
        row = self.ledger.read(self.ids[event.fence])
        for message in self.broker.messages(QUEUE):
            headers = message.headers
            if message.due > self.clock.boottime() and (event.state == "moving" or self.seen.suspends or self.pauses):
                continue  # a settlement waits for the message before its retry, and a frozen process publishes late
            if message.due > self.clock.boottime() and message.sent_at <= event.fence / 1000:
                continue  # a second copy, deferred before the job was claimed with another one, which is lost
            if row is None or _id(message) != row.id or WORKER in headers or int(headers.get(HOP, 0)) < row.hop:
                continue
            yield message

    def _holder(self, message: QueuedMessage) -> SimWorker | None:
        return next((each for each in self.workers if each.adapter.real.consumer is message.holder), None)

    # --- the end ---

    def heal(self) -> None:
        """Every fault ends; then the operator starts what no process starts by itself, and at times replays lost letters."""
        faults, self.faults = self.faults, CALM
        while self._due:
            self.pass_time(max(0.0, self._due[0][0] - self.clock.monotonic()) + 0.01)
        self.faults = faults
        super().heal()
        if self._operate():
            super().heal()

    def settled(self) -> bool:
        """Nobody is at work, no message is left, and each row has ended or is listed for the operator."""
        if not super().settled():
            return False
        unfinished = {row.id for row in self.rows() if row.state not in ENDED and row.fence}
        return not unfinished or unfinished <= {orphan.row.id for orphan in self._stranded()}

    def _stranded(self) -> list[Orphan]:
        after = orphan_after(self.times, self.operator.capabilities)
        return list(self.ledger.orphans(NAMESPACE, QUEUE, after, 100, stranded=True))

    def _operate(self) -> int:
        """What `retry` and `dead replay` do; return the number of messages."""
        started = 0
        for orphan in self._stranded():
            message = self.ledger.message(orphan.row.id)
            if message is None:
                continue
            self.seen.stranded += 1
            started += 1
            envelope = envelope_of(orphan.row, message)
            headers = {**envelope.delivery.headers, **names_of(envelope.id, envelope.hop, orphan.row.uid)}
            self.operator.publish(OutgoingMessage(Target.WORK, message.body, headers))
        here = {(_id(letter).key, _id(letter).round) for letter in self.broker.dead(QUEUE)}
        for key, round_ in sorted(self.lost_letters - here):
            id_ = JobId(NAMESPACE, QUEUE, key, round_)
            row, message = self.ledger.read(id_), self.ledger.message(id_)
            again = self.ledger.read(replace_round(id_, round_ + 1))
            if row is None or row.state is not State.DEAD or message is None or again is not None:
                continue
            started += 1
            self._replay(id_, envelope_of(row, message).delivery)
        return started

    def rows(self) -> list[Row]:
        return [row for row, _ in self.ledger.jobs()]

    def describe(self) -> str:
        return f"{self.seen} left={self._stranded()} lost letters={self.lost_letters} {super().describe()}"

    def judge(self) -> None:
        """Each claimed job ended once, and whatever became of its letter, it can be replayed."""
        rows = {(row.id.key, row.id.round): row for row in self.rows() if row.fence}
        letters = {(_id(letter).key, _id(letter).round) for letter in self.broker.dead(QUEUE)}
        left = {(each.row.id.key, each.row.id.round) for each in self._stranded()}
        self._judge_rows(rows, letters, left)
        if self.seen.restores:  # what the lost part of the record had done is done, and may be done again
            return
        for key in self.names:
            if (key, 0) not in rows:
                raise Violation(f"lost: {key} has no row: {self.describe()}")
        for key, round_ in self.replayed:
            if (key, round_ + 1) not in rows:
                raise Violation(f"lost: the replay of {key} in round {round_} has no row: {self.describe()}")
        for key, round_ in rows:
            if round_ and (key, round_ - 1) not in self.moved | self.replayed:
                raise Violation(f"{key} has a round {round_} that nobody began: {self.describe()}")
        if self.starts > len(self.accepted) + self.kills + self.fenced + len(left):
            raise Violation(f"{self.starts} starts, {self.kills} kills, {self.fenced} fenced: {self.describe()}")
        ended = sorted((id_.key, id_.round) for id_, _ in self.final)
        if ended != sorted(job for job in rows if job not in left):
            raise Violation(f"final outcomes {self.final}: {self.describe()}")

    def _judge_rows(
        self, rows: dict[tuple[str, int], Row], letters: set[tuple[str, int]], left: set[tuple[str, int]]
    ) -> None:
        for job, row in rows.items():
            if row.state not in ENDED:
                if self.keeps or job not in left:
                    raise Violation(f"stuck: {job} is {row.state}: {self.describe()}")
                continue
            known = letters | self.moved | self.replayed | self.lost_letters
            if row.state is State.DONE and job in letters and not self.seen.restores:
                raise Violation(f"{job} is done and has a dead letter: {self.describe()}")
            if row.state is State.DEAD and job not in known and self.keeps:
                raise Violation(f"lost: {job} is dead without a dead letter: {self.describe()}")
            if row.state is State.DEAD and self.keeps and self.ledger.message(row.id) is None:
                raise Violation(f"lost: {job} is dead, and its message is not kept: {self.describe()}")


def _id(message: QueuedMessage) -> JobId:
    return JobId(NAMESPACE, QUEUE, message.headers[KEY], int(message.headers.get(ROUND, 0)))


def replace_round(id_: JobId, round_: int) -> JobId:
    """The same job in another round."""
    return JobId(id_.namespace, id_.queue, id_.key, round_)


def lossy(seed: int, faults: Faults = STORM, **options: Any) -> LossyWorld:
    """Play one history with these faults to its end, and judge it."""
    world = history(seed, LossyWorld, faults=faults, **options)
    assert isinstance(world, LossyWorld)
    return world
