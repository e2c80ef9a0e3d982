"""NameItems and NameGroup give complete and durable copies their final names, without replacing anything that may not
be replaced.

With ``--existing skip``, ``newer`` and ``fail``, copies wait for this until the phase NAME. So a copy is complete and
on stable storage before it has its name, and the task that names it is recorded with the identity of the copy. Any
other item under a final name, in this run or in a later one, is therefore not the job's own. These tasks decide whether
an item counts as copied; ``pcopy.tasks.files.naming`` gives it its name.
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
    """Task that gives items of one directory their final names. There is one column for each field of ``Unnamed``
    and of ``Known``.

    Fields:
        temporaries: temporary names, joined by slashes.
        inodes, marks: inode numbers and marks that identify the copies.
        kinds, sizes, versions, digests: contents of the copies.
        writer: number of the host that wrote them.
        took: duration of each copy in nanoseconds, packed; empty if durations are not reported.
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
        """Return the copies that are to be named."""
        return [*map(Unnamed, unpack_names(self.temporaries), unpack_numbers(self.inodes), self.marks)]

    def discard(self, rank: Rank, since: int) -> None:
        for made in self.unnamed():
            if made_by(made.temporary)[0] >= since:
                discard(rank, self.place, made)

    def run(self, rank: Rank, result: Result) -> Steps:
        """Name the items one by one. A copy that gets no name is removed."""
        place, naming = self.place, None
        names, sizes = unpack_names(self.names), unpack_numbers(self.sizes)
        digests = split_digests(self.digests, rank.hashing.algorithm.size) if rank.digests else [b""] * len(names)
        items = zip(names, self.unnamed(), unpack_known(self.kinds, sizes, self.versions, digests), strict=True)
        writers = bytes((self.writer,))
        took = unpack_numbers(self.took) if self.took else array("Q", bytes(8 * len(names)))
        for index, (name, item, known) in enumerate(items):
            try:
                naming = naming or Naming(rank, place)
                if naming.give(name, item, known):
                    result.copied(place, name, known, writers=writers, how=naming.how(took[index]))
                else:
                    discard(rank, place, item, result)
                    skipped(rank, result, place, name, known)
            except Problem as problem:
                discard(rank, place, item, result)
                if is_tried_again(problem, self.attempt):  # an earlier run named the copy, and it was removed since
                    result.look_again(place, name, self.attempt + 1)
                else:
                    result.fail(place, name, problem, known.size, touched=True)
            if not index % FILES_PER_SLICE:
                yield None


