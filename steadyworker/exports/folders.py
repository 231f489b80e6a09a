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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from steadyworker.clock import Clock, SystemClock
from steadyworker.exports.stage import STAGES, reap
from steadyworker.system.private import make_private_file, make_private_folder
from steadyworker.telemetry.logs import get_logger

_FORGET_AFTER = 3600.0  # seconds; a folder is remembered a moment before its stage is made


class StageFolders:
    """
    The remembered folders, as a service that jobs call (`slots.base.JobService`).

    Args:
        place: The folder of the memory; the worker processes of a host share it.
        clock: Its wall clock ages what is remembered.
    """

    def __init__(self, place: Path, clock: Clock | None = None) -> None:
        self._place, self._clock = place, clock or SystemClock()
        self._log = get_logger("steadyworker.exports")

    def open(
        self,
        request: Mapping[str, Any],
        uid: str,  # noqa: ARG002 - as the runner calls every service
        fence: int,  # noqa: ARG002
        emit: Callable[[Mapping[str, Any]], None],
    ) -> StageFolders:
        """Remember the request's `folder`; a place that cannot be written is logged, and the export goes on."""
        path = str(request["folder"])
        entry = self._place / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
        try:
            make_private_folder(self._place)
            written = entry.with_suffix(".new")
            make_private_file(written)
            written.write_bytes(os.fsencode(path))
            written.replace(entry)
        except OSError as error:
            self._log.warning("stage_folder_not_remembered", folder=path, cause=str(error))
        emit({"end": True})
        return self

    def cancel(self) -> None:
        """Do nothing: a call has ended when `open` returns."""

    def stop(self, within: float) -> None:
        """Do nothing: no call lasts."""

    def reap(self, ended: Callable[[Sequence[str]], Iterable[str]]) -> None:
        """
        Remove the stages of ended jobs from every folder, and forget the folders that have none left.

        Args:
            ended: Returns those of the given uids whose jobs are done or dead (`Ledger.ended`).
        """
        now = self._clock.wall()
        for entry in [] if not self._place.is_dir() else sorted(self._place.iterdir()):
            with suppress(OSError):  # a folder or a file system that is gone; another process forgot the folder
                path = entry.read_bytes().replace(b"\0", b"?")  # what another program wrote here may be no path
                folder = Path(os.fsdecode(path))
                reap(folder, ended)
                if now - entry.stat().st_mtime > _FORGET_AFTER and not (folder / STAGES).exists():
                    entry.unlink()
