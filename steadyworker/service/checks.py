"""
The checks before the first message, for `run` and `check`: conflicts of settings, and findings of broker and ledger.

Each finding names its remedy.
An *error* means that messages would be lost, jobs would run twice, or the process would fail later.
With an error, the process does not start, and exits with code 78.
A *warning* means that the process works, but possibly not as the operator expects.
No check depends on a particular broker: the checks read the adapter's `Capabilities`.

`Times` itself raises ValueError unless renew < trust_for < lease, so no check here tests this order.
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
from steadyworker.findings import FindingTexts
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.lease import registered_name
from steadyworker.ledger.lost import MOST, lost
from steadyworker.lifecycle import EXIT_TAKES
from steadyworker.names import NAMESPACE
from steadyworker.runner.consumer_audit import registered
from steadyworker.spec import WorkerSpec, misspelt
from steadyworker.system.host import Host, read_host
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, size_text

_finding = FindingTexts("steadyworker.service")
_HOUR = 3600

_KEPT: Mapping[Loss, str] = {
    "jobs": "A job that a worker process has claimed survives that, because the ledger keeps its message.",
    "letters": "Such a job can still be replayed, because the ledger keeps its message.",
}
_NOT_KEPT: Mapping[Loss, str] = {
    "jobs": "With keep_message = False, this also ends a job that a worker process has claimed.",
    "letters": "With keep_message = False, such a job cannot be replayed.",
}
"""The last sentence of a finding about lost messages: `_KEPT` if the ledger has copies of the messages, `_NOT_KEPT` if not."""


def check(
    specs: Sequence[WorkerSpec],
    options: Options,
    adapters: Sequence[Adapter],
    ledger: Ledger,
    host: Host | None = None,
) -> list[Finding]:
    """
    Return all findings, errors first and notes last, without duplicates.

    `adapters` has the adapter of each spec, in the same order.
    Without `host`, the checks examine this machine.
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
        yield _finding("check.namespace-name", problem=problem)
    for spec in specs:
        if not spec.keep_message:
            yield _finding("check.message-not-kept", worker=spec.target)
        if spec.dead_letter_queue == spec.queue:
            yield _finding("check.same-dead-letter-queue", worker=spec.target, queue=spec.queue)
        for name, meant in misspelt(spec.cls):
            yield _finding("check.misspelt-attribute", worker=spec.cls.__qualname__, name=name, meant=meant)
    names = [spec.cls.__name__ for spec in specs]
    for name in options.workers:
        if name not in names and (near := difflib.get_close_matches(name, names, n=1)):
            yield _finding("check.unknown-worker-table", name=name, meant=near[0])


def _surroundings(specs: Sequence[WorkerSpec], options: Options, host: Host) -> Iterator[Finding]:
    if host.platform == "win32":
        yield _finding("check.windows")
    elif host.platform != "linux":
        yield _finding("check.not-linux", platform=host.platform)
    if any(redact(argument) != argument for argument in host.command_line):
        yield _finding("check.password-in-arguments")
    if host.kills_group:
        yield _finding("check.group-oom-kill")
    threads = [spec.target for spec in specs if spec.isolation == "thread"]
    if host.adopts_orphans and threads:
        yield _finding("check.orphans", worker=threads[0])
    yield from _unit(options, host)
    slots = sum(spec.concurrency * (spec.memory_limit or 0) for spec in specs)
    if host.memory_limit is not None and slots > host.memory_limit:
        yield _finding("check.memory-limit", slots=size_text(slots), limit=size_text(host.memory_limit))


def _unit(options: Options, host: Host) -> Iterator[Finding]:
    unit = host.unit
    if unit is None:
        return
    if unit.oom_policy == "stop":
        yield _finding("systemd.oom-policy", unit=unit.name)
    # With Type=notify the worker process asks systemd for more time while jobs end.
    if not host.notified and unit.stop_within is not None and options.stop_within > unit.stop_within:
        yield _finding(
            "systemd.short-stop",
            unit=unit.name,
            stop_within=options.stop_within,
            kills_after=unit.stop_within,
            enough=options.stop_within + EXIT_TAKES,
        )


