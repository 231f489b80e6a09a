"""
RocketMQ's rules for names, tags, keys and properties, as data; and the names of a Worker's topics and groups.

A broker makes more names from the Worker's names. The broker's names can be too long even if the Worker's names are valid.
The broker refuses such names late. If a group has 121 characters, 4.9.7 refuses each of its retries, and the client library drops the message.
5.4.0 delivers nothing to such a group.
So all names are checked when the configuration is read.

| name | made from | by |
|---|---|---|
| work topic | the queue | us |
| `<queue>-later` | the topic of delayed messages, with a proxy only | us |
| `<queue>-dead`, or the Worker's `dead_letter_queue` | the topic of dead letters | us |
| group | the queue, or the option `group` of the URL | us |
| `<group>-later` | the group that reads the topic of delayed messages, with a proxy only | us |
| `%RETRY%<group>`, `%DLQ%<group>` | retries and dead letters of the broker | the broker |
| `%RETRY%<group>_<topic>` | retries of the messages that a proxy delivered, `+` in place of `_` in some versions | the broker |

SteadyWorker's default for dead letters is `<queue>.dead`. A topic's name has no dot, so this name becomes `<queue>-dead`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from steadyworker.adapter import QueueSpec
from steadyworker.errors import ConfigError

LATER, DEAD = "-later", "-dead"

# The broker also allows % and |, which it uses itself. The `$` in the broker's expression accepts a line end; `fullmatch` does not.
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_OTHERS = re.compile(r"[^A-Za-z0-9_-]+")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DIGEST = 8
_SHOWN = 300

_LONGEST_TOPIC, _LONGEST_GROUP, _LONGEST_PRODUCERS = 127, 120, 255
"""
The largest numbers of characters of a topic, a consumer group and a group of producers.

If a consumer group were longer, its retry topic would be too long for 4.9.7. Other topics that brokers make stay below the limit.
"""

_WHY_TOPIC = "RocketMQ's limit for a topic is 127"
_WHY_GROUP = "RocketMQ's limit for a consumer group is 120: 4.9 refuses each retry of a longer one, and 5.4 delivers nothing to it"

PROPERTIES_BYTES = 32_767
"""A broker's limit for all properties of a message, in the broker's encoding, including the properties that the broker adds."""

PROXY_PROPERTIES, PROXY_PROPERTIES_BYTES = 128, 16_384
"""The limits of a proxy for the user's properties of a message: their number, and the bytes of names and values."""

BODY_BYTES = 4 << 20
"""A broker's limit for a body (`maxMessageSize`). rocketmq-client-python has a limit of 128 KiB unless the user sets another limit."""

BROKER_PREFIXES = ("%RETRY%", "%DLQ%", "%LMQ%", "rmq_sys_")
"""The beginnings of the topics that a broker makes and uses itself."""

