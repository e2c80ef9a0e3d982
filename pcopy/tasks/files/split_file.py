"""SplitFile divides a large file into chunks, which are copied into one temporary file.

All ranks copy chunks at the same time, unless both sides are local file systems: several writers of one file would only
wait for its lock there (``pcopy.fsio.ways``), so each chunk spawns the next one when it is done. In both cases a
resumed job continues with the chunks that remain.

The size of the chunks is chosen when the file is opened, from the bytes found by then: about 1/64 of each rank's share
(``pcopy.tasks.base.spreading``), in whole stripes. Every chunk is reported to the owner of the file (``chunk_ledger``).
"""

from __future__ import annotations

import time
from collections.abc import Generator

from pcopy.fsio.close import held_open
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.layout import Stripes
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import Version, check_found, open_source, status_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import OfItem, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.spreading import SMALLEST_IN_TURN, chunk_with_holes
from pcopy.tasks.base.values import NOWHERE, Item, OpenFile, Place
from pcopy.tasks.files.chunk_ledger import FileOpened
from pcopy.tasks.files.existing import existing, inherits_acl, over_or_new
from pcopy.tasks.files.finish_file import FinishFile, Opened
from pcopy.tasks.files.layouts import layout_at
from pcopy.tasks.files.name_items import name_later
from pcopy.tasks.files.whole_file import Settled, copy_whole, settled_already
from pcopy.tasks.links.make_links import after_representative, copy_here, pass_on, representative_failed
from pcopy.units import show_size

MOST_STRIPES = 1 << 20
"""Largest number of stripes of a file whose chunks are formed by OST. A few bytes are kept in memory
for each stripe.
"""


class SplitFile(OfItem, code=12, doing="copying", is_note=False):
    """Task that copies a large file. The further names of ``item`` become hard links to the copy."""

    @property
    def unmade(self) -> Item:
        """The file: the task creates its first copy."""
        return self.item

    def run(self, rank: Rank, result: Result) -> Steps:
        """Split the file into chunks, or copy it as a whole if it has less than one and a half chunks."""
        item = self.item
        try:
            if rank.options.dry_run:
                yield from copy_whole(rank, result, item, linked=True)
                return
            in_turn = _in_turn(rank, item.place)
            splits = item.size > SMALL_FILE and not (rank.options.sequential or rank.is_generated(item.place))
            if splits and 2 * item.size >= 3 * _chunk(rank, item.size, in_turn):
                yield from _split(item, rank, result, in_turn=in_turn)
            else:
                settled = yield from copy_whole(rank, result, item, linked=True)
                after_settled(rank, result, item, settled)
        except Problem as problem:
            representative_failed(rank, result, item, problem)


def after_settled(rank: Rank, result: Result, item: Item, settled: Settled) -> None:
    """Have the further names of ``item`` copied or linked, after its first name was copied or skipped.

    They become hard links to an existing item only if it equals the source; an old file that the user keeps gets no
    further names.
    """
    if settled.unnamed is not None:
        copy = copy_here(rank, NOWHERE, settled.known)
        name_later(result, item, settled.unnamed, copy, shortcoming=settled.shortcoming, took=settled.how.nanoseconds)
    elif settled.made is not None:
        after_representative(rank, result, item, copy_here(rank, settled.made, settled.known))
    else:
        pass_on(result, item, item.failed)


def _in_turn(rank: Rank, place: Place) -> bool:
    """Return True if the chunks of a large file are copied one after the other. Raise ``Problem`` on failure."""
    if rank.size == 1:
        return True
    opened = rank.open_source(place), rank.open_target(place)  # opened first: only then are the device numbers certain
    sides = zip(rank.devices(place), opened, strict=True)
    return all(rank.mover.ways.of(device, directory).is_local for device, directory in sides)


def _chunk(rank: Rank, size: int, in_turn: bool, unit: int = 0) -> int:
    """Return the size of a chunk in bytes. Chunks that are copied one after the other may be larger, because they are
    not distributed over ranks.
    """
    if in_turn and not rank.options.chunk_size:
        unit = max(unit, SMALLEST_IN_TURN)
    return rank.chunk(size, unit)


