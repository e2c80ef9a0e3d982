"""Recoding (compression or decompression) of a large file in parts, by all ranks in parallel, into one temporary file.

In decompression, the seek table of the source states the offset of each frame. In compression, the offset of a part is
known only after all earlier parts are compressed. So the rank that has compressed a part keeps it in memory until the
rank that has split the file sends it the offset (``WriteRecodedPart``). To limit the memory, only a few parts of a file
are under way at a time.

Only the memory of these ranks knows how far a file is. So a resumed job recodes the file from the start: the task
``RecodingStartedNote`` counts as done only when the file is complete, and tasks for parts that an earlier run has left
do nothing.
"""

from __future__ import annotations

import time
from collections.abc import Generator

from pcopy.fsio.close import close_after_failure, close_after_write
from pcopy.fsio.memory_copy import write_all
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import PackedProblem, Problem
from pcopy.fsio.recode import max_compressed_size, read_source_range, write_without_filling_holes
from pcopy.fsio.seekable_zstd import SeekTable, compress_frame, read_frame
from pcopy.fsio.source import FileContentVersion, check_file_is_unchanged
from pcopy.fsio.temporary import reopen_temporary_file, run_and_rank_in_temporary_name
from pcopy.tasks.base import counts
from pcopy.tasks.base.attempts import fail_or_retry
from pcopy.tasks.base.distribution import chunk_size
from pcopy.tasks.base.kind import ItemTask, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.storing import wait_for_data_stored
from pcopy.tasks.base.values import ChunkedFile, Item, Place, pack_numbers
from pcopy.tasks.files.existing import inherits_acl
from pcopy.tasks.files.finish_file import LargeFileOpenings, remove_temporary_file
from pcopy.tasks.recode.finish_recoded import FinishRecodedFile, RecodedFileTask, report_recoding_failure
from pcopy.tasks.recode.parts import (
    FileDivision,
    PackedTable,
    RecodedPartsProgress,
    packed_table_columns,
    seek_table_from_columns,
)
from pcopy.tasks.recode.recode_files import recode_whole_file
from pcopy.tasks.recode.recode_target import (
    compression_level,
    must_be_recoded_by_rank_0,
    open_checked_source_of_item,
    skip_if_up_to_date,
    source_bytes_per_frame,
    target_of_recoded_file,
)

PARTS_PER_RANK = 2
"""Number of parts of one file that are under way per rank: one that the rank works on, and one that waits."""


