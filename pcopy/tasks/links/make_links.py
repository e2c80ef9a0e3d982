"""``CreateHardLinks`` creates the names of an inode, except the first one, as hard links to the copy of the first one.

The first name is the representative of the inode: it is copied. If it cannot be copied, it has failed, and the next
name becomes the first one. Names that failed are reported once the other names are copied or linked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import nullcontext, suppress

from pcopy.engine.task import Task
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.new_file import rename_to_final_name
from pcopy.fsio.nodes import proc_path_of_descriptor
from pcopy.fsio.problem import HARD_LINK_UNSUPPORTED_ERRNOS, MetadataProblem, Problem, errors_as_problem
from pcopy.fsio.retries import NOTHING_DONE_ERRNOS, call_with_retries
from pcopy.fsio.source import FileContentVersion, status_of_open_item
from pcopy.fsio.temporary import remove_item_if_present
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK_TYPE_BYTE, DifferingProperty, TimedCopyAction
from pcopy.tasks.base.attempts import fail_or_retry, is_retried
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.dividing import portion_slices
from pcopy.tasks.base.hashing import SOCKET_TYPE_BYTE, item_type_byte
from pcopy.tasks.base.kind import ItemTask, MissingDirectories, TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import ContentInfo, FailedName, FileToRead, Item, ItemCopy, Place, UnnamedCopy
from pcopy.tasks.files.existing import (
    ExistingItem,
    item_status_or_none,
    may_have_incomplete_mark,
    open_target_copy,
    prepare_new_name,
    target_status,
)
from pcopy.tasks.files.naming import CopyNamer, remove_unnamed_copy
from pcopy.tasks.links.copy_anew import retry_of_incomplete_copy, tasks_to_recopy_linked_names
from pcopy.tasks.verify.read_items import count_skipped_or_spawn_read, spawn_read_task

MAX_NAMES_OF_DIVIDED_TASK = 1000
"""Number of names up to which the links to one copy are created by several tasks. Each file system permits that many
names of an inode (NTFS 1,024, ext4 65,000). If several tasks met the limit (EMLINK), each would copy the inode again.
"""

_TOO_MANY_LINKS_WARNING = (
    "the file system permits no more hard links to this file: its other names become hard links to a second copy"
)
LINK_REFUSED_WARNING = (
    "the file system refuses this hard link: the name is a copy of its own"
    " (--no-preserve links makes such copies without a warning)"
)
UNIDENTIFIED_COPY_WARNING = (
    "its other names (hard links) become copies: the file system does not identify files for certain, and others may"
    " write in this directory (--no-preserve links makes such copies without a warning)"
)


class CreateHardLinks(ItemTask, code=33, doing="linking", is_note=False):
    """Task that creates the names of ``item``, except the first one, as hard links to the ``copy``, which has the first
    name.

    Fields:
        item: the item with all of its names. If it has ``failed_names``, the first of them is the first name itself,
            because not all of its metadata could be set.
        copy: the copy: its inode and contents.
        is_first_name_finished: True if another task has finished the first name: it has recorded the copy for a resumed
            job, and has it verified. Then this task does so for the other names only.
        counted_name: the name that was counted as the copy, if it is not the first name; else None. It has been removed
            since, and may be among the names to be created.
    """

    copy: ItemCopy
    is_first_name_finished: bool
    counted_name: tuple[Place, bytes] | None = None

    @property
    def item_count(self) -> int:
        """Number of names to be created; 0 if names have failed, because these are reported together, and 0 if the file
        system may not permit that many names (``MAX_NAMES_OF_DIVIDED_TASK``).
        """
        names = len(self.item.names)
        return 0 if self.item.failed_names or names > MAX_NAMES_OF_DIVIDED_TASK else names - 1

    @property
    def estimated_operations(self) -> int:
        return self.operations_per_item * max(1, len(self.item.names) - 1)

    def divide(self, portions: int) -> list[CreateHardLinks]:
        """Return tasks that create a part of the names each. The first of them also finishes the first name."""
        first, *others = self.item.names
        return [
            self._replace(
                item=self.item._replace(names=(first, *others[cut])),
                is_first_name_finished=self.is_first_name_finished or cut.start > 0,
            )
            for cut in portion_slices(len(others), portions)
        ]

    def replacement_tasks(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        return (
            self.replacement_tasks_if_directories_missing(task, missing)
            if any(map(missing.contains, self.contained_directory_places()))
            else self._task_and_copy_note(task, missing)
        )

    def replacement_tasks_if_directories_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield the tasks that a resumed job runs instead of this one if directories of its names were removed
        (``missing``).

        If the directory of the copy was removed, or if a link that was created and not recorded could be taken for a
        file of the user, the names are collected and copied again. Otherwise the links in the remaining directories are
        created.
        """
        item = self.item
        first, *further_names = item.names
        is_first_lost = missing.contains(first[0])
        # Links that were created and not recorded would be taken for files of the user.
        if missing.keeps_existing and (item.failed_names or is_first_lost):
            return tasks_to_recopy_linked_names(missing, item, self.copy.identity, self.copy.known)
        if (
            is_first_lost
        ):  # the copy was removed with its directory; a note about its other names, if it has any, remains
            return iter(missing.tasks_resending_link_names(item, further_names))
        failed = tuple(each for each in item.failed_names if not missing.contains(each[0]))
        remaining = self._replace(
            item=item._replace(
                names=(first, *missing.names_outside_missing_directories(further_names)), failed_names=failed
            )
        )
        return (
            remaining._task_and_copy_note(task, missing)
            if len(remaining.item.names) > 1 or failed or not self.is_first_name_finished
            else iter(())
        )

    def _task_and_copy_note(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield this task for a resumed job, and a note (message in the form of a short task) which says that the copy
        exists. Because of the note, names of the inode that the resumed job still finds are linked to the copy.
        """
        yield task._replace(payload=encode_task(self))
        if not (self.is_first_name_finished or self.item.failed_names):
            yield from missing.tasks_reporting_copied_inode(self.item._replace(names=self.item.names[:1]), self.copy)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Create all names but the first as hard links to the copy. The copy is kept open, so that no other item can
        take its place meanwhile.
        """
        first, *further_names = self.item.names
        linked, failed = [first], list(self.item.failed_names)
        copy_fd, problem_met, reason = -1, None, ""
        try:
            copy_fd, is_known = self._open_copy_by_any_name(rank)
            before = status_of_open_item(copy_fd)
            if not is_known:
                reason = UNIDENTIFIED_COPY_WARNING
        except Problem as problem:
            if (
                rank.names_late
            ):  # the user has replaced the copy: the user's file is kept, and the other names get another copy
                reason = "another program has replaced the copy: its other names (hard links) get another copy"
            else:
                problem_met = problem
        if reason and further_names:
            (result.warn_once if reason == UNIDENTIFIED_COPY_WARNING else result.warn_about_item)(*first, reason)
            self._spawn_copy_of_names(result, further_names)
            further_names = []
        refused: list[tuple[Place, bytes]] = []
        with nullcontext() if copy_fd < 0 else closing_descriptor(copy_fd):
            for index, (place, name) in enumerate(further_names):
                try:
                    if problem_met is not None:
                        raise problem_met
                    if self._create_and_count_link(rank, result, copy_fd, before, place, name):
                        linked.append((place, name))
                except Problem as problem:
                    if problem.operation == "link" and problem.errno in HARD_LINK_UNSUPPORTED_ERRNOS:
                        refused.append((place, name))
                        if problem.errno == errno.EMLINK:
                            refused += further_names[index + 1 :]
                            reason = _TOO_MANY_LINKS_WARNING
                            break
                    elif failed:
                        failed.append((place, name, problem.problem_as_tuple))
                    else:
                        alone = self._replace(
                            item=self.item._replace(names=(first, (place, name))), is_first_name_finished=True
                        )
                        result.count_item_as_failed(place, name, problem, retry=alone)
                yield None
            if refused and reason:  # the names are linked to a second copy
                result.warn_about_item(*first, reason)
                self._spawn_copy_of_names(result, refused)
            elif refused:
                self._copy_names_that_cannot_be_linked(rank, result, copy_fd, refused)
        if failed:
            self._report_failed_link_group(rank, result, linked, failed)
            return
        if len(linked) > 1 or not self.is_first_name_finished:
            names = tuple(dict.fromkeys((self.counted_name or first, *linked)))
            result.record_copied_inode(self.item._replace(names=names), self.copy)
        if rank.copy_options.verify and self.copy.known.digest and len(linked) > self.is_first_name_finished:
            self._spawn_verification(rank, result, tuple(linked[self.is_first_name_finished :]))

    def _spawn_verification(self, rank: Rank, result: TaskResult, names: tuple[tuple[Place, bytes], ...]) -> None:
        """Spawn the task that reads the copy back and checks that all of ``names`` are hard links to it."""
        group, (made, known, chunk, writers) = self.item._replace(names=names), self.copy
        is_link = self.is_first_name_finished and not self._is_counted_as_copy(*names[0])
        counter = counts.HARDLINKS if is_link else counts.copied_counter(known.kind)
        contents = FileToRead(*names[0], known, False, 0, counter, chunk, writers, group)
        from pcopy.tasks.verify.verify_items import VerifyLinks

        verify = VerifyLinks(contents, made.inode)
        for number, (place, _) in enumerate(names):
            result.count_items_to_verify(1, 0 if number else known.size, place)
        result.spawn_task_on_other_host(verify, known.size, writers[0], phase=result.verification_phase)

    def _open_copy_by_any_name(self, rank: Rank) -> tuple[int, bool]:
        """Open the copy, and return an O_PATH descriptor, and True if the open item is certainly the copy. Raise
        ``Problem`` on failure.

        Usually the first name is opened. In a resumed job with ``--existing newer``, ``skip`` or ``fail``, all names
        are tried: if another program has replaced the first name, a name that an earlier run has linked to the copy
        would otherwise be taken for an item of the user.
        """
        for place, name in self.item.names if rank.names_late and rank.job.run > 1 and self.copy.identity.mark else ():
            with suppress(Problem):
                return open_target_copy(rank, place, name, self.copy.identity)
        return open_target_copy(rank, *self.item.names[0], self.copy.identity)

    def _spawn_copy_of_names(self, result: TaskResult, names: list[tuple[Place, bytes]]) -> None:
        """Have the first of ``names`` copied, and the others created as hard links to that copy."""
        result.spawn_copy_task(self.item._replace(names=tuple(names), failed_names=()))

    def _copy_names_that_cannot_be_linked(
        self, rank: Rank, result: TaskResult, copy_fd: int, refused: list[tuple[Place, bytes]]
    ) -> None:
        """Handle names for which link(2) was refused: warn the user, and have them copied.

        If hard links to the copy are possible in its own directory, the refused names lie in another project, subvolume
        or mount: then one of them is copied, and the others are linked to that copy where that is possible. Otherwise
        each becomes a copy of its own.

        Args:
            copy_fd: descriptor of the copy.
            refused: directories and names of the links that were refused.
        """
        for place, name in refused:
            result.warn_once(place, name, LINK_REFUSED_WARNING)
        if _can_create_hard_link(rank, copy_fd, self.item.place):
            self._spawn_copy_of_names(result, refused)
        else:
            for each in refused:
                self._spawn_copy_of_names(result, [each])

    def _is_counted_as_copy(self, place: Place, name: bytes) -> bool:
        """Return True if this name was counted as the copy (``counted_name``), not as a hard link."""
        return self.counted_name is not None and (place.key, name) == (self.counted_name[0].key, self.counted_name[1])

    def _report_failed_link_group(
        self, rank: Rank, result: TaskResult, linked: list[tuple[Place, bytes]], failed: list[FailedName]
    ) -> None:
        """Report the failure of an inode some of whose metadata could not be set: all names in ``failed``, of which the
        first is the first name of the item.

        A resumed job copies and links all names again, including those in ``linked``, which were created and counted.
        """
        item = self.item
        names = (*linked, *((place, name) for place, name, _ in failed[1:]))
        again = item._replace(names=names, attempt=1, failed_names=())
        retry = retry_of_incomplete_copy(rank, again, self.copy.identity) if rank.names_late else again
        result.count_all_names_as_failed(failed, item.size, retry, may_exist=True)
        for place, _ in linked[1:]:
            result.record_link_to_repeat(place)

    def _create_and_count_link(
        self, rank: Rank, result: TaskResult, copy_fd: int, before: os.stat_result, place: Place, source_name: bytes
    ) -> bool:
        """Create one hard link to the copy and count it, or count an existing item as skipped. Return True if the link
        was created. Raise ``Problem`` on failure.

        Args:
            copy_fd: descriptor of the copy.
            before: status of the copy when the task began. In a resumed job an existing link to the copy is taken for
                the job's own only if this status shows a change since an earlier run began. (Each link that this task
                creates changes the ctime of the copy.)
            place, source_name: directory of the link, and its name in the source.
        """
        target, name = rank.open_target_directory(place), rank.target_name(place, source_name)
        present = item_status_or_none(target, name)
        if present is not None and result.item_recorder.is_recording:
            note_differences_of_link(rank, result, place, source_name, status_of_open_item(copy_fd), present)
        if rank.names_late:
            if not self._link_without_replacing(rank, result, copy_fd, place, source_name, present):
                count_skipped_or_spawn_read(rank, result, place, source_name, self.copy.known)
                return False
        elif present is None:
            _create_link(copy_fd, target, name)
        else:
            like = status_of_open_item(copy_fd)
            linked = (present.st_dev, present.st_ino) == (like.st_dev, like.st_ino)
            existing = ExistingItem(rank, place, target, name, present)
            existing.refuse_name_collision()
            if not (linked and rank.job.run > 1 and rank.may_be_from_earlier_run(place, before)):
                if linked or not may_replace_by_link(existing, like):
                    count_skipped_or_spawn_read(rank, result, place, source_name, self.copy.known)
                    return False
                if rank.options.sequential and not _can_create_hard_link(rank, copy_fd, place):
                    raise Problem("link", errno.EOPNOTSUPP)  # raised before the existing item is removed
                temporary = prepare_new_name(rank, target, name, present, like)
                _create_link(copy_fd, target, temporary)
                try:
                    existing.back_up_item(like)
                    if temporary != name:
                        rename_to_final_name(
                            target,
                            temporary,
                            name,
                            like.st_ino,
                            present,
                            has_sidecar=may_have_incomplete_mark(rank, present),
                        )
                except Problem:
                    remove_item_if_present(target, temporary)
                    raise
        rank.record_write_success()
        counter = (
            counts.copied_counter(self.copy.known.kind)
            if self._is_counted_as_copy(place, source_name)
            else counts.HARDLINKS
        )
        result.count(counter, 1, place)
        size = self.copy.known.size if counter == counts.FILES else 0
        if counter == counts.FILES:
            result.count(counts.BYTES, size, place)
        kind = HARD_LINK_TYPE_BYTE if counter == counts.HARDLINKS else self.copy.known.kind
        result.item_recorder.record_item_outcome(
            TimedCopyAction.action_given_existing_item(present).action, place, source_name, kind, size
        )
        if self.copy.known.digest:
            result.collect_digest(place, source_name, self.copy.known, counter, verify=False)
        elif (
            (rank.collects_signature_entries or rank.verifies_kept_items)
            and self.copy.known.kind != SOCKET_TYPE_BYTE
            and not self.item.failed_names
        ):
            spawn_read_task(result, place, source_name, self.copy.known, counter)
        return True

    def _link_without_replacing(
        self,
        rank: Rank,
        result: TaskResult,
        copy_fd: int,
        place: Place,
        source_name: bytes,
        present: os.stat_result | None,
    ) -> bool:
        """Create one hard link to the copy, with ``--existing newer``, ``skip`` or ``fail``. Return False if an
        existing item must be kept instead. Raise ``Problem`` on failure.

        Args:
            copy_fd: descriptor of the copy.
            place, source_name: directory of the link, and its name in the source.
            present: status of the existing item of that name, or None.
        """
        target, name = rank.open_target_directory(place), rank.target_name(place, source_name)
        if present is None:
            try:
                _create_link(copy_fd, target, name)
                return True
            except Problem as problem:
                if problem.errno != errno.EEXIST:
                    raise
        item = UnnamedCopy(rank.temporary_names.next_name(), self.copy.identity.inode, self.copy.identity.mark)
        _create_link(copy_fd, target, item.temporary)
        named = False
        try:
            named = CopyNamer(rank, place).give_final_name(source_name, item, self.copy.known)
        finally:
            if not named:
                remove_unnamed_copy(rank, place, item, result)
        return named


def may_replace_by_link(existing: ExistingItem, like: os.stat_result) -> bool:
    """Return True if an existing file that is no hard link to the copy may be replaced by one. With ``--existing
    changed`` it always may, unless this job has created the directory; otherwise the rules for copies decide.

    Args:
        existing: the existing file.
        like: status of the copy.
    """
    if existing.rank.copy_options.existing == "changed" and not existing.place.is_new:
        return True
    return existing.may_be_replaced(like)


def note_differences_of_link(
    rank: Rank, result: TaskResult, place: Place, name: bytes, like: os.stat_result, present: os.stat_result
) -> None:
    """Note what differs between an existing item and the item to which a hard link replaces it.

    Args:
        place, name: directory of the link, and its name in the source.
        like, present: status of the item to which the link leads, and of the existing item.
    """
    from pcopy.tasks.files.differences import differences_of_status

    differences = differences_of_status(rank, like, present)
    if not differences & DifferingProperty.TYPE:
        differences |= DifferingProperty.LINK
    result.item_recorder.note_differences(place, name, differences)


def _create_link(copy_fd: int, target: int, name: bytes) -> None:
    """Create ``name`` in the open directory ``target`` as a hard link to the open item ``copy_fd``. Raise ``Problem``
    on failure.

    The link is created through /proc/self/fd, because AT_EMPTY_PATH requires CAP_DAC_READ_SEARCH.
    """
    with errors_as_problem("link"):
        call_with_retries(
            lambda: os.link(proc_path_of_descriptor(copy_fd), name, dst_dir_fd=target, follow_symlinks=True),
            NOTHING_DONE_ERRNOS,
        )


def _can_create_hard_link(rank: Rank, copy_fd: int, place: Place) -> bool:
    """Return True if a hard link to the open item ``copy_fd`` can be created in the target directory of ``place``. To
    find that out, a link is created under a temporary name and removed.
    """
    temporary = rank.temporary_names.next_name()
    try:
        target = rank.open_target_directory(place)
        _create_link(copy_fd, target, temporary)
        remove_item_if_present(target, temporary)
    except Problem:
        return False
    return True


def copy_made_by_this_host(rank: Rank, made: ItemIdentity, known: ContentInfo) -> ItemCopy:
    """Return the ``ItemCopy`` for a copy that this host has just written as a whole, or has found in the target.
    ``made`` is the identity of its inode, ``known`` what it contains.
    """
    return ItemCopy(made, known, 0, bytes((rank.hosts.this_host,)))


def handle_first_name_failure(rank: Rank, result: TaskResult, item: Item, problem: Problem) -> None:
    """Record that the first name of ``item`` has failed with ``problem``, and have its next name copied instead."""
    failed = retry_or_collect_failed_names(rank, result, item, problem)
    if failed is not None:
        copy_next_name(result, item, failed)


def retry_or_collect_failed_names(
    rank: Rank, result: TaskResult, item: Item, problem: Problem
) -> tuple[FailedName, ...] | None:
    """Decide what is done after the first name of ``item`` failed with ``problem``. If its next name is to be copied
    instead, return all names that have failed so far, with this one. Otherwise spawn the tasks by which all names are
    tried again or linked, and return None.

    If the inode changes while it is copied, it is tried again with all of its names together: a name that was copied
    separately would not be a hard link.
    """
    # If copies are named late (``rank.names_late``), a copy without all of its metadata has no final name yet.
    made = problem.identity if isinstance(problem, MetadataProblem) and not rank.names_late else None
    present = target_status(rank, *item.names[0]) if made is not None else None
    if made is not None and present is not None:  # the copy exists under its final name, without some of its metadata
        known = ContentInfo(
            item_type_byte(present), item.size, b"", FileContentVersion(item.inode, item.size, 0, 0)
        )  # the digest is empty: the copy is not verified
        spawn_link_task(rank, result, item, copy_made_by_this_host(rank, made, known), metadata_problem=problem)
        return None
    is_again = is_retried(problem, item.attempt)
    if is_again and item.links and _has_same_inode(rank, item):
        result.spawn_copy_task(item._replace(attempt=item.attempt + 1), phase=max(Phase.LINK, result.phase))
        return None
    if is_again or not (item.failed_names or item.links):
        fail_or_retry(result, item.place, item.name, problem, item.attempt, item.size)
        return item.failed_names
    return (*item.failed_names, (item.place, item.name, problem.problem_as_tuple))


def copy_next_name(result: TaskResult, item: Item, failed: tuple[FailedName, ...]) -> None:
    """Have the next name of ``item`` copied. If there is none, report all names that have ``failed``."""
    if item.links:
        result.spawn_copy_task(item._replace(names=item.links, failed_names=failed))
    elif failed:
        touched = not all(
            result.has_created_nothing(place, Problem.from_packed_tuple(problem)) for place, _, problem in failed
        )
        report_all_names_failed(result, item, failed, touched=touched)


def report_all_names_failed(result: TaskResult, item: Item, failed: tuple[FailedName, ...], *, touched: bool) -> None:
    """Report that all names of an inode have failed (``failed``). A resumed job tries them together, so that they
    become hard links to each other. ``touched`` is True if something may have been created for them.
    """
    names = tuple((place, name) for place, name, _ in failed)
    together = item._replace(names=names, attempt=max(1, item.attempt), failed_names=())
    retry = RetryMode.EXAMINE_AGAIN if len(names) == 1 else together
    result.count_all_names_as_failed(failed, item.size, retry, may_exist=touched)


def _has_same_inode(rank: Rank, item: Item) -> bool:
    """Return True if the first name of ``item`` still leads to the same inode in the source."""
    try:
        return rank.source_item_status(item.place, item.name).st_ino == item.inode
    except Problem:
        return False


def spawn_link_task(
    rank: Rank, result: TaskResult, item: Item, copy: ItemCopy, *, metadata_problem: Problem | None = None
) -> None:
    """Spawn the task that creates all names of ``item`` but the first as hard links to ``copy``, which has the first
    name. Report the names that failed before.

    Args:
        metadata_problem: the error because of which not all metadata of the copy could be set, or None.
    """
    if metadata_problem is not None and not (item.links or item.failed_names):
        result.count_item_as_failed(item.place, item.name, metadata_problem, item.size)
        return
    first = item.names[0]
    failed = () if metadata_problem is None else ((*first, metadata_problem.problem_as_tuple), *item.failed_names)
    if item.links or failed:
        links = CreateHardLinks(item._replace(failed_names=failed), copy, False)
        result.spawn_task(links, len(item.names) * CALL_COST)
    if failed:
        return
    alone = item._replace(names=(first,), failed_names=())
    if not item.links and (item.failed_names or _has_more_names(rank, item)):
        result.record_copied_inode(alone, copy)
    for place, name, problem in item.failed_names:
        retry = CreateHardLinks(alone._replace(names=(first, (place, name))), copy, True)
        result.count_item_as_failed(place, name, Problem.from_packed_tuple(problem), item.size, retry=retry)


def _has_more_names(rank: Rank, item: Item) -> bool:
    """Return True if the inode has more names in the source than the one that was found, so that a resumed job may find
    them.
    """
    if not (rank.job.began and rank.options.preserve.links):
        return False
    try:
        return rank.source_item_status(item.place, item.name).st_nlink > 1
    except Problem:
        return False
