"""``EnterDirectoriesBatch`` and ``FinishDirectoriesBatch`` with subtrees: what the C backend copies, and what it
leaves to the caller, is together what find(1) lists.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.columns import (
    ATIME_COLUMN,
    GROUP_COLUMN,
    INODE_COLUMN,
    MODE_COLUMN,
    MTIME_COLUMN,
    OWNER_COLUMN,
    ItemStatusColumns,
    OutcomeCode,
    unpack_names,
)
from pcopy.fsio.backend.directory_batches import (
    HAS_COMPLETE,
    IS_COMPLETE,
    IS_NEW,
    IS_SIMPLE,
    IS_TOUCHED,
    IS_UNCHANGED,
    CopiedDirectories,
    DirectoryBatchSettings,
    EnterDirectoriesBatch,
    EnterDirectoriesResult,
    FinishDirectoriesBatch,
)
from pcopy.fsio.backend.interface import BackendSettings, FileOperationBackend
from pcopy.fsio.identity import identity_mark_of
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BackendFactory, done

LATER = float(1 << 30)
METADATA = MODE_COLUMN | OWNER_COLUMN | GROUP_COLUMN | ATIME_COLUMN | MTIME_COLUMN | INODE_COLUMN


def make_tree(top: Path) -> None:
    """Make directories with files, links, many names, and a chain of 40 directories, of different modes and times."""
    for path in ("a/b/c", "a/b/d", "a/e f/g\n", "empty", "h/" + "i/" * 40):
        (top / path).mkdir(parents=True)
    for number, path in enumerate(("file", "a/one", "a/b/c/two", "a/e f/g\n/three", "h/i/i/four", "a/b/large")):
        (top / path).write_bytes(os.urandom(5 << 20 if path.endswith("large") else 1000 * number))
    (top / "a/b/link").symlink_to("c")
    os.mkfifo(top / "a/b/d/fifo")
    for number in range(300):
        (top / f"a/many/{number}").mkdir(parents=True)
    for number, place in enumerate(sorted(top.rglob("*"), reverse=True)):
        if place.is_dir() and not place.is_symlink():
            place.chmod((0o755, 0o700, 0o2750, 0o1777)[number % 4])
            os.utime(place, ns=(10**18 + number, 10**18 + 2 * number))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    make_tree(tmp_path / "from/top")
    (tmp_path / "to").mkdir()
    return tmp_path / "from"


def entered(
    backend: FileOperationBackend,
    source: Path,
    target: Path,
    depth: int,
    deadline: float,
    *,
    copies: bool = True,
    **more: Any,
) -> EnterDirectoriesResult:
    """Copy ``top`` of one directory to the other, with one call of the backend, and return the result. ``more`` are
    other settings of the batch.
    """
    before = len(os.listdir("/proc/self/fd"))
    directories = [os.open(path, os.O_RDONLY) for path in (source, target)]
    one, other = (os.fstat(each).st_dev for each in directories)
    settings = DirectoryBatchSettings(one, other, max_names=200, excludes_hard_links=True, copies_small_files=copies)
    settings = settings._replace(**more)
    inodes = array("Q", [os.stat(source / "top").st_ino])
    try:
        result: EnterDirectoriesResult = done(
            backend,
            EnterDirectoriesBatch(directories[0], b"top", directories[1], inodes, settings, depth, deadline),
        )
    finally:
        for each in directories:
            os.close(each)
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
    return result


def paths_of(created: CopiedDirectories) -> list[bytes]:
    paths = created.packed_paths.split(b"\0")
    assert paths.pop() == b""
    return paths


def remaining_paths(source: Path, created: CopiedDirectories) -> list[bytes]:
    """Return the paths of what remains: items, and directories with everything in them."""
    paths = paths_of(created)
    remaining = [paths[at] + b"/" + name for at, (names, _) in created.contents.items() for name in unpack_names(names)]
    remaining += [paths[at] + b"/" + name for at, names in created.not_entered.items() for name, *_ in names]
    return [below for path in remaining for below in find(source, path)]


def find(place: Path, path: bytes) -> list[bytes]:
    command: list[bytes | str] = ["find", path, "-print0"]
    return subprocess.run(command, cwd=place, check=True, capture_output=True).stdout.split(b"\0")[:-1]


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("deadline", [0.0, LATER])
@pytest.mark.parametrize("depth", [0, 1, 2, 100])
def test_subtree_is_copied_or_left_to_the_caller(
    make_backend: BackendFactory, source: Path, tmp_path: Path, depth: int, deadline: float, copies: bool
) -> None:
    target = tmp_path / "to"
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    if not backend.has_directory_batches:
        return
    before = {path: os.lstat(path) for path in (source / "top", *source.rglob("*"))}
    result = entered(backend, source, target, depth, deadline, copies=copies)
    backend.close()
    created = result.unfinished
    assert bytes(result.verdicts.codes) == bytes((OutcomeCode.DONE,)) and created is not None and created.rows == 1
    copied, remaining = find(target, b"top"), remaining_paths(source, created)
    assert sorted(copied + remaining) == sorted(find(source, b"top"))
    paths = paths_of(created)
    for at, path in enumerate(paths):
        one, other = before[source / os.fsdecode(path)], os.lstat(target / os.fsdecode(path))
        assert stat.S_ISDIR(other.st_mode) and stat.S_IMODE(other.st_mode) == 0o700
        assert (created.sources[at], created.targets[at]) == (one.st_ino, other.st_ino)
        rows = created.metadata
        assert (rows.mode[at], rows.uid[at], rows.gid[at]) == (one.st_mode, one.st_uid, one.st_gid)
        assert (rows.atime[at], rows.mtime[at]) == (one.st_atime_ns, one.st_mtime_ns)
        within = [target / os.fsdecode(path) / name for name in os.listdir(target / os.fsdecode(path))]
        files = [each for each in within if not each.is_dir()]
        assert created.copied[at] == len(files) and created.copied_bytes[at] == sum(
            each.stat().st_size for each in files
        )
        assert created.subdirectories[at] == len(within) - len(files) and created.flags[at] == IS_NEW | IS_SIMPLE
        assert (created.skipped[at], created.finished[at], created.changed[at]) == (0, 0, 0)
        assert created.remaining[at] == (len(created.contents[at][1]) if at in created.contents else 0)
    for path in copied:
        if path not in paths:
            assert (source / os.fsdecode(path)).read_bytes() == (target / os.fsdecode(path)).read_bytes()
    left = {name for names in created.not_entered.values() for name, *_ in names}
    if depth == 100 and deadline:
        assert left == {b"many", b"i"}, "many names, and a chain that is too deep"
        assert max(path.count(b"/") for path in paths) == 31
        by_name = {name for names, _ in created.contents.values() for name in unpack_names(names)}
        small = set() if copies else {b"file", b"one", b"two", b"three", b"four"}
        assert by_name == {b"large", b"link", b"fifo"} | small
    else:
        assert max(path.count(b"/") for path in paths) == (depth if deadline else 0)


def metadata_of(path: Path) -> tuple[int, ...]:
    status = os.lstat(path)
    return status.st_mode, status.st_uid, status.st_gid, status.st_atime_ns, status.st_mtime_ns


@pytest.mark.parametrize("per_row", [1, 2, 3, 1000])
@pytest.mark.parametrize("replaced", ["", "top/a/b", "top/a/b/c"])
def test_directories_of_a_subtree_get_their_metadata(
    make_backend: BackendFactory, source: Path, tmp_path: Path, per_row: int, replaced: str
) -> None:
    """A directory that was replaced meanwhile stays as it is, and so do those below it, which are others."""
    target = tmp_path / "to"
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    if not backend.has_directory_batches:
        return
    paths = [
        Path(os.fsdecode(path))
        for path in find(source, b"top")
        if stat.S_ISDIR(os.lstat(source / os.fsdecode(path)).st_mode)
    ]
    paths = [path for path in paths if "many" not in path.parts or path.name == "many"]
    for path in paths:
        (target / path).mkdir(0o700)
    rows = ItemStatusColumns.from_statuses([os.lstat(source / path) for path in paths], METADATA)
    rows.inode = array("Q", [os.lstat(target / path).st_ino for path in paths])
    marks = []
    for path in paths:
        descriptor = os.open(target / path, os.O_RDONLY)
        marks.append(identity_mark_of(descriptor, created_by_job=True))
        os.close(descriptor)
    others = set()
    if replaced:
        (target / replaced).rename(target / "aside")
        for path in paths:
            if path.is_relative_to(replaced):
                (target / path).mkdir(0o711)
                others.add(path)
    before = {path: metadata_of(target / path) for path in others}
    top = os.open(target, os.O_RDONLY)
    device = os.fstat(top).st_dev
    packed = b"".join(bytes((len(mark),)) + mark for mark in marks)
    result = done(
        backend,
        FinishDirectoriesBatch(
            top, top, array("Q", bytes(8 * len(paths))), b"\0".join(map(os.fsencode, paths)), rows, packed,
            bytes([1] * len(paths)),
            DirectoryBatchSettings(device, device), per_row,
        ),
    )  # fmt: skip
    os.close(top)
    backend.close()
    levels = {path: len(path.parts) for path in paths}
    for path, code in zip(paths, result.codes, strict=True):
        if path in others:
            assert code == 0 and metadata_of(target / path) == before[path]
        elif levels[path] > 40:
            assert code == 0, "too deep for the backend"
        else:
            assert code == OutcomeCode.DONE and metadata_of(target / path) == metadata_of(source / path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "missing file": lambda copy: (copy / "file").unlink(),
    "missing directory": lambda copy: (copy / "inner").rmdir(),
    "other size": lambda copy: (copy / "file").write_bytes(b"longer than before"),
    "other name": lambda copy: (copy / "file").rename(copy / "name"),
    "temporary file": lambda copy: (copy / ".pcopy-0123456789-1-0-1").touch(0o600),
    "other link": lambda copy: replace(copy / "link", lambda path: path.symlink_to("longer than before")),
    "directory instead of a file": lambda copy: replace(copy / "file", Path.mkdir),
    "file instead of a directory": lambda copy: replace(copy / "inner", Path.touch),
    "file instead of a link": lambda copy: replace(copy / "link", lambda path: path.write_bytes(b"file")),
    "attribute": lambda copy: os.setxattr(copy, "user.other", b"value"),
    "FIFO": lambda copy: None,
    "other source": lambda copy: None,
    "pcopy-0123456789-1-0-1": lambda copy: None,
    ".pcopy-0123456789-1-0-1": lambda copy: None,
    "": lambda copy: None,
}
"""Differences between a directory, which has ``file``, ``link`` and the directory ``inner``, and its copy, or names of
temporary files that both have.
"""


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.rmdir() if path.is_dir() else path.unlink()
    make(path)


@pytest.mark.parametrize("change", CHANGES)
def test_directories_of_a_resumed_run_are_finished_if_they_have_the_items_of_their_source(
    make_backend: BackendFactory, tmp_path: Path, change: str
) -> None:
    """Of two equal directories one is changed. In a first run (``is_resumed`` is False) both are finished."""
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    if not backend.has_directory_batches:
        return
    for path in (tmp_path / "source/one", tmp_path / "source/other"):
        (path / "inner").mkdir(parents=True)
        (path / "file").write_bytes(b"contents")
        (path / "link").symlink_to("file")
        if "pcopy-" in change and path.name == "other":
            (path / change).touch()
        os.utime(path, ns=(10**18, 10**18))
    shutil.copytree(tmp_path / "source", tmp_path / "target", symlinks=True)
    if change == "FIFO":  # on both sides: the backend does not compare special files
        os.mkfifo(tmp_path / "source/other/fifo")
        os.mkfifo(tmp_path / "target/other/fifo")
        os.utime(tmp_path / "source/other", ns=(10**18, 10**18))
    for path in (tmp_path / "target").iterdir():
        path.chmod(0o700)
        os.utime(path)
    CHANGES[change](tmp_path / "target/other")
    names, sides = (b"one", b"other"), [tmp_path / "source", tmp_path / "target"]
    statuses = [[os.lstat(side / os.fsdecode(name)) for name in names] for side in sides]
    rows = ItemStatusColumns.from_statuses(statuses[0], METADATA)
    rows.inode = array("Q", [status.st_ino for status in statuses[1]])
    sources = array("Q", [status.st_ino + (change == "other source" and row) for row, status in enumerate(statuses[0])])
    marks = b""
    for name in names:
        descriptor = os.open(sides[1] / os.fsdecode(name), os.O_RDONLY)
        mark = identity_mark_of(descriptor, created_by_job=True)
        marks += bytes((len(mark),)) + mark
        os.close(descriptor)
    source, target = (os.open(side, os.O_RDONLY) for side in sides)
    device = os.fstat(target).st_dev

    def codes_of_batch(settings: DirectoryBatchSettings) -> bytes:
        packed = b"\0".join(names)
        batch = FinishDirectoriesBatch(source, target, sources, packed, rows, marks, b"\1\1", settings, 64)
        return bytes(done(backend, batch).codes)

    assert codes_of_batch(DirectoryBatchSettings(device + 1, device, is_resumed=True)) == bytes(2), "another source"
    for is_resumed in (True, False):
        codes = codes_of_batch(DirectoryBatchSettings(device, device, is_resumed=is_resumed))
        assert codes == bytes((OutcomeCode.DONE, 0 if is_resumed and change else OutcomeCode.DONE))
        finished = [os.lstat(sides[1] / os.fsdecode(name)).st_mtime_ns == 10**18 for name in names]
        assert finished == [True, not (is_resumed and change)]
    os.close(source)
    os.close(target)
    backend.close()


def test_time_limit_is_kept(make_backend: BackendFactory, tmp_path: Path) -> None:
    """A tree that takes longer than the limit is copied in part; the next directory is not entered."""
    for number in range(30_000):
        (tmp_path / f"from/top/{number % 150}/{number}").mkdir(parents=True)
    (tmp_path / "to").mkdir()
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    if not backend.has_directory_batches:
        return
    result = entered(backend, tmp_path / "from", tmp_path / "to", 100, time.monotonic() + 0.02)
    backend.close()
    assert result.unfinished is not None
    number = len(paths_of(result.unfinished))
    assert 1 <= number < 30_151 and result.unfinished.not_entered


def make_existing(tmp_path: Path) -> tuple[Path, Path]:
    """Make a tree and its copy; return the directories that contain them."""
    source, target = tmp_path / "one", tmp_path / "other"
    for path in ("a/b/c", "a/b/d", "e/f", "empty"):
        (source / "top" / path).mkdir(parents=True)
        (source / "top" / path / "file").write_bytes(b"contents")
    target.mkdir()
    subprocess.run(["cp", "-a", source / "top", target], check=True)
    return source, target


@pytest.mark.parametrize("other", [None, "", "a", "a/b", "a/b/d", "e/f"])
@pytest.mark.parametrize("keeps", [False, True], ids=["left-out", "returned"])
def test_complete_subtrees_are_not_returned(
    make_backend: BackendFactory, tmp_path: Path, other: str | None, keeps: bool
) -> None:
    """One directory, ``other``, has another mode. It is returned, with those above it; a directory without
    subdirectories gets its metadata at once.
    """
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    if not backend.has_directory_batches:
        return
    source, target = make_existing(tmp_path)
    if other is not None:
        (target / "top" / other).chmod(0o711)
    result = entered(
        backend, source, target, 100, LATER, copies=False, skips_matching_files=True, returns_complete_rows=keeps
    )
    backend.close()
    directories = 1 + sum(path.is_dir() for path in (source / "top").rglob("*"))
    is_leaf = other in ("a/b/d", "e/f")
    assert bytes(result.verdicts.codes) == bytes((OutcomeCode.DONE,))
    if other is None or is_leaf:
        expected = [b"top"] if keeps else []
    else:
        expected = [b"top", *([b"top/a"] if other else []), *([b"top/a/b"] if other == "a/b" else [])]
    if not expected:
        assert result.unfinished is None
        assert (result.below, result.skipped, result.changed) == (directories - 1, 4, int(is_leaf))
        return
    found = result.unfinished
    assert found is not None and paths_of(found) == expected
    assert (sum(found.finished), sum(found.changed)) == (directories - len(expected), int(is_leaf))
    assert sum(found.skipped) == 4 and not found.contents and not found.not_entered
    is_top_complete = bool(found.flags[0] & IS_COMPLETE)
    assert is_top_complete == (other is None or is_leaf)
    assert found.flags[0] & HAS_COMPLETE
    assert [bool(flags & IS_UNCHANGED) for flags in found.flags] == [
        os.fsdecode(path) != os.path.normpath(f"top/{other}") for path in expected
    ]


@pytest.mark.parametrize("recognises", [False, True])
@pytest.mark.parametrize("resumed", [False, True])
def test_directories_that_an_earlier_run_has_changed(
    make_backend: BackendFactory, tmp_path: Path, resumed: bool, recognises: bool
) -> None:
    """``a/b`` and ``e`` are such directories as a job has created; another file was written into ``e/f``, whose mode
    is that of a finished one. What is in ``empty`` is older than the job.
    """
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    if not backend.has_directory_batches:
        return
    source, target = make_existing(tmp_path)
    for path in ("a/b", "e"):
        subprocess.run(["rm", "-r", target / "top" / path], check=True)
    time.sleep(0.05)
    begun = time.time_ns() - 10**7
    (target / "top/a/b").mkdir(0o700)
    (target / "top/e").mkdir(0o700)
    (target / "top/e/f").mkdir(0o755)
    (target / "top/e/f/file").write_bytes(b"half")
    settings: dict[str, Any] = {
        "is_resumed": resumed,
        "recognises_own_directories": recognises,
        "skips_matching_files": True,
    }
    settings |= {"changed_since": begun, "directories_changed_since": begun}
    result = entered(backend, source, target, 100, LATER, **settings)
    backend.close()
    found = result.unfinished
    if not resumed:
        assert found is None and bytes(result.verdicts.codes) == bytes((OutcomeCode.SLOW_PATH,))
        return
    assert found is not None
    flags = {path: number & (IS_NEW | IS_TOUCHED) for path, number in zip(paths_of(found), found.flags, strict=True)}
    own = IS_NEW | IS_TOUCHED if recognises else IS_TOUCHED
    made = {b"top/a/b/c": IS_NEW, b"top/a/b/d": IS_NEW}
    assert (
        flags
        == {b"top": IS_TOUCHED, b"top/a": IS_TOUCHED, b"top/a/b": own, b"top/e": own, b"top/e/f": IS_TOUCHED} | made
    )
    assert not any(number & IS_UNCHANGED for number in found.flags) and not found.present
    assert {paths_of(found)[at]: names for at, (names, _) in found.contents.items()} == {b"top/e/f": b"file"}
    assert (target / "top/e/f/file").read_bytes() == b"half"
    for path in ("a/b/c", "a/b/d"):
        assert (target / "top" / path / "file").read_bytes() == b"contents"
