"""
A whole fleet in one thread: the real runner, ledger rules, `decide` and `settle`, driven by a seeded random scheduler.

One job, three workers, one broker.
The scheduler picks who takes the next step, and which fault strikes; the same seed always gives the same history.
A call to ledger or broker may be the last thing that a worker does (SIGKILL), may lose its answer, and may last so long
that everybody else goes on meanwhile (a frozen process): the wrappers below do all three at any call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, cast

from steadyworker.adapter import QueueSpec
from steadyworker.clock import Clock, Times
from steadyworker.delivery import KEY, ROUND, Delivery, OutgoingMessage, Settle, Settled, Target
from steadyworker.errors import LedgerUnavailable, StaleDelivery, Unsettled
from steadyworker.events import Event, Fenced
from steadyworker.ledger.base import JobId, Ledger, Row, State, Token, Verdict
from steadyworker.ledger.lease import Keeper, registered_name
from steadyworker.lifecycle import Stage
from steadyworker.link import MayCommit, SaveCheckpoint, Task
from steadyworker.outcome import Crashed, Done, Failed, Interrupted, Outcome, Rejected, Snoozed
from steadyworker.retry import RetryPolicy
from steadyworker.runner.runner import Runner
from steadyworker.runner.settlement_plan import Step
from steadyworker.runner.state import Deps, Staged
from steadyworker.slots.base import Asked, Ended, Ready, Slot, SlotPoll, SlotSink
from steadyworker.spec import spec_of
from steadyworker.testing.broker import MemoryBroker
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker.worker import Worker

QUEUE = "exports"
NAMESPACE = "sim"
TIMES = Times()


class Exports(Worker[bytes, int]):
    """The Worker of the simulation; its handler is played by `SimSlot`."""

    queue = QUEUE
    time_limit = None
    isolation = "thread"
    retry = RetryPolicy(max_attempts=3, max_crashes=3, max_losses=4)

    def handle(self, job: Any) -> None:
        """Never called: `SimSlot` plays it."""


SPEC = spec_of(Exports)


class Killed(BaseException):
    """This worker process has just been SIGKILLed."""


class Violation(AssertionError):
    """A guarantee was broken."""


@dataclass(frozen=True)
class Faults:
    """Which faults a history may have, each with its chance per opportunity."""

    kill: float = 0.004
    freeze: float = 0.004
    lost_answer: float = 0.006
    ledger_away: float = 0.01
    cut: float = 0.04
    redeliver: float = 0.02
    lost_ack: float = 0.02
    lost_confirm: float = 0.02
    duplicate: float = 0.01
    early: float = 0.02
    cancel: float = 0.003
    stop: float = 0.005
    move: float = 0.02
    lose: float = 0.0
    outage: float = 0.0
    suspend: float = 0.0
    restore: float = 0.0
    pause: float = 0.0


CALM = Faults(*[0.0] * len(fields(Faults)))
CONNECTIONS_ONLY = Faults(kill=0, freeze=0, lost_answer=0, ledger_away=0, duplicate=0, cancel=0, stop=0, move=0)


class SimSlot:
    """A slot whose job takes a step when the world lets it."""

    stuck = broken = False
    last_turn = None

    def __init__(self, world: World, worker: SimWorker, id: int = 0) -> None:
        self.id = id
        self._world = world
        self._worker = worker
        self._sink: SlotSink | None = None
        self.warm = False
        self.task: Task | None = None
        self._asking = False
        self._asked = 0
        self._reason: str | None = None
        self._killed: Outcome | None = None

    def start(self, sink: SlotSink, poll: SlotPoll) -> None:
        self._sink = sink
        self.warm = True
        sink(Ready(self.id))

    def run(self, task: Task) -> None:
        if self.task is not None:
            raise Violation("a slot was given two runs at once")
        self.task, self.warm, self._asking, self._reason, self._killed = task, False, False, None, None
        self._world.began(task, self._worker)

    @property
    def computing(self) -> Task | None:
        """The run that goes on here, unless it is to end."""
        return self.task if self._killed is None and self._reason is None else None

    @property
    def can_step(self) -> bool:
        """The job is not waiting for an answer, or it is to end."""
        ends = self._killed is not None or self._reason is not None
        return self.task is not None and (ends or not self._asking)

    def step(self, rng: random.Random) -> None:
        """The job goes on: it saves a checkpoint, or ends."""
        task = self.task
        assert task is not None
        assert self._sink is not None
        if self._killed is not None:
            self._end(self._killed)
        elif self._reason is not None:
            self._end(Interrupted())
        elif rng.random() < 0.4:
            self._asking, self._asked = True, self._asked + 1
            request = rng.choice((SaveCheckpoint(b"%d" % self._asked), MayCommit()))
            self._sink(Asked(self.id, task.fence, self._asked, request))
        else:
            self._end(self._world.outcome())

    def _end(self, outcome: Outcome) -> None:
        task, self.task, self.warm = self.task, None, True
        assert task is not None
        assert self._sink is not None
        self._sink(Ended(self.id, task.fence, outcome))

    def reply(self, fence: int, id: int, answer: Any, *, refused: Any = None, end: bool = True) -> None:
        self._asking = False
        self._reason = self._reason or refused

    def interrupt(self, fence: int, reason: str, *, hard: bool) -> None:
        if self.task is not None and self.task.fence == fence:
            self._reason = reason

    def kill(self, fence: int, outcome: Outcome) -> None:
        if self.task is not None and self.task.fence == fence:
            self._killed = outcome

    def stopping(self) -> None: ...

    def close(self, within: float) -> None: ...


class SimLedger:
    """One worker's view of the ledger: any call may kill, freeze, lose its answer, or find the ledger away."""

    url = "sim:"

    def __init__(self, world: World, worker: SimWorker) -> None:
        self._world = world
        self._worker = worker

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = getattr(self._world.ledger, name)
        world, worker = self._world, self._worker

        def call(*arguments: Any, **options: Any) -> Any:
            faults, rng = world.faults, world.rng
            if worker.ledger_away or world.ledger_out or (faults.lost_answer and rng.random() < faults.lost_answer / 2):
                raise LedgerUnavailable(f"{name}: no answer")
            world.perhaps_struck(worker)
            answer = real(*arguments, **options)
            world.caller = worker
            for one in _single(name, arguments, answer):
                world.observed(*one)
            world.perhaps_struck(worker)
            if faults.lost_answer and rng.random() < faults.lost_answer / 2:
                raise LedgerUnavailable(f"{name}: the answer was lost")
            return answer

        self.__dict__[name] = call
        return call


