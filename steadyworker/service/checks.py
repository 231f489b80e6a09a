"""
The checks before the first message, for `run` and `check`: conflicts of settings, and findings of broker and ledger.

Each finding names its remedy.
An *error* means that messages would be lost, jobs would run twice, or the process would fail later.
With an error, the process does not start, and exits with code 78.
A *warning* means that the process works, but possibly not as the operator expects.
No check depends on a particular broker: the checks read the adapter's `Capabilities`.

`Times` itself raises ValueError unless renew < trust_for < lease, so no check repeats this.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from steadyworker.adapter import Adapter, Capabilities, Uncounted
from steadyworker.backends.opening import name_findings
from steadyworker.config.resolve import Options
from steadyworker.errors import (
    BrokerUnavailable,
    ConfigError,
    Finding,
    LedgerUnavailable,
    Loss,
    NoLedger,
    OlderLedger,
    by_level,
)
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.lease import registered_name
from steadyworker.ledger.lost import MOST, lost
from steadyworker.names import NAMESPACE
from steadyworker.runner.consumer_audit import registered
from steadyworker.spec import WorkerSpec, misspelt
from steadyworker.system.host import Host, read_host
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, size_text

_KEPT: Mapping[Loss, str] = {
    "jobs": "A job that a worker process has claimed survives that, because the ledger keeps its message.",
    "letters": "Such a job can still be replayed, because the ledger keeps its message.",
}
_NOT_KEPT: Mapping[Loss, str] = {
    "jobs": "With keep_message = False, this also ends a job that a worker process has claimed.",
    "letters": "With keep_message = False, such a job cannot be replayed.",
}
"""The end of a finding about lost messages, with and without the ledger's copy of them."""


def check(
    specs: Sequence[WorkerSpec],
    options: Options,
    adapters: Sequence[Adapter],
    ledger: Ledger,
    host: Host | None = None,
) -> list[Finding]:
    """
    Return all findings, errors first and notes last, without duplicates.

    `adapters` has the adapter of each spec, in the same order; without `host`, the checks examine this machine.
    A broker or ledger that does not respond is only a warning, because the worker process waits for it.
    """
    host = host or read_host(os.environ, sys.argv)
    found = [
        *_settings(specs, options),
        *_surroundings(specs, options, host),
        *_ledger(ledger),
    ]
    for spec, adapter in zip(specs, adapters, strict=True):
        found += _keys(spec, adapter.capabilities)
        found += _broker(spec, adapter)
        found += _consumers(spec, options, adapter, ledger)
        found += _name(spec, options, adapter, ledger)
        found += _lost(spec, options, adapter, ledger)
    return sorted(dict.fromkeys(found), key=by_level)


def _settings(specs: Sequence[WorkerSpec], options: Options) -> Iterator[Finding]:
    if options.namespace is not None and (problem := NAMESPACE.problem(options.namespace)):
        yield Finding(
            "error",
            problem,
            "set another --namespace, or leave it out: the default is the broker's identity.",
            id="check.namespace-name",
        )
    for spec in specs:
        if not spec.keep_message:
            yield Finding(
                "note",
                f"The ledger keeps no message of {spec.target}, so a job that has begun still depends on the broker's copy: "
                "if the broker loses it, nothing ends the job, and a dead letter that is gone cannot be replayed.",
                "leave keep_message out, unless the bodies must not be in the ledger.",
                id="check.message-not-kept",
            )
        if spec.dead_letter_queue == spec.queue:
            what = f"Expected a dead-letter queue for {spec.target} that is not its work queue, got {spec.queue!r} for both."
            yield Finding(
                "error",
                what,
                "give dead_letter_queue another name, or leave it out.",
                id="check.same-dead-letter-queue",
            )
        for name, meant in misspelt(spec.cls):
            what = f"{spec.cls.__qualname__} sets {name!r}, which SteadyWorker does not read."
            yield Finding(
                "warning",
                what,
                f"did you mean {meant!r}? If the name is your own, call it {'_' + name!r}.",
                id="check.misspelt-attribute",
            )
    names = [spec.cls.__name__ for spec in specs]
    for name in options.workers:
        if name not in names and (near := difflib.get_close_matches(name, names, n=1)):
            what = f"[workers.{name}] names no Worker that runs here."
            yield Finding("warning", what, f"did you mean [workers.{near[0]}]?", id="check.unknown-worker-table")


