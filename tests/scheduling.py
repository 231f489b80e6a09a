"""
Decides which xdist worker runs which test: `--dist loadgroup`, with the long tests first.

Tests with the same `xdist_group` run on one worker, in order, so that what they share is made once.
Groups are handed out first, then what `make test-fast` leaves out, by its time limits, and what is quick at last.
So no long test is left for the end, when the other workers have nothing to do.

xdist 3.8 puts the group into a test's name, which pytest 9.2 does not let it do any more: its groups have no effect.
Here a worker writes the groups to a file, and the names stay as they are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.brokers.fixtures import SOCKET, owner_key


def group(item: pytest.Item) -> str:
    """Return the group of a test: its mark's, or its module where a fixture is made once for that; empty for most."""
    if mark := item.get_closest_marker("xdist_group"):
        return str(mark.args[0])
    fixtures = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    return item.path.name if any(made[-1].scope == "module" for made in fixtures) else ""


def urgency(item: pytest.Item) -> tuple[bool, bool, float]:
    """Return what tests are sorted by: groups first, then those that wait or compute, with the longest time limit first."""
    limit = item.get_closest_marker("timeout")
    quick = not any(item.get_closest_marker(mark) for mark in ("long", "processes", "rabbitmq", "postgres"))
    return not group(item), quick, -float(limit.args[0]) if limit and limit.args else 0.0


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out one group at a time, or one test that has none, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        config.option.loadscopereorder = False
        self._groups: dict[str, str] = {}
        self._read = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        if not self._read:
            self._read = True
            self._groups = json.loads(_file(self.config.stash[owner_key].socket).read_text(encoding="utf-8"))
        return str(self._groups.get(nodeid, nodeid))


def _file(socket: str) -> Path:
    """Return the file of this run's groups: beside the socket, in a folder that is gone with the controlling process."""
    return Path(socket).with_name("groups.json")


# --- What pytest and xdist ask ----------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    return Groups(config, log) if config.option.dist == "loadgroup" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=urgency)


@pytest.hookimpl(tryfirst=True)  # before the worker says that it has collected
def pytest_collection_finish(session: pytest.Session) -> None:
    given = getattr(session.config, "workerinput", None)
    if given is not None:
        file = _file(given[SOCKET])
        half = file.with_suffix(f".{os.getpid()}")
        half.write_text(
            json.dumps({item.nodeid: group(item) for item in session.items if group(item)}), encoding="utf-8"
        )
        half.replace(file)
