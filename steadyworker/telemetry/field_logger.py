"""
A logger of lines with fields, over a logger of the standard library.

SteadyWorker's own lines go through it; the code of users logs by structlog (`Job.log`).
The import of structlog takes a third of a child's start and 7 MB of its memory, because structlog imports asyncio and rich.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


class FieldLogger:
    """
    A logger whose lines have fields: `log.info("page_read", page=3)`.

    The first argument is the line's event; `%` puts further arguments without a name into the event.
    `exc_info=True` adds the present exception to the line, and `stack_info=True` adds the stack.
    A logging call raises nothing if its line cannot be written.
    """

    def __init__(self, log: logging.Logger, fields: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._log = log
        self._fields = fields

    def bind(self, **fields: Any) -> FieldLogger:
        """Return a logger whose lines have these fields, too."""
        return FieldLogger(self._log, {**self._fields, **fields})

    def debug(self, event: object, /, *args: Any, **fields: Any) -> None:
        """Write a line of level debug."""
        self.log(logging.DEBUG, event, *args, **fields)

    def info(self, event: object, /, *args: Any, **fields: Any) -> None:
        """Write a line of level info."""
        self.log(logging.INFO, event, *args, **fields)

    def warning(self, event: object, /, *args: Any, **fields: Any) -> None:
        """Write a line of level warning."""
        self.log(logging.WARNING, event, *args, **fields)

    def error(self, event: object, /, *args: Any, **fields: Any) -> None:
        """Write a line of level error."""
        self.log(logging.ERROR, event, *args, **fields)

    def critical(self, event: object, /, *args: Any, **fields: Any) -> None:
        """Write a line of level critical."""
        self.log(logging.CRITICAL, event, *args, **fields)

    def exception(self, event: object, /, *args: Any, **fields: Any) -> None:
        """Write a line of level error with the present exception."""
        self.log(logging.ERROR, event, *args, **{"exc_info": True, **fields})

    def log(self, level: int, event: object, /, *args: Any, **fields: Any) -> None:
        """Write a line of this level, such as `logging.INFO`."""
        if self._log.isEnabledFor(level):
            line = {**self._fields, **fields, "event": event}
            if args:
                line["positional_args"] = args
            self._log.log(level, line, extra=marked(self._log, logging.getLevelName(level).lower()))


def marked(log: logging.Logger, name: str) -> dict[str, Any]:
    """Return the attributes of a record whose message is a line's fields; structlog's formatter recognises them, too."""
    return {"_logger": log, "_name": name}
