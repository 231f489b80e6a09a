"""Relations between settings, each with its remedy; the broker is data, and the host is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from steadyworker.adapter import Capabilities, QueueSpec, Uncounted
from steadyworker.clock import Times
from steadyworker.config.resolve import Options, load
from steadyworker.errors import BrokerUnavailable, ConfigError, Finding, LedgerUnavailable, Level, Loss, NoLedger
from steadyworker.ledger.base import Hindrance, JobId, Orphan, OwnerSeen, Row, State
from steadyworker.service import checks
from steadyworker.spec import WorkerSpec, spec_of
from steadyworker.system.host import Host, Unit, kills_group, read_host, unit_from
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker.worker import Worker

LEVELS: tuple[Level, ...] = ("error", "warning", "note")
NETWORK = Capabilities(one_host=False, counts_consumers=True)


class Exports(Worker[dict[str, str]]):
    queue = "exports"
    time_limit = 3600
    memory_limit = None

    def handle(self, job: object) -> None:
        """Nothing to do."""


class Broker:
    """As much of an adapter as `check` asks."""

    def __init__(
        self,
        capabilities: Capabilities,
        found: Sequence[Finding] | Exception = (),
        count: int | Exception | Uncounted = 0,
    ) -> None:
        self.capabilities = capabilities
        self.found = found
        self.count = count
        self.asked: list[QueueSpec] = []

    def findings(self, spec: QueueSpec) -> Sequence[Finding]:
        self.asked.append(spec)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def identity(self) -> str:
        return "cluster/vhost"

    def consumers(self) -> int | Uncounted:
        if isinstance(self.count, Exception):
            raise self.count
        return self.count


class Ledger:
    """As much of a ledger as `check` asks."""

    def __init__(
        self,
        found: Sequence[Finding] | Exception = (),
        seen: Sequence[OwnerSeen] = (),
        stranded: Mapping[str, Sequence[Orphan]] = MappingProxyType({}),
    ) -> None:
        self.found = found
        self.seen = seen
        self.stranded = stranded
        self.facts = MemoryLedger(FakeClock(), Times()).facts

    def findings(self) -> Sequence[Finding]:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def owners(self) -> Sequence[OwnerSeen]:
        self.findings()
        return self.seen

    def orphans(self, namespace: str, queue: str, after: float, limit: int, *, stranded: bool) -> Sequence[Orphan]:
        self.findings()
        assert (after, stranded) == (3600.0, True)
        return self.stranded.get(queue, ())[:limit] if namespace == "cluster/vhost" else ()


def options(**arguments: Any) -> Options:
    return load(arguments, {"HOME": "/home/joe"}, Path("/nowhere"))


def spec(**overrides: Any) -> WorkerSpec:
    return spec_of(Exports, overrides)


def found(
    *specs: WorkerSpec,
    settings: Options | None = None,
    broker: Capabilities = NETWORK,
    host: Host | None = None,
    ledger: Ledger | None = None,
    adapter: Broker | None = None,
) -> list[Finding]:
    specs = specs or (spec(),)
    adapters: list[Any] = [adapter or Broker(broker) for _ in specs]
    judged: Any = ledger or Ledger()
    return checks.check(specs, settings or options(), adapters, judged, host or Host())


def only(findings: list[Finding], level: str, what: str, remedy: str) -> None:
    """Exactly one finding, with this text and remedy."""
    (finding,) = findings
    assert finding.level == level
    assert what in finding.what
    assert remedy in finding.remedy


def test_a_broker_whose_messages_may_have_no_key_is_a_note_and_comes_last() -> None:
    optional = replace(NETWORK, optional_ids=True)
    wrong = [
        Finding("warning", "odd", "mend it.", id="test.odd"),
        Finding("error", "wrong", "mend it.", id="test.wrong"),
    ]
    noted = found(adapter=Broker(optional, wrong))
    assert [finding.level for finding in noted] == ["error", "warning", "note"]
    only(noted[2:], "note", "'exports' without a key or an id may run twice", "unkeyed='reject'")
    assert found(spec(unkeyed="reject"), broker=optional) == []


@pytest.mark.parametrize(
    ("loses", "kept", "not_kept"),
    [
        (
            "jobs",
            "has claimed survives that, because the ledger keeps",
            "also ends a job that a worker process has claimed",
        ),
        ("letters", "can still be replayed, because the ledger keeps", "such a job cannot be replayed"),
        (None, "", ""),
    ],
)
def test_a_loss_of_messages_has_its_consequence_for_a_job_that_is_claimed(
    loses: Loss | None, kept: str, not_kept: str
) -> None:
    """A note about a loss becomes a warning if the Worker's messages are not kept; no other level changes."""
    lossy = [Finding(level, f"{level}.", "mend it.", id="test.loss", loses=loses) for level in LEVELS]
    for each, consequence, levels in (
        (spec(), kept, ["error", "warning", "note"]),
        (spec(keep_message=False), not_kept, ["error", "warning", "warning" if loses else "note"]),
    ):
        broker = [finding for finding in found(each, adapter=Broker(NETWORK, lossy)) if finding.id == "test.loss"]
        assert [finding.level for finding in broker] == levels
        assert all(consequence in finding.what for finding in broker)
        assert [finding.what for finding in broker if not loses] == ["error.", "warning.", "note."] * (not loses)


