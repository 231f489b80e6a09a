"""
An export for a person, in an archive with a password: `pip install pyzipper 'steadyworker[xlsx]'`.

The archive is a ZIP file with AES-256, which 7-Zip, WinZip, Keka and the Finder open.
Its password is in the file that ARCHIVE_PASSWORD_FILE names, so it is in no payload, log or manifest.
The plain file stays beside its manifest, in a folder that only the worker process reads.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyzipper
from payments import PaymentRequest, payments

from steadyworker import Job, Worker


class EncryptedExports(Worker[PaymentRequest]):
    queue = "encrypted-exports"
    time_limit = 3600

    def handle(self, job: Job[PaymentRequest]) -> None:
        file = Path("private", f"{job.name}.xlsx")
        job.export(payments(job.payload.merchant), to=file)
        password = Path(os.environ["ARCHIVE_PASSWORD_FILE"]).read_bytes().strip()
        encrypt(file, Path("exports", f"{job.name}.zip"), password)


def encrypt(file: Path, archive: Path, password: bytes) -> None:
    """Make the archive, whole or not at all; a second run replaces it."""
    archive.parent.mkdir(exist_ok=True)
    part = archive.with_name(f".{archive.name}.part")
    with pyzipper.AESZipFile(part, "w", pyzipper.ZIP_STORED, encryption=pyzipper.WZ_AES) as zipped:
        zipped.setpassword(password)
        zipped.write(file, file.name)  # stored, because XLSX is compressed; use ZIP_DEFLATED for CSV
    part.replace(archive)
