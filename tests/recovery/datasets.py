"""What a model job copies, where to, and what must be there in the end: the oracle.

Blocks of a file hold numbers that name the inode and the block, so that no two are alike.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from tests.recovery.files import ROOT, Files

JUST_BEFORE = -1.0
"""When what was there before was made: clocks may differ by more."""

FOUND_LONG_AGO = -1000.0
FILES, BLOCKS, DIRECTORIES, LINKS, SKIPPED, FAILED = range(6)
COUNTERS = 6

Path = tuple[str, ...]
Seen = tuple[object, ...]


class SourceFile(NamedTuple):
    """``inode`` is shared by hard links. Sizes are in blocks."""

    inode: int
    size: int
    mode: int
    mtime: float
    readable: bool = True
    linked: bool = False

    def block(self, number: int) -> int:
        return self.inode * 1000 + number


class SourceDirectory(NamedTuple):
    """``path`` is below the root of the source."""

    path: Path
    mode: int
    mtime: float
    files: dict[str, SourceFile]
    below: tuple[int, ...]


class Dataset(NamedTuple):
    """A source tree; ``occupied`` names files (directory, name) that the destination had before."""

    directories: tuple[SourceDirectory, ...]
    existing: str
    destination_is_there: bool
    occupied: frozenset[tuple[int, str]]

    def prepare(self, files: Files) -> Path:
        """Makes what the destination holds before, on the disk; returns the root that the job resolves."""
        files.now = FOUND_LONG_AGO
        root = self.resolve(files, fresh=True)
        if self.destination_is_there:
            files.mkdir(0, ROOT, "dst")
        for number, directory in enumerate(self.directories):
            names = [name for at, name in sorted(self.occupied) if at == number]
            if names:
                at = ROOT
                for step in root + directory.path:
                    found = files.look(at, step)
                    at = files.mkdir(0, at, step) if found is None else found
                files.now = JUST_BEFORE
                for name in names:
                    made = files.create(0, at, name)
                    files.resize(0, made, 1)
                    files.write(0, made, 0, -7)
                    files.attributes(0, made, 0o600, FOUND_LONG_AGO)
        files.sync(0, files.mark)
        files.now = 0.0
        return root

    def resolve(self, files: Files, *, fresh: bool = False) -> Path:
        """As the command line is read: into a destination that exists, the source goes under its own name."""
        there = self.destination_is_there if fresh else files.look(ROOT, "dst") is not None
        return ("dst", "src") if there else ("dst",)

    def expected(self, root: Path) -> dict[Path, Seen]:
        """What is to be below the destination, by path."""
        wanted: dict[Path, Seen] = {}
        for number, directory in enumerate(self.directories):
            path = root + directory.path
            wanted[path] = ("directory", directory.mode, directory.mtime)
            for name, file in directory.files.items():
                if (number, name) in self.occupied and self.existing != "replace":
                    wanted[(*path, name)] = ("file", 0o600, FOUND_LONG_AGO, (-7,), -1)
                elif file.readable:
                    blocks = tuple(file.block(at) for at in range(file.size))
                    links = file.inode if file.linked else -1
                    wanted[(*path, name)] = ("file", file.mode, file.mtime, blocks, links)
        return wanted

    def totals(self) -> tuple[int, ...]:
        """What all runs together must have counted."""
        totals = [0] * COUNTERS
        seen = set()
        for number, directory in enumerate(self.directories):
            totals[DIRECTORIES] += 1
            for name, file in directory.files.items():
                if (number, name) in self.occupied and self.existing != "replace":
                    totals[SKIPPED if self.existing == "skip" else FAILED] += 1
                elif not file.readable:
                    totals[FAILED] += 1
                elif file.inode in seen:
                    totals[LINKS] += 1
                else:
                    seen.add(file.inode)
                    totals[FILES] += 1
                    totals[BLOCKS] += file.size
        return tuple(totals)


def observe(files: Files, root: Path, dataset: Dataset) -> dict[Path, Seen]:
    """What is below the destination, in the terms of ``Dataset.expected``; the same inode gets the same number."""
    inodes: dict[int, int] = {}
    for directory in dataset.directories:
        for name, file in directory.files.items():
            path = root + directory.path
            if file.linked and (found := find(files, (*path, name))) is not None:
                inodes.setdefault(found, file.inode)
    seen: dict[Path, Seen] = {}
    start = find(files, ("dst",))
    waiting: list[tuple[Path, int]] = [] if start is None else [(("dst",), start)]
    while waiting:
        path, number = waiting.pop()
        inode = files.inode(number)
        if inode.names is None:
            blocks = tuple(inode.blocks.get(at, 0) for at in range(inode.size))
            seen[path] = ("file", inode.mode, inode.mtime, blocks, inodes.get(number, -1))
        else:
            seen[path] = ("directory", inode.mode, inode.mtime)
            waiting += [((*path, name), below) for name, below in inode.names.items()]
    return seen


def find(files: Files, path: Path) -> int | None:
    at: int | None = ROOT
    for name in path:
        at = None if at is None else files.list(at).get(name)
    return at


def draw(random: Random) -> Dataset:
    """A random tree of up to six directories."""
    shapes: list[tuple[Path, dict[str, SourceFile], list[int]]] = [((), {}, [])]
    for number in range(1, random.choice((1, 2, 4, 6))):
        parent = random.randrange(number)
        shapes[parent][2].append(number)
        shapes.append(((*shapes[parent][0], f"d{number}"), {}, []))
    for inode in range(1, 1 + random.choice((0, 1, 3, 8, 14))):
        size = random.choice((0, 1, 1, 2, 2, 6, 9, 14))
        mode, mtime = random.choice((0o600, 0o644, 0o444)), -float(random.randrange(10, 900))
        linked = random.random() < 0.25
        readable = linked or random.random() < 0.93
        file = SourceFile(inode, size, mode, mtime, readable, linked)
        for name in range(random.randrange(2, 5) if linked else 1):
            shapes[random.randrange(len(shapes))][1][f"f{inode}.{name}"] = file
    directories = tuple(
        SourceDirectory(
            path, random.choice((0o755, 0o700, 0o555)), -float(random.randrange(10, 900)), files, tuple(below)
        )
        for path, files, below in shapes
    )
    existing = random.choice(("replace", "skip", "fail"))
    there = random.random() < 0.4
    occupied = frozenset(
        (number, name)
        for number, directory in enumerate(directories)
        for name, file in directory.files.items()
        if there and file.readable and not file.linked and random.random() < 0.3
    )
    return Dataset(directories, existing, there, occupied)
