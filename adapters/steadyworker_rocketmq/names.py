"""
What RocketMQ allows as a name, a tag, a key or a property, as data; and the names of a Worker's topics and groups.

A broker makes more names from ours, and they can be too long although ours are not.
It finds that out late: before 5.1 it refuses each retry of a group of 121 characters, and the client library drops the message.
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

SteadyWorker's default for dead letters is `<queue>.dead`; a topic's name has no dot, so that name becomes `<queue>-dead`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from steadyworker.adapter import QueueSpec
from steadyworker.errors import ConfigError

Version = tuple[int, ...]

LATER, DEAD = "-later", "-dead"

# The broker also allows % and |, which it uses itself; `$` in its expression would accept a line end, `fullmatch` does not.
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_OTHERS = re.compile(r"[^A-Za-z0-9_-]+")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DIGEST = 8
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class LengthRule:
    """
    The longest name of one kind.

    Attributes:
        what: The kind.
        form: The name, with `{topic}` and `{group}`.
        limit: The number of characters, which are ASCII.
        why: What follows from a longer name.
        since: The first version with this rule.
        before: The first version without it; None if no version is.
        assumed: The rule also applies before the broker's version is known.
    """

    what: str
    form: str
    limit: int
    why: str
    since: Version = (0,)
    before: Version | None = None
    assumed: bool = True

    def applies(self, version: Version | None) -> bool:
        """Return whether brokers of this version have the rule; None stands for an unknown version."""
        if version is None:
            return self.assumed
        return self.since <= version and (self.before is None or version < self.before)


_REFUSED = "the broker refuses its messages as MESSAGE_ILLEGAL"

LENGTHS = (
    LengthRule("topic", "{topic}", 127, _REFUSED),
    LengthRule("retry topic", "%RETRY%{group}", 127, "before 5.1 the broker refuses each retry", before=(5, 1)),
    LengthRule("retry topic", "%RETRY%{group}", 255, _REFUSED, since=(5, 1)),
    LengthRule("group", "{group}", 120, "5.4 delivers nothing to a longer one", since=(5, 1)),
    LengthRule("dead-letter topic", "%DLQ%{group}", 127, "the broker loses the dead letter"),
    LengthRule(
        "proxy's retry topic", "%RETRY%{group}_{topic}", 127, _REFUSED, since=(5, 0), before=(5, 1), assumed=False
    ),
    LengthRule("proxy's retry topic", "%RETRY%{group}_{topic}", 255, _REFUSED, since=(5, 1)),
    LengthRule("group", "{group}", 255, "the client library refuses it"),
)
"""
The limits of all versions.

5.0 has the limit of 127 for a proxy's retry topic, too.
It is not assumed, because then a queue's name could have only 53 characters; `problems(names, version)` has it.
"""

PROPERTIES_BYTES = 32_767
"""A broker's limit for all properties of a message, as the broker encodes them, with those that the broker adds."""

PROXY_PROPERTIES, PROXY_PROPERTIES_BYTES = 128, 16_384
"""The limits of a proxy for the user's properties of a message: their number, and the bytes of names and values."""

