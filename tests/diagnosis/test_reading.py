"""A source becomes text: compressed by gzip, in UTF-16, with NULs; what cannot be read is refused with the remedy."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from steadyworker.diagnosis.reading import BLOCK, Pipe, UnreadableSource, blocks
from steadyworker.diagnosis.records import Cutter
from steadyworker.diagnosis.scan import Scanner, Search
from tests.diagnosis.small_catalogue import SMALL

TEXT = "2026-11-25 10:00:00,000 ERROR closed <0.1.0> für März"


@pytest.mark.parametrize(
    "encode",
    [
        str.encode,
        lambda text: text.encode("utf-8-sig"),
        lambda text: b"\0" * 10_000 + text.encode(),
        lambda text: gzip.compress(text.encode()),
        lambda text: gzip.compress(text[:9].encode()) + gzip.compress(text[9:].encode()) + b"\0" * 20,
    ],
    ids=["plain", "mark", "nuls", "gzip", "two-gzip"],
)
def test_each_form_becomes_the_same_text(tmp_path: Path, encode: Callable[[str], bytes]) -> None:
    (tmp_path / "log").write_bytes(encode(TEXT))
    cutter = Cutter("log")
    (record,) = [*(each for block in blocks(tmp_path / "log") for each in cutter.feed(block)), *cutter.end()]
    assert record.text == TEXT


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_explained(encoding: str) -> None:
    (seen,) = Scanner("log", Search(SMALL.values())).whole([(f"{TEXT}\n{TEXT[:34]}").encode(encoding)])
    assert seen.entry.id == "small.closed"


def test_damaged_data_is_reported_as_damaged_after_what_can_be_read(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT.encode() + os.urandom(2 * BLOCK))
    for damaged, reason in (
        (packed[:-4], "without its end"),
        (packed[:BLOCK] + b"garbage garbage" + packed[BLOCK:], "damaged"),
    ):
        (tmp_path / "log.gz").write_bytes(damaged)
        found: list[bytes] = []
        with pytest.raises(UnreadableSource, match=reason):
            found.extend(blocks(tmp_path / "log.gz"))
        assert b"".join(found).startswith(TEXT.encode())


@pytest.mark.parametrize(
    ("packed", "command"),
    [
        (bz2.compress(b"x"), "bzcat"),
        (lzma.compress(b"x"), "xzcat"),
        (b"\x28\xb5\x2f\xfd and so on", "zstdcat"),
        (gzip.compress(b"x", mtime=0), "zcat"),
    ],
)
def test_compressed_data_is_refused_with_the_command_for_a_pipe(tmp_path: Path, packed: bytes, command: str) -> None:
    """Of a file, all but gzip's."""
    expected = rf"`{command} FILE \| steadyworker explain`"
    (tmp_path / "log").write_bytes(packed)
    if command != "zcat":
        with pytest.raises(UnreadableSource, match=expected):
            next(blocks(tmp_path / "log"))
    with (tmp_path / "log").open("rb") as file, pytest.raises(UnreadableSource, match=expected):
        Pipe(file.fileno()).read()


def test_a_few_bytes_become_no_large_block(tmp_path: Path) -> None:
    """A bomb is decompressed piece by piece."""
    (tmp_path / "log").write_bytes(gzip.compress(b"a" * 20_000_000))
    pieces = [len(block) for block in blocks(tmp_path / "log")]
    assert sum(pieces) == 20_000_000
    assert max(pieces) <= BLOCK
