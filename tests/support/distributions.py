"""Distributions of third parties, as pip would leave them in a folder of `sys.path`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def distribution(folder: Path, name: str, group: str, points: Mapping[str, str], source: str) -> None:
    """Install a distribution: a module with this source, and entry points of one group."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{point} = {value}\n" for point, value in points.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