def _surroundings(specs: Sequence[WorkerSpec], options: Options, host: Host) -> Iterator[Finding]:
    if host.platform == "win32":
        yield Finding(
            "error",
            "Windows has no process groups that can be killed as a whole.",
            "run SteadyWorker under WSL 2.",
            id="check.windows",
        )
    elif host.platform != "linux":
        what = f"On {host.platform}, children can outlive a killed worker process, and memory_limit has no effect."
        yield Finding("warning", what, "develop here, and run on Linux.", id="check.not-linux")
    if any(redact(argument) != argument for argument in host.command_line):
        what = "The command line contains a password, and every user of this machine can read it."
        yield Finding(
            "warning",
            what,
            "put the URL into a file, and name that file with --broker-file or --ledger-file.",
            id="check.password-in-arguments",
        )
    if host.kills_group:
        what = "When one job runs out of memory, the kernel kills this whole cgroup, including the worker process."
        remedy = "on Kubernetes set the kubelet's singleProcessOOMKill: true; on systemd OOMPolicy=continue; else echo 0 > memory.oom.group."
        yield Finding("warning", what, remedy, id="check.group-oom-kill")
    threads = [spec.target for spec in specs if spec.isolation == "thread"]
    if host.adopts_orphans and threads:
        what = f"This process is the first of its container, and {threads[0]} runs its jobs in threads, so orphans of those jobs stay as zombies."
        remedy = "start an init before it (docker run --init; shareProcessNamespace on Kubernetes), or set isolation = 'process'."
        yield Finding("warning", what, remedy, id="check.orphans")
    yield from _unit(options, host)
    wanted = sum(spec.concurrency * (spec.memory_limit or 0) for spec in specs)
    if host.memory_limit is not None and wanted > host.memory_limit:
        what = f"All slots together can use {size_text(wanted)}, but the cgroup allows only {size_text(host.memory_limit)}."
        yield Finding(
            "warning",
            what,
            "lower memory_limit or concurrency: the sum of memory_limit × concurrency must stay below the cgroup's limit.",
            id="check.memory-limit",
        )


def _unit(options: Options, host: Host) -> Iterator[Finding]:
    unit = host.unit
    if unit is None:
        return
    if unit.oom_policy == "stop":
        what = f"When one job runs out of memory, systemd stops the whole unit {unit.name} (OOMPolicy=stop)."
        yield Finding("warning", what, f"set OOMPolicy=continue in {unit.name}.", id="systemd.oom-policy")
    # With Type=notify the worker process asks systemd for more time while jobs end.
    if not host.notified and unit.stop_within is not None and options.stop_within > unit.stop_within:
        what = (
            f"--stop-within is {options.stop_within:g} s, but systemd kills {unit.name} after {unit.stop_within:g} s."
        )
        yield Finding(
            "warning",
            what,
            f"set Type=notify, or TimeoutStopSec={options.stop_within + 2:g}, in {unit.name}.",
            id="systemd.short-stop",
        )


def _consumers(spec: WorkerSpec, options: Options, adapter: Adapter, ledger: Ledger) -> Iterator[Finding]:
    """
    Check that all consumers of a queue share one ledger.

    If the broker cannot count consumers, the operator must confirm with --ledger-reach host that all are on this host.
    A broker or ledger that does not respond has its own finding; the consumer audit asks it again every minute.
    """
    broker, is_local = adapter.capabilities, options.ledger_is_local
    if broker.one_host or options.ledger_reach == "host" or not (is_local or broker.counts_consumers):
        return
    scheme = options.ledger.partition(":")[0]
    remedy = "set --ledger postgresql://…, or confirm with --ledger-reach host that all consumers are on this host."
    if not broker.counts_consumers:
        what = f"The {scheme}: ledger serves this host only, and this broker does not report how many consumers a queue has."
        yield Finding("error", what, remedy, id="ledger.uncounted-consumers")
        return
    with suppress(BrokerUnavailable, LedgerUnavailable):
        if not isinstance(found := adapter.consumers(), Uncounted):
            yield from _foreign(spec, options, adapter, ledger, found)
        elif is_local:
            what = (
                f"The {scheme}: ledger serves this host only, and it is unknown how many consumers queue {spec.queue!r} has: "
                f"{redact(found.why)}."
            )
            yield Finding("error", what, f"{found.remedy}; or {remedy}", id="ledger.uncounted-consumers")


