"""Saved listings and plain lists are read as documented, and damage is refused with the file and the line."""

from __future__ import annotations

import base64
import io
import json
import stat
from pathlib import Path

import pytest

from pcopy.errors import RequestRefused
from pcopy.walk.path_list import ListedItem, PathListReader, RecordedStatus, absolute_path

HEAD = b'{"format": "pcopy listing", "version": 1, "directory_b64": "L2RhdGE="}\n'
NOTHING = [None] * 11


def listed(path: Path, content: bytes, *, nul: bool = False) -> list[ListedItem]:
    path.write_bytes(content)
    with PathListReader(bytes(path), nul=nul) as listing:
        return [*listing]


def test_plain_lists_are_read(tmp_path: Path) -> None:
    file = tmp_path / "list"
    assert listed(file, b"") == []
    assert listed(file, b"a\n\nb c\xff\nlast") == [
        ListedItem(1, b"a", None),
        ListedItem(3, b"b c\xff", None),
        ListedItem(4, b"last", None),
    ]
    assert listed(file, b"a\nb\0\0c", nul=True) == [ListedItem(1, b"a\nb", None), ListedItem(3, b"c", None)]
    assert listed(file, b'{"format": "other"}\n') == [ListedItem(1, b'{"format": "other"}', None)]
    many = [b"%d" % number for number in range(400_000)]  # several blocks
    assert [line.path for line in listed(file, b"\n".join(many))] == many


def test_saved_listing_is_read(tmp_path: Path) -> None:
    whole = {
        "path": "run7/a.h5", "type": "file", "mode": "4755", "uid": 1, "gid": 2, "size": 3, "allocated": 4, "links": 5,
        "inode": 6, "device": 7, "atime_ns": -8, "mtime_ns": 9, "ctime_ns": 10,
    }  # fmt: skip
    odd = {"path": "x\\xff", "path_b64": base64.b64encode(b"x\xff\n").decode(), "type": "socket", "unknown": [1, None]}
    lines = HEAD + b"".join(
        json.dumps(item).encode() + b"\n" for item in (whole, odd, {"path": "é", "type": "directory"})
    )
    expected = [
        ListedItem(2, b"run7/a.h5", RecordedStatus(stat.S_IFREG, 0o4755, 1, 2, 3, 4, 5, 6, 7, -8, 9, 10)),
        ListedItem(3, b"x\xff\n", RecordedStatus(stat.S_IFSOCK, *NOTHING)),
        ListedItem(4, "é".encode(), RecordedStatus(stat.S_IFDIR, *NOTHING)),
    ]
    file = tmp_path / "list"
    assert listed(file, lines) == listed(file, lines, nul=True) == expected
    with PathListReader(bytes(file)) as listing:
        assert listing.is_saved and listing.directory == b"/data"


