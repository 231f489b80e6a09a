"""What a source contains becomes text: compressed by gzip, in UTF-16, or with NULs; in blocks of any size."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable

import pytest

from steadyworker.diagnosis.decoding import Decoding, UndecodableSource
from steadyworker.diagnosis.scan import Scanner, Search
from tests.diagnosis.small_catalogue import SMALL

TEXT = "2026-11-25 10:00:00,000 ERROR closed <0.1.0> für März\n"


def decoded(data: bytes, size: int) -> bytes:
    decoding = Decoding()
    found = [text for at in range(0, len(data), size) for text in decoding.feed(data[at : at + size])]
    return b"".join([*found, *decoding.end()])


@pytest.mark.parametrize("size", [3, 7, 1000])
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
def test_each_form_becomes_the_same_text(encode: Callable[[str], bytes], size: int) -> None:
    assert decoded(encode(TEXT), size) == TEXT.encode()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_explained(encoding: str) -> None:
    (seen,) = Scanner("log", Search(SMALL.values())).whole([(TEXT + TEXT[:34]).encode(encoding)])
    assert seen.entry.id == "small.closed"


def test_damaged_data_is_named_as_damaged() -> None:
    packed = gzip.compress(TEXT.encode())
    with pytest.raises(UndecodableSource, match="without its end"):
        decoded(packed[:-4], 1000)
    middle = len(packed) // 2
    with pytest.raises(UndecodableSource, match="damaged"):
        decoded(packed[:middle] + b"garbage garbage" + packed[middle:], 1000)


@pytest.mark.parametrize(
    ("packed", "command"),
    [(bz2.compress(b"x"), "bzcat"), (lzma.compress(b"x"), "xzcat"), (b"\x28\xb5\x2f\xfd and so on", "zstdcat")],
)
def test_other_compressed_data_is_refused_with_the_command_for_a_pipe(packed: bytes, command: str) -> None:
    with pytest.raises(UndecodableSource, match=f"`{command} FILE | steadyworker explain`".replace("|", r"\|")):
        decoded(packed, 1000)


def test_a_few_bytes_become_no_large_block() -> None:
    """A block of a bomb is decompressed piece by piece."""
    decoding = Decoding()
    pieces = [len(text) for text in decoding.feed(gzip.compress(b"a" * 20_000_000))]
    assert sum(pieces) == 20_000_000
    assert max(pieces) <= 1 << 18
