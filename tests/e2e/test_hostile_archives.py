"""Malicious and damaged archives: damage is reported, and all other members are extracted.

The tests build the headers byte by byte, since no program writes them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Completed, pcopy, show
from tests.support.users import NOBODY, require_root

TOO_MUCH = (1 << 90 | 1 << 95).to_bytes(12, "big")
"""A size field in base 256 that exceeds 64 bits."""


def header(name: bytes, kind: bytes = b"0", size: int = 0, **fields: Any) -> bytes:
    """Return a tar header; ``link``, ``size_field``, ``time_field``, ``sparse`` and ``magic`` are inserted as given."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:148] = b"0000644\0000000000\0000000000\0%011o\00014524770400\0" % size
    block[148:157] = b" " * 8 + kind
    for at, field in ((124, "size_field"), (136, "time_field"), (157, "link"), (482, "sparse")):
        value = fields.get(field, b"")
        block[at : at + len(value)] = value
    block[257:265] = fields.get("magic", b"ustar\00000")
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
    reported = pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", size))
    return reported + item(b"sp", text + bytes(-len(text) % 512))


LAST = item(b"after", b"after\n")
END = bytes(1024)


def extract(tmp_path: Path, data: bytes, *words: str, ranks: int = 2) -> tuple[Completed, dict[str, Any], Path]:
    """Extract an archive; return the run, its summary, and the target directory."""
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "a.tar").write_bytes(data)
    done = pcopy("-xf", tmp_path / "a.tar", "-C", place, "--json", *words, program="ptar", ranks=ranks)
    reported = json.loads(done.stdout)
    copied = sum(reported[each] for each in ("files", "directories", "symlinks", "special", "hardlinks"))
    assert reported["found"] == copied + reported["skipped"] + reported["failed"], show(done)
    assert b"Traceback" not in done.stderr, show(done)
    return done, reported, place


def extracted_by_tar(tmp_path: Path) -> Path:
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "a.tar"], check=False, cwd=other, capture_output=True)
    return other


WRONG = {
    "size above 90 bits": (header(b"m", size_field=TOO_MUCH), b"too large"),
    "size of 63 bits": (header(b"m", size_field=b"\x80\0\0\0\x7f" + b"\xff" * 7), b"a member of 9223372036854775807"),
    "size in pax": (pax((b"size", b"9999999999999999999")) + header(b"m"), b"m: extract: at byte"),
    "negative size": (header(b"m", size_field=b"\xff" * 12), b"a negative size"),
    "minus in a size": (header(b"m", size_field=b"-0000000001\0"), b"a header field should be a number"),
    "pax of 8 GiB": (header(b"p", b"x", 0o77777777777), b"headers of 8,589,934,591 bytes"),
    "long name of 2**62": (header(b"p", b"L", size_field=b"\x80\0\0\0\x40" + bytes(7)), b"headers of"),
    "global of 2**90": (header(b"p", b"g", size_field=TOO_MUCH), b"too large"),
    "time of 90 bits": (item(b"m", b"x", time_field=TOO_MUCH), b"too large"),
    "time in pax": (pax((b"mtime", b"9999999999999999999")) + item(b"m", b"x"), b"its time is out of range"),
    "link with NUL": (pax((b"linkpath", b"a\0b")) + header(b"m", b"2", link=b"z"), b"m: extract: at byte"),
    "attribute with NUL": (
        pax((b"SCHILY.xattr.user.a\0b", b"v")) + header(b"nul"),
        b"nul: extract: it was extracted, but an",
    ),
    "attribute without name": (
        pax((b"SCHILY.xattr.", b"v")) + header(b"none"),
        b"none: extract: it was extracted, but",
    ),
    "holes, size too large": (sparse(b"0\n", b"9999999999999999999"), b"realsize is too large"),
    "map without newline": (sparse(b"1" * 5_000_000), b"contains an invalid number"),
    "map of one long number": (sparse(b"1\n" + b"0" * 5_000_000), b"contains an invalid number"),
    "map that counts too much": (sparse(b"4194304\n0\n512\n"), b"map of holes"),
    "old holes, negative size": (
        header(b"s", b"S", sparse=b"\0" + b"\xff" * 12, magic=b"ustar  \0"),
        b"its size is missing",
    ),
    "refused ACL": (
        pax((b"SCHILY.acl.access", b"user::rwx,group::r-x")) + header(b"acl"),
        b"extracted without this metadata",
    ),
    "rest of a file": (item(b"m", b"part", b"M"), b"it is continued from another volume"),
}
"""Damaged members, and the text with which each is reported."""