ITEM = '{"path": "a", "type": "file"'
DAMAGED = {
    "cut": (HEAD + b'{"path": "a", "type": "file"}', 2, "cut off"),
    "cut head": (HEAD[:40], 1, "cut off"),
    "no JSON": (HEAD + b"run7/a\n", 2, "is not a JSON object"),
    "an empty line": (HEAD + b"\n", 2, "is not a JSON object"),
    "no object": (HEAD + b"[]\n", 2, "is not a JSON object"),
    "nested": (HEAD + b"[" * 100_000 + b"\n", 2, "is not a JSON object"),
    "digits": (HEAD + b"9" * 10_000 + b"\n", 2, "is not a JSON object"),
    "no UTF-8": (HEAD + b'{"path": "\xff", "type": "file"}\n', 2, "is not a JSON object"),
    "version": (HEAD.replace(b": 1", b": 2"), 1, "is of version 2"),
    "true": (HEAD.replace(b": 1", b": true"), 1, "is of version True"),
    "no version": (HEAD.replace(b"version", b"vision"), 1, "is of version None"),
    "no directory": (HEAD.replace(b"directory_b64", b"directory"), 1, "directory_b64, where relative paths start"),
    "a relative directory": (HEAD.replace(b"L2RhdGE=", b"ZGF0YQ=="), 1, "directory_b64, where relative paths start"),
    "no path": (HEAD + b'{"type": "file"}\n', 2, "has no path"),
    "an empty path": (HEAD + b'{"path": "", "type": "file"}\n', 2, "path is not a valid path"),
    "a NUL": (HEAD + b'{"path": "a\\u0000", "type": "file"}\n', 2, "path is not a valid path"),
    "half a pair": (HEAD + b'{"path": "\\ud800", "type": "file"}\n', 2, "path is not a valid path"),
    "a number as path": (HEAD + b'{"path": 7, "type": "file"}\n', 2, "has no path"),
    "base64": (HEAD + f'{ITEM}, "path_b64": "YQ"}}\n'.encode(), 2, "path_b64 is not base64"),
    "a number as base64": (HEAD + f'{ITEM}, "path_b64": 7}}\n'.encode(), 2, "path_b64 is not base64"),
    "a NUL in base64": (HEAD + f'{ITEM}, "path_b64": "YQA="}}\n'.encode(), 2, "path_b64 is not a valid path"),
    "no type": (HEAD + b'{"path": "a"}\n', 2, "type is none of file, "),
    "another type": (HEAD + b'{"path": "a", "type": ["file"]}\n', 2, "type is none of file, "),
    "a size that is text": (HEAD + f'{ITEM}, "size": "7"}}\n'.encode(), 2, "size is not an integer"),
    "a broken inode": (HEAD + f'{ITEM}, "inode": 7.0}}\n'.encode(), 2, "inode is not an integer"),
    "a true time": (HEAD + f'{ITEM}, "mtime_ns": true}}\n'.encode(), 2, "mtime_ns is not an integer"),
    "below 0": (HEAD + f'{ITEM}, "uid": -1}}\n'.encode(), 2, "uid is out of range"),
    "too large": (HEAD + f'{ITEM}, "device": {1 << 64}}}\n'.encode(), 2, "device is out of range"),
    "more than users have": (HEAD + f'{ITEM}, "uid": {1 << 32}}}\n'.encode(), 2, "uid is out of range"),
    "more names than can be": (HEAD + f'{ITEM}, "links": {1 << 32}}}\n'.encode(), 2, "links is out of range"),
    "mode": (HEAD + f'{ITEM}, "mode": "0888"}}\n'.encode(), 2, "mode is not four octal digits"),
    "a long line": (HEAD + b" " * (3 << 20), 2, "is longer than any path"),
    "a plain list with NULs": (b"a\nb\0c\0", 2, "b\\x00c\\x00 holds a NUL; write -0"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_listing_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    content, line, why = DAMAGED[name]
    with pytest.raises(RequestRefused) as refused:
        listed(tmp_path / "list", content)
    assert str(refused.value).startswith(f"--from {tmp_path}/list: line {line}: {why}".partition("cut off")[0])
    assert why in str(refused.value)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "missing", "does not exist; check the name"), (tmp_path, "is a directory")):
        with pytest.raises(RequestRefused, match=f"--from {path}: {why}"):
            PathListReader(bytes(path))


class Broken(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        raise OSError(5, "Input/output error")


def test_read_error_is_reported_as_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"x" * 100)
    listing = PathListReader(bytes(tmp_path / "list"))
    listing._source.close()
    listing._source = Broken()  # type: ignore[assignment]
    with pytest.raises(RequestRefused, match=r"--from .*/list: Input/output error"):
        list(listing)


@pytest.mark.parametrize(
    ("directory", "path", "expected"),
    [
        (b"/data", b"run7/a", b"/data/run7/a"),
        (b"/data/", b"./run7//a/", b"/data/run7/a"),
        (b"/data/x", b"../run7", b"/data/run7"),
        (b"/data", b"../../../run7", b"/run7"),
        (b"/data", b"link/../a", b"/data/link/../a"),
        (b"/", b".", b"/"),
        (b"/", b"a", b"/a"),
        (b"/data", b"/else/./a//", b"/else/a"),
    ],
)
def test_relative_paths_start_at_the_given_directory(directory: bytes, path: bytes, expected: bytes) -> None:
    assert absolute_path(directory, path) == expected
