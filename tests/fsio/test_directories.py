"""Directories are opened without following symbolic links, at any depth, and a bounded number of them stays open."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pcopy.fsio.directories import (
    MAX_CACHED_DIRECTORIES,
    MIN_CACHED_DIRECTORIES,
    OPEN_DIRECTORIES_PER_TASK,
    DirectoriesBelowRoot,
    DirectoryCache,
    PinnedDescriptors,
    TaskDescriptors,
)
from pcopy.fsio.identity import ItemIdentity, identity_mark_of
from pcopy.fsio.problem import Problem
from tests.support.users import as_user, require_root


@pytest.fixture
def directories(directory: int) -> Iterator[DirectoriesBelowRoot]:
    made = DirectoriesBelowRoot(directory, 7, on_source=True)
    yield made
    made.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def inode(descriptor: int) -> int:
    return os.fstat(descriptor).st_ino


def make_chain(directory: int, names: list[bytes]) -> int:
    """Create nested directories by descriptors, and return the inode of the last one."""
    at = os.dup(directory)
    for name in names:
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = inner
    last = inode(at)
    os.close(at)
    return last


def test_existing_directories_are_opened(directories: DirectoriesBelowRoot, area: Path) -> None:
    (area / "a/b/c").mkdir(parents=True)
    for path in (b"a/b/c", b"a", b"", b"a/b", b"a/b/c"):
        assert inode(directories.open(path)) == os.stat(os.path.join(bytes(area), path)).st_ino
        assert directories.identity_of_directory(path)[:2] == (7, inode(directories.open(path)))
    assert directories.open(b"a/b") == directories.open(b"a/b"), "it is opened once"


def test_listing_the_base_directory_does_not_affect_other_listings(directory: int, area: Path) -> None:
    """Several roots may be the same directory, and ranks share an inherited descriptor of it."""
    names = {f"a name of some length {number}" for number in range(3000)}  # needs several calls of getdents(2)
    for name in names:
        (area / name).touch()
    made = [DirectoriesBelowRoot(directory, 7, on_source=on_source) for on_source in (True, True, False)]
    with ExitStack() as stack:
        listings = [stack.enter_context(os.scandir(directories.open(b""))) for directories in made]
        found = list(zip(*listings, strict=True))
    for directories in made:
        directories.close()
    assert [sorted(entry.name for entry in column) for column in zip(*found, strict=True)] == [sorted(names)] * 3


def test_base_without_search_permission_can_be_listed(area: Path) -> None:
    (area / "base/below").mkdir(parents=True)
    (area / "base").chmod(0o444)

    def look() -> None:
        base = os.open(area / "base", os.O_RDONLY | os.O_DIRECTORY)
        made = DirectoriesBelowRoot(base, 7, on_source=True)
        assert os.listdir(made.open(b"")) == ["below"]
        with pytest.raises(Problem):
            made.open(b"below")

    as_user(look)
    (area / "base").chmod(0o755)


@pytest.mark.parametrize("level", range(3))
def test_follows_no_symbolic_link(directories: DirectoriesBelowRoot, area: Path, level: int) -> None:
    names = ["a", "b", "c"]
    (area / "elsewhere/a/b/c").mkdir(parents=True)
    (area / "/".join(names)).mkdir(parents=True)
    at = area.joinpath(*names[: level + 1])
    aside = at.rename(area / "aside")
    at.symlink_to(aside)
    with pytest.raises(Problem) as caught:
        directories.open(b"a/b/c")
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)
    assert caught.value.on_source and not caught.value.changed


@pytest.mark.parametrize("level", range(3))
def test_symbolic_link_swapped_in_later_is_not_followed(directory: int, area: Path, level: int) -> None:
    """A directory that is open already remains the same one, and directories opened from it are below it."""
    names = ["a", "b", "c"]
    (area / "a/b/c").mkdir(parents=True)
    directories = DirectoriesBelowRoot(directory, 0, on_source=False)
    held = inode(directories.open(b"/".join(os.fsencode(name) for name in names[: level + 1])))
    at = area.joinpath(*names[: level + 1])
    at.rename(area / "aside")
    (area / "trap/b/c").mkdir(parents=True)
    at.symlink_to(area / "trap")
    assert inode(directories.open(b"/".join(os.fsencode(name) for name in names[: level + 1]))) == held
    trapped = {path.stat().st_ino for path in (area / "trap").rglob("*")} | {(area / "trap").stat().st_ino}
    assert inode(directories.open(b"a/b/c")) not in trapped
    directories.close()


def test_files_and_fifos_are_not_opened_as_directories(directories: DirectoriesBelowRoot, area: Path) -> None:
    (area / "file").write_bytes(b"")
    os.mkfifo(area / "fifo")  # opening it must not wait for a writer
    for name in (b"file", b"fifo", b"file/below"):
        with pytest.raises(Problem) as caught:
            directories.open(name)
        assert caught.value.errno == errno.ENOTDIR
    with pytest.raises(Problem) as caught:
        directories.open(b"absent")
    assert caught.value.errno == errno.ENOENT and caught.value.changed


def test_directory_with_another_identity_is_rejected(directories: DirectoriesBelowRoot, area: Path) -> None:
    for name in ("a", "b"):
        (area / name).mkdir()
    wanted = directories.identity_of_directory(b"a")
    directories.discard_directory(b"a")
    (area / "a").rename(area / "old")
    (area / "b").rename(area / "a")
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(Problem) as caught:
            directories.open(b"a", wanted)
        assert caught.value.errno == errno.ESTALE
    assert open_descriptors() == before
    with pytest.raises(Problem):
        directories.open(b"a", directories.identity_of_directory(b"a")._replace(mount_code=8))


def test_number_of_open_directories_is_bounded(area: Path, directory: int) -> None:
    kept = DirectoryCache()
    both = [DirectoriesBelowRoot(directory, 0, on_source=True, cache=kept, root_number=number) for number in range(2)]
    before = open_descriptors()
    for number in range(3 * MAX_CACHED_DIRECTORIES):
        (area / f"{number}").mkdir()
        both[number % 2].open(b"%d" % number)
        assert open_descriptors() - before == min(number + 1, MAX_CACHED_DIRECTORIES)
    assert [inode(both[1].open(b"%d" % number)) for number in (1, 3)] == [
        (area / name).stat().st_ino for name in ("1", "3")
    ]
    both[0].close()
    assert open_descriptors() == before
    os.fstat(directory)


def test_directory_opened_by_a_task_stays_open_during_a_deep_walk(area: Path, directory: int) -> None:
    """A task may keep one directory while it opens another, at any depth, however small the cache is."""
    pins = PinnedDescriptors()
    directories = DirectoriesBelowRoot(directory, 0, on_source=True, cache=DirectoryCache(MIN_CACHED_DIRECTORIES, pins))
    deep = [b"d"] * (2 * OPEN_DIRECTORIES_PER_TASK)
    last = make_chain(directory, deep)
    (area / "held").mkdir()
    before = open_descriptors()
    pins.task_descriptors = task = TaskDescriptors()
    held = directories.open(b"held")
    assert inode(directories.open(b"/".join(deep))) == last
    assert is_open(held, area / "held")
    assert open_descriptors() - before == MIN_CACHED_DIRECTORIES + 1
    pins.release_descriptors_of_task(task)
    directories.close()
    assert open_descriptors() == before


def test_paths_longer_than_path_max_are_opened(directory: int) -> None:
    names = [b"%03d" % number + b"n" * 200 for number in range(MAX_CACHED_DIRECTORIES + 10)]  # some 28,000 bytes
    last = make_chain(directory, names)
    directories = DirectoriesBelowRoot(directory, 0, on_source=True)
    before = open_descriptors()
    path = b"/".join(names)
    assert len(path) > os.pathconf("/", "PC_PATH_MAX")
    assert inode(directories.open(path)) == last
    assert open_descriptors() - before <= MAX_CACHED_DIRECTORIES
    with pytest.raises(Problem):
        directories.open(path + b"/absent")
    directories.close()
    assert open_descriptors() == before


def test_failed_walk_leaves_no_descriptor_open(directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the fstat of a directory that was just opened fails, because a server may have forgotten it (ESTALE)."""
    names = [b"d"] * 40
    make_chain(directory, names)
    directories = DirectoriesBelowRoot(directory, 0, on_source=True)
    before = open_descriptors()
    real, calls = os.fstat, 0

    def fstat(descriptor: int) -> os.stat_result:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OSError(errno.EACCES, "no")
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(Problem) as caught:
        directories.open(b"/".join(names))
    monkeypatch.undo()
    assert (caught.value.operation, caught.value.errno) == ("fstat", errno.EACCES)
    directories.close()
    assert open_descriptors() == before


