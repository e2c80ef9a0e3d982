"""Directories that were removed from the destination while a job was stopped: the resumed job creates and fills them
again.

Before the recorded tasks are distributed to the ranks, each directory of the destination that they name is opened once,
a directory before those in it. So each is opened relative to its parent, and nothing below a removed directory is
opened.

A directory is created again only if its parent is still the same directory on the same file system. Otherwise a file
system may not be mounted, and the tasks there fail with an error. Some tasks are notes: they only bring data about an
item to one rank, and do not fail. If only notes name such a directory, a task that fails is added for it.

All tasks below a removed directory are replaced by one task that scans and copies the source directory (``ScanDir``).
What the job has counted below the directory is subtracted from the totals: the records contain counts by directory. If
an inode has several hard links, and some of them lie outside of removed directories, these names are sent again to the
rank that collects the names of the inode: so they meet the names that the scan will find, and all become hard links of
one copy. Each type of task has a method ``replacement_tasks``, which returns the tasks that replace it.
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
from pcopy.engine.backlog import OpenSpool, SpoolFileBacklog
from pcopy.engine.task import ANY_RANK, Task
from pcopy.errors import path_refused
from pcopy.fsio.backend.columns import pack_names
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.directories import DirectoriesBelowRoot, DirectoryCache, affordable_cache_capacity
from pcopy.fsio.problem import Problem
from pcopy.fsio.retries import open_with_retries
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.both_sides import mounts_below
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.job import Job, Root, mount_codes
from pcopy.tasks.base.kind import TaskKind, directory_places_in_value
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Item, ItemCopy, Place, inode_bucket_number, pack_numbers
from pcopy.tasks.directories.finish_dir import FinishDir
from pcopy.tasks.directories.finish_dirs import FinishDirs
from pcopy.tasks.directories.scan_dir import ScanDir
from pcopy.tasks.directories.sync_files import SyncFileSystems
from pcopy.tasks.links.group_links import HardLinkNamesNote, InodeCopiedNote
from pcopy.text import count_with_noun, printable_path

MAX_REMEMBERED_DIRECTORIES = 1 << 14
"""Number of examined directories that are remembered, so that a directory is not sorted again when another task names
it.