def _single(name: str, arguments: tuple[Any, ...], answer: Any) -> list[tuple[str, tuple[Any, ...], Any]]:
    """A call as its single writes, if it has recorded those of a turn, each with its answer."""
    if name != "record":
        return [(name, arguments, answer)]
    (claims, ended), (rows, granted) = arguments, answer
    return [
        *(("claim", (claim,), row) for claim, row in zip(claims, rows, strict=True)),
        *(("done", end, done) for end, done in zip(ended, granted, strict=True)),
    ]


class SimAdapter:
    """One worker's view of the broker: any call may kill or freeze."""

    def __init__(self, world: World, worker: SimWorker) -> None:
        self._world = world
        self._worker = worker
        self.real = world.broker.adapter(QueueSpec(QUEUE, SPEC.dead_letter_queue))
        self.capabilities = self.real.capabilities
        self.start = self.real.start
        self.prefetch = self.real.prefetch

    def publish(self, message: OutgoingMessage) -> None:
        self._world.perhaps_struck(self._worker)
        try:
            self.real.publish(message)
        finally:
            if message.to is Target.DEAD:
                self._world.perhaps_moved()
        self._world.perhaps_struck(self._worker)

    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        self._world.perhaps_struck(self._worker)
        settled = self.real.settle(delivery, how)
        self._world.perhaps_struck(self._worker)
        return settled


class SoonAdapter(SimAdapter):
    """Settles as RabbitMQ's does: the broker receives it some time after it was asked for, and its answer comes later still."""

    def settle_async(
        self, delivery: Delivery, how: Settle, on_settled: Callable[[Settled | StaleDelivery | Unsettled], None]
    ) -> None:
        self._world.perhaps_struck(self._worker)

        def received() -> None:
            try:
                answer: Settled | StaleDelivery | Unsettled = self.settle(delivery, how)
            except (StaleDelivery, Unsettled) as error:
                answer = error
            self._worker.pending.append(lambda: on_settled(answer))

        self._worker.pending.append(received)


