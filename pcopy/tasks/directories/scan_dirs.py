"""ScanDirs: directories that lie beside each other are scanned one after the other, by one task.

What a directory costs by itself is so shared by many. What is a plain case is done whole by the kernel; ``ScanDir``
does the others, and tells what it all means.
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
    """As ``ScanDir``, for the directories ``names`` of ``place``, which have these ``inodes``, one after the other."""

    inodes: bytes

    effort = 0  # each of them counts by itself

    def about(self) -> tuple[Place, bytes]:
        return self.place, self.names.partition(b"/")[0]

    def chosen(self, rows: Sequence[int]) -> ScanDirs:
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        return ScanDirs(self.place, pack_names(names[row] for row in rows), pack_numbers([inodes[row] for row in rows]))

    def each(self) -> Iterator[ScanDir]:
        return map(self.one, unpack_names(self.names), unpack_numbers(self.inodes))

    def one(self, name: bytes, inode: int) -> ScanDir:
        """The same, of one of them."""
        around = self.place
        path = around.path + b"/" + name if around.path else name
        return ScanDir(around.root, path, Identity(around.source_id.mount, inode), around, around.since)

    def tell(self, task: Task, gone: Gone) -> None:
        if task.phase == Phase.COPY:
            gone.scans()

    def run(self, rank: Rank, result: Result) -> Steps:
        names, inodes, finishes = unpack_names(self.names), unpack_numbers(self.inodes), Finishes(self.place)
        at, end, left = 0, time.monotonic() + LONG, list[int]()
        while at < len(names):
            some = slice(at, at + rank.own(AtOnce).number)
            rows = yield from self._scan(rank, result, names[some], inodes[some], finishes)
            left += [at + row for row in rows]
            at = some.stop
            if rank.stop_reason is not None:
                break  # what has failed is told: a task between two slices would be dropped
            yield None
            if time.monotonic() > end:
                break
        result.turn_back()
        finishes.spawn(result)
        left += range(at, len(names))
        if left:
            rest = self.chosen(left)
            for task in rest.divide(min(2, rest.items)):
                spawn_scan(result, task)

    def _scan(
        self, rank: Rank, result: Result, names: list[bytes], inodes: array[int], finishes: Finishes
    ) -> Stepwise[list[int]]:
        """Some of them, with whatever the kernel can do of them; tells which are left, since this rank stops."""
        entered = yield from self._enter(rank, result, names, inodes)
        if entered is not None:
            result.turn_back()
            _count(result, entered)
        left = []
        for row, (name, inode) in enumerate(zip(names, inodes, strict=True)):
            code = Code.CARE if entered is None else entered.verdicts.codes[row]
            found = entered.left.get(row) if entered is not None else None
            if code == Code.DONE and found is None:
                continue
            if rank.stop_reason is not None and not (found is not None and found.copied[0]):  # what was copied counts
                left.append(row)
            elif found is None:
                scan = self.one(name, inode)
                result.turn_to((scan.root, scan.path))
                yield from scan.scan(rank, result, finishes.add, made=code == Code.ANEW)
            else:
                yield from _go_on(rank, result, self.place, name, inode, found, finishes)
        return left

    def _enter(self, rank: Rank, result: Result, names: list[bytes], inodes: array[int]) -> Stepwise[Entered | None]:
        """Enters some of them; None if they want care."""
        place = self.place
        in_bulk = result.phase == Phase.COPY and not rank.throttle.is_on
        target = open_plain(rank, place, names) if in_bulk else None
        if target is None:
            return None
        try:
            source = rank.open_source(place)
        except Problem:  # which each tells by itself
            return None
        batch = Enter(source, pack_names(names), target, inodes, in_common(rank, place))
        if batch.common.copies:
            rank.learn_times(target, batch.common.target_device, result.notices)
        began = time.monotonic()
        entered = yield from rank.done(batch)
        seconds = time.monotonic() - began
        rank.own(AtOnce).took(seconds)
        names_seen = entered.skipped + sum(len(found.rows) + found.skipped[0] for found in entered.left.values())
        if names_seen and not batch.common.copies:  # to copy takes longer than to look
            rank.own(Paces).took(ScanNames.code, names_seen, seconds)
        return entered


def _count(result: Result, entered: Entered) -> None:
    """What is done counts in the directory around: no task names these directories any more."""
    done = entered.verdicts.codes.count(Code.DONE) - len(entered.left)
    result.count(counts.DIRECTORIES, done)
    result.count(counts.UNSCANNED, -done)
    _count_skipped(result, entered.skipped, entered.skipped_bytes)


def _count_skipped(result: Result, items: int, size: int) -> None:
    if items:
        for counter in (counts.FOUND, counts.SKIPPED):
            result.count(counter, items)
        for counter in (counts.FOUND_BYTES, counts.SKIPPED_BYTES):
            result.count(counter, size)


def _count_copied(rank: Rank, result: Result, items: int, size: int) -> None:
    rank.succeeded()
    rank.counters[counts.MOVED] += size
    for counter in (counts.FOUND, counts.FILES):
        result.count(counter, items)
    for counter in (counts.FOUND_BYTES, counts.BYTES):
        result.count(counter, size)


def _go_on(
    rank: Rank, result: Result, around: Place, name: bytes, inode: int, found: Sibling, finishes: Finishes
) -> Steps:
    """What is left in the directory ``name`` goes to the visitor, and the directory is to be finished."""
    path = around.path + b"/" + name if around.path else name
    made = Identity(around.target_id.mount, found.inode, found.mark)
    attributes = found.attributes
    result.turn_to((around.root, path))
    result.count(counts.UNSCANNED, -1)
    _count_skipped(result, *found.skipped)
    if found.copied[0]:
        _count_copied(rank, result, *found.copied)
    is_plain = has_common_times(attributes.atime, attributes.mtime) and may_be_entered(attributes)
    if is_plain:
        finishes.add_plain(name, inode, made, attributes, found.fresh + 2 * found.inherits)
    if is_plain and not found.names:
        return
    source = Identity(around.source_id.mount, inode)
    place = Place(around.root, path, source, made, found.fresh, found.inherits, around.since)
    if found.names:
        visitor = rank.visitor(rank, result, place, 0)
        hand_over(Found(-1, found.names, found.rows, {}), visitor)
        yield from visitor.settle()
        visitor.finish()
    if not is_plain:
        to_be_finished(rank, result, FinishDir(place, attributes, True, -1), finishes.add)


def spawn_scan(result: Result, scan: ScanDirs) -> None:
    result.spawn(scan, scan.items * SCAN_COST, expands=True)


def spawn_scans(rank: Rank, result: Result, place: Place, names: Sequence[bytes], inodes: Sequence[int]) -> None:
    """The directories ``names`` of ``place`` are to be scanned."""
    for share in shares(rank, len(names)):
        spawn_scan(result, ScanDirs(place, pack_names(names[share]), pack_numbers([*inodes[share]])))
    result.count(counts.UNSCANNED, len(names))
