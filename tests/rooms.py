"""
The weight of each room: its files, and its lines of Python or of TOML.

`python -m tests.rooms` prints the table; `python -m tests.rooms COMMIT` prints it beside that of an earlier commit.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]

CORE = (
    "ledger", "runner", "slots", "service", "network", "programs", "telemetry", "system", "config", "backends", "text",
    "cli", "actions", "testing",
)  # fmt: skip
SIDE_HOUSES = ("exports", "diagnosis", "dashboard", "pages")

GROUPS: dict[str, tuple[str, ...]] = {
    "the core": ("steadyworker/*.py", *(f"steadyworker/{room}/" for room in CORE)),
    "deploy, with its command": ("steadyworker/deploy/", "steadyworker/cli/deploy.py"),
    "adapters": tuple(f"adapters/steadyworker_{name}/" for name in ("rabbitmq", "rocketmq", "stomp", "sqlite")),
    "side houses": tuple(f"steadyworker/{name}/" for name in SIDE_HOUSES),
    "tests": ("tests/",),
}
ENTRIES = "steadyworker/diagnosis/entries/"


def files(commit: str | None) -> dict[str, int]:
    """Return the number of lines of each file of a commit; without a commit, of each tracked file as it is now."""
    if commit is None:
        names = _git("ls-files").split("\n")
        return {name: _lines((ROOT / name).read_bytes()) for name in names if (ROOT / name).is_file()}
    # `git grep -c` counts the lines of all files in one call.
    counted = _git("grep", "-c", "", commit, "--", "*.py", "*.toml").split("\n")
    pairs = [line.removeprefix(f"{commit}:").rpartition(":") for line in counted if line]
    return {name: int(count) for name, _, count in pairs}


def _lines(content: bytes) -> int:
    return content.count(b"\n")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def room_of(name: str) -> tuple[str, str] | None:
    """Return the group and the room of a file, or None if it is neither code nor an entry of the catalogue."""
    if name.startswith(ENTRIES) and name.endswith(".toml"):
        return "entries of the catalogue (TOML)", ENTRIES
    if name.endswith("findings.toml"):
        return "texts of findings (TOML)", name
    if not name.endswith(".py"):
        return None
    for group, rooms in reversed(GROUPS.items()):
        for room in rooms:
            if name == room or (room.endswith("/") and name.startswith(room)):
                if group == "the core" and name == "steadyworker/cli/deploy.py":
                    continue
                return group, room
    if name.startswith("steadyworker/") and name.count("/") == 1:
        return "the core", "steadyworker/*.py"
    return None


def weights(commit: str | None = None) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Return the lines and the files of each room."""
    lines: Counter[tuple[str, str]] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for name, number in files(commit).items():
        if (room := room_of(name)) is not None:
            lines[room] += number
            count[room] += 1
    return lines, count


def table(commit: str | None = None) -> str:
    """Return the table; with a commit, with its lines before those of now."""
    now, count = weights()
    before = weights(commit)[0] if commit is not None else None
    rows = []
    for group in dict.fromkeys(group for group, _ in sorted(now, key=_order)):
        members = sorted((room for room in {*now, *(before or ())} if room[0] == group), key=lambda room: -now[room])
        rows += [(f"  {room[1]}", before and before[room], now[room], count[room]) for room in members]
        rows.append(
            (
                group,
                before and sum(before[room] for room in members),
                sum(now[room] for room in members),
                sum(count[room] for room in members),
            )
        )
    head = (
        f"{'room':<44}{'before':>9}{'now':>9}{'files':>7}"
        if before is not None
        else f"{'room':<44}{'lines':>9}{'files':>7}"
    )
    lines = [head]
    for name, old, new, number in rows:
        lines.append(f"{name:<44}" + (f"{old:>9,}" if before is not None else "") + f"{new:>9,}{number:>7,}")
    return "\n".join(lines)


def _order(room: tuple[str, str]) -> int:
    names = [*GROUPS, "entries of the catalogue (TOML)", "texts of findings (TOML)"]
    return names.index(room[0])


if __name__ == "__main__":
    print(table(*sys.argv[1:]))
