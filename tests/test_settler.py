"""Settle once, and last: which calls the settlement of a delivery makes, in which order, and which of them ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from steadyworker.adapter import Adapter, Capabilities
from steadyworker.delivery import (
    ATTEMPTS,
    CRASHES,
    ERROR_CLASS,
    ERROR_TEXT,
    FIRST_FAILED_AT,
    HOP,
    KEY,
    LOSSES,
    REASON,
    ROUND,
    UID,
    WORKER,
    Delivery,
    OutgoingMessage,
    Settle,
    Settled,
    Target,
)
from steadyworker.errors import (
    LedgerUnavailable,
    MessageRefused,
    PublishFailed,
    StaleDelivery,
    TargetMissing,
    Unsettled,
)
from steadyworker.ledger.base import JobId, Ledger, Moving, Token, Verdict
from steadyworker.outcome import Counters
from steadyworker.runner import planning
from steadyworker.runner.envelope import Envelope
from steadyworker.runner.settlement_plan import Incoming, SettlementPlan, Step
from steadyworker.runner.settler import Settler, WriteRefused

ID = JobId("n", "q", "k", 2)
TOKEN = Token(ID, "uid", 100, "owner")
DELIVERY = Delivery(1, "d-1", "q", b"{}")
LATER = Verdict(Moving.RETRY, "odd", Counters(attempts=1), 5.0)
DYING = Verdict(Moving.DEAD, "exhausted", Counters(attempts=5))
COPY = OutgoingMessage(Target.LATER, b"{}", {}, 5.0)


@dataclass
class Table:
    """A ledger and an adapter that write down what is asked of them, and answer as they are told."""

    calls: list[str] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: object) -> object:
            self.calls.append(name)
            answer = self.answers.get(name, True)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    @staticmethod
    def called() -> None:
        raise AssertionError("this adapter settles synchronously")

    def advance(self, plan: SettlementPlan) -> None:
        synchronous = SimpleNamespace(publish=self.publish, settle=self.settle, capabilities=Capabilities())
        Settler(cast(Ledger, self), cast(Adapter, synchronous), lambda _work: None, lambda _result: None).advance(
            plan, self.called
        )


def table(**answers: Any) -> Table:
    return Table(answers={"settle": Settled.CONFIRMED, **answers})


def plans() -> dict[str, tuple[SettlementPlan, list[str]]]:
    """Every kind of plan, and all the calls that it makes, in order."""
    return {
        "done": (planning.done(TOKEN, Incoming(DELIVERY)), ["done", "settle"]),
        "interrupted": (planning.interrupted(TOKEN, Incoming(DELIVERY), Counters()), ["interrupted", "settle"]),
        "retry": (
            planning.moving(TOKEN, Incoming(DELIVERY), LATER, COPY),
            ["moving", "publish", "moved", "settle"],
        ),
        "dead letter": (
            planning.moving(TOKEN, Incoming(DELIVERY), DYING, COPY),
            ["moving", "publish", "moved", "settle"],
        ),
        "finish": (planning.finish(TOKEN, Incoming(DELIVERY), COPY), ["publish", "moved", "settle"]),
        "pass on": (planning.pass_on(Incoming(DELIVERY), COPY), ["publish", "settle"]),
        "answer": (planning.settle_only(Incoming(DELIVERY)), ["settle"]),
    }


KINDS = list(plans())


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_always_the_same(kind: str) -> None:
    plan, order = plans()[kind]
    asked = table()

    asked.advance(plan)

    assert asked.calls == order
    assert plan.at == len(plan.steps)
    assert plan.settled_with is DELIVERY


@pytest.mark.parametrize("kind", KINDS)
def test_a_detached_run_settles_nothing_and_writes_everything(kind: str) -> None:
    plan, order = plans()[kind]
    plan.incoming.delivery = None
    asked = table()

    asked.advance(plan)

    assert asked.calls == [call for call in order if call != "settle"]
    assert plan.settled_with is None


@pytest.mark.parametrize(("kind", "call"), [(kind, call) for kind in KINDS for call in plans()[kind][1]])
@pytest.mark.parametrize("trouble", [LedgerUnavailable("away"), PublishFailed("no confirm"), TargetMissing("gone")])
def test_it_goes_on_where_it_stopped(kind: str, call: str, trouble: Exception) -> None:
    """Nothing after the step that failed is done, and nothing before it is done again."""
    plan, order = plans()[kind]
    asked = table(**{call: trouble})
    if call == "settle":
        return  # it cannot raise this

    with pytest.raises(type(trouble)):
        asked.advance(plan)
    assert asked.calls == order[: order.index(call) + 1]

    again = table()
    again.advance(plan)
    assert again.calls == order[order.index(call) :]


def test_a_copy_that_an_adapter_cannot_encode_is_refused_for_good() -> None:
    """A defect of one message or of one adapter must not end the process, and then the next one."""
    plan, order = plans()["retry"]
    with pytest.raises(MessageRefused, match=r"got ValueError: 255 bytes") as caught:
        table(publish=ValueError("255 bytes")).advance(plan)
    assert isinstance(caught.value.__cause__, ValueError)
    again = table()
    again.advance(plan)
    assert again.calls == order[1:]


class Leaving(Incoming):
    """A record whose delivery another thread loses as soon as it was read."""

    _left: Delivery | None

    @property
    def delivery(self) -> Delivery | None:
        found, self._left = self._left, None
        return found

    @delivery.setter
    def delivery(self, value: Delivery | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._left = value


def test_a_delivery_that_is_lost_at_that_moment_is_settled_as_what_it_was() -> None:
    """The adapter knows that it is stale, and answers; it would never answer for None."""
    given: list[Delivery | None] = []

    class Soon(Table):
        def settle_async(self, delivery: Delivery, _how: Settle, on_settled: Callable[[object], None]) -> None:
            given.append(delivery)
            on_settled(StaleDelivery("over"))

    plan = SettlementPlan((Step.SETTLE,), Leaving(DELIVERY))
    answered: list[bool] = []
    settler = Settler(cast(Ledger, table()), cast(Adapter, Soon()), lambda _work: None, lambda _result: None)
    assert not settler.advance(plan, lambda: answered.append(True))
    assert (given, answered, plan.at) == ([DELIVERY], [True], 1)


@pytest.mark.parametrize(("kind", "call"), [(kind, call) for kind in KINDS for call in plans()[kind][1]])
def test_what_the_ledger_refuses_is_never_settled(kind: str, call: str) -> None:
    plan, order = plans()[kind]
    if call in {"publish", "settle"}:
        return  # nobody refuses these

    asked = table(**{call: False})
    with pytest.raises(WriteRefused):
        asked.advance(plan)

    assert asked.calls == order[: order.index(call) + 1]
    assert "settle" not in asked.calls


@pytest.mark.parametrize("error", [StaleDelivery("old epoch"), Unsettled("no answer")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_settlement_never_fails_a_job(kind: str, error: Exception) -> None:
    """The ledger answers the redelivery; until then it keeps the row for longer."""
    plan, order = plans()[kind]
    asked = table(settle=error)

    asked.advance(plan)

    assert asked.calls == order
    assert plan.settled is None
    assert plan.settled_with is DELIVERY


def test_an_adopted_redelivery_is_what_is_settled() -> None:
    """It may come while the plan waits to publish."""
    plan = planning.moving(TOKEN, Incoming(), LATER, COPY)
    with pytest.raises(PublishFailed):
        table(publish=PublishFailed("no confirm")).advance(plan)

    home = Delivery(2, "d-9", "q", b"{}")
    plan.incoming.delivery = home
    asked = table()
    asked.advance(plan)

    assert asked.calls == ["publish", "moved", "settle"]
    assert plan.settled_with is home


def test_only_an_interrupted_run_gives_its_message_back() -> None:
    ways = {kind: plan.how for kind, (plan, _) in plans().items()}

    assert {kind for kind, how in ways.items() if how is Settle.RELEASE} == {"interrupted"}


def test_a_plan_that_was_stopped_knows_its_next_step() -> None:
    plan = planning.moving(TOKEN, Incoming(DELIVERY), LATER, COPY)
    with pytest.raises(PublishFailed):
        table(publish=PublishFailed("no confirm")).advance(plan)

    assert plan.steps[plan.at] is Step.PUBLISH


COUNTERS = Counters(attempts=2, crashes=1, losses=3, interruptions=9, first_failed_at=1_700_000_000.5)
HEADERS = {"tenant": "t-1", KEY: "K!", HOP: "4", REASON: "before", ERROR_CLASS: "Old"}
ENVELOPE = Envelope(Delivery(1, "d-1", "q", b"body", HEADERS), ID, 4, b"", Counters())


def test_a_retry_copy_is_one_hop_further_and_carries_the_counters() -> None:
    verdict = Verdict(Moving.RETRY, "odd\n  amount", COUNTERS, 40.0)

    message = planning.message_for(ENVELOPE, 4, verdict, "uid", "host")

    assert (message.to, message.body, message.delay) == (Target.LATER, b"body", 40.0)
    expected = {
        "tenant": "t-1",
        KEY: "k",
        ROUND: "2",
        HOP: "5",
        ATTEMPTS: "2",
        CRASHES: "1",
        LOSSES: "3",
        REASON: "odd amount",
        FIRST_FAILED_AT: "1700000000.500",
    }
    assert expected.items() <= dict(message.headers).items()
    assert WORKER not in message.headers


def test_a_dead_letter_keeps_the_hop_and_has_its_reason() -> None:
    verdict = Verdict(Moving.DEAD, "exhausted", COUNTERS, error_class="ValueError", error_text="odd\namount " * 500)

    message = planning.message_for(ENVELOPE, 4, verdict, "uid", "host")

    assert (message.to, message.delay) == (Target.DEAD, 0.0)
    assert message.headers[HOP] == "4"
    assert message.headers[ERROR_CLASS] == "ValueError"
    assert (message.headers[WORKER], message.headers[UID]) == ("host", "uid")
    assert len(message.headers[ERROR_TEXT]) == 2000
    assert message.headers[ERROR_TEXT].startswith("odd amount odd amount")
