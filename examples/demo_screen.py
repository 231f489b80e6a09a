"""The demo's output: sentences and progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

_LINES_ARE_WIDE = 150


class Screen:
    """Prints to standard output; respects NO_COLOR and pipes."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, markup=False, width=_LINES_ARE_WIDE)
        self._bars = Progress(
            TextColumn("  {task.description:<16}"), BarColumn(), MofNCompleteColumn(), console=self._console
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def chapter(self, text: str) -> None:
        """Print a heading."""
        self._console.print()
        self._console.print(text, style="bold", soft_wrap=True)

    def say(self, text: str, style: str = "") -> None:
        """Print one line."""
        self._console.print("  " + text, style=style, soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table."""
        self._console.print()
        self._console.print(table)

    def progress(self, key: str, done: float, total: float | None) -> None:
        """Show the progress of a job; only on a terminal."""
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(key)
        self._bars.update(self._tasks[key], completed=int(done), total=None if total is None else int(total))

    def settled(self, key: str) -> None:
        """Remove the job's progress bar."""
        if key in self._tasks:
            self._bars.remove_task(self._tasks.pop(key))

    def event(self, line: Mapping[str, Any]) -> None:
        """Show a worker's log line, if it is one of those below."""
        key = line.get("key", "")
        match line.get("event"):
            case "worker_started":
                self.say(f"worker process {line['worker']} has started", "cyan")
            case "spark_host_ready":
                self.say(f"Spark has started, in its own process group: {line['pid']}", "cyan")
            case "spark_host_died":
                self.say("Spark died: its export starts again inside the same run", "yellow")
            case "job_started":
                why = "tried again" if line["why"] == "after moved" else line["why"]
                self.say(f"{key}: a run starts ({why})")
            case "reading" if line["first_row"]:
                self.say(f"{key}: continues at row {line['first_row']:,}", "bold green")
            case "job_settled" if line["settlement"] == "ack":
                self.settled(key)
                self.say(f"{key}: done", "green")
            case "job_settled" if line["settlement"] == "later":
                self.say(f"{key}: {line['reason']}; retried in a second", "yellow")
            case "job_settled" if line["settlement"] == "dead-letter":
                self.settled(key)
                self.say(f"{key}: dead letter, {line['reason']}", "red")
            case "taken_over":
                self.say(f"{key}: its worker process is dead, and this one takes the job over", "yellow")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of text."""
    framed = Table(*columns, title=title, title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        framed.add_row(*row)
    return framed
