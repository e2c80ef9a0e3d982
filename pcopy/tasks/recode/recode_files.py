"""Compression or decompression of whole files by one rank each, into a file with a temporary name.

That is done for small files, and for larger ones (``recode_file``) that cannot be split or are not worth it.
"""

from __future__ import annotations

import time
from collections.abc import Generator

from pcopy.fsio.attributes import read_attributes
from pcopy.fsio.kernel.columns import pack_names, unpack_names
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.passage import write_all
from pcopy.fsio.problem import Problem
from pcopy.fsio.recode import read_span, write_contents
from pcopy.fsio.seekable_zstd import Frame, SeekTable, compress_frame, read_frame, read_frames, seek_table
from pcopy.fsio.source import Version, check_unchanged
from pcopy.signature.items import FILE
from pcopy.signature.tree import ContentHasher
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import How
from pcopy.tasks.base.attempts import failed_or_retried
from pcopy.tasks.base.kind import Divisible, Steps
from pcopy.tasks.base.rank import FILES_PER_SLICE, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.storing import stored
from pcopy.tasks.base.values import Item, Known, pack_numbers, unpack_numbers
from pcopy.tasks.files.existing import name_to_make, stating_removal
from pcopy.tasks.files.layouts import laid_out
from pcopy.tasks.recode.goal import Goal, checked, commit, goal_of, is_for_the_list, level_of, span_for, stays


class RecodeFiles(Divisible, code=170, doing="compressing or decompressing files of", is_note=False):
    """Task that recodes small regular files of one directory. The columns have 8 bytes for each file."""

    inodes: bytes
    sizes: bytes
    attempt: int

    columns = ("inodes", "sizes")

    def run(self, rank: Rank, result: Result) -> Steps:
        """Recode the files one after another."""
        place, numbers = self.place, zip(unpack_numbers(self.inodes), unpack_numbers(self.sizes), strict=True)
        for index, (name, (inode, size)) in enumerate(zip(unpack_names(self.names), numbers, strict=True)):
            item = Item(place.source_id.mount, inode, size, ((place, name),), self.attempt)
            try:
                if is_for_the_list(rank, item):
                    one = pack_names([name]), pack_numbers([inode]), pack_numbers([size])
                    result.spawn(RecodeFiles(place, *one, self.attempt), size, owner=0)
                else:
                    yield from recode_whole(rank, result, item)
            except Problem as problem:
                failed_or_retried(result, place, name, problem, self.attempt, size)
            if not index % FILES_PER_SLICE:
                yield None


def recode_whole(rank: Rank, result: Result, item: Item) -> Generator[None, None, None]:
    """Recode the file ``item`` and count it; count it as skipped if the existing item is current.

    Raise ``Problem`` if that fails; the existing item is unchanged then.
    """
    began = time.monotonic_ns()
    place, name = item.names[0]
    with checked(rank, item) as (reading, status):
        goal = goal_of(rank, item)
        if (yield from stays(result, goal, item, reading, status)):
            return
        version, present_status = Version.of(status), goal.there
        if rank.options.dry_run:
            action = How.over(goal.present)
            result.count(counts.FILES, 1, place)
            result.count(counts.BYTES, status.st_size, place)
            result.items.did(action.action, place, goal.name, FILE, status.st_size)
            return
        target, recipe = rank.open_target(place), goal.recipe(reading, status)
        made_as = name_to_make(rank, target, goal.name, present_status, status)
        removal = stating_removal(rank, target, goal.name, present_status)
        with removal, NewFile.beside(target, made_as, layout=recipe) as new:
            hasher = rank.hasher()
            yield from _fill(rank, goal, reading, status.st_size, new, hasher)
            attributes = read_attributes(reading, status, rank.options.preserve)
            check_unchanged(reading, version)
            yield from stored(rank, new)
            commit(result, goal, item, new, status, attributes)
    laid_out(rank, result, place, new.recipe if new.other_layout else recipe, target, 1)
    known = Known(FILE, status.st_size, b"", version)
    if hasher is not None:
        known = Known(FILE, hasher.size, rank.hashing.file(hasher), version)
    result.copied(place, name, known, how=How.over(present_status, time.monotonic_ns() - began))


def _fill(
    rank: Rank, goal: Goal, reading: int, size: int, new: NewFile, hasher: ContentHasher | None
) -> Generator[None, None, None]:
    """Write the recoded contents into ``new``. Raise ``Problem`` if that fails."""
    if rank.options.compress:
        yield from _compress(rank, goal, reading, size, new.descriptor, hasher)
    else:
        yield from _decompress(rank, reading, size, new)


def _compress(
    rank: Rank, goal: Goal, reading: int, size: int, writing: int, hasher: ContentHasher | None
) -> Generator[None, None, None]:
    """Compress the file into frames, followed by the seek table.

    A file of size 0 is read until its end, because files in /proc report that size but have contents.
    """
    span, level = span_for(rank, goal.place, reading, size), level_of(rank)
    frames: list[Frame] = []
    at, end, begin, packed = 0, size, 0, b""
    while not frames or at < end:
        length = min(span, size - at) if size else span
        yield from rank.throttle.spend(length)
        data = read_span(reading, at, length, to_end=not size)
        if packed:
            write_all(writing, packed, begin)
            begin += len(packed)
        packed = compress_frame(data, level)
        frames.append(Frame(len(packed), len(data)))
        if hasher is not None:
            hasher.update(data)
        at += len(data)
        if not size and len(data) == length:
            end = at + 1
        rank.counters[counts.MOVED] += len(data)
        if at < end:
            yield
    write_all(writing, packed + seek_table(frames), begin)


def _decompress(rank: Rank, reading: int, size: int, new: NewFile) -> Generator[None, None, None]:
    """Decompress the file: frame by frame if it has a seek table, otherwise as a stream."""
    table, sparse = SeekTable.read(reading, size), rank.options.preserve.sparse
    pieces = read_frames(reading, size)
    if table is not None:
        pieces = (read_frame(reading, table, number) for number in range(table.frames))
    at = written = 0
    for piece in pieces:
        if piece:
            written += write_contents(new.descriptor, piece, at, sparse=sparse)
            at += len(piece)
            yield from rank.throttle.spend(len(piece))
        yield
    if written < at:
        new.extend(at)
    rank.counters[counts.MOVED] += size
