"""``ReplaceIncompleteCopy`` copies an item again whose copy an earlier run has given its final name, but not all of its
metadata.

With ``--existing newer``, ``skip`` or ``fail``, such a copy would be taken for a file of the user and be kept. So the
failure leaves a task for a resumed job, which contains the identity of the copy. The task removes the copy if it is
still that inode and nothing has written to it since.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator

from pcopy.engine.task import Task
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import FileContentVersion
from pcopy.fsio.temporary import remove_item_if_present
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.kind import ItemTask, MissingDirectories, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import ContentInfo, Item, UnnamedCopy
from pcopy.tasks.files.existing import find_existing_item, target_status
from pcopy.tasks.files.naming import is_same_copy


class ReplaceIncompleteCopy(ItemTask, code=35, doing="examining an incomplete copy of", is_note=False):
    """Task that removes an incomplete copy, which an earlier run made, under those names of ``item`` that still lead to
    it, and has the item copied again.

    Fields:
        item: the item with all of its names.
        inode, mark: identity of the copy: inode number, and file handle or time of birth (``pcopy.fsio.identity``).
        size_and_mtime: size in bytes, and mtime in nanoseconds, that the copy has if nothing has written to it since.
            The size is compared for regular files only.
        has_metadata: True if the copy had all of its metadata. If something has written to it since, it belongs to the
            user then, and its name does not fail.

    If ``item.attempt`` is 0, the size of the inode has been subtracted from the counters and is added again.
    """

    inode: int
    mark: bytes
    size_and_mtime: tuple[int, int]
    has_metadata: bool = False

    def replacement_tasks_if_directories_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        if kept := missing.names_outside_missing_directories(self.item.names):
            item = self.item._replace(names=kept, attempt=missing.earlier_attempts_for_item(self.item, self.item.names))
            yield task._replace(payload=encode_task(self._replace(item=item)))

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Remove the names that are the incomplete copy, and have all names looked up again in the source.

        They are looked up now, because all names of an inode are brought together in the phase LINK, including those in
        directories that are created again.
        """
        size, mtime = self.size_and_mtime
        made = UnnamedCopy(b"", self.inode, self.mark)
        known = ContentInfo(FILE, size, b"", FileContentVersion(0, size, mtime, 0))
        if not self.item.attempt:  # names that are looked up again (attempt > 0) do not count the size
            result.count(counts.FOUND_BYTES, self.item.size, self.item.names[0][0])
        item = self.item._replace(attempt=max(1, self.item.attempt))
        for place, name in self.item.names:
            try:
                existing_item = find_existing_item(rank, place, name)
                if existing_item is not None and is_same_copy(existing_item, made, known):
                    present = existing_item.status
                    if present.st_mtime_ns == mtime and (present.st_size == size or not stat.S_ISREG(present.st_mode)):
                        remove_item_if_present(existing_item.directory, existing_item.name)
                    elif not self.has_metadata:
                        text = (
                            "the copy lacks metadata and was changed since it was written: remove it and resume the job"
                        )
                        raise Problem("create", errno.EEXIST, text=text)
                result.examine_names_again(place, name, item.attempt)
            except Problem as problem:
                again = self._replace(item=item._replace(names=((place, name),)))
                result.count_item_as_failed(place, name, problem, item.size, retry=again, may_exist=True)
            yield None


def retry_of_incomplete_copy(rank: Rank, item: Item, made: UnnamedCopy | ItemIdentity) -> ReplaceIncompleteCopy | Item:
    """Return what a resumed job does for the names of ``item`` after a failure: a task that first removes the
    incomplete copy; or, if its first name does not exist in the target, the item itself, which is then copied as usual.

    Args:
        made: the inode that the job created under the first name.
    """
    present = target_status(rank, *item.names[0])
    if present is None:
        return item
    return ReplaceIncompleteCopy(item, made.inode, made.mark, (present.st_size, present.st_mtime_ns))


def tasks_to_recopy_linked_names(
    missing: MissingDirectories, item: Item, made: UnnamedCopy | ItemIdentity, known: ContentInfo
) -> Iterator[Task]:
    """Yield, for a resumed job, a task that removes the copy ``made`` under the names of ``item``. These names are then
    collected together with the names that the resumed job still finds, and copied again. Names in directories that were
    removed (``missing``) are left out. ``known`` describes the contents of the copy.
    """
    all_names = (*((place, name) for place, name, _ in item.failed_names), *item.names)
    if kept := tuple(dict.fromkeys(missing.names_outside_missing_directories(all_names))):
        again = item._replace(names=kept, failed_names=(), attempt=missing.earlier_attempts_for_item(item, all_names))
        yield missing.new_task(
            ReplaceIncompleteCopy(again, made.inode, made.mark, (known.size, known.version.mtime), has_metadata=True)
        )
