"""
The three pipes of a program: standard output, standard error, and descriptor 3 for its reports.

A report is one line:

| line | meaning |
|---|---|
| `progress` | the job goes on; the stall limit counts from this report |
| `progress 12` | 12 units are done |
| `progress 12 100 rows of June` | 12 of 100 units are done; the rest is a note for people |
| `checkpoint {"page": 3}` | save this JSON; the job's next run gets the JSON in the variable SW_CHECKPOINT |
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from steadyworker.clock import Clock
from steadyworker.errors import Interrupt
from steadyworker.job import Job
from steadyworker.telemetry.output_log import LONGEST_LINE, HalfLine, OutputLog
from steadyworker.text.plain_text import plain_text

_CHUNK = 1 << 16
_LONGEST_REPORT = 80 << 10  # a checkpoint has at most 64 KiB
_LINGER = 1.0
_REPORTS = "reports"


class Pipes:
    """
    The reading ends of a program's pipes, and a thread that reads them.

    The thread calls `stop` when the reply to a report shows that the run must end.
    """

    def __init__(self, job: Job[Any, Any], log: Any, clock: Clock, stop: Callable[[], None]) -> None:
        self.theirs: dict[str, int] = {}
        self.output = OutputLog(log, clock)
        self._job = job
        self._log = log
        self._stop = stop
        self._ours: dict[str, int] = {}
        self._halves: dict[str, HalfLine] = {}
        self._wake = os.pipe()
        self._warned = False
        for name in ("stdout", "stderr", _REPORTS):
            self._ours[name], self.theirs[name] = os.pipe()
            self._halves[name] = HalfLine(_LONGEST_REPORT if name == _REPORTS else LONGEST_LINE)
        self._thread = threading.Thread(target=self._read, name="exec-output", daemon=True)

    def start(self) -> None:
        """Close the program's ends here, and begin to read."""
        for end in self.theirs.values():
            os.close(end)
        self.theirs.clear()
        self._thread.start()

    def finish(self) -> None:
        """
        Read to the end, log what is left, and close the pipes; call this method when the program has ended.

        A process that has left the program's group can hold a pipe open; this method reads from such a pipe for 1 s more.
        """
        if self._thread.ident is not None:
            self._thread.join(_LINGER)
            os.write(self._wake[1], b"!")
            self._thread.join()
        for end in (*self._ours.values(), *self.theirs.values(), *self._wake):
            os.close(end)
        self.output.close()

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake[0], selectors.EVENT_READ, None)
            for name, end in self._ours.items():
                selector.register(end, selectors.EVENT_READ, name)
            while len(selector.get_map()) > 1:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    data = os.read(key.fd, _CHUNK)
                    self._handle(key.data, data)
                    if not data:
                        selector.unregister(key.fd)

    def _handle(self, name: str, data: bytes) -> None:
        """Handle the lines that this data completes; empty data is the end of the pipe."""
        lines = self._halves[name].feed(data)
        if name != _REPORTS:
            self.output.lines(name, lines)
            return
        for line in lines:
            self._report(line)

    def _report(self, line: bytes) -> None:
        word, _, rest = line.decode("utf-8", "backslashreplace").strip().partition(" ")
        try:
            match word:
                case "":
                    return
                case "progress":
                    self._progress(rest)
                case "checkpoint":
                    self._job.checkpoint(msgspec.json.decode(rest))
                case _:
                    raise ValueError("Expected a line that begins with `progress` or `checkpoint`")  # noqa: TRY301 - one place logs it
        except Interrupt:
            self._stop()
        except Exception as error:  # noqa: BLE001 - a wrong report must not end the program's run
            if not self._warned:
                self._warned = True
                about = {"line": plain_text(line, 200), "error": plain_text(error)}
                self._log.warning("report_ignored", **about, explain="steadyworker.report-ignored")

    def _progress(self, text: str) -> None:
        numbers: list[float] = []
        rest = text.strip()
        while rest and len(numbers) < 2:  # noqa: PLR2004 - done and total
            first, _, after = rest.partition(" ")
            with suppress(ValueError):
                numbers.append(float(first))
                rest = after.strip()
                continue
            break
        done, total = (*numbers, None, None)[:2]
        self._job.progress(done, total, rest)
