"""Directories that were removed from the destination while a job was stopped: the resumed job creates and fills them
again.

Before the remaining tasks are distributed, each directory that they name is opened once, in the order of the tree. So
each is opened relative to its parent, and nothing below a removed directory is opened.

A directory is created again only if its parent is still the same directory on the same file system. Otherwise a mount
may be missing, and the tasks there fail. If there are no such tasks, and only notes name the directory, an added task
fails.

All work below a removed directory becomes one ``ScanDir``. Counts from below it are subtracted by their labels
(``values.counts_label``). Names of one inode that lie elsewhere are collected again together with the names that the
scan will find, because they must become links of each other. Each kind of task says what becomes of it
(``Kind.mended``).
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
from pcopy.engine.backlog import OpenSpool, SpoolBacklog
from pcopy.engine.task import ANY_RANK, Task
from pcopy.errors import RequestRefused
from pcopy.fsio.backend.columns import pack_names
from pcopy.fsio.close import closed_at_end
from pcopy.fsio.directories import DirectoryCache, RootDirectories, affordable_cache_capacity
from pcopy.fsio.problem import Problem
from pcopy.fsio.retries import open_with_retries
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.both_sides import mounts_below
from pcopy.tasks.base.codec import decode, encode
from pcopy.tasks.base.job import Mount, Options, Root, mount_codes
from pcopy.tasks.base.kind import TaskKind, places_in
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST
from pcopy.tasks.base.values import NO_DIRECTORY, Item, ItemCopy, Place, bucket_of, pack_numbers
from pcopy.tasks.directories.finish_dir import FinishDir
from pcopy.tasks.directories.scan_dir import ScanDir
from pcopy.tasks.directories.sync_files import SyncFileSystems
from pcopy.tasks.links.group_links import InodeCopiedNote, LinkNote
from pcopy.text import count_with_noun, printable_path

SEEN_LIMIT = 1 << 14
"""Number of directories that are remembered as seen, so that they are not sorted again when another task names them."""

RESUME_RANK = (1 << 32) - 1
"""Rank number in the ids of tasks that a resume creates."""

PlacedNames = Sequence[tuple[Place, bytes]]

_REPLACED_ERRORS = (errno.ESTALE, errno.ENOTDIR, errno.ELOOP)
_ROOT_NUMBER = struct.Struct(">I")


class MissingDirectories:
    """The directories that were removed: the root, path and parent of each; asked by tasks whether their work lies
    below one.
    """

    def __init__(self, roots: Sequence[Root], *, keeps_existing: bool, preserves_links: bool) -> None:
        """Start without any removed directory.

        Args:
            keeps_existing: existing files are never replaced unless they are known to be this job's own.
            preserves_links: names of one inode become hard links of each other.
        """
        self.run = 0
        """Number of the run that recorded the tasks."""
        self.keeps_existing = keeps_existing
        self.may_find_links = False
        """True if the resumed job may find more names of an inode that is known already."""
        self.parents: dict[tuple[int, bytes], Place] = {}
        """The parent of each removed directory, by (root number, path)."""
        self._links = preserves_links
        self._roots = roots
        self._numbers = count(1)
        self._entries: set[bytes] = set()
        self._files: dict[bytes, tuple[tuple[Place, ...], bool]] = {}

    def add_directory(self, path: bytes, parent: Place) -> None:
        """Add a removed directory; ``parent`` is its existing parent."""
        self.parents[parent.root, path] = parent
        has_one_root = len(self._roots) == 1
        self._entries.add(
            b"/".join(part for part in (b"" if has_one_root else self._roots[parent.root].name, path) if part)
        )

    def expect_scan(self) -> None:
        """Record that a task will scan a directory or collect names of inodes."""
        self.may_find_links = self._links

    def add_large_file(self, temporary: bytes, places: Iterator[Place], phase: int) -> None:
        """Record that a task of ``phase`` copies a large file to ``places``; ``temporary`` is the name of its temporary
        file.

        The tasks for its chunks only know the name of that file.
        """
        self._files[temporary] = tuple(places), phase == Phase.LINK

    def is_below(self, root: int, path: bytes) -> bool:
        """True if the directory ``path`` of a root is a removed one or lies in one."""
        return any((root, above) in self.parents for above in _upwards(path))

    def contains(self, place: Place) -> bool:
        """True if ``place`` is a removed directory or lies in one."""
        return self.is_below(place.root, place.path)

    def contains_dataset_path(self, path: bytes) -> bool:
        """True if a directory, given by its path in the dataset (with the root's name first if there are several), is
        or lies in a removed one.
        """
        return any(above in self._entries for above in _upwards(path))

    def is_chunk_obsolete(self, temporary: bytes) -> bool:
        """True if the large file with this temporary file is lost or will be copied again, so that its chunk must not
        be written.
        """
        places, in_link = self._files.get(temporary, ((), False))
        return (self.may_find_links and in_link) or any(map(self.contains, places))

    def is_count_subtracted(self, label: bytes) -> bool:
        """True if counts with this label are subtracted, since they come from below a removed directory."""
        root, _, path = label.partition(b"/")
        return self.is_below(int(root), path)

    def names_elsewhere(self, names: PlacedNames) -> tuple[tuple[Place, bytes], ...]:
        """Return the names that do not lie in removed directories."""
        return tuple((place, name) for place, name in names if not self.contains(place))

    def attempt_for(self, item: Item, names: PlacedNames) -> int:
        """Return the attempt for an inode; 0 if its size is to be counted again, as it was counted with the first of
        ``names``.
        """
        return 0 if self.contains(names[0][0]) else max(1, item.attempt)

    def link_notes(self, item: Item, names: PlacedNames) -> Iterator[Task]:
        """Yield notes that collect the existing names again: those that are not created yet, and those that failed.

        They are the notes that were sent when the names were found.
        """
        failed = tuple((place, name) for place, name, _ in item.failed_names)
        attempt = self.attempt_for(item, (*failed, *item.names))
        found: dict[Place, list[bytes]] = {}
        for place, name in dict.fromkeys((*self.names_elsewhere(failed), *self.names_elsewhere(names))):
            found.setdefault(place, []).append(name)
        for place, each in found.items():
            mounts, inodes, sizes = (pack_numbers([one] * len(each)) for one in (item.mount, item.inode, item.size))
            note = LinkNote(place, pack_names(each), mounts, inodes, sizes, attempt, bucket_of(item.inode))
            yield self.new_task(note, owner=0)

    def copied_notes(self, item: Item, made: ItemCopy) -> Iterator[Task]:
        """Yield a note that the inode ``item`` has a copy ``made``: names that the scan finds are linked to it."""
        yield self.new_task(InodeCopiedNote(item, made), owner=0)

    def new_task(
        self, kind: TaskKind, cost: int = 0, *, phase: int = Phase.COPY, expands: bool = False, owner: int = ANY_RANK
    ) -> Task:
        """Return a new task with an id of its own."""
        return Task((self.run, RESUME_RANK, next(self._numbers)), int(phase), encode(kind), cost, expands, owner)


def _upwards(path: bytes) -> Iterator[bytes]:
    """Yield ``path`` and the paths of all directories above it; the path of the root is empty."""
    while path:
        yield path
        path = path.rpartition(b"/")[0]
    yield path


class DirectoryRepair:
    """Finds the removed directories and replaces the tasks of a resumed job. Implements
    ``pcopy.checkpoint.resume.TaskReplacement``.

    ``notices`` are messages for the user about the directories that were found.
    """

    def __init__(self, roots: Sequence[Root], mounts: Sequence[Mount], open_spool: OpenSpool, options: Options) -> None:
        """Prepare for a job with these roots; ``mounts`` are the recorded mounts, as in ``Job``."""
        self._roots = roots
        self._mounts = mounts
        self._open_spool = open_spool
        self._tasks = SpoolBacklog(open_spool)
        self._removed = MissingDirectories(
            roots, keeps_existing=options.keeps_existing, preserves_links=options.preserve.links
        )
        self._is_listed = bool(options.files_from)
        self._first: dict[str, bytes] = {}
        self._replaced = 0
        self._idle: list[Place] = []

    def examine(self, run: int, tasks: Iterable[Task]) -> None:
        """Read the tasks that ``run`` has left, and find the directories that were removed.

        Raise ``OSError`` for temporary files, and ``RequestRefused`` for a destination that cannot be opened.
        """
        self._removed.run = run
        places = ExternalSorter(self._open_spool)
        seen: set[tuple[int, bytes, bool]] = set()
        for task in tasks:
            self._tasks.append(task)
            value = decode(task.payload)
            value.register_for_resume(task, self._removed)
            is_idle = value.depends_on_other_tasks
            for place in _places_of(value):
                key_of_place = (place.root, place.path, is_idle)
                if place.target_id != NO_DIRECTORY and key_of_place not in seen:
                    if len(seen) >= SEEN_LIMIT:
                        seen.clear()
                    seen.add(key_of_place)
                    key = _ROOT_NUMBER.pack(place.root) + place.path.replace(b"/", b"\0")
                    places.add(key, bytes((is_idle,)) + encode(SyncFileSystems(place)))
        target = self._roots[0].target  # All roots have the same target directory.
        with closing(places), closing(DirectoryCache(affordable_cache_capacity())) as kept:
            try:
                target_directory = open_with_retries(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise RequestRefused(f"{printable_path(target)}: cannot be opened: {error.strerror}") from None
            with closed_at_end(target_directory):
                mounted, codes = mounts_below(target, self._mounts), mount_codes(self._roots)
                for number, of_root in groupby(_unique_places(places), key=lambda found: found[0].root):
                    code = codes[number][1]
                    below = RootDirectories(
                        target_directory, code, on_source=False, cache=kept, root_number=number, expected_mounts=mounted
                    )
                    self._check_directories(below, of_root)
        if self._is_listed and self._removed.parents:
            reason = (
                "gone from the destination since the job was interrupted, and with --files-from it is not created again"
            )
            raise RequestRefused(
                f"{printable_path(self._first['gone'])}: {reason}: discard the job, and start a new one"
            )

    def _check_directories(self, targets: RootDirectories, places: Iterable[tuple[Place, bool]]) -> None:
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
                targets.open(self._roots[place.root].path_below_target(place.path), place.target_id)
            except Problem as problem:
                failed = place.path
                if problem.errno == errno.ENOENT:
                    failed = self._record_removed(targets, place, ancestors)
                elif problem.errno in _REPLACED_ERRORS:
                    self._record_replaced(place)
                    if is_idle:
                        self._idle.append(place)
            else:
                ancestors.append(place)
                failed = None

    def _record_removed(self, targets: RootDirectories, place: Place, ancestors: Sequence[Place]) -> bytes:
        """Record a removed directory; return the path of the uppermost removed one, which contains it."""
        path = place.path
        while path:
            above = path.rpartition(b"/")[0]
            try:
                if ancestors and ancestors[-1].path == above:
                    parent = ancestors[-1]
                else:
                    identity = targets.identity(self._roots[place.root].path_below_target(above), created_by_job=False)
                    parent = Place(place.root, above, NO_DIRECTORY, identity, False, False)
            except Problem as problem:
                if problem.errno != errno.ENOENT:
                    break
                path = above
            else:
                if parent.target_id.mount_code == place.target_id.mount_code:
                    self._first.setdefault("gone", self._destination_path(place.root, path))
                    self._removed.add_directory(path, parent)
                else:  # It was on another file system, which may not be mounted.
                    self._record_replaced(place)
                return path
        return place.path  # The target itself is missing or cannot be entered. Other code reports that.

    def _record_replaced(self, place: Place) -> None:
        """Record a directory that was replaced by another one."""
        self._first.setdefault("other", self._destination_path(place.root, place.path))
        self._replaced += 1

    def _destination_path(self, root: int, path: bytes) -> bytes:
        """Return the path in the destination, for messages."""
        return os.path.join(self._roots[root].target, self._roots[root].path_below_target(path))

    def are_counts_void(self, label: bytes) -> bool:
        """True if counts with this label are subtracted."""
        return self._removed.is_count_subtracted(label)

    def replacement_tasks(self) -> Iterator[Task]:
        """Yield the tasks of the resumed job, some of them replaced; can be called only once."""
        lost = self._removed
        for (root, path), parent in lost.parents.items():
            yield lost.new_task(ScanDir(root, path, NO_DIRECTORY, parent), SCAN_COST, expands=True)
        for place in self._idle:
            yield lost.new_task(FinishDir(place, None, False, -1, is_again=True), phase=Phase.FINISH)
        for task in self._tasks.pop_all():
            if lost.parents or lost.may_find_links:
                yield from decode(task.payload).replacement_tasks(task, lost)
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
        found = (("gone", len(self._removed.parents), removed), ("other", self._replaced, replaced))
        return [
            f"{printable_path(self._first[kind])}{_more_directories_text(count - 1)} {what}"
            for kind, count, what in found
            if count
        ]


def _more_directories_text(number: int) -> str:
    """Return the words between the first path of a message and its verb."""
    return f" and {count_with_noun(number, 'other directory', 'other directories')} are" if number else " is"


def _lies_in(path: bytes, directory: bytes) -> bool:
    """True if ``path`` is ``directory`` or lies below it."""
    return not directory or path == directory or path.startswith(directory + b"/")


def _unique_places(places: ExternalSorter) -> Iterator[tuple[Place, bool]]:
    """Yield each place once, with True if only notes name it."""
    for _, equal in groupby(places.sorted(), key=itemgetter(0)):
        packed = min(value for _, value in equal)
        yield decode(packed[1:]).place, bool(packed[0])


def _places_of(task: TaskKind) -> Iterator[Place]:
    """Yield the places that a task names, also in the tasks that are packed in it."""
    yield from places_in(task)
    for packed in task.packed_tasks():
        yield from _places_of(packed)
