"""LinkNote, InodeCopied and GroupLinks: gather the names of each inode at one rank, wherever they were found.

Notes about names wait in spools, in buckets by inode number. In the phase LINK one bucket after the other is gathered,
so that only a small part of all names is in memory at a time. Names are sorted by path, so that which name is copied,
and which existing item is kept, does not depend on the order in which ranks found them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pcopy.engine.backlog import SpoolBacklog
from pcopy.engine.task import Task
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.columns import unpack_names
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.incomplete_mark import find_mark
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.codec import decode, encode
from pcopy.tasks.base.kind import DirectoryTask, ItemTask, MissingDirectories, RecreatedNote, Steps, TaskKind
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY, Item, ItemCopy, Place, bucket_of, unpack_numbers
from pcopy.tasks.directories.finish_dir import spawn_finish_once
from pcopy.tasks.files.existing import find_existing_item, open_copy
from pcopy.tasks.links.make_links import CreateHardLinks


class FoundNames(NamedTuple):
    """The names of an inode that were found, its size in bytes, and the attempt number of each note."""

    size: int
    attempts: list[int]
    names: list[tuple[Place, bytes]]


class BucketContents:
    """All that is known about the inodes of one bucket, by mount code and inode number."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, int], FoundNames] = {}
        """Names that must be created."""
        self.copies: dict[tuple[int, int], list[InodeCopiedNote]] = {}
        """Existing copies of an inode. The first name of each counts as the copy, even if it was removed since."""
        self.waiting_for_name: list[ItemTask] = []
        """Tasks with an item that is copied and waits for its name."""


class Buckets(dict[int, SpoolBacklog]):
    """The notes that wait on one rank for the phase LINK, by bucket."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class LinkNote(DirectoryTask, code=30, doing="recording hard links of", is_note=True):
    """A note with names in one directory that belong to inodes with several links, all of one bucket; ``attempt`` as in
    ``ScanNames``.
    """

    names: bytes
    mounts: bytes
    inodes: bytes
    sizes: bytes
    attempt: int
    bucket: int

    def assigned_rank(self, ranks: int) -> int:
        return self.bucket % ranks

    def written_directories(self) -> set[Place]:
        return {self.place}

    def run(self, rank: Rank, result: TaskResult) -> None:
        defer_to_bucket(self, self.bucket, rank, result)

    def add_to_group(self, groups: BucketContents) -> bool:
        """Add the names to their inodes in ``groups``; return True, since the note is then complete."""
        columns = (unpack_names(self.names), unpack_numbers(self.mounts), unpack_numbers(self.inodes))
        for name, mount, inode, size in zip(*columns, unpack_numbers(self.sizes), strict=True):
            found = groups.found.setdefault((mount, inode), FoundNames(size, [], []))
            found.attempts.append(self.attempt)
            found.names.append((self.place, name))
        return True


class InodeCopiedNote(ItemTask, code=34, doing="recording a copy with hard links of", is_note=True):
    """A note for the owner of an inode with several names: a copy exists, to which names that a resumed job finds are
    linked.

    Such names may be in a directory that could not be read, or that is created again. Any name of ``item`` may serve as
    the origin of further links. The first of them counts as the copy, even if it was removed since.
    """

    copy: ItemCopy

    depends_on_other_tasks = True

    def assigned_rank(self, ranks: int) -> int:
        return bucket_of(self.item.inode) % ranks

    def reassigned(self, task: Task, ranks: int) -> Task:
        return task._replace(phase=int(Phase.COPY), owner=self.assigned_rank(ranks))

    def tasks_without_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield the note if any of its names still exists.

        The first name counts as the copy even if it was removed. A place whose directory was removed gets the identity
        ``NOWHERE``, because a directory that is created there later is another one.
        """
        if missing.names_elsewhere(self.item.names):
            lost = {
                place: place._replace(target_id=NO_DIRECTORY) for place, _ in self.item.names if missing.contains(place)
            }
            names = tuple((lost.get(place, place), name) for place, name in self.item.names)
            yield task._replace(payload=encode(self._replace(item=self.item._replace(names=names))))

    def run(self, rank: Rank, result: TaskResult) -> None:
        """Keep the note for a resumed job, or put it into its bucket if an earlier run recorded it.

        It stays pending until the end of the job, because names may have to be created again even if nothing has
        failed.
        """
        if result.id[0] < rank.job.run:
            defer_to_bucket(self, bucket_of(self.item.inode), rank, result)
        else:
            result.defer_completion()

    def add_to_group(self, groups: BucketContents) -> bool:
        """Add the copy to ``groups``; return False, since the note is kept for the next run."""
        groups.copies.setdefault((self.item.mount, self.item.inode), []).append(self)
        return False


