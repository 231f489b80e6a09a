"""
Functions that open the ledger and the adapter of the settings, and find the namespace of a queue's jobs.

A worker process, a Client and the command line all use these functions.
Adapter and ledger connect only at their first use.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

from steadyworker.adapter import Adapter, QueueSpec, Renamable, Settings
from steadyworker.backends import registry
from steadyworker.clock import Clock, SystemClock, Times
from steadyworker.config.resolve import Options
from steadyworker.errors import ConfigError, Finding
from steadyworker.findings import FindingTexts
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.lease import attended
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.spec import WorkerSpec

_finding = FindingTexts("steadyworker.backends")

_LIST = re.compile(r",|:\d+$")
"""The pattern that shows that a namespace is a list of addresses: a comma, or a port at the end."""

LIVES = 90.0
"""The seconds for which an owner counts as living after its last registration: the sum of lease and margin."""


def open_ledger(
    options: Options, clock: Clock | None = None, times: Times | None = None, worker: str = "", *, create: bool = False
) -> Ledger:
    """
    Open the ledger that `--ledger` names.

    The URL is `sqlite:PATH`, `sqlite:PATH?synchronous=full` or `postgresql://…`.
    Only a worker process may `create` the ledger, because a ledger that another process creates knows no job.
    Without `create`, each call raises NoLedger if the ledger is missing.

    Raise ConfigError if the URL names no ledger, if its path is unfit for a ledger, or if an extra is not installed.
    """
    clock, times = clock or SystemClock(), times or Times()
    scheme, _, rest = options.ledger.partition(":")
    if scheme in ("postgresql", "postgres"):
        if options.ledger_limit is not None:
            raise ConfigError(
                "Expected no --ledger-limit with a postgresql:// ledger, because only VACUUM gives the space of deleted rows back: "
                "remove the setting, and set keep_attempts and keep_done of the Workers.",
                id="config.ledger-limit",
            )
        return _postgres_ledger(options, clock, times, worker, create=create)
    if scheme != "sqlite":
        msg = f"Expected a ledger URL of sqlite:PATH or postgresql://…, got the scheme {scheme!r}: set --ledger."
        raise ConfigError(msg, id="config.ledger-url")
    place, _, query = rest.partition("?")
    wanted = parse_qs(query, keep_blank_values=True)
    synchronous = wanted.pop("synchronous", ["normal"])[-1]
    if wanted or not place or synchronous not in ("normal", "full"):
        msg = f"Expected sqlite:PATH or sqlite:PATH?synchronous=full, got {options.ledger!r}: set --ledger."
        raise ConfigError(msg, id="config.ledger-url")
    path = sqlite_path(place)
    return SqliteLedger(
        path,
        synchronous=synchronous,
        clock=clock,
        times=times,
        worker=worker,
        create=create,
        limit=options.ledger_limit,
    )


def _postgres_ledger(options: Options, clock: Clock, times: Times, worker: str, *, create: bool) -> Ledger:
    try:
        from steadyworker.ledger.postgres.ledger import PostgresLedger
    except ImportError as error:
        raise ConfigError(
            f"Expected psycopg for a postgresql: ledger, got: {error}: pip install 'steadyworker[postgres]'.",
            id="config.no-adapter",
        ) from error
    return PostgresLedger(
        lambda: options.fresh("ledger"),
        owners_dir=owners_directory(options),
        clock=clock,
        times=times,
        worker=worker,
        create=create,
    )


def sqlite_path(place: str) -> Path:
    """Return the path of a `sqlite:` URL: relative for `sqlite:a/b`, absolute for `sqlite:/a/b` and `sqlite:///a/b`."""
    return Path(place.removeprefix("//")).expanduser()


def owners_directory(options: Options) -> Path:
    """Return the folder of the owner locks: beside the file of a SQLite ledger, otherwise in the state directory."""
    scheme, _, rest = options.ledger.partition(":")
    if scheme != "sqlite":
        return options.state_dir / "owners"
    path = sqlite_path(rest.partition("?")[0])
    return path.with_name(path.name + ".owners")


def open_adapter_for(spec: WorkerSpec | str, options: Options, *, create: bool = True) -> Adapter:
    """
    Open the adapter that `--broker` names, for a Worker's spec or for the name of a queue.

    Without `create`, no question creates a broker that is a file: only a worker process and a sent message create one.
    """
    wanted = QueueSpec(spec, f"{spec}.dead") if isinstance(spec, str) else spec.queue_spec
    settings = Settings(
        topology=options.topology,
        delays=options.delays,
        consumer=f"steadyworker@{socket.gethostname()}",
        fresh_url=lambda: options.fresh("broker"),
        create=create,
    )
    return registry.open_adapter(options.fresh("broker"), wanted, settings)


def namespace_of(adapter: Adapter, options: Options, ledger: Ledger, queue_name: str, *, bind: bool = True) -> str:
    """
    Return the namespace of a queue's jobs: the option `namespace` if it is set, otherwise the broker's identity.

    With `bind`, the ledger binds namespace and queue to the first broker that uses them; a question needs no binding.
    If worker processes under the broker's former name still live, this call binds the new name to the former name.
    So this call refuses the new name even after the end of these processes, because their records belong to the former name.
    With `--namespace`, an operator can set the former name, to state that this is still the same broker.
    If the broker reports no name, a list of its addresses as `--namespace` also states this.
    Then any process with one of these addresses may be the first.

    Raises:
        ConfigError: Namespace and queue are bound to another broker, or `--namespace` lists another broker.
            An operator seems to have renamed the broker, or worker processes live under another name that this broker may have.
        BrokerUnavailable: The broker does not respond.
    """
    identity, namespace = adapter.identity(), options.namespace
    if namespace is None:
        former = former_identity(adapter, options, ledger, queue_name) or identity
        bound = _bound(ledger, identity, queue_name, former, bind=bind)
        if not identity == former == bound:
            raise _refused(_renamed(former if former != identity else bound, adapter, queue_name))
        return identity
    for finding in name_findings(adapter, options, ledger, queue_name):
        raise _refused(finding)
    is_listed = _is_listed(adapter, namespace)
    expected = namespace if is_listed else identity
    bound = _bound(ledger, namespace, queue_name, expected, bind=bind)
    is_same = bound == expected or (bound == namespace and _may_have_been(adapter, bound))
    # Without --namespace, this code refused this list, because a former list had another port of the same host.
    # The refusal bound this list to the former list; with --namespace, the operator now states that the lists are two brokers.
    is_other = is_listed and not _addresses(bound) & _addresses(namespace)
    if not is_same and not is_other:
        msg = (
            f"Expected broker {bound!r}, to which namespace {namespace!r} and queue {queue_name!r} belong since their first use, "
            f"got {identity!r}: set another --namespace, or correct --broker, or give a renamed broker its former name."
        )
        raise ConfigError(msg, id="check.other-broker")
    return namespace


def _bound(ledger: Ledger, namespace: str, queue_name: str, expected: str, *, bind: bool) -> str:
    """Return the broker to which namespace and queue are bound; without `bind`, a pair without a broker stays unbound."""
    if not bind and (namespace, queue_name) not in ledger.bindings():
        return expected
    return ledger.bind(namespace, queue_name, expected)


def name_findings(adapter: Adapter, options: Options, ledger: Ledger, queue_name: str) -> Iterator[Finding]:
    """
    Yield a finding if this ledger refuses the broker's name; this call makes no binding, so it can miss a refusal.

    This call can raise BrokerUnavailable and LedgerUnavailable.
    """
    if (former := former_identity(adapter, options, ledger, queue_name)) is not None:
        if options.namespace is None:
            yield _renamed(former, adapter, queue_name)
        else:
            yield _elsewhere(former, options.namespace, adapter.identity(), queue_name)
    elif _is_of_others(adapter, options.namespace, ledger, queue_name):
        yield _finding("check.namespace-list", namespace=options.namespace, identity=adapter.identity())


def former_identity(adapter: Adapter, options: Options, ledger: Ledger, queue_name: str) -> str | None:
    """
    Return another name that this broker could have, and under which worker processes now consume this queue, or None.

    An operator who renames a broker changes its identity, and therefore the namespace of its jobs.
    A worker process under the new name would not know the jobs of worker processes under the former name.
    With --namespace, the name that a broker reports does not matter.
    But if the broker reports no name, only its addresses show that worker processes under another name consume the same queue.
    A namespace that lists addresses is exact: another port of the same host is then another broker.
    This call can raise BrokerUnavailable and LedgerUnavailable.
    """
    namespace = options.namespace
    if not isinstance(adapter, Renamable) or (namespace is not None and adapter.capabilities.reports_name):
        return None
    end = f"/{queue_name}"
    living = (seen for seen in ledger.owners() if not seen.dead and seen.seen_ago <= LIVES)
    registered = attended([name for seen in living for name in seen.queues])
    names = {name.removesuffix(end) for name in registered if name.endswith(end)}
    if namespace is not None and _is_listed(adapter, namespace):
        ours = _addresses(namespace) | _addresses(adapter.identity())
        names = {name for name in names if ours & _addresses(name)}
    else:
        names = {name for name in names if adapter.may_have_been(name)}
    # This asks the broker for its identity only if necessary, because the broker can be slow or unreachable.
    return min(names - {namespace or adapter.identity()}, default=None) if names else None


def _refused(finding: Finding) -> ConfigError:
    return ConfigError(str(finding), [finding])


def _renamed(former: str, adapter: Adapter, queue_name: str) -> Finding:
    """Return the finding for a broker whose name seems to have changed."""
    other = "another --namespace" if adapter.capabilities.reports_name else f"--namespace {adapter.identity()!r}"
    return _finding("check.renamed-broker", former=former, queue=queue_name, other=other)


def _elsewhere(former: str, namespace: str, identity: str, queue_name: str) -> Finding:
    """Return the finding for a namespace that differs from the namespace of living worker processes of the same queue."""
    is_same = bool(_addresses(former) & _addresses(identity))
    otherwise = "" if is_same else f"; if it is another broker, set --namespace {identity!r}"
    return _finding("check.other-namespace", former=former, queue=queue_name, namespace=namespace, otherwise=otherwise)


def _is_listed(adapter: Adapter, namespace: str) -> bool:
    """Return whether the broker reports no name, and the namespace lists one of its addresses."""
    return not adapter.capabilities.reports_name and bool(_addresses(namespace) & _addresses(adapter.identity()))


def _is_of_others(adapter: Adapter, namespace: str | None, ledger: Ledger, queue_name: str) -> bool:
    """
    Return whether the broker reports no name, and the namespace lists only other addresses.

    A former list can name another port of the same host, such as the port without TLS.
    If such a list has jobs, it belongs to this broker.
    """
    if namespace is None or adapter.capabilities.reports_name or not _LIST.search(namespace):
        return False
    if _is_listed(adapter, namespace):
        return False
    return not (_may_have_been(adapter, namespace) and queue_name in ledger.queues(namespace))


def _addresses(name: str) -> set[str]:
    return set(name.split(","))


def _may_have_been(adapter: Adapter, identity: str) -> bool:
    return isinstance(adapter, Renamable) and adapter.may_have_been(identity)
