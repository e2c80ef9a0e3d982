"""VerifyItems and VerifyLinks: read copies back from storage and compare them with what was copied.

An item that is missing, cannot be read, or differs does not verify, nor does one whose source has changed since. Such
an item has failed; with ``--repair`` it is copied again once.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ReadResult, ReadSmallFiles, StatNames, StatResult
from pcopy.fsio.backend.columns import VERSION_COLUMNS, RowCode, pack_names, unpack_names
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.problem import Problem, as_problem
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.dividing import portion_slices
from pcopy.tasks.base.item_columns import split_digests, split_versions, unpack_items
from pcopy.tasks.base.kind import DivisibleTask, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import FileToRead, unpack_numbers
from pcopy.tasks.verify.reading import (
    content_mismatch,
    count_verified,
    mismatch,
    read_batch,
    report_or_repair,
    verify_copy,
)
from pcopy.tasks.verify.split_read import OfFileContents, SplitRead

_DONE = bytes((RowCode.DONE,))


class VerifyItems(DivisibleTask, code=41, doing="reading back the copies of", is_note=False):
    """Reads back items of a target directory (the name ``b""`` means the directory itself).

    For each of ``names`` there is one byte of ``kinds``, one byte of ``counters`` (the counter in which it is counted),
    8 bytes of ``sizes`` and one digest of ``digests``; ``versions`` are packed ``VersionColumns``. ``writer`` is the
    host that wrote the items.
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

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """Verify small files in batches, then the remaining items one by one. Large files become tasks of their own."""
        slow_rows = yield from self._verify_small_files(rank, result)
        if not slow_rows:
            return
        copies = self._contents_by_index(rank)
        for index in slow_rows:
            copy = copies(index)
            if copy.known.kind == FILE and rank.is_split(copy.known.size):
                result.spawn_on_other_host(SplitRead(copy), copy.known.size, self.writer)
                continue
            try:
                yield from verify_copy(rank, copy)
            except Problem as problem:
                report_or_repair(rank, result, copy, problem)
            else:
                count_verified(result, copy)
            yield None

    def _contents_by_index(self, rank: Rank) -> Callable[[int], FileToRead]:
        """Return a function that makes the ``Contents`` of an item from its index."""
        digests = split_digests(self.digests, rank.hashing.algorithm.digest_size)
        known = unpack_items(self.kinds, unpack_numbers(self.sizes), self.versions, digests)
        names, writers = unpack_names(self.names), bytes((self.writer,))

        def copy(index: int) -> FileToRead:
            return FileToRead(self.place, names[index], known[index], False, 0, self.counters[index], writers=writers)

        return copy

    def _verify_small_files(self, rank: Rank, result: TaskResult) -> TicketGenerator[list[int]]:
        """Verify the small files in a batch; return the indices of the items that must be verified one by one.

        Those are all other items, files that could not be read in the batch, and copies whose source has changed.
        """
        place, number = self.place, len(self.kinds)
        everything, sizes = list(range(number)), unpack_numbers(self.sizes)
        small_files = self._small_file_indices(sizes) if not rank.options.direct else []
        if not small_files:
            return everything
        try:
            source, target = rank.open_source(place), rank.open_target(place)
        except Problem:
            return everything
        names, digests, versions = self.names, self.digests, self.versions
        if len(small_files) < number:
            all_names, digest_size = unpack_names(names), rank.hashing.algorithm.digest_size
            names = pack_names(map(all_names.__getitem__, small_files))
            sizes = array("Q", map(sizes.__getitem__, small_files))
            digests = b"".join([digests[index * digest_size : (index + 1) * digest_size] for index in small_files])
            versions = b""  # does not match, so that each row is compared in ``_check_rows``
        copies = names
        if rank.job.roots[place.root].item:
            copies = pack_names(rank.target_name(place, name) for name in names.split(b"/"))
        read = yield from read_batch(rank, ReadSmallFiles(target, copies, are_copies=True), counts.VERIFIED_BYTES)
        stat = StatNames(source, names, VERSION_COLUMNS, follows_links=rank.options.dereference)
        sources = yield from rank.execute(stat)
        is_read = not read.verdicts.codes.strip(_DONE) and not sources.verdicts.codes.strip(_DONE)
        are_equal = read.digests.data == digests and read.verdicts.bytes == sizes
        if is_read and are_equal and sources.rows.packed() == versions:
            result.count(counts.VERIFIED, number)
            result.count(counts.CONFIRMED_BYTES, sum(sizes))
            return []
        return self._check_rows(rank, result, small_files, read, sources)

    def _small_file_indices(self, sizes: array[int]) -> Sequence[int]:
        """Return the indices of the small files."""
        if not self.kinds.strip(FILE) and max(sizes) <= MAX_SMALL_FILE_BYTES:
            return range(len(sizes))
        of_kind = zip(self.kinds, sizes, strict=True)
        return [index for index, (kind, size) in enumerate(of_kind) if kind == FILE[0] and size <= MAX_SMALL_FILE_BYTES]

    def _check_rows(
        self, rank: Rank, result: TaskResult, small_files: Sequence[int], read: ReadResult, sources: StatResult
    ) -> list[int]:
        """Record the result of each small file; return the indices of the items that must be verified one by one."""
        copies = self._contents_by_index(rank)
        slow_rows = sorted({*range(len(self.kinds))}.difference(small_files))
        for row, index in enumerate(small_files):
            if read.verdicts.codes[row] != RowCode.DONE:
                slow_rows.append(index)
                continue
            copy, size = copies(index), read.verdicts.bytes[row]
            expected = copy.known
            if (size, read.digests[row]) != (expected.size, expected.digest):
                report_or_repair(rank, result, copy, content_mismatch(size, expected.size))
            elif sources.verdicts.codes[row] == RowCode.DONE and sources.rows.version(row) == expected.version:
                result.count(counts.VERIFIED)
                result.count(counts.CONFIRMED_BYTES, size)
            else:  # it is read again, and counted then
                rank.counters[counts.VERIFIED_BYTES] -= size
                slow_rows.append(index)
        return slow_rows


class VerifyLinks(OfFileContents, code=42, doing="reading back the copies of", is_note=False):
    """Verifies that all names of ``contents`` are the inode ``inode``, and that this inode has the contents that were
    copied.
    """

    inode: int

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """Check the inode number of each name, then compare the contents; a large file is read by further tasks."""
        contents, known = self.contents, self.contents.known
        try:
            devices = set()
            for place, name in contents.names:
                directory = rank.open_target(place)
                with as_problem("stat"):
                    status = os.stat(rank.target_name(place, name), dir_fd=directory, follow_symlinks=False)
                devices.add(status.st_dev)
                if len(devices) > 1 or status.st_ino != self.inode:
                    raise mismatch("it is no longer a hard link to the other names of its group")

                yield None
            if known.kind == FILE and (contents.chunk or rank.is_split(known.size)):
                result.spawn_on_other_host(SplitRead(contents), known.size, contents.writers[0])
                return
            yield from verify_copy(rank, contents)
        except Problem as problem:
            report_or_repair(rank, result, contents, problem)
        else:
            count_verified(result, contents)