When there are more, all are forgotten; that only costs time.
"""
MAX_REMEMBERED_BYTES = 4 << 20
"""Bytes of the paths of remembered directories from which on all are forgotten: the paths of a deep tree are long."""

RANK_NUMBER_OF_REPLACEMENTS = (1 << 32) - 1
"""Rank number in the ids of tasks that are created here. No rank has this number, so no other task has the same id."""

PlacedNames = Sequence[tuple[Place, bytes]]
"""Names of items: pairs of a directory and the name in it."""

_DIRECTORY_REPLACED_ERRORS = (errno.ESTALE, errno.ENOTDIR, errno.ELOOP)
"""Errors of open(2) which mean that the recorded directory was replaced by another directory, a file or a symbolic
link.
"""
_ROOT_NUMBER_FORMAT = struct.Struct(">I")
"""Format of the number of a root (source and target pair) in sort keys: big-endian, so that keys sort by number."""


class MissingDirectories:
    """The directories that were removed from the destination. Recorded tasks call it to learn whether their items lie
    in one.

    A directory is given by the number of its root (source and target pair) and its path below the root, or as a
    ``Place``, which also contains the identities of the directory on both sides.
    """

    def __init__(self, roots: Sequence[Root], *, keeps_existing: bool, preserves_links: bool) -> None:
        """Start without any removed directory.

        Args:
            roots: sources and targets of the job.
            keeps_existing: True if the job replaces existing files only if it has created them itself.
            preserves_links: True if names of one inode in the source become hard links of one file.
        """
        self.run = 0
        """Number of the run that recorded the tasks; part of the ids of new tasks."""
        self.keeps_existing = keeps_existing
        self.may_find_links = False
        """True if the resumed job may find more hard links of an inode of which it knows some names already."""
        self.parents: dict[tuple[int, bytes], Place] = {}
        """The parent of each removed directory; the key is the root number and the path of the removed directory."""
        self._links = preserves_links
        self._roots = roots
        self._numbers = count(1)
        self._entries: set[bytes] = set()
        self._lengths: set[int] = set()
        self._files: dict[bytes, tuple[tuple[Place, ...], bool]] = {}

    def add_directory(self, path: bytes, parent: Place) -> None:
        """Add a removed directory: ``path`` is its path below the root, and ``parent`` its parent, which exists."""
        self.parents[parent.root, path] = parent
        has_one_root = len(self._roots) == 1
        entry = b"/".join(part for part in (b"" if has_one_root else self._roots[parent.root].name, path) if part)
        self._entries.add(entry)
        self._lengths |= {len(path), len(entry)}

    def record_expected_scan(self) -> None:
        """Record that a remaining task will scan a directory or collect names of inodes, and so may find hard links."""
        self.may_find_links = self._links

    def add_large_file(self, temporary: bytes, places: Iterator[Place], phase: int) -> None:
        """Record that a remaining task copies a large file, whose chunks are written by other tasks.

        ``is_chunk_obsolete`` returns whether their chunk must still be written.

        Args:
            temporary: name of the temporary file; the tasks for chunks of the file know no other name.
            places: the directories that are to contain the file: more than one if it has several hard links.
            phase: the phase of the task.
        """
        self._files[temporary] = tuple(places), phase == Phase.LINK

    def is_in_missing_directory(self, root: int, path: bytes) -> bool:
        """Return True if a directory is a removed one or lies in one. It is given by its root number and its path below
        the root.
        """
        return any((root, above) in self.parents for above in self._directories_above(path))

    def _directories_above(self, path: bytes) -> Iterator[bytes]:
        """Yield those of ``path`` and the directories above it whose paths are as long as that of a removed directory.
        To yield all of them would cost the square of the depth.
        """
        for length in self._lengths:
            if length == len(path) or path[length : length + 1] == b"/":
                yield path[:length]

    def contains(self, place: Place) -> bool:
        """Return True if ``place`` is a removed directory or lies in one."""
        return self.is_in_missing_directory(place.root, place.path)

    def contains_dataset_path(self, path: bytes) -> bool:
        """True if a directory is a removed one or lies in one.

        ``path`` is its path in the copied data set: below the root, and if the job has several roots with the root's
        name in front.
        """
        return any(above in self._entries for above in self._directories_above(path))

    def is_chunk_obsolete(self, temporary: bytes) -> bool:
        """True if a chunk of a large file must not be written any more.

        That is so if the file lies in a removed directory, or will be copied again because more names of its inode may
        be found. ``temporary`` is the name of the temporary file.
        """
        places, in_link = self._files.get(temporary, ((), False))
        return (self.may_find_links and in_link) or any(map(self.contains, places))

    def is_count_subtracted(self, label: bytes) -> bool:
        """True if counts are to be subtracted from the totals, because they come from below a removed directory.

        ``label`` says where they come from, as ``ROOT/PATH``: the number of the root, and the path of a directory below
        the root.
        """
        root, _, path = label.partition(b"/")
        return self.is_in_missing_directory(int(root), path)

    def names_outside_missing_directories(self, names: PlacedNames) -> tuple[tuple[Place, bytes], ...]:
        """Return those of ``names`` that do not lie in removed directories."""
        return tuple((place, name) for place, name in names if not self.contains(place))

    def earlier_attempts_for_item(self, item: Item, names: PlacedNames) -> int:
        """Return the number of attempts to copy the inode ``item`` that the resumed job takes as made before.

        The size of an inode is added to the totals at its first attempt (0), in the directory of the first of
        ``names``. If that directory was removed, its counts are subtracted; then the result is 0, so that the size is
        added again. Otherwise it is at least 1.
        """
        return 0 if self.contains(names[0][0]) else max(1, item.attempt)

    def tasks_resending_link_names(self, item: Item, names: PlacedNames) -> Iterator[Task]:
        """Yield tasks that send names of the inode ``item`` again to the rank that collects its hard links.

        They are the tasks (``HardLinkNamesNote``) that were sent when the names were found, one for each directory.
        They contain ``names``, which are not created yet, and the names that failed. Names in removed directories are
        left out, because a scan finds them again.
        """
        failed = tuple((place, name) for place, name, _ in item.failed_names)
        attempt = self.earlier_attempts_for_item(item, (*failed, *item.names))
        found: dict[Place, list[bytes]] = {}
        for place, name in dict.fromkeys(
            (*self.names_outside_missing_directories(failed), *self.names_outside_missing_directories(names))
        ):
            found.setdefault(place, []).append(name)
        for place, each in found.items():
            mounts, inodes, sizes = (pack_numbers([one] * len(each)) for one in (item.mount, item.inode, item.size))
            note = HardLinkNamesNote(
                place, pack_names(each), mounts, inodes, sizes, attempt, inode_bucket_number(item.inode)
            )
            yield self.new_task(note, owner=0)

    def tasks_reporting_copied_inode(self, item: Item, made: ItemCopy) -> Iterator[Task]:
        """Yield a task that informs the rank which collects the hard links of the inode ``item`` of its copy,
        ``made``.

        Names that a scan finds then become hard links of this copy.
        """
        yield self.new_task(InodeCopiedNote(item, made), owner=0)

    def new_task(
        self, kind: TaskKind, cost: int = 0, *, phase: int = Phase.COPY, expands: bool = False, owner: int = ANY_RANK
    ) -> Task:
        """Return a new task of type ``kind`` with a unique id.

        Args:
            cost: estimated cost, for the distribution to the ranks.
            phase: the phase in which the task runs.
            expands: True if the task spawns others.
            owner: the rank that must run the task, or ``ANY_RANK``.
        """
        return Task(
            (self.run, RANK_NUMBER_OF_REPLACEMENTS, next(self._numbers)),
            int(phase),
            encode_task(kind),
            cost,
            expands,
            owner,
        )


class MissingDirectoryRepair:
    """Finds the removed directories, and replaces tasks of a resumed job so that these directories are filled again.

    First ``examine_tasks`` is called with all remaining tasks, and then ``replacement_tasks`` once. Implements the
    protocol ``pcopy.checkpoint.resume.TaskReplacer``.
    """

    def __init__(self, job: Job, open_spool: OpenSpool) -> None:
        """Prepare for the resumed ``job``, whose mounts are those that earlier runs recorded. ``open_spool`` opens a
        temporary file.
        """
        self._roots = roots = job.roots
        self._mounts = job.mounts
        self._open_spool = open_spool
        self._tasks = SpoolFileBacklog(open_spool)
        self._removed = MissingDirectories(
            roots, keeps_existing=job.copy_options.keeps_existing, preserves_links=job.options.preserve.links
        )
        self._is_listed = bool(job.copy_options.list_file)
        self._first: dict[str, bytes] = {}
        self._replaced = 0
        self._idle: list[Place] = []

    def examine_tasks(self, run: int, tasks: Iterable[Task]) -> None:
        """Store the ``tasks`` that run number ``run`` has not done, and find the removed directories that they name.

        Raise ``OSError`` if a temporary file cannot be written. Raise ``RequestRefused`` if the destination cannot be
        opened, or if directories were removed from a job with ``--from``.
        """
        self._removed.run = run
        target = self._roots[0].target  # All roots have the same target directory.
        with (
            closing(ExternalSorter(self._open_spool)) as places,
            closing(DirectoryCache(affordable_cache_capacity())) as kept,
        ):
            try:
                target_directory = open_with_retries(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise path_refused(target, f"cannot be opened: {error.strerror}") from None
            with closing_descriptor(target_directory):
                self._collect_directories(tasks, target_directory, places)
                mounted, codes = mounts_below(target, self._mounts), mount_codes(self._roots)
                for number, of_root in groupby(_unique_sorted_directories(places), key=lambda found: found[0].root):
                    code = codes[number][1]
                    below = DirectoriesBelowRoot(
                        target_directory, code, on_source=False, cache=kept, root_number=number, expected_mounts=mounted
                    )
                    self._check_directories(below, of_root)
        if self._is_listed and self._removed.parents:
            reason = "gone from the destination since the job was interrupted, and with --from it is not created again"
            raise path_refused(self._first["gone"], f"{reason}: discard the job, and start a new one")

    def _collect_directories(self, tasks: Iterable[Task], target: int, places: ExternalSorter) -> None:
        """Store the ``tasks``, and add the directories that they name to ``places``, except those of ``FinishDirs``
        tasks whose directories all exist in the open ``target``.
        """
        seen, path_bytes = set[tuple[int, bytes, bool]](), 0
        for task in tasks:
            self._tasks.append(task)
            value = decode_task(task.payload)
            value.register_for_resume(task, self._removed)
            is_idle = value.depends_on_other_tasks
            is_complete = isinstance(value, FinishDirs) and value.has_all_targets(
                target, self._roots[value.place.root].path_below_target(value.place.path)
            )
            for place in directory_places_in_value(value) if is_complete else _directories_of_task(value):
                key_of_place = (place.root, place.path, is_idle)
                if place.target_id != NO_DIRECTORY_IDENTITY and key_of_place not in seen:
                    if len(seen) >= MAX_REMEMBERED_DIRECTORIES or path_bytes >= MAX_REMEMBERED_BYTES:
                        seen.clear()
                        path_bytes = 0
                    seen.add(key_of_place)
                    path_bytes += len(place.path)
                    key = _ROOT_NUMBER_FORMAT.pack(place.root) + place.path.replace(b"/", b"\0")
                    places.add(key, bytes((is_idle,)) + encode_task(SyncFileSystems(place)))

    def _check_directories(self, targets: DirectoriesBelowRoot, places: Iterable[tuple[Place, bool]]) -> None:
        """Open the directories of one root, a directory before those below it, and record those that were removed or
        replaced.

        Args:
            targets: opens directories below the target of the root.
            places: the directories in this order; the second value is True if only notes (tasks that bring data to a
                rank) name it.
        """
        opened = _OpenedAncestors()
        failed: bytes | None = None
        for place, is_idle in places:
            if failed is not None and _is_path_in_directory(place.path, failed):
                continue
            opened.keep_those_containing(place.path)
            try:
                targets.open(self._roots[place.root].path_below_target(place.path), place.target_id)
            except Problem as problem:
                failed = place.path
                if problem.errno == errno.ENOENT:
                    failed = self._record_removed_directory(targets, place, opened.innermost)
                elif problem.errno in _DIRECTORY_REPLACED_ERRORS:
                    self._count_replaced_directory(place)
                    if is_idle:
                        self._idle.append(place)
            else:
                opened.add(place)
                failed = None

    def _record_removed_directory(self, targets: DirectoriesBelowRoot, place: Place, innermost: Place | None) -> bytes:
        """Record the uppermost removed directory that is or contains ``place``, and return its path.

        If its parent is on another file system than ``place`` was, record ``place`` as replaced instead.

        Args:
            targets: opens directories below the target of the root.
            innermost: the nearest directory above ``place`` that was opened; None if there is none.
        """
        path = place.path
        while path:
            above = path.rpartition(b"/")[0]
            try:
                if innermost is not None and innermost.path == above:
                    parent = innermost
                else:
                    identity = targets.identity_of_directory(
                        self._roots[place.root].path_below_target(above), created_by_job=False
                    )
                    parent = Place(place.root, above, NO_DIRECTORY_IDENTITY, identity, False, False)
            except Problem as problem:
                if problem.errno != errno.ENOENT:
                    break
                path = above
            else:
                if parent.target_id.mount_code == place.target_id.mount_code:
                    self._first.setdefault("gone", self._destination_path(place.root, path))
                    self._removed.add_directory(path, parent)
                else:  # It was on another file system, which may not be mounted.
                    self._count_replaced_directory(place)
                return path
        return place.path  # The target itself is missing or cannot be entered: the tasks there report that.

    def _count_replaced_directory(self, place: Place) -> None:
        """Count ``place`` as replaced: its path belongs to another directory now, or its file system may not be
        mounted.
        """
        self._first.setdefault("other", self._destination_path(place.root, place.path))
        self._replaced += 1

    def _destination_path(self, root: int, path: bytes) -> bytes:
        """Return the path of a directory in the destination; ``path`` is its path below the root number ``root``."""
        return os.path.join(self._roots[root].target, self._roots[root].path_below_target(path))

    def are_counts_to_be_subtracted(self, label: bytes) -> bool:
        """True if counts are to be subtracted from the totals, because they come from below a removed directory.

        ``label`` says where they come from, as ``ROOT/PATH``: the number of the root, and the path of a directory below
        the root.
        """
        return self._removed.is_count_subtracted(label)

    def replacement_tasks(self) -> Iterator[Task]:
        """Yield the tasks of the resumed job: the examined tasks (some replaced), and scans of the removed directories.

        Can be called only once.
        """
        lost = self._removed
        for (root, path), parent in lost.parents.items():
            yield lost.new_task(ScanDir(root, path, NO_DIRECTORY_IDENTITY, parent), SCAN_COST, expands=True)
        for place in self._idle:
            yield lost.new_task(FinishDir(place, None, False, -1, is_again=True), phase=Phase.FINISH)
        for task in self._tasks.pop_all():
            if lost.parents or lost.may_find_links:
                yield from decode_task(task.payload).replacement_tasks(task, lost)
            else:
                yield task

    @property
    def notices(self) -> list[str]:
        """Messages for the user: one about removed directories and one about replaced ones, if there are any."""
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


class _OpenedAncestors:
    """The directories above the current one that were opened. Their paths are beginnings of the path of the innermost
    one, and are not stored: in a deep tree, all of them together would be too long.
    """

    def __init__(self) -> None:
        self._path = b""
        self._places: list[tuple[int, Place]] = []
        """Length of the path of each directory, and the directory without its path; the innermost last."""

    @property
    def innermost(self) -> Place | None:
        """The innermost directory; None if there is none."""
        return self._places[-1][1]._replace(path=self._path) if self._places else None

    def add(self, place: Place) -> None:
        """Add a directory that lies below the innermost one."""
        self._path = place.path
        self._places.append((len(place.path), place._replace(path=b"")))

    def keep_those_containing(self, path: bytes) -> None:
        """Drop the directories that do not contain ``path``."""
        while self._places and not _is_path_in_directory(path, self._path):
            self._places.pop()
            self._path = self._path[: self._places[-1][0]] if self._places else b""


def _more_directories_text(number: int) -> str:
    """Return the words of a message that follow the path of one directory, if the message is also about ``number``
    others.
    """
    return f" and {count_with_noun(number, 'other directory', 'other directories')} are" if number else " is"


def _is_path_in_directory(path: bytes, directory: bytes) -> bool:
    """Return True if ``path`` is ``directory`` or lies below it."""
    return not directory or path == directory or path.startswith(directory + b"/")


def _unique_sorted_directories(places: ExternalSorter) -> Iterator[tuple[Place, bool]]:
    """Yield each of the sorted ``places`` once. The second value is True if only notes (tasks that bring data to a
    rank) name it.
    """
    for _, equal in groupby(places.sorted(), key=itemgetter(0)):
        packed = min(value for _, value in equal)
        yield decode_task(packed[1:]).place, bool(packed[0])


def _directories_of_task(task: TaskKind) -> Iterator[Place]:
    """Yield the directories in which a task works, including those of tasks that it contains."""
    yield from directory_places_in_value(task)
    for packed in task.carried_tasks():
        yield from _directories_of_task(packed)
