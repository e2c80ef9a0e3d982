"""NameItems and NameGroup: whole and durable items get their final names, and nothing is replaced unasked.

Until then they wait, with ``skip``, ``newer`` and ``fail``: so an item is whole and on stable storage before it has its
name, and the task that gives it the name is on record with the item's identity. Any other item that has a name, in this
run or in a later one, is not the job's own. Here is decided whether an item counts as copied;
``pcopy.tasks.files.naming`` knows how it gets its name.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pcopy.engine.task import Task
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.columns import pack_names, unpack_names
from pcopy.fsio.problem import MetadataProblem, Plain, Problem
from pcopy.fsio.source import Version
from pcopy.fsio.temporary import made_by, remove
from pcopy.tasks.base.actions import AFRESH, How
from pcopy.tasks.base.attempts import is_tried_again
from pcopy.tasks.base.dividing import cut_names, cuts
from pcopy.tasks.base.gathered import Gathered, cut_versions, split_digests, unpack_known
from pcopy.tasks.base.kind import Divisible, Gone, OfItem, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, FILES_PER_SLICE, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import (
    NOWHERE,
    Copy,
    FailedName,
    Item,
    Known,
    Place,
    Unnamed,
    bucket_of,
    pack_numbers,
    unpack_numbers,
)
from pcopy.tasks.files.existing import existing
from pcopy.tasks.files.naming import Naming, discard, is_it
from pcopy.tasks.files.whole_file import Settled
from pcopy.tasks.links.copy_anew import anew, looked_at
from pcopy.tasks.links.group_links import Groups, put
from pcopy.tasks.links.make_links import after_representative, all_failed, copy_here
from pcopy.tasks.verify.read_items import skipped


class NameItems(Divisible, code=18, doing="naming copies of", is_note=False):
    """Gives items of one directory their names. One column for each field of ``Unnamed`` and of ``Known``.

    ``writer`` is the host that has written them. It ``took`` so many nanoseconds (packed; empty if nobody asks).
    """

    temporaries: bytes
    inodes: bytes
    marks: tuple[bytes, ...]
    kinds: bytes
    sizes: bytes
    versions: bytes
    digests: bytes
    attempt: int
    writer: int
    took: bytes = b""

    columns = ("inodes", "kinds", "sizes", "digests", "took")

    def divide(self, portions: int) -> list[NameItems]:
        at = cuts(self.items, portions)
        versions = cut_versions(self.versions, self.items, at)
        parts = zip(super().divide(portions), at, cut_names(self.temporaries, at), versions, strict=True)
        return [
            part._replace(temporaries=temporaries, marks=self.marks[each], versions=version)
            for part, each, temporaries, version in parts
        ]

    def unnamed(self) -> list[Unnamed]:
        return [*map(Unnamed, unpack_names(self.temporaries), unpack_numbers(self.inodes), self.marks)]

    def discard(self, rank: Rank, since: int) -> None:
        for made in self.unnamed():
            if made_by(made.temporary)[0] >= since:
                discard(rank, self.place, made)

    def run(self, rank: Rank, result: Result) -> Steps:
        """One after the other; one that gets no name is removed."""
        place, naming = self.place, None
        names, sizes = unpack_names(self.names), unpack_numbers(self.sizes)
        digests = split_digests(self.digests, rank.hashing.algorithm.size) if rank.digests else [b""] * len(names)
        everything = zip(names, self.unnamed(), unpack_known(self.kinds, sizes, self.versions, digests), strict=True)
        writers = bytes((self.writer,))
        took = unpack_numbers(self.took) if self.took else array("Q", bytes(8 * len(names)))
        for index, (name, item, known) in enumerate(everything):
            try:
                naming = naming or Naming(rank, place)
                if naming.give(name, item, known):
                    result.copied(place, name, known, writers=writers, how=naming.how(took[index]))
                else:
                    discard(rank, place, item, result)
                    skipped(rank, result, place, name, known)
            except Problem as problem:
                discard(rank, place, item, result)
                if is_tried_again(problem, self.attempt):  # somebody has removed what an earlier run has named
                    result.look_again(place, name, self.attempt + 1)
                else:
                    result.fail(place, name, problem, known.size, touched=True)
            if not index % FILES_PER_SLICE:
                yield None


class NameGroup(OfItem, code=19, doing="naming the copy of", is_note=False):
    """Gives what was ``made`` the first name of ``item`` that is free; the others become links to it.

    ``chunk`` and ``writers`` as in ``Copy``. ``shortcoming``: what its metadata lacks. To copy it ``took`` so
    many nanoseconds.
    """

    made: Unnamed
    known: Known
    chunk: int
    writers: bytes
    shortcoming: Plain | None = None
    took: int = 0

    def discard(self, rank: Rank, since: int) -> None:
        if made_by(self.made.temporary)[0] >= since:
            discard(rank, self.item.place, self.made)

    def gather(self, groups: Groups) -> bool:
        """It waits for further names of its inode."""
        groups.unnamed.append(self)
        return True

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        return looked_at(gone, self.item, self.made, self.known)

    def gathered(self, task: Task, gone: Gone) -> Iterator[Task]:
        """It is copied already, and waits for the other names."""
        yield task._replace(phase=int(Phase.COPY), owner=bucket_of(self.item.inode))

    def run(self, rank: Rank, result: Result) -> Steps:
        """The first of the names that can be given; of those before it some are kept, and others have failed.

        In another directory the item is copied again: it is given no names but in its own (``Naming``). In a resumed
        job that finds more names, which may be names of the item, it waits for these first.
        """
        if result.phase < Phase.NAME:
            put(self, bucket_of(self.item.inode), rank, result)
            return
        item, known = self.item, self.known
        names, first, others, how = item.names, -1, len(item.names), AFRESH
        failed: list[FailedName] = []
        for index, (place, name) in enumerate(names):
            if place.directory != item.place.directory:
                first = _linked_before(self, rank, index)
                others = index
                break
            try:
                naming = Naming(rank, place)
                if naming.give(name, self.made, known):
                    first, others, how = index, index + 1, naming.how(self.took)
                    break
                skipped(rank, result, place, name, known)
            except Problem as problem:
                failed.append((place, name, problem.plain))
            yield None
        again = [each for each in failed if is_tried_again(Problem.from_plain(each[2]), item.attempt)]
        lasting = (*item.failed, *(each for each in failed if each not in again))
        tried = [(place, name) for place, name, _ in again]
        if first >= 0:
            links = (*(each for each in names[others:] if each != names[first]), *tried)
            _after_named(self, item._replace(names=(names[first], *links), failed=lasting), how, rank, result)
            return
        discard(rank, item.place, self.made, result)
        left = item._replace(names=(*tried, *names[others:]), failed=lasting)
        if again:
            result.copy(left._replace(attempt=item.attempt + 1), phase=result.phase)
        elif left.names:
            result.copy(left)
        else:
            all_failed(result, item, lasting, touched=True)


def _linked_before(task: NameGroup, rank: Rank, since: int) -> int:
    """Which of its names, from ``since`` on, is the item already? Else -1.

    An earlier run has named it and linked this one to it, before that was on record. If somebody has replaced the first
    name since, this one would seem to be the user's.
    """
    if rank.job.run == 1:
        return -1
    for index, (place, name) in enumerate(task.item.names[since:], since):
        with suppress(Problem):
            there = existing(rank, place, name)
            if there is not None and is_it(there, task.made, task.known):
                return index
    return -1


def _after_named(task: NameGroup, item: Item, how: How, rank: Rank, result: Result) -> None:
    """``item`` begins with the name that the copy has now."""
    known, made = task.known, task.made
    shortcoming = None if task.shortcoming is None else MetadataProblem.from_plain(task.shortcoming)
    if shortcoming is None:
        chunk, writers = task.chunk, task.writers
        result.copied(item.place, item.name, known, alone=not item.links, chunk=chunk, writers=writers, how=how)
    elif not (item.links or item.failed):
        retry = anew(rank, item._replace(attempt=max(1, item.attempt)), made)
        result.fail(item.place, item.name, shortcoming, item.size, retry=retry, touched=True)
        return
    copy = Copy(Identity(item.place.target_id.mount, made.inode, made.mark), known, task.chunk, task.writers)
    after_representative(rank, result, item, copy, shortcoming=shortcoming)


class Waiting:
    """The items of one task, all of one directory, that are to be named."""

    def __init__(self, rank: Rank, place: Place, attempt: int) -> None:
        self._rank = rank
        self._place = place
        self._attempt = attempt
        self._temporaries: list[bytes] = []
        self._items: list[Unnamed] = []
        self._known = Gathered()
        self._took = array("Q")

    def expect(self, temporaries: list[bytes]) -> None:
        """Files may be made under these names, before they are added."""
        self._temporaries += filter(None, temporaries)

    def add(self, result: Result, item: Item, settled: Settled) -> None:
        """One more, which is unnamed. If not all of its metadata could be set, it has a task of its own, which tells
        that."""
        made, known, shortcoming = settled.unnamed, settled.known, settled.shortcoming
        assert made is not None
        self._temporaries.append(made.temporary)
        if shortcoming is not None:
            name_later(result, item, made, copy_here(self._rank, NOWHERE, known), shortcoming=shortcoming)
            return
        self._items.append(made)
        self._took.append(settled.how.nanoseconds)
        self._known.add(item.name, known)

    def add_file(self, name: bytes, item: Unnamed, version: Version, size: int, digest: bytes, took: int) -> None:
        self._items.append(item)
        self._took.append(took)
        self._known.add_file(name, version, size, digest, 0)

    @contextmanager
    def spawned(self, result: Result) -> Iterator[None]:
        """Items that are added inside are handed over at the end, or removed if the task ends before that: it is
        closed, or the rank cannot go on."""
        try:
            yield
            if self._items:
                temporaries, inodes, marks = zip(*self._items, strict=True)
                made = pack_names(temporaries), pack_numbers([*inodes]), marks
                known, host = self._known, self._rank.hosts.here
                took = self._took.tobytes() if result.items.is_wanted else b""
                task = NameItems(self._place, known.packed_names, *made, *known.columns, self._attempt, host, took)
                result.spawn(task, len(marks) * CALL_COST // 4, phase=max(Phase.NAME, result.phase))
        except BaseException:
            with suppress(Problem):  # its directory has gone
                target = self._rank.open_target(self._place)
                for temporary in self._temporaries:
                    remove(target, temporary)
            raise


def name_later(
    result: Result, item: Item, made: Unnamed, copy: Copy, *, shortcoming: MetadataProblem | None = None, took: int = 0
) -> None:
    """One item, with further names perhaps, which it ``took`` so many nanoseconds to copy.

    As ``after_representative``, where the first name is not given yet."""
    lacks = None if shortcoming is None else shortcoming.plain
    task = NameGroup(item, made, copy.known, copy.chunk, copy.writers, lacks, took)
    result.spawn(task, CALL_COST, phase=max(Phase.NAME, result.phase))
