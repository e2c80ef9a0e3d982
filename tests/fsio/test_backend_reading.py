"""Reading small files, in every implementation of ``pcopy.fsio.backend.interface.FileOperationBackend``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcopy.fsio.backend import item_rows
from pcopy.fsio.backend.batches import ReadSmallFilesBatch
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES, BackendSettings, FileOperationBackend
from pcopy.fsio.backend.python import PythonBackend
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.source import FileContentVersion
from tests.fsio.backend_bench import BACKENDS, done
from tests.fsio.test_backend_conformance import reference
from tests.support.users import as_user

COPIES = pytest.mark.parametrize("copies", [False, True])


class Reader:
    """A directory and a backend that reads files in it."""

    def __init__(self, backend: Callable[[BackendSettings], FileOperationBackend], place: Path) -> None:
        self._backend = backend
        self.place = place
        self.digests_in_c = False

    def read(self, *names: str, copies: bool, follow: bool = False, whole: bool = False) -> list[bytes | OutcomeCode]:
        """Return the digest of each file, or the code if there is none."""
        named = ("xxh3-128", 1 << 16) if self.digests_in_c else ()
        backend = self._backend(BackendSettings(PreservedMetadataKinds(), 0o022, follow, reference, *named))
        directory = os.open(self.place, os.O_RDONLY)
        before = len(os.listdir("/proc/self/fd"))
        try:
            self.result = result = done(
                backend, ReadSmallFilesBatch(directory, pack_names(map(os.fsencode, names)), copies, whole)
            )
            assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
        finally:
            backend.close()
            os.close(directory)
        assert len(result.verdicts) == len(names)
        codes = enumerate(map(OutcomeCode, result.verdicts.codes))
        return [result.digests[row] if code is OutcomeCode.DONE else code for row, code in codes]


@pytest.fixture(params=BACKENDS)
def reader(request: pytest.FixtureRequest, on: Any) -> Reader:
    return Reader(BACKENDS[request.param], on("ext4"))


@COPIES
def test_contents_and_status(reader: Reader, copies: bool) -> None:
    contents = {f"{size}": Random(size).randbytes(size) for size in (0, 1, 4096, (1 << 16) + 1, MAX_SMALL_FILE_BYTES)}
    for name, content in contents.items():
        (reader.place / name).write_bytes(content)
        os.utime(reader.place / name, ns=(1, 2))
    reads = reader.read(*contents, copies=copies)
    assert reads == [reference(content) for content in contents.values()]
    for row, (name, content) in enumerate(contents.items()):
        status = (reader.place / name).stat()
        assert reader.result.observed.content_version_of_row(row) == FileContentVersion.from_status(status)
        assert reader.result.verdicts.bytes[row] == len(content)
        assert status.st_atime_ns == 1, "reading leaves no trace"


@pytest.mark.parametrize("in_c", [False, True])
@pytest.mark.parametrize("mark", ["user.pcopy.incomplete", "trusted.pcopy.incomplete"])
def test_incomplete_file_takes_the_slow_path(reader: Reader, mark: str, in_c: bool) -> None:
    """Only on request. Other attributes do not matter."""
    reader.digests_in_c = in_c
    if mark.startswith("trusted.") and os.geteuid():
        pytest.skip("only root can set it")
    for name in ("plain", "marked", "other"):
        (reader.place / name).write_bytes(b"content")
    os.setxattr(reader.place / "marked", mark, b"x")
    os.setxattr(reader.place / "other", "user.pcopy.incomplete2", b"x")
    read = reader.read("plain", "marked", "other", copies=False, whole=True)
    assert [isinstance(each, bytes) for each in read] == [True, False, True]
    assert read[1] == OutcomeCode.SLOW_PATH
    assert all(isinstance(each, bytes) for each in reader.read("plain", "marked", copies=False))


@COPIES
def test_file_with_time_beyond_64_bits_takes_the_slow_path(reader: Reader, on: Any, copies: bool) -> None:
    reader.place = on("tmpfs")
    (reader.place / "far").write_bytes(b"content")
    os.utime(reader.place / "far", ns=(5, 20_000_000_000 * 10**9))
    assert reader.read("far", copies=copies) == [OutcomeCode.SLOW_PATH]


@COPIES
def test_small_sparse_file_is_read_whole(reader: Reader, copies: bool) -> None:
    with (reader.place / "file").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"data")
    assert reader.read("file", copies=copies) == [reference((reader.place / "file").read_bytes())]


@COPIES
def test_links_directories_fifos_and_large_files_take_the_slow_path(reader: Reader, copies: bool) -> None:
    place = reader.place
    (place / "plain").write_bytes(b"x")
    (place / "link").symlink_to("plain")
    (place / "directory").mkdir()
    os.mkfifo(place / "fifo")
    os.truncate(place / "plain", 1)
    with (place / "large").open("wb") as file:
        file.truncate(MAX_SMALL_FILE_BYTES + 1)
    names = ("link", "directory", "fifo", "large", "missing", "plain")
    assert reader.read(*names, copies=copies) == [OutcomeCode.SLOW_PATH] * 5 + [reference(b"x")]


def test_only_sources_are_followed(reader: Reader) -> None:
    (reader.place / "plain").write_bytes(b"x")
    (reader.place / "link").symlink_to("plain")
    assert reader.read("link", copies=False, follow=True) == [reference(b"x")]
    assert reader.read("link", copies=True, follow=True) == [OutcomeCode.SLOW_PATH]


@COPIES
def test_file_that_reports_size_zero_is_read_to_its_end(reader: Reader, copies: bool) -> None:
    """/proc reports size 0 for everything."""
    reader.place = Path("/proc")
    assert reader.read("version", copies=copies) == [OutcomeCode.SLOW_PATH]


@COPIES
def test_readable_file_of_another_user_takes_the_slow_path(reader: Reader, copies: bool) -> None:
    """Only the owner may use O_NOATIME. The slow path reads the file without it."""
    (reader.place / "file").write_bytes(b"x")
    (reader.place / "secret").write_bytes(b"x")
    (reader.place / "secret").chmod(0o600)
    as_user(
        lambda: _check(reader.read("file", "secret", copies=copies) == [OutcomeCode.SLOW_PATH, OutcomeCode.SLOW_PATH])
    )


def _check(truth: bool) -> None:
    assert truth


def test_cached_pages_of_copies_are_dropped_before_reading(reader: Reader) -> None:
    """Damage on the device below the page cache is detected."""
    if not shutil.which("fincore"):
        pytest.skip("needs fincore")
    path = reader.place / "file"
    path.write_bytes(bytes(1 << 20))
    with open(path, "rb") as file:
        os.fsync(file.fileno())  # dirty pages are not dropped
    path.read_bytes()
    given_up: list[str] = []

    def cached() -> str:
        command = ["fincore", "--bytes", "--noheadings", "--output", "PAGES", os.fspath(path)]
        reported = subprocess.run(command, check=True, capture_output=True, text=True)
        return str(reported.stdout).strip()

    assert cached() == "256"
    before = item_rows._read

    def read(descriptor: int, size: int) -> bytes:
        given_up.append(cached())
        return before(descriptor, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_rows, "_read", read)
        Reader(PythonBackend, reader.place).read("file", copies=False)
        Reader(PythonBackend, reader.place).read("file", copies=True)
    assert given_up == ["256", "0"]


@pytest.mark.parametrize("change", [b"shorter", b"as long as it was", b"much longer than it was before"])
def test_source_changed_during_the_read_is_reported(reader: Reader, change: bytes) -> None:
    path = reader.place / "file"
    before = item_rows._read

    def read(descriptor: int, size: int) -> bytes:
        data = before(descriptor, size)
        path.write_bytes(change)
        return data

    path.write_bytes(b"as long as it is.")
    os.utime(path, ns=(1, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_rows, "_read", read)
        assert Reader(PythonBackend, reader.place).read("file", copies=False) == [OutcomeCode.SLOW_PATH]
