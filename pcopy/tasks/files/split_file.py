"""SplitFile: a large file becomes chunks that all ranks copy at once into one temporary file.

The chunk is chosen when the file's turn comes, from what is known by then: about the bytes found so far, divided among
64 chunks a rank (``pcopy.tasks.base.spreading``).
"""

from __future__ import annotations

import stat
from collections.abc import Generator

from pcopy.fsio.attributes import free_from_acl
from pcopy.fsio.close import held_open
from pcopy.fsio.data import set_size
from pcopy.fsio.in_place import open_over
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import Version, check_found, open_source, status_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import OfItem, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import NOWHERE, Item, OpenFile
from pcopy.tasks.files.chunk_ledger import CopyChunk, FileOpened
from pcopy.tasks.files.existing import existing, inherits_acl
from pcopy.tasks.files.finish_file import FinishFile
from pcopy.tasks.files.name_items import name_later
from pcopy.tasks.files.whole_file import Settled, copy_whole, settled_already
from pcopy.tasks.links.representative import after_representative, copy_here, pass_on, representative_failed


class SplitFile(OfItem, code=12, doing="copying", is_note=False):
    """A large file; the further names of ``item`` become hard links to it."""

    @property
    def unmade(self) -> Item:
        return self.item

    def run(self, rank: Rank, result: Result) -> Steps:
        """Splits the file, or copies it whole if it is under one and a half chunks."""
        item = self.item
        try:
            if rank.splits(item.size):
                yield from _split(item, rank, result)
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
        name_later(result, item, settled.unnamed, copy, shortcoming=settled.shortcoming)
    elif settled.made is not None:
        after_representative(rank, result, item, copy_here(rank, settled.made, settled.known))
    else:
        pass_on(result, item, item.failed)


def _split(item: Item, rank: Rank, result: Result) -> Generator[None, None, None]:
    """Makes the temporary file, or empties the existing one, and spawns what fills it; raises ``Problem``."""
    source, target = rank.open_source(item.place), rank.open_target(item.place)
    # The chunks and FinishFile open it again.
    with held_open(open_source(source, item.name, follow=rank.options.dereference)) as reading:
        status = status_of(reading, on_source=True)
        check_found(status, rank.source_device(item.place, item.mount), item.inode)
        present = existing(rank, item.place, item.name)
        temporary = rank.temporary_names.next()
        layout, over = rank.layout.of_file(reading, status), None
        skipped = yield from settled_already(result, item.name, present, reading, status, linked=True)
        if skipped is not None:
            after_settled(rank, result, item, skipped)
            return
        if present is not None and rank.options.inplace:
            there, preserve = present.status, rank.options.preserve
            over = open_over(target, present.name, there, status, preserve, rank.job.name, temporary)
        with NewFile.beside(target, temporary, layout=layout, over=over) as new:
            inherits = over is None and inherits_acl(rank, item.place, target)
            if inherits or stat.S_IMODE(new.status.st_mode) != 0o600:
                free_from_acl(new.descriptor)  # the chunks open it again
            made = new.identity(item.place.target_id.mount)
            cloned = rank.mover.clone(reading, new.descriptor, (status.st_dev, new.status.st_dev))
            if not cloned:
                set_size(new.descriptor, status.st_size)
            new.keep(sync=rank.syncs_items(item.place))
        was = () if over is None else over.before
        file = OpenFile(item, Version.of(status), temporary, made, was, cloned)
    chunk = rank.chunk(status.st_size, layout.unit)  # it may have grown since it was found
    nothing_to_read = cloned and not rank.digests
    if nothing_to_read or not status.st_size:  # it may have been emptied since it was found: no chunk would be done
        rank.counters[counts.MOVED] += status.st_size
        digest = rank.hashing.chunks(0, []) if rank.digests else b""
        result.spawn(FinishFile(file, digest, chunk, bytes((rank.hosts.here,))), owner=rank.number)
        return
    starts = range(0, status.st_size, chunk)
    result.spawn(FileOpened(file, len(starts), chunk))
    # Many links must not travel with each chunk.
    alone = file._replace(item=item._replace(names=item.names[:1], failed=()))
    for index, start in enumerate(starts):
        end = min(start + chunk, status.st_size)
        result.spawn(CopyChunk(alone, start, end, index), end - start)
