"""``ReadItems`` reads items of the source that are not copied but whose digests are needed: items that a copy skips and
that a signature describes, and all items that ``pverify`` reads.

Small files are read in batches: many files in one call of the backend, the code in C or Python that makes the system
calls.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ReadSmallFilesBatch
from pcopy.fsio.backend.columns import OutcomeCode, pack_names, unpack_names
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.incomplete_mark import raise_if_file_marked_incomplete
from pcopy.fsio.nodes import open_o_path_descriptor
from pcopy.fsio.problem import Problem, source_changed_problem
from pcopy.fsio.source import FileContentVersion, check_is_file_found_by_scan, status_of_open_item
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.hashing import SOCKET_TYPE_BYTE, item_type_byte
from pcopy.tasks.base.item_columns import ItemColumns
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import ContentInfo, FileToRead, Place, pack_numbers, unpack_numbers
from pcopy.tasks.verify.reading import (
    are_copies_read_back,
    content_info_of_special_file,
    count_read_items,
    execute_read_batch,
    hash_open_file_range,
    record_digest,
    report_read_failure,
)
from pcopy.tasks.verify.split_read import SplitFileForReading

_DONE = bytes((OutcomeCode.DONE,))


class ReadItems(DivisibleTask, code=40, doing="reading files of", is_note=False):
    """Task that reads items of a source directory for their digests.

    Fields:
        place: the directory.
        names: names of the items, joined by slashes.
        kinds: type byte of each item.
        inodes: inode number of each item as the scan found it, packed.
        attempt: number of earlier attempts in this run, from 0.
        counter: index of the counter in which the items were counted; -1 if they were not counted yet.
    """

    kinds: bytes
    inodes: bytes
    attempt: int
    counter: int

    columns = ("kinds", "inodes")

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Read small files by a batch of the backend, then the remaining items one by one."""
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        try:
            source = rank.open_source_directory(self.place)
        except Problem as problem:
            for name in names:
                self._report_failure(result, name, problem)
            return
        slow_rows = yield from self._read_small_files(rank, result, source, names)
        for index in slow_rows:
            name, inode, kind = names[index], inodes[index], self.kinds[index : index + 1]
            try:
                if kind == FILE:
                    known = yield from self._read_file(rank, result, name, inode)
                else:
                    known = _read_special_file(rank, source, name, inode, kind)
            except Problem as problem:
                self._report_failure(result, name, problem)
            else:
                if known is not None:
                    record_digest(rank, result, self.place, name, known, self.counter)
            yield None

    def _report_failure(self, result: TaskResult, name: bytes, problem: Problem) -> None:
        report_read_failure(result, self.place, name, problem, self.attempt, self.counter)

    def _read_small_files(
        self, rank: Rank, result: TaskResult, source: int, names: list[bytes]
    ) -> TicketGenerator[list[int]]:
        """Read the small files by a batch of the backend. Return the indices of the items that must be read one by one.

        Those are the items that are no regular files, and files that are large, could not be read or have changed.
        ``source`` is a descriptor of the directory.
        """
        if rank.options.direct or rank.options.drop_cache:
            return list(range(len(names)))
        inodes = unpack_numbers(self.inodes)
        small_files: Sequence[int]
        if self.kinds.strip(FILE):
            small_files = [index for index, kind in enumerate(self.kinds) if kind == FILE[0]]
            if not small_files:
                return list(range(len(names)))
            inodes, packed = (
                array("Q", map(inodes.__getitem__, small_files)),
                pack_names(map(names.__getitem__, small_files)),
            )
        else:
            small_files, packed = range(len(names)), self.names
        whole = (
            rank.options.writes_signature
        )  # a signature must not include files that an --inplace job has marked as incomplete
        read = yield from execute_read_batch(
            rank, ReadSmallFilesBatch(source, packed, excludes_half_written=whole), counts.MOVED
        )
        slow_rows = [] if len(small_files) == len(names) else sorted({*range(len(names))}.difference(small_files))
        digests = ItemColumns()
        if read.verdicts.codes.strip(_DONE) or read.observed.inode != inodes:
            done: list[int] = []
            for row, index in enumerate(small_files):
                is_done = read.verdicts.codes[row] == OutcomeCode.DONE and read.observed.inode[row] == inodes[row]
                (done if is_done else slow_rows).append(row if is_done else index)
            read_names = [names[index] for index in small_files]
            counter = self._count_read_files(
                rank, result, [read_names[row] for row in done], array("Q", map(read.observed.size.__getitem__, done))
            )
            digests.add_selected_rows(done, read_names, read.observed, read.observed.size, read.digests.data, counter)
        else:
            counter = self._count_read_files(rank, result, unpack_names(packed), read.observed.size)
            digests.add_rows(packed, read.observed, read.observed.size, read.digests.data, counter)
        result.collect_file_digests(self.place, digests, verify=are_copies_read_back(rank, self.place))
        return slow_rows

    def _count_read_files(self, rank: Rank, result: TaskResult, names: list[bytes], sizes: array[int]) -> int:
        """Count regular files that were read, unless they are counted already. Return the index of the counter in which
        they are counted. ``sizes`` are in bytes.
        """
        if self.counter >= 0:
            return self.counter
        if rank.job.copies:
            result.item_recorder.record_outcome_of_files(ItemAction.SKIP, self.place, names, sizes)
        return count_read_items(rank, result, self.place, FILE, len(sizes), sum(sizes))

    def _read_file(
        self, rank: Rank, result: TaskResult, name: bytes, inode: int
    ) -> Generator[None, None, ContentInfo | None]:
        """Read one file and return type, size, version and digest. Return None for a large file: a task is spawned that
        has its parts read. Raise ``Problem`` on failure, or if its inode number is no longer ``inode``.
        """
        with rank.open_source_file(self.place, name) as reading:
            status = status_of_open_item(reading, on_source=True)
            check_is_file_found_by_scan(status, None, inode)
            if rank.options.writes_signature:
                raise_if_file_marked_incomplete(reading)
            known = ContentInfo(FILE, status.st_size, b"", FileContentVersion.from_status(status))
            if rank.is_processed_in_chunks(known.size) and not rank.has_generated_files(self.place):
                result.spawn_task(
                    SplitFileForReading(FileToRead(self.place, name, known, True, self.attempt, self.counter)),
                    known.size,
                )
                return None
            hasher = yield from hash_open_file_range(rank, reading, status, 0, known.size, on_source=True)
            return known._replace(size=hasher.size, digest=rank.job_item_hasher.digest_of_file(hasher))


