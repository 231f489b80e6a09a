"""
Creates the parts of a worker process, and wires them together.

Only this file imports every part.
Every other part gets its collaborators as arguments, so there is no global state.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from steadyworker.adapter import Adapter, Capabilities
from steadyworker.backends.opening import namespace_of, open_adapter_for, open_ledger, owners_directory
from steadyworker.clock import Clock, SystemClock, Times
from steadyworker.config.resolve import Options
from steadyworker.errors import ConfigError, Finding, LedgerUnavailable, by_level
from steadyworker.events import Listener
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.facts import OwnerCommand
from steadyworker.ledger.lease import Keeper, registered_name
from steadyworker.ledger.owners import OwnerLock, new_owner_id
from steadyworker.ledger.retention import Retention
from steadyworker.runner import report
from steadyworker.runner.causes import BROKER
from steadyworker.runner.consumer_audit import ConsumerAudit, audit_all
from steadyworker.runner.runner import Runner
from steadyworker.runner.state import Deps, Quota
from steadyworker.service import broker_recheck, depth_meter
from steadyworker.service.broker_recheck import BrokerRecheck, fields_of
from steadyworker.service.checks import broker_findings, check
from steadyworker.service.dead_calls import CalledQueue, DeadCalls
from steadyworker.service.depth_meter import DepthMeter, MeasuredQueue
from steadyworker.service.fact_batch import FactBatch
from steadyworker.service.job_services import job_services, remember_folder, service_findings
from steadyworker.service.owner_report import OwnerReporter
from steadyworker.service.pool import MOST_THREADS, SettlePool
from steadyworker.service.repeating import Repeating
from steadyworker.slots.base import JobService, Slot
from steadyworker.slots.guard import Guard
from steadyworker.slots.process import ProcessSlot
from steadyworker.slots.thread import ThreadSlot
from steadyworker.spec import WorkerSpec, spec_of
from steadyworker.telemetry.event_log import fan_out, log_events
from steadyworker.telemetry.logs import get_logger
from steadyworker.worker import Worker, is_worker

_FACTS_WITHIN = 0.5
"""Seconds that the last facts of a process may take: a third of the time in which everything must be closed."""


@dataclass(slots=True)
class Assembly:
    """A wired worker process: all the parts that the service starts, watches and stops."""

    options: Options
    ledger: Ledger
    owner: str
    lock: OwnerLock
    guard: Guard
    runners: Sequence[Runner]
    keeper: Keeper
    recheck: BrokerRecheck
    meter: DepthMeter
    repeated: Sequence[Repeating]
    services: Mapping[str, JobService]
    pools: Sequence[SettlePool]
    commands: deque[OwnerCommand]
    reporter: OwnerReporter
    facts: FactBatch
    dead_calls: DeadCalls

    def purge(self) -> None:
        """
        Delete the ledger's expired rows, and let the services remove what ended jobs have left on this host.

        Warn of a ledger that stays above its limit.
        If the ledger cannot be reached, the next purge deletes these rows.
        """
        with suppress(LedgerUnavailable):
            self.ledger.purge()
            for finding in self.ledger.findings() if self.options.ledger_limit is not None else ():
                if finding.id == "ledger.too-large":
                    get_logger("steadyworker.check").warning("check_warning", **fields_of(finding))
            for service in self.services.values():
                service.purge(self.ledger.ended)  # last, because a folder on a network can hang

    def close(self) -> None:
        """
        Unregister this process from the ledger, end the guard, release the owner lock, write the last facts, and close the ledger.

        After this call, another worker process can at once take over each job that this process still holds.
        If a handler's thread has not ended, the guard stays until this process exits, and then ends this process's session.
        Facts come last, because only people read them: if the ledger does not respond, or is slow, they are lost.
        A ledger that is still busy with the facts stays open until this process exits.
        """
        responds = False
        with suppress(LedgerUnavailable):
            self.ledger.unregister(self.owner)
            self.ledger.flush()
            responds = True
        if not any(slot.stuck for runner in self.runners for slot in runner.deps.slots):
            self.guard.close()
        self.lock.release()
        if not responds or self._write_facts():
            self.ledger.close()

    def _write_facts(self) -> bool:
        """Write the last facts, and return whether the write ended in time."""

        def write() -> None:
            with suppress(LedgerUnavailable):
                self.facts.write(self.ledger.facts)

        try:
            writing = threading.Thread(target=write, name="last facts", daemon=True)
            writing.start()
        except RuntimeError:  # the system allows no further thread
            return True
        writing.join(_FACTS_WITHIN)
        return not writing.is_alive()


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts that exist before the first contact with a broker: the Workers' specs, the ledger, and the adapters."""

    options: Options
    specs: Sequence[WorkerSpec]
    ledger: Ledger
    adapters: Sequence[Adapter]
    clock: Clock = field(default_factory=SystemClock)
    times: Times = field(default_factory=Times)

    def findings(self) -> list[Finding]:
        """Return all findings of the checks and of the services, errors first."""
        found = [
            *check(self.specs, self.options, self.adapters, self.ledger),
            *service_findings(self.options, self.clock),
        ]
        return sorted(found, key=by_level)


