"""CompareDirs and CompareNames: directories that both sides have are listed, and what is in them is compared.

One task looks at a directory on both sides. Each name is asked for on both, and so it is known which side alone has it:
nothing is gathered anywhere. Of a directory that one side alone has nothing but its name is looked at.

Rules: what can't be listed, or looked at, on either side has failed: it is not taken for what the other side alone has.
Filters choose an item that they choose on either side, as what it is there.
"""

from __future__ import annotations

import errno
import os
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.batches import Stat
from pcopy.fsio.kernel.columns import MODE, Code, Verdicts, pack_names, unpack_names
from pcopy.fsio.kernel.directory_batches import CompareWithin, DoneWithin, LeftWithin, SumsWithin
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.named import NamedTuple
from pcopy.signature.items import DIRECTORY, FILE, ROOT
from pcopy.tasks.base import counts
from pcopy.tasks.base.dividing import Paces
from pcopy.tasks.base.kind import Divisible, Steps
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.siblings import LONG, AtOnce, are_entered_at_once, shares
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.compare.looking import Looking
from pcopy.tasks.compare.properties import ACL, CONTENT, TELLS_COMMON, XATTR
from pcopy.tasks.compare.sides import SIDES, failed, on_side, open_sides
from pcopy.tasks.compare.tell_differences import Differences
from pcopy.walk.listing import NAMES_AT_ONCE, Listing, NamesSpool, begin_list, spread

IN_PLACE = 64
"""Names that are looked at by who has listed them. Of more, others may take some, unless they are soon looked at."""
MOST_MERGED = 1 << 17
"""Names of a directory, of both sides together, that one rank brings together: some 20 MB. Of more, those of the second
side are asked for on the first once more."""

_CONTENTS = ord("c")


class CompareDirs(Divisible, code=120, doing="comparing", is_note=False):
    """The directories ``names`` of ``place`` (``.``: it itself), which both sides have: with these ``inodes`` on the
    first, and ``others`` on the second."""

    inodes: bytes
    others: bytes

    columns = ("inodes", "others")
    operation_count = 4

    def run(self, rank: Rank, result: Result) -> Steps:
        found, end, row = Differences(rank), time.monotonic() + LONG, 0
        names, inodes, others = unpack_names(self.names), unpack_numbers(self.inodes), unpack_numbers(self.others)
        at_once, is_plain = rank.own(AtOnce), len(names) > 1 and _are_plain(rank, self.place)
        while row < len(names):
            number, began = at_once.number if is_plain else 1, time.monotonic()
            part = slice(row, row + number)
            row += number
            if number > 1:
                some = _Some(self.place, names[part], inodes[part], others[part])
                yield from _compare_at_once(rank, result, found, some)
            else:
                result.count(counts.UNSCANNED, -1)
                yield from _compare(rank, result, found, self.place, names[part][0], (inodes[part][0], others[part][0]))
            now = time.monotonic()
            at_once.took(now - began)
            if row < len(names) and (rank.stop_reason is not None or now > end):
                rest = self._replace(
                    names=pack_names(names[row:]), inodes=self.inodes[8 * row :], others=self.others[8 * row :]
                )
                for task in rest.divide(min(2, rest.items)):
                    result.spawn(task, task.items * SCAN_COST, expands=True)
                break
        found.tell(result)


class _Some(NamedTuple):
    """Directories that lie beside each other on both sides, with their inodes there and here."""

    around: Place
    names: Sequence[bytes]
    inodes: Sequence[int]
    others: Sequence[int]


def _are_plain(rank: Rank, around: Place) -> bool:
    """Does the kernel compare what is in several of the directories in this one?"""
    options = rank.options
    if not are_entered_at_once(rank) or rank.own(Selected).anything:
        return False
    if options.compare & (ACL | XATTR | TELLS_COMMON) or options.direct or options.drop_cache:
        return False
    return not any(rank.sources[side].mounted.concerns(around.path) for side in SIDES)


def _compare_at_once(rank: Rank, result: Result, found: Differences, some: _Some) -> Steps:
    """Some directories; those that are no plain cases one by one."""
    around = some.around
    done = yield from _compare_within(rank, some)
    _count(rank, result, done.sums)
    for row, code in enumerate(done.verdicts.codes):
        result.count(counts.UNSCANNED, -1)
        name, both = some.names[row], (some.inodes[row], some.others[row])
        if code != Code.DONE:
            yield from _compare(rank, result, found, around, name, both)
            continue
        result.count(counts.DIRECTORIES)
        if row in done.left:
            ours, theirs = Identity(around.source_id.mount, both[0]), Identity(around.target_id.mount, both[1])
            place = Place(around.root, os.path.join(around.path, name), ours, theirs, False, False)
            yield from _go_on(rank, result, found, place, done.left[row])


