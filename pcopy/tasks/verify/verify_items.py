"""``VerifyItems`` and ``VerifyLinks`` read copies back from storage and compare their digests with those of the
sources. Small files are read in batches: many files in one call of the backend, the code in C or Python that makes the
system calls.

Verification fails for an item that is missing, cannot be read or differs, and for one whose source has changed since it
was copied. Such an item counts as failed; with ``--repair`` it is copied again once.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ReadSmallFilesBatch, ReadSmallFilesResult, StatNamesBatch, StatNamesResult
from pcopy.fsio.backend.columns import VERSION_COLUMNS, OutcomeCode, pack_names, unpack_names
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.dividing import portion_slices
from pcopy.tasks.base.item_columns import split_digests, split_versions, unpack_content_infos
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import FileToRead, unpack_numbers
from pcopy.tasks.verify.reading import (
    content_mismatch_problem,
    count_verified_copy,
    execute_read_batch,
    mismatch_problem,
    report_or_repair_copy,
    verify_copy,
)
from pcopy.tasks.verify.split_read import FileReadingTask, SplitFileForReading

_DONE = bytes((OutcomeCode.DONE,))


class VerifyItems(DivisibleTask, code=41, doing="reading back the copies of", is_note=False):
    """Task that reads copies in a target directory back, and compares them with what was copied.

    Fields:
        place: the directory.
        names: names of the items, joined by slashes. The name ``b""`` means the directory itself.
        kinds: type byte of each item.
        counters: index of the counter in which each item was counted as copied or skipped, one byte each.
        sizes: size of each item in bytes, packed.
        versions: version of the source of each item (inode, size, mtime, ctime), packed (``ContentVersionColumns``).
        digests: digest of each item, joined.
        writer: number of the host that wrote the items.
    """

    kinds: bytes
    counters: bytes
    sizes: bytes
    versions: bytes
    digests: bytes
    writer: int

    columns = ("kinds", "counters", "sizes", "digests")

    def divide(self, portions: int) -> list[VerifyItems]:
        versions = split_versions(self.versions, self.item_count, portion_slices(self.item_count, portions))
        return [part._replace(versions=each) for part, each in zip(super().divide(portions), versions, strict=True)]

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Verify small files by a batch of the backend, then the remaining items one by one. For each large file spawn
        a task of its own.
        """
        slow_rows = yield from self._verify_small_files(rank, result)
        if not slow_rows:
            return
        copies = self._file_to_read_getter(rank)
        for index in slow_rows:
            copy = copies(index)
            if copy.known.kind == FILE and rank.is_processed_in_chunks(copy.known.size):
                result.spawn_task_on_other_host(SplitFileForReading(copy), copy.known.size, self.writer)
                continue
            try:
                yield from verify_copy(rank, copy)
            except Problem as problem:
                report_or_repair_copy(rank, result, copy, problem)
            else:
                count_verified_copy(result, copy)
            yield None

    def _file_to_read_getter(self, rank: Rank) -> Callable[[int], FileToRead]:
        """Return a function that takes the index of an item and returns the item as a ``FileToRead``."""
        digests = split_digests(self.digests, rank.job_item_hasher.algorithm.digest_size)
        known = unpack_content_infos(self.kinds, unpack_numbers(self.sizes), self.versions, digests)
        names, writers = unpack_names(self.names), bytes((self.writer,))

        def copy(index: int) -> FileToRead:
            return FileToRead(self.place, names[index], known[index], False, 0, self.counters[index], writers=writers)

        return copy

    def _verify_small_files(self, rank: Rank, result: TaskResult) -> TicketGenerator[list[int]]:
        """Verify the small files by one batch of the backend. Return the indices of the items that must be verified one
        by one: items that are not small regular files, files that the batch could not read, and copies whose source has
        changed.
        """
        place, number = self.place, len(self.kinds)
        everything, sizes = list(range(number)), unpack_numbers(self.sizes)
        small_files = self._small_file_indices(sizes) if not rank.options.direct else []
        if not small_files:
            return everything
        try:
            source, target = rank.open_source_directory(place), rank.open_target_directory(place)
        except Problem:
            return everything
        names, digests, versions = self.names, self.digests, self.versions
        if len(small_files) < number:
            all_names, digest_size = unpack_names(names), rank.job_item_hasher.algorithm.digest_size
            names = pack_names(map(all_names.__getitem__, small_files))
            sizes = array("Q", map(sizes.__getitem__, small_files))
            digests = b"".join([digests[index * digest_size : (index + 1) * digest_size] for index in small_files])
            versions = b""  # never equal, so that ``_check_read_files`` compares each file
        copies = names
        if rank.job.roots[place.root].item:
            copies = pack_names(rank.target_name(place, name) for name in names.split(b"/"))
        read = yield from execute_read_batch(
            rank, ReadSmallFilesBatch(target, copies, are_copies=True), counts.VERIFIED_BYTES
        )
        stat = StatNamesBatch(source, names, VERSION_COLUMNS, follows_links=rank.copy_options.dereference)
        sources = yield from rank.execute_batch(stat)
        is_read = not read.verdicts.codes.strip(_DONE) and not sources.verdicts.codes.strip(_DONE)
        are_equal = read.digests.data == digests and read.verdicts.bytes == sizes
        if is_read and are_equal and sources.rows.status_columns_as_bytes() == versions:
            result.count(counts.VERIFIED, number)
            result.count(counts.CONFIRMED_BYTES, sum(sizes))
            return []
        return self._check_read_files(rank, result, small_files, read, sources)

    def _small_file_indices(self, sizes: array[int]) -> Sequence[int]:
        """Return the indices of the small regular files. ``sizes`` are those of all items, in bytes."""
        if not self.kinds.strip(FILE) and max(sizes) <= MAX_SMALL_FILE_BYTES:
            return range(len(sizes))
        of_kind = zip(self.kinds, sizes, strict=True)
        return [index for index, (kind, size) in enumerate(of_kind) if kind == FILE[0] and size <= MAX_SMALL_FILE_BYTES]

    def _check_read_files(
        self,
        rank: Rank,
        result: TaskResult,
        small_files: Sequence[int],
        read: ReadSmallFilesResult,
        sources: StatNamesResult,
    ) -> list[int]:
        """Compare each small file that was read with what was copied, and record whether it is equal. Return the
        indices of the items that must be verified one by one.

        Args:
            small_files: indices of the small files among the items of the task.
            read: what the backend has read of their copies.
            sources: status of their sources.
        """
        copies = self._file_to_read_getter(rank)
        slow_rows = sorted({*range(len(self.kinds))}.difference(small_files))
        for row, index in enumerate(small_files):
            if read.verdicts.codes[row] != OutcomeCode.DONE:
                slow_rows.append(index)
                continue
            copy, size = copies(index), read.verdicts.bytes[row]
            expected = copy.known
            if (size, read.digests[row]) != (expected.size, expected.digest):
                report_or_repair_copy(rank, result, copy, content_mismatch_problem(size, expected.size))
            elif (
                sources.verdicts.codes[row] == OutcomeCode.DONE
                and sources.rows.content_version_of_row(row) == expected.version
            ):
                result.count(counts.VERIFIED)
                result.count(counts.CONFIRMED_BYTES, size)
            else:  # the copy is read again, and its bytes are counted then
                rank.counters[counts.VERIFIED_BYTES] -= size
                slow_rows.append(index)
        return slow_rows


class VerifyLinks(FileReadingTask, code=42, doing="reading back the copies of", is_note=False):
    """Task that checks that all names of ``contents`` are hard links to the inode number ``inode``, and that this inode
    has the contents that were copied.
    """

    inode: int

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Check the inode number of each name, then compare the contents with what was copied. If the file is large, a
        ``SplitFileForReading`` task is spawned for its contents instead.
        """
        contents, known = self.contents, self.contents.known
        try:
            devices = set()
            for place, name in contents.names:
                directory = rank.open_target_directory(place)
                with errors_as_problem("stat"):
                    status = os.stat(rank.target_name(place, name), dir_fd=directory, follow_symlinks=False)
                devices.add(status.st_dev)
                if len(devices) > 1 or status.st_ino != self.inode:
                    raise mismatch_problem("it is no longer a hard link to the other names of its group")

                yield None
            if known.kind == FILE and (contents.chunk or rank.is_processed_in_chunks(known.size)):
                result.spawn_task_on_other_host(SplitFileForReading(contents), known.size, contents.writers[0])
                return
            yield from verify_copy(rank, contents)
        except Problem as problem:
            report_or_repair_copy(rank, result, contents, problem)
        else:
            count_verified_copy(result, contents)
