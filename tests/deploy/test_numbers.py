"""Each number for a platform, and the reason that it must be no smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steadyworker.adapter import Capabilities
from steadyworker.config.resolve import load
from steadyworker.deploy.numbers import PROBE_EVERY, Numbers, numbers_of
from steadyworker.service import monitor
from steadyworker.spec import spec_of
from steadyworker.worker import Worker

EMBEDDED = Capabilities(one_host=True)
RABBITMQ = Capabilities(forgets_consumers_within=180.0)


class Exports(Worker[dict[str, str]]):
    queue = "exports"
    time_limit = 3 * 3600

    def handle(self, job: object) -> None:
        """Nothing to do."""


class Refunds(Worker[dict[str, str]]):
    queue = "refunds"
    time_limit = "10m"

    def handle(self, job: object) -> None:
        """Nothing to do."""


class Endless(Worker[dict[str, str]]):
    queue = "endless"
    time_limit = None

    def handle(self, job: object) -> None:
        """Nothing to do."""


def numbers(*workers: type[Worker[Any, Any]], broker: Capabilities = EMBEDDED, **settings: Any) -> Numbers:
    specs = [spec_of(worker) for worker in workers or (Exports,)]
    options = load(settings, {"HOME": "/home/joe"}, Path("/nowhere"))
    return numbers_of(specs, options, [broker for _ in specs])


def test_the_default_stop_fits_exactly_into_what_kubernetes_allows_by_default() -> None:
    assert numbers().grace == 30


@pytest.mark.parametrize(("within", "grace"), [(60, 62), (28.4, 31), ("2h", 7202)])
def test_the_grace_is_the_stop_budget_and_the_exit_after_it(within: object, grace: int) -> None:
    assert numbers(stop_within=within).grace == grace


def test_the_watchdog_waits_as_long_as_broker_and_ledger_keep_the_jobs_of_a_process_that_stands_still() -> None:
    assert numbers(broker=EMBEDDED).watchdog == 90  # lease and margin
    assert numbers(broker=Capabilities(forgets_consumers_within=30.0)).watchdog == 90  # three heartbeats are less
    assert numbers(broker=RABBITMQ).watchdog == 180  # three heartbeats


def test_the_watchdog_of_several_workers_is_that_of_the_slowest_broker() -> None:
    specs = [spec_of(Exports), spec_of(Refunds)]
    options = load({}, {"HOME": "/home/joe"}, Path("/nowhere"))
    assert numbers_of(specs, options, [EMBEDDED, RABBITMQ]).watchdog == 180


def test_a_healthy_process_feeds_the_watchdog_several_times_in_its_time() -> None:
    assert numbers().watchdog / 3 > monitor._EXTEND_BY + 2 * monitor._CHECK_EVERY


def test_a_part_that_is_stuck_is_known_before_the_watchdog_bites() -> None:
    """So the log names the part before systemd ends the process."""
    assert max(monitor._TURN_LIMIT, monitor._SLOT_TURN_LIMIT) < numbers().watchdog


def test_a_stop_of_hours_needs_no_silence_of_hours() -> None:
    assert numbers(stop_within="6h").stop_silence == 90
    assert numbers(stop_within="6h", broker=RABBITMQ).stop_silence == 180
    assert numbers().stop_silence == 30
    assert numbers(stop_within=13).stop_silence > monitor._EXTEND_BY


def test_jobs_can_finish_in_their_time_limit_and_the_end_of_a_stop() -> None:
    assert numbers(Exports, Refunds).finishes_within == 3 * 3600 + 13
    assert numbers(Refunds).finishes_within == 613
    assert numbers(Exports, Endless).finishes_within is None


def test_jobs_are_interrupted_thirteen_seconds_before_the_end_of_a_stop() -> None:
    assert numbers().interrupts_after == 15
    assert numbers(stop_within=5).interrupts_after == 0


def test_probes_end_a_process_after_the_time_of_the_watchdog() -> None:
    for each in (numbers(), numbers(broker=RABBITMQ)):
        assert each.live_failures * PROBE_EVERY >= each.watchdog
    assert numbers().live_failures == 9
    assert numbers(broker=RABBITMQ).live_failures == 18
