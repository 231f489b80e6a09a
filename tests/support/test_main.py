"""The wrapper of `tests.support.main` is what its adapter is: the core asks for optional methods by `isinstance`."""

from __future__ import annotations

from inspect import getattr_static
from pathlib import Path
from typing import Any

import pytest

from steadyworker.adapter import QueueSpec, Renamable, Settings, SettlesAsync
from steadyworker_rabbitmq import RabbitmqAdapter
from steadyworker_sqlite import SqliteAdapter
from steadyworker_stomp import StompAdapter
from tests.support.main import Wrapped

SPEC = QueueSpec("exports", "exports.dead")
METHODS = ("settle_async", "may_have_been")


@pytest.mark.parametrize(("kind", "url"), [(RabbitmqAdapter, "amqp://h"), (StompAdapter, "stomp://h")])
def test_optional_methods_are_found_without_getattr_as_python_3_12_looks_for_them(kind: Any, url: str) -> None:
    adapter = kind(url, SPEC, Settings())
    wrapped = Wrapped(adapter, "adapter", {})
    assert isinstance(wrapped, Renamable)
    assert isinstance(wrapped, SettlesAsync)
    for name in METHODS:
        assert getattr_static(wrapped, name) == getattr(adapter, name)
    adapter.stop(0)


def test_an_adapter_without_them_has_none(tmp_path: Path) -> None:
    adapter = SqliteAdapter(tmp_path / "broker.db", SPEC, Settings())
    wrapped = Wrapped(adapter, "adapter", {})
    assert not isinstance(wrapped, Renamable)
    assert not isinstance(wrapped, SettlesAsync)
    adapter.stop(0)


def test_an_optional_method_can_be_the_point() -> None:
    adapter = StompAdapter("stomp://h", SPEC, Settings())
    wrapped: Any = Wrapped(adapter, "adapter", {"hang": "adapter.settle_async"})
    assert getattr_static(wrapped, "settle_async") != adapter.settle_async
    adapter.stop(0)
