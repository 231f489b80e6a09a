"""A shell and a terminal in a folder of their own, with the virtual environment's programs on the PATH."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from tests.exports.s3.conftest import store
from tests.exports.spark.archives import archive

__all__ = ["archive", "store"]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

Shell = Callable[..., str]
Terminal = Callable[..., list[str]]

ROWS, COLUMNS = 50, 140
MARK = "\x1e"
"""Between the outputs of two commands: no program prints it."""


def payments(file: Path, count: int) -> str:
    """Write one merchant's payments to a Parquet file."""
    numbers = range(1, count + 1)
    columns = {
        "id": pa.array(numbers, pa.int64()),
        "merchant": pa.array(["harbour-books"] * count),
        "paid_at": pa.array([f"2025-03-{number % 28 + 1:02}" for number in numbers]),
        "amount": pa.array([Decimal(number) / 100 for number in numbers], pa.decimal128(18, 2)),
        "currency": pa.array(["EUR"] * count),
        "status": pa.array(["captured"] * count),
    }
    pa_parquet.write_table(pa.table(columns), file)
    return str(file)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Run a script in `tmp_path`; answers what it said on standard output, fails when any line of it fails."""

    def run(script: str, within: float = 300, **environ: str) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env={
                **kept,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "STEADYWORKER_STATE_DIR": str(tmp_path / "state"),
                **environ,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=within)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        assert process.returncode == 0, f"{script}\nended with {process.returncode}:\n{out}\n{err}"
        return out

    return run


@pytest.fixture
def desk() -> Iterator[Path]:
    """The terminal's folder, with a short name: a long one would be broken where it stands in a table."""
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        (Path(folder) / "home").mkdir()
        (Path(folder) / "bin").mkdir()
        yield Path(folder)


@pytest.fixture
def terminal(desk: Path) -> Terminal:
    """Type commands one after the other, as a reader would; returns what each printed, fails when one of them fails."""

    def run(commands: Sequence[str], *, within: float = 100) -> list[str]:
        ours = ("PYTEST_", "STEADYWORKER_", "XDG_", "COLUMNS", "LINES")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
        script = "".join(f"{command}\nprintf '{MARK}%s{MARK}' $?\n" for command in commands)
        master, slave = pty.openpty()
        _set_up(slave)
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=desk,
            env={
                **kept,
                "PATH": f"{desk}/bin{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(desk / "home"),
                "TERM": "xterm",
                "NO_COLOR": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        printed: list[bytes] = []
        reader = threading.Thread(target=_read, args=(master, printed))
        reader.start()
        try:
            process.wait(within)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join()
            os.close(master)
        outputs = re.split(f"{MARK}(\\d+){MARK}", b"".join(printed).decode())
        for command, output, code in zip(commands, outputs[::2], outputs[1::2], strict=False):
            assert code == "0", f"{command}\nended with {code}:\n{output}"
        assert len(outputs) == 2 * len(commands) + 1, f"the shell ended early:\n{outputs[-1]}"
        return outputs[:-1:2]

    return run


def _set_up(terminal: int) -> None:
    """Its size, and lines that end as the programs end them."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    modes = termios.tcgetattr(terminal)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, modes)


def _read(master: int, printed: list[bytes]) -> None:
    with suppress(OSError):  # nobody has the other end open any longer
        while data := os.read(master, 1 << 16):
            printed.append(data)
