"""RabbitMQ: the plan of queues, their names, where copies go, and what each version limits; no broker is asked."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any

import pika
import pytest

from steadyworker.adapter import DELAYS, QueueSpec, Settings
from steadyworker.delivery import OutgoingMessage, Target
from steadyworker.errors import ConfigError
from steadyworker_rabbitmq.checks import limits, risks
from steadyworker_rabbitmq.checks.findings import find, names_finding
from steadyworker_rabbitmq.checks.queue_state import Difference, ExistingQueue, QueueType, differences
from steadyworker_rabbitmq.checks.risks import KNOWN_ARGUMENTS
from steadyworker_rabbitmq.declare import prepare
from steadyworker_rabbitmq.topology import Topology, Version

V310, V312, V40, V43 = (3, 10, 8), (3, 12, 0), (4, 0, 5), (4, 3, 6)
VERSIONS = [V310, V312, V40, V43]
HOUR = 3600.0


def plan(queue: str = "exports", dead: str = "exports.dead", delays: tuple[float, ...] = DELAYS) -> Topology:
    return Topology(QueueSpec(queue, dead), Settings(delays=delays))


def later(delay: float) -> OutgoingMessage:
    return OutgoingMessage(Target.LATER, b"", {}, delay)


@pytest.mark.parametrize(
    ("delay", "level"),
    [
        (0, 1000),
        (0.2, 1000),
        (1, 1000),
        (1.001, 2000),
        (30, 30_000),
        (61, 300_000),
        (86_400, 86_400_000),
        (1e9, 86_400_000),
    ],
)
def test_a_delay_is_rounded_up_to_a_level_and_the_longest_is_repeated(delay: float, level: int) -> None:
    assert plan().route(later(delay)) == ("", f"exports.later.{level}ms")


def test_work_and_dead_letters_go_to_the_queues_of_the_worker() -> None:
    topology = plan("exports", "graveyard")
    assert topology.route(OutgoingMessage(Target.WORK, b"", {})) == ("", "exports")
    assert topology.route(OutgoingMessage(Target.DEAD, b"", {})) == ("", "graveyard")
    assert topology.longest == 86_400


@pytest.mark.parametrize("version", VERSIONS)
def test_every_route_ends_in_a_queue_of_the_plan(version: Version) -> None:
    topology = plan()
    names = [planned.name for planned in topology.queues(version)]
    copies = [OutgoingMessage(Target.WORK, b"", {}), OutgoingMessage(Target.DEAD, b"", {}), *map(later, DELAYS)]
    assert sorted(names) == sorted(topology.route(message)[1] for message in copies)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_retry_queue_loses_nothing_on_the_way_back(version: Version) -> None:
    """Without any one of these, the broker falls back to at-most-once without an error."""
    for planned in plan().queues(version):
        if planned.role == "retry":
            assert planned.arguments == {
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "exports",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
                "x-message-ttl": int(planned.name.removeprefix("exports.later.").removesuffix("ms")),
            }


@pytest.mark.parametrize("version", VERSIONS)
def test_no_limit_is_sent_to_4_x_only(version: Version) -> None:
    """On 3.x, -1 is a limit that the first return exceeds; a huge one keeps dead letters in their order."""
    limits_3, limits_4 = {"work": None, "dead": 2**31 - 1, "retry": None}, {"work": -1, "dead": -1, "retry": None}
    for planned in plan().queues(version):
        expected = (limits_4 if version >= (4,) else limits_3)[planned.role]
        assert planned.arguments.get("x-delivery-limit") == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_every_argument_is_one_that_the_broker_knows(version: Version) -> None:
    """It takes a misspelt one too, and does nothing with it."""
    for planned in plan().queues(version):
        assert set(planned.arguments) <= KNOWN_ARGUMENTS


@pytest.mark.parametrize(
    "name", ["exports", "team/exports:v2", "Zahlungs-Exporte für März", "a b", "#*", "é" * 117, "x"]
)
def test_a_name_that_the_broker_keeps_as_it_is_is_accepted(name: str) -> None:
    assert plan(name, "dead").work == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " exports",
        "exports ",
        "exports\n",
        "exports\r\n",
        "ex\tports",
        "ex\0ports",
        "ex\x7fports",
        "ex\x85ports",
        "\u2028",
        "amq.exports",
    ],
)
def test_a_name_that_the_broker_would_bend_or_refuse_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="queue name"):
        plan(name, "dead")
    with pytest.raises(ConfigError, match="queue name"):
        plan("exports", name)


def test_the_names_made_from_a_name_have_to_fit_too() -> None:
    """255 bytes, not characters, for the longest of them."""
    longest = "x" * (255 - len(".later.86400000ms"))
    assert plan(longest, "dead").work == longest
    for name in (longest + "x", "é" * 120):
        with pytest.raises(ConfigError, match="at most 255 bytes"):
            plan(name, "dead")


def test_a_queue_is_not_its_own_dead_letter_queue_nor_one_of_its_retry_queues() -> None:
    for dead in ("exports", "exports.later.1000ms"):
        with pytest.raises(ConfigError, match="name another"):
            plan("exports", dead)


@pytest.mark.parametrize("delays", [(0.0001, 1.0), (1.0, 5_000_000.0)])
def test_a_delay_that_the_broker_cannot_count_is_refused(delays: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="set --delays"):
        plan(delays=delays)


# --- What each version limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "type_", "seconds", "known"),
    [
        (V310, "quorum", 1800, False),
        (V310, "classic", 1800, False),
        (V312, "quorum", 1800, False),
        (V40, "classic", 1800, False),
        (V43, "quorum", 3 * HOUR + 900, True),  # our own argument
        (V43, "classic", None, True),
        (V43, "stream", None, True),
        (V43, None, 1800, False),
    ],
)
def test_the_delivery_timeout_of_each_version(
    version: Version, type_: QueueType | None, seconds: float | None, known: bool
) -> None:
    found = limits.delivery_timeout(version, ExistingQueue("exports", {}, type=type_), 3 * HOUR)
    assert (found.seconds, found.known) == (seconds, known)


def test_what_the_broker_reports_outranks_what_is_read_off_arguments_and_policies() -> None:
    queue = ExistingQueue("exports", {"x-consumer-timeout": 9_000_000}, {"consumer-timeout": 7_200_000}, type="quorum")
    reported = ExistingQueue("exports", {}, {}, type="quorum", consumer_timeout=600_000)
    assert limits.delivery_timeout(V312, queue, None).seconds == 7200
    assert limits.delivery_timeout(V310, queue, None).seconds == 1800  # it takes both, and ignores them
    assert limits.delivery_timeout(V40, reported, None).seconds == 600


@pytest.mark.parametrize(
    ("version", "type_", "time_limit", "arguments"),
    [
        (V43, "quorum", 3 * HOUR, {"x-consumer-timeout": 11_700_000}),
        (V43, "quorum", 1.0, {"x-consumer-timeout": 1_800_000}),  # never less than the default
        (V43, "quorum", None, {"x-consumer-timeout": 604_800_000}),
        (V43, "quorum", 1e9, {"x-consumer-timeout": 2**32 - 1}),
        (V43, "classic", 3 * HOUR, {}),
        (V43, None, 3 * HOUR, {}),
        (V40, "quorum", 3 * HOUR, {}),
        (V310, "quorum", 3 * HOUR, {}),
    ],
)
def test_the_timeout_is_set_by_the_consumer_where_that_is_understood(
    version: Version, type_: QueueType | None, time_limit: float | None, arguments: dict[str, int]
) -> None:
    assert limits.consume_arguments(version, type_, time_limit) == arguments


@pytest.mark.parametrize(
    ("version", "type_", "arguments", "continues"),
    [
        (V43, "quorum", {}, True),
        ((4, 0, 5), "quorum", {"x-single-active-consumer": False}, True),
        ((3, 13, 7), "quorum", {}, False),
        (V310, "quorum", {}, False),
        (V43, "quorum", {"x-single-active-consumer": True}, False),
        (V43, "quorum", None, False),  # it may have a single active consumer
        (V43, "classic", {}, False),
        (V43, None, None, False),
    ],
)
def test_a_consumer_is_continued_only_where_that_is_known_to_work(
    version: Version, type_: QueueType | None, arguments: dict[str, object] | None, continues: bool
) -> None:
    work = ExistingQueue("exports", arguments, type=type_)
    assert limits.continues_consumers(version, work) is continues


@pytest.mark.parametrize(
    ("version", "argument", "policy", "limit"),
    [
        (V310, None, None, None),
        (V310, None, 50, 50),
        (V40, None, None, 20),
        (V40, -1, None, None),
        (V40, None, -1, None),
        (V40, -1, 50, 50),
        (V310, 2**31 - 1, None, None),
        (V43, 30, 50, 30),
    ],
)
def test_the_delivery_limit_of_each_version(
    version: Version, argument: int | None, policy: int | None, limit: int | None
) -> None:
    """As 4.3 shows it for each pair: the lower of both, and -1 lower than nothing."""
    arguments = {} if argument is None else {"x-delivery-limit": argument}
    policies = {} if policy is None else {"delivery-limit": policy}
    assert limits.delivery_limit(version, ExistingQueue("exports", arguments, policies, type="quorum")) == limit
    assert limits.delivery_limit(version, ExistingQueue("exports", arguments, policies, type="classic")) is None


@pytest.mark.parametrize(
    ("arguments", "limit", "ids"),
    [
        ({}, None, []),
        ({"x-delivery-limit": 3}, 3, []),
        ({"x-delivery-limit": 3, "x-dead-letter-exchange": ""}, 3, ["rabbitmq.delivery-limit"]),
    ],
)
def test_no_limit_is_an_error_while_the_policy_is_unknown(
    arguments: dict[str, object], limit: int | None, ids: list[str]
) -> None:
    """A policy can remove the default, name a dead-letter exchange, and raise the delivery timeout."""
    (work,) = (planned for planned in plan().queues(V40) if planned.role == "work")
    unknown = ExistingQueue("exports", {"x-queue-type": "quorum", **arguments}, policy_name="prod", type="quorum")
    assert limits.delivery_limit(V40, unknown) == limit
    found = [*risks.delivery_limit(V40, "/", work, unknown, None)]
    assert [(finding.id, finding.level) for finding in found] == [(id_, "warning") for id_ in ids]


@pytest.mark.parametrize("arguments", [{"x-message-ttl": 60_000}, {"x-max-length": 7}, {"x-max-length-bytes": 7}])
def test_a_loss_that_a_policy_can_prevent_is_only_a_warning_while_the_policy_is_unknown(
    arguments: dict[str, object],
) -> None:
    (work,) = (planned for planned in plan().queues(V40) if planned.role == "work")
    (warning,) = risks.losses(work, ExistingQueue("exports", arguments))
    (error,) = risks.losses(work, ExistingQueue("exports", arguments, {}))
    assert (warning.level, warning.loses) == ("warning", "jobs")
    assert "Jobs in 'exports' can be lost " in warning.what
    assert (error.level, error.what) == ("error", warning.what.replace("can be lost", "are lost"))


def test_the_remedy_is_the_line_for_that_version() -> None:
    queue = ExistingQueue("pay ments.v2", {}, {}, type="quorum")
    old = limits.longer_timeout(V310, "/", queue, 3 * HOUR)
    assert "consumer_timeout = 11700000 into rabbitmq.conf" in old
    assert "rabbitmqctl eval 'application:set_env(rabbit, consumer_timeout, 11700000).'" in old
    words = shlex.split(limits.longer_timeout(V312, "shop", queue, 3 * HOUR))
    assert words[:4] == ["rabbitmqctl", "set_policy", "-p", "shop"]
    assert words[5:] == [r"^pay\ ments\.v2$", '{"consumer-timeout": 11700000}', "--apply-to", "queues"]


def test_a_queue_whose_policy_is_unknown_gets_no_line_that_would_replace_the_policy() -> None:
    """A queue that does not exist yet, for example: an operator's policy can match its name already."""
    remedy = limits.longer_timeout(V312, "shop", ExistingQueue("exports", {}, type="quorum"), 3 * HOUR)
    condition, _, line = remedy.partition("; otherwise ")
    listed = "if a policy matches queue 'exports' (rabbitmqctl list_policies -p shop), "
    assert condition == listed + 'set "consumer-timeout": 11700000 in this policy'
    assert line == limits.longer_timeout(V312, "shop", ExistingQueue("exports", {}, {}, type="quorum"), 3 * HOUR)


