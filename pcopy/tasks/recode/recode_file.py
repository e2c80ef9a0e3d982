"""Compression or decompression of a large file in parts, by all ranks in parallel, into one temporary file.

In decompression, the seek table states the offset of each frame. In compression, the offset of a part is known only
after all earlier parts are compressed. So the rank that has compressed a part holds it in memory until the rank that
has split the file announces the offset (``WritePart``). To limit the memory, only a few parts of a file are under way
at a time.

The progress of a file is known only in the memory of these ranks. A resumed job recodes the file from the start: the
note ``RecodeOpened`` stays deferred until the file is complete, and tasks for parts that an earlier run has left do
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Generator

from pcopy.fsio.close import abandon, close_written
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.passage import write_all
from pcopy.fsio.problem import Plain, Problem
from pcopy.fsio.recode import read_span, room_for, write_contents
from pcopy.fsio.seekable_zstd import SeekTable, compress_frame, read_frame
from pcopy.fsio.source import Version, check_unchanged
from pcopy.fsio.temporary import made_by, reopen
from pcopy.tasks.base import counts
from pcopy.tasks.base.attempts import failed_or_retried
from pcopy.tasks.base.kind import Note, OfItem, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.spreading import chunk_size
from pcopy.tasks.base.storing import data_stored
from pcopy.tasks.base.values import Item, OpenFile, Place, pack_numbers
from pcopy.tasks.files.existing import inherits_acl
from pcopy.tasks.files.finish_file import Opened, discard
from pcopy.tasks.recode.finish_recoded import FinishRecoded, OfRecoded, recoding_failed
from pcopy.tasks.recode.goal import checked, goal_of, is_for_the_list, level_of, span_for, stays
from pcopy.tasks.recode.parts import Division, Packed, Parts, packed_table, unpacked_table
from pcopy.tasks.recode.recode_files import recode_whole

PARTS_PER_RANK = 2
"""Number of parts of one file that are under way for each rank: one that it works on, and one that waits."""


class RecodeFile(OfItem, code=171, doing="compressing or decompressing", is_note=False):
    """Task that recodes a large file, or one that lies on another file system than its directory."""

    def run(self, rank: Rank, result: Result) -> Steps:
        """Split the file if there are several ranks and it can be split; otherwise recode it on this rank."""
        item = self.item
        try:
            if is_for_the_list(rank, item):
                result.spawn(self, item.size, owner=0)
            elif rank.size == 1 or rank.options.dry_run or not (yield from _split(item, rank, result)):
                yield from recode_whole(rank, result, item)
        except Problem as problem:
            failed_or_retried(result, item.place, item.name, problem, item.attempt, item.size)


class RecodeOpened(OfRecoded, code=172, doing="waiting for the parts of", is_note=True):
    """Note to the rank that has split a file: how the file is divided.

    In a resumed job it starts the file again.
    """

    bounds: bytes
    table: Packed
    span: int

    def home(self, ranks: int) -> int:
        """Return the number of the rank that has split the file."""
        return made_by(self.file.temporary)[1] % ranks

    def run(self, rank: Rank, result: Result) -> None:
        if not self.is_of(rank):
            result.spawn(RecodeFile(self.file.item), self.file.version.size)
            return
        result.hold()
        parts = Parts(self.division.parts, PARTS_PER_RANK * rank.size, result.id)
        rank.own(Recoded)[self.file.temporary] = self, parts

    @property
    def division(self) -> Division:
        """The division of the file."""
        return Division(self.bounds, self.table, self.span, self.room)

    def part(self, number: int) -> RecodePart:
        """Return the task for the part ``number``."""
        start, end = self.division.of(number)
        table = self.division.frames(start, end) if any(self.table) else self.table
        return RecodePart(self.file, self.room, number, start, end, table, self.span)


class Recoded(dict[bytes, tuple[RecodeOpened, Parts]]):
    """The unfinished files that this rank has split, by the names of their temporary files."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class Kept(dict[tuple[bytes, int], list[bytes]]):
    """Compressed frames of parts that wait to be written, by the name of the temporary file and the number
    of the part."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class RecodePart(OfRecoded, code=173, doing="compressing or decompressing a part of", is_note=False):
    """Task that recodes the part ``number`` of a file.

    For compression, it is the bytes from ``start`` to ``end`` of the source, in frames of ``span`` bytes. For
    decompression, it is the frames in ``table``.
    """

    number: int
    start: int
    end: int
    table: Packed
    span: int

    @property
    def cost(self) -> int:
        """The cost of the task: bytes of the source, or frames."""
        return self.end - self.start

    def discard(self, rank: Rank, since: int) -> None:
        """Remove the temporary file, if the run ``since`` or a later one has created it."""
        if made_by(self.file.temporary)[0] >= since:
            discard(rank, self.file)

    def run(self, rank: Rank, result: Result) -> Steps:
        if not self.is_of(rank):
            return
        failure, frames, root = None, b"", b""
        is_held = bool(rank.options.compress)
        try:
            if is_held:
                frames, root = yield from _compress(self, rank)
            else:
                yield from _decompress(self, rank)
                rank.succeeded()
        except Problem as problem:
            rank.failed(problem, *self.about())
            failure, is_held = problem.plain, False
        holder = rank.number if is_held else -1
        result.spawn(PartDone(self.file.temporary, self.number, failure, frames, root, holder))


class PartDone(Note, code=174, doing="recording a part of a file"):
    """Note to the rank that has split a file: a part is written, compressed, or has failed.

    Fields:
      temporary: the name of the temporary file.
      number: the number of the part.
      problem: the error, or None.
      frames: for a compressed part the bytes of each frame, packed.
      root: the content root of the part, if digests are computed.
      holder: the rank that holds the compressed part in memory; -1 if the part is written or has failed.
    """

    temporary: bytes
    number: int
    problem: Plain | None
    frames: bytes
    root: bytes
    holder: int

    def home(self, ranks: int) -> int:
        """Return the number of the rank that has split the file."""
        return made_by(self.temporary)[1] % ranks

    def run(self, rank: Rank, result: Result) -> None:
        if made_by(self.temporary)[0] != rank.job.run:
            return
        opened, parts = rank.own(Recoded)[self.temporary]
        if self.problem is not None and parts.problem is None:
            parts.problem = Problem.from_plain(self.problem)
            discard(rank, opened.file)  # so that the parts under way fail at once
        if self.holder < 0:
            parts.ended()
        else:
            parts.compressed(self.number, self.frames, self.root, self.holder)
        for number, holder, offset in parts.to_write():
            result.spawn(WritePart(opened.file, opened.room, number, offset), owner=holder)
        for number in parts.to_hand_out():
            part = opened.part(number)
            result.spawn(part, part.cost)
        if parts.is_over:
            del rank.own(Recoded)[self.temporary]
            result.settle([parts.held])
            _ended(opened, parts, rank, result)


class WritePart(OfRecoded, code=175, doing="writing a part of", is_note=True):
    """Task of the rank that holds a compressed part: write it at the byte ``offset``; discard it if the
    offset is -1."""

    number: int
    offset: int

    may_be_dropped = True

    def run(self, rank: Rank, result: Result) -> Steps:
        if not self.is_of(rank):
            return
        file, failure = self.file, None
        frames = rank.own(Kept).pop((file.temporary, self.number))
        if self.offset >= 0:
            try:
                yield from _write(self, frames, rank)
                rank.succeeded()
            except Problem as problem:
                rank.failed(problem, *self.about())
                failure = problem.plain
        result.spawn(PartDone(file.temporary, self.number, failure, b"", b"", -1))


def _split(item: Item, rank: Rank, result: Result) -> Generator[None, None, bool]:
    """Create the temporary file and spawn the first parts; return True if that was done or the existing item is
    unchanged.

    Return False if one rank must recode the whole file. Raise ``Problem`` if the file cannot be opened or created.
    """
    began, place = time.monotonic_ns(), item.place
    with checked(rank, item) as (reading, status):
        division = _divided(rank, place, reading, status.st_size)
        if division is None:
            return False
        goal = goal_of(rank, item)
        if (yield from stays(result, goal, item, reading, status)):
            return True
        temporary = rank.temporary_names.next()
        with NewFile.beside(goal.directory, temporary, layout=goal.recipe(reading, status)) as new:
            shown = new.open_to_others(inherits=inherits_acl(rank, place, goal.directory))
            made = new.identity(place.target_id.mount)
            new.extend(division.room)
            new.keep(sync=rank.syncs_items(place))
        if new.other_layout:
            result.other_layout(place, item.name, new.other_layout)
    if result.items.is_wanted:
        rank.own(Opened)[temporary] = began
    file = OpenFile(item, Version.of(status), temporary, made, shown=shown)
    opened = RecodeOpened(file, division.room, division.bounds, division.table, division.span)
    result.spawn(opened)
    first = range(min(PARTS_PER_RANK * rank.size, division.parts))
    for part in map(opened.part, reversed(first)):  # a rank runs the newest task first
        result.spawn(part, part.cost)
    return True


def _divided(rank: Rank, place: Place, reading: int, size: int) -> Division | None:
    """Return how the file is divided; None if it is not divided. Raise ``Problem`` if its seek table cannot be read."""
    options = rank.options
    if options.sequential:
        return None
    chunk = chunk_size(options.chunk_size, options.block_size, size, 0, 1)
    if options.compress:
        if 2 * size < 3 * chunk:
            return None
        span = min(span_for(rank, place, reading, size), chunk)
        frames = -(-size // chunk) * -(-chunk // span)
        return Division(pack_numbers([*range(0, size, chunk), size]), (b"", b"", b""), span, room_for(size, frames))
    table = SeekTable.read(reading, size)
    if table is None or table.frames < 2 or 2 * table.size < 3 * chunk:
        return None
    bounds = [0]
    for number in range(1, table.frames):
        if table.contents_at[number] - table.contents_at[bounds[-1]] >= chunk:
            bounds.append(number)
    return Division(pack_numbers([*bounds, table.frames]), packed_table(table), 0, table.size)


def _compress(task: RecodePart, rank: Rank) -> Generator[None, None, tuple[bytes, bytes]]:
    """Compress a part, and hold its frames in memory.

    Return for each frame its bytes and those of its contents, packed, and the content root. Raise ``Problem`` on an
    error.
    """
    file, level, hasher = task.file, level_of(rank), rank.hasher()
    compressed: list[bytes] = []
    numbers: list[int] = []
    with rank.reading(file.item.place, file.item.name) as reading:
        check_unchanged(reading, file.version)
        for at in range(task.start, task.end, task.span):
            length = min(task.span, task.end - at)
            yield from rank.throttle.spend(length)
            data = read_span(reading, at, length)
            if hasher is not None:
                hasher.update(data)
            compressed.append(compress_frame(data, level))
            numbers += (len(compressed[-1]), length)
            rank.counters[counts.MOVED] += length
            yield
        check_unchanged(reading, file.version)
    rank.own(Kept)[file.temporary, task.number] = compressed
    return pack_numbers(numbers), b"" if hasher is None else hasher.root()


def _decompress(task: RecodePart, rank: Rank) -> Steps:
    """Decompress a part, and write it into the temporary file. Raise ``Problem`` if that fails."""
    file, table, sparse = task.file, unpacked_table(task.table), rank.options.preserve.sparse
    with rank.reading(file.item.place, file.item.name) as reading:
        check_unchanged(reading, file.version)
        writing = reopen(rank.open_target(file.item.place), file.temporary, file.made, task.room, file.shown)
        try:
            for number in range(table.frames):
                contents = read_frame(reading, table, number)
                yield from rank.throttle.spend(len(contents))
                write_contents(writing, contents, table.contents_at[number], sparse=sparse)
                rank.counters[counts.MOVED] += table.at[number + 1] - table.at[number]
                yield None
            check_unchanged(reading, file.version)
            sync = rank.syncs_items(file.item.place)
            if not sync and _must_store(rank):
                yield from data_stored(rank, writing)
        except BaseException:
            abandon(writing)
            raise
        close_written(writing, sync=sync)


def _must_store(rank: Rank) -> bool:
    """Return True if a part counts as written only after it is on stable storage.

    That is so with several hosts: the size of the file was set before, so missing data would not be noticed, and the
    rank that finishes the file may run on another host, which cannot sync what this one has cached.
    """
    return rank.options.sync and rank.hosts.number > 1


def _write(task: WritePart, frames: list[bytes], rank: Rank) -> Steps:
    """Write the ``frames`` of a compressed part into the temporary file. Raise ``Problem`` if that fails."""
    file, at = task.file, task.offset
    writing = reopen(rank.open_target(file.item.place), file.temporary, file.made, task.room, file.shown)
    try:
        for frame in frames:
            write_all(writing, frame, at)
            at += len(frame)
        sync = rank.syncs_items(file.item.place)
        if not sync and _must_store(rank):
            yield from data_stored(rank, writing)
    except BaseException:
        abandon(writing)
        raise
    close_written(writing, sync=sync)


def _ended(opened: RecodeOpened, parts: Parts, rank: Rank, result: Result) -> None:
    """Spawn the task that finishes the file, or report its failure, after the last part has ended."""
    file = opened.file
    if parts.problem is not None:
        discard(rank, file)
        recoding_failed(rank, result, file, parts.problem)
        return
    digest = rank.hashing.chunks(file.version.size, parts.roots) if rank.digests else b""
    frames = b"".join(filter(None, parts.frames))
    result.spawn(FinishRecoded(file, opened.room, frames, digest), owner=rank.number)


def discard_all(rank: Rank, since: int = 1) -> None:
    """Remove the temporary files of this rank, because the job stops; only those that the run ``since`` or a later one
    created."""
    recoded = rank.own(Recoded)
    for temporary, (opened, _) in recoded.items():
        if made_by(temporary)[0] >= since:
            discard(rank, opened.file)
    recoded.clear()
