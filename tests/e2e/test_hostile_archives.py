"""Archives that were made to do harm: what is wrong with them is told, and all the rest is unpacked.

The bytes of headers are put together here, since no program writes them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Completed, pcopy, show

TOO_MUCH = (1 << 90 | 1 << 95).to_bytes(12, "big")
"""In base 256."""


def header(name: bytes, kind: bytes = b"0", size: int = 0, **fields: Any) -> bytes:
    """``link``, ``size_field`` and ``time_field`` are put there as they are."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:148] = b"0000644\0000000000\0000000000\0%011o\00014524770400\0" % size
    block[148:157] = b" " * 8 + kind
    for at, field in ((124, "size_field"), (136, "time_field"), (157, "link"), (482, "sparse")):
        value = fields.get(field, b"")
        block[at : at + len(value)] = value
    block[257:265] = b"ustar\00000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def item(name: bytes, data: bytes = b"", kind: bytes = b"0", **fields: Any) -> bytes:
    return header(name, kind, len(data), **fields) + data + bytes(-len(data) % 512)


def pax(*records: tuple[bytes, bytes]) -> bytes:
    lines = b""
    for key, value in records:
        bare = len(key) + len(value) + 3
        length = next(n for n in range(bare, bare + 9) if n == bare + len(str(n)))
        lines += b"%d %b=%b\n" % (length, key, value)
    return item(b"pax", lines, b"x")


def link(name: bytes, to: bytes) -> bytes:
    return header(name, b"1", link=to)


def directory(name: bytes) -> bytes:
    return header(name, b"5")


def sparse(text: bytes, size: bytes = b"9000") -> bytes:
    told = pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", size))
    return told + item(b"sp", text + bytes(-len(text) % 512))


LAST = item(b"after", b"after\n")
END = bytes(1024)


def unpacked(tmp_path: Path, data: bytes, *words: str, ranks: int = 2) -> tuple[Completed, dict[str, Any], Path]:
    """How ptar ended, what it told, and where it has unpacked."""
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "a.tar").write_bytes(data)
    done = pcopy("-xf", tmp_path / "a.tar", "-C", place, "--json", *words, program="ptar", ranks=ranks)
    told = json.loads(done.stdout)
    copied = sum(told[each] for each in ("files", "directories", "symlinks", "special", "hardlinks"))
    assert told["found"] == copied + told["skipped"] + told["failed"], show(done)
    assert b"Traceback" not in done.stderr, show(done)
    return done, told, place


def by_tar(tmp_path: Path) -> Path:
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "a.tar"], check=False, cwd=other, capture_output=True)
    return other


WRONG = {
    "size above 90 bits": (header(b"m", size_field=TOO_MUCH), b"too large"),
    "size of 63 bits": (header(b"m", size_field=b"\x80\0\0\0\x7f" + b"\xff" * 7), b"a member of 9223372036854775807"),
    "size in pax": (pax((b"size", b"9999999999999999999")) + header(b"m"), b"m: extract: at byte"),
    "negative size": (header(b"m", size_field=b"\xff" * 12), b"a negative size"),
    "minus in a size": (header(b"m", size_field=b"-0000000001\0"), b"a field that should be a number"),
    "pax of 8 GiB": (header(b"p", b"x", 0o77777777777), b"a header of 8589934591 bytes"),
    "long name of 2**62": (header(b"p", b"L", size_field=b"\x80\0\0\0\x40" + bytes(7)), b"a header of"),
    "global of 2**90": (header(b"p", b"g", size_field=TOO_MUCH), b"too large"),
    "time of 90 bits": (item(b"m", b"x", time_field=TOO_MUCH), b"too large"),
    "time in pax": (pax((b"mtime", b"9999999999999999999")) + item(b"m", b"x"), b"its time is too far away"),
    "link with NUL": (pax((b"linkpath", b"a\0b")) + header(b"m", b"2", link=b"z"), b"m: extract: at byte"),
    "attribute with NUL": (
        pax((b"SCHILY.xattr.user.a\0b", b"v")) + header(b"nul"),
        b"nul: extract: it is there, but an",
    ),
    "attribute without name": (pax((b"SCHILY.xattr.", b"v")) + header(b"none"), b"none: extract: it is there, but"),
    "holes, size too large": (sparse(b"0\n", b"9999999999999999999"), b"realsize is too large"),
    "map without newline": (sparse(b"1" * 5_000_000), b"holds what is no number"),
    "map of one long number": (sparse(b"1\n" + b"0" * 5_000_000), b"holds what is no number"),
    "map that counts too much": (sparse(b"4194304\n0\n512\n"), b"map of holes"),
    "old holes, negative size": (header(b"s", b"S", sparse=b"\0" + b"\xff" * 12), b"nothing tells its size"),
    "rest of a file": (item(b"m", b"part", b"M"), b"a part of a file is no file"),
}
"""What is wrong, and what is told of it."""


def test_what_is_wrong_is_told_and_all_else_is_unpacked(tmp_path: Path) -> None:
    """All in one archive."""
    parts = [damage + item(b"good%d" % number, b"good") for number, (damage, _) in enumerate(WRONG.values())]
    done, told, place = unpacked(tmp_path, b"".join([*parts, item(b"odd", b"z", b"Z"), LAST, END]))
    assert done.returncode == 1, show(done)
    for what, (_, text) in WRONG.items():
        assert text in done.stderr, (what, show(done))
    assert b"odd: is of a type that is not known here" in done.stderr
    assert (told["failed"], told["warnings"]) == (len(WRONG), 1), show(done)
    assert (place / "after").read_bytes() == b"after\n"
    for number in range(len(WRONG)):
        assert (place / f"good{number}").read_bytes() == b"good"
    listed = pcopy("-tf", tmp_path / "a.tar", program="ptar")
    assert (listed.returncode, b"Traceback" in listed.stderr) == (1, False)


def index_of(lines: Sequence[bytes]) -> Any:
    def beside(archive: Path) -> None:
        status = archive.stat()
        told = b"#pcopy-tar-index 1 %d %d\n" % (status.st_size, status.st_mtime_ns)
        archive.with_name("a.tar.idx").write_bytes(told + b"".join(line + b"\n" for line in lines))

    return beside


@pytest.mark.parametrize(
    ("lie", "status"),
    [
        (index_of([b"end 1536"]), 0),
        (index_of([b"0", b"end 9999999999999999999"]), 0),
        (index_of([b"0", b"end 99999744"]), 0),
        (index_of([b"0", b"512", b"end 2048"]), 1),
        (lambda archive: archive.with_name("a.tar.idx").mkdir(), 0),
    ],
    ids=["no offset", "63 bits", "behind the archive", "in the middle", "directory"],
)
def test_an_index_that_lies_hides_nothing(lie: Any, status: int, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(item(b"one", b"1") + item(b"two", b"2") + END)
    lie(tmp_path / "a.tar")
    (tmp_path / "place").mkdir()
    done = pcopy("-xf", tmp_path / "a.tar", "-C", tmp_path / "place", program="ptar", ranks=1)
    assert done.returncode == status, show(done)
    assert b"is not used" in done.stderr if not status else b"ends at byte" in done.stderr, show(done)
    assert sorted(path.name for path in (tmp_path / "place").iterdir()) == ["one", "two"]