_INLINE: Mapping[str, object] = {"isolation": "thread", "concurrency": 1, "time_limit": None, "stall_limit": None}
"""
The attributes under --inline: runs in this process, one at a time.

They have no time limit and no stall limit, so no limit ends a run while its developer thinks.
"""


def specs_of(
    workers: Sequence[type[Worker[Any, Any]]], options: Options, overrides: Mapping[str, object] = MappingProxyType({})
) -> list[WorkerSpec]:
    """
    Return the Workers' specs, with the overrides of the settings file and of the command line.

    `overrides` have precedence over both.
    Raises ConfigError if there is no Worker, if --concurrency is given for several Workers, or if two Workers share a queue.
    It raises ConfigError, too, if a Worker's dead-letter queue is a queue or dead-letter queue of another Worker.
    """
    if not workers:
        raise ConfigError(
            "Expected at least one Worker to run, got none: pass its class, as in run(PaymentExports).",
            id="config.worker",
        )
    if options.concurrency is not None and len(workers) > 1:
        names = ", ".join(worker.__name__ for worker in workers)
        msg = f"Expected one Worker together with --concurrency, got {names}: set concurrency in [workers.NAME] of steadyworker.toml."
        raise ConfigError(msg, id="config.worker")
    specs = []
    for worker in workers:
        given = dict(options.workers.get(worker.__name__, {})) if is_worker(worker) else {}
        if options.concurrency is not None:
            given["concurrency"] = options.concurrency
        specs.append(spec_of(worker, {**given, **overrides}))
    seen: dict[str, WorkerSpec] = {}
    for spec in specs:
        other = seen.setdefault(spec.queue, spec)
        if other is not spec:
            msg = f"Expected one Worker for each queue, got {other.target} and {spec.target} for {spec.queue!r}: run only one of them."
            raise ConfigError(msg, id="config.two-workers")
    for spec in specs:
        for other in specs:
            if other is not spec and spec.dead_letter_queue in (other.queue, other.dead_letter_queue):
                msg = (
                    f"Expected a dead-letter queue for {spec.target} that no other Worker of this process uses, got "
                    f"{spec.dead_letter_queue!r}, which {other.target} uses, too: set another dead_letter_queue for one of them, "
                    "or remove the attribute; by default it is the queue's name with .dead."
                )
                raise ConfigError(msg, id="config.two-workers")
    return specs


def plan(
    workers: Sequence[type[Worker[Any, Any]]],
    options: Options,
    times: Times | None = None,
    *,
    inline: bool = False,
    create: bool = True,
) -> Plan:
    """
    Open the ledger and the adapters, without a connection to any broker.

    With `inline`, jobs run in this process.
    Without `create`, the plan creates neither a missing ledger nor a missing broker that is a file.
    """
    specs = specs_of(workers, options, _INLINE if inline else {})
    clock, times = SystemClock(), times or Times()
    ledger = open_ledger(options, clock, times, socket.gethostname(), create=create)
    return Plan(
        options, specs, ledger, [open_adapter_for(spec, options, create=create) for spec in specs], clock, times
    )