def _split(item: Item, rank: Rank, result: Result, *, in_turn: bool) -> Generator[None, None, None]:
    """Create the temporary file, or empty the existing file, and spawn the tasks that fill it. Raise ``Problem`` on
    failure.
    """
    began = time.monotonic_ns()
    source, target = rank.open_source(item.place), rank.open_target(item.place)
    # Closed without a check: the tasks that copy the chunks, and FinishFile, open the file again.
    with held_open(open_source(source, item.name, follow=rank.options.dereference)) as reading:
        status = status_of(reading, on_source=True)
        check_found(status, rank.source_device(item.place, item.mount), item.inode)
        present = existing(rank, item.place, item.name)
        temporary = rank.temporary_names.next()
        present, skipped = yield from settled_already(result, item.name, present, reading, status, linked=True)
        if skipped is not None:
            after_settled(rank, result, item, skipped)
            return
        over, recipe = over_or_new(rank, item.place, present, reading, status, temporary)
        with NewFile.beside(target, temporary, layout=recipe, over=over) as new:
            inherits = over is None and inherits_acl(rank, item.place, target)
            shown = new.open_to_others(inherits=inherits)
            made = new.identity(item.place.target_id.mount)
            cloned = rank.mover.clone(reading, new.descriptor, (status.st_dev, new.status.st_dev))
            if not cloned:
                new.extend(status.st_size)
            stripes = layout_at(rank, item.place).stripes_of(new.descriptor)
            new.keep(sync=rank.syncs_items(item.place))
        if new.other_layout:
            result.other_layout(item.place, item.name, new.other_layout)
        was = () if over is None else over.before
        file = OpenFile(item, Version.of(status), temporary, made, was, cloned, shown)
    if result.items.is_wanted:
        rank.own(Opened)[temporary] = began
    _spawn_chunks(rank, result, file, stripes, data=rank.data_in(status), in_turn=in_turn)


def _spawn_chunks(rank: Rank, result: Result, file: OpenFile, stripes: Stripes, *, data: int, in_turn: bool) -> None:
    """Spawn the tasks that fill the file, and FileOpened; or FinishFile alone if there is nothing to fill.

    Args:
        stripes: layout of the new file.
        data: bytes of the file that are not in holes.
        in_turn: True if chunks are copied one after the other.
    """
    size = file.version.size
    chunk = _chunk(rank, size, in_turn, stripes.unit)  # computed anew: the file may have grown since it was found
    if not rank.options.chunk_size:
        chunk = chunk_with_holes(chunk, size, data, rank.size)
    nothing_to_read = file.cloned and not rank.digests
    if nothing_to_read or not size:  # an empty file (truncated since it was found) has no chunk that could end it
        rank.counters[counts.MOVED] += size
        digest = rank.hashing.chunks(0, []) if rank.digests else b""
        result.spawn(FinishFile(file, digest, chunk, bytes((rank.hosts.here,))), owner=rank.number)
        return
    from pcopy.tasks.files.copy_chunk import CopyChunk, by_ost, in_order, spawn_chunks  # few jobs need it

    # The further names, which may be many, are not sent with each chunk.
    alone = file._replace(item=file.item._replace(names=file.item.names[:1], failed=()))
    if in_turn and not file.cloned:  # readers of a cloned file do not wait for each other
        result.spawn(FileOpened(file, -(-size // chunk), chunk))
        end = min(chunk, size)
        result.spawn(CopyChunk(alone, 0, end, 0, 0, 0, True), end)
        return
    chunks, run = in_order(size, chunk), chunk
    if rank.options.stripe_affinity and _may_stripe(rank, result, file, stripes):
        chunks, run = by_ost(size, chunk, stripes), stripes.size
    result.spawn(FileOpened(file, len(chunks), run))
    spawn_chunks(alone, chunks, rank, result)


def _may_stripe(rank: Rank, result: Result, file: OpenFile, stripes: Stripes) -> bool:
    """Return True if each chunk may consist of the stripes on one OST. If digests are computed, a stripe must be a
    power of two of blocks.
    """
    place, name = file.item.names[0]
    if len(stripes.osts) < 2:
        return False
    blocks = stripes.size // rank.options.block_size
    why = ""
    if rank.digests and (stripes.size % rank.options.block_size or blocks & (blocks - 1)):
        why = f"its stripe size is no power of two of blocks (--block-size {show_size(rank.options.block_size)})"
    elif file.version.size > MOST_STRIPES * stripes.size:
        why = f"it has more than {MOST_STRIPES:,} stripes"
    if why:
        result.warn_once(place, name, f"--stripe-affinity has no effect: {why}")
    return not why
