"""Brings the names (hard links) of each inode together at one rank, wherever they were found. ``HardLinkNamesNote`` and
``InodeCopiedNote`` are notes, messages in the form of short tasks; ``GatherHardLinks`` processes them.

Inodes are divided by their numbers into 64 groups, the buckets. Notes about names wait in a spool (temporary file) for
each bucket. In the phase LINK one bucket after the other is read, so that only a small part of all names is in memory
at a time. Names are sorted by path. So it does not depend on the order in which ranks found the names which of them is
copied, and which existing item is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pcopy.engine.backlog import SpoolFileBacklog
from pcopy.engine.task import Task
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.columns import unpack_names
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.incomplete_mark import find_incomplete_file_mark
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.kind import (
    DirectoryTask,
    ItemTask,
    MissingDirectories,
    NoteDiscardedOnResume,
    TaskKind,
    TaskSteps,
)
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Item, ItemCopy, Place, inode_bucket_number, unpack_numbers
from pcopy.tasks.directories.finish_dir import spawn_finish_dir_task_once
from pcopy.tasks.files.existing import find_existing_item, open_target_copy
from pcopy.tasks.links.make_links import CreateHardLinks


class FoundInodeNames(NamedTuple):
    """The names of one inode that were found and must be created.

    Fields:
        size: size of the inode in bytes.
        attempts: for each name the number of earlier attempts.
        names: directory and name of each.
    """

    size: int
    attempts: list[int]
    names: list[tuple[Place, bytes]]


class InodeBucketContents:
    """All that is known about the inodes of one bucket (group of inodes by number), when its notes are read in the
    phase LINK. Keys are (mount code, inode number).
    """

    def __init__(self) -> None:
        self.found: dict[tuple[int, int], FoundInodeNames] = {}
        """Names of an inode that were found in the source and must be created in the target."""
        self.copies: dict[tuple[int, int], list[InodeCopiedNote]] = {}
        """Notes about existing copies of an inode. The first name in a note counts as the copy, even if it was removed
        since.
        """
        self.waiting_for_name: list[ItemTask] = []
        """Tasks about an item that is copied and still has a temporary name."""


class InodeNotesByBucket(dict[int, SpoolFileBacklog]):
    """The notes that wait on one rank for the phase LINK, by the number of the bucket."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class HardLinkNamesNote(DirectoryTask, code=30, doing="recording hard links of", is_note=True):
    """Note (message in the form of a short task) about names of inodes that have several names (hard links), in one
    directory. It goes to the rank that brings together the names of each inode of the group with the number ``bucket``;
    all inodes of the note belong to that group.

    Fields:
        place: the directory.
        names: the names, joined by slashes.
        mounts, inodes, sizes: for each name the mount code (number of the file system), the inode number and the size
            in bytes, packed.
        attempt: number of earlier attempts in this run, from 0.
        bucket: number of the group of inodes.
    """

    names: bytes
    mounts: bytes
    inodes: bytes
    sizes: bytes
    attempt: int
    bucket: int

    def assigned_rank(self, ranks: int) -> int:
        return self.bucket % ranks

    def directories_written_by_retry(self) -> set[Place]:
        return {self.place}

    def run(self, rank: Rank, result: TaskResult) -> None:
        defer_note_to_link_phase(self, self.bucket, rank, result)

    def add_to_inode_bucket(self, groups: InodeBucketContents) -> bool:
        """Add the names in this note to ``groups``, each to its inode. Return True: the note has then done its work."""
        columns = (unpack_names(self.names), unpack_numbers(self.mounts), unpack_numbers(self.inodes))
        for name, mount, inode, size in zip(*columns, unpack_numbers(self.sizes), strict=True):
            found = groups.found.setdefault((mount, inode), FoundInodeNames(size, [], []))
            found.attempts.append(self.attempt)
            found.names.append((self.place, name))
        return True


