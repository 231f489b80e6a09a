"""The lost connections that a consumer counts as cuts, which a soon reconnect follows."""

from __future__ import annotations

import pytest

from steadyworker.network.backoff import Backoff


def noted_cuts(backoff: Backoff, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets an entry for each cut: whether the connection was useful."""
    cuts: list[bool] = []
    cut = backoff.cut

    def noted(*, useful: bool) -> float:
        cuts.append(useful)
        return cut(useful=useful)

    monkeypatch.setattr(backoff, "cut", noted)
    return cuts
