"""Jobs that delete what only the destination has (``--delete``, ``--backup``).

A part of the destination is a copy of the source already, with other items in it. So the deletion changes directories
in which nothing is to be copied.
"""

from __future__ import annotations

import stat
from random import Random
from typing import NamedTuple

from tests.recovery.datasets import (
    JUST_BEFORE,
    LONG_BEFORE,
    TARGET,
    Dataset,
    Path,
    make_directory,
    make_file,
    put_file,
)
from tests.recovery.disk import Disk, Inode

BACKUP = b"/kept"


class Mirror(NamedTuple):
    """What the destination had before.

    Fields:
        present: numbers of the source directories that it had, with their metadata.
        copies: files (number of the directory, name) that it had copies of.
        extra: names that the source lacks (number of the directory, name), and whether each is a directory with a file.
        is_backed_up: True if deleted and replaced items are moved to ``BACKUP``.
    """

    present: frozenset[int]
    copies: frozenset[tuple[int, bytes]]
    extra: dict[tuple[int, bytes], bool]
    is_backed_up: bool

    def words(self, existing: str, source: str, target: str) -> list[str]:
        """Return the command line. A deletion needs a slash after the source, and the target itself."""
        backup = [f"--backup={BACKUP.decode()}"] if self.is_backed_up else []
        return [existing, "--delete", "--delete-all", *backup, f"{source}/", f"{target}{source}"]

    def prepare(self, disk: Disk, dataset: Dataset) -> None:
        """Make what the destination had before, in the existing directory ``TARGET``."""
        target, at = disk.root.names[TARGET[1:]], dict[Path, Inode]()
        disk.now = dataset.occupied_since
        for number in sorted(self.present):
            source = dataset.directories[number]
            above, name = (at[source.path[:-1]], source.path[-1]) if source.path else (target, dataset.root[-1])
            at[source.path] = above.names.get(name) or make_directory(disk, above, name)
        for number, name in sorted(self.copies):
            source = dataset.directories[number]
            disk.do("enter", 0, at[source.path].key, name, make_file(disk, source.files[name]).key)
        for (number, name), is_directory in self.extra.items():
            above = at[dataset.directories[number].path]
            if is_directory:
                above = make_directory(disk, above, name)
            put_file(disk, above, b"file" if is_directory else name, _contents(number, name), 0o644, 0)
        for number in self.present:
            source = dataset.directories[number]
            values = {"mode": stat.S_IFDIR | source.mode, "mtime": source.mtime, "atime": source.mtime}
            disk.do("attributes", 0, at[source.path].key, values)

    def missing_backups(self, disk: Disk) -> set[bytes]:
        """Return the contents of extra items that are not in the backup."""
        kept = {bytes(inode.data) for path, inode in disk.items() if path.startswith(BACKUP + b"/")}
        return {_contents(*place) for place in self.extra} - kept if self.is_backed_up else set()


def _contents(number: int, name: bytes) -> bytes:
    return b"extra %d %b" % (number, name)


def as_mirror(random: Random, dataset: Dataset) -> Dataset:
    """Return the data set with a destination that is to become equal to it.

    All of it can be read: if anything failed, nothing would be deleted.
    """
    directories = tuple(
        each._replace(files={name: file._replace(readable=True) for name, file in each.files.items()})
        for each in dataset.directories
    )
    present: set[int] = set()
    by_path = {each.path: number for number, each in enumerate(directories)}
    for number, each in enumerate(directories):
        if not each.path or (by_path[each.path[:-1]] in present and random.random() < 0.8):
            present.add(number)
    share = random.choice((0.5, 1.0, 1.0))
    copies = frozenset(
        (number, name)
        for number in present
        for name, file in directories[number].files.items()
        if not file.linked and random.random() < share
    )
    occupied = frozenset(
        (number, name)
        for number in present
        for name, file in directories[number].files.items()
        if not file.linked and (number, name) not in copies and random.random() < 0.5
    )
    extra = {
        (number, b"x%d" % each): random.random() < 0.3
        for number in sorted(present)
        for each in range(random.choice((0, 1, 1, 3)))
    }
    mirror = Mirror(frozenset(present), copies, extra, random.random() < 0.4)
    since = random.choice((JUST_BEFORE, LONG_BEFORE, LONG_BEFORE))
    return Dataset(directories, random.choice(("replace", "changed")), True, occupied, since, mirror)
