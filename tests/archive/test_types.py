"""Types of headers: GNU tar shows which of them are followed by data; the reader and both skimmers agree with it."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pcopy.archive.member_search import member_offsets_by_quick_search
from pcopy.archive.reader import ArchiveDamage, FoundMember, read_archive_members
from tests.support import native

MAGICS = {"v7": b"", "posix": b"ustar\x0000", "gnu": b"ustar  \0"}
TYPES = [bytes([each]) for each in b"\x000123456789AIVZa"]
END = bytes(1024)


def header(name: bytes, kind: bytes = b"0", size: int = 0, magic: bytes = MAGICS["posix"], **fields: bytes) -> bytes:
    """A header; ``link`` and ``size_field`` are inserted unchanged."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:148] = b"0000755\0000000000\0000000000\0%011o\00014524770400\0" % size
    block[156:157] = kind
    for at, field in ((157, "link"), (124, "size_field")):
        value = fields.get(field, b"")
        block[at : at + len(value)] = value
    block[257 : 257 + len(magic)] = magic
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def item(name: bytes, data: bytes, kind: bytes = b"0", **fields: bytes) -> bytes:
    return header(name, kind, len(data), **fields) + data + bytes(-len(data) % 512)


def pax(text: bytes, kind: bytes = b"x") -> bytes:
    return item(b"pax", text, kind)


def read(data: bytes) -> list[FoundMember | ArchiveDamage]:
    return list(read_archive_members(lambda at, size: data[at : at + size], lambda what, name: None))


def names(data: bytes) -> list[str]:
    return [each.member.name.decode().rstrip("/") for each in read(data) if isinstance(each, FoundMember)]


def check_skimmed(data: bytes) -> None:
    """Check that both skimmers find the members that the reader finds, as far as they understand the archive."""
    found = [each.offset for each in read(data) if isinstance(each, FoundMember)]
    ways = [list(member_offsets_by_quick_search(lambda at, size: data[at : at + size]))]
    if not native.why_not():
        from pcopy.fsio.backend.native_tar import TarHeaderParser

        ways.append(
            list(member_offsets_by_quick_search(lambda at, size: data[at : at + size], in_c=TarHeaderParser(None)))
        )
    for offsets in ways:
        assert offsets == ways[0]
        known = [0, *(each for each in offsets if each is not None)]
        assert known == found[: len(known)]
        assert None in offsets or len(known) == len(found)


def unpacked_by_tar(data: bytes, place: Path) -> list[str]:
    place.mkdir()
    subprocess.run(["tar", "-xf", "-"], input=data, cwd=place, check=False, capture_output=True)
    return sorted(path.name for path in place.iterdir())


@pytest.mark.parametrize("magic", MAGICS)
def test_data_follows_the_types_that_gnu_tar_extracts_with_data(magic: str, tmp_path: Path) -> None:
    """The block after a header of size 512 is a header itself: if it is taken for data, ``inner`` is missing."""
    if os.geteuid():
        pytest.skip("devices are for root")
    more: Any = {"magic": MAGICS[magic]}
    for kind in TYPES:
        for name in (b"q", b"q/"):
            heads = [header(b"to"), header(name, kind, 512, link=b"to", **more)]
            data = b"".join([*heads, header(b"inner", **more), header(b"after", **more), END])
            case = tmp_path / f"{kind[0]}{'/' in name.decode()}"
            wanted = unpacked_by_tar(data, case)
            if kind == b"V":  # a label, for which nothing is created
                wanted = [each for each in wanted if each != "q"]
            assert sorted(names(data)) == wanted, (magic, kind, name)
            check_skimmed(data)


@pytest.mark.parametrize("kind", [b"\0", b"0", b"7"])
def test_directory_recognized_by_long_name_has_no_data(kind: bytes) -> None:
    """The slash is in a pax header, a long name of GNU tar, or a prefix without a name."""
    long = b"d" * 120 + b"/"
    prefixed = bytearray(header(b"", kind, 512))
    prefixed[345:350] = b"above"
    prefixed[148:156] = b" " * 8
    prefixed[148:156] = b"%06o\0 " % sum(prefixed)
    tails = header(b"inner") + header(b"after") + END
    record = b"path=" + long + b"\n"
    for head in (
        pax(b"%d " % (len(record) + 4) + record) + header(b"d", kind, 512),
        item(b"././@LongLink", long + b"\0", b"L") + header(b"d", kind, 512),
        bytes(prefixed),
    ):
        found = read(head + tails)
        assert [isinstance(each, FoundMember) and each.member.kind for each in found] == [b"5", b"0", b"0"]
        check_skimmed(head + tails)


