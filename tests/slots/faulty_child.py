"""
A child that raises an exception at one place of its main thread or its reader thread.

It appends each place that it reaches to the file in `FAULTY_PLACES`.
It takes the place at which to raise from the file in `FAULTY_AT`, and removes that file when it raises: the next child is sound.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from steadyworker.slots import child
from tests.slots.tracer import Place, Tracer


class FileTracer(Tracer):
    """A tracer whose memory outlives its process."""

    def reached(self, place: Place) -> None:
        if place not in self.places:
            with Path(os.environ["FAULTY_PLACES"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(place) + "\n")
        super().reached(place)


def place_of(text: str) -> Place:
    return tuple((file, line, event) for file, line, event in json.loads(text))


def main() -> None:
    at = Path(os.environ["FAULTY_AT"])
    tracer = FileTracer([child], place_of(at.read_text(encoding="utf-8")) if at.exists() else None)
    tracer.on_raise = at.unlink
    for name in ("live", "_read"):
        setattr(child.Child, name, tracer.around(getattr(child.Child, name)))
    child.main()


if __name__ == "__main__":
    main()
