"""Who carries a hand-over out: the runner's own thread where nothing waits for a broker, else another one."""

from __future__ import annotations

from collections.abc import Callable

from steadyworker.adapter import SettlesSoon
from steadyworker.errors import LedgerUnavailable, PublishFailed
from steadyworker.runner.settler import HandOver, Refused, Settler
from steadyworker.runner.state import HandedOver, Parts, Run


class Carrier:
    """
    Carries hand-overs out, one step after the other, and posts how far each came.

    Args:
        parts: The runner's.
        post: Takes `HandedOver`, from any thread.
    """

    def __init__(self, parts: Parts, post: Callable[[HandedOver], None]) -> None:
        self._settler = Settler(
            parts.ledger, parts.adapter, parts.adapter if isinstance(parts.adapter, SettlesSoon) else None
        )
        self._submit = parts.submit
        self._post = post

    def carry(self, hand_over: HandOver, run: Run | None) -> None:
        """Begin with it, or go on where it stopped."""

        def told(error: Exception | None = None) -> None:
            self._post(HandedOver(hand_over, run, error))

        def work() -> None:
            try:
                if self._settler.advance(hand_over, told):
                    told()
            except (Refused, LedgerUnavailable, PublishFailed) as error:
                told(error)

        if self._settler.waits(hand_over):
            self._submit(work)
        else:
            work()  # two changes of thread less, and a thread that has claimed may as well record

    def note(self, hand_over: HandOver) -> None:
        """Take the last step of one whose settlement the broker has answered; nobody waits for it."""
        self._settler.advance(hand_over)