def test_damaged_members_are_reported_and_all_others_are_extracted(tmp_path: Path) -> None:
    """One archive contains all the damaged members."""
    parts = [damage + item(b"good%d" % number, b"good") for number, (damage, _) in enumerate(WRONG.values())]
    done, reported, place = extract(tmp_path, b"".join([*parts, item(b"odd", b"z", b"Z"), LAST, END]))
    assert done.returncode == 1, show(done)
    for what, (_, text) in WRONG.items():
        assert text in done.stderr, (what, show(done))
    assert b"odd: is of a type that is not known here" in done.stderr
    assert (reported["failed"], reported["warnings"]) == (len(WRONG), 1), show(done)
    assert (place / "after").read_bytes() == b"after\n"
    for number in range(len(WRONG)):
        assert (place / f"good{number}").read_bytes() == b"good"
    listed = pcopy("-tf", tmp_path / "a.tar", program="ptar")
    assert (listed.returncode, b"Traceback" in listed.stderr) == (1, False)


def test_damage_outside_of_members_is_reported_for_the_archive(tmp_path: Path) -> None:
    """The message names the archive, not the target directory and not the working directory."""
    (tmp_path / "a.tar").write_bytes(item(b"one", b"1"))
    (tmp_path / "page").write_bytes(b"<!doctype html>" * 100)
    for name, reported in ("a.tar", b"the archive is truncated"), ("page", b"is this a tar archive?"):
        done = pcopy("-xf", name, program="ptar", ranks=2, cwd=tmp_path)
        assert done.returncode == 1, show(done)
        first = done.stderr.splitlines()[0]
        assert first.startswith(b"ptar: %s: extract: at byte " % bytes(tmp_path / name)) and reported in first, show(
            done
        )


def index_of(lines: Sequence[bytes]) -> Any:
    def write_index(archive: Path) -> None:
        status = archive.stat()
        reported = b"#pcopy-tar-index 1 %d %d\n" % (status.st_size, status.st_mtime_ns)
        archive.with_name("a.tar.idx").write_bytes(reported + b"".join(line + b"\n" for line in lines))

    return write_index


def index_of_another_user(archive: Path) -> None:
    require_root("gives a file to another user")
    index_of([b"0", b"end 2048"])(archive)
    os.chown(archive.with_name("a.tar.idx"), NOBODY, NOBODY)


