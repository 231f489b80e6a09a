"""RocketMQ's rules for names, each at its border, and names that a message proposes; no broker is asked."""

from __future__ import annotations

import re
import string
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steadyworker.adapter import QueueSpec
from steadyworker.errors import ConfigError
from steadyworker_rocketmq.names import (
    SYSTEM_GROUPS,
    SYSTEM_PROPERTIES,
    SYSTEM_TOPICS,
    QueueNames,
    is_system_group,
    is_system_property,
    is_system_topic,
    names_of,
    problem_of_key,
    problem_of_producer_group,
    problem_of_tag,
    problem_of_topic,
    problems,
    shorter,
)

VALID = set(string.ascii_letters + string.digits + "_-")
CONTROLS = ["\x00", "\x01", "\x02", "\t", "\n", "\x1f", "\x7f", "\x85", "\x9f", "\ud800", "\udce9"]


def made(queue: str, group: str | None = None, dead: str | None = None) -> QueueNames:
    return names_of(QueueSpec(queue, f"{queue}.dead" if dead is None else dead), group)


def refused(queue: str, group: str | None = None, dead: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        made(queue, group, dead)
    return str(caught.value)


def proposed(text: str) -> str:
    found = re.search(r"for example to '([^']*)'\.", text)
    assert found
    return found[1]


# --- The names of a Worker --------------------------------------------------------------------------------------------


def test_the_names_come_from_the_queue() -> None:
    assert made("exports") == QueueNames("exports", "exports-later", "exports-dead", "exports", "exports-later")


def test_the_group_and_the_dead_letters_can_have_names_of_their_own() -> None:
    assert made("exports", "night", "lost") == QueueNames("exports", "exports-later", "lost", "night", "night-later")
    assert made("exports", "shop-{queue}").group == "shop-exports"


def test_the_default_for_dead_letters_has_no_dot() -> None:
    """A topic's name has none; a dot in any other name is refused with a name that would do."""
    assert made("exports", dead="exports.dead").dead == "exports-dead"
    text = refused("exports", dead="export.dead")
    assert "dead_letter_queue" in text
    assert proposed(text) == "export-dead"


@pytest.mark.parametrize("dead", ["exports", "Exports", "EXPORTS-LATER"])
def test_dead_letters_are_in_a_topic_of_their_own(dead: str) -> None:
    """Also where a broker's file system does not distinguish capitals from small letters: a topic is a folder."""
    assert proposed(refused("exports", dead=dead)) == "exports-dead"


@pytest.mark.parametrize(
    ("queue", "good"),
    [
        ("exports\n", "exports"),
        ("a b", "a-b"),
        ("pay.exports", "pay-exports"),
        ("a||b", "a-b"),
        ("50%", "50"),
        ("\udce9xports", "xports"),
        ("экспорт", "jobs"),
        ("", "jobs"),
        (".", "jobs"),
        ("%RETRY%x", "RETRY-x"),
        ("%DLQ%x", "DLQ-x"),
        ("rmq_sys_x", "jobs-rmq_sys_x"),
        ("TBW102", "jobs-TBW102"),
        ("TBW102.", "jobs-TBW102"),
        ("CID_RMQ_SYS_x", "jobs-CID_RMQ_SYS_x"),
        ("DEFAULT_CONSUMER", "jobs-DEFAULT_CONSUMER"),
        ("exports-later", "exports-later-jobs"),
        ("exports.later", "exports-later-jobs"),
    ],
)
def test_a_name_with_other_characters_or_of_rocketmqs_own_is_refused_with_one_that_would_do(
    queue: str, good: str
) -> None:
    text = refused(queue)
    assert f"got {queue!r}, whose length is {len(queue)} (at most 114): rename the queue" in text
    assert proposed(text) == good
    assert made(good)


@pytest.mark.parametrize("name", ["exports\n", "a b", "%RETRY%x", "\udce9", "", "x-later", "x|y"])
def test_the_group_and_the_dead_letters_have_the_same_rule(name: str) -> None:
    text = refused("exports", group=name)
    assert "Expected a consumer group " in text
    assert "change the option group of the broker's URL" in text
    assert made("exports", group=proposed(text))
    text = refused("exports", dead=name)
    assert "Expected a dead-letter queue " in text
    assert made("exports", dead=proposed(text))


@pytest.mark.parametrize("group", sorted(SYSTEM_GROUPS))
def test_rocketmqs_own_groups_are_refused(group: str) -> None:
    assert "not one of RocketMQ's own" in refused("exports", group=group)
    assert made("exports", dead=group).dead == group


@pytest.mark.parametrize("topic", sorted(SYSTEM_TOPICS))
def test_rocketmqs_own_topics_are_refused(topic: str) -> None:
    assert "not one of RocketMQ's own" in refused("exports", dead=topic)
    assert made("exports", group=topic).group == topic


# --- Lengths ----------------------------------------------------------------------------------------------------------


def test_a_queues_name_has_at_most_114_characters() -> None:
    """The group of its delayed messages has 6 more."""
    assert made("q" * 114)
    text = refused("q" * 115)
    assert text.startswith(f"Expected a queue name of at most 114 characters, got '{'q' * 115}', which has 115: ")
    assert "RocketMQ's limit for a consumer group is 120: 4.9 refuses each retry of a longer one" in text
    assert made(proposed(text))


def test_with_a_group_of_its_own_a_queues_name_has_at_most_121_characters() -> None:
    assert made("q" * 121, "g" * 114)
    text = refused("q" * 122, "g")
    assert "queue name of at most 121 characters" in text
    assert "RocketMQ's limit for a topic is 127" in text
    assert made(proposed(text), "g")


def test_a_group_has_at_most_114_characters() -> None:
    assert made("exports", "g" * 114)
    text = refused("exports", "g" * 115)
    assert "consumer group of at most 114 characters" in text
    assert "RocketMQ's limit for a consumer group is 120" in text
    assert made("exports", proposed(text))


def test_a_limit_that_leaves_room_for_delayed_messages_is_explained() -> None:
    """Only a proxy needs names for them: without one, queue and group may be 6 characters longer."""
    room = "114 leave room for '-later', which rocketmq+grpc: appends for delayed messages, and rocketmq: does not"
    for text in (refused("q" * 115), refused("exports", "g" * 115), refused("exports", "g" * 200)):
        assert room in text
    assert "leave room" not in refused("exports", dead="d" * 128)


@pytest.mark.parametrize(("queue", "group", "longest"), [("q", None, 120), ("q", "g", 122), ("exports", "g", 120)])
def test_without_delayed_messages_names_may_be_longer(queue: str, group: str | None, longest: int) -> None:
    def name(length: int) -> tuple[str, str | None]:
        return (queue, "g" * length) if queue == "exports" else ("q" * length, group)

    of_queue, of_group = name(longest)
    assert names_of(QueueSpec(of_queue, f"{of_queue}.dead"), of_group, has_later=False).later
    of_queue, of_group = name(longest + 1)
    with pytest.raises(ConfigError) as caught:
        names_of(QueueSpec(of_queue, f"{of_queue}.dead"), of_group, has_later=False)
    assert f" of at most {longest} characters" in str(caught.value)
    assert "leave room" not in str(caught.value)


def test_a_dead_letter_queue_has_at_most_127_characters() -> None:
    assert made("exports", dead="d" * 127)
    text = refused("exports", dead="d" * 128)
    assert "dead-letter queue of at most 127 characters" in text
    assert made("exports", dead=proposed(text))


def test_a_group_of_group_topic_and_tags_is_named_as_the_cause() -> None:
    """It became 149 bytes as a retry topic, and every retry was lost."""
    group = f"payments_exports_{'_'.join(f'tag{number:02}' for number in range(21))}"
    text = refused("exports", group)
    assert len(group) == 142, group
    assert f"got '{group}', which has 142" in text
    assert (
        "The group contains the topic's name 'exports' and more, like one that is made of group, topic and tags" in text
    )
    assert made("exports", proposed(text))
    assert "group, topic and tags" in refused("exports", "payments_exports_a||b")
    assert "group, topic and tags" not in refused("exports", "g" * 142)
    assert made("exports", "payments_exports_a")


def test_every_problem_is_named() -> None:
    assert len([*problems(QueueNames("q" * 200, "q" * 206, "d" * 200, "g" * 200, "g" * 206))]) == 3


def test_the_longest_names_of_all_just_fit() -> None:
    """A proxy's retry topic then has exactly 255 characters, which is its limit."""
    longest = QueueNames("q" * 121, "q" * 121 + "-later", "d" * 127, "g" * 114, "g" * 114 + "-later")
    assert not [*problems(longest)]
    assert len(f"%RETRY%{'g' * 120}_{'q' * 127}") == 255
    assert len([*problems(replace(longest, work="q" * 122))]) == 1
    assert len([*problems(replace(longest, group="g" * 115))]) == 1


@given(st.text(min_size=1, max_size=300), st.one_of(st.none(), st.text(max_size=300)))
@example("q" * 300, "g" * 300)
@example("x-later", None)
@example("TBW102", "TBW102")
def test_a_user_who_follows_the_messages_arrives(queue: str, group: str | None) -> None:
    for _ in range(4):
        try:
            names = made(queue, group)
        except ConfigError as error:
            good = proposed(str(error))
            queue, group = (good, group) if "rename the queue" in str(error) else (queue, good)
        else:
            assert not [*problems(names)]
            return
    raise AssertionError((queue, group))


# --- Names of others --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A-b_9", "x-later", "t" * 127, "DEFAULT_CONSUMER"])
def test_valid_topics_of_others(name: str) -> None:
    assert problem_of_topic(name) is None


@pytest.mark.parametrize(
    "name", ["", "t" * 128, "a b", "a\n", "%RETRY%x", "a|b", "a.b", "\udce9", *sorted(SYSTEM_TOPICS)]
)
def test_invalid_topics_of_others(name: str) -> None:
    text = problem_of_topic(name)
    assert text
    assert problem_of_topic(proposed(text)) is None


def test_a_group_of_producers_has_no_topics_of_its_own() -> None:
    assert problem_of_producer_group("g" * 255) is None
    for name in ("g" * 256, "a\n", "CID_RMQ_SYS_x", "%LMQ%x", "DEFAULT_PRODUCER"):
        text = problem_of_producer_group(name)
        assert text
        assert problem_of_producer_group(proposed(text)) is None


def test_system_topics_and_groups() -> None:
    for name in ("RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%g", "%DLQ%g", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"):
        assert is_system_topic(name)
    assert not is_system_topic("exports")
    assert not is_system_topic("RETRY")
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group("CID_x")


# --- Tags, keys, properties -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["a", "a b", "*", "ä", "x" * 1000, "%", "a:b"])
def test_valid_tags(tag: str) -> None:
    assert problem_of_tag(tag) is None


@pytest.mark.parametrize(
    "tag", ["", " ", "\u3000", "a|b", "a||b", "|", *CONTROLS, *(f"a{control}" for control in CONTROLS)]
)
def test_invalid_tags(tag: str) -> None:
    assert problem_of_tag(tag)


@pytest.mark.parametrize("key", ["a", "a|b", "ä", "x" * 1000, "2026-11-24:1"])
def test_valid_keys(key: str) -> None:
    assert problem_of_key(key) is None


@pytest.mark.parametrize("key", ["", " ", "a b", "a ", " a", "\u3000", *(f"a{control}" for control in CONTROLS)])
def test_invalid_keys(key: str) -> None:
    assert problem_of_key(key)


@pytest.mark.parametrize(
    "name",
    [
        *sorted(SYSTEM_PROPERTIES),
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_DEL_UNIQKEY",
        "__RMQ.TRANSIENT.TOPIC_SYS_FLAG",
    ],
)
def test_properties_with_a_meaning_for_rocketmq(name: str) -> None:
    assert is_system_property(name)


@pytest.mark.parametrize(
    "name", ["sw-job-key", "keys", "Keys", "DELAYED", "x-TIMER_DELAY_SEC", "TIMER", "", "traceparent"]
)
def test_properties_of_users(name: str) -> None:
    assert not is_system_property(name)


def test_no_copy_carries_the_mark_of_a_transaction() -> None:
    """With it, a copy would become a half message, which no consumer ever gets."""
    assert {"TRAN_MSG", "PGROUP", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "__transactionId__"} <= SYSTEM_PROPERTIES


# --- shorter ----------------------------------------------------------------------------------------------------------


def test_a_shorter_name_stays_the_same_in_every_version_of_steadyworker() -> None:
    """A group that got another name would read all messages a second time."""
    assert shorter("q" * 130, 20) == "qqqqqqqqqqq-3b45cff2"
    assert shorter("exports", 7) == "exports"
    assert shorter("a b", 20) == "a-b-c8687a08"


@given(st.text(max_size=300), st.integers(9, 255))
def test_a_shorter_name_is_valid_stable_and_short(name: str, limit: int) -> None:
    found = shorter(name, limit)
    assert 0 < len(found) <= limit
    assert set(found) <= VALID
    assert shorter(name, limit) == found
    assert shorter(found, limit) == found
    if len(name) <= limit and name and set(name) <= VALID:
        assert found == name
    else:
        assert re.fullmatch(r"(?:.*-)?[0-9a-f]{8}", found)


@given(st.lists(st.text(max_size=150), min_size=2, max_size=5, unique=True), st.integers(20, 120))
def test_two_names_stay_two(names: list[str], limit: int) -> None:
    assert len({shorter(name, limit) for name in names}) == len(names)
