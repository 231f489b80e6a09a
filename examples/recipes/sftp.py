"""
An export to a partner's SFTP server: `pip install asyncssh`.

The file gets its name when it is complete, so the partner never reads a part of it.
If the run ends before the message is acknowledged, the next run uploads the same bytes under the same name again.
The key of SSH and the server's key are in the files that SFTP_KEY_FILE and SFTP_KNOWN_HOSTS name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import asyncssh
from payments import PaymentRequest, payments

from steadyworker import Job, Retry, Worker


class SftpExports(Worker[PaymentRequest]):
    queue = "sftp-exports"
    time_limit = 3600

    def handle(self, job: Job[PaymentRequest]) -> None:
        file = Path("exports", f"{job.name}.csv.gz")
        job.export(payments(job.payload.merchant), to=file)
        try:
            asyncio.run(upload(file, lambda done, total: job.progress(done, total, "uploading")))
        except (OSError, asyncssh.Error) as error:
            raise Retry(f"SFTP: {error}") from error


async def upload(file: Path, progress: Callable[[int, int], None]) -> None:
    """Upload the file, and give it its name at the end; a slow upload reports its progress, so that it is not stalled."""
    async with (
        asyncssh.connect(
            os.environ["SFTP_HOST"],
            int(os.environ.get("SFTP_PORT", "22")),
            username=os.environ["SFTP_USER"],
            client_keys=[os.environ["SFTP_KEY_FILE"]],
            known_hosts=os.environ["SFTP_KNOWN_HOSTS"],
            connect_timeout=30,
        ) as server,
        server.start_sftp_client() as sftp,
    ):
        part = f".{file.name}.part"
        await sftp.put(file, part, progress_handler=lambda _from, _to, done, total: progress(done, total))
        await sftp.posix_rename(part, file.name)  # replaces the file of an earlier run
