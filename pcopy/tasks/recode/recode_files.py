"""Recoding (compression or decompression) of whole files by one rank each, into a file with a temporary name.

This is done for small files, and for larger ones (``recode_file``) that cannot be split, or are not large enough for
it.
"""

from __future__ import annotations

import time
from collections.abc import Generator

from pcopy.fsio.attributes import read_item_metadata
from pcopy.fsio.backend.columns import pack_names, unpack_names
from pcopy.fsio.memory_copy import write_all
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem
from pcopy.fsio.recode import read_source_range, write_without_filling_holes
from pcopy.fsio.seekable_zstd import (
    SeekTable,
    ZstdFrame,
    compress_frame,
    packed_seek_table,
    read_decompressed_pieces,
    read_frame,
)
from pcopy.fsio.source import FileContentVersion, check_file_is_unchanged
from pcopy.signature.items import FILE
from pcopy.signature.tree import ContentHasher
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import TimedCopyAction
from pcopy.tasks.base.attempts import fail_or_retry
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import FILES_PER_SLICE, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.storing import wait_until_file_is_stored
from pcopy.tasks.base.values import ContentInfo, Item, pack_numbers, unpack_numbers
from pcopy.tasks.files.existing import mention_removal_in_problem, prepare_new_name
from pcopy.tasks.files.layouts import count_files_created_by_recipe
from pcopy.tasks.recode.recode_target import (
    RecodeTarget,
    commit_recoded_file,
    compression_level,
    must_be_recoded_by_rank_0,
    open_checked_source_of_item,
    skip_if_up_to_date,
    source_bytes_per_frame,
    target_of_recoded_file,
)