class GatherHardLinks(RecreatedNote, code=31, doing="gathering hard links"):
    """Gathers the notes of one bucket, and spawns tasks that copy or link the names of each inode."""

    bucket: int

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """Gather all notes of the bucket; no further notes arrive for it in this phase."""
        groups = BucketContents()
        backlog = rank.instance(Buckets).pop(self.bucket)
        while backlog.count:
            for packed in backlog.pop_frame():
                if decode(packed.payload).add_to_group(groups):
                    result.complete_deferred((packed.id,))
            yield None
        backlog.close()
        for waiting in groups.waiting_for_name:
            item = waiting.item
            found = groups.found.pop((item.mount, item.inode), FoundNames(0, [], []))
            named = waiting._replace(item=item._replace(names=(*item.names, *sorted(found.names))))
            result.spawn(named, CALL_COST, phase=Phase.NAME)
        for (mount, inode), found in groups.found.items():
            _copy_or_link(rank, result, mount, inode, found, groups.copies.get((mount, inode), []))


def defer_to_bucket(task: TaskKind, bucket: int, rank: Rank, result: TaskResult) -> None:
    """Put a note about the names of an inode into its bucket until the phase LINK.

    The ``gather`` method of ``task`` later adds its contents to ``BucketContents``. If it returns False, the note is
    not complete then, and is kept for the next run.
    """
    result.defer_completion()
    buckets = rank.instance(Buckets)
    if bucket not in buckets:
        buckets[bucket] = SpoolBacklog(rank.open_spool)
        gathered = Phase.REPAIR_LINK if result.phase >= Phase.REPAIR else Phase.LINK
        result.spawn(GatherHardLinks(bucket), phase=max(gathered, result.phase), owner=rank.number)
    buckets[bucket].append(Task(result.id, int(Phase.LINK), encode(task), 0))


def _copy_or_link(
    rank: Rank, result: TaskResult, mount: int, inode: int, found: FoundNames, copies: list[InodeCopiedNote]
) -> None:
    """Link the names to an existing copy, or have one of them copied."""
    size, attempts, names = found
    names.sort()
    is_new = not any(attempts)  # in further attempts its size has been counted already
    links = None
    if any(_is_copy_unsynced(rank, each, names) for each in copies):
        _add_linked_names(rank, result, copies, names)
    else:
        usable = (each for each in copies if not _is_repaired(result, each, names))
        links = next(filter(None, (_links_to_copy(rank, each, names) for each in usable)), None)
    if is_new and (links is None or any(_key_of_name(each) == _key_of_name(links.counted_name) for each in names)):
        result.count(counts.FOUND_BYTES, size, names[0][0])
    if links is not None:
        result.spawn(links, len(names) * CALL_COST)
    else:
        result.spawn_copy(Item(mount, inode, size, tuple(names), min(attempts)))


def _key_of_name(item: tuple[Place, bytes] | None) -> tuple[tuple[int, bytes], bytes] | None:
    """Return the directory and name, without the identities of the directory, for comparisons; None for None."""
    return (item[0].key, item[1]) if item else None


def _is_repaired(result: TaskResult, copied: InodeCopiedNote, names: list[tuple[Place, bytes]]) -> bool:
    """Return True if the copy itself is among the names that are copied again because they did not verify
    (``--repair``).
    """
    return result.phase >= Phase.REPAIR and not {*map(_key_of_name, copied.item.names)}.isdisjoint(
        map(_key_of_name, names)
    )


def _is_copy_unsynced(rank: Rank, copied: InodeCopiedNote, names: list[tuple[Place, bytes]]) -> bool:
    """Return True if the copy itself must be made again: ``--inplace`` could not bring it to storage, so it is still
    marked.
    """
    place, name = copy = copied.item.names[0]
    if not rank.options.inplace or _key_of_name(copy) not in map(_key_of_name, names):
        return False
    try:
        existing_item = find_existing_item(rank, place, name)
        return (
            existing_item is not None
            and find_mark(existing_item.directory, existing_item.name, existing_item.status) is not None
        )
    except Problem:
        return True


def _add_linked_names(
    rank: Rank, result: TaskResult, copies: list[InodeCopiedNote], names: list[tuple[Place, bytes]]
) -> None:
    """Add to ``names``, which are copied again, the names that were linked to an earlier copy; these no longer count as
    links.
    """
    present = set(map(_key_of_name, names))
    for place, name in (item for copied in copies for item in copied.item.names):
        if _key_of_name((place, name)) not in present:
            present.add(_key_of_name((place, name)))
            names.append((place, name))
            result.count(counts.HARDLINKS, -1, place)
            spawn_finish_once(rank, result, place, result.phase)
    names.sort()


def _links_to_copy(rank: Rank, copied: InodeCopiedNote, names: list[tuple[Place, bytes]]) -> CreateHardLinks | None:
    """Return a task that links ``names`` to an existing copy; None if none of the copy's names is
    that inode any more.
    """
    for place, name in copied.item.names:
        with suppress(Problem):
            close_ignoring_errors(open_copy(rank, place, name, copied.copy.identity)[0])
            group = copied.item._replace(names=((place, name), *names))
            return CreateHardLinks(group, copied.copy, True, copied.item.names[0])
    return None
