"""Directories that were removed from the destination while a job was stopped: the resumed job creates and fills them
again.

Before the remaining tasks are distributed, each directory that they name is opened once, in the order of the tree. So
each is opened relative to its parent, and nothing below a removed directory is opened.

A directory is created again only if its parent is still the same directory on the same file system. Otherwise a mount
may be missing, and the tasks there fail. If there are no such tasks, and only notes name the directory, an added task
fails.

All work below a removed directory becomes one ``ScanDir``. Counts from below it are subtracted by their labels
(``values.label_of``). Names of one inode that lie elsewhere are collected again together with the names that the scan
will find, because they must become links of each other. Each kind of task says what becomes of it (``Kind.mended``).
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import count, groupby
from operator import itemgetter

import pcopy.tasks.runner  # noqa: F401 (makes all kinds known)
from pcopy.engine.backlog import SpoolBacklog, SpoolFactory
from pcopy.engine.task import ANYBODY, Task
from pcopy.errors import Refused
from pcopy.fsio.close import held_open
from pcopy.fsio.directories import Directories, OpenDirectories, affordable
from pcopy.fsio.kernel.columns import pack_names
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.both_sides import mounted_below
from pcopy.tasks.base.codec import decode, encode
from pcopy.tasks.base.job import Mount, Options, Root, mount_codes
from pcopy.tasks.base.kind import Kind, places_in
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST
from pcopy.tasks.base.values import NOWHERE, Copy, Item, Place, bucket_of, pack_numbers
from pcopy.tasks.directories.finish_dir import FinishDir
from pcopy.tasks.directories.scan_dir import ScanDir
from pcopy.tasks.directories.sync_files import SyncFiles
from pcopy.tasks.links.group_links import InodeCopied, LinkNote
from pcopy.text import counted, shown

REMEMBERED = 1 << 14
"""Number of directories that are remembered as seen, so that they are not sorted again when another task names them."""

NO_RANK = (1 << 32) - 1
"""Rank number in the ids of tasks that a resume creates."""

Names = Sequence[tuple[Place, bytes]]

_ANOTHER = (errno.ESTALE, errno.ENOTDIR, errno.ELOOP)
_ROOT = struct.Struct(">I")


class Gone:
    """The directories that were removed: the root, path and parent of each; asked by tasks whether their work lies
    below one.
    """

    def __init__(self, roots: Sequence[Root], *, keeps: bool, links: bool) -> None:
        """Start without any removed directory.

        Args:
            keeps: existing files are never replaced unless they are known to be this job's own.
            links: names of one inode become hard links of each other.
        """
        self.run = 0
        """Number of the run that recorded the tasks."""
        self.keeps = keeps
        self.finds = False
        """True if the resumed job may find more names of an inode that is known already."""
        self.around: dict[tuple[int, bytes], Place] = {}
        """The parent of each removed directory, by (root number, path)."""
        self._links = links
        self._roots = roots
        self._numbers = count(1)
        self._entries: set[bytes] = set()
        self._files: dict[bytes, tuple[tuple[Place, ...], bool]] = {}

    def add(self, path: bytes, parent: Place) -> None:
        """Add a removed directory; ``parent`` is its existing parent."""
        self.around[parent.root, path] = parent
        has_one_root = len(self._roots) == 1
        self._entries.add(
            b"/".join(part for part in (b"" if has_one_root else self._roots[parent.root].name, path) if part)
        )

    def scans(self) -> None:
        """Record that a task will scan a directory or collect names of inodes."""
        self.finds = self._links

    def copies(self, temporary: bytes, places: Iterator[Place], phase: int) -> None:
        """Record that a task of ``phase`` copies a large file to ``places``; ``temporary`` is the name of its temporary
        file.

        The tasks for its chunks only know the name of that file.
        """
        self._files[temporary] = tuple(places), phase == Phase.LINK

    def is_below(self, root: int, path: bytes) -> bool:
        """True if the directory ``path`` of a root is a removed one or lies in one."""
        return any((root, above) in self.around for above in _upwards(path))

    def has(self, place: Place) -> bool:
        """True if ``place`` is a removed directory or lies in one."""
        return self.is_below(place.root, place.path)

    def has_entries(self, path: bytes) -> bool:
        """True if a directory, given by its path in the dataset (with the root's name first if there are several), is
        or lies in a removed one.
        """
        return any(above in self._entries for above in _upwards(path))

    def has_chunk(self, temporary: bytes) -> bool:
        """True if the large file with this temporary file is lost or will be copied again, so that its chunk must not
        be written.
        """
        places, in_link = self._files.get(temporary, ((), False))
        return (self.finds and in_link) or any(map(self.has, places))

    def takes_back(self, label: bytes) -> bool:
        """True if counts with this label are subtracted, since they come from below a removed directory."""
        root, _, path = label.partition(b"/")
        return self.is_below(int(root), path)

    def kept(self, names: Names) -> tuple[tuple[Place, bytes], ...]:
        """Return the names that do not lie in removed directories."""
        return tuple((place, name) for place, name in names if not self.has(place))

    def attempt(self, item: Item, names: Names) -> int:
        """Return the attempt for an inode; 0 if its size is to be counted again, as it was counted with the first of
        ``names``.
        """
        return 0 if self.has(names[0][0]) else max(1, item.attempt)

    def released(self, item: Item, names: Names) -> Iterator[Task]:
        """Yield notes that collect the existing names again: those that are not created yet, and those that failed.

        They are the notes that were sent when the names were found.
        """
        failed = tuple((place, name) for place, name, _ in item.failed)
        attempt = self.attempt(item, (*failed, *item.names))
        found: dict[Place, list[bytes]] = {}
        for place, name in dict.fromkeys((*self.kept(failed), *self.kept(names))):
            found.setdefault(place, []).append(name)
        for place, each in found.items():
            mounts, inodes, sizes = (pack_numbers([one] * len(each)) for one in (item.mount, item.inode, item.size))
            note = LinkNote(place, pack_names(each), mounts, inodes, sizes, attempt, bucket_of(item.inode))
            yield self.new(note, owner=0)

    def copied(self, item: Item, made: Copy) -> Iterator[Task]:
        """Yield a note that the inode ``item`` has a copy ``made``: names that the scan finds are linked to it."""
        yield self.new(InodeCopied(item, made), owner=0)

    def new(
        self, kind: Kind, cost: int = 0, *, phase: int = Phase.COPY, expands: bool = False, owner: int = ANYBODY
    ) -> Task:
        """Return a new task with an id of its own."""
        return Task((self.run, NO_RANK, next(self._numbers)), int(phase), encode(kind), cost, expands, owner)


def _upwards(path: bytes) -> Iterator[bytes]:
    """Yield ``path`` and the paths of all directories above it; the path of the root is empty."""
    while path:
        yield path
        path = path.rpartition(b"/")[0]
    yield path


class Missing:
    """Finds the removed directories and replaces the tasks of a resumed job. Implements
    ``pcopy.checkpoint.resume.Mending``.

    ``notices`` are messages for the user about the directories that were found.
    """

    def __init__(
        self, roots: Sequence[Root], mounts: Sequence[Mount], open_spool: SpoolFactory, options: Options
    ) -> None:
        """Prepare for a job with these roots; ``mounts`` are the recorded mounts, as in ``Job``."""
        self._roots = roots
        self._mounts = mounts
        self._open_spool = open_spool
        self._tasks = SpoolBacklog(open_spool)
        self._lost = Gone(roots, keeps=options.keeps, links=options.preserve.links)
        self._is_listed = bool(options.files_from)
        self._first: dict[str, bytes] = {}
        self._others = 0
        self._idle: list[Place] = []

    def look(self, run: int, tasks: Iterable[Task]) -> None:
        """Read the tasks that ``run`` has left, and find the directories that were removed.

        Raise ``OSError`` for temporary files, and ``Refused`` for a destination that cannot be opened.
        """
        self._lost.run = run
        places = ExternalSorter(self._open_spool)
        seen: set[tuple[int, bytes, bool]] = set()
        for task in tasks:
            self._tasks.append(task)
            value = decode(task.payload)
            value.tell(task, self._lost)
            is_idle = value.waits_for_others
            for place in _places(value):
                key_of_place = (place.root, place.path, is_idle)
                if place.target_id != NOWHERE and key_of_place not in seen:
                    if len(seen) >= REMEMBERED:
                        seen.clear()
                    seen.add(key_of_place)
                    key = _ROOT.pack(place.root) + place.path.replace(b"/", b"\0")
                    places.add(key, bytes((is_idle,)) + encode(SyncFiles(place)))
        target = self._roots[0].target  # All roots have the same target directory.
        with closing(places), closing(OpenDirectories(affordable())) as kept:
            try:
                target_directory = open_patiently(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise Refused(f"{shown(target)}: cannot be opened: {error.strerror}") from None
            with held_open(target_directory):
                mounted, codes = mounted_below(target, self._mounts), mount_codes(self._roots)
                for number, of_root in groupby(_sorted(places), key=lambda found: found[0].root):
                    code = codes[number][1]
                    below = Directories(
                        target_directory, code, on_source=False, kept=kept, number=number, mounted=mounted
                    )
                    self._look_below(below, of_root)
        if self._is_listed and self._lost.around:
            reason = (
                "gone from the destination since the job was interrupted, and with --files-from it is not created again"
            )
            raise Refused(f"{shown(self._first['gone'])}: {reason}: discard the job, and start a new one")

    def _look_below(self, targets: Directories, places: Iterable[tuple[Place, bool]]) -> None:
        """Open the directories of one root, each before those below it, and record those that were removed or replaced.

        ``places``: pairs (place, True if only notes name it).
        """
        ancestors: list[Place] = []  # opened directories that contain the next place, the innermost last
        failed: bytes | None = None
        for place, is_idle in places:
            if failed is not None and _lies_in(place.path, failed):
                continue
            while ancestors and not _lies_in(place.path, ancestors[-1].path):
                ancestors.pop()
            try:
                targets.open(self._roots[place.root].below_target(place.path), place.target_id)
            except Problem as problem:
                failed = place.path
                if problem.errno == errno.ENOENT:
                    failed = self._gone(targets, place, ancestors)
                elif problem.errno in _ANOTHER:
                    self._other(place)
                    if is_idle:
                        self._idle.append(place)
            else:
                ancestors.append(place)
                failed = None

    def _gone(self, targets: Directories, place: Place, ancestors: Sequence[Place]) -> bytes:
        """Record a removed directory; return the path of the uppermost removed one, which contains it."""
        path = place.path
        while path:
            above = path.rpartition(b"/")[0]
            try:
                if ancestors and ancestors[-1].path == above:
                    parent = ancestors[-1]
                else:
                    identity = targets.identity(self._roots[place.root].below_target(above), made=False)
                    parent = Place(place.root, above, NOWHERE, identity, False, False)
            except Problem as problem:
                if problem.errno != errno.ENOENT:
                    break
                path = above
            else:
                if parent.target_id.mount == place.target_id.mount:
                    self._first.setdefault("gone", self._shown(place.root, path))
                    self._lost.add(path, parent)
                else:  # It was on another file system, which may not be mounted.
                    self._other(place)
                return path
        return place.path  # The target itself is missing or cannot be entered. Other code reports that.

    def _other(self, place: Place) -> None:
        """Record a directory that was replaced by another one."""
        self._first.setdefault("other", self._shown(place.root, place.path))
        self._others += 1

    def _shown(self, root: int, path: bytes) -> bytes:
        """Return the path in the destination, for messages."""
        return os.path.join(self._roots[root].target, self._roots[root].below_target(path))

    def takes_back(self, label: bytes) -> bool:
        """True if counts with this label are subtracted."""
        return self._lost.takes_back(label)

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks of the resumed job, some of them replaced; can be called only once."""
        lost = self._lost
        for (root, path), parent in lost.around.items():
            yield lost.new(ScanDir(root, path, NOWHERE, parent), SCAN_COST, expands=True)
        for place in self._idle:
            yield lost.new(FinishDir(place, None, False, -1, again=True), phase=Phase.FINISH)
        for task in self._tasks.drained():
            if lost.around or lost.finds:
                yield from decode(task.payload).mended(task, lost)
            else:
                yield task

    @property
    def notices(self) -> list[str]:
        """Messages about removed and replaced directories."""
        removed = "gone from the destination since the job was interrupted: all that was in it is copied again"
        replaced = (
            "not the directory that the job copied to: remaining work there will fail; mount what was there, "
            "or move this away, and resume the job again"
        )
        found = (("gone", len(self._lost.around), removed), ("other", self._others, replaced))
        return [f"{shown(self._first[kind])}{_and_more(count - 1)} {what}" for kind, count, what in found if count]


def _and_more(number: int) -> str:
    """Return the words between the first path of a message and its verb."""
    return f" and {counted(number, 'other directory', 'other directories')} are" if number else " is"


def _lies_in(path: bytes, directory: bytes) -> bool:
    """True if ``path`` is ``directory`` or lies below it."""
    return not directory or path == directory or path.startswith(directory + b"/")


def _sorted(places: ExternalSorter) -> Iterator[tuple[Place, bool]]:
    """Yield each place once, with True if only notes name it."""
    for _, equal in groupby(places.sorted(), key=itemgetter(0)):
        packed = min(value for _, value in equal)
        yield decode(packed[1:]).place, bool(packed[0])


def _places(task: Kind) -> Iterator[Place]:
    """Yield the places that a task names, also in the tasks that are packed in it."""
    yield from places_in(task)
    for packed in task.held():
        yield from _places(packed)
