"""Files from untrusted sources cost memory and time in proportion to the data that they contain, and limits are exact.

Peak memory is that of a separate process, beyond what it uses before it reads (``VmHWM``). Time is measured as work:
requested bytes, and calls.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from pcopy.archive import index, reader
from pcopy.archive.headers import member_header, pax_records_size
from pcopy.archive.member import MAX_HEADER_BYTES, ArchiveMember, Extents
from pcopy.archive.reader import ArchiveDamage, FoundMember, read_archive_members
from pcopy.archive.records import NUMBER_LIMIT
from pcopy.fsio import seekable_zstd
from pcopy.fsio.problem import Problem
from pcopy.tasks.archive.contents import ArchiveContents, ArchiveNotSeekable
from pcopy.tasks.archive.descriptions import check_member_header_size
from tests.archive.test_types import END, header, item, pax
from tests.support.command import REPOSITORY

MIB = 1 << 20
_MEASURE = """\
import sys, io
from pathlib import Path
from pcopy.archive.index import read_index
from pcopy.archive.reader import read_archive_members
def peak():
    return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1]) << 10
before = peak()
try:
    {what}
except ValueError as error:
    print(error, file=sys.stderr)
print(peak() - before)
"""


def peak_of(what: str, *arguments: object) -> tuple[int, str]:
    """Return the bytes of memory that a statement takes in a separate process, and its standard error."""
    program = _MEASURE.format(what=what)
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], check=True, capture_output=True, text=True
    )
    return int(done.stdout), done.stderr


READ_INDEX = "found = read_index(open(sys.argv[1], 'rb'), 1 << 40, 5)"
FIRST = b"#pcopy-tar-index 1 1099511627776 5\n"


@pytest.mark.parametrize(
    ("begin", "rest", "why"),
    [
        (b"", b"\n", "not an index"),
        (FIRST, b"\n", "not an offset"),
        (b"", b"x", "not an index"),
        (FIRST, b"0", "too long"),
    ],
    ids=["newlines", "newlines after line 1", "one line", "one line after line 1"],
)
def test_invalid_index_takes_no_memory(begin: bytes, rest: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "idx").write_bytes(begin + rest * (50 * MIB // len(rest)))
    peak, said = peak_of(READ_INDEX, tmp_path / "idx")
    assert why in said
    assert peak < 16 * MIB


def test_memory_of_an_index_is_twice_that_of_its_offsets(tmp_path: Path) -> None:
    number = 400_000
    text = b"".join(b"%d\n" % (512 * each) for each in range(number))
    (tmp_path / "idx").write_bytes(FIRST + text + b"end %d\n" % (512 * number))
    peak, said = peak_of(READ_INDEX, tmp_path / "idx")
    assert not said and peak < 8 * MIB + 2 * 8 * number


def test_index_is_limited_in_parts_and_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tested with the maximum number and with one more."""
    monkeypatch.setattr(index, "MAX_INDEX_OFFSETS", 10)
    monkeypatch.setattr(index, "MAX_FRAMES", 10)
    for more in (0, 1):
        points = b"".join(b"%d\n" % (512 * each) for each in range(10 + more)) + b"end 99840\n"
        frames = b"frame %d 100\n" % (7991 - more) + b"frame 1 100\n" * (9 + more) + b"0\nend 512\n"
        for text in (points, frames):
            if more:
                with pytest.raises(ValueError, match="more than 10"):
                    index.read_index(io.BytesIO(b"#pcopy-tar-index 1 8000 5\n" + text), 8000, 5)
            else:
                index.read_index(io.BytesIO(b"#pcopy-tar-index 1 8000 5\n" + text), 8000, 5)