class InodeCopiedNote(ItemTask, code=34, doing="recording a copy with hard links of", is_note=True):
    """Note (message in the form of a short task) that a copy of the inode of ``item`` exists. It goes to the rank that
    brings together the names (hard links) of the inode. If a resumed job finds more names, they are linked to this
    copy.

    Such names may be in a directory that could not be read, or that is created again. Each name of ``item`` leads to
    the copy, and any of them may serve to create other links. The first of them counts as the copy, even if it was
    removed since.
    """

    copy: ItemCopy

    depends_on_other_tasks = True

    def assigned_rank(self, ranks: int) -> int:
        return inode_bucket_number(self.item.inode) % ranks

    def with_reassigned_owner(self, task: Task, ranks: int) -> Task:
        return task._replace(phase=int(Phase.COPY), owner=self.assigned_rank(ranks))

    def replacement_tasks_if_directories_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield this note for a resumed job in which directories of its names were removed (``missing``), unless none
        of the names exists any more.

        The first name counts as the copy even if it was removed. For a directory that was removed, the identity becomes
        ``NO_DIRECTORY_IDENTITY``, because a directory that is created there later is another one.
        """
        if missing.names_outside_missing_directories(self.item.names):
            lost = {
                place: place._replace(target_id=NO_DIRECTORY_IDENTITY)
                for place, _ in self.item.names
                if missing.contains(place)
            }
            names = tuple((lost.get(place, place), name) for place, name in self.item.names)
            yield task._replace(payload=encode_task(self._replace(item=self.item._replace(names=names))))

    def run(self, rank: Rank, result: TaskResult) -> None:
        """If the note comes from an earlier run, keep it until the names of the inode are brought together; otherwise
        only keep it for a resumed job.

        It is not recorded as done before the end of the job. If the job is resumed, even a name that was created may
        have to be created again, because its directory was removed.
        """
        if result.id[0] < rank.job.run:
            defer_note_to_link_phase(self, inode_bucket_number(self.item.inode), rank, result)
        else:
            result.defer_task_completion()

    def add_to_inode_bucket(self, groups: InodeBucketContents) -> bool:
        """Add the copy to ``groups``, under its inode. Return False: the note must not be recorded as done, because the
        next run needs it, too.
        """
        groups.copies.setdefault((self.item.mount, self.item.inode), []).append(self)
        return False


class GatherHardLinks(NoteDiscardedOnResume, code=31, doing="gathering hard links"):
    """Task that reads all notes about the names (hard links) of one group of inodes, and spawns tasks that copy one
    name of each inode and link the others to it. ``bucket`` is the number of the group.
    """

    bucket: int

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Read all notes of the group of inodes, then spawn the tasks. No more notes for this group arrive in this
        phase.
        """
        groups = InodeBucketContents()
        backlog = rank.shared_instance(InodeNotesByBucket).pop(self.bucket)
        while backlog.count:
            for packed in backlog.pop_frame():
                if decode_task(packed.payload).add_to_inode_bucket(groups):
                    result.complete_deferred_tasks((packed.id,))
            yield None
        backlog.close()
        for waiting in groups.waiting_for_name:
            item = waiting.item
            found = groups.found.pop((item.mount, item.inode), FoundInodeNames(0, [], []))
            named = waiting._replace(item=item._replace(names=(*item.names, *sorted(found.names))))
            result.spawn_task(named, CALL_COST, phase=Phase.NAME)
        for (mount, inode), found in groups.found.items():
            _spawn_copy_or_links(rank, result, mount, inode, found, groups.copies.get((mount, inode), []))


def defer_note_to_link_phase(task: TaskKind, bucket: int, rank: Rank, result: TaskResult) -> None:
    """Keep ``task``, a note about names or a copy of an inode, on this rank until the phase LINK, with the other notes
    of the group of inodes with the number ``bucket``.

    Then its method ``add_to_inode_bucket`` adds what it says to ``InodeBucketContents``. If that returns False, the
    note is not recorded as done, and remains for the next run.
    """
    result.defer_task_completion()
    buckets = rank.shared_instance(InodeNotesByBucket)
    if bucket not in buckets:
        buckets[bucket] = SpoolFileBacklog(rank.open_spool)
        gathered = Phase.REPAIR_LINK if result.phase >= Phase.REPAIR else Phase.LINK
        result.spawn_task(GatherHardLinks(bucket), phase=max(gathered, result.phase), owner=rank.number)
    buckets[bucket].append(Task(result.id, int(Phase.LINK), encode_task(task), 0))


