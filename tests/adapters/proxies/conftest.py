"""Proxies in this process, and a back-off that tests can wait for."""

from __future__ import annotations

import pytest

from steadyworker.network import backoff
from steadyworker_rocketmq.grpc import connection, consumer, held, later, publisher
from tests.adapters.proxies.fake import FakeProxy


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> FakeProxy:
    made = FakeProxy()
    monkeypatch.setattr(consumer, "GrpcSession", made.session)
    monkeypatch.setattr(later, "GrpcSession", made.session)
    monkeypatch.setattr(publisher, "Sender", made.sender)
    monkeypatch.setattr(connection, "_PROBE_EVERY", 0.1)
    monkeypatch.setattr(consumer, "_HURRY", (0.0, 0.1))
    monkeypatch.setattr(held, "_AGAIN", 0.1)
    for wait in ("FIRST", "REFUSED", "LONGEST"):
        monkeypatch.setattr(backoff, wait, 0.1)
    return made
