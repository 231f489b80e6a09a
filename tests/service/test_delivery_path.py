"""The files of the core that one delivery enters, counted by a trace of the runner's thread."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
MOST_FILES = 27
"""
On the runner's thread, from the delivery to the settlement: as many as one can read in an afternoon.

Five came late: `runner/turn.py`, which records all writes of a turn in one commit;
`service/fact_batch.py`, which counts the runs for screens;
`telemetry/line_writer.py`, through which each log line of this thread passes, so that no line waits for its reader;
`runner/orphans.py`, for which each delivery shows that messages wait in the queue;
and `slots/child_output.py`, which reads what a job has printed before it reports the job's end.
"""

JOBS = """
import json, os, sys, threading
from pathlib import Path
from steadyworker import Client, Job, Worker, run
from steadyworker.events import JobSettled

entered, tracing = {}, threading.Event()

def trace(frame, event, argument):
    if event == "call" and tracing.is_set():
        entered.setdefault(threading.current_thread().name, set()).add(frame.f_code.co_filename)

class Walk(Worker[dict[str, int]]):
    queue = "walk"
    time_limit = 60

    def handle(self, job: Job[dict[str, int]]) -> None:
        '''Nothing: only the way is of interest.'''

def main() -> None:
    threading.setprofile(trace)
    second = threading.Event()

    def send_the_second() -> None:
        assert second.wait(60)
        os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-m", "steadyworker", "send", "walk", '{"number": 2}'])

    def listen(event):
        if isinstance(event, JobSettled):
            if second.is_set():
                tracing.clear()
            else:
                tracing.set()
                second.set()

    with Client() as client:
        client.send(Walk, {"number": 1})
    threading.Thread(target=send_the_second, name="sender").start()
    run(Walk, max_jobs=2, listeners=[listen])
    files = entered.get("runner-walk", set())
    Path("entered.json").write_text(json.dumps(sorted(files)))
"""


@pytest.fixture
def entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of `steadyworker/` that the second job entered on the runner's thread; the first job has warmed it up."""
    (tmp_path / "walkjobs.py").write_text(JOBS)
    monkeypatch.setenv("STEADYWORKER_STATE_DIR", str(tmp_path / "state"))
    done = subprocess.run(
        [sys.executable, "-c", "import walkjobs; walkjobs.main()"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    core = ROOT / "steadyworker"
    files = [Path(name) for name in json.loads((tmp_path / "entered.json").read_text())]
    return sorted(path.relative_to(core).as_posix() for path in files if path.is_relative_to(core))


def test_a_delivery_enters_few_files(entered: list[str]) -> None:
    assert {"runner/deliveries.py", "ledger/rules.py", "retry.py", "runner/settler.py"} <= set(entered), entered
    assert len(entered) <= MOST_FILES, "\n".join(entered)