def _read_special_file(rank: Rank, source: int, name: bytes, inode: int, kind: bytes) -> ContentInfo:
    """Return type, size, version and digest of the symbolic link, FIFO or device ``name``. Raise ``Problem`` on
    failure, or if another item than the one that the scan found has this name now: its inode number is not ``inode`` or
    its type not ``kind``. ``source`` is a descriptor of the directory.
    """
    with closing_descriptor(
        open_o_path_descriptor(source, name, on_source=True, follow=rank.copy_options.dereference)
    ) as node:
        status = status_of_open_item(node, on_source=True)
        if status.st_ino != inode or item_type_byte(status) != kind:
            raise source_changed_problem("open", "another item has taken its name since the scan")
        return content_info_of_special_file(rank.job_item_hasher, node, status, on_source=True)


def count_skipped_or_spawn_read(
    rank: Rank, result: TaskResult, place: Place, name: bytes, known: ContentInfo, action: ItemAction = ItemAction.SKIP
) -> None:
    """Count an item as skipped, because an existing item is kept in the target. If its digest is needed, spawn a task
    that reads it; that task counts the item instead (but with ``action`` META it is counted here).

    Args:
        known: type, size and version of the item.
        action: what is reported: SKIP, or META if the metadata of the existing item was updated.
    """
    is_read = known.kind != SOCKET_TYPE_BYTE and (rank.collects_signature_entries or rank.verifies_kept_items)
    if is_read:
        spawn_read_task(result, place, name, known, counts.SKIPPED if action == ItemAction.META else -1)
    if not is_read or action == ItemAction.META:
        result.count(counts.SKIPPED, 1, place)
        result.count(counts.SKIPPED_BYTES, known.size, place)
        result.item_recorder.record_item_outcome(action, place, name, known.kind, known.size)


def spawn_read_task(result: TaskResult, place: Place, name: bytes, known: ContentInfo, counter: int = -1) -> None:
    """Spawn a task that reads an item which is not copied, for its digest. ``known`` has type, size and version of the
    item. ``counter`` is the index of the counter in which the item was counted; -1 if it was not counted yet.
    """
    result.spawn_task(ReadItems(place, name, known.kind, pack_numbers([known.version.inode]), 0, counter), known.size)