@pytest.mark.parametrize(
    ("lie", "status"),
    [
        (index_of([b"end 1536"]), 0),
        (index_of([b"0", b"end 9999999999999999999"]), 0),
        (index_of([b"0", b"end 99999744"]), 0),
        (index_of([b"0", b"512", b"end 2048"]), 1),
        (lambda archive: archive.with_name("a.tar.idx").mkdir(), 0),
        (index_of_another_user, 0),
    ],
    ids=["no offset", "63 bits", "behind the archive", "in the middle", "directory", "of somebody else"],
)
def test_false_index_hides_no_member(lie: Any, status: int, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(item(b"one", b"1") + item(b"two", b"2") + END)
    lie(tmp_path / "a.tar")
    (tmp_path / "place").mkdir()
    done = pcopy("-xf", tmp_path / "a.tar", "-C", tmp_path / "place", program="ptar", ranks=1)
    assert done.returncode == status, show(done)
    assert (
        b"is not used" in done.stderr
        if not status
        else b"members from byte 0 on end at byte 1,024, not where the index says" in done.stderr
    ), show(done)
    assert sorted(path.name for path in (tmp_path / "place").iterdir()) == ["one", "two"]


CHAIN = [item(b"%sd0/a", b"data"), *(link(b"%%sd%d/a" % n, b"%%sd%d/a" % (n - 1)) for n in range(1, 9))]
CASES = {
    b"file, directory": [item(b"%sa", b"1"), directory(b"%sa/"), item(b"%sa/x", b"2")],
    b"directory, file": [directory(b"%sa/"), item(b"%sa", b"1")],
    b"full directory, file": [directory(b"%sa/"), item(b"%sa/x", b"1"), item(b"%sa", b"2"), item(b"%sa/y", b"3")],
    b"below a file": [item(b"%sa", b"1"), item(b"%sa/x/y", b"2"), directory(b"%sa/b/")],
    b"file, directory, file": [item(b"%sa", b"1"), directory(b"%sa/"), item(b"%sa", b"2")],
    b"symlink, directory": [header(b"%sa", b"2", link=b"."), directory(b"%sa/"), item(b"%sa/x", b"2")],
    b"link to itself": [item(b"%sf", b"data"), link(b"%sf", b"%sf"), link(b"%sg", b"%sf"), link(b"%sf", b"./%sf")],
    b"link before a later one": [item(b"%sa", b"1"), link(b"%sb", b"%sa"), item(b"%sa", b"2"), link(b"%sc", b"%sa")],
    b"chain before a later one": [
        *(item(b"%sa", b"1"), link(b"%sb", b"%sa"), link(b"%sc", b"%sb"), item(b"%sa", b"2")),
        *(item(b"%sb", b"3"), link(b"%sd", b"%sc")),
    ],
    b"chain": CHAIN,
}
"""Several members of the same name, which tar extracts in their order."""


def placed_below(blocks: Sequence[bytes], below: bytes) -> bytes:
    """Return the blocks with ``%s`` in names and link targets replaced by the directory ``below``."""
    whole = b""
    for block in blocks:
        head = bytearray(block[:512])
        for at in (0, 157):
            text = bytes(head[at : at + 100]).rstrip(b"\0").replace(b"%s", below + b"/")
            head[at : at + 100] = text.ljust(100, b"\0")
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        whole += bytes(head) + block[512:]
    return whole


def contents_of(place: Path) -> dict[str, str]:
    """Return directories and file contents by relative path, without symbolic links."""
    return {
        str(path.relative_to(place)): "directory" if path.is_dir() and not path.is_symlink() else path.read_text()
        for path in sorted(place.rglob("*"))
        if not path.is_symlink()
    }


@pytest.mark.parametrize("ranks", [1, 3])
def test_members_of_the_same_name_are_extracted_in_their_order(ranks: int, tmp_path: Path) -> None:
    """The result equals that of GNU tar, whichever rank extracts a member."""
    data = b"".join(placed_below(blocks, b"%d" % number) for number, blocks in enumerate(CASES.values()))
    done, reported, place = extract(tmp_path, data + LAST + END, ranks=ranks)
    assert done.returncode == 1, show(done)
    assert contents_of(place) == contents_of(extracted_by_tar(tmp_path))
    assert done.stderr.count(b"a directory that is not empty has its name") == 1, show(done)
    assert done.stderr.count(b"a member that is no directory has the name of the directory") == 2, show(done)
    assert reported["failed"] == 3
    assert (place / "9/d0/a").stat().st_nlink == 9
    assert (place / "6/f").stat().st_nlink == 2


def test_directory_member_replaces_an_existing_file(tmp_path: Path) -> None:
    """Members deep below the directory may be extracted before it."""
    for name in ("a", "b"):
        (tmp_path / "place").mkdir(exist_ok=True)
        (tmp_path / "place" / name).touch()
    parts = [
        directory(b"a/"),
        directory(b"b/"),
        *(item(b"%s/%d/%d/x" % (n, m, m)) for n in (b"a", b"b") for m in range(20)),
    ]
    (tmp_path / "a.tar").write_bytes(b"".join(parts) + END)
    done = pcopy("-xf", tmp_path / "a.tar", "-C", tmp_path / "place", program="ptar", ranks=3)
    assert done.returncode == 0, show(done)
    assert len(list((tmp_path / "place").rglob("x"))) == 40


def test_member_with_a_deep_path_is_extracted(tmp_path: Path) -> None:
    deep = b"d/" * 5000
    done, reported, _ = extract(tmp_path, pax((b"path", deep + b"f")) + item(b"f", b"x") + LAST + END)
    assert (done.returncode, reported["files"]) == (0, 2), show(done)
    inner = subprocess.run(
        ["find", tmp_path / "place", "-type", "f", "-printf", "%d %s\n"], check=True, capture_output=True
    )
    assert set(inner.stdout.splitlines()) == {b"5001 1", b"1 6"}
    subprocess.run(["rm", "-rf", tmp_path / "place"], check=True)


def test_extraction_does_not_overwrite_its_own_archive(tmp_path: Path) -> None:
    data = item(b"a.tar", b"x" * 100) + directory(b"d/") + link(b"d/../a.tar", b"after") + LAST + END
    (tmp_path / "a.tar").write_bytes(data)
    done = pcopy("-xf", tmp_path / "a.tar", "-C", tmp_path, program="ptar", ranks=2)
    assert done.returncode == 1, show(done)
    assert b"a.tar: extract: it would replace the archive that is being extracted" in done.stderr
    assert (tmp_path / "a.tar").read_bytes() == data
    assert (tmp_path / "after").read_bytes() == b"after\n"


def test_tree_given_twice_is_archived_without_links_to_itself(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"data")
    (tmp_path / "d/g").hardlink_to(tmp_path / "d/f")
    done = pcopy("-cf", "a.tar", "d", "d", "d/g", "--json", program="ptar", ranks=2, cwd=tmp_path)
    assert done.returncode == 0, show(done)
    reported = json.loads(done.stdout)
    assert (
        reported["found"] == reported["files"] + reported["directories"] + reported["hardlinks"] + reported["skipped"]
    )
    other = extracted_by_tar(tmp_path)
    assert (other / "d/f").read_bytes() == (other / "d/g").read_bytes() == b"data"
    (tmp_path / "place").mkdir()
    assert pcopy("-xf", "a.tar", "-C", "place", program="ptar", ranks=2, cwd=tmp_path).returncode == 0
    assert contents_of(tmp_path / "place") == contents_of(other)
    assert (tmp_path / "place/d/f").stat().st_nlink == 2