def _compare_within(rank: Rank, some: _Some) -> Stepwise[DoneWithin]:
    sides = [on_side(some.around, side) for side in SIDES]
    try:
        ours, theirs = map(rank.open_source, sides)
    except Problem:  # which each tells by itself
        return DoneWithin(Verdicts(len(some.names)), SumsWithin(), {})
    devices = rank.source_device(sides[0]) or 0, rank.source_device(sides[1]) or 0
    numbers = array("Q", some.inodes), array("Q", some.others)
    wanted, window = rank.options.compare, rank.options.modify_window
    batch = CompareWithin(ours, pack_names(some.names), theirs, *numbers, devices, NAMES_AT_ONCE - 1, wanted, window)
    return (yield from rank.done(batch))


def _count(rank: Rank, result: Result, sums: SumsWithin) -> None:
    """What is alike, and files that differ in their contents; directories count when they are done."""
    result.count(counts.FOUND, sums.files + sums.directories + sums.links + sums.others)
    result.count(counts.FILES, sums.files)
    result.count(counts.SYMLINKS, sums.links)
    result.count(counts.SPECIAL, sums.others)
    result.count(counts.FOUND_BYTES, sums.bytes)
    result.count(counts.BYTES, sums.bytes)
    rank.counters[counts.MOVED] += sums.bytes


def _go_on(rank: Rank, result: Result, found: Differences, place: Place, left: LeftWithin) -> Steps:
    """What the kernel has left of a directory."""
    names = unpack_names(left.names)
    below, differing, others = list[tuple[bytes, int, int]](), list[bytes](), list[bytes]()
    for name, kind, inode, other in zip(names, left.kinds, left.inodes, left.others, strict=True):
        if kind == DIRECTORY[0]:
            below.append((name, inode, other))
        else:
            (differing if kind == _CONTENTS else others).append(name)
    found.add(place.path, differing, [CONTENT] * len(differing), FILE * len(differing))
    _enter(rank, result, place, below)
    if others:
        opened = open_sides(rank, result, place, others)
        if opened is None:
            result.count(counts.FOUND, len(others))
        else:
            yield from compare_names(rank, result, found, place, opened, pack_names(others))


def _compare(
    rank: Rank, result: Result, found: Differences, around: Place, name: bytes, inodes: tuple[int, int]
) -> Steps:
    """One directory."""
    path = around.path if name == ROOT else os.path.join(around.path, name)
    place, side = around._replace(path=path), 0
    listings: list[Listing] = []
    try:
        for side in SIDES:
            identity = _identity(rank, side, on_side(around, side), path, inodes[side])
            place = place._replace(target_id=identity) if side else place._replace(source_id=identity)
            listings.append((yield from begin_list(rank.kernel, rank.open_source(on_side(place, side)))))
    except Problem as problem:
        failed(result, place, side, ROOT, problem)
        return
    opened = open_sides(rank, result, place, [ROOT])
    if opened is None:
        return
    for side in SIDES:
        if not listings[side].number and not status_of(opened[side], on_source=True).st_nlink:
            gone = Problem("readdir", errno.ENOENT, on_source=True, changed=True)
            failed(result, place, side, ROOT, gone)
            return
    try:
        if any(listing.is_large for listing in listings):
            yield from _spread(rank, result, place, listings)
        else:
            yield from _look(rank, result, found, place, opened, _united(*(listing.names for listing in listings)))
    except _Unlisted as unlisted:
        failed(result, place, unlisted.side, ROOT, unlisted.problem)
    else:
        result.count(counts.DIRECTORIES)


class _Unlisted(Exception):
    """The rest of a directory can't be listed."""

    def __init__(self, side: int, problem: Problem) -> None:
        super().__init__(problem)
        self.side, self.problem = side, problem


def _identity(rank: Rank, side: int, around: Place, path: bytes, inode: int) -> Identity:
    """Which directory is there; raises ``Problem`` if it is not the one that was found. What is mounted there may have
    been mounted since."""
    directories = rank.sources[side]
    identity = directories.identity(path)
    if path != around.path and identity.mount == around.source_id.mount and identity.inode != inode:
        directories.forget(path)
        raise Problem("open", errno.ESTALE, on_source=True, text="the directory was replaced meanwhile")
    return identity


