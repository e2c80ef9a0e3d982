"""RecodeFile: a large file becomes parts, which all ranks compress, or decompress, at once into one temporary file.

Where a frame that is decompressed goes, the seek table tells. Where one that is compressed goes is known once all
before it are done: its rank keeps it in memory until the rank that has split the file tells where (WritePart). To
bound that memory, only a few parts of a file are under way at a time.

How far the file is, only the memory of these ranks knows. A job that is resumed begins the file anew: the note
RecodeOpened is held until the file is whole, and what is left of an earlier run's parts does nothing.
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
"""Parts of one file that are under way at a time for each rank: one that it works on, and one that waits."""


class RecodeFile(OfItem, code=171, doing="recoding", is_note=False):
    """A large file, or one on another file system than its directory."""

    def run(self, rank: Rank, result: Result) -> Steps:
        """Splits the file, if there are several ranks and it can be split; else this one recodes all of it."""
        item = self.item
        try:
            if is_for_the_list(rank, item):
                result.spawn(self, item.size, owner=0)
            elif rank.size == 1 or rank.options.dry_run or not (yield from _split(item, rank, result)):
                yield from recode_whole(rank, result, item)
        except Problem as problem:
            failed_or_retried(result, item.place, item.name, problem, item.attempt, item.size)


class RecodeOpened(OfRecoded, code=172, doing="waiting for the parts of", is_note=True):
    """Tells the rank that has split the file how that is divided. In a resumed job the file is begun anew."""

    bounds: bytes
    table: Packed
    span: int

    def home(self, ranks: int) -> int:
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
        return Division(self.bounds, self.table, self.span, self.room)

    def part(self, number: int) -> RecodePart:
        start, end = self.division.of(number)
        table = self.division.frames(start, end) if any(self.table) else self.table
        return RecodePart(self.file, self.room, number, start, end, table, self.span)


class Recoded(dict[bytes, tuple[RecodeOpened, Parts]]):
    """The files that this rank has split and that are not whole yet, by their temporary names."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class Kept(dict[tuple[bytes, int], list[bytes]]):
    """Frames of parts that wait to be written, by temporary name and number."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class RecodePart(OfRecoded, code=173, doing="recoding a part of", is_note=False):
    """The part ``number``: from byte ``start`` to ``end`` of what is compressed, in frames of ``span`` bytes;
    or the frames of a ``table``."""

    number: int
    start: int
    end: int
    table: Packed
    span: int

    @property
    def cost(self) -> int:
        return self.end - self.start

    def discard(self, rank: Rank, since: int) -> None:
        if made_by(self.file.temporary)[0] >= since:
            discard(rank, self.file)

    def run(self, rank: Rank, result: Result) -> Steps:
        if not self.is_of(rank):
            return
        told, frames, root = None, b"", b""
        is_kept = bool(rank.options.compress)
        try:
            if is_kept:
                frames, root = yield from _compress(self, rank)
            else:
                yield from _decompress(self, rank)
                rank.succeeded()
        except Problem as problem:
            rank.failed(problem, *self.about())
            told, is_kept = problem.plain, False
        holder = rank.number if is_kept else -1
        result.spawn(PartDone(self.file.temporary, self.number, told, frames, root, holder))


class PartDone(Note, code=174, doing="noting a part of a file"):
    """A part is written, or has met a problem; or it is compressed, in these ``frames``, and the rank ``holder`` (-1:
    none) keeps it. ``root`` is its content root, if digests are wanted."""

    temporary: bytes
    number: int
    problem: Plain | None
    frames: bytes
    root: bytes
    holder: int

    def home(self, ranks: int) -> int:
        return made_by(self.temporary)[1] % ranks

    def run(self, rank: Rank, result: Result) -> None:
        if made_by(self.temporary)[0] != rank.job.run:
            return
        opened, parts = rank.own(Recoded)[self.temporary]
        if self.problem is not None and parts.problem is None:
            parts.problem = Problem.from_plain(self.problem)
            discard(rank, opened.file)  # so that parts under way end quickly
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
    """On the rank that keeps a compressed part: it goes to the byte ``offset``, or is forgotten if that is -1."""

    number: int
    offset: int

    may_be_dropped = True

    def run(self, rank: Rank, result: Result) -> Steps:
        if not self.is_of(rank):
            return
        file, told = self.file, None
        frames = rank.own(Kept).pop((file.temporary, self.number))
        if self.offset >= 0:
            try:
                yield from _write(self, frames, rank)
                rank.succeeded()
            except Problem as problem:
                rank.failed(problem, *self.about())
                told = problem.plain
        result.spawn(PartDone(file.temporary, self.number, told, b"", b"", -1))


def _split(item: Item, rank: Rank, result: Result) -> Generator[None, None, bool]:
    """Makes the temporary file, and spawns what fills it, unless what is there stays. False: one rank is to recode it
    whole. Raises ``Problem``."""
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
    for part in map(opened.part, reversed(first)):  # the last one that is spawned is run first
        result.spawn(part, part.cost)
    return True


def _divided(rank: Rank, place: Place, reading: int, size: int) -> Division | None:
    """How the file is divided; None if it is not. Raises ``Problem``."""
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
    """Returns the bytes of each frame and of what is in it, packed, and the content root; raises ``Problem``."""
    file, level, hasher = task.file, level_of(rank), rank.hasher()
    kept: list[bytes] = []
    numbers: list[int] = []
    with rank.reading(file.item.place, file.item.name) as reading:
        check_unchanged(reading, file.version)
        for at in range(task.start, task.end, task.span):
            length = min(task.span, task.end - at)
            yield from rank.throttle.spend(length)
            data = read_span(reading, at, length)
            if hasher is not None:
                hasher.update(data)
            kept.append(compress_frame(data, level))
            numbers += (len(kept[-1]), length)
            rank.counters[counts.MOVED] += length
            yield
        check_unchanged(reading, file.version)
    rank.own(Kept)[file.temporary, task.number] = kept
    return pack_numbers(numbers), b"" if hasher is None else hasher.root()


def _decompress(task: RecodePart, rank: Rank) -> Steps:
    """Raises ``Problem``."""
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
    """True if a part counts as written only when it is on stable storage: the file was given its size before, and the
    rank that finishes it may be on another host."""
    return rank.options.sync and rank.hosts.number > 1


def _write(task: WritePart, frames: list[bytes], rank: Rank) -> Steps:
    """Raises ``Problem``."""
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
    """The last part is settled."""
    file = opened.file
    if parts.problem is not None:
        discard(rank, file)
        recoding_failed(rank, result, file, parts.problem)
        return
    digest = rank.hashing.chunks(file.version.size, parts.roots) if rank.digests else b""
    frames = b"".join(filter(None, parts.frames))
    result.spawn(FinishRecoded(file, opened.room, frames, digest), owner=rank.number)


def discard_all(rank: Rank, since: int = 1) -> None:
    """Removes what an early stop leaves behind, if the run ``since``, or a later one, has made it."""
    recoded = rank.own(Recoded)
    for temporary, (opened, _) in recoded.items():
        if made_by(temporary)[0] >= since:
            discard(rank, opened.file)
    recoded.clear()
