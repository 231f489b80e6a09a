"""
A webhook when an export is ready, with a signature: only Python's own library.

A receiver can get the call twice, because a run can end between the call and the acknowledgement.
So the call has the job's key as `Idempotency-Key`, and a receiver ignores a key that it has seen.
The receiver checks `X-Signature`, the HMAC of the body with the secret that WEBHOOK_SECRET_FILE names.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import urllib.error
import urllib.request
from pathlib import Path

from payments import PaymentRequest, payments

from steadyworker import Job, Reject, Retry, Worker


class AnnouncedExports(Worker[PaymentRequest]):
    queue = "announced-exports"
    time_limit = 3600

    def handle(self, job: Job[PaymentRequest]) -> None:
        made = job.export(payments(job.payload.merchant), to=f"exports/{job.name}.csv")
        announce(job.key, {"file": made.name, "rows": made.rows, "bytes": made.bytes, "sha256": made.sha256})


def announce(key: str, facts: dict[str, object]) -> None:
    """Call the webhook; a server that is away is called again later, and a server that refuses ends the job."""
    body = json.dumps({"key": key, **facts}).encode()
    secret = Path(os.environ["WEBHOOK_SECRET_FILE"]).read_bytes().strip()
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": key,
        "X-Signature": "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest(),
    }
    call = urllib.request.Request(os.environ["WEBHOOK_URL"], body, headers)  # noqa: S310 - the operator sets the URL
    try:
        with urllib.request.urlopen(call, timeout=30):  # noqa: S310
            return
    except urllib.error.HTTPError as error:
        with error:
            if error.code in {408, 429, 500, 502, 503, 504}:
                raise Retry(f"webhook: {error.code}") from error
            raise Reject(f"webhook: {error.code}") from error
    except OSError as error:
        raise Retry(f"webhook: {error}") from error
