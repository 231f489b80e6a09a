"""
`python -m tests.exports.s3.killed ENDPOINT BUCKET KEY LEDGER POINT [UID [split|replace]]`: one export whose process dies by SIGKILL at a request.

POINT is `before-OPERATION-N` or `after-OPERATION-N`, for the N-th request of this operation, such as `before-UploadPart-1`; or `none`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from steadyworker.exports.formats import Csv
from steadyworker.exports.s3 import bucket
from steadyworker.exports.s3.address import S3
from tests.exports.kit import FakeServices
from tests.exports.s3.store import Store, wide


def main(endpoint: str, name: str, key: str, ledger: str, point: str, uid: str = "uid-1", how: str = "") -> None:
    connect = bucket._client
    calls: dict[str, int] = {}

    def mortal(address: S3) -> Any:
        client = connect(address)

        def seen(event_name: str, **more: object) -> None:
            when, _, operation = event_name.split(".")
            which = f"{when.removesuffix('-call')}-{operation}"
            calls[which] = calls.get(which, 0) + 1
            if point == f"{which}-{calls[which]}":
                os.kill(os.getpid(), signal.SIGKILL)

        client.meta.events.register("before-call.s3", seen)
        client.meta.events.register("after-call.s3", seen)
        return client

    setattr(bucket, "_client", mortal)  # noqa: B010
    hows: dict[str, dict[str, Any]] = {
        "": {},
        "split": {"split_rows": 5_000, "format": Csv()},
        "replace": {"if_exists": "replace-own"},
    }
    to = Store(None, name, endpoint).at(key)
    try:
        manifest = wide().write(FakeServices(Path(ledger), uid=uid), to, **hows[how])
    except Exception as error:  # noqa: BLE001 - the test reads it
        print(f"{type(error).__name__}: {error}")
        sys.exit(1)
    print(manifest.uid, manifest.sha256)


if __name__ == "__main__":
    main(*sys.argv[1:])
