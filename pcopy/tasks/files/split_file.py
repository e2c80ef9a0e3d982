"""``SplitFile`` divides a large file into chunks (parts), which tasks of all ranks copy into one temporary file.

If both sides are local file systems, several writers of one file would only wait for its lock
(``pcopy.fsio.copy_methods``). Then chunks are copied one after the other: the task of each chunk spawns that of the
next. In both cases a resumed job continues with the chunks that remain.

The size of the chunks is chosen when the temporary file is created: about 1/64 of each rank's share of the bytes that
the job has found by then (``pcopy.tasks.base.distribution``), in whole stripes. The task of each chunk reports to one
rank, the owner of the file (``pcopy.tasks.files.chunk_ledger``).
"""

from __future__ import annotations

import time
from collections.abc import Generator

from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.layout import FileStripes
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import (
    FileContentVersion,
    check_is_file_found_by_scan,
    open_source_file_to_read,
    status_of_open_item,
)
from pcopy.tasks.base import counts
from pcopy.tasks.base.distribution import MIN_SEQUENTIAL_CHUNK, sparse_chunk_size
from pcopy.tasks.base.kind import ItemTask, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, ChunkedFile, Item, Place
from pcopy.tasks.files.chunk_ledger import LargeFileOpenedNote
from pcopy.tasks.files.existing import find_existing_item, inherits_acl, overwritten_file_or_layout_recipe
from pcopy.tasks.files.finish_file import FinishFile, LargeFileOpenings
from pcopy.tasks.files.layouts import target_layout_policy
from pcopy.tasks.files.name_items import spawn_naming_task
from pcopy.tasks.files.whole_file import ItemResult, copy_file, result_if_existing_kept
from pcopy.tasks.links.make_links import (
    copy_made_by_this_host,
    copy_next_name,
    handle_first_name_failure,
    spawn_link_task,
)
from pcopy.units import format_size

MAX_STRIPES = 1 << 20
"""Largest number of stripes of a file whose chunks each contain the stripes on one OST (``--stripe-affinity``). Each
stripe takes a few bytes of memory.
"""