@pytest.mark.parametrize("number", [0, 1, 10, 11, 20, 21, 35])
def test_writer_of_an_index_obeys_its_limits(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbouring frames are joined so that readers accept the index, unless parts become too large."""
    monkeypatch.setattr(index, "MAX_FRAMES", 10)
    monkeypatch.setattr(index, "MAX_FRAME_SIZE", 15)
    frames = [(1 + each, 5) for each in range(number)]
    parts = index.joined_gzip_parts(frames)
    assert number > 30 or len(parts) <= 10
    assert sum(size for _, size in parts) == 5 * number and max([0, *(size for _, size in parts)]) <= 15
    ends = list(accumulate(size for size, _ in frames))
    assert set(accumulate(size for size, _ in parts)) <= set(ends), "a part begins within a frame"


@pytest.mark.parametrize("more", [0, 1])
def test_compressed_part_of_an_archive_is_limited_in_size(more: int, tmp_path: Path) -> None:
    """Such a part is read as a whole, and a sparse file of any size costs an attacker nothing."""
    path, size = tmp_path / "a.tar.gz", index.MAX_COMPRESSED_PART_BYTES + more
    path.write_bytes(b"\x1f\x8b\x08")
    os.truncate(path, size)
    text = f"#pcopy-tar-index 1 {size} {path.stat().st_mtime_ns}\nframe {size} 512\n0\nend 512\n"
    path.with_name("a.tar.gz.idx").write_text(text)
    with open(path, "rb") as file:
        if more:
            with pytest.raises(ArchiveNotSeekable, match="its parts are too large"):
                ArchiveContents(file.fileno(), os.fsencode(path))
        else:
            ArchiveContents(file.fileno(), os.fsencode(path))


def test_file_with_too_many_frames_has_no_seek_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seekable_zstd, "MAX_FRAMES", 10)
    frames = [seekable_zstd.ZstdFrame(9, 5)] * 10
    assert len(seekable_zstd.packed_seek_table(frames)) == 8 + 10 * 8 + 9
    assert seekable_zstd.packed_seek_table([*frames, frames[0]]) == b""


@pytest.mark.parametrize("line", ["%d", "frame 0 %d"])
def test_index_is_read_no_further_than_the_archive_reaches(line: str) -> None:
    """Otherwise 50 MB of lines for an archive of 2 KiB would take many seconds."""
    stream = io.BytesIO(FIRST + "".join(f"{line % (512 * each)}\n" for each in range(100_000)).encode())
    with pytest.raises(ValueError, match=r"extends beyond the end of the archive|does not match the archive"):
        index.read_index(stream, 1 << 40, 5, 2048)
    assert stream.tell() < 200


def read(data: bytes, most: int = 4) -> list[FoundMember | ArchiveDamage]:
    return list(read_archive_members(lambda at, size: data[at : at + size], lambda what, name: None, most_extents=most))


def record(key: bytes, value: bytes) -> bytes:
    bare = len(key) + len(value) + 3
    length = next(n for n in range(bare, bare + 9) if n == bare + len(str(n)))
    return b"%d %b=%b\n" % (length, key, value)


def old_sparse(number: int, *, empty: bool = False) -> bytes:
    """A map of extents of one byte each (``empty``: of none), in the old format of GNU tar."""
    pairs = (
        [b"%011o\0%011o\0" % (0, 0)] * number
        if empty
        else [b"%011o\0%011o\0" % (2 * each, 1) for each in range(number)]
    )
    data = b"" if empty else b"d" * number
    head = bytearray(header(b"s", b"S", len(data), magic=b"ustar  \0"))
    head[386:482] = b"".join(pairs[:4]).ljust(96, b"\0")
    head[482:495] = (b"\1" if pairs[4:] else b"\0") + b"%011o\0" % (2 * number)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    blocks = [b"".join(pairs[at : at + 21]).ljust(504, b"\0") for at in range(4, len(pairs), 21)]
    more = b"".join(
        block + (b"\1" if each < len(blocks) - 1 else b"\0") + bytes(7) for each, block in enumerate(blocks)
    )
    return bytes(head) + more + data + bytes(-len(data) % 512)


def pax_sparse(number: int, version: str) -> bytes:
    """The same map in one of the three pax versions."""
    data, words = b"d" * number, [b"%d" % value for each in range(number) for value in (2 * each, 1)]
    if version == "1.0":
        text = b"".join(word + b"\n" for word in [b"%d" % number, *words])
        reported = [
            (b"GNU.sparse.major", b"1"),
            (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.realsize", b"%d" % (2 * number)),
        ]
        return pax(b"".join(record(*each) for each in reported)) + item(b"s", text + bytes(-len(text) % 512) + data)
    reported = [(b"GNU.sparse.size", b"%d" % (2 * number))]
    if version == "0.1":
        reported.append((b"GNU.sparse.map", b",".join(words)))
    else:
        keys = (b"GNU.sparse.offset", b"GNU.sparse.numbytes") * number
        reported += zip(keys, words, strict=True)
    return pax(b"".join(record(*each) for each in reported)) + item(b"s", data)


@pytest.mark.parametrize("form", ["old", "0.0", "0.1", "1.0"])
def test_number_of_extents_in_sparse_maps_is_limited(form: str) -> None:
    """With one extent too many the member is refused, the option is named, and the next member is read."""
    for most in (4, 5, 100):
        for number in (most, most + 1):
            whole = old_sparse(number) if form == "old" else pax_sparse(number, form)
            first, last = read(whole + header(b"after") + END, most)
            assert isinstance(last, FoundMember) and last.member.name == b"after"
            if number > most:
                assert isinstance(first, ArchiveDamage)
                assert f"more than {most:,} entries; --sparse-limit N allows more" in first.text
                continue
            assert isinstance(first, FoundMember)
            assert first.member.extents == Extents.from_pairs((2 * each, 1) for each in range(number))


def test_empty_entries_of_an_old_sparse_map_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of empty entries takes no memory, but time: 10 KB of zstd can contain millions of them."""
    added: list[bytes] = []
    monkeypatch.setattr(reader, "_add_extents", lambda found, fields: added.append(fields))
    for number, is_damage in ((4 + 5 * 21, False), (4 + 6 * 21, True), (4 + 500 * 21, True)):
        added.clear()
        first, last = read(old_sparse(number, empty=True) + header(b"after") + END, 100)
        assert isinstance(first, ArchiveDamage) == is_damage, number
        assert isinstance(last, FoundMember) and last.member.name == b"after"
        assert len(added) == 6


@pytest.mark.parametrize("form", ["old", "1.0"])
def test_sparse_map_takes_a_few_times_16_bytes_per_extent(form: str, tmp_path: Path) -> None:
    number = 400_000
    (tmp_path / "a").write_bytes((old_sparse(number) if form == "old" else pax_sparse(number, form)) + END)
    what = (
        "import os\n    stream = os.open(sys.argv[1], os.O_RDONLY)\n"
        "    read = lambda at, size: os.pread(stream, size, at)\n"
        "    found = list(read_archive_members(read, lambda *_: None))\n"
        "    assert len(found[0].member.extents) == 400_000"
    )
    peak, _ = peak_of(what, tmp_path / "a")
    assert peak < 16 * MIB + 3 * 16 * number + len(bytes(2 * MIB)) * 8


@pytest.mark.parametrize("kind", [b"x", b"L", b"K", b"g"])
def test_total_size_of_the_headers_of_a_member_is_limited(kind: bytes) -> None:
    """At the limit the member is read. Beyond it is damage, its body is not read as members, and the next member is
    read.
    """
    half = MAX_HEADER_BYTES // 2
    overhead = len(record(b"comment", b"c" * half)) - half
    for more in (0, 1):
        lengths = (half, half + more)
        bodies = [b"n" * length for length in lengths]
        if kind in (b"x", b"g"):
            bodies = [record(b"comment", b"c" * (length - overhead)) for length in lengths]
        assert sum(map(len, bodies)) == MAX_HEADER_BYTES + more
        data = b"".join(item(b"e", body, kind) for body in bodies) + header(b"a") + header(b"after") + END
        found = read(data)
        assert isinstance(found[-1], FoundMember) and found[-1].member.name == b"after"
        wanted = kind == b"g" or not more  # each global header counts separately
        assert all(isinstance(each, FoundMember) for each in found) == wanted, (kind, more)


@pytest.mark.parametrize("order", ["size first", "size last"])
def test_data_of_a_member_with_too_long_headers_is_not_read_as_members(order: str, tmp_path: Path) -> None:
    """Its size is in the header that is too long. GNU tar serves as the reference for the members."""
    inner = item(b"planted", b"p" * 512)
    wanted = [record(b"path", b"real/name"), record(b"size", b"%d" % len(inner))]
    comment = [record(b"comment", b"c" * (MAX_HEADER_BYTES + 1))]
    records = wanted + comment if order == "size first" else comment + wanted
    data = pax(b"".join(records)) + header(b"short") + inner + item(b"good", b"g") + END
    found = read(data)
    assert [each.name if isinstance(each, ArchiveDamage) else each.member.name for each in found] == [
        b"real/name",
        b"good",
    ]
    assert isinstance(found[0], ArchiveDamage) and "headers of" in found[0].text
    (tmp_path / "a.tar").write_bytes(data)
    listed = subprocess.run(["tar", "-tf", tmp_path / "a.tar"], check=True, capture_output=True).stdout
    assert listed == b"real/name\ngood\n"


_FEW_POINTS = """
import sys
from pcopy.archive import index
from pcopy.tasks.archive import piece_layout
index.MAX_INDEX_OFFSETS = piece_layout.MAX_INDEX_OFFSETS = 8
piece_layout.MIN_OFFSET_DISTANCE = 512
from pcopy.cli.ptar import PTAR
sys.exit(PTAR.main(sys.argv[1:]))
"""


def test_written_index_is_within_the_limit(tmp_path: Path) -> None:
    """The limit is 8 offsets here: with more members, offsets are further apart."""
    for number in range(40):
        (tmp_path / f"tree/{number}").mkdir(parents=True)
        (tmp_path / f"tree/{number}/file").write_bytes(b"x")
    words = [sys.executable, "-c", _FEW_POINTS, "-n", "1"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    for more in (("-cf", "a.tar", "tree"), ("-tf", "a.tar")):
        run = subprocess.run([*words, *more], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        assert "index" not in run.stderr
    lines = (tmp_path / "a.tar.idx").read_bytes().splitlines()
    assert lines[1] == b"0" and 1 < len(lines) - 2 <= 8


def test_global_header_is_processed_once() -> None:
    """Its records are not processed for each member: a profile has as many calls as without the header."""
    import cProfile
    import pstats

    def calls(data: bytes) -> int:
        profile = cProfile.Profile()
        assert len(profile.runcall(read, data)) == 500
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    some = b"".join(header(b"f%d" % number) for number in range(500)) + END
    records = b"".join(record(b"vendor.%d" % number, b"v") for number in range(20_000))
    assert len(records) < MAX_HEADER_BYTES
    once = calls(pax(records, b"g") + some) - calls(some)
    assert once < 20 * 20_000


def test_global_header_with_attributes_is_damage() -> None:
    for key in (b"SCHILY.xattr.user.a", b"GNU.sparse.map", b"LIBARCHIVE.xattr.user.a", b"SCHILY.acl.access"):
        found = read(pax(record(key, b"1"), b"g") + header(b"after") + END)
        assert [type(each) for each in found] == [ArchiveDamage, FoundMember], key


_COMPARE = """\
import sys, time
from io import BytesIO
from pcopy.archive.member import FILE, HARD_LINK_MEMBER, ArchiveMember
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.archive.names import LinkToResolve, NameRecords, NameConflict, name_conflicts, resolved_links
from pcopy.tasks.archive.members_to_extract import pack_member
from tempfile import TemporaryFile
def peak():
    return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1]) << 10
def add(name, kind, link=b""):
    global at, records
    at += 512
    member = ArchiveMember(name, kind, 0o644, 0, 0, 0, 0, link)
    records.add_member(name.rstrip(b"/"), member, at, pack_member(name.rstrip(b"/"), member, at, ""))
    if at % (512 * 1024) == 0:
        hand_on()
def hand_on():
    global records
    members.extend(records.members[0])
    marks.extend(records.marks[0])
    records = NameRecords(1)
what, number = sys.argv[1], int(sys.argv[2])
members, marks, links = (ExternalSorter(TemporaryFile, 1 << 20) for _ in range(3))
records, at, before = NameRecords(1), 0, peak()
for each in range(number // 2):
    if what == "members and links":
        add(b"a", FILE)
        add(b"b%d" % each, HARD_LINK_MEMBER, b"a")
    elif what == "file and directory":
        add(b"a", FILE)
        add(b"a/", b"5")
    else:
        add(b"b%d" % each, HARD_LINK_MEMBER, b"b%d" % (each + 1))
        add(b"c%d" % each, HARD_LINK_MEMBER, b"c%d" % (each - 1))
hand_on()
stretches = found = 0
for rival in name_conflicts(members.sorted(), marks.sorted()):
    if isinstance(rival, LinkToResolve):
        links.add(*rival.record_for_sorting)
    elif isinstance(rival, NameConflict):
        stretches += len(rival.stretches) // 16
with TemporaryFile() as spool:
    found = sum(each is not None for each in resolved_links(links.sorted(), spool))
print(stretches, found, peak() - before)
"""


@pytest.mark.parametrize(
    ("what", "number", "stretches", "links"),
    [
        ("members and links", 60_000, 0, 29_999),
        ("file and directory", 200_000, 100_000, 0),
        ("links in a row", 40_000, 0, 40_000),
    ],
)
def test_memory_for_duplicate_names_is_bounded(what: str, number: int, stretches: int, links: int) -> None:
    """If many members share a name, or many links refer to one, memory is that of sorters and a few bytes each."""
    done = subprocess.run(
        [sys.executable, "-c", _COMPARE, what, str(number)], check=True, capture_output=True, text=True
    )
    found = list(map(int, done.stdout.split()))
    assert found[:2] == [stretches, links]
    assert found[2] < 24 * MIB


def test_written_members_are_readable_up_to_the_header_limit() -> None:
    """A member with the maximum size of attributes is read again; a larger one is not written."""
    whole = ArchiveMember(b"a", b"0", 0o644, 0, 0, 0, xattrs=(("user.a", b"v"),))
    least = pax_records_size(whole._replace(xattrs=(("user.a", b"v" * 1_000_000),)))
    for more in (0, 1):
        value = b"v" * (1_000_000 + MAX_HEADER_BYTES - least + more)
        member = whole._replace(xattrs=(("user.a", value),))
        assert pax_records_size(member) == MAX_HEADER_BYTES + more
        found = read(member_header(member) + END)[0]
        if more:
            assert isinstance(found, ArchiveDamage)
            with pytest.raises(Problem, match="1,048,577 bytes of headers"):
                check_member_header_size(member)
        else:
            check_member_header_size(member)
            assert isinstance(found, FoundMember) and found.member.xattrs == member.xattrs


def test_sparse_limit_option_raises_the_header_limit() -> None:
    number = 60_000
    data = pax_sparse(number, "0.1") + pax_sparse(number, "0.0") + END
    first, second = read(data, 1 << 22)[:2]
    assert isinstance(second, ArchiveDamage) and "--sparse-limit 0 allows more" in second.text
    for each in read(data, NUMBER_LIMIT):
        assert isinstance(each, FoundMember) and len(each.member.extents or ()) == number
    assert isinstance(first, FoundMember)