class RecodeFile(ItemTask, code=171, doing="compressing or decompressing", is_note=False):
    """Task that recodes (compresses or decompresses) one file: a large one, or a mount point (a file that lies on
    another file system than its directory). ``RecodeFiles`` recodes the others, in batches.
    """

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Split the file if there are several ranks and the file can be split; otherwise recode the whole file on this
        rank.
        """
        item = self.item
        try:
            if must_be_recoded_by_rank_0(rank, item):
                result.spawn_task(self, item.size, owner=0)
            elif rank.size == 1 or rank.options.dry_run or not (yield from _split_file(item, rank, result)):
                yield from recode_whole_file(rank, result, item)
        except Problem as problem:
            fail_or_retry(result, item.place, item.name, problem, item.attempt, item.size)


class RecodingStartedNote(RecodedFileTask, code=172, doing="waiting for the parts of", is_note=True):
    """Message that informs the rank which has split a file how the file is divided. That rank then collects the results
    of the parts.

    In a resumed job, this task starts the file again. ``bounds``, ``table`` and ``span`` say how the file is divided:
    see the fields of ``FileDivision``.
    """

    bounds: bytes
    table: PackedTable
    span: int

    def assigned_rank(self, ranks: int) -> int:
        """Return the rank to which this message is sent: the one that has split the file, whose number (below
        ``ranks``) is part of the temporary name.
        """
        return run_and_rank_in_temporary_name(self.file.temporary)[1] % ranks

    def run(self, rank: Rank, result: TaskResult) -> None:
        if not self.has_temporary_file_of_this_run(rank):
            result.spawn_task(RecodeFile(self.file.item), self.file.version.size)
            return
        result.defer_task_completion()
        parts = RecodedPartsProgress(self.file_division.part_count, PARTS_PER_RANK * rank.size, result.id)
        rank.shared_instance(FilesBeingRecoded)[self.file.temporary] = self, parts

    @property
    def file_division(self) -> FileDivision:
        """How the file is divided, as a ``FileDivision``, which is made from the fields of this message."""
        return FileDivision(self.bounds, self.table, self.span, self.temporary_size)

    def part_recoding_task(self, number: int) -> RecodePart:
        """Return the task that recodes the part ``number``."""
        start, end = self.file_division.part_range(number)
        table = self.file_division.frame_table(start, end) if any(self.table) else self.table
        return RecodePart(self.file, self.temporary_size, number, start, end, table, self.span)


class FilesBeingRecoded(dict[bytes, tuple[RecodingStartedNote, RecodedPartsProgress]]):
    """The files that this rank has split into parts and that are not complete yet, by the names of their temporary
    files.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class PendingFrames(dict[tuple[bytes, int], list[bytes]]):
    """Compressed frames that wait in memory until the offset of their part is known, by the name of the temporary file
    and the number of the part.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class RecodePart(RecodedFileTask, code=173, doing="compressing or decompressing a part of", is_note=False):
    """Task that recodes the part ``number`` of a file.

    For compression, the part consists of the bytes from ``start`` to ``end`` of the source, and becomes frames with
    ``span`` bytes of contents each. For decompression, it consists of the frames in ``table``.
    """

    number: int
    start: int
    end: int
    table: PackedTable
    span: int

    @property
    def cost(self) -> int:
        """The cost of the task: bytes of the source for compression, number of frames for decompression."""
        return self.end - self.start

    def remove_temporary_files(self, rank: Rank, since: int) -> None:
        """Remove the temporary file, if the run number ``since`` of the job or a later one has created it. This is
        called when the job stops and keeps nothing for a resume. (Each resume is a new run.)
        """
        if run_and_rank_in_temporary_name(self.file.temporary)[0] >= since:
            remove_temporary_file(rank, self.file)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        if not self.has_temporary_file_of_this_run(rank):
            return
        failure, frames, root = None, b"", b""
        is_in_memory = bool(rank.copy_options.compress)
        try:
            if is_in_memory:
                frames, root = yield from _compress_part(self, rank)
            else:
                yield from _decompress_part(self, rank)
                rank.record_write_success()
        except Problem as problem:
            rank.find_item_failure_reason(problem, *self.subject())
            failure, is_in_memory = problem.problem_as_tuple, False
        holder = rank.number if is_in_memory else -1
        result.spawn_task(PartRecodedNote(self.file.temporary, self.number, failure, frames, root, holder))


class PartRecodedNote(TaskWithoutDirectory, code=174, doing="recording a part of a file"):
    """Message to the rank that has split a file: a part was compressed or written, or has failed.

    Fields:
      temporary: the name of the temporary file.
      number: the number of the part.
      problem: the error, or None.
      frames: for a part that was compressed: the bytes of each frame in the new file and in the source, packed.
      root: the digest of the contents of the part, if digests are computed.
      holder: the rank that has the compressed part in memory; -1 if the part was written, discarded, or has failed.
    """

    temporary: bytes
    number: int
    problem: PackedProblem | None
    frames: bytes
    root: bytes
    holder: int

    def assigned_rank(self, ranks: int) -> int:
        """Return the rank to which this message is sent: the one that has split the file, whose number (below
        ``ranks``) is part of the temporary name.
        """
        return run_and_rank_in_temporary_name(self.temporary)[1] % ranks

    def run(self, rank: Rank, result: TaskResult) -> None:
        if run_and_rank_in_temporary_name(self.temporary)[0] != rank.job.run:
            return
        opened, parts = rank.shared_instance(FilesBeingRecoded)[self.temporary]
        if self.problem is not None and parts.problem is None:
            parts.problem = Problem.from_packed_tuple(self.problem)
            remove_temporary_file(rank, opened.file)  # so that the tasks for other parts fail at once
        if self.holder < 0:
            parts.record_part_ended()
        else:
            parts.record_part_compressed(self.number, self.frames, self.root, self.holder)
        for number, holder, offset in parts.parts_to_write():
            result.spawn_task(WriteRecodedPart(opened.file, opened.temporary_size, number, offset), owner=holder)
        for number in parts.parts_to_hand_out():
            part = opened.part_recoding_task(number)
            result.spawn_task(part, part.cost)
        if parts.is_finished:
            del rank.shared_instance(FilesBeingRecoded)[self.temporary]
            result.complete_deferred_tasks([parts.deferred_note])
            _finish_after_last_part(opened, parts, rank, result)


class WriteRecodedPart(RecodedFileTask, code=175, doing="writing a part of", is_note=True):
    """Message to the rank that has a compressed part in memory: write it at ``offset`` of the file. If the offset is
    -1, discard the part.
    """

    number: int
    offset: int

    is_dropped_on_stop = True

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        if not self.has_temporary_file_of_this_run(rank):
            return
        file, failure = self.file, None
        frames = rank.shared_instance(PendingFrames).pop((file.temporary, self.number))
        if self.offset >= 0:
            try:
                yield from _write_frames(self, frames, rank)
                rank.record_write_success()
            except Problem as problem:
                rank.find_item_failure_reason(problem, *self.subject())
                failure = problem.problem_as_tuple
        result.spawn_task(PartRecodedNote(file.temporary, self.number, failure, b"", b"", -1))


def _split_file(item: Item, rank: Rank, result: TaskResult) -> Generator[None, None, bool]:
    """Divide a large file into parts: create the temporary file, and spawn the tasks for the first parts. Return True
    if that was done, or if the existing item in the target is up to date and stays.

    Return False if one rank must recode the whole file. Raise ``Problem`` if the file cannot be opened or created.
    """
    began, place = time.monotonic_ns(), item.place
    with open_checked_source_of_item(rank, item) as (reading, status):
        division = _division_of_file(rank, place, reading, status.st_size)
        if division is None:
            return False
        goal = target_of_recoded_file(rank, item)
        if (yield from skip_if_up_to_date(result, goal, item, reading, status)):
            return True
        temporary = rank.temporary_names.next_name()
        with NewFile.create_temporary_file(
            goal.directory_descriptor, temporary, layout=goal.layout_recipe(reading, status)
        ) as new:
            shown = new.allow_reopening_by_other_ranks(
                inherits_acl=inherits_acl(rank, place, goal.directory_descriptor)
            )
            made = new.file_identity(place.target_id.mount_code)
            new.extend_to_size(division.temporary_size)
            new.close_without_removing(sync=rank.syncs_each_file(place))
        if new.layout_reason:
            result.warn_of_unwanted_layout(place, item.name, new.layout_reason)
    if result.item_recorder.is_recording:
        rank.shared_instance(LargeFileOpenings)[temporary] = began, 0
    file = ChunkedFile(item, FileContentVersion.from_status(status), temporary, made, server_status=shown)
    opened = RecodingStartedNote(file, division.temporary_size, division.bounds, division.table, division.span)
    result.spawn_task(opened)
    first = range(min(PARTS_PER_RANK * rank.size, division.part_count))
    for part in map(opened.part_recoding_task, reversed(first)):  # reversed, because a rank runs the newest task first
        result.spawn_task(part, part.cost)
    return True


def _division_of_file(rank: Rank, place: Place, reading: int, size: int) -> FileDivision | None:
    """Return how the file that is open as ``reading`` is divided into parts; None if one rank must recode all of it.
    Raise ``Problem`` if its seek table cannot be read.
    """
    if rank.options.sequential:
        return None
    chunk = chunk_size(rank.copy_options.chunk_size, rank.options.block_size, size, 0, 1)
    if rank.copy_options.compress:
        if 2 * size < 3 * chunk:
            return None
        span = min(source_bytes_per_frame(rank, place, reading, size), chunk)
        frames = -(-size // chunk) * -(-chunk // span)
        return FileDivision(
            pack_numbers([*range(0, size, chunk), size]), (b"", b"", b""), span, max_compressed_size(size, frames)
        )
    table = SeekTable.read(reading, size)
    if table is None or table.frame_count < 2 or 2 * table.content_size < 3 * chunk:
        return None
    bounds = [0]
    for number in range(1, table.frame_count):
        if table.content_offsets[number] - table.content_offsets[bounds[-1]] >= chunk:
            bounds.append(number)
    return FileDivision(pack_numbers([*bounds, table.frame_count]), packed_table_columns(table), 0, table.content_size)


def _compress_part(task: RecodePart, rank: Rank) -> Generator[None, None, tuple[bytes, bytes]]:
    """Compress the part of the file that ``task`` describes, and keep its frames in memory.

    Return two values: for each frame its bytes and those of its contents, packed; the digest of the contents (content
    root). Raise ``Problem`` if the source cannot be read or has changed.
    """
    file, level, hasher = task.file, compression_level(rank), rank.new_hasher()
    compressed: list[bytes] = []
    numbers: list[int] = []
    with rank.open_source_file(file.item.place, file.item.name) as reading:
        check_file_is_unchanged(reading, file.version)
        for at in range(task.start, task.end, task.span):
            length = min(task.span, task.end - at)
            yield from rank.throttle.charge_limits_and_wait(length)
            data = read_source_range(reading, at, length)
            if hasher is not None:
                hasher.update(data)
            compressed.append(compress_frame(data, level))
            numbers += (len(compressed[-1]), length)
            rank.counters[counts.MOVED] += length
            yield
        check_file_is_unchanged(reading, file.version)
    rank.shared_instance(PendingFrames)[file.temporary, task.number] = compressed
    return pack_numbers(numbers), b"" if hasher is None else hasher.root()


def _decompress_part(task: RecodePart, rank: Rank) -> TaskSteps:
    """Decompress the part of the file that ``task`` describes, and write it into the temporary file. Raise ``Problem``
    if that fails.
    """
    file, table, sparse = task.file, seek_table_from_columns(task.table), rank.options.preserve.sparse
    with rank.open_source_file(file.item.place, file.item.name) as reading:
        check_file_is_unchanged(reading, file.version)
        writing = reopen_temporary_file(
            rank.open_target_directory(file.item.place),
            file.temporary,
            file.identity,
            task.temporary_size,
            file.server_status,
        )
        try:
            for number in range(table.frame_count):
                contents = read_frame(reading, table, number)
                yield from rank.throttle.charge_limits_and_wait(len(contents))
                write_without_filling_holes(writing, contents, table.content_offsets[number], sparse=sparse)
                rank.counters[counts.MOVED] += table.offsets[number + 1] - table.offsets[number]
                yield None
            check_file_is_unchanged(reading, file.version)
            sync = rank.syncs_each_file(file.item.place)
            if not sync and _must_sync_part(rank):
                yield from wait_for_data_stored(rank, writing)
        except BaseException:
            close_after_failure(writing)
            raise
        close_after_write(writing, sync=sync)


def _must_sync_part(rank: Rank) -> bool:
    """Return True if a part counts as written only after it is on stable storage.

    That is so with several hosts, for two reasons. The temporary file had its full size from the start, so missing data
    would not be noticed by the size. And the rank that finishes the file may run on another host, which cannot sync
    what this one has in its page cache.
    """
    return rank.options.sync and rank.hosts.host_count > 1


def _write_frames(task: WriteRecodedPart, frames: list[bytes], rank: Rank) -> TaskSteps:
    """Write the ``frames`` of a compressed part into the temporary file, at the offset that ``task`` contains. Raise
    ``Problem`` if that fails.
    """
    file, at = task.file, task.offset
    writing = reopen_temporary_file(
        rank.open_target_directory(file.item.place),
        file.temporary,
        file.identity,
        task.temporary_size,
        file.server_status,
    )
    try:
        for frame in frames:
            write_all(writing, frame, at)
            at += len(frame)
        sync = rank.syncs_each_file(file.item.place)
        if not sync and _must_sync_part(rank):
            yield from wait_for_data_stored(rank, writing)
    except BaseException:
        close_after_failure(writing)
        raise
    close_after_write(writing, sync=sync)


def _finish_after_last_part(
    opened: RecodingStartedNote, parts: RecodedPartsProgress, rank: Rank, result: TaskResult
) -> None:
    """After the last part of a file: spawn the task that finishes the file, or report the file as failed if any part
    has failed. ``parts`` are the results of the parts, ``opened`` is how the file is divided.
    """
    file = opened.file
    if parts.problem is not None:
        remove_temporary_file(rank, file)
        report_recoding_failure(rank, result, file, parts.problem)
        return
    digest = rank.job_item_hasher.digest_of_chunks(file.version.size, parts.roots) if rank.computes_digests else b""
    frames = b"".join(filter(None, parts.frames))
    result.spawn_task(FinishRecodedFile(file, opened.temporary_size, frames, digest), owner=rank.number)


def discard_unfinished_files(rank: Rank, since: int = 1) -> None:
    """When the job stops: remove the temporary files of the files that this rank has split, but only those that the run
    number ``since`` of the job or a later one has created. (Each resume is a new run.)
    """
    recoded = rank.shared_instance(FilesBeingRecoded)
    for temporary, (opened, _) in recoded.items():
        if run_and_rank_in_temporary_name(temporary)[0] >= since:
            remove_temporary_file(rank, opened.file)
    recoded.clear()
