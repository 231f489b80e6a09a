"""Lines to a descriptor that takes them late or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from steadyworker.telemetry.line_writer import LineWriter


def report(lines: int) -> bytes:
    return f"lost {lines}\n".encode()


def full_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 4096)
    os.set_blocking(writer, True)
    return reader, writer


def read(reader: int, end: bytes) -> list[str]:
    text = b""
    while not text.endswith(end):
        text += os.read(reader, 1 << 16)
    return text.decode().split()


def test_a_line_is_written_before_the_call_returns() -> None:
    """What a process says last is read, even if it dies at once; and no thread is needed for it."""
    reader, writer = os.pipe()
    lines = LineWriter(writer, report)
    lines.write(b"last words\n")
    assert os.read(reader, 100) == b"last words\n"
    assert lines._thread is None


def test_what_does_not_fit_is_counted_once_and_the_count_comes_first() -> None:
    reader, writer = full_pipe()
    lines = LineWriter(writer, report, most=30)
    for number in range(10):
        lines.write(b"line %04d\n" % number)  # 10 bytes
    assert lines.lost == 7
    assert read(reader, b"line 0002\n") == ["lost", "7", "line", "0000", "line", "0001", "line", "0002"]
    lines.write(b"line 0010\n")
    assert read(reader, b"line 0010\n") == ["line", "0010"]
    assert lines.lost == 7


def test_a_line_that_was_cut_is_whole_before_the_count() -> None:
    """The reader stands still in the middle of a traceback: JSON lines around the gap can still be read."""
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    lines = LineWriter(writer, report, most=30)
    lines.write(b"x" * (size + 10) + b"\n")
    for number in range(10):
        lines.write(b"line %04d\n" % number)
    text = read(reader, b"line 0000\n")
    assert text == ["x" * (size + 10), "lost", "9", "line", "0000"]


def test_the_mode_of_the_shared_descriptor_is_left_alone() -> None:
    reader, writer = os.pipe()
    LineWriter(writer, report).write(b"one\n")
    assert os.get_blocking(writer)
    assert os.get_blocking(reader)


def test_a_descriptor_that_cannot_be_opened_again_is_written_by_the_thread() -> None:
    reader, writer = full_pipe()
    lines = LineWriter(writer, report)
    lines._at_once = None  # as on macOS, or for another user's terminal
    lines.write(b"one\n")
    lines.write(b"two\n")
    assert read(reader, b"two\n") == ["one", "two"]


def test_a_full_disk_loses_no_line_that_is_kept_until_it_has_room(tmp_path: Path) -> None:
    """RLIMIT_FSIZE is a disk that is full at that size."""
    program = """if True:
        import json, os, resource, signal, sys
        from steadyworker.telemetry.line_writer import LineWriter
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (25, resource.RLIM_INFINITY))
        out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        lines = LineWriter(out, lambda lost: b"lost\\n")
        for number in range(5):
            lines.write(b"line %04d\\n" % number)
        before = os.stat(sys.argv[1]).st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        lines.drain(30)
        print(json.dumps([before, lines.lost]))
    """
    path = tmp_path / "log"
    ran = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == [25, 0]
    assert path.read_text() == "".join(f"line {number:04}\n" for number in range(5))


def test_a_fork_writes_for_itself(tmp_path: Path) -> None:
    """Its parent's lines wait for the reader meanwhile; the fork has neither these lines nor the thread that will write them."""
    reader, writer = full_pipe()
    lines = LineWriter(writer, report)
    lines.write(b"parent\n")
    if (pid := os.fork()) == 0:
        lines.write(b"fork\n")
        lines.drain(60)
        os._exit(0)
    text = b""
    while not {b"parent", b"fork"} <= set(text.split()):
        text += os.read(reader, 1 << 16)
    assert os.waitpid(pid, 0)[1] == 0
    assert sorted(text.split()) == [b"fork", b"parent"]


def test_a_reader_that_is_gone_holds_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lines = LineWriter(writer, report)
    lines.write(b"into the void\n")
    lines.drain(0.01)
    assert lines.lost == 0