@dataclass
class SimWorker:
    """One worker process: a runner, its keeper, what it has still to do off its thread, and how it fares."""

    world: World
    owner: str
    frozen_until: float = 0.0
    ledger_away: bool = False
    busy: bool = False
    stopping: bool = False
    pending: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        world = self.world
        self.adapter = (SoonAdapter if world.soon else SimAdapter)(world, self)
        self.ledger = SimLedger(world, self)
        self.clock = world.clock_of_a_host()
        self.slots = [SimSlot(world, self, number) for number in range(world.slots)]
        deps = Deps(
            spec=world.spec,
            namespace=NAMESPACE,
            owner=self.owner,
            worker=self.owner,
            ledger=cast(Ledger, self.ledger),
            adapter=self.adapter,  # type: ignore[arg-type]
            slots=[cast(Slot, slot) for slot in self.slots],
            clock=self.clock,
            times=world.times,
            emit=world.received,
            submit=self.pending.append,
            adoption=world.adoption,
            stop_on_ledger_loss=world.stops,
        )
        self.runner = Runner(deps)
        names, ledger = [registered_name(NAMESPACE, QUEUE)], cast(Ledger, self.ledger)
        self.keeper = Keeper(ledger, self.owner, "host", names, [self.runner], self.clock, world.times)
        self.next_turn = self.next_check = 0.0
        self.runner.start()

    def steps(self) -> list[Callable[[], None]]:
        """What this worker could do next."""
        possible: list[Callable[[], None]] = []
        if self.runner.inbox:
            possible.append(self._one_event)
        if self.pending:
            possible.append(self._one_hand_over)
        possible += [partial(slot.step, self.world.rng) for slot in self.slots if slot.can_step]
        if self.clock.monotonic() >= self.next_turn:
            possible.append(self._keep)
        if self.clock.monotonic() >= self.next_check and self.runner.tokens() and not self.keeper.away:
            possible.append(self._check)
        if (due := self.runner.timers.next_in()) is not None and due == 0.0:
            possible.append(self.runner.tick)
        return possible

    def _one_event(self) -> None:
        """A turn of one event or of several, as the runner's thread takes them."""
        for _ in range(min(self.world.rng.choice((1, 1, 2, 3, 5)), len(self.runner.inbox))):
            self.runner._receive(self.runner.inbox.pop())
        self.runner.tick()

    def _one_hand_over(self) -> None:
        self.pending.pop(self.world.rng.randrange(len(self.pending)))()

    def _keep(self) -> None:
        self.keeper.turn()
        self.next_turn = self.clock.monotonic() + (1.0 if self.keeper.away else self.world.times.renew)

    def _check(self) -> None:
        self.keeper.read_orders()
        self.next_check = self.clock.monotonic() + self.world.times.cancel_poll


