"""
`python -m tests.exports.killed OUT LEDGER POINT [UID]`: one export whose process dies by SIGKILL at a point of the protocol.

POINT is `link-N` (at the N-th link, before it), `word` (before the ledger hears that it is committed),
`position-N` (after the N-th saved position), `file-size` (no kill: a disk that takes 100 kB), or `none`.
With a UID the export is that job's, of three rows, and replaces the file of an earlier job of its key.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from tests.exports.kit import BY, TOTALS, FakeServices, Payments


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(out: Path, ledger: Path, point: str, uid: str = "") -> None:
    what, _, at = point.partition("-")
    calls = {"link": 0, "position": 0}
    link = os.link

    def wrapped(*arguments: Any, **options: Any) -> None:
        calls["link"] += 1
        if what == "link" and calls["link"] == int(at):
            die()
        link(*arguments, **options)

    def on_save(value: bytes | None) -> None:
        if value and b"committed" in value:
            if what == "word":
                die()
        else:
            calls["position"] += 1
            if what == "position" and calls["position"] == int(at) + 1:
                die()  # just before the next one: this many are in the ledger

    os.link = wrapped
    if point == "file-size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    services = FakeServices(ledger, uid=uid or "uid-1", on_save=on_save)
    source = Payments(3) if uid else Payments()
    try:
        source.export().write(services, out, totals=TOTALS, by=BY, if_exists="replace-own" if uid else "fail")
    except Exception as error:  # noqa: BLE001 - the test reads it
        print(f"{type(error).__name__}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