def test_sparse_type_is_recognized_only_in_gnu_format() -> None:
    """In a header of GNU tar the next block would be its data; in other formats ``S`` is an unknown type and means a
    file.
    """
    data = item(b"q", b"data", b"S") + header(b"after") + END
    (first, last) = read(data)
    assert isinstance(first, FoundMember) and isinstance(last, FoundMember)
    assert (first.member.extents, first.member.size, first.stored) == (None, 4, 4)
    assert "type that is not known" in first.warning
    assert isinstance(
        read(item(b"q", b"data", b"S", magic=MAGICS["gnu"]) + END)[0], ArchiveDamage
    )  # it has no sparse map


def test_hard_link_with_data_is_followed_by_the_next_member() -> None:
    """Like bsdtar, as pax(1) allows. If no data follows, the size has no meaning."""
    for contents in (b"some data", b"x" * 2000, b"\0" * 700 + b"x"):
        data = item(b"a", contents) + item(b"b", contents, b"1", link=b"a") + header(b"after") + END
        assert names(data) == ["a", "b", "after"]
        check_skimmed(data)
    for size in (512, 1, 4096, 1 << 32):
        data = item(b"a", b"1") + header(b"b", b"1", size, link=b"a") + header(b"after") + END
        assert names(data) == ["a", "b", "after"]
        check_skimmed(data)
    assert names(item(b"a", b"1") + header(b"b", b"1", 4096, link=b"a") + END) == ["a", "b"]


def test_extended_header_of_solaris_is_read_as_pax() -> None:
    record = b"path=longer\n"
    data = pax(b"%d " % (len(record) + 3) + record, b"X") + header(b"short") + END
    assert names(data) == ["longer"]
    check_skimmed(data)


@pytest.mark.parametrize("kind", [b"x", b"g"])
def test_body_of_a_damaged_pax_header_is_not_read_as_members(kind: bytes) -> None:
    data = item(b"pax", header(b"inner"), kind) + header(b"after") + END
    found = read(data)
    assert isinstance(found[0], ArchiveDamage) and names(data) == ["after"]


@pytest.mark.parametrize(
    ("field", "size"),
    [(b"00000000005\0", 5), (b"          5\0", 5), (b"5\0", 5), (b"5\0 garbage", 5), (b"\0" * 12, 0),
     (b"\x80" + bytes(10) + b"\x05", 5), (b"000000000005", 5)],
)  # fmt: skip
def test_sizes_in_all_encodings_are_read(field: bytes, size: int) -> None:
    """Compared with Python's tarfile."""
    data = (
        header(b"a", size_field=field.ljust(12, b"\0"))
        + (b"12345".ljust(512, b"\0") if size else b"")
        + header(b"b")
        + END
    )
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert [(info.name, info.size) for info in archive] == [("a", size), ("b", 0)]
    assert [isinstance(each, FoundMember) and each.member.size for each in read(data)] == [size, 0]
    check_skimmed(data)


def test_header_of_solaris_describes_the_next_member() -> None:
    data = pax(b"13 path=long\n", b"X") + item(b"short", b"x") + END
    (found,) = read(data)
    assert isinstance(found, FoundMember)
    assert (found.member.name, found.member.size) == (b"long", 1)
    check_skimmed(data)


@pytest.mark.parametrize("moment", [1e-09, -1e-09, 1e-05, 2.5e-07, -1.25e-05, 1e16, 4e18, 0.5, 1.7e9])
def test_times_with_an_exponent_are_read(moment: float, tmp_path: Path) -> None:
    info = tarfile.TarInfo("f")
    info.mtime = moment
    with tarfile.open(tmp_path / "a", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    (found,) = read((tmp_path / "a").read_bytes())
    assert isinstance(found, FoundMember)
    with tarfile.open(tmp_path / "a") as archive:
        assert found.member.mtime == round(Decimal(repr(archive.getmember("f").mtime)) * 10**9)


@pytest.mark.parametrize("text", [b"1e", b"1e-", b"e-09", b"1e+300", b"--1e5"])
def test_times_that_are_not_numbers_raise_no_exception(text: bytes) -> None:
    body = b" mtime=%b\n" % text
    data = pax(b"%d%b" % (len(body) + 2, body)) + item(b"f", b"") + END
    assert len(read(data)) == 1
