"""``RenameCopies`` and ``RenameLinkedCopy`` give copies that are complete and on stable storage their final names,
without replacing anything that may not be replaced.

With ``--existing skip``, ``newer`` and ``fail``, copies have temporary names until the phase NAME. So a copy is
complete and on stable storage before it has its final name, and the task that names it is recorded with the identity of
the copy. Any other item under a final name, in this run or in a later one, is therefore not the job's own. These tasks
decide whether an item counts as copied; ``pcopy.tasks.files.naming`` renames the copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pcopy.engine.task import Task
from pcopy.fsio.backend.columns import pack_names, unpack_names
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import MetadataProblem, PackedProblem, Problem
from pcopy.fsio.source import FileContentVersion
from pcopy.fsio.temporary import remove_item_if_present, run_and_rank_in_temporary_name
from pcopy.tasks.base.actions import UNTIMED_NEW_COPY, TimedCopyAction
from pcopy.tasks.base.attempts import is_retried
from pcopy.tasks.base.dividing import portion_slices, split_names
from pcopy.tasks.base.item_columns import ItemColumns, split_digests, split_versions, unpack_content_infos
from pcopy.tasks.base.kind import DivisibleTask, ItemTask, MissingDirectories, TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, FILES_PER_SLICE, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import (
    NO_DIRECTORY_IDENTITY,
    ContentInfo,
    FailedName,
    Item,
    ItemCopy,
    Place,
    UnnamedCopy,
    inode_bucket_number,
    pack_numbers,
    unpack_numbers,
)
from pcopy.tasks.files.existing import find_existing_item
from pcopy.tasks.files.naming import CopyNamer, is_same_copy, remove_unnamed_copy
from pcopy.tasks.files.whole_file import ItemResult
from pcopy.tasks.links.copy_anew import retry_of_incomplete_copy, tasks_to_recopy_linked_names
from pcopy.tasks.links.group_links import InodeBucketContents, defer_note_to_link_phase
from pcopy.tasks.links.make_links import copy_made_by_this_host, report_all_names_failed, spawn_link_task
from pcopy.tasks.verify.read_items import count_skipped_or_spawn_read


class RenameCopies(DivisibleTask, code=18, doing="naming copies of", is_note=False):
    """Task that gives copies in one directory their final names. The copies are complete and have temporary names.
    Value number i of each column belongs to name number i.

    Fields:
        place: the directory.
        names: names of the items in the source, joined by slashes.
        temporaries: temporary names of the copies, joined by slashes.
        inodes, marks: inode numbers, and file handles or times of birth (``pcopy.fsio.identity``), that identify the
            copies.
        kinds, sizes, versions, digests: contents of the copies, in packed columns (``ItemColumns``).
        attempt: number of earlier attempts in this run, from 0.
        writer: number of the host that wrote the copies.
        durations: duration of each copy in nanoseconds, packed; empty if durations are not reported.
    """

    temporaries: bytes
    inodes: bytes
    marks: tuple[bytes, ...]
    kinds: bytes
    sizes: bytes
    versions: bytes
    digests: bytes
    attempt: int
    writer: int
    durations: bytes = b""

    columns = ("inodes", "kinds", "sizes", "digests", "durations")

    def divide(self, portions: int) -> list[RenameCopies]:
        at = portion_slices(self.item_count, portions)
        versions = split_versions(self.versions, self.item_count, at)
        parts = zip(super().divide(portions), at, split_names(self.temporaries, at), versions, strict=True)
        return [
            part._replace(temporaries=temporaries, marks=self.marks[each], versions=version)
            for part, each, temporaries, version in parts
        ]

    def unnamed_copies(self) -> list[UnnamedCopy]:
        """Return the copies that get their final names."""
        return [*map(UnnamedCopy, unpack_names(self.temporaries), unpack_numbers(self.inodes), self.marks)]

    def remove_temporary_files(self, rank: Rank, since: int) -> None:
        for made in self.unnamed_copies():
            if run_and_rank_in_temporary_name(made.temporary)[0] >= since:
                remove_unnamed_copy(rank, self.place, made)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Give the copies their names one by one. A copy that gets none, because an existing item is kept or an error
        occurs, is removed.
        """
        place, naming = self.place, None
        names, sizes = unpack_names(self.names), unpack_numbers(self.sizes)
        digests = (
            split_digests(self.digests, rank.job_item_hasher.algorithm.digest_size)
            if rank.computes_digests
            else [b""] * len(names)
        )
        items = zip(
            names, self.unnamed_copies(), unpack_content_infos(self.kinds, sizes, self.versions, digests), strict=True
        )
        writers = bytes((self.writer,))
        took = unpack_numbers(self.durations) if self.durations else array("Q", bytes(8 * len(names)))
        for index, (name, item, known) in enumerate(items):
            try:
                naming = naming or CopyNamer(rank, place)
                if naming.give_final_name(name, item, known):
                    result.item_recorder.note_differences(place, name, naming.differences)
                    result.count_copied_item(
                        place, name, known, writers=writers, how=naming.action_of_copy(took[index])
                    )
                else:
                    remove_unnamed_copy(rank, place, item, result)
                    count_skipped_or_spawn_read(rank, result, place, name, known)
            except Problem as problem:
                remove_unnamed_copy(rank, place, item, result)
                if is_retried(
                    problem, self.attempt
                ):  # the temporary file is missing: an earlier run named the copy, which was removed since
                    result.examine_names_again(place, name, self.attempt + 1)
                else:
                    result.count_item_as_failed(place, name, problem, known.size, may_exist=True)
            if not index % FILES_PER_SLICE:
                yield None


