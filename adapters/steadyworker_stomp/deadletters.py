"""
A reader of the dead-letter queues, on its own connections, for one thread. Below, "letter" means dead letter.

There are two queues. The first is the Worker's own. The second is the queue to which the broker itself moves dead letters of all queues.
STOMP has no way to read a message without consuming it, so the reader holds each letter with a separate subscription.

**The end.** A queue does not report to a client how many messages it has. A reader must not confuse a slow broker with an empty queue.
On Classic, the reader browses with a selector that no message matches. Classic sends the mark of the end after the last letter.
On Artemis, the reader asks the broker's management which messages wait in the queue. If the user has no right to ask, a second without a letter counts as the end of the queue.

**The beginning.** If a letter arrives during a reading, the reader leaves the letter to the next reader. So each reading ends.
On Classic, a selector compares the letter's time of arrival with the time of the beginning, both by the broker's clock.
On Artemis, each message has a larger number than the message before. Without the right to ask for the newest number, the reading has no limit.

**Order.** At the end of a subscription, the broker puts the letter back into its old place, and counts no failed delivery.
The reader first ends the subscription that waits for a letter, because that subscription would receive the letters that go back.

**Memory.** While a reader holds letters, Classic keeps these letters in memory. At 70 % of its memory limit, Classic sends no more letters.
If the letters need more memory, a reader receives only the oldest letters. The other letters follow when the oldest letters are replayed or dropped.

**Count.** If a reader is killed, Artemis counts a failed delivery of each letter that the reader held.
At `max-delivery-attempts`, Artemis moves or deletes the letter, even in a dead-letter queue.
So the next reader at once replaces such a letter by a copy. The copy has no failed deliveries, and is the youngest letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from itertools import count
from typing import Self, TypeVar

from steadyworker.adapter import Clock, Delivery, OutgoingMessage, QueueSpec, Redelivered, Target
from steadyworker.errors import LettersHeld, Unsettled
from steadyworker.network import owed
from steadyworker.network.errors import Silent
from steadyworker_stomp.checks.artemis import dead_letter_address, newest, waiting
from steadyworker_stomp.checks.census import has_queue, subscriptions
from steadyworker_stomp.connection import Received, Visit
from steadyworker_stomp.dialects import ARTEMIS, CLASSIC, quoted
from steadyworker_stomp.errors import BrokerError, translated
from steadyworker_stomp.messages import delivery_of, frame_of
from steadyworker_stomp.url import StompUrl

PATIENCE = 300
"""
The heartbeat of a connection that reads dead letters, in seconds.

