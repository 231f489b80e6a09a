"""What a drill found, and whether that is a pass: by the same rules for everybody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BEHIND = 5.0
"""Seconds that the job behind one that kills its process may wait: five times the aim, as these machines are busy."""

STARTS_OF_A_KILLER = 3


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """
    The counts of one drill, held by one contestant.

    Attributes:
        drill: Its name, such as `D2 reset`.
        contestant: Who.
        starts: Of the job.
        ends: Of the job.
        together: The most copies of it that were seen running at one time.
        left: Messages left in queues other than those for dead letters.
        dead: Dead letters: in the contestant's own queue for them, and those that the broker itself made.
        restarts: Of the worker process, unasked.
        connection_lost: Whether one of the connections that the worker had when the job started was gone later.
        exit_code: Of a worker process that was told to stop; None for one that was not, or did not.
        behind: Seconds that the job behind waited, once the first one had killed its process; None: it never ran.
        named: Whether the dead letter's headers say SIGKILL.
        taken: Whether a message was gone that no run had finished.
        unheld: Why the drill could not be held; empty when it was.
        jobs: How many there were, where a drill has a stream of them.
        lost: Of these, those that did not end done, or never.
        causeless: Their starts beyond one for each outcome that the ledger accepted, and their ends beyond the first.
        unnamed: What the operator did and was not told about as the story says; empty when there is nothing.
    """

    drill: str
    contestant: str
    starts: int = 0
    ends: int = 0
    together: int = 0
    left: int = 0
    dead: int = 0
    restarts: int = 0
    connection_lost: bool = False
    exit_code: int | None = None
    behind: float | None = None
    named: bool = False
    taken: bool = False
    unheld: str = ""
    jobs: int = 0
    lost: int = 0
    causeless: int = 0
    unnamed: str = ""

    @property
    def faults(self) -> tuple[str, ...]:
        """What speaks against a pass, in a few words each; empty for a pass."""
        if self.unheld:
            return (f"not held: {self.unheld.splitlines()[0]}",)
        match self.drill.split()[0]:
            case "D4":
                return tuple(self._of_another_message())
            case "D6":
                return tuple(self._of_a_killer())
            case "D7" | "D8":
                return tuple(self._of_a_fleet())
            case _:
                return tuple(self._of_one_job())

    @property
    def passed(self) -> bool:
        return not self.faults

    def _of_one_job(self) -> Iterator[str]:
        """One run, settled, and the worker process as it was."""
        if self.starts != 1:
            yield f"{self.starts} starts"
        if self.together > 1:
            yield f"{self.together} at once"
        if self.ends == 0:
            yield "never finished"
        yield from self._left_over()
        if self.drill == "D1" and self.connection_lost:
            yield "connection lost"
        if self.drill == "D5" and self.exit_code != 0:
            yield "did not stop" if self.exit_code is None else f"exit code {self.exit_code}"

    def _left_over(self) -> Iterator[str]:
        if self.left:
            yield "never acknowledged"
        if self.dead:
            yield "a dead letter"
        if self.restarts:
            yield f"worker died {_times(self.restarts)}"

    def _of_another_message(self) -> Iterator[str]:
        if self.taken:
            yield "acknowledged another message, which was lost"
        if self.starts != 1 or self.ends != 1:
            yield f"{self.starts} starts, {self.ends} ends"

    def _of_a_killer(self) -> Iterator[str]:
        """At most three starts, out of the way at once, kept with its cause, and the worker process as it was."""
        if self.starts > STARTS_OF_A_KILLER:
            yield f"{self.starts} starts"
        if self.restarts:
            yield f"worker died {_times(self.restarts)}"
        if self.behind is None:
            yield "the job behind never ran"
        elif self.behind > BEHIND:
            yield f"the job behind waited {self.behind:.0f} s"
        if self.left:
            yield "still in the queue"
        elif not self.dead:
            yield "dropped without a dead letter"
        elif not self.named:
            yield "a dead letter without the cause"

    def _of_a_fleet(self) -> Iterator[str]:
        """Every job done once, every worker process as it was, every finding named."""
        if not self.jobs:
            yield "no jobs"
        if self.lost:
            yield f"{self.lost} of {self.jobs} jobs lost"
        if self.causeless:
            yield f"{self.causeless} starts without a cause"
        yield from self._left_over()
        if self.exit_code != 0:
            yield "did not stop" if self.exit_code is None else f"exit code {self.exit_code}"
        if self.unnamed:
            yield f"not named: {self.unnamed}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
