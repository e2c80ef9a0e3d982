"""ReadItems: read items of the source that are not copied but whose digests are needed.

These are items that a copy skips and a signature describes, and all items that ``pverify`` reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.close import held_open
from pcopy.fsio.half_written import refuse_marked
from pcopy.fsio.kernel.batches import Read
from pcopy.fsio.kernel.columns import Code, pack_names, unpack_names
from pcopy.fsio.nodes import open_node
from pcopy.fsio.problem import Problem, changed
from pcopy.fsio.source import Version, check_found, status_of
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.gathered import Gathered
from pcopy.tasks.base.hashing import SOCKET, kind_of
from pcopy.tasks.base.kind import Divisible, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Contents, Known, Place, pack_numbers, unpack_numbers
from pcopy.tasks.verify.reading import count_read, digested_part, node_known, read_failed, read_rows, verifies, was_read
from pcopy.tasks.verify.split_read import SplitRead

_DONE = bytes((Code.DONE,))


class ReadItems(Divisible, code=40, doing="reading files of", is_note=False):
    """Reads items of a source directory; ``kinds`` holds their type bytes.

    ``counter`` is the counter in which they have been counted, or -1 if they have not been counted yet.
    """

    kinds: bytes
    inodes: bytes
    attempt: int
    counter: int

    columns = ("kinds", "inodes")

    def run(self, rank: Rank, result: Result) -> Steps:
        """Read small files in batches, then the remaining items one by one."""
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        try:
            source = rank.open_source(self.place)
        except Problem as problem:
            for name in names:
                self._failed(result, name, problem)
            return
        slow_rows = yield from self._read_small_files(rank, result, source, names)
        for index in slow_rows:
            name, inode, kind = names[index], inodes[index], self.kinds[index : index + 1]
            try:
                if kind == FILE:
                    known = yield from self._read_file(rank, result, name, inode)
                else:
                    known = _read_node(rank, source, name, inode, kind)
            except Problem as problem:
                self._failed(result, name, problem)
            else:
                if known is not None:
                    was_read(rank, result, self.place, name, known, self.counter)
            yield None

    def _failed(self, result: Result, name: bytes, problem: Problem) -> None:
        read_failed(result, self.place, name, problem, self.attempt, self.counter)

    def _read_small_files(self, rank: Rank, result: Result, source: int, names: list[bytes]) -> Stepwise[list[int]]:
        """Read the small files in batches; return the indices of the items that must be read one by one.

        Those are all other items, and files that could not be read or have changed.
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
        whole = rank.options.signs  # a signature must not include files that are marked as half written
        read = yield from read_rows(rank, Read(source, packed, whole=whole), counts.MOVED)
        slow_rows = [] if len(small_files) == len(names) else sorted({*range(len(names))}.difference(small_files))
        digests = Gathered()
        if read.verdicts.codes.strip(_DONE) or read.seen.inode != inodes:
            done: list[int] = []
            for row, index in enumerate(small_files):
                is_done = read.verdicts.codes[row] == Code.DONE and read.seen.inode[row] == inodes[row]
                (done if is_done else slow_rows).append(row if is_done else index)
            plain_names = [names[index] for index in small_files]
            counter = self._count(
                rank, result, [plain_names[row] for row in done], array("Q", map(read.seen.size.__getitem__, done))
            )
            digests.add_chosen(done, plain_names, read.seen, read.seen.size, read.digests.data, counter)
        else:
            counter = self._count(rank, result, unpack_names(packed), read.seen.size)
            digests.add_rows(packed, read.seen, read.seen.size, read.digests.data, counter)
        result.digested_files(self.place, digests, verify=verifies(rank, self.place))
        return slow_rows

    def _count(self, rank: Rank, result: Result, names: list[bytes], sizes: array[int]) -> int:
        """Count regular files that were read, unless they are counted already; return the counter that they are counted
        in.

        Args:
            sizes: their sizes in bytes.
        """
        if self.counter >= 0:
            return self.counter
        if rank.job.copies:
            result.items.did_files(Action.SKIP, self.place, names, sizes)
        return count_read(rank, result, self.place, FILE, len(sizes), sum(sizes))

    def _read_file(self, rank: Rank, result: Result, name: bytes, inode: int) -> Generator[None, None, Known | None]:
        """Read one file and return its digest; return None for a large file, whose parts are read by further tasks.
        Raise ``Problem``.
        """
        with rank.reading(self.place, name) as reading:
            status = status_of(reading, on_source=True)
            check_found(status, None, inode)
            if rank.options.signs:
                refuse_marked(reading)
            known = Known(FILE, status.st_size, b"", Version.of(status))
            if rank.splits(known.size) and not rank.is_generated(self.place):
                result.spawn(SplitRead(Contents(self.place, name, known, True, self.attempt, self.counter)), known.size)
                return None
            hasher = yield from digested_part(rank, reading, status, 0, known.size, on_source=True)
            return known._replace(size=hasher.size, digest=rank.hashing.file(hasher))


def _read_node(rank: Rank, source: int, name: bytes, inode: int, kind: bytes) -> Known:
    """Return the digest of a symbolic link or special file; raise ``Problem`` if another item has taken its name."""
    with held_open(open_node(source, name, on_source=True, follow=rank.options.dereference)) as node:
        status = status_of(node, on_source=True)
        if status.st_ino != inode or kind_of(status) != kind:
            raise changed("open", "another item has taken its name")
        return node_known(rank.hashing, node, status, on_source=True)


def skipped(rank: Rank, result: Result, place: Place, name: bytes, known: Known, action: Action = Action.SKIP) -> None:
    """Count an existing item that is kept as skipped, or spawn a task that reads it first if its digest is needed.

    Args:
        action: the action to report; ``Action.META`` if its metadata was updated.
    """
    is_read = known.kind != SOCKET and (rank.signs or rank.verifies_skipped)
    if is_read:
        read_too(result, place, name, known, counts.SKIPPED if action == Action.META else -1)
    if not is_read or action == Action.META:
        result.count(counts.SKIPPED, 1, place)
        result.count(counts.SKIPPED_BYTES, known.size, place)
        result.items.did(action, place, name, known.kind, known.size)


def read_too(result: Result, place: Place, name: bytes, known: Known, counter: int = -1) -> None:
    """Spawn a task that reads an item which is not copied; ``counter`` as in ``ReadItems``."""
    result.spawn(ReadItems(place, name, known.kind, pack_numbers([known.version.inode]), 0, counter), known.size)
