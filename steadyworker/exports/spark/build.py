"""`Build`: a query that is a function of the user's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from steadyworker.errors import ExportError

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class Build:
    """
    A function that builds the DataFrame to be exported, in the place of a query.

    It is called in the Spark host as `function(spark, tables, params)`: a session for this job alone, the tables as
    DataFrames by name (they are views, too), the parameters by name as they were given; and returns a DataFrame, which is
    sorted and written as a query's result is.  It may use user-defined functions of Python's.
    The manifest has its name, and the SHA-256 of its module's file.

    Args:
        name: `module:function`, to be found on the worker's `sys.path`.

    Raises:
        ExportError: A name of another form.
    """

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ExportError(f"Expected module:function, like reports.frames:payments, got {self.name!r}: correct it.")
