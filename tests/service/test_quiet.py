"""A part that is stuck makes the process quiet; its recovery ends that, a person's word does not."""

from __future__ import annotations

import signal
from collections import deque
from typing import Any, cast

from steadyworker.clock import SystemClock
from steadyworker.config import resolve as config
from steadyworker.ledger.facts import OwnerCommand
from steadyworker.service.service import Service


def service(tmp_path: Any) -> Service:
    options = config.load({}, {"XDG_STATE_HOME": str(tmp_path)}, tmp_path)
    return Service(options, SystemClock(), never, cast(Any, None))


def never() -> Any:
    raise AssertionError("nothing is wired here")


def test_a_stuck_part_makes_it_quiet_until_it_turns_again(tmp_path: Any) -> None:
    made = service(tmp_path)
    made._pause_while_stuck(["runner of exports"])
    assert made.stage.name == "QUIET"
    assert made.reasons == ["stuck: runner of exports"]
    made._pause_while_stuck(["runner of exports"])
    made._pause_while_stuck([])
    assert made.stage.name == "RUNNING"
    made._pause_while_stuck([])
    assert made.reasons == ["stuck: runner of exports", "no thread is stuck any more"]


def test_a_person_s_quiet_is_not_ended_by_a_part_s_recovery(tmp_path: Any) -> None:
    made = service(tmp_path)
    made._pause_while_stuck(["runner of exports"])
    made._signals.put(signal.SIGUSR1)
    made._wait_for_signal(0.0)
    made._pause_while_stuck([])
    assert made.stage.name == "QUIET"
    made._signals.put(signal.SIGUSR2)
    made._wait_for_signal(0.0)
    assert made.stage.name == "RUNNING"


def test_a_command_in_the_ledger_does_what_the_signals_do(tmp_path: Any) -> None:
    """And it names the person."""
    made = service(tmp_path)
    made._pause_while_stuck(["runner of exports"])
    made._obey(deque([OwnerCommand("quiet", "ada@ops", 0.0)]))
    made._pause_while_stuck([])
    assert made.stage.name == "QUIET"
    commands = deque([OwnerCommand("resume", "bob@ops", 0.0), OwnerCommand("quiet", "bob@ops", 0.0)])
    made._obey(commands)
    assert (made.stage.name, list(commands)) == ("QUIET", [])
    made._obey(deque([OwnerCommand("resume", "ada@ops", 0.0)]))
    assert made.stage.name == "RUNNING"
    assert made.reasons[1:] == [
        "the command resume by bob@ops",
        "the command quiet by bob@ops",
        "the command resume by ada@ops",
    ]


def test_a_stop_is_not_left_for_a_recovery(tmp_path: Any) -> None:
    made = service(tmp_path)
    made._pause_while_stuck(["runner of exports"])
    made.drain("SIGTERM")
    made._pause_while_stuck([])
    assert made.stage.name == "DRAINING"