def orphan(key: str, unseen_for: float) -> Orphan:
    row = Row(JobId("cluster/vhost", "exports", key), "uid", State.INTERRUPTED, fence=1)
    return Orphan(row, unseen_for, Hindrance.OLD_RECORD)


def test_jobs_whose_message_is_lost_and_that_no_worker_starts_are_a_warning_for_their_queue() -> None:
    stranded = [orphan("k-1", 9000.0), orphan("k-2", 4000.0)]
    findings = found(spec(), spec(queue="other"), ledger=Ledger(stranded={"exports": stranded}))
    only(
        findings,
        "warning",
        "Of 2 jobs of queue 'exports' no message came for more than an hour (the longest: 2.5 h)",
        "",
    )
    assert "`steadyworker jobs exports --overdue`" in findings[0].remedy
    assert "`steadyworker retry exports KEY` starts one" in findings[0].remedy
    many = found(ledger=Ledger(stranded={"exports": [orphan(f"k-{number}", 4000.0) for number in range(101)]}))
    assert "Of at least 100 jobs" in many[0].what
    paused = Ledger(stranded={"exports": stranded})
    paused.facts.pause("cluster/vhost", "exports", "ada@ops", "")
    assert found(ledger=paused) == []


@pytest.mark.parametrize(
    "error", [LedgerUnavailable("away"), NoLedger("sqlite:/l.db", "none"), ConfigError("schema 9")]
)
def test_lost_messages_are_not_searched_in_a_ledger_that_cannot_be_read(error: Exception) -> None:
    class Unread(Ledger):
        def findings(self) -> Sequence[Finding]:
            return ()

        def orphans(self, *_: object, **__: object) -> Sequence[Orphan]:
            raise error

    assert found(ledger=Unread()) == []


def test_a_worker_whose_messages_are_not_kept_is_a_note_about_what_is_lost_with_it() -> None:
    only(
        found(spec(keep_message=False)),
        "note",
        "a job that has begun still depends on the broker's copy",
        "leave keep_message out",
    )


def test_nothing_is_wrong() -> None:
    assert found() == []


# --- unsafe reach


def test_a_ledger_of_one_host_with_consumers_that_cannot_be_counted_is_one_error() -> None:
    uncounted = Capabilities()
    twice = found(spec(), spec(queue="other"), settings=options(ledger="sqlite:/l.db"), broker=uncounted)
    only(twice, "error", "serves this host only", "--ledger-reach host")


@pytest.mark.parametrize(
    ("settings", "broker"),
    [
        (options(ledger_reach="host"), Capabilities()),
        (options(ledger="postgresql://h/db"), Capabilities()),
        (options(), Capabilities(one_host=True)),
        (options(), Capabilities(counts_consumers=True)),
    ],
)
def test_reach_that_is_safe_or_confirmed(settings: Options, broker: Capabilities) -> None:
    assert found(settings=settings, broker=broker) == []


REFUSES = Broker(NETWORK, count=Uncounted("amqp://joe:SECRET@host refused", "grant the right"))


def test_a_broker_that_refuses_to_count_is_an_error_with_a_ledger_of_one_host() -> None:
    findings = found(settings=options(ledger="sqlite:/l.db"), adapter=REFUSES)
    only(findings, "error", "it is unknown how many consumers queue 'exports' has: amqp://", "--ledger-reach host")
    assert findings[0].what.endswith("@host refused.")
    assert "SECRET" not in findings[0].what
    assert findings[0].remedy.startswith("grant the right; or set --ledger postgresql://…")


def test_a_broker_may_refuse_to_count_with_a_ledger_that_all_hosts_share() -> None:
    assert found(settings=options(ledger="postgresql://h/db"), adapter=REFUSES) == []


@pytest.mark.parametrize(
    ("settings", "broker"),
    [(options(ledger_reach="host"), NETWORK), (options(), replace(NETWORK, one_host=True))],
    ids=["the operator answers", "an embedded broker"],
)
def test_a_broker_is_not_asked_to_count_where_its_answer_does_not_matter(
    settings: Options, broker: Capabilities
) -> None:
    assert found(settings=settings, adapter=Broker(broker, count=AssertionError("asked"))) == []


