"""
A real worker process for a test, with what the test says in `STAGE` (JSON) done to its parts.

| word | what it does |
|---|---|
| `point` | `ledger.claim:after:1`: SIGKILL of this process before or after the n-th call of that name |
| `pause` | `adapter.publish:after:1`: that call waits before or after its work, from a line in `paused` to the file `go` |
| `hang` | `ledger.read`: calls of that name do not come back |
| `scale` | the ledger's clocks run so many times faster |
| `times` | single clocks of the ledger in seconds, by their names in `Times` |
| `silence` | seconds after which the broker gives a silent consumer's messages to another |
| `proof` | false: no owner is ever provably dead, so that its lease has to run out |
| `adoption` | false: a redelivery is never bound to the run that is under way |
| `capabilities` | single abilities of the broker, by their names in `Capabilities` |
| `schema` | the number of the ledger's tables that this version knows; 6: those tables, and the statements of that version |
| `host` | the name of its host, as if each worker process had one of its own |
| `setup_limit` | seconds that `setup` may take |
| `turn_limit` | seconds after which a loop that does not turn is stuck |

Nothing of it needs a failpoint in shipped code; without any word this is `steadyworker.run`.
If the first argument is `check`, it is that command, which heeds `schema` alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from steadyworker import cli
from steadyworker.adapter import Renamable, SettlesAsync
from steadyworker.clock import Times
from steadyworker.config import resolve as config
from steadyworker.ledger.postgres import schema as postgres_schema
from steadyworker.ledger.sqlite import schema as sqlite_schema
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.runner.state import Deps
from steadyworker.service import assemble as assembling
from steadyworker.service import monitor as watching
from steadyworker.service.assemble import Plan, assemble, plan
from steadyworker.service.launch import launch
from steadyworker.service.monitor import Monitor
from steadyworker.service.remedies import InstalledRemedies
from steadyworker.service.service import Service
from steadyworker.slots.process import ProcessSlot
from steadyworker.telemetry import logs
from steadyworker.worker import load_worker
from steadyworker_sqlite import SqliteAdapter
from tests.support import schema_8

OPTIONAL = (Renamable, SettlesAsync)
"""What only some adapters are: the core asks `isinstance`, which from Python 3.12 on does not ask `__getattr__`."""


class Wrapped:
    """Relays every call, but for the one that the test has something in mind with."""

    def __init__(self, real: Any, kind: str, script: dict[str, Any]) -> None:
        self._real = real
        self._hangs = {script.get("hang", "")}
        self._abilities = script.get("capabilities", {}) if kind == "adapter" else {}
        self._kind = kind
        self._point, _, when = script.get("point", "").partition(":")
        self._when, _, count = when.partition(":")
        self._left = int(count or 0)
        self._pause, _, when = script.get("pause", "").partition(":")
        self._pauses, _, count = when.partition(":")
        self._until_pause = int(count or 0)
        for name in (name for kind in OPTIONAL if isinstance(real, kind) for name in vars(kind) if name[0] != "_"):
            setattr(self, name, getattr(self, name))

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name == "capabilities":
            return replace(real, **self._abilities)
        if f"{self._kind}.{name}" in self._hangs:
            return lambda *_arguments, **_options: threading.Event().wait()
        if f"{self._kind}.{name}" == self._pause:
            return self._pausing(real)
        if f"{self._kind}.{name}" != self._point:
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = real(*arguments, **options)
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call

    def _pausing(self, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self._until_pause -= 1
            due = self._until_pause == 0
            if due and self._pauses == "before":
                wait_for_the_test()
            answer = real(*arguments, **options)
            if due and self._pauses == "after":
                wait_for_the_test()
            return answer

        return call


def wait_for_the_test() -> None:
    """Say that this thread waits, and wait for the file that lets it go on."""
    folder = Path(os.environ["STAGE_FOLDER"])
    with (folder / "paused").open("a") as out:
        out.write("paused\n")
    while not (folder / "go").exists():
        time.sleep(0.01)


def changed(planned: Plan, script: dict[str, Any]) -> Plan:
    """The plan, with the script's words done to it."""
    ledger, adapters = planned.ledger, list(planned.adapters)
    if not script.get("proof", True):
        assert isinstance(ledger, SqliteLedger)
        path = Path(ledger.url.removeprefix("sqlite:"))
        ledger = SqliteLedger(path, clock=planned.clock, times=planned.times, is_dead=lambda _owner: False)
    if "silence" in script:
        for adapter in adapters:
            assert isinstance(adapter, SqliteAdapter)
            adapter.__init__(adapter.path, adapter._spec, adapter._settings, script["silence"])  # type: ignore[misc]
    wrapped = [Wrapped(adapter, "adapter", script) for adapter in adapters]
    return replace(planned, ledger=Wrapped(ledger, "ledger", script), adapters=wrapped)


def main() -> int:
    """Run the Workers that the command line names."""
    script = json.loads(os.environ.get("STAGE", "{}"))
    if "schema" in script:
        known = script.pop("schema")
        if known == schema_8.SCHEMA_VERSION:
            before = schema_8.version_before()
            before.__enter__()  # for as long as this process lives
        patch.object(sqlite_schema, "SCHEMA_VERSION", known).start()
        patch.object(postgres_schema, "SCHEMA_VERSION", known).start()
    if sys.argv[1] == "check":
        cli.verbs(prog_name="steadyworker")
    workers = [load_worker(target) for target in sys.argv[1:]]
    if not script:
        return launch(workers, {})
    if "host" in script:
        patch.object(socket, "gethostname", lambda: script["host"]).start()
    if "setup_limit" in script:
        patch.object(assembling, "ProcessSlot", partial(ProcessSlot, setup_limit=script["setup_limit"])).start()
    if not script.get("adoption", True):
        patch.object(assembling, "Deps", partial(Deps, adoption=False)).start()
    if "turn_limit" in script:
        patch.object(watching, "_TURN_LIMIT", script["turn_limit"]).start()
    options = config.load({}, os.environ, Path.cwd())
    logs.configure(options.log_format, options.log_level, remedy_of=InstalledRemedies())
    times = replace(Times().scaled(script.get("scale", 1)), **script.get("times", {}))
    planned = changed(plan(workers, options, times), script)
    monitor = Monitor(planned.clock, planned.times, options.health, os.environ)
    return Service(options, planned.clock, lambda: assemble(planned), monitor).run()


if __name__ == "__main__":
    sys.exit(main())
