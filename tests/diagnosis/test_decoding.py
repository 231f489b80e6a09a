"""What a source contains becomes text: compressed, in UTF-16, or with NULs; in blocks of any size."""

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


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "encode",
    [
        str.encode,
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode("utf-16"),
        lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
        lambda text: b"\0" * 10_000 + text.encode(),
        lambda text: gzip.compress(text.encode()),
        lambda text: gzip.compress(text[:9].encode()) + gzip.compress(text[9:].encode()) + b"\0" * 20,
        lambda text: bz2.compress(text[:9].encode()) + bz2.compress(text[9:].encode()),
        lambda text: lzma.compress(text.encode("utf-16")),
    ],
    ids=["plain", "mark", "utf-16-le", "utf-16-be", "nuls", "gzip", "two-gzip", "two-bzip2", "utf-16-in-xz"],
)
def test_each_form_becomes_the_same_text(encode: Callable[[str], bytes], size: int) -> None:
    assert decoded(encode(TEXT), size) == TEXT.encode()


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_its_mark_is_explained(encoding: str) -> None:
    (seen,) = Scanner("log", Search(SMALL.values())).whole([TEXT.encode(encoding)])
    assert (seen.entry.id, seen.record.stamp) == ("small.closed", "2026-11-25 10:00:00,000")


@pytest.mark.parametrize("head", [b"", b"B", b"BZ", b"\xef\xbb", b"\xff", b"PK", b"\xfd7zXZ"])
def test_a_few_bytes_are_text(head: bytes) -> None:
    assert decoded(head, 1) == head


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress], ids=lambda pack: pack.__module__)
def test_damaged_data_is_named_as_damaged(pack: Callable[[bytes], bytes]) -> None:
    packed = pack(TEXT.encode())
    with pytest.raises(UndecodableSource, match="ended before"):
        decoded(packed[:-4], 1000)
    middle = len(packed) // 2
    with pytest.raises(UndecodableSource, match="damaged"):
        decoded(packed[:middle] + b"garbage garbage" + packed[middle:], 1000)


def test_data_that_cannot_be_decompressed_names_the_command() -> None:
    with pytest.raises(UndecodableSource, match=r"compressed by zstd: decompress it with `zstdcat`"):
        decoded(b"\x28\xb5\x2f\xfd and so on", 1)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress], ids=lambda pack: pack.__module__)
def test_a_few_bytes_become_no_large_block(pack: Callable[[bytes], bytes]) -> None:
    """A block of a bomb is decompressed piece by piece."""
    decoding = Decoding()
    pieces = [len(text) for text in decoding.feed(pack(b"a" * 20_000_000))]
    assert sum(pieces) == 20_000_000
    assert max(pieces) <= 1 << 18
