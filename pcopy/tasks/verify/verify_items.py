"""VerifyItems and VerifyLinks: copies are read back from storage and compared with what they were meant to be.

An item that is gone, can't be read, or differs does not verify, nor does one whose source has changed since. It has
failed; with ``--repair`` it is copied again the first time.
"""

from __future__ import annotations

import os

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import Read, Stat
from pcopy.fsio.kernel.columns import VERSION, Code, pack_names, unpack_names
from pcopy.fsio.kernel.interface import SMALL_FILE, waited
from pcopy.fsio.problem import Problem, failing
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.hashing import split_digests, unpack_known
from pcopy.tasks.base.kind import OfPlace, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Contents, Known, unpack_numbers
from pcopy.tasks.verify.reading import compare, not_verified, read_rows, unlike, unlike_contents, verified
from pcopy.tasks.verify.split_read import OfContents, SplitRead


class VerifyItems(OfPlace, code=41, doing="reading back the copies of", is_note=False):
    """Items of a target directory (the name ``b""``: the directory itself).

    One byte of ``kinds`` and of ``counters`` (where each has been counted), 8 of ``sizes``, 32 of ``versions`` and one
    digest of ``digests`` for each of ``names``. ``writer`` is the host that wrote them.
    """

    names: bytes
    kinds: bytes
    counters: bytes
    sizes: bytes
    versions: bytes
    digests: bytes
    writer: int

    def run(self, rank: Rank, result: Result) -> Steps:
        """Small files go through the kernel; other items, and those that want care, one by one after them.

        Large files become tasks of their own.
        """
        names, sizes = unpack_names(self.names), unpack_numbers(self.sizes)
        digests = split_digests(self.digests, rank.hashing.algorithm.size)
        known = unpack_known(self.kinds, sizes, self.versions, digests)
        careful = yield from self._verify_small_files(rank, result, names, known)
        for index in careful:
            copy = self._copy(names, known, index)
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

    def _copy(self, names: list[bytes], known: list[Known], index: int) -> Contents:
        counter, writers = self.counters[index], bytes((self.writer,))
        return Contents(self.place, names[index], known[index], False, 0, counter, writers=writers)

    def _verify_small_files(
        self, rank: Rank, result: Result, names: list[bytes], known: list[Known]
    ) -> Stepwise[list[int]]:
        """Which items want care: all but small files, what can't be read just so, and copies of what has changed."""
        place = self.place
        try:
            source, target = rank.open_source(place), rank.open_target(place)
        except Problem:
            return list(range(len(names)))
        plain: list[int] = []
        careful: list[int] = []
        for index, (kind, size, *_) in enumerate(known):
            is_plain = kind == FILE and size <= SMALL_FILE and not rank.options.direct
            (plain if is_plain else careful).append(index)
        if not plain:
            return careful
        packed = pack_names(rank.new_name(place, names[index]) for index in plain)
        read = yield from read_rows(rank, Read(target, packed, copies=True), counts.VERIFIED_BYTES)
        packed = pack_names(names[index] for index in plain)
        stat = Stat(source, packed, VERSION, follow=rank.options.dereference)
        sources = yield from waited(rank.kernel, rank.kernel.submit(stat))
        for row, index in enumerate(plain):
            expected = known[index]
            if read.verdicts.codes[row] != Code.DONE:
                careful.append(index)
                continue
            size = read.verdicts.bytes[row]
            if (size, read.digests[row]) != (expected.size, expected.digest):
                copy = self._copy(names, known, index)
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
