"""``DescribeMembersBatch`` and ``ReadTarMembersBatch``, batches of the C backend only: subtrees as members of an
archive.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pcopy.archive.headers import pax_mtime_header_block, trailing_file_header_fields
from pcopy.fsio.backend.batches import ALL_LEVELS, MEMBER_ROW_FORMAT
from pcopy.fsio.backend.columns import OutcomeCode
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.member_batches import (
    ConsecutiveTreeMembers,
    DescribeMembersBatch,
    DescribeMembersResult,
    ReadTarMembersBatch,
)
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BackendFactory, done

GUARD = b"\xaa" * 4096
FILES = {"one/b": 700, "one/a": 0, "one/sub/c": 65_535, "one/sub-d/e": 512, "two/f": 1}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, size in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(os.urandom(size))
    os.utime(tmp_path / "one/sub", ns=(10**18, 10**18))
    return tmp_path


def described(
    make_backend: BackendFactory,
    place: Path,
    names: Sequence[str],
    *,
    seconds: float = 60,
    **settings: Any,
) -> DescribeMembersResult:
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    directory = os.open(place, os.O_RDONLY)
    usual: dict[str, Any] = {
        "owners": [(os.geteuid(), os.getegid())],
        "max_file_bytes": 65_535,
        "reads_all": True,
        "is_apart": False,
        "members_per_piece": 256,
        "bytes_per_piece": 4 << 20,
    }
    batch = DescribeMembersBatch(
        directory,
        "/".join(names).encode(),
        array("Q", [(place / name).stat().st_ino for name in names]),
        place.stat().st_dev,
        1000,
        ALL_LEVELS,
        time.monotonic() + seconds,
        None,
        b"top/",
        **(usual | settings),
    )
    try:
        done(backend, batch)  # C asks Python once how to handle an attribute
        result: DescribeMembersResult = done(backend, batch)
        return result
    finally:
        os.close(directory)
        backend.close()


def names_of(piece: ConsecutiveTreeMembers) -> list[str]:
    return piece.names.decode().split("\0")[:-1]


def test_members_have_the_order_of_the_archive(make_backend: BackendFactory, place: Path) -> None:
    found = described(make_backend, place, ("one", "two"))
    assert [*found.verdicts.codes] == [OutcomeCode.DONE] * 2
    (piece,) = found.pieces()
    assert names_of(piece) == [
        "one/", "one/a", "one/b", "one/sub/", "one/sub/c", "one/sub-d/", "one/sub-d/e", "two/", "two/f",
    ]  # fmt: skip
    assert (found.counts.files, found.counts.directories, found.counts.other_items) == (5, 4, 7)
    assert found.counts.bytes == sum(FILES.values())
    assert piece.size == sum(row[-1] for row in MEMBER_ROW_FORMAT.iter_unpack(piece.rows))
    assert not found.frontiers


def test_tarfile_reads_the_members(make_backend: BackendFactory, place: Path) -> None:
    (piece,) = described(make_backend, place, ("one", "two")).pieces()
    room, number = bytearray(piece.size) + GUARD, piece.names.count(b"\0")
    owners = {(os.geteuid(), os.getegid()): trailing_file_header_fields(b"user", b"group")}
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    directory = os.open(place, os.O_RDONLY)
    runs = [(directory, number, b"top/", piece.names, piece.rows)]
    read = done(backend, ReadTarMembersBatch(runs, room, owners, pax_mtime_header_block()))
    os.close(directory)
    backend.close()
    assert room.endswith(GUARD)
    assert [*read.member_codes] == [OutcomeCode.DONE] * number
    with tarfile.open(fileobj=io.BytesIO(bytes(room[: piece.size]) + bytes(1024))) as archive:
        for member in archive:
            path = place / member.name.removeprefix("top/")
            status = path.stat()
            assert (member.mode, member.uid, member.gid) == (status.st_mode & 0o7777, status.st_uid, status.st_gid)
            assert (member.uname, member.gname, member.isdir()) == ("user", "group", path.is_dir())
            assert abs(member.mtime - status.st_mtime_ns / 1e9) < 1e-5
            if member.isfile():
                contents = archive.extractfile(member)
                assert contents is not None and contents.read() == path.read_bytes()
        assert len(archive.getmembers()) == number


def test_changed_files_take_the_slow_path(make_backend: BackendFactory, place: Path) -> None:
    found = described(make_backend, place, ("one", "two"))
    (piece,) = found.pieces()
    (place / "one/b").write_bytes(b"x" * 700)
    (place / "one/sub").rename(place / "elsewhere")
    (place / "one/sub").symlink_to("../elsewhere")
    (place / "two/f").unlink()
    os.mkfifo(place / "two/f")
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    directory = os.open(place, os.O_RDONLY)
    owners = {(os.geteuid(), os.getegid()): trailing_file_header_fields(b"", b"")}
    runs = [(directory, piece.names.count(b"\0"), b"top/", piece.names, piece.rows)]
    read = done(backend, ReadTarMembersBatch(runs, bytearray(piece.size), owners, pax_mtime_header_block()))
    os.close(directory)
    backend.close()
    slow = [name for name, code in zip(names_of(piece), read.member_codes, strict=True) if code != OutcomeCode.DONE]
    assert slow == ["one/b", "one/sub/c", "two/f"]


def linked(place: Path) -> None:
    os.link(place / "one/sub/c", place / "outside")


def attributed(place: Path) -> None:
    subprocess.run(("setfattr", "-n", "user.a", "-v", "b", place / "one/sub/c"), check=True)


def attributed_directory(place: Path) -> None:
    subprocess.run(("setfacl", "-m", "u:1:r", place / "one/sub"), check=True)


@pytest.mark.parametrize(
    "change",
    [
        linked,
        attributed,
        attributed_directory,
        lambda place: (place / "one/sub/link").symlink_to("c"),
        lambda place: os.mkfifo(place / "one/sub/pipe"),
        lambda place: os.truncate(place / "one/sub/c", 65_536),
        lambda place: os.utime(place / "one/sub/c", (5, 5)),
        lambda place: os.utime(place / "one/sub", (5, 5)),
        lambda place: (place / "one/sub" / ("n" * 89)).touch(),
        lambda place: (place / "one/sub" / ".pcopy-incomplete-c").touch(),
    ],
)
def test_other_directories_are_left_and_divide_the_members(
    change: Callable[[Path], object], make_backend: BackendFactory, place: Path
) -> None:
    change(place)
    found = described(make_backend, place, ("one", "two"))
    assert [names_of(piece) for piece in found.pieces()] == [
        ["one/", "one/a", "one/b"],
        ["one/sub-d/", "one/sub-d/e", "two/", "two/f"],
    ]
    ((items,),) = ([*frontier.remaining] for frontier in found.frontiers.values())
    assert (items.directory, items.names, items.kinds) == (b"one", [b"sub"], b"m")


def test_longest_name_fits(make_backend: BackendFactory, place: Path) -> None:
    (place / "one/sub" / ("n" * 88)).touch()  # 100 bytes with the path
    assert not described(make_backend, place, ("one",)).frontiers


def test_unknown_owner_is_left(make_backend: BackendFactory, place: Path) -> None:
    found = described(make_backend, place, ("one",), owners=[(4242, 4242)])
    assert [*found.verdicts.codes] == [OutcomeCode.SLOW_PATH]
    assert [*found.pieces()] == []


def test_file_whose_mode_may_deny_reading_is_left(make_backend: BackendFactory, place: Path) -> None:
    (place / "one/b").chmod(0o000)
    (place / "two/empty").touch(0o000)
    codes = [*described(make_backend, place, ("one", "two"), reads_all=False).verdicts.codes]
    assert codes == [OutcomeCode.SLOW_PATH, OutcomeCode.DONE]
    assert [*described(make_backend, place, ("one",)).verdicts.codes] == [OutcomeCode.DONE]


def test_rows_after_the_deadline_are_not_begun(make_backend: BackendFactory, place: Path) -> None:
    found = described(make_backend, place, ("one", "two"), seconds=-1)
    assert [*found.verdicts.codes] == [OutcomeCode.DONE, OutcomeCode.CANCELLED]
    assert [names_of(piece) for piece in found.pieces()] == [["one/", "one/a", "one/b"]]
    ((items,),) = ([*frontier.remaining] for frontier in found.frontiers.values())
    assert (items.names, items.kinds) == ([b"sub", b"sub-d"], b"dd")


def test_members_of_one_piece_follow_each_other(make_backend: BackendFactory, place: Path) -> None:
    apart = described(make_backend, place, ("one", "two"), is_apart=True)
    assert [names_of(piece)[0] for piece in apart.pieces()] == ["one/", "two/"]
    small = [*described(make_backend, place, ("one", "two"), members_per_piece=2).pieces()]
    assert [len(names_of(piece)) for piece in small] == [2, 2, 2, 2, 1]


def test_pieces_begin_at_the_same_directories_whatever_the_rows_are(make_backend: BackendFactory, place: Path) -> None:
    """A resumed run recognises most pieces, although its calls have other rows."""
    names = [f"{number:03}" for number in range(400)]
    for name in names:
        (place / name).mkdir()
        for file in range(70 if name == "200" else 1):
            (place / name / f"{file}").touch()
    whole = {names_of(piece)[0] for piece in described(make_backend, place, names).pieces()}
    later = {names_of(piece)[0] for piece in described(make_backend, place, names[130:]).pieces()}
    assert len(whole) > 4
    assert {"200/", "201/"} <= whole
    assert later - {"130/"} == {name for name in whole if name >= "131/"}