def assemble(
    plan: Plan,
    listeners: Sequence[Listener] = (),
    known: Collection[Finding] = (),
) -> Assembly:
    """
    Wire a worker process.

    This function starts only the threads of the settle pools.
    `known` are findings that are already in the log.
    Raises ConfigError if the namespace is bound to another broker, and BrokerUnavailable if a broker does not respond.
    """
    options, clock, times = plan.options, plan.clock, plan.times
    if options.orphan_after is not None:
        times = replace(times, orphan_after=options.orphan_after)
    namespaces = [
        namespace_of(adapter, options, plan.ledger, spec.queue)
        for adapter, spec in zip(plan.adapters, plan.specs, strict=True)
    ]
    owner = new_owner_id()
    lock = OwnerLock(owners_directory(options), owner)
    guard = Guard([lock.fd], clock)
    services = job_services(options, clock)
    facts = FactBatch(owner, {spec.queue: name for spec, name in zip(plan.specs, namespaces, strict=True)}, clock)
    called = [
        CalledQueue(name, spec.queue, partial(_slot, spec.concurrency, spec, lock, guard, options, clock))
        for name, spec in zip(namespaces, plan.specs, strict=True)
        if spec.has_on_dead
    ]
    dead_calls = DeadCalls(called, plan.ledger, clock)
    emit = fan_out([*([dead_calls.emit] if called else []), log_events(), facts, *listeners])
    quota = Quota(options.max_jobs)
    runners, pools, audits = [], [], {}
    for spec, adapter, namespace in zip(plan.specs, plan.adapters, namespaces, strict=True):
        times_kept = Retention(spec.keep_done, spec.keep_dead, spec.keep_cancelled, spec.keep_attempts)
        plan.ledger.retain(namespace, spec.queue, times_kept)
        team = SettlePool(min(MOST_THREADS, spec.concurrency + 1), f"settlements-{spec.queue}")
        deps = Deps(
            spec=spec,
            namespace=namespace,
            owner=owner,
            worker=socket.gethostname(),
            ledger=plan.ledger,
            adapter=adapter,
            slots=[_slot(number, spec, lock, guard, options, clock) for number in range(spec.concurrency)],
            clock=clock,
            times=times,
            emit=emit,
            submit=team.submit,
            hurry=lambda: keeper.hurry(),  # noqa: PLW0108 - the keeper is created below, because it serves every runner
            quota=quota,
            services=services,
            remember_folder=partial(remember_folder, services),
            note_link=partial(facts.link, spec.queue),
            stop_on_ledger_loss=options.stops_on_ledger_loss,
        )
        runner = Runner(deps)
        runners.append(runner)
        pools.append(team)
        if counted(adapter.capabilities, options):
            audit = ConsumerAudit(
                registered_name(namespace, spec.queue),
                owner,
                adapter,
                plan.ledger,
                clock,
                lambda name, left: keeper.left(name, left=left),
                runner.holds,
                local_ledger=options.ledger_is_local,
            )
            audits[audit] = runner.post
    by_name = {registered_name(runner.deps.namespace, runner.deps.spec.queue): runner for runner in runners}
    recheck = BrokerRecheck(
        [partial(broker_findings, spec, adapter) for adapter, spec in zip(plan.adapters, plan.specs, strict=True)],
        known,
    )
    reporter, commands = OwnerReporter(by_name, lambda: recheck.found, clock), deque[OwnerCommand]()
    keeper = Keeper(
        plan.ledger,
        owner,
        socket.gethostname(),
        list(by_name),
        runners,
        clock,
        times,
        quiet=lambda name: by_name[name].quiet,
        holds=lambda name: by_name[name].holds(),
        consumers=lambda name: by_name[name].deps.adapter.capabilities.most_consumers,
        went_back=partial(report.replaced, plan.ledger.url),
        report=reporter.report,
        obey=commands.extend,
        write_facts=facts.write,
    )
    meter = DepthMeter([_measured(runner) for runner in runners], plan.ledger.facts, clock, plan.ledger.size)
    repeated = [
        Repeating("broker recheck", recheck.check, broker_recheck.SOON),
        Repeating("depth meter", meter.measure, depth_meter.EVERY),
    ]
    if audits:
        repeated.append(Repeating("consumer audit", lambda: audit_all(audits)))
    return Assembly(
        options,
        plan.ledger,
        owner,
        lock,
        guard,
        runners,
        keeper,
        recheck,
        meter,
        repeated,
        services,
        pools,
        commands,
        reporter,
        facts,
        dead_calls,
    )


def counted(broker: Capabilities, options: Options) -> bool:
    """
    Return whether the consumer audit compares the broker's consumers with the owners in the ledger.

    The audit is off if the broker does not count consumers, if the broker serves one host only, or if --ledger-reach is `host`.
    """
    return broker.counts_consumers and not broker.one_host and options.ledger_reach != "host"


def _measured(runner: Runner) -> MeasuredQueue:
    deps = runner.deps
    return MeasuredQueue(deps.namespace, deps.spec.queue, deps.adapter, lambda: BROKER not in runner.not_ready())


def _slot(number: int, spec: WorkerSpec, lock: OwnerLock, guard: Guard, options: Options, clock: Clock) -> Slot:
    if spec.isolation == "thread":
        return ThreadSlot(number, spec, clock=clock, guard=guard)
    return ProcessSlot(
        number,
        spec,
        clock=clock,
        held=(lock.fd,),
        guard=guard,
        log_format=options.log_format,
        log_level=options.log_level,
    )
