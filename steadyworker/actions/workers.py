"""Actions on a worker process: quiet, resume."""

from __future__ import annotations

from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.facts import Action, CommandName
from steadyworker.system import person


class WorkerActions:
    """
    The actions on one worker process.

    Args:
        ledger: The ledger of the worker process.
        owner: Its owner id.
        name: Its name for people, such as its host and its process id.
        who: The person who acts; by default the user of this process and its host, as `user@host`.
    """

    def __init__(self, ledger: Ledger, owner: str, name: str, who: str = "") -> None:
        self._ledger = ledger
        self._owner = owner
        self._name = name
        self._who = who or person.who()

    def quiet(self) -> str:
        """
        Let the process receive no more messages, as SIGUSR1 does; its runs go on.

        Return why the log of actions has no entry of this action; an empty text if it has one.
        Raises LedgerUnavailable if the command was not given.
        """
        return self._command("quiet")

    def resume(self) -> str:
        """Let the process receive messages again, as SIGUSR2 does; return and raise what `quiet` does."""
        return self._command("resume")

    def _command(self, name: CommandName) -> str:
        self._ledger.facts.command(self._owner, name, self._who)
        try:
            self._ledger.facts.act(Action(self._who, f"{name} worker", detail=self._name))
        except LedgerUnavailable as error:
            return str(error)
        return ""
