"""
The fields that every log line of a context has, from every logger: in a run, its queue, key, attempt and fence.

The fields are context variables; their names begin like the names of structlog's `bind_contextvars`.
So a user's structlog loggers show these fields, and SteadyWorker's lines have the fields that a user binds by structlog.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from steadyworker.telemetry.logs import CONTEXT_PREFIX


class LineContext:
    """The context variables of one slot, which runs one job after another."""

    def __init__(self) -> None:
        self._variables: dict[str, contextvars.ContextVar[Any]] = {}

    @contextmanager
    def bound(self, fields: Mapping[str, Any]) -> Iterator[None]:
        """Bind these fields, until the end of the `with` block."""
        # While another thread imports structlog, the module exists without this function; nothing is bound by structlog then.
        bound_by_structlog = getattr(sys.modules.get("structlog.contextvars"), "bound_contextvars", None)
        if bound_by_structlog is not None:  # a user can bind the same names
            with bound_by_structlog(**fields):
                yield
            return
        set_here = [(variable := self._variable(name), variable.set(value)) for name, value in fields.items()]
        try:
            yield
        finally:
            for variable, token in set_here:
                variable.reset(token)

    def _variable(self, name: str) -> contextvars.ContextVar[Any]:
        return self._variables.setdefault(name, contextvars.ContextVar(f"{CONTEXT_PREFIX}{name}"))
