"""The package's face: the names that users import, and where it does not run."""

from __future__ import annotations

import subprocess
import sys

import pytest

import steadyworker


def test_every_name_of_the_face_is_there() -> None:
    for name in steadyworker.__all__:
        assert getattr(steadyworker, name).__name__ == name
    assert dir(steadyworker) == steadyworker.__all__


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Wroker'"):
        steadyworker.Wroker  # noqa: B018


def test_the_error_on_windows_names_wsl() -> None:
    code = "import sys; sys.platform = 'win32'; import steadyworker"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert "WSL" in said.stderr.splitlines()[-1]
