"""Every flag of a trace is an entry of the catalogue, and has a remedy from there."""

from __future__ import annotations

import re
from pathlib import Path

import steadyworker.diagnosis
from tests.diagnosis.explaining import catalogue

FLAG = re.compile(r'"((?:amqp|rabbitmq|stomp|rocketmq|trace)\.(?!html)[a-z-]+)"')


def test_every_flag_is_in_the_catalogue_with_a_remedy_that_is_a_whole_sentence() -> None:
    files = Path(steadyworker.diagnosis.__file__).parent.glob("*.py")
    flags = {flag for file in files for flag in FLAG.findall(file.read_text(encoding="utf-8"))}
    assert flags <= catalogue().keys()
    assert len(flags) > 40
    for entry in map(catalogue().__getitem__, flags):
        assert not re.search(r"\{[a-z_]+[|}]|<[a-z_]+>", entry.filled(entry.remedies[0], {})), entry.id
