"""A password in the text of a handler: it is in no log line, no record of a job, no dead letter, and on no page."""

from __future__ import annotations

import json

import pytest

from steadyworker.ledger.base import State
from tests.support.stage import Stage

ANYTHING = "tests.slots.anything:Anything"
URL = "postgresql://shop:hunter2@db/orders"
SHOWN = "postgresql://shop:***@db/orders"

TEXT = {
    "Reject": "raise Reject(f'no table in {os.environ[\"SHOP_URL\"]}')",
    "dont_retry_on": "raise KeyError(os.environ['SHOP_URL'])",
    "a cause": "raise Unwelcome('no') from OSError(os.environ['SHOP_URL'])",
}
FAILED = "job.progress(1, 2, os.environ['SHOP_URL']); raise ConnectionError(os.environ['SHOP_URL'])"


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_password_reaches_no_log_no_ledger_and_no_dead_letter(stage: Stage, isolation: str) -> None:
    (stage.folder / "steadyworker.toml").write_text(f'[workers.Anything]\nisolation = "{isolation}"\n')
    for key, do in TEXT.items():
        stage.send("anything", {"do": f"import os; {do}"}, key=key.replace(" ", "-"))
    stage.send("anything", {"do": f"import os; {FAILED}"}, key="failed")
    process = stage.worker(ANYTHING, env={"SHOP_URL": URL})
    for key in TEXT:
        stage.reaches("anything", State.DEAD, key.replace(" ", "-"))
    failed = stage.reaches("anything", State.MOVED, "failed")
    process.terminate()
    process.ended(0)

    jobs, letters = (stage.command(*verb, "--json") for verb in (("jobs",), ("dead", "show", "anything")))
    jobs.ended(0)
    letters.ended(0)
    assert failed.reason == f"ConnectionError: {SHOWN}"
    notes = [json.loads(line)["note"] for line in jobs.log.read_text().splitlines()]
    assert sorted(notes) == ["", "", "", SHOWN]
    attempts = [stage.ledger.facts.attempts(row.id)[0] for row, _ in stage.ledger.jobs()]
    assert sorted(attempt.outcome for attempt in attempts) == ["failed", "rejected", "rejected", "rejected"]
    for attempt in attempts:
        assert SHOWN in attempt.traceback
        assert "hunter2" not in repr(attempt)
    log = process.log.read_text()
    assert f"ConnectionError: {SHOWN}" in process.reports("job_failed")["exception"]
    for written in (log, jobs.log.read_text(), letters.log.read_text()):
        assert SHOWN in written
        assert "hunter2" not in written
    for file in (stage.broker, stage.ledger_path):
        for path in stage.folder.glob(f"{file.name}*"):
            assert path.is_dir() or b"hunter2" not in path.read_bytes()
