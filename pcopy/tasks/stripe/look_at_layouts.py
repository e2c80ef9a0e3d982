"""LookAtLayouts: which layouts files have; those that don't fit get another, if that is wanted.

What is found is summed up by each rank, under keys that ``pcopy.tools.stripe`` reads.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import closing

from pcopy.engine.task import ANYBODY
from pcopy.fsio.close import held_open
from pcopy.fsio.kernel.columns import pack_names, unpack_names
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import open_source, status_of
from pcopy.lustre.blob import Striping, describe
from pcopy.lustre.layouts import LustreLayout
from pcopy.lustre.restripe import Means, restripe
from pcopy.lustre.wish import MOST_STRIPES, stripes_for
from pcopy.named import NamedTuple
from pcopy.signature.algorithms import DEFAULT_ALGORITHM
from pcopy.signature.items import FILE, type_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.hashing import Hashing
from pcopy.tasks.base.kind import Divisible, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.copying import BATCH_BYTES, BATCH_FILES, Finding
from pcopy.tasks.files.layouts import Layouts
from pcopy.walk.visitor import Found

FILES, BYTES, OST, FEWER, MORE, CHANGED, FITS = "files ", "bytes ", "ost ", "fewer", "more", "changed", "fits"
"""What the keys of sums begin with, or are: files and bytes by layout, stripes by OST, files with fewer or more stripes
than suit them."""


class LayoutVisitor(Finding):
    """All regular files, in batches; other items have no layout."""

    links_apart = True

    def __init__(self, rank: Rank, result: Result, place: Place, attempt: int) -> None:
        super().__init__(rank, result, place, attempt)
        self._batches: dict[int, _Batch] = {}
        """By the rank that does it."""

    def small_files(self, found: Found, rows: Sequence[int]) -> None:
        for row in rows:
            self._add(found, row, ANYBODY)

    large_files = nodes = small_files

    def linked(self, found: Found, rows: Sequence[int]) -> None:
        """All names of an inode come to one rank, which looks at the first of them."""
        for row in rows:
            self._add(found, row, found.rows.inode[row] % self._rank.size)

    def _add(self, found: Found, row: int, owner: int) -> None:
        if type_of(found.rows.mode[row]) != FILE:
            self._result.count(counts.SKIPPED)
            return
        size = found.rows.size[row]
        batch = self._batches.setdefault(owner, _Batch())
        batch.names.append(found.names[row])
        batch.inodes.append(found.rows.inode[row])
        batch.bytes += size
        self._found_bytes += size
        if len(batch.names) >= BATCH_FILES or (self._rank.options.stripe and batch.bytes >= BATCH_BYTES):
            self._spawn(owner)

    def _spawn(self, owner: int) -> None:
        batch = self._batches.pop(owner)
        task = LookAtLayouts(self._place, pack_names(batch.names), pack_numbers(batch.inodes))
        cost = batch.bytes if self._rank.options.stripe else 0
        self._result.spawn(task, cost + len(batch.names) * CALL_COST, owner=owner)

    def finish(self) -> None:
        for owner in [*self._batches]:
            self._spawn(owner)
        super().finish()


class _Batch:
    """Files of one directory, and the sum of their sizes."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.inodes: list[int] = []
        self.bytes = 0


class InodesSeen:
    """The inodes with several names of which this rank has looked at one."""

    def __init__(self, rank: Rank) -> None:
        self._to_come: dict[tuple[int, int], int] = {}
        """How many further names they have."""

    def add(self, status: os.stat_result) -> None:
        if status.st_nlink > 1:
            self._to_come[status.st_dev, status.st_ino] = status.st_nlink - 1

    def is_further_name(self, status: os.stat_result) -> bool:
        """Of such an inode; each is asked for once."""
        inode = status.st_dev, status.st_ino
        to_come = self._to_come.pop(inode, 0)
        if to_come > 1:
            self._to_come[inode] = to_come - 1
        return to_come > 0


