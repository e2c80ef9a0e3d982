"""``ReadTarMembersBatch`` and ``FindItemsWithoutXattrsBatch``, batches of the C backend only: small files as members of
an archive.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from pcopy.archive.headers import archived_sizes_of_regular_files, pax_mtime_header_block, trailing_file_header_fields
from pcopy.fsio.backend.batches import MEMBER_ROW_FORMAT, FindItemsWithoutXattrsBatch
from pcopy.fsio.backend.columns import OutcomeCode
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.member_batches import ReadTarMembersBatch
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BackendFactory, done

GUARD = b"\xaa" * 4096


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, size in (("a/one", 0), ("a/two", 700), ("b/three", 512), ("b/four", 100_000)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(os.urandom(size))
    os.utime(tmp_path / "b/three", ns=(10**18, 10**18))
    return tmp_path


def row_of(status: os.stat_result, whole: int | None = None) -> bytes:
    whole = archived_sizes_of_regular_files([status.st_size], [status.st_mtime_ns])[0] if whole is None else whole
    return MEMBER_ROW_FORMAT.pack(
        status.st_ino, status.st_size, status.st_dev, status.st_mtime_ns, status.st_ctime_ns, status.st_mode,
        status.st_uid, status.st_gid, whole,
    )  # fmt: skip


def packed(make_backend: BackendFactory, place: Path, rows: dict[str, bytes]) -> tuple[list[int], bytes]:
    """Return the row results and the contents of the buffer. Check that nothing was written beyond its end."""
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    size = sum(MEMBER_ROW_FORMAT.unpack(row)[-1] for row in rows.values())
    room = bytearray(size) + GUARD
    names = [*map(Path, rows)]
    open_ones = {name: os.open(place / name, os.O_RDONLY) for name in sorted({str(name.parent) for name in names})}
    runs = [
        (open_ones[str(name.parent)], 1, os.fsencode(name.parent) + b"/", os.fsencode(name.name) + b"\0", row)
        for name, row in zip(names, rows.values(), strict=True)
    ]
    owners = {(os.geteuid(), os.getegid()): trailing_file_header_fields(b"user", b"group")}
    try:
        batch = ReadTarMembersBatch(runs, room, owners, pax_mtime_header_block())
        judged = done(backend, batch)
    finally:
        for descriptor in open_ones.values():
            os.close(descriptor)
        backend.close()
    assert room.endswith(GUARD)
    return [*judged.member_codes], bytes(room[:size])


def test_python_reads_what_was_packed(make_backend: BackendFactory, place: Path) -> None:
    names = ("a/one", "a/two", "b/three", "b/four")
    codes, archive = packed(make_backend, place, {name: row_of((place / name).stat()) for name in names})
    assert codes == [OutcomeCode.DONE] * 4
    with tarfile.open(fileobj=io.BytesIO(archive + bytes(1024))) as read:
        found = read.getmembers()
        assert [member.name for member in found] == [*names]
        for member in found:
            status = (place / member.name).stat()
            assert (member.mode, member.uid, member.gid) == (status.st_mode & 0o7777, status.st_uid, status.st_gid)
            assert (member.uname, member.gname, member.size) == ("user", "group", status.st_size)
            assert abs(member.mtime - status.st_mtime_ns / 1e9) < 1e-5
            contents = read.extractfile(member)
            assert contents is not None and contents.read() == (place / member.name).read_bytes()


def test_changed_files_take_the_slow_path(make_backend: BackendFactory, place: Path) -> None:
    rows = {}
    for name in ("changed", "gone", "pipe", "link", "short", "untouched", "foreign"):
        (place / "a" / name).write_bytes(b"x" * 600)
        rows[f"a/{name}"] = row_of((place / "a" / name).stat(), 512 + 599 if name == "short" else None)
    (place / "a/changed").write_bytes(b"y" * 600)
    (place / "a/gone").unlink()
    (place / "a/pipe").unlink()
    os.mkfifo(place / "a/pipe")
    (place / "a/link").rename(place / "b/elsewhere")
    (place / "a/link").symlink_to("../b/elsewhere")
    fields = MEMBER_ROW_FORMAT.unpack(rows["a/foreign"])
    rows["a/foreign"] = MEMBER_ROW_FORMAT.pack(
        *fields[:6], 4242, *fields[7:]
    )  # no header has been prepared for this user
    codes, _ = packed(make_backend, place, rows)
    assert codes == [OutcomeCode.DONE if name == "a/untouched" else OutcomeCode.SLOW_PATH for name in rows]


def test_file_with_attributes_is_not_reported_as_without(make_backend: BackendFactory, place: Path) -> None:
    subprocess.run(("setfattr", "-n", "user.a", "-v", "b", "a/one"), cwd=place, check=True)
    subprocess.run(("setfacl", "-m", "u:1:r", "a/two"), cwd=place, check=True)
    (place / "a/three").touch()
    for preserve, expected in (
        (PreservedMetadataKinds(), "CCDC"),
        (PreservedMetadataKinds(acl=False), "CCDC"),
        (PreservedMetadataKinds(xattr=False), "DCDC"),
    ):
        backend = make_backend(BackendSettings(preserve, 0o022))
        directory = os.open(place / "a", os.O_RDONLY)
        done(backend, FindItemsWithoutXattrsBatch(directory, b"one"))  # C asks Python once how to handle an attribute
        judged = done(backend, FindItemsWithoutXattrsBatch(directory, b"one/two/three/gone"))
        reported = "".join("D" if code == OutcomeCode.DONE else "C" for code in judged.verdicts.codes)
        os.close(directory)
        backend.close()
        assert reported == expected, preserve
