"""Headers: Python's tarfile reads written headers, and any input yields only members and damage."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcopy.archive.acl_text import acl_from_text, acl_to_text
from pcopy.archive.headers import header_size, member_header, size_in_archive
from pcopy.archive.index import ArchiveIndex, pack_index, read_index
from pcopy.archive.member import (
    DIRECTORY,
    FILE,
    SYMLINK,
    TAR_BLOCK_BYTES,
    ArchiveMember,
    Extents,
    UnsafeMemberNameError,
    safe_member_path,
)
from pcopy.archive.member_search import member_offsets_by_quick_search
from pcopy.archive.reader import ArchiveDamage, FoundMember, read_archive_members

NAME = st.binary(min_size=1, max_size=300).filter(lambda name: b"\0" not in name)
OWNER = st.one_of(st.integers(0, 0o7777777), st.integers(0, (1 << 32) - 2))
TIME = st.one_of(st.integers(0, 2 * 10**18), st.integers(-(10**18), 10**19))
EXTENTS = st.lists(st.tuples(st.integers(1, 10_000), st.integers(1, 10_000)), max_size=5)


def laid(gaps: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    at, found = 0, []
    for gap, length in gaps:
        found.append((at + gap, length))
        at += gap + length
    return tuple(found)


@st.composite
def described(draw: Any) -> ArchiveMember:
    name, size = draw(NAME), draw(st.one_of(st.integers(0, 5000), st.integers(0, 1 << 45)))
    extents = draw(st.one_of(st.none(), EXTENTS.map(laid).map(Extents.from_pairs)))
    if extents is not None:
        size = sum(extents[-1]) + draw(st.integers(0, 10_000)) if extents else size
    xattrs = draw(st.dictionaries(st.sampled_from(["user.a", "user.b=c%d", "trusted.x"]), st.binary(min_size=1)))
    return ArchiveMember(
        name.rstrip(b"/") + b"x", FILE, draw(st.integers(0, 0o7777)), draw(OWNER), draw(OWNER), draw(TIME), size,
        b"", 0, tuple(sorted(xattrs.items())), extents, draw(st.sampled_from([b"", b"root", b"u" * 40])), b"group",
    )  # fmt: skip


def read(data: bytes) -> list[FoundMember | ArchiveDamage]:
    return list(read_archive_members(lambda at, size: data[at : at + size], lambda what, name: None))


@given(described())
def test_written_header_is_read_back(member: ArchiveMember) -> None:
    header = member_header(member)
    assert len(header) == header_size(member)
    assert len(header) % TAR_BLOCK_BYTES == size_in_archive(member) % TAR_BLOCK_BYTES == 0
    found = next(read_archive_members(lambda at, size: header[at : at + size], lambda what, name: None))
    assert isinstance(found, FoundMember)
    assert found.member == member
    assert (found.offset, found.data, found.next) == (0, len(header), size_in_archive(member))


@given(described().filter(lambda member: member.size < 6000 and member.extents is None and 0 <= member.mtime < 1 << 62))
def test_python_tarfile_reads_written_headers(member: ArchiveMember) -> None:
    data = member_header(member) + bytes(size_in_archive(member) - header_size(member) + 1024)
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        (info,) = archive.getmembers()
    assert (info.size, info.mode, info.uid, info.gid) == (member.size, member.mode, member.uid, member.gid)
    assert info.name.encode("utf-8", "surrogateescape") == member.name
    assert abs(info.mtime - member.mtime / 10**9) <= 1e-6 * max(1.0, member.mtime / 10**9)


@settings(max_examples=100)
@given(st.lists(described().filter(lambda member: member.size < 6000), min_size=1, max_size=4), st.data())
def test_damaged_archive_raises_no_exception(some: list[ArchiveMember], data: st.DataObject) -> None:
    whole = bytearray(b"".join(member_header(each) + bytes(size_in_archive(each) - header_size(each)) for each in some))
    whole += bytes(1024)
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for each in read(cut):
        assert isinstance(each, (FoundMember, ArchiveDamage))
    offsets = list(member_offsets_by_quick_search(lambda at, size: cut[at : at + size]))
    assert all(at is None or at % TAR_BLOCK_BYTES == 0 for at in offsets)


@given(st.binary(max_size=3000))
def test_garbage_is_reported_as_damage(garbage: bytes) -> None:
    assert all(isinstance(each, ArchiveDamage) for each in read(garbage))


@given(st.lists(described().filter(lambda member: member.size < 6000), max_size=6))
def test_skimming_and_reading_find_the_same_members(some: list[ArchiveMember]) -> None:
    data = b"".join(member_header(each) + bytes(size_in_archive(each) - header_size(each)) for each in some) + bytes(
        1024
    )
    found = [each.offset for each in read(data) if isinstance(each, FoundMember)]
    assert len(found) == len(some)
    assert [0, *member_offsets_by_quick_search(lambda at, size: data[at : at + size])][: len(found)] == (found or [])


@pytest.mark.parametrize("name", [b"../a", b"a/..", b"a/../b", b"..", b"/..", b"a\0b", b"./../x"])
def test_unsafe_names(name: bytes) -> None:
    with pytest.raises(UnsafeMemberNameError):
        safe_member_path(name)


def test_safe_names() -> None:
    names = {b"/a/b": b"a/b", b"./a": b"a", b"a//b/": b"a/b", b".": b"", b"./": b"", b"...": b"...", b"a/..b": b"a/..b"}
    assert {name: safe_member_path(name) for name in names} == names


def test_acls_in_the_formats_of_gnu_tar_and_bsdtar() -> None:
    ours = b"user::rwx,user:1000:r--,group::r-x,mask::r-x,other::---"
    gnu = b"user::rwx\nuser:somebody:r--\ngroup::r-x\nmask::r-x\nother::---\n\n"
    bsd = b"user::rwx,group::r-x,other::---,user:nobody here:r--:1000,mask::r-x"
    people = {"somebody": 1000}
    values = {acl_from_text(text, lambda what, name: people.get(name)) for text in (ours, gnu, bsd)}
    assert len(values) == 1
    assert acl_to_text(values.pop()) == ours
    for text in (b"", b"user:nobody:rwx", b"user::rwy", b"what::rwx"):
        with pytest.raises(ValueError):
            acl_from_text(text, lambda what, name: None)


def test_index_that_does_not_fit_the_archive_is_rejected() -> None:
    index = ArchiveIndex(4096, 5, [0, 512, 2048], 3072, ((4000, 3000), (96, 72)))
    text = pack_index(index)
    again = read_index(io.BytesIO(text), 4096, 5)
    assert (list(again.offsets), again.end, list(again.frames)) == ([0, 512, 2048], 3072, [(4000, 3000), (96, 72)])
    for damaged in (
        *(text[:at] for at in range(len(text))),
        text.replace(b" 1 ", b" 2 ", 1), text.replace(b"512", b"513"), text.replace(b"2048", b"100"),
        text.replace(b"frame 96", b"frame 97"), text.replace(b"3072", b"2048"),
        text.replace(b"0\n512\n2048\n", b""), text.replace(b"3072", b"3073"),
        text.replace(b"3072", b"9223372036854775808"), text.replace(b"frame 96", b"frame 0 0\nframe 96"),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            read_index(io.BytesIO(damaged), 4096, 5)
    for size, mtime in ((4097, 5), (4096, 6)):
        with pytest.raises(ValueError, match="has changed"):
            read_index(io.BytesIO(text), size, mtime)


def test_types_without_contents(tmp_path: Path) -> None:
    for member in (
        ArchiveMember(b"d/", DIRECTORY, 0o755, 0, 0, 0),
        ArchiveMember(b"l", SYMLINK, 0o777, 0, 0, 0, link=b"t" * 150),
    ):
        (found,) = read(member_header(member) + bytes(1024))
        assert isinstance(found, FoundMember)
        assert found.member == member
