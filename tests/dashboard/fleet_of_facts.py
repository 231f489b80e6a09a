"""A fleet whose ledger has a fact of every kind, and texts of others that try to be markup; for the tests of the page."""

from __future__ import annotations

import json

from steadyworker.adapter import Depth
from steadyworker.ledger.base import Began, Claimed, Ending, JobId, KeptMessage, Moving, Progress, Row, Verdict
from steadyworker.ledger.facts import Action, LinkEvent, Minute, OwnerReport, QueueReport, ReportedFinding
from steadyworker.ledger.lease import registered_name
from steadyworker.outcome import Counters
from tests.cli.night import EXPORTS, REFUNDS, SECRET, Fleet

MARKUP = "<img src=x onerror=alert(1)>'\"&"
"""A text that is harmless only if it is escaped in an element and in an attribute."""

TURNED = "a\u202egpj.exe"
"""A text with a mark that turns the direction of the text after it."""

TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/app/exports.py", line 41, in handle
    rows = fetch(merchant)
  File "/srv/app/bank.py", line 12, in fetch
    raise ValueError(f"no such merchant: {merchant}")
ValueError: no such merchant: m-23
"""


class FleetOfFacts(Fleet):
    """The night of `tests.cli.night`, after a day with runs, losses, actions and results."""

    def fill(self) -> None:
        """Write a day of facts, and then let everything go wrong."""
        self.ledger.bind("shop", "exports", "shop")
        self.links("worker-0", [(0.0, "connected", "")])
        self.links(
            "worker-5",
            [
                (0.0, "connected", ""),
                (9000.0, "lost", "heartbeat missed for 60 s"),
                (9400.0, "connected", ""),
                (30000.0, "blocked", "memory alarm"),
                (32000.0, "unblocked", ""),
            ],
        )
        self.story()
        self.clock.advance(39598.0)  # `go_wrong` needs two seconds for its deaths
        self.go_wrong()
        self.actions()
        self.numbers()

    def links(self, owner: str, events: list[tuple[float, str, str]]) -> None:
        start = self.began
        found = [LinkEvent(owner, "exports", start + at, 1, kind, why) for at, kind, why in events]  # type: ignore[arg-type]
        self.ledger.facts.add_link_events(found)

    def run(
        self,
        key: str,
        because: str,
        seen: Row | None,
        end: Ending | None,
        *,
        seconds: float,
        verdict: Verdict | None = None,
        round_: int = 0,
        checkpoint: bytes | None = None,
    ) -> Row:
        """Claim a job, let time pass, and end its run."""
        body = json.dumps({"merchant": "m-23", "month": "2026-10", "password": SECRET}).encode()
        facts = json.dumps(
            {"headers": {"x-request": "r-1", "authorization": f"Bearer {SECRET}", "x-note": MARKUP}}
        ).encode()
        row = self.ledger.claim(
            Claimed(
                JobId("shop", "exports", key, round_),
                seen,
                "worker-5",
                0,
                b"\x01" * 32,
                Counters() if seen is None else seen.counters,
                KeptMessage(body, facts),
                Began(2, because, 7),
            )
        )
        assert row is not None
        if checkpoint is not None:
            self.ledger.checkpoint(row.token, checkpoint)
        for _ in range(int(seconds // 30)):
            self.clock.advance(30.0)
            self.ledger.renew([row.token])
        if verdict is not None:
            assert self.ledger.moving(row.token, verdict, end)
            assert self.ledger.moved(row.token)
        elif end is not None:
            assert self.ledger.done(row.token, end)
        found = self.ledger.read(row.id)
        assert found is not None
        return found

    def story(self) -> None:
        """Let one job run three times, and lose its delivery in the last run."""
        report = OwnerReport(
            4005,
            "1.4.0",
            self.began,
            "running",
            ready=True,
            queues={EXPORTS: QueueReport(4, 1, 7200.0, connected=True)},
        )
        self.ledger.register("worker-5", "host-5", [EXPORTS], report)
        error = Ending(
            "failed", "ValueError: no such merchant: m-23", "ValueError", "no such merchant: m-23", TRACEBACK, 190 << 20
        )
        retry = Verdict(
            Moving.RETRY,
            "ValueError: no such merchant: m-23",
            Counters(attempts=1),
            0.0,
            "ValueError",
            "no such merchant: m-23",
        )
        row = self.run("export-m-23", "new", None, error, seconds=600, verdict=retry, checkpoint=b'{"page": 12}')
        self.ledger.facts.act(
            Action("ann@desk", "retry", "shop", "exports", ("export-m-23",), 1, "the merchant is back")
        )
        row = self.run("export-m-23", "retry", row, None, seconds=0)
        self.ledger.checkpoint(row.token, b'{"page": 40}')
        for _ in range(40):
            self.clock.advance(30.0)
            self.ledger.renew([row.token])
        at = self.clock.wall()
        self.ledger.facts.add_link_events(
            [
                LinkEvent("worker-5", "exports", at - 700, 7, "lost", "heartbeat missed for 60 s"),
                LinkEvent("worker-5", "exports", at - 700, 7, "delivery-lost", "", row.fence),
                LinkEvent("worker-5", "exports", at - 400, 8, "connected", ""),
                LinkEvent("worker-5", "exports", at - 395, 8, "adopted", "", row.fence),
            ]
        )
        assert self.ledger.done(
            row.token,
            Ending(
                "done",
                peak_memory=210 << 20,
                checkpoint=b'{"page": 40}',
                result=b'{"rows": 31404, "file": "payments-m-23.csv"}',
            ),
        )

    def actions(self) -> None:
        act = self.ledger.facts.act
        act(
            Action(
                "ann@desk",
                "dead replay",
                "shop",
                "exports",
                tuple(f"export-m-{number}" for number in range(5)),
                214,
                "error ValueError",
            )
        )
        act(Action("ben@laptop", "cancel", "shop", "exports", ("cancelled",), 1, "wrong month"))

    def numbers(self) -> None:
        """Count the runs of the last hour, and let one worker process report a finding."""
        minute = int(self.clock.wall() // 60) * 60
        for number in range(50):
            classes = (0, 0, 3, 5, 2, number % 2, 0, 0, 0, 0, 0, 0)
            self.ledger.facts.add_minutes([Minute("shop", "exports", minute - 60 * number, "done", classes)])
        self.ledger.facts.add_minutes(
            [Minute("shop", "exports", minute - 60, "failed", (0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))]
        )
        queue = QueueReport(4, 0, 7200.0, connected=True)
        finding = ReportedFinding(
            "check.disk", "error", "The disk of /var/lib has 1 % of free space. Remedy: make space."
        )
        report = OwnerReport(
            4009,
            "1.3.2",
            self.began,
            "running",
            ready=False,
            not_ready=("the ledger did not respond for 12 s",),
            queues={REFUNDS: queue},
            findings=(finding,),
        )
        self.ledger.register("worker-9", "host-9", [REFUNDS], report)


def hostile(fleet: Fleet, *, markup: str = MARKUP) -> list[str]:
    """Write the text into each field that others write, and return the addresses of the jobs' pages."""
    ledger, facts = fleet.ledger, fleet.ledger.facts
    queue = "queue-of-others"
    ledger.bind(f"n{markup}", queue, "b")
    name = registered_name(f"n{markup}", queue)
    report = OwnerReport(
        1,
        f"v{markup}",
        fleet.clock.wall(),
        f"s{markup}",
        ready=False,
        not_ready=(markup,),
        queues={name: QueueReport(1, 1, 60.0, connected=False, paused=True)},
        findings=(ReportedFinding(f"i{markup}", "error", markup),),
    )
    ledger.register(f"o{markup}", f"h{markup}", [name], report)
    body, headers = json.dumps({markup: markup}).encode(), json.dumps({"headers": {f"x{markup}": markup}}).encode()
    id = JobId(f"n{markup}", queue, f"k{markup}")
    began = Began(1, markup, 1)
    row = ledger.claim(
        Claimed(id, None, f"o{markup}", 0, b"\x01" * 32, Counters(crashes=2), KeptMessage(body, headers), began)
    )
    assert row is not None
    ledger.checkpoint(row.token, json.dumps(markup).encode())
    ledger.progress(row.token, Progress(1, 2, markup, fleet.clock.wall()))
    end = Ending("failed", markup, f"E{markup}", markup, f"{markup}\n{markup}")
    assert ledger.moving(row.token, Verdict(Moving.RETRY, markup, Counters(crashes=2), 0.0, f"E{markup}", markup), end)
    assert ledger.moved(row.token)
    seen = ledger.read(id)
    assert ledger.claim(Claimed(id, seen, f"o{markup}", 0, b"\x01" * 32, Counters(crashes=2), None, began)) is not None
    ledger.cancel(id, markup)
    done = JobId(f"n{markup}", queue, f"d{markup}")
    ended = ledger.claim(
        Claimed(done, None, f"o{markup}", 0, b"\x01" * 32, Counters(), KeptMessage(body, headers), began)
    )
    assert ended is not None
    assert ledger.done(ended.token, Ending("done", markup, result=json.dumps(markup).encode()))
    facts.add_link_events([LinkEvent(f"o{markup}", queue, fleet.clock.wall(), 1, "lost", markup)])
    facts.act(Action(f"w{markup}", f"a{markup}", id.namespace, queue, (id.key,), 1, markup))
    facts.pause(id.namespace, queue, f"p{markup}", markup)
    facts.record_depth(id.namespace, queue, Depth(ready=3, why={"unacked": markup, "consumers": markup}))
    return [id.key, done.key]
