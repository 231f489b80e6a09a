"""
What is checked before the first message, by `run` as by `check`: relations between settings, and what the parts find.

Each finding names its remedy.
An *error* would lose messages, run jobs twice or stop working later: the process ends with 78 instead of starting.
A *warning* is something that works and will surprise.
Which broker it is, is nobody's question here: its `Capabilities` are data.

One relation needs no check: `Times` refuses to exist unless renew < trust < lease.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from steadyworker.adapter import Adapter, Capabilities
from steadyworker.config.resolve import Options
from steadyworker.errors import BrokerUnavailable, Finding, LedgerUnavailable
from steadyworker.ledger.base import Ledger
from steadyworker.names import NAMESPACE
from steadyworker.spec import WorkerSpec
from steadyworker.system.host import Host, look
from steadyworker.telemetry.redaction import redact
from steadyworker.units import size_text

_SPARE_HAND_OVERS = 5


def check(
    specs: Sequence[WorkerSpec],
    options: Options,
    adapters: Sequence[Adapter],
    ledger: Ledger,
    host: Host | None = None,
) -> list[Finding]:
    """
    Everything that is wrong, errors first, each once.

    `adapters` are those of `specs`, in their order; `host` is looked at when it is not given.
    A broker or ledger that does not answer is a warning: it is waited for.
    """
    host = host or look(os.environ, sys.argv)
    found = [
        *_settings(specs, options),
        *_surroundings(specs, options, host),
        *_ledger(ledger),
    ]
    for spec, adapter in zip(specs, adapters, strict=True):
        found += _reach(options, adapter.capabilities)
        found += _hand_overs(spec, adapter.capabilities)
        found += _broker(spec, adapter)
    return sorted(dict.fromkeys(found), key=lambda finding: finding.level != "error")


def _settings(specs: Sequence[WorkerSpec], options: Options) -> Iterator[Finding]:
    if options.namespace is not None and (problem := NAMESPACE.problem(options.namespace)):
        yield Finding("error", problem, "set another --namespace, or none: the broker's identity is the default.")
    for queue, count in Counter(spec.queue for spec in specs).items():
        if count > 1:
            what = f"Expected one Worker for queue {queue!r}, got {count}."
            yield Finding("error", what, "run one of them, or give each a queue of its own.")
    for spec in specs:
        if spec.dead_letter_queue == spec.queue:
            what = f"{spec.target} would read its dead letters as jobs: both queues are {spec.queue!r}."
            yield Finding("error", what, "give dead_letter_queue another name, or leave it out.")
    if options.concurrency is not None and len(specs) > 1:
        what = f"Expected one Worker beside --concurrency, got {len(specs)}."
        yield Finding("error", what, "set concurrency in [workers.NAME] of steadyworker.toml for each.")
    names = [spec.cls.__name__ for spec in specs]
    for name in options.workers:
        if name not in names and (near := difflib.get_close_matches(name, names, n=1)):
            what = f"[workers.{name}] is for none of the Workers that run here."
            yield Finding("warning", what, f"did you mean [workers.{near[0]}]?")


def _surroundings(specs: Sequence[WorkerSpec], options: Options, host: Host) -> Iterator[Finding]:
    if host.platform == "win32":
        yield Finding("error", "Windows has no process groups that can be killed as one.", "run it under WSL 2.")
    elif host.platform != "linux":
        what = f"On {host.platform} the children of a killed worker process may live on, and memory is not limited."
        yield Finding("warning", what, "develop here, and run on Linux.")
    if any(redact(argument) != argument for argument in host.command_line):
        what = "A password is on the command line, where every user of this machine can read it."
        yield Finding("warning", what, "put the URL into a file and name it, with --broker-file or --ledger-file.")
    if host.kills_group:
        what = "When one job is out of memory, the kernel kills this whole cgroup, the worker process too."
        remedy = "Kubernetes: singleProcessOOMKill: true for the kubelet; systemd: OOMPolicy=continue; or echo 0 > memory.oom.group."
        yield Finding("warning", what, remedy)
    yield from _unit(options, host)
    wanted = sum(spec.concurrency * (spec.memory_limit or 0) for spec in specs)
    if host.memory_limit is not None and wanted > host.memory_limit:
        what = (
            f"All slots together may use {size_text(wanted)}, of {size_text(host.memory_limit)} that the cgroup allows."
        )
        yield Finding(
            "warning", what, "set memory_limit of each Worker so that their sum times concurrency stays below."
        )


def _unit(options: Options, host: Host) -> Iterator[Finding]:
    unit = host.unit
    if unit is None:
        return
    if unit.oom_policy == "stop":
        what = f"When one job is out of memory, systemd stops all of {unit.name} (OOMPolicy=stop)."
        yield Finding("warning", what, f"set OOMPolicy=continue in {unit.name}.")
    # A unit that hears us is asked for more time while jobs end.
    if not host.notified and unit.stop_within is not None and options.stop_within > unit.stop_within:
        what = (
            f"--stop-within is {options.stop_within:g} s, but systemd kills {unit.name} after {unit.stop_within:g} s."
        )
        yield Finding(
            "warning", what, f"set Type=notify, or TimeoutStopSec={options.stop_within + 2:g}, in {unit.name}."
        )


def _reach(options: Options, broker: Capabilities) -> Iterator[Finding]:
    """All consumers of a queue must share one ledger; who cannot be counted must be vouched for."""
    if broker.one_host or broker.counts_consumers or options.ledger_reach == "host" or not options.ledger_is_local:
        return
    scheme = options.ledger.partition(":")[0]
    what = f"The {scheme}: ledger reaches this host only, and this broker cannot say whether others consume its queues too."
    yield Finding(
        "error", what, "set --ledger postgresql://…, or say that all consumers are on this host: --ledger-reach host."
    )


def _hand_overs(spec: WorkerSpec, broker: Capabilities) -> Iterator[Finding]:
    """What a broker that takes deliveries back, or counts them, does to a job that runs long."""
    limit, timeout = broker.delivery_limit, broker.delivery_timeout
    longest = "for ever" if spec.time_limit is None else f"{spec.time_limit:g} s"
    outlived = timeout is not None and (spec.time_limit is None or spec.time_limit > timeout)
    if outlived:
        what = f"{spec.target} may run {longest}, but the broker takes a delivery back after {timeout:g} s."
        remedy = "raise the queue's delivery timeout above time_limit; until then a run goes adrift, and adopts what comes again."
        yield Finding("warning", what, remedy)
    if limit is None:
        return
    if outlived and spec.time_limit is None:
        what = f"{spec.target} may run {longest}, and the broker gives a message up after {limit} hand-overs."
        yield Finding("error", what, "set a time_limit, or take the queue's delivery limit away.")
        return
    needed = _SPARE_HAND_OVERS + (spec.time_limit or 0.0) / timeout if timeout is not None else _SPARE_HAND_OVERS
    if needed > limit:
        what = f"One run of {spec.target} may take {needed:g} hand-overs; the broker gives a message up after {limit}."
        yield Finding("error", what, f"raise the queue's delivery limit to {int(needed) + 1}, or its delivery timeout.")


def _ledger(ledger: Ledger) -> Sequence[Finding]:
    try:
        return ledger.findings()
    except LedgerUnavailable as error:
        what = f"The ledger does not answer, so it was not checked: {redact(str(error))}"
        return [Finding("warning", what, "start it or correct --ledger; nothing is claimed until it answers.")]


def _broker(spec: WorkerSpec, adapter: Adapter) -> Sequence[Finding]:
    try:
        return adapter.findings(spec.queue_spec)
    except BrokerUnavailable as error:
        what = f"The broker does not answer, so queue {spec.queue!r} was not checked: {redact(str(error))}"
        return [Finding("warning", what, "start it or correct --broker; a worker process goes on trying.")]