def _foreign(spec: WorkerSpec, options: Options, adapter: Adapter, ledger: Ledger, consumers: int) -> Iterator[Finding]:
    """Yield a warning if the broker counts more consumers than the ledger lists, as the consumer audit of `run` finds it."""
    if not consumers:
        return
    name = registered_name(options.namespace or adapter.identity(), spec.queue)
    try:
        known = registered(ledger, name, dead_for=adapter.capabilities.forgets_consumers_within)
    except OlderLedger:  # it lists its consumers after its migration
        return
    except NoLedger:  # it has a finding of its own
        known = 0
    if consumers > known:
        what = f"Queue {spec.queue!r} has {count_text(consumers, 'consumer')}, but this ledger lists {known}: a consumer outside it may run the same jobs."
        remedy = (
            "give all workers the same ledger (--ledger postgresql://…), stop the consumer that has no ledger, "
            "or state that all of them are on this host (--ledger-reach host)."
        )
        yield Finding("warning", what, remedy, id="steadyworker.foreign-consumers")


def _keys(spec: WorkerSpec, broker: Capabilities) -> Iterator[Finding]:
    """
    Yield a note that a sender can leave out key and id; the ledger then cannot recognise a redelivery of the message.

    It is a note and not a warning, because it applies to every queue of such a broker; only `check` shows a note.
    """
    if spec.unkeyed == "generate" and broker.optional_ids:
        what = f"A message to {spec.queue!r} without a key or an id may run twice if a connection or a process is lost while it arrives."
        remedy = "let every sender set the message id or the header sw-job-key, or reject such messages with unkeyed='reject'."
        yield Finding("note", what, remedy, id="check.optional-keys")


def _ledger(ledger: Ledger) -> Sequence[Finding]:
    try:
        return ledger.findings()
    except LedgerUnavailable as error:
        what = f"The ledger does not respond, so it was not checked: {redact(str(error))}"
        return [
            Finding(
                "warning",
                what,
                "start the ledger's server, or correct --ledger; no job starts until the ledger responds.",
                id=error.id or "ledger.unreachable",
            )
        ]


def broker_findings(spec: WorkerSpec, adapter: Adapter) -> Sequence[Finding]:
    """Return what the adapter finds, and say for each loss of messages what it means for this Worker; raises BrokerUnavailable."""
    return [_with_consequence(finding, spec) for finding in adapter.findings(spec.queue_spec)]


def _with_consequence(finding: Finding, spec: WorkerSpec) -> Finding:
    """Return a finding that says what a loss of messages means; for a Worker that keeps none, a note about a loss is a warning."""
    if finding.loses is None:
        return finding
    what = f"{finding.what} {_KEPT[finding.loses] if spec.keep_message else _NOT_KEPT[finding.loses]}"
    level = "warning" if finding.level == "note" and not spec.keep_message else finding.level
    return replace(finding, level=level, what=what)


def _broker(spec: WorkerSpec, adapter: Adapter) -> Sequence[Finding]:
    try:
        return broker_findings(spec, adapter)
    except BrokerUnavailable as error:
        what = f"The broker does not respond, so queue {spec.queue!r} was not checked: {redact(str(error))}"
        return [
            Finding(
                "warning",
                what,
                "start the broker, or correct --broker; the worker process tries again until the broker responds.",
                id=error.id or "check.broker-unreachable",
            )
        ]


def _lost(spec: WorkerSpec, options: Options, adapter: Adapter, ledger: Ledger) -> Iterator[Finding]:
    """Yield a warning if jobs of the queue wait for messages that do not come, and no worker process takes them by itself."""
    with suppress(BrokerUnavailable, LedgerUnavailable, ConfigError):  # each has a finding of its own
        jobs = lost(ledger, options.namespace or adapter.identity(), spec.queue, stranded=True)
        if jobs:
            many = "at least " if len(jobs) == MOST else ""
            what = (
                f"Of {many}{count_text(len(jobs), 'job')} of queue {spec.queue!r} no message came for more than an hour "
                f"(the longest: {jobs[0].unseen_for / 3600:.1f} h), and no worker takes such a job by itself."
            )
            remedy = (
                f"`steadyworker jobs --overdue --queue {spec.queue}` names each with its reason; "
                f"`steadyworker retry {spec.queue} KEY` starts one."
            )
            yield Finding("warning", what, remedy, id="check.lost-messages")


def _name(spec: WorkerSpec, options: Options, adapter: Adapter, ledger: Ledger) -> Iterator[Finding]:
    """Check the broker's name in this ledger; a broker or ledger that is missing or unreachable has its own finding."""
    with suppress(BrokerUnavailable, LedgerUnavailable, NoLedger):
        yield from name_findings(adapter, options, ledger, spec.queue)