def test_one_policy_applies_to_a_queue_so_that_an_existing_one_is_named() -> None:
    queue = ExistingQueue("exports", {}, {"max-length": 5}, policy_name="shop", type="quorum")
    assert limits.longer_timeout(V312, "/", queue, None).startswith(
        "set \"consumer-timeout\": 604800000 in policy 'shop'"
    )
    assert limits.no_limit(V40, "/", queue).startswith("set \"delivery-limit\": -1 in policy 'shop'")


def test_a_limit_that_only_the_policy_sets_is_removed_from_the_policy() -> None:
    """The queue itself has none, as we declare it: to delete it would help nothing."""
    queue = ExistingQueue(
        "exports", {"x-delivery-limit": -1}, {"delivery-limit": 20}, policy_name="shop", type="quorum"
    )
    assert limits.no_limit(V40, "/", queue).startswith("remove delivery-limit from policy 'shop'")


def test_hosts_that_report_different_cluster_names_are_an_error() -> None:
    assert names_finding({"a:5672": "shop", "b:5672": "shop"}) == []
    (finding,) = names_finding({"b:5672": "rabbit@b", "a:5672": "rabbit@a"})
    assert finding.level == "error"
    assert "'rabbit@b' from b:5672, 'rabbit@a' from a:5672" in finding.what
    assert finding.remedy.startswith("rabbitmqctl set_cluster_name rabbit@a;")