def _consumers(spec: WorkerSpec, options: Options, adapter: Adapter, ledger: Ledger) -> Iterator[Finding]:
    """
    Check that all consumers of a queue share one ledger.

    If the broker cannot count consumers, the operator must confirm with --ledger-reach host that all consumers are on this host.
    A broker or ledger that does not respond has its own finding, and the consumer audit repeats the question every minute.
    """
    broker, is_local = adapter.capabilities, options.ledger_is_local
    if broker.one_host or options.ledger_reach == "host" or not (is_local or broker.counts_consumers):
        return
    scheme = options.ledger.partition(":")[0]
    if not broker.counts_consumers:
        yield _finding("ledger.uncounted-consumers", scheme=scheme)
        return
    with suppress(BrokerUnavailable, LedgerUnavailable):
        if not isinstance(found := adapter.consumers(), Uncounted):
            yield from _foreign(spec, options, adapter, ledger, found)
        elif is_local:
            yield _finding(
                "ledger.uncounted-consumers",
                "no reply",
                scheme=scheme,
                queue=spec.queue,
                reason=redact(found.why),
                remedy=found.remedy,
            )


def _foreign(spec: WorkerSpec, options: Options, adapter: Adapter, ledger: Ledger, consumers: int) -> Iterator[Finding]:
    """
    Yield a warning if the broker counts more consumers than the ledger lists.

    The consumer audit of `run` makes the same comparison.
    """
    if not consumers:
        return
    name = registered_name(options.namespace or adapter.identity(), spec.queue)
    try:
        known = registered(ledger, name, dead_for=adapter.capabilities.forgets_consumers_within)
    except OlderLedger:  # after its migration, the ledger can list its consumers
        return
    except NoLedger:  # a missing ledger has its own finding
        known = 0
    if consumers > known:
        yield _finding(
            "check.foreign-consumers", queue=spec.queue, consumers=count_text(consumers, "consumer"), listed=known
        )


def _keys(spec: WorkerSpec, broker: Capabilities) -> Iterator[Finding]:
    """
    Yield a note that a sender can leave out key and id.

    Without them, the ledger cannot recognise a redelivery of the message.
    The finding is a note and not a warning, because it applies to every queue of such a broker.
    Only `check` shows notes.
    """
    if spec.unkeyed == "generate" and broker.optional_ids:
        yield _finding("check.optional-keys", queue=spec.queue)


def _ledger(ledger: Ledger) -> Sequence[Finding]:
    try:
        return ledger.findings()
    except LedgerUnavailable as error:
        found = _finding("ledger.unreachable", error=redact(str(error)))
        return [replace(found, id=error.id or found.id)]


def broker_findings(spec: WorkerSpec, adapter: Adapter) -> Sequence[Finding]:
    """
    Return the adapter's findings.

    Each finding about a loss of messages also states the consequence for this Worker.
    Raises BrokerUnavailable.
    """
    return [_with_consequence(finding, spec) for finding in adapter.findings(spec.queue_spec)]


def _with_consequence(finding: Finding, spec: WorkerSpec) -> Finding:
    """
    Return the finding; if the finding is about a loss of messages, add the consequence for this Worker.

    If the Worker keeps no messages in the ledger, a note about a loss becomes a warning.
    """
    if finding.loses is None:
        return finding
    what = f"{finding.what} {_KEPT[finding.loses] if spec.keep_message else _NOT_KEPT[finding.loses]}"
    level = "warning" if finding.level == "note" and not spec.keep_message else finding.level
    return replace(finding, level=level, what=what)


def _broker(spec: WorkerSpec, adapter: Adapter) -> Sequence[Finding]:
    try:
        return broker_findings(spec, adapter)
    except BrokerUnavailable as error:
        found = _finding("check.broker-unreachable", queue=spec.queue, error=redact(str(error)))
        return [replace(found, id=error.id or found.id)]


def _lost(spec: WorkerSpec, options: Options, adapter: Adapter, ledger: Ledger) -> Iterator[Finding]:
    """
    Yield a warning if jobs of the queue wait for messages that do not come.

    Count only the jobs that no worker process starts by itself.
    """
    with suppress(BrokerUnavailable, LedgerUnavailable, ConfigError):  # each of these errors has its own finding
        jobs = lost(ledger, options.namespace or adapter.identity(), spec.queue, stranded=True)
        if jobs:
            many = ("at least " if len(jobs) == MOST else "") + count_text(len(jobs), "job")
            yield _finding("check.lost-messages", queue=spec.queue, jobs=many, hours=jobs[0].unseen_for / _HOUR)


def _name(spec: WorkerSpec, options: Options, adapter: Adapter, ledger: Ledger) -> Iterator[Finding]:
    """
    Check the broker's name in this ledger.

    A broker or ledger that is missing or unreachable has its own finding.
    """
    with suppress(BrokerUnavailable, LedgerUnavailable, NoLedger):
        yield from name_findings(adapter, options, ledger, spec.queue)