class Looking(NamedTuple):
    """In an open ``directory``; ``sums`` are of one task."""

    layout: LustreLayout
    directory: int
    sums: Counter[str]


class Digesting(Hashing):
    """Of what is copied to another layout, and read back."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(DEFAULT_ALGORITHM, rank.options.block_size)


class LookAtLayouts(Divisible, code=90, doing="looking at the layouts of files of", is_note=False):
    """Of regular files, with their ``inodes`` (8 bytes each) as they were found."""

    inodes: bytes

    columns = ("inodes",)

    def run(self, rank: Rank, result: Result) -> Steps:
        place = self.place
        names = unpack_names(self.names)
        try:
            directory = rank.open_source(place)
            layout = _layout_of(rank, place, directory)
        except Problem as problem:
            for name in names:
                result.fail(place, name, problem, retry=Tried.NEVER)
            return
        at = Looking(layout, directory, Counter())
        for name, inode in zip(names, unpack_numbers(self.inodes), strict=True):
            if rank.stop_reason is not None:
                break
            try:
                yield from _look(rank, result, place, at, name, inode)
            except OSError as error:
                result.fail(place, name, Problem.of("stripe", error), retry=Tried.NEVER)
            yield None
        rank.own(Layouts).add(result, at.sums)


def _layout_of(rank: Rank, place: Place, directory: int) -> LustreLayout:
    layout = rank.own(Layouts).of(rank.source_device(place) or 0, directory)
    if not isinstance(layout, LustreLayout):
        raise Problem("stripe", errno.ENOTSUP, on_source=True, text="it is not on Lustre")
    return layout


def _look(rank: Rank, result: Result, place: Place, at: Looking, name: bytes, inode: int) -> Steps:
    layout, directory, sums = at
    with held_open(open_source(directory, name)) as reading:
        status = status_of(reading, on_source=True)
        if status.st_ino != inode:
            raise Problem("open", errno.ESTALE, on_source=True, text="another item has taken its name", changed=True)
        if rank.own(InodesSeen).is_further_name(status):
            _left_alone(result, place, status)
            return
        striping = layout.striping_of(reading)
        is_fit = True
        if rank.options.stripe:
            recipe = layout.of_file(reading, status, directory)
            is_fit = layout.fits(recipe, striping, status.st_size, directory)
    if not is_fit and not rank.options.dry_run:
        means = Means(rank.mover, rank.own(Digesting).hasher)
        with closing(restripe(directory, name, inode, recipe, means)) as steps:
            for moved in steps:
                rank.counters[counts.MOVED] += moved
                yield None
        rank.succeeded()
        with held_open(open_source(directory, name)) as reading:
            striping = layout.striping_of(reading)
    rank.own(InodesSeen).add(status)
    _add(sums, striping, status.st_size, layout.count_osts(directory))
    if rank.options.stripe:
        sums[FITS if is_fit else CHANGED] += 1
    if is_fit and rank.options.stripe:
        _left_alone(result, place, status)
    else:
        result.count(counts.FILES, 1, place)
        result.count(counts.BYTES, status.st_size, place)


def _left_alone(result: Result, place: Place, status: os.stat_result) -> None:
    result.count(counts.SKIPPED, 1, place)
    result.count(counts.SKIPPED_BYTES, status.st_size, place)


def _add(sums: Counter[str], striping: Striping | None, size: int, osts: int) -> None:
    """What is told of a file."""
    text = "none yet" if striping is None else describe(striping.normal)
    sums[FILES + text] += 1
    sums[BYTES + text] += size
    if striping is None:
        return
    for component in striping.components:
        for ost in component.osts:
            sums[f"{OST}{ost}"] += 1
    one = striping.plain
    if one is not None:
        suits = stripes_for(size, 1, MOST_STRIPES, osts)
        if one.stripes != suits:
            sums[FEWER if one.stripes < suits else MORE] += 1
