"""Damaged archives: -t, -t --signature, -x --dry-run and -x reject the same members."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pcopy.fsio.seekable_zstd import ZstdFrame, compress_frame, packed_seek_table
from tests.archive.test_types import END, header, item, pax
from tests.support.archives import ptar
from tests.support.command import show

BAD_ACL = b"39 SCHILY.acl.default=user:nobody:what\n"
FILE_A = item(b"a", b"1")
DIRECTORY = header(b"d/", b"5")
ARCHIVES: dict[str, tuple[bytes, set[str]]] = {
    "whole": (FILE_A + header(b"b", b"1", link=b"a") + END, set()),
    "cut": (FILE_A, {"*"}),
    "cut in contents": (header(b"a", b"0", 4096) + b"x" * 512, {"*", "a"}),
    "checksum": (b"y" + item(b"a", b"1")[1:] + END, {"*"}),
    "name leads out": (FILE_A + item(b"../e", b"1") + END, {"../e"}),
    "link leads out": (FILE_A + header(b"b", b"1", link=b"../a") + END, {"b"}),
    "link to nothing": (FILE_A + header(b"b", b"1") + END, {"b"}),
    "link to what is not there": (FILE_A + header(b"b", b"1", link=b"c") + END, {"b"}),
    "link to a later member": (header(b"b", b"1", link=b"a") + FILE_A + END, set()),
    "link to itself": (FILE_A + header(b"b", b"1", link=b"b") + END, {"b"}),
    "link to its own file": (FILE_A + header(b"a", b"1", link=b"a") + END, set()),
    "links to each other": (header(b"b", b"1", link=b"c") + header(b"c", b"1", link=b"b") + END, {"b", "c"}),
    "links to nothing in a row": (header(b"b", b"1", link=b"x") + header(b"c", b"1", link=b"b") + END, {"b", "c"}),
    "links to a file in a row": (
        header(b"c", b"1", link=b"b") + header(b"b", b"1", link=b"e") + header(b"e", b"1", link=b"a") + FILE_A + END,
        set(),
    ),
    "link to a directory": (DIRECTORY + item(b"d/a", b"1") + header(b"b", b"1", link=b"d") + END, {"b"}),
    "link to a directory without a member": (item(b"d/a", b"1") + header(b"b", b"1", link=b"d") + END, {"b"}),
    "link to a member that is replaced": (FILE_A + header(b"b", b"1", link=b"a") + item(b"a", b"2") + END, set()),
    "link to a file that becomes a directory": (
        item(b"d", b"1") + header(b"b", b"1", link=b"d") + DIRECTORY + END,
        {"b"},
    ),
    "symbolic link without a text": (FILE_A + header(b"b", b"2") + END, {"b"}),
    "file with something in it": (item(b"f", b"1") + item(b"f/in", b"1") + END, {"f/in"}),
    "file that becomes a directory": (item(b"f", b"1") + header(b"f", b"5") + item(b"f/in", b"1") + END, set()),
    "full directory that becomes a file": (item(b"d/a", b"1") + item(b"d", b"1") + END, {"d"}),
    "empty directory that becomes a file": (DIRECTORY + item(b"d", b"1") + END, set()),
    "name that is too long": (FILE_A + item(b"f" * 99, b"", b"L")[:512] + END, {"*"}),
    "part of a name that is too long": (item(b"@", b"n" * 256, b"L") + FILE_A + END, {"n" * 256}),
    "ACL": (pax(BAD_ACL) + DIRECTORY + END, {"d"}),
    "ACL of a member that is replaced": (pax(BAD_ACL) + DIRECTORY + DIRECTORY + END, set()),
    "ACL of a link": (FILE_A + pax(BAD_ACL) + header(b"b", b"1", link=b"a") + END, set()),
}
FRAME = 1024
"""Uncompressed bytes per frame: the header and the contents of a small member."""


def as_plain(data: bytes, path: Path, flipped: int = -1) -> None:
    path.write_bytes(data)


def as_zstd(data: bytes, path: Path, flipped: int = -1) -> None:
    """Write independent frames and a seek table; a bit of frame ``flipped`` is inverted."""
    packed = [compress_frame(data[at : at + FRAME], 1) for at in range(0, len(data), FRAME)]
    sizes = [ZstdFrame(len(each), min(FRAME, len(data) - FRAME * at)) for at, each in enumerate(packed)]
    path.write_bytes(b"".join(with_flip(packed, flipped)) + packed_seek_table(sizes))


def as_gzip(data: bytes, path: Path, flipped: int = -1, each_part: int = 1) -> None:
    """Write gzip members and an index file, with ``each_part`` members in each part."""
    packed = []
    for at in range(0, len(data), FRAME):
        zipping = zlib.compressobj(wbits=31)
        packed.append(zipping.compress(data[at : at + FRAME]) + zipping.flush())
    path.write_bytes(b"".join(with_flip(packed, flipped)))
    status = path.stat()
    parts = [range(at, min(at + each_part, len(packed))) for at in range(0, len(packed), each_part)]
    sizes = [(sum(len(packed[at]) for at in part), FRAME * part[0], FRAME * part[-1] + FRAME) for part in parts]
    frames = "".join(f"frame {size} {min(end, len(data)) - start}\n" for size, start, end in sizes)
    index = f"#pcopy-tar-index 1 {status.st_size} {status.st_mtime_ns}\n{frames}0\nend {len(data) - len(END)}\n"
    path.with_name(path.name + ".idx").write_text(index)


def with_flip(packed: list[bytes], number: int) -> list[bytes]:
    """Return the frames; in frame ``number`` a bit of the last byte, which is part of the checksum, is inverted."""
    return [each[:-1] + bytes([each[-1] ^ 1]) if at == number else each for at, each in enumerate(packed)]


FORMS: dict[str, Callable[..., None]] = {
    "plain": as_plain,
    "zstd": as_zstd,
    "gzip": as_gzip,
    "gzip, joined": partial(as_gzip, each_part=3),
}
WAYS = ("-t", "-t --signature", "-x --dry-run", "-x")


def outcome(way: str, archive: Path, place: Path) -> tuple[int, set[str]]:
    """Return the status and the names of members that standard error reports as failed.

    An error without a member name is ``*``.
    """
    place.mkdir()
    words: list[object] = [each for each in way.split() if each != "--signature"]
    words += ["--signature", place / "signature"] if "--signature" in way else []
    words += ["-C", place] if "-x" in way else []
    done = ptar(*words, "-f", archive, ranks=1)  # type: ignore[arg-type]
    assert done.returncode < 2 or b"is one stream" in done.stderr, show(done)
    failed = set()
    for line in done.stderr.decode().splitlines():
        if (found := re.match(rf"ptar: {place}/(\S+): \w+: ", line)) is not None:
            failed.add(found[1].lstrip("/"))
        elif re.match(r"ptar: (\S+): (at byte|extract: at byte|decompress: )", line):
            failed.add("*")
        elif (found := re.match(rf"ptar: {archive}: ([^ :]+): ", line)) is not None:
            failed.add(found[1])
    return done.returncode, failed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", ARCHIVES)
def test_all_modes_of_reading_reject_the_same_members(what: str, form: str, tmp_path: Path) -> None:
    data, failed = ARCHIVES[what]
    if form.startswith("gzip") and "*" in failed:
        pytest.skip("its index says where the archive ends")
    FORMS[form](data, tmp_path / "a.tar")
    for number, way in enumerate(WAYS):
        status, found = outcome(way, tmp_path / "a.tar", tmp_path / f"place{number}")
        wanted = failed - {"a"} if "dry" in way else failed  # a dry run reads no contents
        assert (status, found) == (int(bool(failed)), wanted), way


@pytest.mark.parametrize("mode", ["-t", "-x"])
@pytest.mark.parametrize("size", [0, 2, 511])
def test_file_that_is_too_short_for_a_header_is_no_archive(size: int, mode: str, tmp_path: Path) -> None:
    (tmp_path / "short.tar").write_bytes(bytes(size))
    run = ptar(mode, "-f", "short.tar", cwd=tmp_path)
    assert run.returncode == 1, show(run)
    assert b"shorter than a header (512 bytes); is this a tar archive?" in run.stderr, show(run)


@pytest.mark.parametrize("form", ["zstd", "gzip"])
def test_damaged_frames_fail_only_members_that_are_unpacked(form: str, tmp_path: Path) -> None:
    """The damaged frames contain only file contents. Damage in replaced members is no failure."""
    members = [item(name, bytes([65 + number]) * 4 * FRAME) for number, name in enumerate((b"a", b"b", b"a"))]
    data = b"".join(members) + END
    for member, failed in enumerate((set[str](), {"b"}, {"a"})):
        archive = tmp_path / f"{member}.tar"
        FORMS[form](data, archive, (512 + 4 * FRAME) * member // FRAME + 2)
        for way in ("-t", "-t --signature", "-x"):
            place = tmp_path / f"{member}{way.replace(' ', '')}"
            assert outcome(way, archive, place) == (int(bool(failed)), failed), (way, member)


def random_archive(random_one: random.Random) -> bytes:
    names = [b"a", b"b", b"d/a", b"d/b", b"d", b"d/d/a", b"e"]
    parts = []
    for _ in range(random_one.randrange(2, 9)):
        name = random_one.choice(names)
        kind = random_one.choice((b"0", b"0", b"0", b"1", b"1", b"2", b"5"))
        if kind == b"0":
            parts.append(item(name, bytes(random_one.randrange(0, 700))))
        else:
            parts.append(header(name, kind, link=random_one.choice(names) if kind != b"5" else b""))
    return b"".join(parts) + END


def damaged(data: bytes, random_one: random.Random) -> bytes:
    at, length = random_one.randrange(len(data)), random_one.choice((1, 10, 512, 700))
    how = random_one.randrange(5)
    if how == 0:
        return data[:at] + bytes([data[at] ^ (1 << random_one.randrange(8))]) + data[at + 1 :]
    if how == 1:
        return data[:at] + data[at + length :]
    if how == 2:
        return data[:at] + data[at : at + length] + data[at:]
    return data[:at] if how == 3 else data


@pytest.mark.parametrize("form", ["plain", "zstd"])
@pytest.mark.parametrize("seed", range(20))
def test_listing_and_unpacking_of_random_archives_agree(seed: int, form: str, tmp_path: Path) -> None:
    random_one = random.Random(seed)
    archive = tmp_path / "a.tar"
    if form == "plain":
        archive.write_bytes(damaged(random_archive(random_one), random_one))
    else:
        FORMS[form](random_archive(random_one), archive)
        archive.write_bytes(damaged(archive.read_bytes(), random_one))
    ended = {}
    for way in ("-t", "-x"):
        (tmp_path / way).mkdir()
        more: tuple[str | Path, ...] = ("-C", tmp_path / way) if way == "-x" else ()
        done = ptar(way, *more, "-f", archive, ranks=1)
        ended[way] = done.returncode != 0, done.stderr
    assert ended["-t"][0] == ended["-x"][0], ended