def _spawn_copy_or_links(
    rank: Rank, result: TaskResult, mount: int, inode: int, found: FoundInodeNames, copies: list[InodeCopiedNote]
) -> None:
    """Spawn a task for the names of one inode that were found. If a copy of the inode exists already (``copies``), the
    task links the names to it. Otherwise it copies one of them and links the others to that copy.
    """
    size, attempts, names = found
    names.sort()
    is_new = not any(attempts)  # in a later attempt the size of the inode has been counted already
    links = None
    if any(_is_copy_unsynced(rank, each, names) for each in copies):
        _add_linked_names(rank, result, copies, names)
    else:
        usable = (each for each in copies if not _is_copy_being_repaired(result, each, names))
        links = next(filter(None, (_task_linking_to_copy(rank, each, names) for each in usable)), None)
    if is_new and (
        links is None or any(_comparable_name(each) == _comparable_name(links.counted_name) for each in names)
    ):
        result.count(counts.FOUND_BYTES, size, names[0][0])
    if links is not None:
        result.spawn_task(links, len(names) * CALL_COST)
    else:
        result.spawn_copy_task(Item(mount, inode, size, tuple(names), min(attempts)))


def _comparable_name(item: tuple[Place, bytes] | None) -> tuple[tuple[int, bytes], bytes] | None:
    """Return directory and name of ``item`` in a form that can be compared: without the identities of the directory,
    which change if it is created again. Return None for None.
    """
    return (item[0].key, item[1]) if item else None


def _is_copy_being_repaired(result: TaskResult, copied: InodeCopiedNote, names: list[tuple[Place, bytes]]) -> bool:
    """Return True if ``names``, which are copied again because the copy did not verify (``--repair``), include a name
    of the existing copy: then they must not be linked to that copy.
    """
    return result.phase >= Phase.REPAIR and not {*map(_comparable_name, copied.item.names)}.isdisjoint(
        map(_comparable_name, names)
    )


def _is_copy_unsynced(rank: Rank, copied: InodeCopiedNote, names: list[tuple[Place, bytes]]) -> bool:
    """Return True if the existing copy must be copied again: its name is among ``names``, and it still has the mark of
    ``--inplace``, because its contents could not be brought to stable storage.
    """
    place, name = copy = copied.item.names[0]
    if not rank.copy_options.inplace or _comparable_name(copy) not in map(_comparable_name, names):
        return False
    try:
        existing_item = find_existing_item(rank, place, name)
        return (
            existing_item is not None
            and find_incomplete_file_mark(existing_item.directory, existing_item.name, existing_item.status) is not None
        )
    except Problem:
        return True


def _add_linked_names(
    rank: Rank, result: TaskResult, copies: list[InodeCopiedNote], names: list[tuple[Place, bytes]]
) -> None:
    """Add to ``names``, which are copied again, all other names that were linked to an earlier copy in ``copies``. They
    no longer count as hard links, and the metadata of their directories is set again later.
    """
    present = set(map(_comparable_name, names))
    for place, name in (item for copied in copies for item in copied.item.names):
        if _comparable_name((place, name)) not in present:
            present.add(_comparable_name((place, name)))
            names.append((place, name))
            result.count(counts.HARDLINKS, -1, place)
            spawn_finish_dir_task_once(rank, result, place, result.phase)
    names.sort()


def _task_linking_to_copy(
    rank: Rank, copied: InodeCopiedNote, names: list[tuple[Place, bytes]]
) -> CreateHardLinks | None:
    """Return a task that links ``names`` to the copy that the note ``copied`` describes; None if no name of the copy
    leads to its inode any more.
    """
    for place, name in copied.item.names:
        with suppress(Problem):
            close_ignoring_errors(open_target_copy(rank, place, name, copied.copy.identity)[0])
            group = copied.item._replace(names=((place, name), *names))
            return CreateHardLinks(group, copied.copy, True, copied.item.names[0])
    return None