def seen_by(name: str, *, seen_ago: float = 5.0, dead: bool = False) -> OwnerSeen:
    return OwnerSeen("owner", "host", (name,), seen_ago, dead=dead)


OURS = "cluster/vhost/exports"


@pytest.mark.parametrize(
    ("count", "seen", "warning"),
    [
        (0, [], ""),
        (1, [], "has 1 consumer, but this ledger lists 0"),
        (2, [seen_by(OURS)], "has 2 consumers, but this ledger lists 1"),
        (1, [seen_by(OURS)], ""),
        (1, [seen_by("cluster/vhost/other")], "lists 0"),
        (1, [seen_by(OURS, seen_ago=95, dead=True)], ""),
        (1, [seen_by(OURS, seen_ago=125, dead=True)], "lists 0"),
    ],
)
@pytest.mark.parametrize("ledger", ["sqlite:/l.db", "postgresql://h/db"])
def test_a_consumer_that_the_ledger_does_not_list_is_a_warning(
    ledger: str, count: int, seen: list[OwnerSeen], warning: str
) -> None:
    """As the audit of a worker process finds it; the broker still counts the consumer of an owner that has just died."""
    broker = Broker(replace(NETWORK, forgets_consumers_within=30), count=count)
    warned = found(settings=options(ledger=ledger), adapter=broker, ledger=Ledger(seen=seen))
    if not warning:
        assert warned == []
        return
    only(warned, "warning", warning, "--ledger-reach host")
    assert warned[0].id == "check.foreign-consumers"
    assert found(settings=options(ledger=ledger, ledger_reach="host"), adapter=broker, ledger=Ledger(seen=seen)) == []


def test_a_consumer_beside_a_ledger_that_no_worker_has_created_is_a_warning() -> None:
    """The first deployment beside consumers of another program, or a forgotten --ledger."""

    class Missing(Ledger):
        def owners(self) -> Sequence[OwnerSeen]:
            raise NoLedger("sqlite:/l.db", "no such file")

    warned = found(adapter=Broker(NETWORK, count=2), ledger=cast(Any, Missing()))
    only(warned, "warning", "has 2 consumers, but this ledger lists 0", "--ledger-reach host")


def test_a_broker_that_does_not_respond_has_not_refused_to_count() -> None:
    """The worker process waits for it; then its audit asks again."""
    away = BrokerUnavailable("away")
    only(found(adapter=Broker(NETWORK, away, away)), "warning", "The broker does not respond", "start the broker")
    uncounted = found(adapter=Broker(Capabilities(), away, away))
    assert [finding.level for finding in uncounted] == ["error", "warning"]


# --- names and overrides


def test_a_namespace_must_be_a_name() -> None:
    only(found(settings=options(namespace="a b")), "error", "namespace", "--namespace")


def test_dead_letters_do_not_come_back_as_jobs() -> None:
    only(found(spec(dead_letter_queue="exports")), "error", "a dead-letter queue for", "dead_letter_queue")


def test_a_table_for_a_worker_with_a_typo_is_a_warning() -> None:
    typo = replace(options(), workers={"Export": {}, "Unrelated": {}})
    only(found(settings=typo), "warning", "[workers.Export]", "[workers.Exports]")


class Misspelt(Exports):
    """Two attributes that nothing reads, and a user's own: one far from every name, one private, one a variant."""

    stal_limit = 30
    rate_limit = 5
    _stal_limit = 30
    handler = "beside handle, so it is the user's own"

    def tear_down(self) -> None:
        """Nothing to do."""

    def handle(self, job: object) -> None:
        """Nothing to do."""


class Inherits(Misspelt):
    concurency = 4


def test_a_misspelt_attribute_of_a_worker_is_a_warning_and_an_own_attribute_is_not() -> None:
    warnings = found(spec_of(Inherits))
    assert [finding.level for finding in warnings] == ["warning"] * 3
    remedies = {finding.what: finding.remedy for finding in warnings}
    for name, meant in (("concurency", "concurrency"), ("stal_limit", "stall_limit"), ("tear_down", "teardown")):
        remedy = remedies[f"Inherits sets {name!r}, which SteadyWorker does not read."]
        assert remedy == f"did you mean {meant!r}? If the name is your own, call it '_{name}'."


# --- the host