class World:
    """One history."""

    fleet = 3
    """How many worker processes there are."""

    slots = 1
    """How many jobs a worker process can run at once."""

    names: Sequence[str] = ("job",)
    """What the broker's faults call the messages: their keys, or their ids."""

    times = TIMES
    spec = SPEC
    stops = False
    """Whether a run ends when its lease is over and the ledger is away."""

    levels: tuple[float, ...] = ()
    """The delay levels of the broker; without levels, its delays are exact."""

    ledger_out = False
    """Whether the ledger is away for everybody."""

    def __init__(
        self,
        seed: int,
        *,
        faults: Faults = Faults(),
        adoption: bool = True,
        make_ledger: Callable[[FakeClock, Times, Callable[[str], bool]], Ledger] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        random.seed(seed)  # the waits of retries are drawn from it
        self.faults = faults
        self.adoption = adoption
        self.soon = seed % 2 == 1
        self.clock = FakeClock()
        self.dead_owners: set[str] = set()
        make = make_ledger or (lambda clock, times, is_dead: MemoryLedger(clock, times, is_dead=is_dead))
        self.ledger = make(self.clock, self.times, self.dead_owners.__contains__)
        self.broker = MemoryBroker(self.clock)
        self.broker.delay_by(*self.levels)
        self._owners = 0
        self.starts = 0
        self.granted: dict[JobId, int] = {}
        self.accepted: list[str] = []
        self.final: list[tuple[JobId, str]] = []
        self.moved: set[tuple[str, int]] = set()
        self.kills = 0
        self.fenced = 0
        self.pauses = 0
        self.depth = 0
        self.workers = [self._new_worker() for _ in range(self.fleet)]
        self.operator = self.broker.adapter(QueueSpec(QUEUE, SPEC.dead_letter_queue))
        self.send()

    def send(self) -> None:
        """Send the one job."""
        self.operator.publish(OutgoingMessage(Target.WORK, b"{}", {KEY: self.names[0]}))

    caller: SimWorker
    """The worker process of the call that is observed."""

    def _new_worker(self) -> SimWorker:
        self._owners += 1
        return SimWorker(self, f"host/boot/{self._owners}")

    def clock_of_a_host(self) -> Clock:
        """The clock of a new worker process."""
        return self.clock

    # --- what the wrappers tell ---

    def began(self, task: Task, worker: SimWorker) -> None:
        self.starts += 1

    def received(self, event: Event) -> None:
        # A refused `moved` ends no run: the retry's copy was claimed meanwhile, and so proved its publish.
        if isinstance(event, Fenced) and event.write != Step.CONFIRM.value:
            self.fenced += 1

    def outcome(self) -> Outcome:
        """How a job's run ends by itself."""
        drawn = self.rng.random()
        if drawn < 0.55:
            return Done()
        if drawn < 0.80:
            return Failed("the job's own fault", delay=self.rng.choice([None, 0.0, 3.0, 40.0]))
        if drawn < 0.88:
            return Snoozed(self.rng.choice([1.0, 60.0]))
        if drawn < 0.96:
            return Crashed("SIGSEGV")
        return Rejected("never")

    def observed(self, name: str, arguments: tuple[Any, ...], answer: Any) -> None:
        """Every call that reached the ledger, for the guarantees about writes."""
        if name in ("claim", "take_over", "lose") and isinstance(answer, Row):
            last = max(self.granted.values(), default=0)
            if answer.fence <= last:
                raise Violation(f"fence {answer.fence} was given although {last} was given before")
            self.granted[answer.id] = answer.fence
        elif name == "may_commit" and answer.granted:
            self._permitted(arguments[0])
        elif name in ("checkpoint", "export_state", "done", "interrupted", "moving", "moved") and answer:
            self._current(name, arguments[0])
            if name == "moving":
                verdict: Verdict = arguments[1]
                self.accepted.append(verdict.target.value)
            elif name in ("done", "interrupted"):
                self.accepted.append(name)
            token: Token = arguments[0]
            if name == "done":
                self.final.append((token.id, "done"))
            elif name == "moved":
                row = self.ledger.read(token.id)
                if row is not None and row.state is State.DEAD:
                    self.final.append((token.id, "dead"))

    def _permitted(self, token: Token) -> None:
        self._current("may_commit", token)
        row = self.ledger.read(token.id)
        if row is None or row.cancel_reason is not None:
            raise Violation("a cancelled job was permitted to commit")

    def _current(self, name: str, token: Token) -> None:
        if token.fence != self.granted[token.id]:
            raise Violation(f"{name} was accepted under fence {token.fence}; the latest is {self.granted[token.id]}")

    def perhaps_struck(self, worker: SimWorker) -> None:
        """This worker process may die here, or freeze while the world goes on."""
        if self.faults.kill and self.rng.random() < self.faults.kill:
            raise Killed
        if self.faults.freeze and self.depth < 2 and self.rng.random() < self.faults.freeze:
            self.pauses += 1
            self.depth += 1
            self.freeze(worker)
            self.depth -= 1

    def freeze(self, worker: SimWorker) -> None:
        """The worker does nothing for a while; the others go on."""
        self.clock.advance(self.rng.choice([1.0, 20.0, 70.0, 120.0]))
        for _ in range(self.rng.randrange(40)):
            self.step()

    # --- the scheduler ---

    def step(self) -> None:
        """One step of somebody, or one fault, or some time."""
        rng = self.rng
        self._fault()
        free = [each for each in self.workers if not each.busy and each.frozen_until <= self.clock.monotonic()]
        choices: list[tuple[SimWorker | None, Callable[[], None]]] = [
            (worker, step) for worker in free for step in worker.steps()
        ]
        pumped = False
        if rng.random() < 0.4 or not choices:
            pumped = self.broker.pump(rng.randrange, limit=1) > 0
        if choices and (not pumped or rng.random() < 0.5):
            worker, step = choices[rng.randrange(len(choices))]
            assert worker is not None
            self._do(worker, step)
        elif not pumped:
            self._let_time_pass()
        elif rng.random() < 0.05:
            self.pass_time(rng.choice([0.5, 2.0, 15.0]))

    def _do(self, worker: SimWorker, step: Callable[[], None]) -> None:
        worker.busy = True
        try:
            step()
        except Killed:
            self.kill(worker)
        finally:
            worker.busy = False

    def pass_time(self, seconds: float) -> None:
        """Time passes."""
        self.clock.advance(seconds)

    def _let_time_pass(self) -> None:
        waits = [wait for wait in (self.broker.due_in(),) if wait is not None]
        for worker in self.workers:
            now = self.clock.monotonic()
            waits += [max(0.0, worker.next_turn - now), max(0.0, worker.frozen_until - now)]
            due = worker.runner.timers.next_in()
            if due is not None:
                waits.append(due)
        ahead = [wait for wait in waits if wait > 0]
        self.clock.advance(min(ahead, default=1.0) if self.rng.random() < 0.7 else self.rng.choice([1.0, 7.0, 31.0]))

    def kill(self, worker: SimWorker) -> None:
        """SIGKILL: everything that the process knew is gone; its connection too; its lock is free (on the same host)."""
        self.died(worker)
        if self.rng.random() < 0.5:
            self.dead_owners.add(worker.owner)
        worker.adapter.real.stop(0)
        self.workers[self.workers.index(worker)] = self._new_worker()

    def died(self, worker: SimWorker) -> None:
        """Count the runs whose outcome a death can take along."""
        self.kills += 1

    def _fault(self) -> None:  # noqa: C901, PLR0912 - one line per fault
        faults, rng = self.faults, self.rng
        if faults is CALM:
            return
        worker = rng.choice(self.workers)
        if rng.random() < faults.cut:
            self.broker.drop_connection(worker.adapter.real)
        if rng.random() < faults.redeliver:
            self._redeliver()
        if rng.random() < faults.lost_ack:
            self.broker.lose_settlement(worker.adapter.real, landed=rng.random() < 0.5)
        if rng.random() < faults.lost_confirm:
            self.broker.lose_confirm(worker.adapter.real, landed=rng.random() < 0.5)
        if rng.random() < faults.duplicate and self.broker.depth(QUEUE):
            self.broker.duplicate(self._victim())
        if rng.random() < faults.early and self.broker.depth(QUEUE):
            self.broker.hasten(self._victim())
        if rng.random() < faults.ledger_away:
            self._ledger_fails(worker)
        if faults.cancel and rng.random() < faults.cancel:
            self._cancel()
        if faults.move and rng.random() < faults.move:
            self._move_letters()
        if faults.pause and rng.random() < faults.pause and not self.ledger.facts.resume(NAMESPACE, QUEUE):
            self.ledger.facts.pause(NAMESPACE, QUEUE, "operator", "")
        if faults.stop and rng.random() < faults.stop:
            worker.stopping = True
            worker.runner.post(Staged(Stage.INTERRUPTING))
        if worker.runner.finished and not worker.busy:
            worker.adapter.real.stop(0)
            self.workers[self.workers.index(worker)] = self._new_worker()

    def _victim(self) -> str:
        """The job whose message a fault of the broker strikes."""
        return self.names[0]

    def _ledger_fails(self, worker: SimWorker) -> None:
        worker.ledger_away = not worker.ledger_away

    def _cancel(self) -> None:
        key = self.rng.choice(self.names) if len(self.names) > 1 else self.names[0]
        round_ = self.ledger.last_round(NAMESPACE, QUEUE, key) or 0
        self.ledger.cancel(JobId(NAMESPACE, QUEUE, key, round_), "not needed")

    def _redeliver(self) -> None:
        try:
            self.broker.redeliver(self._victim(), silent=self.rng.random() < 0.3)
        except LookupError:
            return

    def perhaps_moved(self) -> None:
        """An operator may be so quick that the publisher of a letter does not yet know that the broker has it."""
        if self.faults.move and self.rng.random() < 5 * self.faults.move:
            self._move_letters()

    def _move_letters(self) -> None:
        """An operator moves every dead letter to the work queue as it is; the mover may die before it removes one."""
        with self.operator.dead_letters() as letters:
            for letter in letters:
                self.operator.publish(
                    OutgoingMessage(Target.WORK, letter.body, letter.headers, message_id=letter.message_id)
                )
                self.moved.add((letter.headers[KEY], int(letter.headers[ROUND])))
                if self.rng.random() < 0.8:
                    letters.drop(letter)

    # --- a history ---

    def play(self, steps: int) -> None:
        """The stormy part."""
        for _ in range(steps):
            self.step()

    def heal(self) -> None:
        """Every fault ends; whoever was stopping is replaced; at times one worker is left; all goes on until nothing is to do."""
        kills, self.faults = self.faults.kill > 0, CALM
        self.ledger.facts.resume(NAMESPACE, QUEUE)
        for worker in list(self.workers):
            worker.ledger_away = False
            worker.frozen_until = 0.0
            if worker.stopping:
                self.kill(worker)
        if kills and self.rng.random() < 0.3:
            # Only one is left: what it forgot of its own, nobody else will put right.
            for worker in self.workers[1:]:
                worker.adapter.real.stop(0)
                self.died(worker)
            del self.workers[1:]
        for _ in range(8_000):
            if self.settled():
                return
            self.step()
        raise Violation("never settled: " + self.describe())

    def settled(self) -> bool:
        """No message is left, and nobody is at work."""
        return self.broker.depth(QUEUE) == 0 and all(
            worker.runner.idle and not worker.pending and not worker.runner.inbox for worker in self.workers
        )

    def describe(self) -> str:
        """Where everything stands, for the report of a violation."""
        rows = [row for row, _ in self.ledger.jobs()]
        return f"seed {self.seed}: rows={rows} moved={self.moved} work={self.broker.messages(QUEUE)} dead={len(self.broker.dead(QUEUE))} starts={self.starts}"

    def judge(self) -> None:
        """Every guarantee that can be judged at the end."""
        rows = {(row.id.key, row.id.round): row for row, _ in self.ledger.jobs()}
        letters = {(each.headers[KEY], int(each.headers[ROUND])) for each in self.broker.dead(QUEUE)}
        for job, row in rows.items():
            if row.state not in (State.DONE, State.DEAD):
                raise Violation(f"lost: no message is left and the job is {row.state}: " + self.describe())
            if row.state is State.DONE and job in letters:
                raise Violation(f"{job} is done and has a dead letter: " + self.describe())
            if row.state is State.DEAD and job not in letters | self.moved:
                raise Violation(f"lost: {job} is dead without a dead letter: " + self.describe())
        if {*rows} != {*((key, 0) for key in self.names), *((key, round_ + 1) for key, round_ in self.moved)}:
            raise Violation(f"letters {self.moved} were moved, and the rows are {sorted(rows)}: {self.describe()}")
        if self.starts > len(self.accepted) + self.kills + self.fenced:
            raise Violation(
                f"{self.starts} starts, {self.accepted}, {self.kills} kills, {self.fenced} fenced: {self.describe()}"
            )
        if sorted((id.key, id.round) for id, _ in self.final) != sorted(rows):
            raise Violation(f"final outcomes {self.final} of {sorted(rows)}: " + self.describe())


def history(seed: int, kind: type[World] = World, **options: Any) -> World:
    """Play one history to its end, and judge it."""
    world = kind(seed, **options)
    try:
        world.play(world.rng.randrange(20, 160))
        world.heal()
        world.judge()
    except Violation as violation:
        if "seed" not in str(violation):
            raise Violation(f"{violation}: {world.describe()}") from None
        raise
    return world
