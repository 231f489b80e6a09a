"""The rules for names of queues, and the queue for each message. Both brokers create a queue at its first use."""

from __future__ import annotations

from dataclasses import replace

from steadyworker.adapter import OutgoingMessage, QueueSpec, Target
from steadyworker.errors import ConfigError
from steadyworker.names import QUEUE_NAME

# Both brokers accept more than this rule.
# But they read `,` as a list of queues, `*`, `>` and `#` as wildcards, `?` as options and `::` as an address. They remove outer blanks.
QUEUE = replace(
    QUEUE_NAME,
    kind="queue name for STOMP (without /queue/, blanks and , * > # ? & : ::)",
    pattern=r"(?!/)[^\s,*>#?&:\x00-\x20\x7f-\x9f\ud800-\udfff]+",
    max_bytes=200,
    reserved_prefixes=("ActiveMQ.", "activemq.", "$sys."),
)


def check_names(spec: QueueSpec) -> None:
    """Raise ConfigError if one of the two names of the Worker's queues is invalid, or if both names are equal."""
    for name in (spec.queue, spec.dead_letter_queue):
        if (problem := QUEUE.problem(name)) is not None:
            raise ConfigError(problem, id="config.queue-name")
    if spec.queue == spec.dead_letter_queue:
        raise ConfigError(
            f"Expected a dead-letter queue other than the work queue, got {spec.dead_letter_queue!r}: name another.",
            id="config.queue-name",
        )


def queue_of(spec: QueueSpec, message: OutgoingMessage) -> str:
    """Return the queue for a message. A delayed message waits in the broker's scheduler, which then sends it to the work queue."""
    return spec.dead_letter_queue if message.to is Target.DEAD else spec.queue
