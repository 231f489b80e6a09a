"""
Who is drilled: how each is started and sent to, in which environment, and what its dead letters lie in.

The peers live in environments of their own, made once from the files of `peers` in the brokers' cache folder.
rocketmq-client-python has one for itself: the library of our adapter for proxies has the same import name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.brokers.install import cache, lock
from tests.brokers.place import Ability, Place
from tests.drills.bodies import HEARTBEAT, QUEUE
from tests.faults.proxy import Proxy

ROOT = Path(__file__).parents[2]
PEERS = Path(__file__).with_name("peers")
_PEER = "tests.drills.peers"


@dataclass(frozen=True)
class Contestant:
    """
    One of them.

    `worker` and `sender` are arguments of `python -m`, with NUMBER for the worker process's; `packages` have its version.
    It is drilled on the brokers that have what it `needs`.
    """

    name: str
    packages: tuple[str, ...]
    worker: tuple[str, ...]
    sender: tuple[str, ...]
    dead_queue: str = ""
    peer: bool = True
    needs: frozenset[Ability] = frozenset({Ability.AMQP})
    environ: Mapping[str, str] = field(default_factory=dict)
    requirements: Path = PEERS / "requirements.txt"
    makes_queue: bool = True
    """False for one whose queue an operator makes before it starts."""
    machine: str = ""
    """The only kind of machine (`platform.machine`) on which it can be installed; empty for any."""
    slots: int = 0
    """So many jobs at a time, whatever the prefetch; 0 for as many as the prefetch of ours, and one of a peer."""

    def command(self, arguments: tuple[str, ...], number: int = 1) -> list[str]:
        """What to execute."""
        python = str(peers_python(self.requirements)) if self.peer else sys.executable
        return [python, "-m", *(argument.replace("NUMBER", str(number)) for argument in arguments)]

    def environment(
        self, place: Place, folder: Path, prefetch: int = 1, through: Proxy | None = None
    ) -> dict[str, str]:
        """For its processes: the broker, how many messages at a time, and where the jobs' notes go."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEADYWORKER_")}
        return {
            **kept,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "DRILL_NOTES": str(folder / "notes"),
            "DRILL_PREFETCH": str(prefetch),
            "DRILL_QUEUE": place.queue(QUEUE),
            "DRILL_URL": place.address(through=through),
            "dramatiq_queue_prefetch": str(prefetch),
            "STEADYWORKER_BROKER": place.url(heartbeat=HEARTBEAT, through=through),
            "STEADYWORKER_CONCURRENCY": str(prefetch),
            "STEADYWORKER_DELAYS": "1,5,30",  # fewer quorum queues for one small node to make
            "STEADYWORKER_LOG_FORMAT": "json",
            "STEADYWORKER_STATE_DIR": str(folder / "state"),
            "STEADYWORKER_STOP_WITHIN": "120",
            **self.environ,
        }

    def version(self) -> str:
        """What is installed, such as `5.7.0`."""
        said = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]), sep=' + ')"
        command = [self.command(())[0], "-c", said, *self.packages]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


STEADYWORKER = Contestant(
    "SteadyWorker",
    ("steadyworker",),
    ("steadyworker", "run", "tests.drills.ours:Drill"),
    ("tests.drills.ours",),
    dead_queue=f"{QUEUE}.dead",
    peer=False,
    needs=frozenset(),
)
CELERY = Contestant(
    "Celery",
    ("celery",),
    ("celery", "--app", f"{_PEER}.celery_worker", "worker", "--loglevel", "INFO", "--hostname", "NUMBER@%h"),
    (f"{_PEER}.celery_worker",),
)
DRAMATIQ = Contestant(
    "Dramatiq",
    ("dramatiq",),
    ("dramatiq", "--processes", "1", "--threads", "1", f"{_PEER}.dramatiq_worker"),
    (f"{_PEER}.dramatiq_worker",),
    dead_queue=f"{QUEUE}.XQ",
)
TASKIQ = Contestant(
    "Taskiq",
    ("taskiq", "taskiq-aio-pika"),
    (
        *("taskiq", "worker", "--workers", "1", "--ack-type", "when_executed", "--max-async-tasks", "1"),
        *("--use-process-pool", "--max-process-pool-processes", "1", f"{_PEER}.taskiq_worker:broker"),
    ),
    (f"{_PEER}.taskiq_worker",),
    dead_queue=f"{QUEUE}.dead",
)
FASTSTREAM = Contestant(
    "FastStream",
    ("faststream",),
    ("faststream", "run", f"{_PEER}.faststream_worker:app"),
    (f"{_PEER}.faststream_worker",),
)
PIKA = Contestant("pika", ("pika",), (f"{_PEER}.pika_worker",), (f"{_PEER}.pika_worker", "send"))
STOMP_PY = Contestant(
    "stomp.py",
    ("stomp.py",),
    (f"{_PEER}.stomp_worker",),
    (f"{_PEER}.stomp_worker", "send"),
    needs=frozenset({Ability.STOMP}),
)
ROCKETMQ = Contestant(
    "rocketmq-client-python",
    ("rocketmq-client-python",),
    (f"{_PEER}.rocketmq_worker",),
    (f"{_PEER}.rocketmq_worker", "send"),
    needs=frozenset({Ability.REMOTING}),
    requirements=PEERS / "rocketmq.txt",
    makes_queue=False,
    machine="x86_64",
)

CONTESTANTS = (STEADYWORKER, CELERY, DRAMATIQ, TASKIQ, FASTSTREAM, PIKA, STOMP_PY, ROCKETMQ)


def peers_python(requirements: Path = PEERS / "requirements.txt") -> Path:
    """The interpreter of an environment with these peers, which is made when it is missing or its requirements have changed."""
    name = f"peers-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    folder = cache() / name
    python, ready = folder / "bin/python", folder / ".ready"
    if ready.exists():
        return python
    with lock(name):
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--requirement", str(requirements)], check=True)
            ready.touch()
    return python