class RenameLinkedCopy(ItemTask, code=19, doing="naming the copy of", is_note=False):
    """Task that gives the copy of an inode the first of its names that is free; the other names become hard links to
    it.

    Fields:
        item: the item with all of its names.
        unnamed_copy: the copy, which has a temporary name.
        known: type, size, digest and version of its contents.
        chunk: size in bytes of the chunks in which the copy was written; 0 if one task wrote it.
        writers: number of the host that wrote each chunk, one byte each.
        metadata_problem: the error because of which not all metadata could be set, packed; or None.
        duration: duration of the copy in nanoseconds.
    """

    unnamed_copy: UnnamedCopy
    known: ContentInfo
    chunk: int
    writers: bytes
    metadata_problem: PackedProblem | None = None
    duration: int = 0

    def remove_temporary_files(self, rank: Rank, since: int) -> None:
        if run_and_rank_in_temporary_name(self.unnamed_copy.temporary)[0] >= since:
            remove_unnamed_copy(rank, self.item.place, self.unnamed_copy)

    def add_to_inode_bucket(self, groups: InodeBucketContents) -> bool:
        """Add this task to ``groups``, where all names of an inode are brought together. There it gets the other names
        that a resumed job has found. Return True: the recorded task is then done, because a new one replaces it.
        """
        groups.waiting_for_name.append(self)
        return True

    def replacement_tasks_if_directories_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        return tasks_to_recopy_linked_names(missing, self.item, self.unnamed_copy, self.known)

    def tasks_regathering_links(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield this task for a resumed job that may find more names of the inode: in the phase COPY, and for the rank
        that brings the names together. There it waits until they are found. The item itself was copied already.
        """
        yield task._replace(phase=int(Phase.COPY), owner=inode_bucket_number(self.item.inode))

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Give the copy the first name that can be given. If an existing item under a name is kept, the name counts as
        skipped; if it cannot be replaced, the name fails.

        A copy gets a name only in its own directory (``CopyNamer``). So if the next name is in another directory, the
        item is copied again there. In a resumed job that looks for other names of any inode, the task first waits for
        these.
        """
        if result.phase < Phase.NAME:
            defer_note_to_link_phase(self, inode_bucket_number(self.item.inode), rank, result)
            return
        item, known = self.item, self.known
        names, first, next_index, how = item.names, -1, len(item.names), UNTIMED_NEW_COPY
        failed: list[FailedName] = []
        for index, (place, name) in enumerate(names):
            if place.key != item.place.key:
                first = _index_of_linked_name(self, rank, index)
                next_index = index
                break
            try:
                naming = CopyNamer(rank, place)
                if naming.give_final_name(name, self.unnamed_copy, known):
                    first, next_index, how = index, index + 1, naming.action_of_copy(self.duration)
                    result.item_recorder.note_differences(place, name, naming.differences)
                    break
                count_skipped_or_spawn_read(rank, result, place, name, known)
            except Problem as problem:
                failed.append((place, name, problem.problem_as_tuple))
            yield None
        again = [each for each in failed if is_retried(Problem.from_packed_tuple(each[2]), item.attempt)]
        lasting = (*item.failed_names, *(each for each in failed if each not in again))
        tried = [(place, name) for place, name, _ in again]
        if first >= 0:
            links = (*(each for each in names[next_index:] if each != names[first]), *tried)
            _handle_named_copy(
                self, item._replace(names=(names[first], *links), failed_names=lasting), how, rank, result
            )
            return
        remove_unnamed_copy(rank, item.place, self.unnamed_copy, result)
        remaining = item._replace(names=(*tried, *names[next_index:]), failed_names=lasting)
        if again:
            result.spawn_copy_task(remaining._replace(attempt=item.attempt + 1), phase=result.phase)
        elif remaining.names:
            result.spawn_copy_task(remaining)
        else:
            report_all_names_failed(result, item, lasting, touched=True)


def _index_of_linked_name(task: RenameLinkedCopy, rank: Rank, since: int) -> int:
    """Return the index of the first name, from the index ``since`` on, that already leads to the copy; -1 if there is
    none.

    An earlier run may have given the copy its first name and linked another name to it, and stopped before that was
    recorded. If another program then replaced the first name, the other name would be taken for an item of the user
    without this search.
    """
    if rank.job.run == 1:
        return -1
    for index, (place, name) in enumerate(task.item.names[since:], since):
        with suppress(Problem):
            present = find_existing_item(rank, place, name)
            if present is not None and is_same_copy(present, task.unnamed_copy, task.known):
                return index
    return -1


def _handle_named_copy(
    task: RenameLinkedCopy, item: Item, how: TimedCopyAction, rank: Rank, result: TaskResult
) -> None:
    """Count the item, whose copy has just got the first name of ``item``, as copied, and have its other names created
    as hard links. ``how`` says whether the copy replaced an item, and how long it took.
    """
    known, made = task.known, task.unnamed_copy
    shortcoming = None if task.metadata_problem is None else MetadataProblem.from_packed_tuple(task.metadata_problem)
    if shortcoming is None:
        chunk, writers = task.chunk, task.writers
        result.count_copied_item(
            item.place, item.name, known, is_only_name=not item.links, chunk=chunk, writers=writers, how=how
        )
    elif not (item.links or item.failed_names):
        retry = retry_of_incomplete_copy(rank, item._replace(attempt=max(1, item.attempt)), made)
        result.count_item_as_failed(item.place, item.name, shortcoming, item.size, retry=retry, may_exist=True)
        return
    copy = ItemCopy(
        ItemIdentity(item.place.target_id.mount_code, made.inode, made.mark), known, task.chunk, task.writers
    )
    spawn_link_task(rank, result, item, copy, metadata_problem=shortcoming)


class UnnamedCopies:
    """Copies that one task has created in one directory under temporary names. When the task ends, it spawns a task
    that gives them their final names in a later phase.
    """

    def __init__(self, rank: Rank, place: Place, attempt: int) -> None:
        self._rank = rank
        self._place = place
        self._attempt = attempt
        self._temporaries: list[bytes] = []
        self._items: list[UnnamedCopy] = []
        self._known = ItemColumns()
        self._took = array("Q")

    def add_temporary_names(self, temporaries: list[bytes]) -> None:
        """Remember temporary names under which files may be created, so that these files are removed if the task fails
        before the files are added.
        """
        self._temporaries += filter(None, temporaries)

    def add(self, result: TaskResult, item: Item, item_result: ItemResult) -> None:
        """Add one copy, whose outcome is ``item_result``. If not all of its metadata could be set, it gets a naming
        task of its own, which also reports the error.
        """
        made, known, shortcoming = item_result.unnamed, item_result.known, item_result.metadata_problem
        assert made is not None
        self._temporaries.append(made.temporary)
        if shortcoming is not None:
            spawn_naming_task(
                result,
                item,
                made,
                copy_made_by_this_host(self._rank, NO_DIRECTORY_IDENTITY, known),
                metadata_problem=shortcoming,
            )
            return
        self._items.append(made)
        self._took.append(item_result.how.nanoseconds)
        self._known.add_item(item.name, known)

    def add_file(
        self, name: bytes, item: UnnamedCopy, version: FileContentVersion, size: int, digest: bytes, took: int
    ) -> None:
        """Add one regular file whose values are given one by one.

        Args:
            name: name in the source.
            item: temporary name, inode number and mark of the copy.
            version: version of the source.
            size: size in bytes.
            digest: digest of the contents, or empty.
            took: duration of the copy in nanoseconds.
        """
        self._items.append(item)
        self._took.append(took)
        self._known.add_file(name, version, size, digest, 0)

    @contextmanager
    def spawn_naming_task_at_end(self, result: TaskResult) -> Iterator[None]:
        """Context manager: at the end of the block, spawn the task that names all copies that were added within it. If
        the block is left by an exception, remove the copies.

        An exception means that the task is closed or that the rank cannot continue.
        """
        try:
            yield
            if self._items:
                temporaries, inodes, marks = zip(*self._items, strict=True)
                made = pack_names(temporaries), pack_numbers([*inodes]), marks
                known, host = self._known, self._rank.hosts.this_host
                took = self._took.tobytes() if result.item_recorder.is_recording else b""
                task = RenameCopies(
                    self._place, known.packed_names, *made, *known.packed_columns, self._attempt, host, took
                )
                result.spawn_task(task, len(marks) * CALL_COST // 4, phase=max(Phase.NAME, result.phase))
        except BaseException:
            with suppress(Problem):  # no error if the directory was removed
                target = self._rank.open_target_directory(self._place)
                for temporary in self._temporaries:
                    remove_item_if_present(target, temporary)
            raise


def spawn_naming_task(
    result: TaskResult,
    item: Item,
    made: UnnamedCopy,
    copy: ItemCopy,
    *,
    metadata_problem: MetadataProblem | None = None,
    duration_ns: int = 0,
) -> None:
    """Spawn the task that gives a copy its final name in the phase NAME, and then has its other names (hard links)
    created.

    Args:
        item: the item with all of its names.
        made: the copy, which still has a temporary name.
        copy: type, size, digest and version of the contents, and who wrote them.
        metadata_problem: the error because of which not all metadata could be set, or None.
        duration_ns: duration of the copy in nanoseconds.
    """
    lacks = None if metadata_problem is None else metadata_problem.problem_as_tuple
    task = RenameLinkedCopy(item, made, copy.known, copy.chunk, copy.writers, lacks, duration_ns)
    result.spawn_task(task, CALL_COST, phase=max(Phase.NAME, result.phase))