class RecodeFiles(DivisibleTask, code=170, doing="compressing or decompressing files of", is_note=False):
    """Task that recodes (compresses or decompresses) small regular files of one directory.

    ``inodes`` and ``sizes`` have 8 bytes for each of the ``names``.
    """

    inodes: bytes
    sizes: bytes
    attempt: int

    columns = ("inodes", "sizes")

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Recode the files one after another. Files that only rank 0 can recode (with ``--from``, since only it
        knows the list) are passed to rank 0.
        """
        place, numbers = self.place, zip(unpack_numbers(self.inodes), unpack_numbers(self.sizes), strict=True)
        for index, (name, (inode, size)) in enumerate(zip(unpack_names(self.names), numbers, strict=True)):
            item = Item(place.source_id.mount_code, inode, size, ((place, name),), self.attempt)
            try:
                if must_be_recoded_by_rank_0(rank, item):
                    one = pack_names([name]), pack_numbers([inode]), pack_numbers([size])
                    result.spawn_task(RecodeFiles(place, *one, self.attempt), size, owner=0)
                else:
                    yield from recode_whole_file(rank, result, item)
            except Problem as problem:
                fail_or_retry(result, place, name, problem, self.attempt, size)
            if not index % FILES_PER_SLICE:
                yield None


def recode_whole_file(rank: Rank, result: TaskResult, item: Item) -> Generator[None, None, None]:
    """Recode (compress or decompress) the file ``item`` on this rank, and count it. If the existing item in the target
    is up to date, count the file as skipped.

    Raise ``Problem`` if that fails; the existing item is unchanged then.
    """
    began = time.monotonic_ns()
    place, name = item.names[0]
    with open_checked_source_of_item(rank, item) as (reading, status):
        goal = target_of_recoded_file(rank, item)
        if (yield from skip_if_up_to_date(result, goal, item, reading, status)):
            return
        version, present_status = FileContentVersion.from_status(status), goal.existing_item_status
        if rank.options.dry_run:
            action = TimedCopyAction.action_given_existing_item(goal.present)
            result.count(counts.FILES, 1, place)
            result.count(counts.BYTES, status.st_size, place)
            result.item_recorder.record_item_outcome(action.action, place, goal.name, FILE, status.st_size)
            return
        target, recipe = rank.open_target_directory(place), goal.layout_recipe(reading, status)
        made_as = prepare_new_name(rank, target, goal.name, present_status, status)
        removal = mention_removal_in_problem(rank, target, goal.name, present_status)
        with removal, NewFile.create_temporary_file(target, made_as, layout=recipe) as new:
            hasher = rank.new_hasher()
            yield from _write_recoded_contents(rank, goal, reading, status.st_size, new, hasher)
            attributes = read_item_metadata(reading, status, rank.options.preserve)
            check_file_is_unchanged(reading, version)
            yield from wait_until_file_is_stored(rank, new)
            commit_recoded_file(result, goal, item, new, status, attributes)
    count_files_created_by_recipe(rank, result, place, new.recipe if new.layout_reason else recipe, target, 1)
    known = ContentInfo(FILE, status.st_size, b"", version)
    if hasher is not None:
        known = ContentInfo(FILE, hasher.size, rank.job_item_hasher.digest_of_file(hasher), version)
    result.count_copied_item(
        place, name, known, how=TimedCopyAction.action_given_existing_item(present_status, time.monotonic_ns() - began)
    )


def _write_recoded_contents(
    rank: Rank, goal: RecodeTarget, reading: int, size: int, new: NewFile, hasher: ContentHasher | None
) -> Generator[None, None, None]:
    """Write the contents of the open file ``reading``, compressed or decompressed, into ``new``. Raise ``Problem`` if
    that fails.

    Args:
        goal: the target of the file.
        size: the size of the source in bytes.
        hasher: gets the contents of the source, unless it is None.
    """
    if rank.copy_options.compress:
        yield from _compress_file(rank, goal, reading, size, new.descriptor, hasher)
    else:
        yield from _decompress_file(rank, reading, size, new)


def _compress_file(
    rank: Rank, goal: RecodeTarget, reading: int, size: int, writing: int, hasher: ContentHasher | None
) -> Generator[None, None, None]:
    """Compress the open file ``reading`` into frames, and write these and the seek table to the open file ``writing``.
    Raise ``Problem`` if that fails.

    Args:
        goal: the target of the file, which determines the size of the frames.
        size: the size of the source in bytes; 0 also for files in /proc, which have contents all the same: such a file
            is read until its end.
        hasher: gets the contents of the source, unless it is None.
    """
    span, level = source_bytes_per_frame(rank, goal.place, reading, size), compression_level(rank)
    frames: list[ZstdFrame] = []
    at, end, begin, packed = 0, size, 0, b""
    while not frames or at < end:
        length = min(span, size - at) if size else span
        yield from rank.throttle.charge_limits_and_wait(length)
        data = read_source_range(reading, at, length, to_end=not size)
        if packed:
            write_all(writing, packed, begin)
            begin += len(packed)
        packed = compress_frame(data, level)
        frames.append(ZstdFrame(len(packed), len(data)))
        if hasher is not None:
            hasher.update(data)
        at += len(data)
        if not size and len(data) == length:
            end = at + 1
        rank.counters[counts.MOVED] += len(data)
        if at < end:
            yield
    write_all(writing, packed + packed_seek_table(frames), begin)


def _decompress_file(rank: Rank, reading: int, size: int, new: NewFile) -> Generator[None, None, None]:
    """Decompress the open file ``reading`` into ``new``: frame by frame if it has a seek table, otherwise as a
    stream.
    """
    table, sparse = SeekTable.read(reading, size), rank.options.preserve.sparse
    pieces = read_decompressed_pieces(reading, size)
    if table is not None:
        pieces = (read_frame(reading, table, number) for number in range(table.frame_count))
    at = written = 0
    for piece in pieces:
        if piece:
            written += write_without_filling_holes(new.descriptor, piece, at, sparse=sparse)
            at += len(piece)
            yield from rank.throttle.charge_limits_and_wait(len(piece))
        yield
    if written < at:
        new.extend_to_size(at)
    rank.counters[counts.MOVED] += size
