"""D8, "the deploys": ten worker processes with a PostgreSQL ledger are replaced twenty times while their jobs run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from tests.drills.stage import DrillError, Stage
from tests.fleet.deploys import deployed
from tests.fleet.kit import Fleet

DEPLOYS = 20


def replaced(stage: Stage) -> Mapping[str, Any]:
    """Hold the whole story; what the verdict says of it."""
    assert stage.ledger_server
    folder = stage.folder / "fleet"
    folder.mkdir()
    with closing(Fleet(folder, stage.place, stage.ledger_server.add_database())) as fleet:
        try:
            counts = deployed(fleet, DEPLOYS)
        except pytest.fail.Exception as late:  # what a test of the fleet waits for has not come
            raise DrillError(str(late)) from late
    if counts.interruptions < DEPLOYS:
        raise DrillError(f"expected {DEPLOYS} deploys to interrupt as many jobs at least, got {counts.interruptions}")
    codes = [code for code in counts.codes if code != 0]
    return {
        "jobs": counts.jobs,
        "lost": counts.lost,
        "causeless": counts.causeless + counts.blamed,
        "exit_code": codes[0] if codes else 0,
    }
