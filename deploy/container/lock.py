"""
Writes `slim.lock`, `spark.lock` and `build.lock`: the lines of requirements.lock that the images need. `make lock` runs it.

It reads the dependencies of the installed packages, so run it in the environment of requirements.lock.
"""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).parent
WHOLE = HERE.parents[1] / "requirements.lock"
WANTED = {
    "slim": ["steadyworker[rabbitmq,stomp,postgres,metrics]"],
    "spark": ["steadyworker[rabbitmq,stomp,postgres,metrics,spark]"],
    "build": ["hatchling", "setuptools", "wheel"],
}
"""What each lock is for; `build` packs SteadyWorker (hatchling) and pyspark, which has no wheel (setuptools)."""


def locks() -> dict[str, str]:
    """Return the text of each lock by its name."""
    blocks = {_name(block): block for block in re.split(r"\n(?=\S)", WHOLE.read_text(encoding="utf-8").strip())}
    found = {}
    for lock, wanted in WANTED.items():
        names = set().union(*(_closure(Requirement(each)) for each in wanted)) - {"steadyworker"}
        missing = sorted(names - blocks.keys())
        if missing:
            raise SystemExit(f"Expected {', '.join(missing)} in {WHOLE}, got none: run `make lock`.")
        lines = "\n".join(blocks[name] for name in sorted(names))
        found[f"{lock}.lock"] = f"# Written by deploy/container/lock.py from requirements.lock.\n{lines}\n"
    return found


def _closure(requirement: Requirement, seen: frozenset[tuple[str, str]] = frozenset()) -> set[str]:
    """Return the names of the requirement and of everything that it needs."""
    name = _normal(requirement.name)
    found = {name}
    for line in distribution(name).requires or ():
        needed = Requirement(line)
        for extra in ["", *requirement.extras]:
            key = (f"{name}[{extra}]", line)
            applies = needed.marker is None or needed.marker.evaluate({"extra": extra})
            if applies and key not in seen:
                found |= _closure(needed, seen | {key})
    return found


def _name(block: str) -> str:
    return _normal(block.partition("==")[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    for path, text in locks().items():
        (HERE / path).write_text(text, encoding="utf-8")