class SplitFile(ItemTask, code=12, doing="copying", is_note=False):
    """Task that divides the large file ``item`` into chunks and spawns the tasks that copy them. Other names (hard
    links) of the item become hard links to the copy.
    """

    @property
    def uncopied_item(self) -> Item:
        """The item, because this task begins the first copy of its inode."""
        return self.item

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Divide the file into chunks; or copy it as a whole if it would have less than one and a half chunks."""
        item = self.item
        try:
            if rank.options.dry_run:
                yield from copy_file(rank, result, item, may_get_links=True)
                return
            in_turn = _are_chunks_copied_in_turn(rank, item.place)
            splits = item.size > MAX_SMALL_FILE_BYTES and not (
                rank.options.sequential or rank.has_generated_files(item.place)
            )
            if splits and 2 * item.size >= 3 * _chunk_size_of_large_file(rank, item.size, in_turn):
                yield from _split_file(item, rank, result, in_turn=in_turn)
            else:
                item_result = yield from copy_file(rank, result, item, may_get_links=True)
                spawn_tasks_for_other_hard_links(rank, result, item, item_result)
        except Problem as problem:
            handle_first_name_failure(rank, result, item, problem)


def spawn_tasks_for_other_hard_links(rank: Rank, result: TaskResult, item: Item, item_result: ItemResult) -> None:
    """Have the other names (hard links) of ``item`` created, after its first name was copied or skipped
    (``item_result``).

    If an existing item was kept under the first name, they become hard links to it only if it equals the source.
    Otherwise the next name is copied.
    """
    if item_result.unnamed is not None:
        copy = copy_made_by_this_host(rank, NO_DIRECTORY_IDENTITY, item_result.known)
        spawn_naming_task(
            result,
            item,
            item_result.unnamed,
            copy,
            metadata_problem=item_result.metadata_problem,
            duration_ns=item_result.how.nanoseconds,
        )
    elif item_result.identity is not None:
        spawn_link_task(rank, result, item, copy_made_by_this_host(rank, item_result.identity, item_result.known))
    else:
        copy_next_name(result, item, item.failed_names)


def _are_chunks_copied_in_turn(rank: Rank, place: Place) -> bool:
    """Return True if the chunks of a large file are copied one after the other: there is only one rank, or both file
    systems are local. Raise ``Problem`` on failure.
    """
    if rank.size == 1:
        return True
    opened = (
        rank.open_source_directory(place),
        rank.open_target_directory(place),
    )  # opened first: the device numbers are known only then
    sides = zip(rank.source_and_target_device(place), opened, strict=True)
    return all(
        rank.mover.transfer_traits.transfer_traits_of_file_system(device, directory).is_local
        for device, directory in sides
    )


def _chunk_size_of_large_file(rank: Rank, size: int, in_turn: bool, unit: int = 0) -> int:
    """Return the size in bytes of the chunks of a file of ``size`` bytes. Chunks that are copied one after the other
    (``in_turn``) may be larger, because they are not distributed over ranks. ``unit`` is a least size, such as that of
    a stripe; 0 for none.
    """
    if in_turn and not rank.copy_options.chunk_size:
        unit = max(unit, MIN_SEQUENTIAL_CHUNK)
    return rank.chunk_size_of_file(size, unit)


def _split_file(item: Item, rank: Rank, result: TaskResult, *, in_turn: bool) -> Generator[None, None, None]:
    """Create the temporary file, or open the existing file to overwrite it (``--inplace``), and spawn the tasks that
    copy the chunks. Raise ``Problem`` on failure. ``in_turn`` is True if chunks are copied one after the other.
    """
    began = time.monotonic_ns()
    source, target = rank.open_source_directory(item.place), rank.open_target_directory(item.place)
    # Errors of close(2) do not matter: the tasks that copy the chunks, and FinishFile, open the file again.
    with closing_descriptor(
        open_source_file_to_read(source, item.name, follow=rank.copy_options.dereference)
    ) as reading:
        status = status_of_open_item(reading, on_source=True)
        check_is_file_found_by_scan(status, rank.source_device(item.place, item.mount), item.inode)
        present = find_existing_item(rank, item.place, item.name)
        temporary = rank.temporary_names.next_name()
        present, skipped = yield from result_if_existing_kept(
            result, item.name, present, reading, status, may_get_links=True
        )
        if skipped is not None:
            spawn_tasks_for_other_hard_links(rank, result, item, skipped)
            return
        over, recipe = overwritten_file_or_layout_recipe(rank, item.place, present, reading, status, temporary)
        with NewFile.create_temporary_file(target, temporary, layout=recipe, over=over) as new:
            inherits = over is None and inherits_acl(rank, item.place, target)
            shown = new.allow_reopening_by_other_ranks(inherits_acl=inherits)
            made = new.file_identity(item.place.target_id.mount_code)
            cloned = rank.mover.clone_file(reading, new.descriptor, (status.st_dev, new.status.st_dev))
            if not cloned:
                new.extend_to_size(status.st_size)
            stripes = target_layout_policy(rank, item.place).stripes_of_file(new.descriptor)
            new.close_without_removing(sync=rank.syncs_each_file(item.place))
        if new.layout_reason:
            result.warn_of_unwanted_layout(item.place, item.name, new.layout_reason)
        was = () if over is None else over.original_mode_and_owner
        file = ChunkedFile(item, FileContentVersion.from_status(status), temporary, made, was, cloned, shown)
    if result.item_recorder.is_recording:
        differences = 0
        if present is not None:
            from pcopy.tasks.files.differences import differences_of_item

            differences = result.item_recorder.take_noted_differences(item.place, item.name)
            differences |= differences_of_item(item.name, status, present)
        rank.shared_instance(LargeFileOpenings)[temporary] = began, differences
    _spawn_chunks_and_note(rank, result, file, stripes, data=rank.bytes_to_copy(status), in_turn=in_turn)


def _spawn_chunks_and_note(
    rank: Rank, result: TaskResult, file: ChunkedFile, stripes: FileStripes, *, data: int, in_turn: bool
) -> None:
    """Spawn the tasks that copy the chunks, and the note ``LargeFileOpenedNote`` for the owner of the file; or only
    ``FinishFile`` if there is nothing to copy.

    Args:
        stripes: how the new file is spread over the servers of Lustre.
        data: bytes of the file that are not in holes.
        in_turn: True if chunks are copied one after the other.
    """
    size = file.version.size
    chunk = _chunk_size_of_large_file(
        rank, size, in_turn, stripes.max_stripe_size
    )  # computed again: the file may have grown since the scan
    if not rank.copy_options.chunk_size:
        chunk = sparse_chunk_size(chunk, size, data, rank.size)
    nothing_to_read = file.is_cloned and not rank.computes_digests
    if (
        nothing_to_read or not size
    ):  # a file that was truncated since the scan may be empty: no chunk would cause FinishFile
        rank.counters[counts.MOVED] += size
        digest = rank.job_item_hasher.digest_of_chunks(0, []) if rank.computes_digests else b""
        result.spawn_task(FinishFile(file, digest, chunk, bytes((rank.hosts.this_host,))), owner=rank.number)
        return
    from pcopy.tasks.files.copy_chunk import (  # only here: few jobs need the module
        CopyChunk,
        chunks_by_ost,
        consecutive_chunks,
        spawn_chunks,
    )

    # The further names, which may be many, are not sent with each chunk.
    alone = file._replace(item=file.item._replace(names=file.item.names[:1], failed_names=()))
    if in_turn and not file.is_cloned:  # readers of a cloned file do not wait for each other
        result.spawn_task(LargeFileOpenedNote(file, -(-size // chunk), chunk))
        end = min(chunk, size)
        result.spawn_task(CopyChunk(alone, 0, end, 0, 0, 0, True), end)
        return
    chunks, run = consecutive_chunks(size, chunk), chunk
    if rank.copy_options.stripe_affinity and _can_chunk_by_ost(rank, result, file, stripes):
        chunks, run = chunks_by_ost(size, chunk, stripes), stripes.stripe_size
    result.spawn_task(LargeFileOpenedNote(file, len(chunks), run))
    spawn_chunks(alone, chunks, rank, result)


def _can_chunk_by_ost(rank: Rank, result: TaskResult, file: ChunkedFile, stripes: FileStripes) -> bool:
    """Return True if each chunk may consist of the stripes on one OST (``--stripe-affinity``); otherwise warn the user.

    The file must lie on several OSTs. If digests are computed, the number of blocks in a stripe must be a power of two.
    ``stripes`` says how the file is spread over its OSTs.
    """
    place, name = file.item.names[0]
    if len(stripes.osts) < 2:
        return False
    blocks = stripes.stripe_size // rank.options.block_size
    why = ""
    if rank.computes_digests and (stripes.stripe_size % rank.options.block_size or blocks & (blocks - 1)):
        why = (
            "the stripe size of the file must be a power of two times --block-size "
            f"({format_size(rank.options.block_size)})"
        )
    elif file.version.size > MAX_STRIPES * stripes.stripe_size:
        why = f"the file has more than {MAX_STRIPES:,} stripes"
    if why:
        result.warn_once(place, name, f"--stripe-affinity has no effect: {why}")
    return not why