def test_a_password_on_the_command_line_is_a_warning_without_it() -> None:
    host = Host(command_line=("steadyworker", "run", "--broker", "amqp://joe:canary@h"))
    findings = found(host=host)
    only(findings, "warning", "command line", "--broker-file")
    assert "canary" not in str(findings[0])
    assert found(host=Host(command_line=("steadyworker", "run", "--broker", "amqp://h"))) == []


def test_orphans_of_jobs_in_threads_that_stay_in_a_container_are_a_warning() -> None:
    first = Host(adopts_orphans=True)
    assert found(host=first) == []
    in_threads = spec(isolation="thread")
    assert found(in_threads) == []
    only(found(in_threads, host=first), "warning", "orphans of those jobs stay as zombies", "docker run --init")


def test_a_group_that_is_killed_as_one_is_a_warning() -> None:
    only(found(host=Host(kills_group=True)), "warning", "kills this whole cgroup", "singleProcessOOMKill")
    stops = Host(unit=Unit("w.service", oom_policy="stop"))
    only(found(host=stops), "warning", "systemd stops the whole unit w.service", "OOMPolicy=continue in w.service")
    assert found(host=Host(unit=Unit("w.service", oom_policy="continue"))) == []


def test_a_stop_budget_above_the_platforms_is_a_warning() -> None:
    host = Host(unit=Unit("w.service", stop_within=90))
    only(
        found(settings=options(stop_within=600), host=host),
        "warning",
        "kills w.service after 90 s",
        "TimeoutStopSec=602",
    )
    assert found(settings=options(stop_within=90), host=host) == []
    assert found(settings=options(stop_within=600), host=replace(host, notified=True)) == []


def test_slots_that_together_may_use_more_than_there_is_are_a_warning() -> None:
    greedy = spec(memory_limit="1 GiB", concurrency=3)
    only(
        found(greedy, host=Host(memory_limit=2 << 30)),
        "warning",
        "3.0 GiB, but the cgroup allows only 2.0 GiB",
        "memory_limit",
    )
    assert found(greedy, host=Host(memory_limit=4 << 30)) == []


def test_other_platforms() -> None:
    only(found(host=Host(platform="win32")), "error", "Windows", "WSL")
    only(found(host=Host(platform="darwin")), "warning", "On darwin", "run on Linux")


# --- what the parts find themselves


def test_what_broker_and_ledger_find_is_passed_on_errors_first() -> None:
    warning, error = Finding("warning", "w", "r", id="test.w"), Finding("error", "e", "r", id="test.e")
    adapter = Broker(NETWORK, [error])
    assert found(adapter=adapter, ledger=Ledger([warning])) == [error, warning]
    assert adapter.asked == [QueueSpec("exports", "exports.dead", 1, 3600, 5, None)]


def test_a_broker_or_ledger_that_is_away_is_waited_for() -> None:
    adapter = Broker(NETWORK, BrokerUnavailable("amqp://joe:canary@h refused"))
    first, second = found(adapter=adapter, ledger=Ledger(LedgerUnavailable("locked")))
    assert (first.level, second.level) == ("warning", "warning")
    assert "amqp://joe:***@h refused" in second.what


# --- facts


def test_the_checks_of_this_machine() -> None:
    host = read_host({"INVOCATION_ID": "x"}, ["a"])
    assert (host.command_line, host.notified) == (("a",), False)
    assert host.unit is None  # pytest is no unit's main process


@pytest.mark.parametrize(("own", "above", "expected"), [("1", "0", True), ("0", "1", True), ("0", "0", False)])
def test_the_group_is_killed_when_it_or_one_above_it_is_set_so(
    own: str, above: str, expected: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "root" / "pods" / "worker"
    folder.mkdir(parents=True)
    (folder / "memory.oom.group").write_text(f"{own}\n")
    (folder.parent / "memory.oom.group").write_text(f"{above}\n")
    (tmp_path / "cgroup").write_text("4:memory:/elsewhere\n0::/pods/worker\n")
    assert kills_group(tmp_path / "cgroup", tmp_path / "root") is expected


def test_without_cgroups_nothing_is_reported(tmp_path: Path) -> None:
    assert kills_group(tmp_path / "none", tmp_path / "none") is False


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("MainPID=7\nOOMPolicy=stop\nTimeoutStopUSec=1min 30s\n", Unit("w.service", "stop", 90.0)),
        ("MainPID=7\nOOMPolicy=continue\nTimeoutStopUSec=infinity\n", Unit("w.service", "continue", None)),
        ("MainPID=8\nOOMPolicy=stop\nTimeoutStopUSec=1min 30s\n", None),
        ("", None),
    ],
)
def test_the_unit_as_systemctl_shows_it(shown: str, expected: Unit | None) -> None:
    assert unit_from("w.service", shown, 7) == expected