def _united(ours: bytes, theirs: bytes) -> bytes:
    """Packed names, each once."""
    if ours == theirs or not theirs:
        return ours
    if not ours:
        return theirs
    names = unpack_names(ours)
    known = {*names}
    return pack_names(chain(names, (name for name in unpack_names(theirs) if name not in known)))


def _look(
    rank: Rank, result: Result, found: Differences, place: Place, opened: tuple[int, int], packed: bytes
) -> Steps:
    number, paces = packed.count(b"/") + bool(packed), rank.own(Paces)
    if number <= IN_PLACE or (paces.are_quick(CompareNames.code, number) and not rank.throttle.is_on):
        yield from rank.throttle.spend(operations=2 * number)
        began = time.monotonic()
        if packed:
            yield from compare_names(rank, result, found, place, opened, packed)
            paces.took(CompareNames.code, number, time.monotonic() - began)
    else:
        result.spawn(CompareNames(place, packed), number * CALL_COST, expands=True)


def _spread(rank: Rank, result: Result, place: Place, listings: Sequence[Listing]) -> Steps:
    """Very many names are looked at by all ranks."""
    spools = [NamesSpool(rank.open_spool) for _ in SIDES]
    numbers = []
    for side in SIDES:
        try:
            numbers.append((yield from spread(listings[side], spools[side])))
        except Problem as problem:
            raise _Unlisted(side, problem) from None
    tasks: Iterator[CompareNames]
    if sum(numbers) <= MOST_MERGED:
        tasks = (CompareNames(place, packed) for packed in _parts(_united(*(b"/".join(spool) for spool in spools))))
    else:
        tasks = chain(
            (CompareNames(place, packed) for packed in spools[0]),
            (CompareNames(place, packed, True) for packed in spools[1]),
        )
    result.spawn_each(tasks, NAMES_AT_ONCE * CALL_COST, expands=True)


def _parts(packed: bytes) -> Iterator[bytes]:
    names = unpack_names(packed)
    return (pack_names(names[start : start + NAMES_AT_ONCE]) for start in range(0, len(names), NAMES_AT_ONCE))


class CompareNames(Divisible, code=121, doing="comparing", is_note=False):
    """Names that either side has in ``place``; ``once_more``: those that the first has are the affair of others."""

    once_more: bool = False

    operation_count = 2
    least_items = 16

    def run(self, rank: Rank, result: Result) -> Steps:
        names = unpack_names(self.names)
        opened = open_sides(rank, result, self.place, names)
        if opened is None:
            result.count(counts.FOUND, len(names))
            return
        packed = (yield from _missing(rank, opened[0], self.names)) if self.once_more else self.names
        if packed:
            found = Differences(rank)
            yield from compare_names(rank, result, found, self.place, opened, packed)
            found.tell(result)


def _missing(rank: Rank, directory: int, packed: bytes) -> Stepwise[bytes]:
    """Those of the names that an open directory of the first side does not have, for certain."""
    verdicts = (yield from rank.done(Stat(directory, packed, MODE, on_source=True))).verdicts
    if verdicts.codes.count(Code.DONE) == len(verdicts):
        return b""
    names = unpack_names(packed)
    return pack_names(
        names[row]
        for row, code in enumerate(verdicts.codes)
        if code != Code.DONE and verdicts.errnos[row] == errno.ENOENT
    )


def compare_names(
    rank: Rank, result: Result, found: Differences, place: Place, opened: tuple[int, int], packed: bytes
) -> Stepwise[None]:
    """Looks at names (not none) of a directory that is open on both sides."""
    looking = Looking(rank, result, place, opened, packed)
    yield from looking.look()
    yield from looking.compare()
    looking.tell(found)
    _enter(rank, result, place, looking.below())


def _enter(rank: Rank, result: Result, place: Place, below: Sequence[tuple[bytes, int, int]]) -> None:
    """Names and inodes of directories."""
    for share in shares(rank, len(below)):
        names, *inodes = zip(*below[share], strict=True)
        task = CompareDirs(place, pack_names(names), *(pack_numbers([*each]) for each in inodes))
        result.spawn(task, len(names) * SCAN_COST, expands=True)
    result.count(counts.UNSCANNED, len(below))
