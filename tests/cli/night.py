"""A fleet at three in the morning, in a ledger of any kind: ten worker processes, and one of everything that goes wrong."""

from __future__ import annotations

from msgspec.structs import replace

from steadyworker.adapter import Depth
from steadyworker.ledger.base import (
    Claimed,
    JobFilter,
    JobId,
    KeptMessage,
    Ledger,
    Moving,
    Progress,
    Row,
    State,
    Verdict,
)
from steadyworker.ledger.facts import OwnerReport, QueueReport
from steadyworker.ledger.lease import registered_name
from steadyworker.outcome import CANCELLED, Counters
from steadyworker.testing.clock import FakeClock

EXPORTS, REFUNDS = registered_name("shop", "exports"), registered_name("shop", "refunds")
SECRET = "hunter2-canary"
_NONE = Counters()


class Fleet:
    """
    Ten worker processes of two queues.

    `host-1` is stuck, `host-2` is detached, `host-3` is in a crash loop, and `host-4` is gone; the others are well.
    """

    def __init__(self, ledger: Ledger, clock: FakeClock, dead: set[str]) -> None:
        self.ledger = ledger
        self.clock = clock
        self.dead = dead
        self.living = {f"worker-{number}": f"host-{number}" for number in range(10)}
        self.lost: set[str] = set()
        self.busy: set[str] = set()
        self.began = clock.wall()
        self.started: dict[str, float] = {}

    def beat(self) -> None:
        """Every living worker process renews its leases, and registers itself."""
        held = [row for row, _ in self.ledger.jobs(JobFilter(states=(State.RUNNING,)))]
        for number, (owner, host) in enumerate(self.living.items()):
            tokens = [row.token for row in held if row.owner == owner]
            self.ledger.renew(tokens)
            queue = QueueReport(4, len(tokens), 7200.0, connected=owner not in self.lost)
            queues = {EXPORTS: queue, REFUNDS: replace(queue, busy=0, paused=True)}
            started = self.started.get(owner, self.began)
            report = OwnerReport(4000 + number, "1.4.0", started, "running", ready=True, queues=queues)
            self.ledger.register(owner, host, [EXPORTS, REFUNDS], report)

    def pass_time(self, seconds: float, step: float = 15.0) -> None:
        """Let time pass, with a renewal after each step."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self.beat()

    def claim(self, key: str, owner: str = "worker-0") -> Row:
        message = KeptMessage(b"{}", b"{}")
        row = self.ledger.claim(Claimed(JobId("shop", "exports", key), None, owner, 0, b"\x01" * 32, _NONE, message))
        assert row is not None
        return row

    def end(self, key: str, **values: object) -> None:
        """Run a job until a retry or a dead letter."""
        defaults = {"target": Moving.RETRY, "reason": "", "counters": _NONE, "delay": 600.0}
        verdict = Verdict(**(defaults | values))  # type: ignore[arg-type]
        row = self.claim(key)
        assert self.ledger.moving(row.token, verdict)
        assert self.ledger.moved(row.token)

    def go_wrong(self) -> None:
        """Let everything go wrong within three quarters of an hour."""
        for queue in ("exports", "refunds"):
            self.ledger.bind("shop", queue, "shop")
        for death in ("a", "b"):
            owner, started = f"worker-3{death}", self.clock.wall()
            self.ledger.register(owner, "host-3", [EXPORTS, REFUNDS], OwnerReport(300, "1.4.0", started, "running"))
            self.dead.add(owner)
            self.clock.advance(1.0)
        self.started["worker-3"] = self.clock.wall()
        self.beat()
        stuck = self.claim("stuck", "worker-1")
        self.ledger.progress(stuck.token, Progress(10, 100, "pages", self.clock.wall()))
        self.claim("detached", "worker-2")
        self.pass_time(2400.0, 60.0)
        well = self.claim("well")
        self.ledger.progress(well.token, Progress(40, 100, "pages", self.clock.wall()))
        self.pass_time(60.0)
        self.ledger.progress(well.token, Progress(50, 100, "pages", self.clock.wall()))
        cancelled = self.claim("cancelled")
        self.ledger.cancel(cancelled.id, "wrong month")
        verdict = Verdict(Moving.DEAD, f"{CANCELLED}wrong month", _NONE)
        assert self.ledger.moving(cancelled.token, verdict)
        assert self.ledger.moved(cancelled.token)
        self.end("crashing", reason="killed by SIGSEGV", counters=Counters(crashes=2))
        error = f"cannot reach amqp://app:{SECRET}@broker/: no such merchant"
        self.end("failed", target=Moving.DEAD, reason="exhausted", error_class="ValueError", error_text=error)
        self.claim("lost", "worker-4")
        self.lost.add("worker-2")
        self.pass_time(15.0)
        self.dead.add("worker-4")
        del self.living["worker-4"]
        self.clock.advance(10.0)
        self.beat()
        facts = self.ledger.facts
        facts.pause("shop", "refunds", "ann@desk", "the bank is closed")
        facts.record_depth("shop", "exports", Depth(40, 1, None, 5, 2, 12, 1800.0))
        why = "the broker's statistics are off"
        facts.record_depth(
            "shop", "refunds", Depth(0, 0, None, None, 0, None, None, {"unacked": why, "consumers": why})
        )
        self.clock.advance(5.0)