BODY_BYTES = 4 << 20
"""The limit of a broker for a body (`maxMessageSize`); rocketmq-client-python has 128 KiB until it is set."""

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
        # What a sender sets through its client library.
        *("KEYS", "TAGS", "WAIT", "DELAY", "INSTANCE_ID", "MSG_TYPE", "__SHARDINGKEY", "TRACE_CONTEXT", "TTL"),
        *("CORRELATION_ID", "REPLY_TO_CLIENT", "ARRIVE_TIME", "PUSH_REPLY_TIME", "BUYER_ID", "__STARTDELIVERTIME"),
        # Retries and dead letters.
        *("RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "ORIGIN_MESSAGE_ID"),
        *("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "CONSUME_START_TIME", "DUP_INFO"),
        # Transactions: with TRAN_MSG, any copy becomes a half message.
        *("TRAN_MSG", "PGROUP", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "__transactionId__"),
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        # What the broker and the proxy add.
        *("MIN_OFFSET", "MAX_OFFSET", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "MSG_REGION", "TRACE_ON"),
        *("UNIQ_KEY", "EXTEND_UNIQ_INFO", "CLUSTER", "REDIRECT", "PROPERTY_FORWARD_QUEUE_ID"),
        *("POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "__BORNHOST", "BORN_TIMESTAMP", "__CRC32#"),
        *("INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"),
    }
)
"""The properties that RocketMQ itself reads; a copy must not have them. `is_system_property` also knows the prefixes."""

_SYSTEM_PROPERTY_PREFIXES = ("TIMER_", "__RMQ.TRANSIENT.")


@dataclass(frozen=True, slots=True)
class Names:
    """
    The names of one Worker's topics and consumer groups.

    Attributes:
        work: The topic of jobs.
        later: The topic of messages that wait, with the gRPC driver.
        dead: The topic of dead letters.
        group: The consumer group of `work`.
        later_group: The consumer group of `later`.
        has_later: The driver uses `later` and `later_group`; without them, queue and group may be 6 characters longer.
    """

    work: str
    later: str
    dead: str
    group: str
    later_group: str
    has_later: bool = True


@dataclass(frozen=True, slots=True)
class _Source:
    """A name that the user chose, and from which other names are made."""

    kind: str
    name: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Made:
    """
    A name that is made from a source; `longest` is the largest number of characters of the source with which it fits.

    `is_later` marks a name for delayed messages.
    """

    rule: LengthRule
    name: str
    source: _Source
    longest: int
    is_later: bool = False

    @property
    def is_broken(self) -> bool:
        """The name is too long, and this source can repair that."""
        return len(self.name) > self.rule.limit and len(self.source.name) > self.longest


def names_of(spec: QueueSpec, group: str | None, *, has_later: bool = True) -> Names:
    """
    Return the names for a Worker's queue; `group` is the option of the URL, in which `{queue}` stands for the queue's name.

    Raises:
        ConfigError: RocketMQ does not accept a name, or a name that is made from it; the message has a name that it accepts.
    """
    queue, dead = spec.queue, spec.dead_letter_queue
    group = queue if group is None else group.replace("{queue}", queue)
    names = Names(
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


def problems(names: Names, version: Version | None = None) -> Iterator[str]:
    """Yield each problem of the names for brokers of this version; None stands for an unknown version."""
    queue = _Source("queue name", names.work, "rename the queue")
    group, dead = queue, queue
    if names.group != names.work:
        group = _Source("consumer group", names.group, "change the option group of the broker's URL")
    if names.dead != names.work + DEAD:
        dead = _Source("dead-letter queue", names.dead, "change the Worker's dead_letter_queue")
    made = [*_made(names, queue, group, dead, version)]
    for source in dict.fromkeys((queue, group, dead)):
        of_source = [each for each in made if each.source == source]
        longest = min(each.longest for each in of_source)
        hint = _hint(names) if source.kind == "consumer group" else ""
        if (problem := _problem_of_text(source, longest, work=names.work)) is not None:
            yield problem + hint
        elif (broken := next((each for each in of_source if each.is_broken), None)) is not None:
            room = any(each.is_later for each in of_source if each.longest == longest)
            yield _too_long(broken, longest, room=room) + hint
    if names.dead.casefold() in {names.work.casefold(), names.later.casefold()}:
        yield (
            f"Expected a dead-letter queue other than {names.work!r} and {names.later!r}, also without regard to case, "
            f"got {names.dead!r}: change the Worker's dead_letter_queue, for example to {names.work + DEAD!r}."
        )


def _made(names: Names, queue: _Source, group: _Source, dead: _Source, version: Version | None) -> Iterator[_Made]:
    """Yield each name that the broker will see, with the source from which it is made."""
    for rule in LENGTHS:
        if not rule.applies(version):
            continue
        of_topic, of_group = "{topic}" in rule.form, "{group}" in rule.form
        pairs = ((names.work, names.group), (names.later, names.later_group))
        for is_later, (topic, member) in enumerate(pairs if names.has_later else pairs[:1]):
            name = rule.form.format(topic=topic, group=member)
            left = rule.limit - len(name)
            if of_topic and of_group:
                # Both names can be too long; each may have half of the room, and what the other one does not need.
                half = (left + len(names.work) + len(names.group)) // 2
                yield _Made(rule, name, queue, half if group == queue else max(half, left + len(names.work)))
                yield _Made(rule, name, group, half if group == queue else max(half, left + len(names.group)))
            else:
                source = queue if of_topic else group
                yield _Made(rule, name, source, left + len(source.name), bool(is_later))
        if not of_group:
            name = rule.form.format(topic=names.dead)
            yield _Made(rule, name, dead, rule.limit - len(name) + len(dead.name))


def _too_long(broken: _Made, longest: int, *, room: bool = False) -> str:
    """Return the problem with the length of a name, as a sentence; `room` if the limit leaves room for delayed messages."""
    source, rule = broken.source, broken.rule
    cause = f"RocketMQ's limit is {rule.limit}"
    if broken.name != source.name:
        cause = f"the {rule.what} {_shown(broken.name)} would have {len(broken.name)}, and the limit is {rule.limit}"
    if room:
        cause += f"; {longest} leave room for {LATER!r}, which rocketmq+grpc: appends for delayed messages, and rocketmq: does not"
    return (
        f"Expected a {source.kind} of at most {longest} characters, got {_shown(source.name)}, which has {len(source.name)}: "
        f"{cause} ({rule.why}); {source.remedy}, for example to {shorter(source.name, longest)!r}."
    )


def _problem_of_text(source: _Source, longest: int, *, work: str | None) -> str | None:
    """Return the problem with the characters of the name, as a sentence; `work` is the Worker's queue, if it is a Worker's name."""
    name = source.name
    if _is_system(source.kind, name):
        expected = f"a {source.kind} that is not one of RocketMQ's own"
    elif not _NAME.fullmatch(name):
        expected = f"a {source.kind} of ASCII letters, digits, _ and - only"
    elif work is not None and name.endswith(LATER):
        expected = (
            f"a {source.kind} that does not end with {LATER!r}, because that ending marks the topic of delayed messages"
        )
    else:
        return None
    good = _cleaned(name)
    if _is_system(source.kind, good):
        good = f"jobs-{good}"
    if work is not None and good.endswith(LATER):
        good += "-jobs"
    if source.kind == "dead-letter queue" and work is not None and good.casefold() == work.casefold():
        good += DEAD
    return (
        f"Expected {expected}, got {_shown(name)}, whose length is {len(name)} (at most {longest}): "
        f"{source.remedy}, for example to {shorter(good, longest)!r}."
    )


def _is_system(kind: str, name: str) -> bool:
    if kind == "queue name":  # it can be the group, too
        return is_system_topic(name) or is_system_group(name)
    return is_system_group(name) if kind.endswith("group") else is_system_topic(name)


def _hint(names: Names) -> str:
    """Return a sentence about a group that is made from group, topic and tags; else an empty text."""
    if names.work and names.work in names.group:
        return (
            f" The group contains the topic's name {_shown(names.work)} and more, like one that is made of group, topic and tags; "
            "without the option group, the group is the queue's name."
        )
    return ""


def problem_of_topic(name: str) -> str | None:
    """Return the problem with another application's topic, as a sentence; None for a valid one."""
    return _problem_of_one(_Source("topic", name, "change it"), LENGTHS[0])


def problem_of_producer_group(name: str) -> str | None:
    """Return the problem with a group of producers, which has no topics of its own, as a sentence; None for a valid one."""
    return _problem_of_one(_Source("producer group", name, "change it"), LENGTHS[-1])


def _problem_of_one(source: _Source, rule: LengthRule) -> str | None:
    if (problem := _problem_of_text(source, rule.limit, work=None)) is not None:
        return problem
    made = _Made(rule, source.name, source, rule.limit)
    return _too_long(made, rule.limit) if made.is_broken else None


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
    """Return whether RocketMQ uses this topic itself: no job and no user's message belongs there."""
    return name in SYSTEM_TOPICS or name.startswith(BROKER_PREFIXES)


def is_system_group(name: str) -> bool:
    """Return whether RocketMQ uses this group itself."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIXES)


def is_system_property(name: str) -> bool:
    """Return whether this property has a meaning for RocketMQ, so that no copy may carry it."""
    return name in SYSTEM_PROPERTIES or name.startswith(_SYSTEM_PROPERTY_PREFIXES)


def shorter(name: str, limit: int) -> str:
    """
    Return a valid name of at most `limit` characters; always the same one for a name.

    A valid name that fits stays as it is.
    Any other name becomes its readable beginning, and 8 hex digits of its SHA-256, so that two names stay two.
    """
    if len(name) <= limit and _NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    head = _cleaned(name)[: max(0, limit - _DIGEST - 1)].rstrip("-_")
    return f"{head}-{digest}" if head else digest[: max(0, limit)]


def _cleaned(name: str) -> str:
    """Return the name with `-` in place of each run of other characters."""
    return _OTHERS.sub("-", name).strip("-") or "jobs"


def _shown(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}…"
