"""
`python -m tests.exports.killed OUT LEDGER POINT [UID]`: one export whose process dies by SIGKILL at a point of the protocol.

POINT is `link-N` (at the N-th link, before it), `word` (before the ledger hears that it is committed),
`position-N` (after the N-th saved position),
`folder-N` (an export into three files, before the N-th durable step: fsync, rename or replace), `file-size` (no kill: a disk that takes 100 kB), or `none`.
`folders`: for each such step N, a process that dies before it, forked from this one, with OUT and LEDGER in the folder N.
With a UID the export is that job's, of three rows, and replaces the file of an earlier job of its key.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from steadyworker.exports.formats import Csv
from tests.exports.kit import BY, TOTALS, FakeServices, Payments


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Death:
    """A kill before the N-th call of the kind that `point` names."""

    def __init__(self, point: str) -> None:
        self.what, _, self._at = point.partition("-")
        self._calls = 0

    def at(self, kind: str, call: Callable[..., None]) -> Callable[..., None]:
        """Return the call, which dies instead when its time has come."""

        def counted(*arguments: Any, **options: Any) -> None:
            if self.what == kind:
                self._calls += 1
                if self._calls == int(self._at):
                    die()
            call(*arguments, **options)

        return counted


def main(out: Path, ledger: Path, point: str, uid: str = "") -> None:
    death = Death(point)
    saved = 0

    def on_save(value: bytes | None) -> None:
        nonlocal saved
        if value and b"committed" in value:
            if death.what == "word":
                die()
        else:
            saved += 1
            if point == f"position-{saved - 1}":
                die()  # just before the next one: this many are in the ledger

    os.link = death.at("link", os.link)
    for step in ("fsync", "rename", "replace"):
        setattr(os, step, death.at("folder", getattr(os, step)))
    if point == "file-size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    services = FakeServices(ledger, uid=uid or "uid-1", on_save=on_save)
    source = Payments(3) if uid else Payments()
    options: dict[str, Any] = {"if_exists": "replace-own"} if uid else {}
    if death.what == "folder":
        options |= {"split_rows": 1 if uid else 4_000, "format": Csv()}
    try:
        source.export().write(services, out, totals=TOTALS, by=BY, **options)
    except Exception as error:  # noqa: BLE001 - the test reads it
        print(f"{type(error).__name__}: {error}")
        sys.exit(1)


def at_every_step(out: Path, ledger: Path, uid: str = "") -> None:
    """Fork a process for each step, which is cheaper than a new interpreter, until one ends without a kill."""
    for step in count(1):
        child = os.fork()
        if not child:
            with suppress(BaseException):
                here = [path.parent / str(step) / path.name for path in (out, ledger)]
                if uid:
                    earlier = FakeServices(here[1].with_name("earlier"), uid="uid-0")
                    Payments(10).export().write(earlier, here[0] / "payments", format=Csv(), split_rows=5)
                main(here[0] / "payments", here[1], f"folder-{step}", uid)
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    if sys.argv[3] == "folders":
        at_every_step(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[4:])
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
