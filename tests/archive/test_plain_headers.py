"""Simple members that the C parser finds agree with tarfile, and in damaged archives with the reader."""

from __future__ import annotations

import io
import tarfile
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcopy.archive.member import DIRECTORY, FILE, safe_member_path
from pcopy.archive.member_search import member_offsets_by_quick_search
from pcopy.archive.reader import FoundMember, read_archive_members
from pcopy.tasks.archive.members_to_extract import MemberToExtract, member_sort_key, path_in_sort_key
from tests.support import native

native.require()
from pcopy.fsio.backend.native_tar import TarHeaderParser  # noqa: E402 (only where it was built)

OWNERS = {("user", "known"): 7, ("group", "known"): 8, **{("user", f"u{number}"): number for number in range(40)}}
NAMES = ["file", "./dir/file", "a/b/c/d", "dir/" + "n" * 90, "dir/" + "é" * 140, "p" * 120 + "/" + "n" * 60, "./x./y",
         "a//b", "..", "a/../b", "/root", "./.", "dots."]  # fmt: skip


def lookup(what: str, name: str) -> int | None:
    return OWNERS.get((what, name))


@st.composite
def archives(draw: Any) -> bytes:
    """Small archives of all formats, some of them damaged."""
    stream = io.BytesIO()
    form = draw(st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for number in range(draw(st.integers(1, 6))):
            info = tarfile.TarInfo(draw(st.sampled_from(NAMES)) + str(number) * draw(st.integers(0, 1)))
            info.type = draw(st.sampled_from([*[tarfile.REGTYPE] * 5, tarfile.SYMTYPE, tarfile.DIRTYPE]))
            info.linkname = "to" if info.issym() else ""
            info.size = draw(st.sampled_from([0, 1, 511, 512, 3000])) if info.isreg() else 0
            info.mode, info.uid = draw(st.integers(0, 0o7777)), draw(st.integers(0, 0o7777777))
            info.mtime = draw(st.sampled_from([0, 1, 1_600_000_000, 1_600_000_000.25, 1 << 33]))
            info.uname = draw(st.sampled_from(["", "known", "unknown", *(f"u{each}" for each in range(40))]))
            info.gname = draw(st.sampled_from(["", "known", "unknown"]))
            if form == tarfile.PAX_FORMAT:
                info.pax_headers = draw(st.sampled_from([{}, {}, {"atime": "5"}, {"mtime": "7.5"}, {"comment": "c"}]))
            with suppress(ValueError, UnicodeError):  # this format cannot represent it
                archive.addfile(info, io.BytesIO(bytes(range(256)) * 12))
    return stream.getvalue()


def found_in_c(data: bytes, window: int = 1 << 20) -> list[tuple[bytes, MemberToExtract]]:
    """All simple members that C finds, while the reader skips the others; offsets and members."""
    headers, at, found = TarHeaderParser(lookup), 0, list[tuple[bytes, MemberToExtract]]()
    while True:
        part = headers.parse_members(data[at : at + window], at, at, 1 << 62)
        directories = {number for number, (one, other) in enumerate(pairwise([b"", *part.keys]))
                       if not number or one.partition(b"\0\0")[0] != other.partition(b"\0\0")[0]}  # fmt: skip
        assert directories <= set(part.directory_starts)
        plain = [MemberToExtract.unpack(value, *_place(key)) for key, value in zip(part.keys, part.values, strict=True)]
        assert part.bytes == sum(each.member.size for each in plain)
        found += zip(part.keys, plain, strict=True)
        at = part.next_offset
        other = next(read_archive_members(lambda at, size: data[at : at + size], lookup, at), None)
        if not isinstance(other, FoundMember):
            return found
        at = other.next


def _place(key: bytes) -> tuple[bytes, bytes]:
    path, _, name = path_in_sort_key(key[:-17]).rpartition(b"/")
    return path, name


def sort_key(path: bytes, at: int, *, is_directory: bool) -> bytes:
    """The key of a member: a directory is sorted before all that is in it."""
    directory, _, last = path.rpartition(b"/")
    return member_sort_key(path, b"", at) if is_directory else member_sort_key(directory, last, at)


@given(archives())
def test_c_parser_agrees_with_python_tarfile(data: bytes) -> None:
    found = {each.data: (key, each.member) for key, each in found_in_c(data)}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        infos = [info for info in archive if info.isreg() or info.isdir()]
    for info in infos:
        name = info.name.encode("utf-8", "surrogateescape")
        if info.offset_data not in found:  # left to the reader
            parts = name.split(b"/")
            assert any(part in (b"", b".", b"..") or part.endswith(b".") or len(part) > 255 for part in parts) or (
                info.mtime >= 1 << 33 or "comment" in info.pax_headers or len({each.uname for each in infos}) > 3
            )
            continue
        key, member = found.pop(info.offset_data)
        assert key == sort_key(safe_member_path(name), info.offset_data, is_directory=info.isdir())
        assert member.kind == (DIRECTORY if info.isdir() else FILE)
        uid, gid = lookup("user", info.uname), lookup("group", info.gname)
        owner = info.uid if uid is None else uid, info.gid if gid is None else gid
        moment = int(info.mtime) * 10**9 + int(info.mtime % 1 * 10**9)
        reported = info.mode, *owner, moment, info.size
        assert (member.mode, member.uid, member.gid, member.mtime, member.size) == reported
    assert not found


@given(archives(), st.data())
def test_c_parser_agrees_with_the_reader_on_damaged_archives(data: bytes, drawn: st.DataObject) -> None:
    damaged = bytearray(data)
    for _ in range(drawn.draw(st.integers(1, 3))):
        damaged[drawn.draw(st.integers(0, min(len(data), 4096) - 1))] = drawn.draw(st.sampled_from(b"\0 /.0x7L\xff"))
    data = with_checksums(bytes(damaged)) if drawn.draw(st.booleans()) else bytes(damaged)
    window = drawn.draw(st.sampled_from([1 << 20, 1536, 700]))
    known = {each.data: each.member for each in read_archive_members(lambda at, size: data[at : at + size], lookup)
             if isinstance(each, FoundMember)}  # fmt: skip
    for key, each in found_in_c(data, window):
        member, found = known[each.data], each.member
        path = safe_member_path(member.name)
        assert key == sort_key(path, each.data, is_directory=member.kind == DIRECTORY) and not member.xattrs
        assert found.kind == member.kind and found.kind in (FILE, DIRECTORY)
        assert (found.mode, found.mtime, found.size) == (member.mode, member.mtime, member.size)
        names = (("user", member.user, member.uid), ("group", member.group, member.gid))
        numbers = [lookup(what, name.decode("utf-8", "surrogateescape")) for what, name, _ in names]
        reported = [other if number is None else number for number, (_, _, other) in zip(numbers, names, strict=True)]
        assert [found.uid, found.gid] == reported


def with_checksums(data: bytes) -> bytes:
    """Return ``data`` with correct checksums, so that the damage is in the fields that they cover."""
    with_checksums = bytearray(data)
    for at in range(0, len(data) - 511, 512):
        if data[at + 257 : at + 262] == b"ustar":
            total = sum(data[at : at + 148]) + sum(data[at + 156 : at + 512]) + 256
            with_checksums[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(with_checksums)


@given(archives(), st.data())
def test_skimming_in_c_agrees_with_python(data: bytes, drawn: st.DataObject) -> None:
    if drawn.draw(st.booleans()):
        at = drawn.draw(st.integers(0, len(data) - 1))
        data = data[:at] + b"\xff" + data[at + 1 :]

    def read(at: int, size: int) -> bytes:
        return data[at : at + min(size, 1536)]

    assert list(member_offsets_by_quick_search(read, in_c=TarHeaderParser(None))) == list(
        member_offsets_by_quick_search(lambda at, size: data[at : at + size])
    )


def test_more_owners_than_the_cache_holds() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for number in range(40):
            info = tarfile.TarInfo(f"f{number}")
            info.uname = f"u{number}"
            archive.addfile(info)
    found = found_in_c(stream.getvalue())
    assert [each.member.uid for _, each in found] == list(range(len(found))) and len(found) == pytest.approx(16)