def test_directories_with_search_permission_only_are_passed(area: Path) -> None:
    """An ordinary user reaches their subdirectories."""
    (area / "a/b/c").mkdir(parents=True)
    for name, mode in (("a", 0o711), ("a/b", 0o711), ("a/b/c", 0o755)):
        (area / name).chmod(mode)

    def look() -> None:
        directory = os.open(area, os.O_RDONLY)
        directories = DirectoriesBelowRoot(directory, 0, on_source=True)
        assert os.listdir(directories.open(b"a/b/c")) == []
        assert inode(directories.open(b"a/b")) == os.stat(area / "a/b").st_ino
        (os.path.exists(area / "a/b/c") or pytest.fail("it can't be reached"))

    as_user(look)
    (area / "a").chmod(0o700)

    def refuse() -> None:
        directory = os.open(area, os.O_RDONLY)
        with pytest.raises(Problem) as caught:
            DirectoriesBelowRoot(directory, 0, on_source=True).open(b"a/b/c")
        assert caught.value.errno == errno.EACCES

    if os.geteuid() == 0:
        as_user(refuse)


def is_open(descriptor: int, path: Path) -> bool:
    """Return True if the descriptor still refers to the directory at ``path``."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def test_pinned_directory_stays_open(area: Path, directory: int) -> None:
    """However small the cache is, and whatever is discarded: otherwise the number would refer to another directory."""
    pins = PinnedDescriptors()
    directories = DirectoriesBelowRoot(directory, 0, on_source=True, cache=DirectoryCache(MIN_CACHED_DIRECTORIES, pins))
    for number in range(3 * MIN_CACHED_DIRECTORIES):
        (area / f"{number}").mkdir()
    before = open_descriptors()
    pinned = directories.open(b"0")
    for _ in range(2):
        pins.pin_descriptor(pinned)
    for number in range(1, 3 * MIN_CACHED_DIRECTORIES):
        directories.open(b"%d" % number)
        assert is_open(pinned, area / "0")
        assert open_descriptors() - before <= MIN_CACHED_DIRECTORIES + 1
    again = directories.open(b"0")
    assert again != pinned and is_open(again, area / "0")
    pins.pin_descriptor(again)
    directories.discard_directory(b"0")
    assert is_open(again, area / "0")
    directories.close()
    assert is_open(pinned, area / "0") and open_descriptors() == before + 2
    pins.unpin_descriptor(pinned)
    assert is_open(pinned, area / "0"), "somebody else still works with it"
    pins.unpin_descriptor(pinned)
    assert not is_open(pinned, area / "0")
    pins.unpin_descriptor(again)
    assert open_descriptors() == before and not len(pins)


def test_unpinned_directory_stays_in_the_cache(area: Path, directory: int) -> None:
    pins = PinnedDescriptors()
    directories = DirectoriesBelowRoot(directory, 0, on_source=True, cache=DirectoryCache(MIN_CACHED_DIRECTORIES, pins))
    (area / "held").mkdir()
    held = directories.open(b"held")
    pins.pin_descriptor(held)
    pins.unpin_descriptor(held)
    assert directories.open(b"held") == held and is_open(held, area / "held")
    directories.close()
    assert not is_open(held, area / "held")


def test_directories_of_a_task_stay_open_while_other_tasks_run(area: Path) -> None:
    """Otherwise its number would refer to the directory of another task."""
    for number in range(4 * OPEN_DIRECTORIES_PER_TASK):
        (area / f"{number}").mkdir()
    base = os.open(area, os.O_RDONLY)
    pins = PinnedDescriptors()
    directories = DirectoriesBelowRoot(base, 0, on_source=False, cache=DirectoryCache(MIN_CACHED_DIRECTORIES, pins))
    before = open_descriptors()
    one, other = TaskDescriptors(), TaskDescriptors()
    pins.task_descriptors = one
    opened = {number: directories.open(b"%d" % number) for number in range(OPEN_DIRECTORIES_PER_TASK)}
    pins.task_descriptors = other
    for number in range(OPEN_DIRECTORIES_PER_TASK, 3 * OPEN_DIRECTORIES_PER_TASK):
        directories.open(b"%d" % number)
    assert len(other) == OPEN_DIRECTORIES_PER_TASK
    for number, descriptor in opened.items():
        assert os.fstat(descriptor).st_ino == (area / f"{number}").stat().st_ino
    pins.task_descriptors = one
    directories.open(b"0")  # now it is the most recently used
    for number in range(3 * OPEN_DIRECTORIES_PER_TASK, 4 * OPEN_DIRECTORIES_PER_TASK - 1):
        directories.open(b"%d" % number)
    assert opened[0] in one and len(one) == OPEN_DIRECTORIES_PER_TASK
    directories.discard_directory(b"%d" % (4 * OPEN_DIRECTORIES_PER_TASK - 2))
    assert len(one) == OPEN_DIRECTORIES_PER_TASK - 1, "what is removed is not held"
    pins.release_descriptors_of_task(one)
    pins.release_descriptors_of_task(other)
    pins.task_descriptors = None
    directories.close()
    assert open_descriptors() == before and not len(pins)
    os.close(base)


def opened_by_parent(directories: DirectoriesBelowRoot, area: Path) -> None:
    """Open ``a/b/c``, and then ``a/b``, which is not in the cache any more."""
    (area / "a/b/c").mkdir(parents=True)
    directories.open(b"a/b/c")
    for path in (b"a/b", b"a"):
        directories.discard_directory(path)


def test_parent_is_opened_through_its_child(directories: DirectoriesBelowRoot, area: Path) -> None:
    """The directories above are not opened: one of them cannot be found by its path any more."""
    opened_by_parent(directories, area)
    identity = ItemIdentity(7, (area / "a/b").stat().st_ino)
    (area / "a").rename(area / "renamed")
    before = open_descriptors()
    parent = directories.open_parent(b"a/b", identity, b"a/b/c")
    assert inode(parent) == identity.inode and open_descriptors() == before + 1
    assert directories.open_parent(b"a/b", identity, b"a/b/c") == directories.open(b"a/b") == parent
    directories.open(b"")
    with pytest.raises(Problem):
        directories.open_parent(b"a", ItemIdentity(7, (area / "renamed").stat().st_ino), b"a/absent")


def test_moved_child_does_not_lead_to_its_new_parent(directories: DirectoriesBelowRoot, area: Path) -> None:
    opened_by_parent(directories, area)
    identity = ItemIdentity(7, (area / "a/b").stat().st_ino)
    (area / "elsewhere").mkdir()
    (area / "a/b/c").rename(area / "elsewhere/c")
    before = open_descriptors()
    assert inode(directories.open_parent(b"a/b", identity, b"a/b/c")) == identity.inode
    assert open_descriptors() == before + 2, "a and a/b are open"


@pytest.mark.parametrize("levels", [1, 3, 40, 400])
@pytest.mark.parametrize("on_source", [True, False])
def test_directory_above_the_last_one_is_opened_through_it(
    directory: int, area: Path, levels: int, on_source: bool
) -> None:
    """That is so although a directory between the top and it was renamed."""
    path = b"top/upper" + b"/d" * levels
    (area / os.fsdecode(path)).mkdir(parents=True)
    directories = DirectoriesBelowRoot(directory, 7, on_source=on_source)
    upper = directories.open(b"top/upper")
    status = os.fstat(upper)
    identity = ItemIdentity(7, status.st_ino, b"" if on_source else identity_mark_of(upper, created_by_job=True))
    directories.open(path)
    for each in (b"top/upper", b"top"):
        directories.discard_directory(each)
    (area / "top").rename(area / "renamed")
    before = open_descriptors()
    assert inode(directories.open(b"top/upper", identity)) == status.st_ino
    assert open_descriptors() == before + (levels < MAX_CACHED_DIRECTORIES), (
        "the cache closes another one if it is full"
    )
    directories.discard_directory(b"top/upper")
    with pytest.raises(Problem) as caught:
        directories.open(b"top/upper", identity._replace(inode=status.st_ino + 1))
    assert caught.value.errno == errno.ENOENT
    directories.close()


@pytest.mark.parametrize(("code", "is_same_inode"), [(7, False), (8, True)])
def test_parent_with_another_identity_is_rejected(
    directories: DirectoriesBelowRoot, area: Path, code: int, is_same_inode: bool
) -> None:
    opened_by_parent(directories, area)
    number = (area / "a/b").stat().st_ino if is_same_inode else 1
    with pytest.raises(Problem) as caught:
        directories.open_parent(b"a/b", ItemIdentity(code, number), b"a/b/c")
    assert caught.value.errno == errno.ESTALE


def test_parent_on_another_mount_is_not_used(directory: int, area: Path) -> None:
    """The child is the root of a mount: ``..`` leads to the directory around the mount point, here one with the same
    inode and device.
    """
    require_root("mount")
    (area / "a/b/c").mkdir(parents=True)
    subprocess.run(["mount", "--bind", area / "a/b/c", area / "a/b/c"], check=True)
    try:
        directories = DirectoriesBelowRoot(directory, 7, on_source=True)
        directories.open(b"a/b/c")
        for path in (b"a/b", b"a"):
            directories.discard_directory(path)
        (area / "a").rename(area / "renamed")
        with pytest.raises(Problem) as caught:
            directories.open_parent(b"a/b", ItemIdentity(7, (area / "renamed/b").stat().st_ino), b"a/b/c")
        assert caught.value.errno == errno.ENOENT
        directories.close()
    finally:
        subprocess.run(["umount", "--lazy", *area.glob("*/b/c")], check=True)
