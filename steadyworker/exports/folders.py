"""
The folders in which this host's jobs have made stages, remembered until the stages are gone.

A run removes its stage when its file is in place, or when its job is cancelled while it exports.
A run that was killed cannot, and perhaps no job exports to its folder again.
So each worker process removes the stages of jobs that have ended from all remembered folders, each time that it purges the ledger.

`<state directory>/stages` has one file for each folder, with the folder's path in it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from steadyworker.clock import Clock, SystemClock
from steadyworker.exports.stage import STAGES, reap
from steadyworker.telemetry.logs import get_logger

_FORGET_AFTER = 3600.0  # seconds; a folder is remembered a moment before its stage is made


class StageFolders:
    """
    The remembered folders.

    Args:
        place: The folder of the memory; the worker processes of a host share it.
        clock: Its wall clock ages what is remembered.
    """

    def __init__(self, place: Path, clock: Clock | None = None) -> None:
        self._place, self._clock = place, clock or SystemClock()
        self._log = get_logger("steadyworker.exports")

    def remember(self, folder: bytes) -> None:
        """Remember this folder; a place that cannot be written is logged, and the export goes on."""
        entry = self._place / hashlib.sha256(folder).hexdigest()[:32]
        try:
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            written = entry.with_suffix(".new")
            written.write_bytes(folder)
            written.replace(entry)
        except OSError as error:
            self._log.warning("stage_folder_not_remembered", folder=os.fsdecode(folder), cause=str(error))

    def reap(self, ended: Callable[[Sequence[str]], Iterable[str]]) -> None:
        """
        Remove the stages of ended jobs from every folder, and forget the folders that have none left.

        Args:
            ended: Returns those of the given uids whose jobs are done or dead (`Ledger.ended`).
        """
        now = self._clock.wall()
        for entry in [] if not self._place.is_dir() else sorted(self._place.iterdir()):
            with suppress(OSError):  # a folder or a file system that is gone; another process forgot the folder
                folder = Path(os.fsdecode(entry.read_bytes()))
                reap(folder, ended)
                if now - entry.stat().st_mtime > _FORGET_AFTER and not (folder / STAGES).exists():
                    entry.unlink()
