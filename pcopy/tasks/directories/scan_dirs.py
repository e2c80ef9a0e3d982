"""ScanDirs: scan several sibling directories in one task.

This spreads the fixed cost of a task over many directories. The backend processes simple directories completely, in
batches; ``ScanDir`` processes the others and describes the semantics.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence

from pcopy.engine.task import Task
from pcopy.engine.ticket import Stepwise
from pcopy.fsio.attributes import has_common_times
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.columns import Code, pack_names, unpack_names
from pcopy.fsio.kernel.directory_batches import Enter, Entered, Sibling
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.dividing import Paces
from pcopy.tasks.base.kind import Gone, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.siblings import LONG, AtOnce, OfSiblings, shares
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.directories.finish_dir import FinishDir
from pcopy.tasks.directories.finish_dirs import Finishes
from pcopy.tasks.directories.plain import in_common, open_plain
from pcopy.tasks.directories.scan_dir import ScanDir, ScanNames, may_be_entered, to_be_finished
from pcopy.walk.visitor import Found, hand_over


class ScanDirs(OfSiblings, code=8, doing="scanning", is_note=False):
    """As ``ScanDir``, for the sub-directories ``names`` of ``place``, one after the other; ``inodes`` are their inode
    numbers.
    """

    inodes: bytes

    effort = 0  # ``ScanDir.scan`` counts the operations of each directory

    def about(self) -> tuple[Place, bytes]:
        return self.place, self.names.partition(b"/")[0]

    def chosen(self, rows: Sequence[int]) -> ScanDirs:
        """Return the same task for these ``rows`` only."""
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        return ScanDirs(self.place, pack_names(names[row] for row in rows), pack_numbers([inodes[row] for row in rows]))

    def each(self) -> Iterator[ScanDir]:
        """Yield one ``ScanDir`` for each directory."""
        return map(self.one, unpack_names(self.names), unpack_numbers(self.inodes))

    def one(self, name: bytes, inode: int) -> ScanDir:
        """Return the ``ScanDir`` of one directory."""
        parent = self.place
        path = parent.path + b"/" + name if parent.path else name
        return ScanDir(parent.root, path, Identity(parent.source_id.mount, inode), parent, parent.since)

    def tell(self, task: Task, gone: Gone) -> None:
        if task.phase == Phase.COPY:
            gone.scans()

    def run(self, rank: Rank, result: Result) -> Steps:
        """Scan the directories batch by batch. After ``LONG`` seconds, or if the rank stops, the remaining ones become
        new tasks.
        """
        names, inodes, finishes = unpack_names(self.names), unpack_numbers(self.inodes), Finishes(self.place)
        start, end, remaining = 0, time.monotonic() + LONG, list[int]()
        while start < len(names):
            batch = slice(start, start + rank.own(AtOnce).number)
            rows = yield from self._scan(rank, result, names[batch], inodes[batch], finishes)
            remaining += [start + row for row in rows]
            start = batch.stop
            if rank.stop_reason is not None:
                break  # end now, so that failures are reported: a stopping rank drops a task that has yielded
            yield None
            if time.monotonic() > end:
                break
        result.turn_back()
        finishes.spawn(result)
        remaining += range(start, len(names))
        if remaining:
            rest = self.chosen(remaining)
            for task in rest.divide(min(2, rest.items)):
                spawn_scan(result, task)

    def _scan(
        self, rank: Rank, result: Result, names: list[bytes], inodes: array[int], finishes: Finishes
    ) -> Stepwise[list[int]]:
        """Scan one batch of directories; return the rows that remain because this rank is stopping."""
        entered = yield from self._enter(rank, result, names, inodes)
        if entered is not None:
            result.turn_back()
            _count(result, entered)
        remaining = []
        for row, (name, inode) in enumerate(zip(names, inodes, strict=True)):
            code = Code.CARE if entered is None else entered.verdicts.codes[row]
            found = entered.left.get(row) if entered is not None else None
            if code == Code.DONE and found is None:
                continue
            # A rank that stops begins no further directories, but files that the batch has copied must be counted.

            if rank.stop_reason is not None and not (found is not None and found.copied[0]):
                remaining.append(row)
            elif found is None:
                scan = self.one(name, inode)
                result.turn_to((scan.root, scan.path))
                yield from scan.scan(rank, result, finishes.add, made=code == Code.ANEW)
            else:
                yield from _go_on(rank, result, self.place, name, inode, found, finishes)
        return remaining

    def _enter(self, rank: Rank, result: Result, names: list[bytes], inodes: array[int]) -> Stepwise[Entered | None]:
        """Let the backend process one batch; return its result, or None if the directories need the slow path."""
        place = self.place
        in_bulk = result.phase == Phase.COPY and not rank.throttle.is_on
        target = open_plain(rank, place, names) if in_bulk else None
        if target is None:
            return None
        try:
            source = rank.open_source(place)
        except Problem:  # the slow path reports it for each directory
            return None
        batch = Enter(source, pack_names(names), target, inodes, in_common(rank, place))
        if batch.common.copies:
            rank.learn_times(target, batch.common.target_device, result.notices)
        began = time.monotonic()
        entered = yield from rank.done(batch)
        seconds = time.monotonic() - began
        rank.own(AtOnce).took(seconds)
        names_seen = entered.skipped + sum(len(found.rows) + found.skipped[0] for found in entered.left.values())
        if names_seen and not batch.common.copies:  # copying takes longer than stat(2), which ``Paces`` measures
            rank.own(Paces).took(ScanNames.code, names_seen, seconds)
        return entered


def _count(result: Result, entered: Entered) -> None:
    """Count the directories that the backend completed in their parent directory: no later task names them."""
    done = entered.verdicts.codes.count(Code.DONE) - len(entered.left)
    result.count(counts.DIRECTORIES, done)
    result.count(counts.UNSCANNED, -done)
    _count_skipped(result, entered.skipped, entered.skipped_bytes)


def _count_skipped(result: Result, items: int, size: int) -> None:
    """Count this many items, with ``size`` bytes together, as found and skipped."""
    if items:
        for counter in (counts.FOUND, counts.SKIPPED):
            result.count(counter, items)
        for counter in (counts.FOUND_BYTES, counts.SKIPPED_BYTES):
            result.count(counter, size)


def _count_copied(rank: Rank, result: Result, items: int, size: int) -> None:
    """Count this many files, with ``size`` bytes together, as found and copied."""
    rank.succeeded()
    rank.counters[counts.MOVED] += size
    for counter in (counts.FOUND, counts.FILES):
        result.count(counter, items)
    for counter in (counts.FOUND_BYTES, counts.BYTES):
        result.count(counter, size)


def _go_on(
    rank: Rank, result: Result, parent: Place, name: bytes, inode: int, found: Sibling, finishes: Finishes
) -> Steps:
    """Pass the items of the sub-directory ``name`` that the backend left over to the visitor, and have the directory
    finished.

    Args:
        parent: the directory that contains it.
        found: what the backend returned for the directory.
        finishes: collects directories to be finished.
    """
    path = parent.path + b"/" + name if parent.path else name
    target = Identity(parent.target_id.mount, found.inode, found.mark)
    attributes = found.attributes
    result.turn_to((parent.root, path))
    result.count(counts.UNSCANNED, -1)
    _count_skipped(result, *found.skipped)
    if found.copied[0]:
        _count_copied(rank, result, *found.copied)
    is_simple = has_common_times(attributes.atime, attributes.mtime) and may_be_entered(attributes)
    if is_simple:
        finishes.add_plain(name, inode, target, attributes, found.fresh + 2 * found.inherits)
    if is_simple and not found.names:
        return
    source = Identity(parent.source_id.mount, inode)
    place = Place(parent.root, path, source, target, found.fresh, found.inherits, parent.since)
    if found.names:
        visitor = rank.visitor(rank, result, place, 0)
        hand_over(Found(-1, found.names, found.rows, {}), visitor)
        yield from visitor.settle()
        visitor.finish()
    if not is_simple:
        to_be_finished(rank, result, FinishDir(place, attributes, True, -1), finishes.add)


def spawn_scan(result: Result, scan: ScanDirs) -> None:
    """Spawn the task, with a cost for each directory in it."""
    result.spawn(scan, scan.items * SCAN_COST, expands=True)


def spawn_scans(rank: Rank, result: Result, place: Place, names: Sequence[bytes], inodes: Sequence[int]) -> None:
    """Spawn tasks that scan the sub-directories ``names`` of ``place``, and count these as not scanned yet."""
    for share in shares(rank, len(names)):
        spawn_scan(result, ScanDirs(place, pack_names(names[share]), pack_numbers([*inodes[share]])))
    result.count(counts.UNSCANNED, len(names))