@pytest.mark.parametrize(
    ("product", "version"), [("RabbitMQ", "3.9.27"), ("RabbitMQ", ""), ("LavinMQ", "4.0.0"), ("RabbitMQ", "3.8.0-rc.1")]
)
def test_a_broker_that_would_lose_copies_is_refused_before_anything_is_asked_of_it(product: str, version: str) -> None:
    parameters = pika.ConnectionParameters(heartbeat=60)
    properties = {"product": product, "version": version, "cluster_name": "shop"}
    connection: Any = SimpleNamespace(_impl=SimpleNamespace(server_properties=properties, params=parameters))
    (finding,) = find(connection, plan())
    assert finding.level == "error"
    assert f"Expected RabbitMQ 3.10 or newer, got {product}" in finding.what
    with pytest.raises(ConfigError) as raised:
        prepare(connection, plan())
    assert raised.value.findings == (finding,)


def test_a_difference_is_reported_in_both_directions() -> None:
    (planned,) = (planned for planned in plan().queues(V40) if planned.role == "dead")
    actual = ExistingQueue("exports.dead", {"x-queue-type": "quorum", "x-max-length": 5})
    found = differences(planned, actual)
    assert found == [Difference("x-delivery-limit", -1, None), Difference("x-max-length", None, 5)]
    assert str(found[0]) == "x-delivery-limit: expected -1, got none"
    assert differences(planned, ExistingQueue("exports.dead")) == []