The heartbeat is long, because the reading thread can work on a dead letter for minutes, and meanwhile sends no heartbeats.
"""

_SOON = 0.05
"""Seconds in which the next letter usually arrives. After this time, the reader asks the broker whether there is a letter."""

_QUIET = 1.0
"""If Artemis does not report how many letters wait: the seconds without a letter after which the queue counts as empty."""

_NEXT_WITHIN = 5.0
"""If Artemis reports that a letter waits: the seconds in which the letter must arrive."""

_ORIGIN = "_AMQ_ORIG_"
"""The prefix of the headers in which Artemis records the origin of a dead letter. A copy in the same queue keeps these headers."""

_CLOCK = "/temp-queue/steadyworker"

Value = TypeVar("Value")
Connect = Callable[[], AbstractContextManager[Visit]]


def patient(url: StompUrl) -> StompUrl:
    """Return the same URL with the heartbeat of a connection that reads dead letters."""
    return replace(url, heartbeat=PATIENCE)


class StompDeadLetters:
    """
    The dead letters of one queue, for use by one thread. At the end of the context, all letters go back to the broker.

    Args:
        hold: Opens a connection that can be idle for minutes.
        ask: Opens a connection for one question. The broker ends the connection if the user has no right to ask.
        spec: The queue, and its dead-letter queue.
        dlq: The queue to which the broker moves dead letters; None to ask the broker.
        publish: The adapter's `publish`.
        clock: The clock.
    """

    def __init__(
        self,
        hold: Connect,
        ask: Connect,
        spec: QueueSpec,
        dlq: str | None,
        publish: Callable[[OutgoingMessage], None],
        clock: Clock,
    ) -> None:
        self._hold = hold
        self._ask = ask
        self._spec = spec
        self._dlq = dlq
        self._publish = publish
        self._clock = clock
        self._open = ExitStack()
        self._readers: dict[str, _LetterReader] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def __iter__(self) -> Iterator[Delivery]:
        for queue in dict.fromkeys(filter(None, (self._spec.dead_letter_queue, self._moved_to()))):
            renewed = False
            for letter in self._letters(queue):
                if self._renew(letter):
                    renewed = True
                else:
                    yield letter
            if renewed:
                yield from self._letters(queue)

    def publish(self, message: OutgoingMessage) -> None:
        """Publish a message with the adapter's `publish`."""
        self._publish(message)

    def drop(self, delivery: Delivery) -> None:
        """Remove this dead letter, and return when the broker has sent a receipt for the acknowledgement."""
        if delivery.unshown is not None:
            raise Unsettled(f"Expected a dead letter whose content arrived, got one without: {delivery.unshown}.")
        reader = self._readers[delivery.queue]
        with translated(reader.place, Unsettled):
            reader.drop(delivery.id)

    def _letters(self, queue: str) -> Iterator[Delivery]:
        """Yield the letters of this Worker in one queue."""
        reader = self._readers.get(queue)
        if reader is None:
            with self._ask() as asked, translated(asked.place):
                if not has_queue(asked, queue):
                    return
            reader = _LetterReader(
                self._open.enter_context(self._hold()), self._ask, queue, self._moved(queue), self._clock
            )
            self._open.callback(reader.give_back)
            self._readers[queue] = reader
        with translated(reader.place):
            reader.begin()
        while True:
            with translated(reader.place):
                letter = reader.next()
            if letter is None:
                return
            if letter.origin == self._spec.dead_letter_queue:
                letter = replace(letter, origin=None)  # The letter's own header names the work queue.
            yield letter

    def _moved_to(self) -> str | None:
        """Return the queue to which the broker moves dead letters; None if it deletes them."""
        if self._dlq:
            return self._dlq
        with self._ask() as asked, translated(asked.place):
            default = asked.dialect.dead_letters
            return default if asked.dialect is CLASSIC else dead_letter_address(asked, self._spec.queue, default)

    def _moved(self, queue: str) -> frozenset[str]:
        """Return the work queues whose letters this reader reads from `queue`; empty to read every letter."""
        mine = self._spec.dead_letter_queue
        return frozenset() if queue == mine else frozenset({self._spec.queue, mine})

    def _renew(self, letter: Delivery) -> bool:
        """
        Replace a letter by a copy, and return whether this was done.

        The letter is replaced if the broker counts a consumer's end as a failed delivery, and the letter's content arrived.
        """
        reader = self._readers[letter.queue]
        if reader.dialect is not ARTEMIS or letter.redelivered is not Redelivered.YES or letter.unshown is not None:
            return False
        with translated(reader.place):
            return reader.renew(letter)


