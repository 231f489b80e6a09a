"""
A real worker process whose ledger and adapter SIGKILL it at the n-th call of a name: `ledger.claim:after:1`.

Killing here needs no failpoint in shipped code.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from steadyworker import config, logs
from steadyworker.assemble import assemble, plan
from steadyworker.service import Service
from steadyworker.vigil import Vigil
from steadyworker.worker import load_worker


class Killing:
    """Relays every call, and kills this process before or after the n-th call of one name."""

    def __init__(self, real: Any, kind: str, point: str) -> None:
        owner, _, rest = point.partition(".")
        self._real = real
        self._name, self._when, self._left = "", "", 0
        if owner == kind:
            self._name, self._when, count = rest.split(":")
            self._left = int(count)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name != self._name:
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = real(*arguments, **options)
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call


def main() -> int:
    """Run one Worker; `KILL_POINT` says where it dies."""
    point = os.environ.get("KILL_POINT", "")
    options = config.load({}, os.environ, Path.cwd())
    logs.configure("json", "info")
    planned = plan([load_worker(sys.argv[1])], options)
    killing = type(planned)(
        planned.options,
        planned.specs,
        Killing(planned.ledger, "ledger", point),  # type: ignore[arg-type]
        [Killing(adapter, "adapter", point) for adapter in planned.adapters],  # type: ignore[misc]
        planned.clock,
        planned.times,
    )
    return Service(options, planned.clock, lambda: assemble(killing), Vigil(planned.clock, planned.times, None, {})).run()


if __name__ == "__main__":
    sys.exit(main())