class NameGroup(OfItem, code=19, doing="naming the copy of", is_note=False):
    """Task that gives a copy the first name of ``item`` that is free; the other names become hard links to it.

    Fields:
        made: the copy.
        known: its contents.
        chunk, writers: as in ``Copy``.
        shortcoming: the problem with its metadata, or None.
        took: duration of the copy in nanoseconds.
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
        """Add this task to the group of its inode, where it waits for further names. Return True."""
        groups.unnamed.append(self)
        return True

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        return looked_at(gone, self.item, self.made, self.known)

    def gathered(self, task: Task, gone: Gone) -> Iterator[Task]:
        """Yield this task for the phase COPY, in which it waits for the other names of the inode. The item was copied
        already.
        """
        yield task._replace(phase=int(Phase.COPY), owner=bucket_of(self.item.inode))

    def run(self, rank: Rank, result: Result) -> Steps:
        """Give the copy the first name that is possible. Existing items under earlier names may be kept, and these
        names are skipped; others may fail.

        If the next name is in another directory, the item is copied again, since a copy gets a name only in its own
        directory (``Naming``). In a resumed job that looks for further names of any inode, the task waits for these
        first.
        """
        if result.phase < Phase.NAME:
            put(self, bucket_of(self.item.inode), rank, result)
            return
        item, known = self.item, self.known
        names, first, next_index, how = item.names, -1, len(item.names), AFRESH
        failed: list[FailedName] = []
        for index, (place, name) in enumerate(names):
            if place.directory != item.place.directory:
                first = _linked_before(self, rank, index)
                next_index = index
                break
            try:
                naming = Naming(rank, place)
                if naming.give(name, self.made, known):
                    first, next_index, how = index, index + 1, naming.how(self.took)
                    break
                skipped(rank, result, place, name, known)
            except Problem as problem:
                failed.append((place, name, problem.plain))
            yield None
        again = [each for each in failed if is_tried_again(Problem.from_plain(each[2]), item.attempt)]
        lasting = (*item.failed, *(each for each in failed if each not in again))
        tried = [(place, name) for place, name, _ in again]
        if first >= 0:
            links = (*(each for each in names[next_index:] if each != names[first]), *tried)
            _after_named(self, item._replace(names=(names[first], *links), failed=lasting), how, rank, result)
            return
        discard(rank, item.place, self.made, result)
        remaining = item._replace(names=(*tried, *names[next_index:]), failed=lasting)
        if again:
            result.copy(remaining._replace(attempt=item.attempt + 1), phase=result.phase)
        elif remaining.names:
            result.copy(remaining)
        else:
            all_failed(result, item, lasting, touched=True)


def _linked_before(task: NameGroup, rank: Rank, since: int) -> int:
    """Return the index of the first name, from ``since`` on, that leads to the copy already; -1 if there is none.

    An earlier run has named the copy, linked this name to it, and stopped before that was recorded. If another program
    has replaced the first name since, this name would otherwise be treated as the user's.
    """
    if rank.job.run == 1:
        return -1
    for index, (place, name) in enumerate(task.item.names[since:], since):
        with suppress(Problem):
            present = existing(rank, place, name)
            if present is not None and is_it(present, task.made, task.known):
                return index
    return -1


def _after_named(task: NameGroup, item: Item, how: How, rank: Rank, result: Result) -> None:
    """Count the item as copied, and have its further names linked. Its first name is the one that the copy has now."""
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
    """The copies of one task, all in one directory, that are still to be named."""

    def __init__(self, rank: Rank, place: Place, attempt: int) -> None:
        self._rank = rank
        self._place = place
        self._attempt = attempt
        self._temporaries: list[bytes] = []
        self._items: list[Unnamed] = []
        self._known = Gathered()
        self._took = array("Q")

    def expect(self, temporaries: list[bytes]) -> None:
        """Record temporary names under which files may be created, so that they are removed if the task fails before
        the files are added.
        """
        self._temporaries += filter(None, temporaries)

    def add(self, result: Result, item: Item, settled: Settled) -> None:
        """Add one copy. If not all of its metadata could be set, spawn a task of its own for it, which reports that."""
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
        """Add one regular file whose values are given separately."""
        self._items.append(item)
        self._took.append(took)
        self._known.add_file(name, version, size, digest, 0)

    @contextmanager
    def spawned(self, result: Result) -> Iterator[None]:
        """Spawn the task that names the copies added within the block, at its end; remove the copies if the block is
        left by an exception.

        The latter happens if the task is closed or the rank cannot continue.
        """
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
            with suppress(Problem):  # the directory was removed
                target = self._rank.open_target(self._place)
                for temporary in self._temporaries:
                    remove(target, temporary)
            raise


def name_later(
    result: Result, item: Item, made: Unnamed, copy: Copy, *, shortcoming: MetadataProblem | None = None, took: int = 0
) -> None:
    """Spawn the task that gives a copy, perhaps with further names, its final name in the phase NAME.

    It corresponds to ``after_representative`` for a copy whose first name is not given yet. ``took`` is the duration of
    the copy in nanoseconds.
    """
    lacks = None if shortcoming is None else shortcoming.plain
    task = NameGroup(item, made, copy.known, copy.chunk, copy.writers, lacks, took)
    result.spawn(task, CALL_COST, phase=max(Phase.NAME, result.phase))
