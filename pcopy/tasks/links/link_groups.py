"""``CopyHardLinkGroups`` copies several inodes that have several names (hard links) each: one of the names is copied,
and the others become hard links to the copy.

Where possible, the backend copies the first names of many inodes in one call.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from pcopy.engine.task import Task
from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import SYNC_FILE_FLAG, CopyPlan, CopySmallFilesBatch, StatNamesBatch
from pcopy.fsio.backend.columns import (
    DEVICE_COLUMN,
    MODE_COLUMN,
    VERSION_COLUMNS,
    ItemStatusColumns,
    OutcomeCode,
    pack_names,
    unpack_names,
)
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.backend.plan_copies import file_copy_plan_for_unused_name
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import ItemAction, TimedCopyAction
from pcopy.tasks.base.dividing import portion_slices
from pcopy.tasks.base.kind import MissingDirectories, TaskKind, TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import MAX_TASK_SECONDS
from pcopy.tasks.base.values import ContentInfo, Item, Place, pack_numbers, unpack_numbers
from pcopy.tasks.files.existing import inherits_acl
from pcopy.tasks.files.file_decisions import copy_policy_of_directory
from pcopy.tasks.files.layouts import target_layout_policy
from pcopy.tasks.files.whole_file import ItemResult
from pcopy.tasks.links.link_group import CopyHardLinkGroup, copy_hard_link_group

MAX_NAMES_PER_TASK = 128
"""Maximum number of names of one task, unless all of them belong to one inode."""
MAX_BYTES_PER_TASK = 4 << 20
"""Bytes (sum of sizes) at which a task is full and gets no more inodes."""


class CopyHardLinkGroups(TaskKind, code=37, doing="copying and linking", is_note=False):
    """Task that copies several items with all of their names (hard links), at their first attempt.
    ``CopyHardLinkGroup`` does the same for one item.

    Fields:
        directories: the directories in which the names lie.
        names: all names, joined by slashes, item by item.
        directory_indices: for each name the index of its directory in ``directories``, packed.
        names_per_item: number of names of each item, packed.
        mounts, inodes, sizes: mount code (number of the file system), inode number and size in bytes of each item,
            packed.
    """

    directories: tuple[Place, ...]
    names: bytes
    directory_indices: bytes
    names_per_item: bytes
    mounts: bytes
    inodes: bytes
    sizes: bytes

    def subject(self) -> tuple[Place, bytes]:
        return self.directories[unpack_numbers(self.directory_indices)[0]], self.names.partition(b"/")[0]

    def unpacked_items(self) -> list[Item]:
        """Return the items of the task, which its fields contain in packed columns."""
        places = (self.directories[number] for number in unpack_numbers(self.directory_indices))
        names = tuple(zip(places, unpack_names(self.names), strict=True))
        stretches = pairwise(accumulate(unpack_numbers(self.names_per_item), initial=0))
        columns = map(unpack_numbers, (self.mounts, self.inodes, self.sizes))
        return [
            Item(mount, inode, size, names[start:end], 0)
            for (start, end), mount, inode, size in zip(stretches, *columns, strict=True)
        ]

    @classmethod
    def from_items(cls, items: list[Item]) -> CopyHardLinkGroups:
        """Return one task that copies all of ``items``."""
        names = [each for item in items for each in item.names]
        numbers: dict[Place, int] = {}
        lying = [numbers.setdefault(place, len(numbers)) for place, _ in names]
        return cls(
            tuple(numbers),
            pack_names(name for _, name in names),
            pack_numbers(lying),
            pack_numbers([len(item.names) for item in items]),
            *(pack_numbers([*column]) for column in zip(*(item[:3] for item in items), strict=True)),
        )

    min_items_per_portion = 1  # an item has several names

    @property
    def item_count(self) -> int:
        return len(unpack_numbers(self.names_per_item))

    def divide(self, portions: int) -> list[CopyHardLinkGroups]:
        items = self.unpacked_items()
        return [self.from_items(items[cut]) for cut in portion_slices(len(items), portions)]

    def directories_written_by_retry(self) -> set[Place]:
        return set(self.directories)

    def replacement_tasks_if_directories_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        for item in self.unpacked_items():
            yield from missing.tasks_resending_link_names(item, item.names)

    def tasks_regathering_links(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        return (
            self.replacement_tasks_if_directories_missing(task, missing) if task.phase == Phase.LINK else iter((task,))
        )

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Copy the first names by batches of the backend, then process the items one by one. If the job is being
        stopped, or after ``MAX_TASK_SECONDS`` if other ranks may be idle, the remaining items become new tasks.
        """
        items, end = self.unpacked_items(), time.monotonic() + MAX_TASK_SECONDS
        copied = yield from _copy_first_names(rank, result, items)
        items.sort(key=lambda item: item not in copied)
        for number, item in enumerate(items):
            is_late = time.monotonic() > end and not rank.all_ranks_have_work()
            if item not in copied and number and (is_late or rank.stop_reason is not None):
                for other in items[number:]:
                    result.spawn_copy_task(other)
                return  # a rank that is being stopped drops a task that yields, and its failures with it
            yield from copy_hard_link_group(rank, result, item, copied.get(item), links_at_once=not is_late)
            if rank.stop_reason is None:
                yield None


