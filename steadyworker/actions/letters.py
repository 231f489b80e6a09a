"""Actions on dead letters: replay and drop, for keys, for all letters, or for letters with these facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from steadyworker.actions.deadletters import DeadLetterQueue, Replayed
from steadyworker.actions.report import ActionReport, Handled, QueueActions, Unless, never
from steadyworker.adapter import Delays
from steadyworker.errors import SteadyWorkerError
from steadyworker.ledger.base import JobId
from steadyworker.ledger.need_words import reason_text
from steadyworker.runner.letters import DeadLetter
from steadyworker.runner.planning import comes_in

Identity = tuple[str, int, str, str]


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """
    The conditions of a selection of dead letters; a selected letter meets all of them.

    Attributes:
        error_class: The last error's class has this name, such as `ValueError`.
        reason: The reason, as the letter or as people have it, or the last error contains this text, in capital or small letters.
        since, before: The job died at `since` or later, and earlier than `before`, in seconds since 1970.
            A letter without a time meets neither condition.
    """

    error_class: str = ""
    reason: str = ""
    since: float | None = None
    before: float | None = None

    @property
    def is_open(self) -> bool:
        """True if every letter fits."""
        return self == LetterChoice()

    def fits(self, letter: DeadLetter) -> bool:
        """Return whether a letter, with the ledger's facts, fits all conditions."""
        if self.error_class and letter.error_class.rpartition(".")[2] != self.error_class.rpartition(".")[2]:
            return False
        if (
            self.reason
            and self.reason.casefold()
            not in "\n".join((letter.reason, reason_text(letter.reason, letter.attempts), letter.error)).casefold()
        ):
            return False
        at = letter.sent_at
        return (self.since is None or (at is not None and at >= self.since)) and (
            self.before is None or (at is not None and at < self.before)
        )


class LetterActions(QueueActions):
    """The actions on the dead letters of one queue."""

    def opened(self, *, bind: bool = True) -> DeadLetterQueue:
        """
        Return the dead letters of the queue; a caller that only reads needs no `bind`, as in `Connections.namespace`.

        Raises UnknownQueue, ConfigError, BrokerUnavailable and LedgerUnavailable.
        """
        queue = self._queue
        return DeadLetterQueue(
            self._links.adapter(queue).dead_letters,
            self._links.ledger(),
            self._links.namespace(queue, bind=bind),
            queue.name,
            key_header=queue.key_header,
            keep_message=None if isinstance(queue.opened_as, str) else queue.opened_as.keep_message,
        )

    def chosen(self, letters: DeadLetterQueue, choice: LetterChoice, *, gone: bool = False) -> list[DeadLetter]:
        """
        Return the dead letters that fit, without their bodies, oldest first; with `gone`, also the jobs whose letter is gone.

        Raises BrokerUnavailable and LettersHeld.
        """
        every = letters.letters(bodies=False)
        found = [letter for letter in every if not letter.unshown and choice.fits(letters.with_facts(letter))]
        return [*found, *(letter for letter in letters.kept() if choice.fits(letter))] if gone else found

    def replay(
        self,
        letters: DeadLetterQueue,
        keys: Sequence[str] | None = None,
        *,
        chosen: Sequence[DeadLetter] | None = None,
        rounds: Mapping[str, int] | None = None,
        gone: bool = False,
        from_start: bool = False,
        delay: float = 0.0,
        each: Callable[[Replayed], None] = lambda _: None,
        unless: Unless = never,
    ) -> ActionReport:
        """
        Replay dead letters, as `DeadLetterQueue.replay` does: the letters of these keys, the letters that `chosen` returned, or all.

        With `rounds`, which has the round of each key, neither another round nor a letter of another job with this key counts.

        Raises SteadyWorkerError if nothing was replayed: a key has no dead letter, or the broker has no delays.
        """
        capabilities = self._links.adapter(self._queue).capabilities
        if delay > 0 and capabilities.delays is Delays.NONE:
            raise SteadyWorkerError(
                "Expected a broker with delays, got one without: replay the letters without a delay."
            )
        where = _among(letters, chosen, rounds)
        handled: list[Handled] = []

        def one(replayed: Replayed) -> None:
            handled.append(Handled(replayed.letter.key))
            each(replayed)

        error: SteadyWorkerError | None = None
        try:
            letters.replay(
                keys,
                where=where,
                gone=gone,
                from_start=from_start,
                delay=delay,
                comes_in=comes_in(delay, capabilities),
                each=one,
                skip=self._skips(handled, unless),
            )
        except SteadyWorkerError as caught:
            if not handled:
                raise
            error = caught
        details = (f"in {delay:g} s" if delay else "", "from the start" if from_start else "")
        detail = ", ".join(text for text in details if text)
        return self._reported("replay", letters.selected, handled, error, detail)

    def drop(
        self,
        letters: DeadLetterQueue,
        keys: Sequence[str] | None = None,
        *,
        chosen: Sequence[DeadLetter] | None = None,
        rounds: Mapping[str, int] | None = None,
        gone: bool = False,
        each: Callable[[DeadLetter], None] = lambda _: None,
        unless: Unless = never,
    ) -> ActionReport:
        """
        Drop dead letters, as `DeadLetterQueue.drop` does: the letters of these keys, the letters that `chosen` returned, or all; `rounds` is that of `replay`.

        Raises SteadyWorkerError if nothing was dropped, because a key has no dead letter.
        """
        handled: list[Handled] = []

        def one(letter: DeadLetter) -> None:
            handled.append(Handled(letter.key))
            each(letter)

        error: SteadyWorkerError | None = None
        try:
            letters.drop(
                keys, where=_among(letters, chosen, rounds), gone=gone, each=one, skip=self._skips(handled, unless)
            )
        except SteadyWorkerError as caught:
            if not handled:
                raise
            error = caught
        return self._reported("drop", letters.selected, handled, error, "")

    def _skips(self, handled: list[Handled], unless: Unless) -> Callable[[DeadLetter], bool]:
        """Return the condition that an action leaves a letter out; it adds the reason to `handled`."""
        namespace = self._links.namespace(self._queue, bind=False)

        def skips(letter: DeadLetter) -> bool:
            problem = unless(JobId(namespace, self._queue.name, letter.key, letter.round))
            if problem:
                handled.append(Handled(letter.key, None, problem))
            return bool(problem)

        return skips


def _among(
    letters: DeadLetterQueue, chosen: Sequence[DeadLetter] | None, rounds: Mapping[str, int] | None
) -> Callable[[DeadLetter], bool]:
    """Return the condition that a letter is one of these, and that of a job in these rounds; every letter fits None."""
    wanted = None if chosen is None else {_identity(letter) for letter in chosen}

    def fits(letter: DeadLetter) -> bool:
        if wanted is not None and _identity(letter) not in wanted:
            return False
        if rounds is None:
            return True
        return rounds.get(letter.key) == letter.round and not letter.conflicts_with(letters.row(letter))

    return fits


def _identity(letter: DeadLetter) -> Identity:
    return letter.key, letter.round, letter.uid, letter.reason
