"""The publication of many messages: in batches, or from a few threads if the adapter publishes one message at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from steadyworker.adapter import Adapter, OutgoingMessage, PublishesMany
from steadyworker.errors import BrokerUnavailable, NotPublished, PublishFailed

MESSAGES = 500
"""The most messages of one batch."""

BYTES = 1 << 20
"""The most bytes of the bodies in one batch of several messages: as many as the largest message alone may have."""

_THREADS = 8

Results = list[PublishFailed | None]


def publish_all(adapter: Adapter, messages: Sequence[OutgoingMessage]) -> Results:
    """
    Publish messages in batches, in their order, and return the result of each message.

    The result is None if the broker has confirmed the message.
    A batch with an error is the last batch; the results of later messages are NotPublished.
    """
    results: Results = []
    for batch in _batches(messages):
        if any(results):
            results += [NotPublished("An earlier message was not confirmed, so this message was not published.")] * len(
                batch
            )
        else:
            results += _published(adapter, batch)
    return results


def _batches(messages: Sequence[OutgoingMessage]) -> Iterator[list[OutgoingMessage]]:
    batch: list[OutgoingMessage] = []
    size = 0
    for message in messages:
        if batch and (len(batch) == MESSAGES or size + len(message.body) > BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message.body)
    if batch:
        yield batch


def _published(adapter: Adapter, batch: list[OutgoingMessage]) -> Results:
    if isinstance(adapter, PublishesMany):
        try:
            return list(adapter.publish_many(batch))
        except (BrokerUnavailable, ValueError) as error:
            return [NotPublished(str(error))] * len(batch)
    with ThreadPoolExecutor(min(_THREADS, len(batch)), "steadyworker send") as threads:
        return list(threads.map(lambda message: _result(adapter, message), batch))


def _result(adapter: Adapter, message: OutgoingMessage) -> PublishFailed | None:
    try:
        adapter.publish(message)
    except PublishFailed as error:
        return error
    except (BrokerUnavailable, ValueError) as error:
        return NotPublished(str(error))
    return None
