"""VerifyItems and VerifyLinks: copies are read back from storage and compared with what they were meant to be.

An item that is gone, can't be read, or differs does not verify, nor does one whose source has changed since. It has
failed; with ``--repair`` it is copied again the first time.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import Read, ReadBack, Stat, Stated
from pcopy.fsio.kernel.columns import VERSION, Code, pack_names, unpack_names
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.problem import Problem, failing
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.dividing import cuts
from pcopy.tasks.base.gathered import cut_versions, split_digests, unpack_known
from pcopy.tasks.base.kind import Divisible, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Contents, unpack_numbers
from pcopy.tasks.verify.reading import compare, not_verified, read_rows, unlike, unlike_contents, verified
from pcopy.tasks.verify.split_read import OfContents, SplitRead

_DONE = bytes((Code.DONE,))


class VerifyItems(Divisible, code=41, doing="reading back the copies of", is_note=False):
    """Items of a target directory (the name ``b""``: the directory itself).

    One byte of ``kinds`` and of ``counters`` (where each has been counted), 8 of ``sizes`` and one digest of
    ``digests`` for each of ``names``; ``versions`` are packed ``Versions``. ``writer`` is the host that wrote them.
    """

    kinds: bytes
    counters: bytes
    sizes: bytes
    versions: bytes
    digests: bytes
    writer: int

    columns = ("kinds", "counters", "sizes", "digests")

    def divide(self, portions: int) -> list[VerifyItems]:
        versions = cut_versions(self.versions, self.items, cuts(self.items, portions))
        return [part._replace(versions=each) for part, each in zip(super().divide(portions), versions, strict=True)]

    def run(self, rank: Rank, result: Result) -> Steps:
        """Small files go through the kernel; other items, and those that want care, one by one after them.

        Large files become tasks of their own.
        """
        careful = yield from self._verify_small_files(rank, result)
        if not careful:
            return
        copies = self._copies(rank)
        for index in careful:
            copy = copies(index)
            if copy.known.kind == FILE and rank.splits(copy.known.size):
                result.spawn_elsewhere(SplitRead(copy), copy.known.size, self.writer)
                continue
            try:
                yield from compare(rank, copy)
            except Problem as problem:
                not_verified(rank, result, copy, problem)
            else:
                verified(result, copy)
            yield None

    def _copies(self, rank: Rank) -> Callable[[int], Contents]:
        """Makes an object of an item, by its index."""
        digests = split_digests(self.digests, rank.hashing.algorithm.size)
        known = unpack_known(self.kinds, unpack_numbers(self.sizes), self.versions, digests)
        names, writers = unpack_names(self.names), bytes((self.writer,))

        def copy(index: int) -> Contents:
            return Contents(self.place, names[index], known[index], False, 0, self.counters[index], writers=writers)

        return copy

    def _verify_small_files(self, rank: Rank, result: Result) -> Stepwise[list[int]]:
        """Which items want care: all but small files, what can't be read just so, and copies of what has changed."""
        place, number = self.place, len(self.kinds)
        everything, sizes = list(range(number)), unpack_numbers(self.sizes)
        plain = self._plain(sizes) if not rank.options.direct else []
        if not plain:
            return everything
        try:
            source, target = rank.open_source(place), rank.open_target(place)
        except Problem:
            return everything
        names, digests, versions = self.names, self.digests, self.versions
        if len(plain) < number:
            all_names, digest_size = unpack_names(names), rank.hashing.algorithm.size
            names = pack_names(map(all_names.__getitem__, plain))
            sizes = array("Q", map(sizes.__getitem__, plain))
            digests = b"".join([digests[index * digest_size : (index + 1) * digest_size] for index in plain])
            versions = b""  # each is looked at
        copies = names
        if rank.job.roots[place.root].item:
            copies = pack_names(rank.new_name(place, name) for name in names.split(b"/"))
        read = yield from read_rows(rank, Read(target, copies, copies=True), counts.VERIFIED_BYTES)
        stat = Stat(source, names, VERSION, follow=rank.options.dereference)
        sources = yield from rank.done(stat)
        is_read = not read.verdicts.codes.strip(_DONE) and not sources.verdicts.codes.strip(_DONE)
        are_equal = read.digests.data == digests and read.verdicts.bytes == sizes
        if is_read and are_equal and sources.rows.packed() == versions:
            result.count(counts.VERIFIED, number)
            result.count(counts.CONFIRMED_BYTES, sum(sizes))
            return []
        return self._row_by_row(rank, result, plain, read, sources)

    def _plain(self, sizes: array[int]) -> Sequence[int]:
        """The small files."""
        if not self.kinds.strip(FILE) and max(sizes) <= SMALL_FILE:
            return range(len(sizes))
        of_kind = zip(self.kinds, sizes, strict=True)
        return [index for index, (kind, size) in enumerate(of_kind) if kind == FILE[0] and size <= SMALL_FILE]

    def _row_by_row(
        self, rank: Rank, result: Result, plain: Sequence[int], read: ReadBack, sources: Stated
    ) -> list[int]:
        """What became of each of the small files; returns what wants care, with all that is no small file."""
        copies = self._copies(rank)
        careful = sorted({*range(len(self.kinds))}.difference(plain))
        for row, index in enumerate(plain):
            if read.verdicts.codes[row] != Code.DONE:
                careful.append(index)
                continue
            copy, size = copies(index), read.verdicts.bytes[row]
            expected = copy.known
            if (size, read.digests[row]) != (expected.size, expected.digest):
                not_verified(rank, result, copy, unlike_contents(size, expected.size))
            elif sources.verdicts.codes[row] == Code.DONE and sources.rows.version(row) == expected.version:
                result.count(counts.VERIFIED)
                result.count(counts.CONFIRMED_BYTES, size)
            else:  # it is read once more, and counts then
                rank.counters[counts.VERIFIED_BYTES] -= size
                careful.append(index)
        return careful


class VerifyLinks(OfContents, code=42, doing="reading back the copies of", is_note=False):
    """All names of the ``contents`` are the inode ``made``, which holds what is known of the first of them."""

    made: int

    def run(self, rank: Rank, result: Result) -> Steps:
        """What is read of a large file is read by tasks of their own."""
        contents, known = self.contents, self.contents.known
        try:
            devices = set()
            for place, name in contents.names:
                directory = rank.open_target(place)
                with failing("stat"):
                    status = os.stat(rank.new_name(place, name), dir_fd=directory, follow_symlinks=False)
                devices.add(status.st_dev)
                if len(devices) > 1 or status.st_ino != self.made:
                    raise unlike("it is no hard link to the others of its group any more")
                yield None
            if known.kind == FILE and (contents.chunk or rank.splits(known.size)):
                result.spawn_elsewhere(SplitRead(contents), known.size, contents.writers[0])
                return
            yield from compare(rank, contents)
        except Problem as problem:
            not_verified(rank, result, contents, problem)
        else:
            verified(result, contents)