def _copy_first_names(
    rank: Rank, result: TaskResult, items: Sequence[Item]
) -> TicketGenerator[dict[Item, ItemResult | Problem]]:
    """Copy the first names of those small files that the backend can copy in batches. Return the outcome by item, and
    count nothing.

    A ``Problem`` as outcome means that the file was copied without some of its metadata. A file that could not be
    copied has no outcome; the caller tries it again one by one and reports the error. Raise ``TicketCancelled`` if the
    batch is cancelled.
    """
    copied: dict[Item, ItemResult | Problem] = {}
    for place, place_items in _batchable_items_by_place(rank, items).items():
        try:
            source, target = rank.open_source_directory(place), rank.open_target_directory(place)
            inherits = inherits_acl(rank, place, target)
            rank.detect_times_set_on_close(target, rank.target_device(place), result.notices)
        except Problem:  # ``copy_hard_link_group`` meets the error again and reports it for each item
            continue
        found = yield from _stat_unchanged_items(rank, place, source, place_items)
        if found is None:
            continue
        names, good, rows = found
        plans = bytes((file_copy_plan_for_unused_name(copy_policy_of_directory(rank, place)),)) * len(good)
        batch = CopySmallFilesBatch(source, names, target, plans, rows, inherits_acl=inherits, reports_identities=True)
        if rank.throttle.is_on:
            yield from rank.throttle.charge_limits_and_wait(sum(rows.size))
        done = yield from rank.execute_batch_counting_bytes(
            batch
        )  # if the target is full, the remaining files fail one by one, in ``copy_hard_link_group``
        for row, code in enumerate(done.verdicts.codes):
            made = ItemIdentity(place.target_id.mount_code, done.created_inodes[row], done.marks[row])
            if code == OutcomeCode.DONE:
                known = ContentInfo(FILE, done.verdicts.bytes[row], done.digests[row], rows.content_version_of_row(row))
                copied[good[row]] = ItemResult(
                    known, made, how=TimedCopyAction(ItemAction.COPY, done.verdicts.nanoseconds[row])
                )
                if row in done.metadata_outcomes:
                    result.record_applied_metadata(place, good[row].name, done.metadata_outcomes[row])
            elif code == OutcomeCode.LACKS_METADATA:
                problem = done.verdicts.problem(row)
                assert isinstance(problem, MetadataProblem)
                problem.identity = made
                copied[good[row]] = problem
    return copied


def _batchable_items_by_place(rank: Rank, items: Sequence[Item]) -> dict[Place, list[Item]]:
    """Return the items whose first name the backend can create in a batch, grouped by the directory of that name.

    That is possible if the job has created this directory, and if no option requires that files are copied one by one.
    """
    places: dict[Place, list[Item]] = {}
    if rank.copy_options.reflink == "always" or rank.options.dry_run:
        return places
    for item in items:
        place = item.place
        if place.is_new and not rank.job.roots[place.root].item and _has_default_layout(rank, place):
            places.setdefault(place, []).append(item)
    return {
        place: place_items
        for place, place_items in places.items()
        if file_copy_plan_for_unused_name(copy_policy_of_directory(rank, place)) & ~SYNC_FILE_FLAG == CopyPlan.NEW
    }


def _has_default_layout(rank: Rank, place: Place) -> bool:
    """Return True if files in the target directory of ``place`` need no Lustre layout (striping) of their own."""
    try:
        rank.open_target_directory(place)
        return target_layout_policy(rank, place).uses_only_default
    except Problem:  # the task of each file meets the error again and reports it
        return True


def _stat_unchanged_items(
    rank: Rank, place: Place, source: int, items: list[Item]
) -> TicketGenerator[tuple[bytes, list[Item], ItemStatusColumns] | None]:
    """Stat the first names of the items in the open directory ``source``. Return those items that are still the same
    regular files: their names joined by slashes, the items, and their status rows. Return None if there are none.
    """
    names = pack_names(item.name for item in items)
    batch = StatNamesBatch(
        source, names, VERSION_COLUMNS | DEVICE_COLUMN | MODE_COLUMN, follows_links=rank.copy_options.dereference
    )
    stated = yield from rank.execute_batch(batch)
    codes, rows = stated.verdicts.codes, stated.rows
    good = [
        row
        for row, item in enumerate(items)
        if codes[row] == OutcomeCode.DONE
        and stat.S_ISREG(rows.mode[row])
        and rows.inode[row] == item.inode
        and rank.source_device(place, item.mount) in (None, rows.device[row])
    ]
    if not good:
        return None
    return (
        pack_names(items[row].name for row in good),
        [items[row] for row in good],
        rows.columns_of_selected_rows(good),
    )


def copy_tasks_for_items(copies: Iterable[tuple[Item, int]]) -> Iterator[tuple[TaskKind, int, int]]:
    """Yield tasks that copy items with all of their names, as (task, cost in bytes, phase). Small items share tasks.
    ``copies`` has each item with the phase in which it is copied.
    """
    items: list[Item] = []
    names = size = at = 0
    for item, phase in copies:
        number = len(item.names)
        if item.attempt or item.failed_names or item.size > MAX_SMALL_FILE_BYTES or number > MAX_NAMES_PER_TASK:
            yield CopyHardLinkGroup(item), item.size + number * CALL_COST, phase
            continue
        if items and (phase != at or names + number > MAX_NAMES_PER_TASK or size >= MAX_BYTES_PER_TASK):
            yield _copy_task_for_items(items), size + names * CALL_COST, at
            items, names, size = [], 0, 0
        items.append(item)
        names, size, at = names + number, size + item.size, phase
    if items:
        yield _copy_task_for_items(items), size + names * CALL_COST, at


def _copy_task_for_items(items: list[Item]) -> TaskKind:
    return CopyHardLinkGroups.from_items(items) if len(items) > 1 else CopyHardLinkGroup(items[0])
