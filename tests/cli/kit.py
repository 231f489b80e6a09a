"""The `steadyworker` command in a process of its own, and its state from the inside."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.backends.opening import namespace_of
from steadyworker.config.resolve import Options
from steadyworker.delivery import Delivery
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Ledger, Moving, Progress, Row, Verdict
from steadyworker.outcome import Counters
from steadyworker.runner.envelope import Envelope
from steadyworker.runner.planning import message_for
from tests.support.deliveries import received

BODY = b'{"merchant": "m-17", "password": "hunter2"}'

_EXPORTS = JobQueue("exports", "exports", None, Any)
APP = '''
from dataclasses import dataclass
from steadyworker import Job, Worker

@dataclass
class Request:
    merchant: str

class Exports(Worker[Request, int]):
    queue = "exports"
    time_limit = 60

    def handle(self, job: Job[Request, int]) -> None:
        """Done at once."""

class Raw(Worker[bytes]):
    queue = "raw"
    time_limit = None

    def handle(self, job: Job[bytes]) -> None:
        """Done at once."""
'''


@dataclass(frozen=True)
class Completed:
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def records(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


@dataclass(frozen=True)
class Shell:
    """Runs `steadyworker` in `folder`, where `app.py` is; its state is in `folder/state`."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEADYWORKER_")}
        return {**kept, "STEADYWORKER_STATE_DIR": str(self.state), "COLUMNS": "80"}

    def __call__(self, *arguments: str, stdin: str = "", environ: Mapping[str, str] | None = None) -> Completed:
        done = subprocess.run(
            [sys.executable, "-m", "steadyworker", *arguments],
            cwd=self.folder,
            env={**self.environ, **(environ or {})},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Completed(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Queues:
    """The same state, from the inside: what a worker would find, and jobs as a worker leaves them."""

    options: Options

    def received(self, queue: str, count: int) -> list[Delivery]:
        """The next deliveries of a queue, acknowledged."""
        return received(self.options, queue, count)

    def job(
        self,
        key: str,
        then: Callable[[Ledger, Row], object] = lambda ledger, row: None,
        body: bytes = BODY,
        *,
        keep: bool = True,
        round_: int = 0,
    ) -> Row:
        """A run of a job of `exports`, as far as `then` takes it; the ledger keeps its message only with `keep`."""
        with Connections(self.options) as links:
            # Bound as a worker process binds its queue at its start.
            namespace = namespace_of(links.adapter(_EXPORTS), self.options, links.ledger(), "exports")
            id_ = JobId(namespace, "exports", key, round_)
            digest = hashlib.sha256(body).digest()
            message = KeptMessage(body, b"{}") if keep else None
            row = links.ledger().claim(Claimed(id_, None, "host/boot/1", 0, digest, Counters(), message))
            assert row is not None
            then(links.ledger(), row)
            return row

    def progress(self, row: Row, progress: Progress) -> None:
        with Connections(self.options) as links:
            links.ledger().progress(row.token, progress)

    def dead(
        self, key: str, body: bytes = BODY, *, copies: int = 1, checkpoint: bytes | None = b"7", keep: bool = True
    ) -> None:
        """A job of `exports` that failed for good."""
        counters = Counters(attempts=5, losses=1, first_failed_at=1_700_000_000.0)
        verdict = Verdict(Moving.DEAD, "exhausted", counters, error_class="ValueError", error_text="no such merchant")

        def die(ledger: Ledger, row: Row) -> None:
            if checkpoint is not None:
                assert ledger.checkpoint(row.token, checkpoint)
            assert ledger.moving(row.token, verdict)
            with Connections(self.options) as links:
                for _ in range(copies):
                    envelope = Envelope(Delivery(1, "d-1", row.id.queue, body), row.id, 4, b"", Counters())
                    copy = message_for(envelope, 4, verdict, row.uid, "host-1")
                    links.adapter(_EXPORTS).publish(copy)
            assert ledger.moved(row.token)

        self.job(key, die, body, keep=keep)

    def conflict(self, key: str, body: bytes) -> None:
        """A dead letter of another payload, whose key is that of a job of `exports`."""
        verdict = Verdict(Moving.DEAD, "key-conflict", Counters())
        with Connections(self.options) as links:
            namespace = namespace_of(links.adapter(_EXPORTS), self.options, links.ledger(), "exports")
            envelope = Envelope(
                Delivery(1, "d-2", "exports", body), JobId(namespace, "exports", key), 0, b"", Counters()
            )
            links.adapter(_EXPORTS).publish(message_for(envelope, 0, verdict, "", "host-1"))


def let_pass(queues: Queues, seconds: float) -> None:
    """Let each message of the ledger's jobs be that much later, as it would be after this time."""
    with closing(sqlite3.connect(queues.options.ledger.removeprefix("sqlite:"))) as db, db:
        db.execute("UPDATE jobs SET wake_at = wake_at - ?, not_before = not_before - ?", (seconds, seconds))
        db.execute("UPDATE jobs SET lease_boot = 'before' WHERE owner IS NOT NULL")