SYSTEM_TOPICS = frozenset(
    {
        *("TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC"),
        *("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX_V2", "RMQ_SYS_TRACE_TOPIC"),
        *("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
    }
)

SYSTEM_GROUP_PREFIXES = (*BROKER_PREFIXES, "CID_RMQ_SYS_")

SYSTEM_GROUPS = frozenset(
    {
        *("DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "__MONITOR_CONSUMER"),
        *("CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP", "CID_SYS_RMQ_TRANS"),
        *("CID_ONS-HTTP-PROXY", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL"),
    }
)

SYSTEM_PROPERTIES = frozenset(
    {
        # Set by a sender through the client library.
        *("KEYS", "TAGS", "WAIT", "DELAY", "INSTANCE_ID", "MSG_TYPE", "__SHARDINGKEY", "TRACE_CONTEXT", "TTL"),
        *("CORRELATION_ID", "REPLY_TO_CLIENT", "ARRIVE_TIME", "PUSH_REPLY_TIME", "BUYER_ID", "__STARTDELIVERTIME"),
        # Retries and dead letters.
        *("RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "ORIGIN_MESSAGE_ID"),
        *("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "CONSUME_START_TIME", "DUP_INFO"),
        # Transactions: with TRAN_MSG, any copy becomes a half message.
        *("TRAN_MSG", "PGROUP", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "__transactionId__"),
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        # Added by the broker and the proxy.
        *("MIN_OFFSET", "MAX_OFFSET", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "MSG_REGION", "TRACE_ON"),
        *("UNIQ_KEY", "EXTEND_UNIQ_INFO", "CLUSTER", "REDIRECT", "PROPERTY_FORWARD_QUEUE_ID"),
        *("POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "__BORNHOST", "BORN_TIMESTAMP", "__CRC32#"),
        *("INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"),
    }
)
"""The properties that RocketMQ itself reads; a copy must not have them. `is_system_property` also knows the prefixes."""

_SYSTEM_PROPERTY_PREFIXES = ("TIMER_", "__RMQ.TRANSIENT.")


@dataclass(frozen=True, slots=True)
class QueueNames:
    """
    The names of one Worker's topics and consumer groups.

    Attributes:
        work: The topic of jobs.
        later: The topic of messages that wait, with the gRPC driver.
        dead: The topic of dead letters.
        group: The consumer group of `work`.
        later_group: The consumer group of `later`.
        has_later: The driver uses `later` and `later_group`. Without them, queue and group may be 6 characters longer.
    """

    work: str
    later: str
    dead: str
    group: str
    later_group: str
    has_later: bool = True


def names_of(spec: QueueSpec, group: str | None, *, has_later: bool = True) -> QueueNames:
    """
    Return the names for a Worker's queue. `group` is the option of the URL, in which `{queue}` stands for the queue's name.

    Raises:
        ConfigError: RocketMQ does not accept a name, or a name that is made from it. The error text proposes a valid name.
    """
    queue, dead = spec.queue, spec.dead_letter_queue
    group = queue if group is None else group.replace("{queue}", queue)
    names = QueueNames(
        work=queue,
        later=queue + LATER,
        dead=queue + DEAD if dead == f"{queue}.dead" else dead,
        group=group,
        later_group=group + LATER,
        has_later=has_later,
    )
    if (problem := next(problems(names), None)) is not None:
        raise ConfigError(problem, id="config.queue-name")
    return names


def problems(names: QueueNames) -> Iterator[str]:
    """Yield each problem of the names, as a sentence that proposes another name."""
    has_own_group, has_own_dead = names.group != names.work, names.dead != names.work + DEAD
    room = len(LATER) if names.has_later else 0
    of_group = _LONGEST_GROUP - room
    of_topic = _LONGEST_TOPIC - max(room, 0 if has_own_dead else len(DEAD))
    why_topic, why_group = _WHY_TOPIC, _WHY_GROUP
    if room:
        left = " leave room for '-later', which rocketmq+grpc: appends for delayed messages, and rocketmq: does not"
        why_topic, why_group = f"{_WHY_TOPIC}; {of_topic}{left}", f"{_WHY_GROUP}; {of_group}{left}"
    # A queue's name is the name of the topic. It is also the name of the group if the URL has no other name for the group.
    longest, why = (of_topic, why_topic) if has_own_group or of_topic < of_group else (of_group, why_group)
    if (problem := _problem("queue name", names.work, longest, why, "rename the queue", work=names.work)) is not None:
        yield problem
    if has_own_group:
        remedy = "change the option group of the broker's URL"
        problem = _problem("consumer group", names.group, of_group, why_group, remedy, work=names.work)
        if problem is not None:
            yield problem + _hint(names)
    if has_own_dead:
        remedy = "change the Worker's dead_letter_queue"
        problem = _problem("dead-letter queue", names.dead, _LONGEST_TOPIC, _WHY_TOPIC, remedy, work=names.work)
        if problem is not None:
            yield problem
    if names.dead.casefold() in {names.work.casefold(), names.later.casefold()}:
        yield (
            f"Expected a dead-letter queue other than {names.work!r} and {names.later!r}, also without regard to case, "
            f"got {names.dead!r}: change the Worker's dead_letter_queue, for example to {names.work + DEAD!r}."
        )


def _problem(kind: str, name: str, longest: int, why: str, remedy: str, *, work: str | None = None) -> str | None:
    """Return the problem with a name, as a sentence; `work` is the Worker's queue, if the name belongs to a Worker."""
    if _is_system(kind, name):
        expected = f"a {kind} that is not one of RocketMQ's own"
    elif not _NAME.fullmatch(name):
        expected = f"a {kind} of ASCII letters, digits, _ and - only"
    elif work is not None and name.endswith(LATER):
        expected = f"a {kind} that does not end with {LATER!r}, because that ending marks the topic of delayed messages"
    elif len(name) > longest:
        return (
            f"Expected a {kind} of at most {longest} characters, got {_shown(name)}, which has {len(name)}: "
            f"{why}; {remedy}, for example to {shorter(name, longest)!r}."
        )
    else:
        return None
    good = _cleaned(name)
    if _is_system(kind, good):
        good = f"jobs-{good}"
    if work is not None and good.endswith(LATER):
        good += "-jobs"
    if kind == "dead-letter queue" and work is not None and good.casefold() == work.casefold():
        good += DEAD
    return (
        f"Expected {expected}, got {_shown(name)}, whose length is {len(name)} (at most {longest}): "
        f"{remedy}, for example to {shorter(good, longest)!r}."
    )


def _is_system(kind: str, name: str) -> bool:
    if kind == "queue name":  # the name can also be the group's
        return is_system_topic(name) or is_system_group(name)
    return is_system_group(name) if kind.endswith("group") else is_system_topic(name)


def _hint(names: QueueNames) -> str:
    """Return a hint for the error if the URL's group contains the topic's name; otherwise return an empty text."""
    if names.work and names.work in names.group:
        return (
            f" The group contains the topic's name {_shown(names.work)} and more, like one that is made of group, topic and tags; "
            "without the option group, the group is the queue's name."
        )
    return ""


def problem_of_topic(name: str) -> str | None:
    """Return the problem with another application's topic, as a sentence; None for a valid topic."""
    return _problem("topic", name, _LONGEST_TOPIC, _WHY_TOPIC, "change it")


def problem_of_producer_group(name: str) -> str | None:
    """Return the problem with a producer group, as a sentence; None for a valid group. A producer group has no topics of its own."""
    return _problem("producer group", name, _LONGEST_PRODUCERS, "RocketMQ's limit is 255", "change it")


def problem_of_tag(tag: str) -> str | None:
    """Return the problem with a message's tag as a sentence; None for a valid tag."""
    if not tag.strip():
        return f"Expected a tag that is not blank, got {_shown(tag)}: leave it out, or give it a letter."
    if "|" in tag:
        return (
            f"Expected one tag without '|', which separates the tags of a subscription, got {_shown(tag)}: change it."
        )
    if _CONTROL.search(tag):
        return f"Expected a tag without control characters, got {_shown(tag)}: remove them."
    return None


def problem_of_key(key: str) -> str | None:
    """Return the problem with one of a message's keys as a sentence; None for a valid key."""
    if not key.strip() or " " in key:
        return f"Expected a key without blanks, which separate two keys, got {_shown(key)}: change it."
    if _CONTROL.search(key):
        return f"Expected a key without control characters, got {_shown(key)}: remove them."
    return None


def is_system_topic(name: str) -> bool:
    """Return whether RocketMQ uses this topic itself. No job and no user's message belongs into such a topic."""
    return name in SYSTEM_TOPICS or name.startswith(BROKER_PREFIXES)


def is_system_group(name: str) -> bool:
    """Return whether RocketMQ uses this group itself."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIXES)


def is_system_property(name: str) -> bool:
    """Return whether RocketMQ itself interprets this property; a copy of a message must not carry such a property."""
    return name in SYSTEM_PROPERTIES or name.startswith(_SYSTEM_PROPERTY_PREFIXES)


def shorter(name: str, limit: int) -> str:
    """
    Return a valid name of at most `limit` characters. The result for a name is always the same.

    A valid name that fits stays unchanged.
    Any other name becomes its readable beginning, and 8 hex digits of its SHA-256, so that two names stay different.
    """
    if len(name) <= limit and _NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    head = _cleaned(name)[: max(0, limit - _DIGEST - 1)].rstrip("-_")
    return f"{head}-{digest}" if head else digest[: max(0, limit)]


def _cleaned(name: str) -> str:
    """Return the name with `-` in place of each sequence of characters that a name may not have."""
    return _OTHERS.sub("-", name).strip("-") or "jobs"


def _shown(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}…"
