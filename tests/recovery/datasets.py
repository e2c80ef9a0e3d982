"""What a job copies, where to, and what must be there in the end: the oracle."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from tests.recovery.disk import USER, Disk, Inode
from tests.recovery.machine import STATE_HOME, T0

if TYPE_CHECKING:
    from tests.recovery.mirrors import Mirror

BLOCK = 16
"""Bytes; files hold some of these."""

STRANGER = 2000
"""The owner of what cannot be read."""

SOURCE, TARGET, HOME = b"/source", b"/target", b"/home"
STATE = STATE_HOME + b"/pcopy"

JUST_BEFORE = int((T0 - 1.0) * 1e9)
"""When what was there before was made: clocks may differ by more."""

LONG_BEFORE = int((T0 - 1000.0) * 1e9)
"""When clocks may not differ by so much."""

Path = tuple[bytes, ...]
Seen = tuple[object, ...]


class SourceFile(NamedTuple):
    """``inode`` is shared by hard links; ``size`` is in bytes, ``mtime`` in ns. ``link``: it is a symbolic one."""

    inode: int
    size: int
    mode: int
    mtime: int
    readable: bool = True
    linked: bool = False
    link: bytes = b""

    @property
    def contents(self) -> bytes:
        """They name the inode and the block, so that no two blocks are alike."""
        blocks = -(-self.size // BLOCK)
        return b"".join(b"%07d %07d." % (self.inode, number) for number in range(blocks))[: self.size]


class SourceDirectory(NamedTuple):
    """``path`` is below the root of the source."""

    path: Path
    mode: int
    mtime: int
    files: dict[bytes, SourceFile]


class Dataset(NamedTuple):
    """A source tree; ``occupied`` names files (directory, name) that the destination had before, since
    ``occupied_since`` (in ns). ``mirror``: the job deletes what only the destination has.
    """

    directories: tuple[SourceDirectory, ...]
    existing: str
    target_is_there: bool
    occupied: frozenset[tuple[int, bytes]]
    occupied_since: int = JUST_BEFORE
    mirror: Mirror | None = None

    @property
    def words(self) -> list[str]:
        """The command line."""
        words = [f"--existing={self.existing}", SOURCE.decode(), TARGET.decode()]
        return self.mirror.words(*words) if self.mirror else words

    @property
    def root(self) -> Path:
        """What the source becomes: into a destination that exists it goes under its own name."""
        return (TARGET[1:], SOURCE[1:]) if self.target_is_there else (TARGET[1:],)

    def prepare(self, disk: Disk) -> None:
        """Makes the source, and what the destination holds before. No directory of the destination has the mtime of its
        source, which is in whole seconds: it would count as skipped.
        """
        disk.now = int(T0 * 1e9) - 10**12 + 1
        home = make_directory(disk, disk.root, HOME[1:])
        disk.do("attributes", 0, home.key, {"mode": stat.S_IFDIR | 0o700})
        made: dict[int, Inode] = {}
        directories = [make_directory(disk, disk.root, SOURCE[1:])]
        at: dict[Path, Inode] = {(): directories[0]}
        for source in self.directories[1:]:
            directory = at[source.path] = make_directory(disk, at[source.path[:-1]], source.path[-1])
            directories.append(directory)
        for directory, source in zip(directories, self.directories, strict=True):
            for name, file in source.files.items():
                if file.inode not in made:
                    made[file.inode] = make_file(disk, file)
                disk.do("enter", 0, directory.key, name, made[file.inode].key)
        for directory, source in zip(directories, self.directories, strict=True):
            mode = stat.S_IFDIR | source.mode
            disk.do("attributes", 0, directory.key, {"mode": mode, "mtime": source.mtime, "atime": source.mtime})
        if self.target_is_there:
            self._occupy(disk)
        if self.mirror:
            self.mirror.prepare(disk, self)
        disk.sync(0, disk.mark)

    def _occupy(self, disk: Disk) -> None:
        target = make_directory(disk, disk.root, TARGET[1:])
        for number, name in sorted(self.occupied):
            at = target
            for step in (self.root + self.directories[number].path)[1:]:
                at = at.names[step] if step in at.names else make_directory(disk, at, step)
            disk.now = self.occupied_since
            put_file(disk, at, name, b"old", 0o600, 0)

    def mend(self, disk: Disk) -> Dataset:
        """What could not be read can be from now on."""
        for _, inode in disk.items():
            if inode.uid == STRANGER:
                disk.do("attributes", 0, inode.key, {"uid": USER, "gid": USER})
        disk.sync(0, disk.mark)
        return self._replace(
            directories=tuple(
                directory._replace(
                    files={
                        name: file if file.readable else file._replace(readable=True, mode=0o600)
                        for name, file in directory.files.items()
                    }
                )
                for directory in self.directories
            )
        )

    def expected(self) -> dict[Path, Seen]:
        """What is to be in the destination, by path."""
        wanted: dict[Path, Seen] = {}
        for number, directory in enumerate(self.directories):
            path = self.root + directory.path
            wanted[path] = ("directory", directory.mode, directory.mtime)
            for name, file in directory.files.items():
                if self._stays(number, name):
                    wanted[(*path, name)] = ("file", 0o600, 0, b"old", -1)
                elif file.link:
                    wanted[(*path, name)] = ("link", file.link, file.mtime)
                elif file.readable:
                    links = file.inode if file.linked else -1
                    wanted[(*path, name)] = ("file", file.mode, file.mtime, file.contents, links)
        return wanted

    def _stays(self, number: int, name: bytes) -> bool:
        return (number, name) in self.occupied and self.existing in ("skip", "fail")

    def totals(self) -> dict[str, int]:
        """What all runs together must have counted."""
        names = ["found", "files", "directories", "symlinks", "hardlinks", "bytes", "skipped", "failed"]
        totals = dict.fromkeys(names, 0)
        seen = set()
        for number, directory in enumerate(self.directories):
            totals["directories"] += 1
            for name, file in directory.files.items():
                if self._stays(number, name):
                    totals["skipped" if self.existing == "skip" else "failed"] += 1
                elif not file.readable:
                    totals["failed"] += 1
                elif file.link:
                    totals["symlinks"] += 1
                elif file.inode in seen:
                    totals["hardlinks"] += 1
                else:
                    seen.add(file.inode)
                    totals["files"] += 1
                    totals["bytes"] += file.size
        totals["found"] = sum(totals[name] for name in names if name not in ("found", "bytes"))
        return {name: totals[name] for name in ("found", "failed")} if self.mirror else totals


def make_directory(disk: Disk, above: Inode, name: bytes) -> Inode:
    made = disk.make(0, stat.S_IFDIR | 0o755)
    disk.do("enter", 0, above.key, name, made.key)
    return made


def make_file(disk: Disk, file: SourceFile) -> Inode:
    if file.link:
        made = disk.make(0, stat.S_IFLNK | 0o777, file.link)
    else:
        made = disk.make(0, stat.S_IFREG | file.mode)
        disk.do("write", 0, made.key, 0, file.contents)
    owner = {} if file.readable else {"uid": STRANGER, "gid": STRANGER, "mode": stat.S_IFREG | 0o600}
    disk.do("attributes", 0, made.key, {"mtime": file.mtime, "atime": file.mtime, **owner})
    return made


def put_file(disk: Disk, directory: Inode, name: bytes, contents: bytes, mode: int, mtime: int) -> None:
    made = disk.make(0, stat.S_IFREG | mode)
    disk.do("write", 0, made.key, 0, contents)
    disk.do("enter", 0, directory.key, name, made.key)
    disk.do("attributes", 0, made.key, {"mtime": mtime, "atime": mtime})


def observe(disk: Disk, dataset: Dataset) -> dict[Path, Seen]:
    """What is in the destination, in the terms of ``Dataset.expected``; the same inode gets the same number."""
    links: dict[int, int] = {}
    there = {tuple(path.split(b"/")[1:]): inode for path, inode in _below(disk)}
    for directory in dataset.directories:
        for name, file in directory.files.items():
            found = there.get((*dataset.root, *directory.path, name))
            if file.linked and found is not None:
                links.setdefault(found.key, file.inode)
    return {
        path: _seen(inode, links.get(inode.key, -1))
        for path, inode in there.items()
        if path != (TARGET[1:],) or not dataset.target_is_there
    }


def _below(disk: Disk) -> Iterator[tuple[bytes, Inode]]:
    return ((path, inode) for path, inode in disk.items() if path == TARGET or path.startswith(TARGET + b"/"))


def _seen(inode: Inode, links: int) -> Seen:
    mode = stat.S_IMODE(inode.mode)
    if inode.is_directory:
        return "directory", mode, inode.mtime
    if stat.S_ISLNK(inode.mode):
        return "link", inode.target, inode.mtime
    return "file", mode, inode.mtime, bytes(inode.data), links


def draw(random: Random) -> Dataset:
    """A random tree of up to six directories."""
    shapes: list[tuple[Path, dict[bytes, SourceFile]]] = [((), {})]
    for number in range(1, random.choice((1, 2, 4, 6))):
        parent = random.randrange(number)
        shapes.append(((*shapes[parent][0], b"d%d" % number), {}))
    for inode in range(1, 1 + random.choice((0, 1, 3, 8, 14))):
        file = _draw_file(random, inode)
        for name in range(random.randrange(2, 5) if file.linked else 1):
            shapes[random.randrange(len(shapes))][1][b"f%d.%d" % (inode, name)] = file
    directories = tuple(
        SourceDirectory(path, random.choice((0o755, 0o700, 0o555)), _long_ago(random), files) for path, files in shapes
    )
    existing = random.choice(("replace", "changed", "skip", "fail"))
    there = random.random() < 0.4
    occupied = frozenset(
        (number, name)
        for number, directory in enumerate(directories)
        for name, file in directory.files.items()
        if there and file.readable and not file.linked and random.random() < 0.3
    )
    return Dataset(directories, existing, there, occupied)


def _draw_file(random: Random, inode: int) -> SourceFile:
    size = random.choice((0, 1, 1, 2, 2, 6, 9, 14)) * BLOCK
    size += random.choice((0, 0, 5)) if size else 0
    mode, mtime = random.choice((0o600, 0o644, 0o444)), _long_ago(random)
    linked = random.random() < 0.25
    if not linked and random.random() < 0.1:
        return SourceFile(inode, 0, 0o777, mtime, link=b"to-%d" % inode)
    return SourceFile(inode, size, mode, mtime, random.random() < 0.93, linked)


def _long_ago(random: Random) -> int:
    return int(T0 - random.randrange(100, 9000)) * 10**9
