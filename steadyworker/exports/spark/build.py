"""`Build`: a function of the user that takes the place of a query."""

from __future__ import annotations

import re
from dataclasses import dataclass

from steadyworker.errors import ExportRejected

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class Build:
    """
    The name of a function that builds the DataFrame of an export, instead of a query.

    The Spark host calls this function as `function(spark, tables, params)`:

    - `spark` is a session for this job alone.
    - `tables` maps each table's name to its DataFrame; each table is also a view.
    - `params` maps each parameter's name to its value.

    The function returns a DataFrame, which Spark sorts and writes like a query's result.
    The function should only read, because each run of the job calls it again.
    The function can use Python's user-defined functions.
    The manifest contains the function's name, and the SHA-256 of its module's file.

    Args:
        name: `module:function`; the worker process must find the module on its `sys.path`.

    Raises:
        ExportRejected: The name does not have this form.
    """

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ExportRejected(
                f"Expected module:function, like reports.frames:payments, got {self.name!r}: correct it."
            )
