"""
The back-off of reconnects: random waits, short after a cut, and longer after each try that the broker refused.

| try | seconds to wait before it |
|---|---|
| 1, after a cut | 0 to 0.5 |
| 2, after one refusal | 0 to 10 |
| 3 | 10 to 20 |
| 4 | 20 to 40 |
| 5 and later | 30 to 60 |

Waits 3 and 4 begin at the longest previous wait.
So the third and fourth tries of a fleet hardly overlap with the earlier tries.
In simulations, 200 workers lost the broker at the same moment, for 0.5 s to 10 min.
On average, 11 % of the workers tried to connect in the busiest second after the broker's return.
In 2 of 2600 simulated outages, 20 % or more of the workers did so.
The alternative is full jitter: a random wait from 0 to 5 s, with a limit that doubles for each try.
Full jitter is worse: 29 % tried to connect in the busiest second.
With full jitter, a fifth of the workers makes its second try in each of these 5 seconds.
In the same seconds, some workers already make their third try.
Our waits have a price: after a broker restart of 7 s, a worker waits 8 s on average.
With full jitter, a worker waits 6 s.
"""

from __future__ import annotations

from tenacity import RetryCallState, Retrying, wait_chain, wait_random

FIRST = 0.5
"""Seconds within which the first try after a lost connection happens."""

REFUSED = 10.0
"""Seconds over which a fleet spreads its second tries; the limit doubles with each later try."""

LONGEST = 60.0
"""The longest time between two tries, in seconds."""

USEFUL_AFTER = 5.0
"""Seconds after which a connection counts as useful, even if nothing was settled on it."""


class Backoff:
    """
    The waits of one client, drawn at random so that a fleet does not reconnect at the same moment.

    A connection that was not useful is treated as a refused try.
    So a broker that crashes at each connect has time to recover.
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
        """Return the seconds to wait after a connection, or a channel, was lost."""
        return self._drawn(1 if useful else self._tries + 1)

    def refused(self) -> float:
        """Return the seconds to wait after a failed try."""
        return self._drawn(max(2, self._tries + 1))

    def _drawn(self, tries: int) -> float:
        self._tries = tries
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = tries
        return self._wait(state)
