"""`python -m tests.exports.stores.killed URL LEDGER [split]`: one export, during which the test kills this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from steadyworker.exports.formats import Csv
from tests.exports.kit import FakeServices
from tests.exports.s3.store import wide


def main(url: str, ledger: str, how: str = "") -> None:
    split: dict[str, Any] = {"split_rows": 3_000, "format": Csv()} if how == "split" else {}
    print(wide(9_000).write(FakeServices(Path(ledger)), url, **split).sha256)


if __name__ == "__main__":
    main(*sys.argv[1:])
