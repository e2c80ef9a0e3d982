"""SplitFile: a large file becomes chunks, copied into one temporary file.

All ranks copy chunks at once, unless both sides are local file systems: there several writers of a file would only wait
for its lock (``pcopy.fsio.ways``), and so each chunk spawns the next one when it is done. A job that is resumed goes on
with the chunks that are left in either case.

The chunk is chosen when the file's turn comes, from what is known by then: about the bytes found so far, divided among
64 chunks a rank (``pcopy.tasks.base.spreading``), and whole stripes. The owner of the file is told of each
(``chunk_ledger``).
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
"""Of a file whose chunks are the stripes of one OST each: of each stripe something is kept in memory."""


class SplitFile(OfItem, code=12, doing="copying", is_note=False):
    """A large file; the further names of ``item`` become hard links to it."""

    @property
    def unmade(self) -> Item:
        return self.item

    def run(self, rank: Rank, result: Result) -> Steps:
        """Splits the file, or copies it whole if it is under one and a half chunks."""
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
    """The first name is copied, or was there and stays. The others become links to that only if it is the same:
    whoever keeps an old file wants no further names of it."""
    if settled.unnamed is not None:
        copy = copy_here(rank, NOWHERE, settled.known)
        name_later(result, item, settled.unnamed, copy, shortcoming=settled.shortcoming, took=settled.how.nanoseconds)
    elif settled.made is not None:
        after_representative(rank, result, item, copy_here(rank, settled.made, settled.known))
    else:
        pass_on(result, item, item.failed)


def _in_turn(rank: Rank, place: Place) -> bool:
    """Are the chunks of a large file copied one after the other?"""
    if rank.size == 1:
        return True
    opened = rank.open_source(place), rank.open_target(place)  # only then the source's device is known for certain
    sides = zip(rank.devices(place), opened, strict=True)
    return all(rank.mover.ways.of(device, directory).is_local for device, directory in sides)


def _chunk(rank: Rank, size: int, in_turn: bool, unit: int = 0) -> int:
    """Bytes of a chunk. Those that are copied in turn need not be many, for ranks to end together."""
    if in_turn and not rank.options.chunk_size:
        unit = max(unit, SMALLEST_IN_TURN)
    return rank.chunk(size, unit)


def _split(item: Item, rank: Rank, result: Result, *, in_turn: bool) -> Generator[None, None, None]:
    """Makes the temporary file, or empties the existing one, and spawns what fills it; raises ``Problem``."""
    began = time.monotonic_ns()
    source, target = rank.open_source(item.place), rank.open_target(item.place)
    # The chunks and FinishFile open it again.
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
    """Spawn the tasks that fill the file, and FileOpened; or FinishFile if nothing is to be filled.

    ``data``: bytes of the file that are in no hole.
    """
    size = file.version.size
    chunk = _chunk(rank, size, in_turn, stripes.unit)  # it may have grown since it was found
    if not rank.options.chunk_size:
        chunk = chunk_with_holes(chunk, size, data, rank.size)
    nothing_to_read = file.cloned and not rank.digests
    if nothing_to_read or not size:  # it may have been emptied since it was found: no chunk would be done
        rank.counters[counts.MOVED] += size
        digest = rank.hashing.chunks(0, []) if rank.digests else b""
        result.spawn(FinishFile(file, digest, chunk, bytes((rank.hosts.here,))), owner=rank.number)
        return
    from pcopy.tasks.files.copy_chunk import CopyChunk, by_ost, in_order, spawn_chunks  # few jobs need it

    # Many links must not travel with each chunk.
    alone = file._replace(item=file.item._replace(names=file.item.names[:1], failed=()))
    if in_turn and not file.cloned:  # who only reads waits for nobody
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
    """May each chunk be what lies on one OST? A digest needs stripes that are whole subtrees of blocks."""
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