class _LetterReader:
    """
    One dead-letter queue, and the letters that the reader holds from it.

    Args:
        visited: The connection that holds the letters.
        ask: Opens a connection for one question.
        queue: The queue.
        origins: The queues from which the broker moved the letters; letters from other queues are not read. Empty for all letters.
        clock: The clock.
    """

    def __init__(self, visited: Visit, ask: Connect, queue: str, origins: frozenset[str], clock: Clock) -> None:
        self.place = visited.place
        self.dialect = visited.dialect
        self._visited = visited
        self._connection = visited.connection
        self._ask = ask
        self._queue = queue
        self._destination = visited.dialect.destination(queue)
        self._subscribed = visited.dialect.subscribed
        self._origins = origins
        self._clock = clock
        self._selector = ""
        self._newest: int | None = None
        self._numbers = map(str, count(1))
        self._held: dict[str, str] = {}
        self._young: list[str] = []
        self._free: str | None = None
        self._soon = _SOON

    def begin(self) -> None:
        """
        Begin a reading, which leaves out the letters that arrive from now on.

        The reader counts the subscriptions, subscribes, and counts again.
        So if two readers begin at the same time, at least one of them notices the other.

        Raises:
            LettersHeld: The queue has another consumer.
        """
        self._alone()
        if self.dialect is CLASSIC:
            self._selector = f"JMSActiveMQBrokerInTime <= {self._now()}"
        else:
            self._selector = " OR ".join(f"{self.dialect.origin} = {quoted(queue)}" for queue in sorted(self._origins))
            self._newest = self._asked(newest)
        self._subscribed = {**self.dialect.subscribed, **({"selector": self._selector} if self._selector else {})}
        self._free = next(self._numbers)
        self._visited.wait(self._connection.subscribe(self._destination, self._free, self._subscribed))
        self._alone()

    def next(self) -> Delivery | None:
        """
        Return the next letter, and hold it; None if this reader has all letters.

        Raises:
            LettersHeld: Another consumer holds or has consumed some of the letters.
        """
        while True:
            found = self._arrival(self._soon) or self._late() or self._given_back()
            if found is None:
                if not self._end():
                    self._release(self._young)
                    return None
                self._soon = min(4 * self._soon, _NEXT_WITHIN)  # The letter was on its way, and comes again.
            elif self._is_young(found):  # a letter of higher priority overtakes older ones
                self._young.append(found[0]["ack"])
                if not self._old_ones():
                    self._release(self._young)
                    return None
            else:
                headers, body = found
                letter = delivery_of(0, self._queue, self.dialect, headers, body)
                if not self._origins or letter.origin in self._origins:
                    return letter

    def drop(self, id_: str) -> None:
        """Acknowledge a letter, and end the subscription, which would otherwise receive another letter."""
        if (number := self._held.pop(id_, None)) is not None:
            acknowledged = self._connection.ack(id_)
            self._connection.unsubscribe(number)  # before it receives another letter
            self._visited.wait(acknowledged)

    def renew(self, letter: Delivery) -> bool:
        """
        Replace a letter by a copy, and return True.

        If the user may not send to the broker's own queue, hold the letter, and return False.
        If the process is killed in between, letter and copy both stay. Both are one job if the letter has a key.
        """
        origin = {name: text for name, text in letter.headers.items() if name.startswith(_ORIGIN)}
        content, body = frame_of(OutgoingMessage(Target.DEAD, letter.body, letter.headers), self.dialect)
        headers = {**content, **origin}
        if not self._origins:
            self._visited.wait(self._connection.send(self._destination, body, headers))
        else:
            try:
                self._asked(lambda asked: asked.wait(asked.connection.send(self._destination, body, headers)))
            except BrokerError:  # This needs a new connection, because a refusal ends the connection.
                return False
        self.drop(letter.id)
        return True

    def give_back(self) -> None:
        """Release every letter that was not dropped, oldest first."""
        with suppress(BrokerError, Silent, OSError):  # the end of the connection releases the letters, too
            self._end()
            self._release([*self._held])

    # --- Subscriptions -----------------------------------------------------------------------------------------------

    def _end(self) -> bool:
        """
        End the subscription that waits for a letter, and return whether a letter had arrived.

        Such a letter goes back to the broker.
        """
        if (number := self._free) is None:
            return False
        self._free = None
        self._visited.wait(self._connection.unsubscribe(number))
        while (found := self._visited.next(0)) is not None:
            if found[0].get("subscription") == number:
                return True
        return False

    def _release(self, ids: list[str]) -> None:
        """Give these letters back to the broker, in this order, and forget them."""
        numbers = [self._held.pop(id_) for id_ in ids]
        ids.clear()
        for request in [self._connection.unsubscribe(number) for number in numbers]:
            self._visited.wait(request)

    def _arrival(self, within: float, browser: str = "") -> Received | None:
        """
        Return the next letter, and hold it; None at the browser's end, or after `within` seconds without a byte.

        The limit is for bytes and not for letters, because a large letter takes long.
        """
        if self._free is None:
            self._free = next(self._numbers)
            self._connection.listen(self._destination, self._free, self._subscribed, ack="client-individual")
        began = self._clock.monotonic()
        while True:
            left = max(began, self._connection.received_at) + within - self._clock.monotonic()
            found = self._visited.next(max(0.0, left))
            if found is None and left > 0:
                continue  # bytes may have arrived meanwhile
            if found is None:
                break
            headers, body = found
            number = headers.get("subscription", "")
            if number == self._free:
                self._held[headers["ack"]] = number
                self._free = None
                return headers, body
            if number == browser:
                return None
        if browser:
            raise Silent(f"the end of the queue {self._queue!r} was not reached within {within:g} s")
        return None

    # --- The end of the queue ----------------------------------------------------------------------------------------

    def _late(self) -> Received | None:
        """Return a letter that the broker was slow to send, and hold it; None if the broker has no other letter."""
        if self.dialect is CLASSIC:
            number = next(self._numbers)
            nothing = {"browser": "true", "activemq.prefetchSize": "1", "selector": "FALSE"}
            self._connection.listen(self._destination, number, nothing)
            found = self._arrival(owed.ANSWER_WITHIN, number)
            self._visited.wait(self._connection.unsubscribe(number))
            return found
        left = self._old_ones()
        if left is None:
            return self._arrival(_QUIET)
        found = self._arrival(_NEXT_WITHIN if left else 0)
        if left and found is None:
            raise LettersHeld(
                f"Expected another dead letter from queue {self._queue!r} within {_NEXT_WITHIN:g} s, got none: "
                "another program takes messages from it. Stop that program, or try again."
            )
        return found

    def _given_back(self) -> Received | None:
        """Return a letter that another reader held and gave back, and hold it; raise LettersHeld while another reader holds some."""
        return self._late() if self._alone() else None

    def _alone(self) -> bool:
        """Raise LettersHeld if the queue has another consumer; return False if the user has no right to ask."""
        found = self._asked(lambda asked: subscriptions(asked, self._queue))
        others = (found or 0) - len(self._held) - (self._free is not None)
        if others > 0:
            raise LettersHeld(
                f"Expected no other subscription to the dead-letter queue {self._queue!r}, got {others}: wait until the other "
                "`steadyworker dead` command has ended, or stop the program that consumes this queue."
            )
        return found is not None

    def _old_ones(self) -> bool | None:
        """Return whether Artemis has letters for this reading that no consumer holds; None if the user has no right to ask."""
        found = self._asked(lambda asked: waiting(asked, self._queue, self._selector))
        return None if found is None else any(map(self._is_old, found))

    def _is_old(self, number: int) -> bool:
        return self._newest is None or number <= self._newest

    def _is_young(self, found: Received) -> bool:
        """Return whether the letter arrived after the beginning. On Classic, the selector leaves out such letters."""
        return self.dialect is ARTEMIS and not self._is_old(int(found[0]["message-id"].partition(",")[2]))

    def _now(self) -> int:
        """Return the time of Classic's clock, in milliseconds."""
        number = next(self._numbers)
        self._connection.listen(_CLOCK, number, {})
        self._visited.wait(self._connection.send(_CLOCK, b"", {}))
        while (found := self._visited.next(owed.ANSWER_WITHIN)) is not None:
            if found[0].get("subscription") == number:
                self._connection.unsubscribe(number)
                return int(found[0]["timestamp"])
        raise Silent(f"no message to a temporary queue within {owed.ANSWER_WITHIN:g} s")

    def _asked(self, question: Callable[[Visit], Value]) -> Value:
        with self._ask() as asked:
            return question(asked)
