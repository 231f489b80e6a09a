"""
A record of the folders, on this host and in stores, that have stages.

A run removes its stage when it has published its file, or when its job is cancelled during the export.
A killed run leaves its stage behind, and perhaps no later job exports to the same folder.
So each worker process removes the stages of ended jobs from all recorded folders whenever it purges the ledger.

`<state directory>/stages` has one file for each folder; the file contains the folder's path, or the address of a folder in a store as JSON.
The worker process reaches a store as the job did, by the own settings of its library.
This module is the service `stages` of the worker process (entry point `stages`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from steadyworker.clock import Clock, SystemClock
from steadyworker.config.options import Option
from steadyworker.config.services import ServiceSettings
from steadyworker.errors import ExportError, Finding
from steadyworker.exports.stage import REMEMBERED, STAGES, reap
from steadyworker.exports.stores.reaping import reap_address, recorded_address
from steadyworker.system.private import make_private_file, make_private_folder
from steadyworker.telemetry.logs import get_logger

_FORGET_AFTER = 3600.0  # seconds; a younger entry is kept, because a run records a folder before it makes the stage


OPTIONS: tuple[Option, ...] = ()
"""An empty tuple, because the service has no settings."""


def findings(settings: ServiceSettings) -> tuple[Finding, ...]:
    """Return no findings, because there are no settings."""
    del settings
    return ()


def open_service(settings: ServiceSettings) -> StageFolders:
    """Return the service."""
    return StageFolders(settings.folder, settings.clock)


class StageFolders:
    """
    The recorded folders, as a `slots.base.JobService`.

    Args:
        place: The folder with the record; all worker processes of a host share this folder.
        clock: Its wall time gives the age of an entry.
    """

    def __init__(self, place: Path, clock: Clock | None = None) -> None:
        self._place, self._clock = place, clock or SystemClock()
        self._log = get_logger("steadyworker.exports")

    def open(
        self, request: Mapping[str, Any], uid: str, fence: int, emit: Callable[[Mapping[str, Any]], None]
    ) -> StageFolders:
        """Record the folder `request["folder"]`, a path or the record of a bucket, in bytes; the call ends when this method returns."""
        del uid, fence
        self.remember(request["folder"])
        emit({"end": True})
        return self

    def cancel(self) -> None:
        """Do nothing: each call is over as soon as `open` returns."""

    def stop(self, within: float) -> None:
        """Do nothing: each call is over as soon as `open` returns."""

    def remember(self, folder: bytes) -> None:
        """Record this folder; if that fails, log a warning and let the export continue."""
        entry = self._place / hashlib.sha256(folder).hexdigest()[:32]
        try:
            make_private_folder(self._place)
            written = entry.with_suffix(".new")
            make_private_file(written)
            written.write_bytes(folder)
            written.replace(entry)
        except OSError as error:
            fields = {"folder": os.fsdecode(folder), "cause": str(error), "explain": "steadyworker.stage-folder"}
            self._log.warning("stage_folder_not_remembered", **fields)

    def purge(self, ended: Callable[[Sequence[str]], Iterable[str]]) -> None:
        """
        Remove the stages of ended jobs from every recorded folder, and remove each entry whose folder has no stage left.

        Args:
            ended: A function that gets uids, and returns the uids of jobs that are done or dead (`Ledger.ended`).

        Raises:
            ExportError: A bucket refused a request, or did not respond; all other folders are done then.
                After 30 days of such errors, the bucket's entry is removed.
        """
        now = self._clock.wall()
        failed: ExportError | None = None
        for entry in [] if not self._place.is_dir() else sorted(self._place.iterdir()):
            with suppress(OSError):  # the folder or its file system is gone, or another process removed the entry
                left, age = False, _FORGET_AFTER
                try:
                    left = _reap(entry.read_bytes(), ended)
                except ExportError as error:
                    failed, age = error, REMEMBERED
                if not left and now - entry.stat().st_mtime > age:
                    entry.unlink()
        if failed is not None:
            raise failed


def _reap(place: bytes, ended: Callable[[Sequence[str]], Iterable[str]]) -> bool:
    """Remove the stages of ended jobs from a recorded folder, and return whether stages are left; raise as `reap_address`."""
    if place.startswith(b"{"):
        address = recorded_address(place)
        return address is not None and reap_address(address, ended)
    folder = Path(os.fsdecode(place.replace(b"\0", b"?")))  # another program's entry can be an invalid path
    reap(folder, ended)
    return (folder / STAGES).exists()
