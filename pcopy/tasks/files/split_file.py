"""SplitFile, FileOpened, CopyChunk and ChunkDone: a large file becomes chunks, copied into one temporary file.

All ranks copy chunks at once, unless both sides are local file systems: there several writers of a file would only wait
for its lock (``pcopy.fsio.ways``), and so each chunk spawns the next one when it is done. A job that is resumed goes on
with the chunks that are left in either case.

The chunk is chosen when the file's turn comes, from what is known by then: about the bytes found so far, divided among
64 chunks a rank (``pcopy.tasks.base.spreading``). The owner of the file is told of each. The note of the last one
spawns FinishFile. A chunk never creates: without its temporary file there is nothing to fill.
"""

from __future__ import annotations

import stat
from collections.abc import Generator, Iterator
from contextlib import closing, suppress

from pcopy.engine.task import Task
from pcopy.fsio.attributes import free_from_acl
from pcopy.fsio.close import abandon, close_written, held_open
from pcopy.fsio.contents import digest_contents, has_holes
from pcopy.fsio.data import set_size
from pcopy.fsio.in_place import incomplete, open_over
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Plain, Problem
from pcopy.fsio.source import Version, check_found, check_unchanged, open_source, status_of
from pcopy.fsio.temporary import made_by, remove, reopen
from pcopy.named import NamedTuple
from pcopy.tasks.base import counts
from pcopy.tasks.base.gathered import split_digests
from pcopy.tasks.base.kind import Gone, Kind, Note, OfItem, Steps
from pcopy.tasks.base.ledger import Awaited, Ledger
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.spreading import SMALLEST_IN_TURN
from pcopy.tasks.base.values import NOWHERE, Item, OpenFile, Place
from pcopy.tasks.files.existing import existing, inherits_acl
from pcopy.tasks.files.finish_file import FinishFile, OfFile, opened_failed
from pcopy.tasks.files.name_items import name_later
from pcopy.tasks.files.whole_file import Settled, copy_whole, settled_already
from pcopy.tasks.links.make_links import after_representative, copy_here, pass_on, representative_failed


class SplitFile(OfItem, code=12, doing="copying", is_note=False):
    """A large file; the further names of ``item`` become hard links to it."""

    @property
    def unmade(self) -> Item:
        return self.item

    def run(self, rank: Rank, result: Result) -> Steps:
        """Splits the file, or copies it whole if it is under one and a half chunks."""
        item = self.item
        try:
            in_turn = _in_turn(rank, item.place)
            if item.size > SMALL_FILE and 2 * item.size >= 3 * _chunk(rank, item.size, in_turn):
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
        name_later(result, item, settled.unnamed, copy, shortcoming=settled.shortcoming)
    elif settled.made is not None:
        after_representative(rank, result, item, copy_here(rank, settled.made, settled.known))
    else:
        pass_on(result, item, item.failed)


def _in_turn(rank: Rank, place: Place) -> bool:
    """Are the chunks of a large file copied one after the other?"""
    if rank.size == 1:
        return True
    sides = zip(rank.devices(place), (rank.open_source(place), rank.open_target(place)), strict=True)
    return all(rank.mover.ways.of(device, directory).is_local for device, directory in sides)


def _chunk(rank: Rank, size: int, in_turn: bool, unit: int = 0) -> int:
    """Bytes of a chunk. Those that are copied in turn need not be many, for ranks to end together."""
    if in_turn and not rank.options.chunk_size:
        unit = max(unit, SMALLEST_IN_TURN)
    return rank.chunk(size, unit)


def _split(item: Item, rank: Rank, result: Result, *, in_turn: bool) -> Generator[None, None, None]:
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
    chunk = _chunk(rank, status.st_size, in_turn, layout.unit)  # it may have grown since it was found
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
    in_turn = in_turn and not cloned  # who only reads waits for nobody
    for index, start in enumerate(starts[:1] if in_turn else starts):
        end = min(start + chunk, status.st_size)
        result.spawn(CopyChunk(alone, start, end, index, 0, 0, in_turn), end - start)


class FileOpened(OfFile, code=13, doing="waiting for the chunks of", is_note=True):
    """Tells the owner of a file how many chunks to wait for. What is known of it is known of each ``chunk`` bytes: a
    chunk, or a run of one."""

    chunks: int
    chunk: int

    def home(self, ranks: int) -> int:
        return made_by(self.file.temporary)[1] % ranks

    def run(self, rank: Rank, result: Result) -> None:
        runs = -(-self.file.version.size // self.chunk)
        file = FileInChunks(self, [b""] * runs, bytearray(runs))
        rank.own(ChunkLedger).open(self.file.temporary, file, self.chunks, result)


class ChunkDone(Note, code=15, doing="noting a part of a file"):
    """A chunk is copied, or met a problem. It had so many ``runs``, numbered from ``part`` in steps of ``step``.
    ``roots`` are their joined content roots, if digests are wanted, ``writer`` is the host."""

    temporary: bytes
    problem: Plain | None
    part: int
    step: int
    runs: int
    roots: bytes
    writer: int

    def home(self, ranks: int) -> int:
        return made_by(self.temporary)[1] % ranks

    def mended(self, task: Task, gone: Gone) -> Iterator[Task]:
        return iter(()) if gone.has_chunk(self.temporary) else iter((task,))

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(ChunkLedger).take(self.temporary, self, result)


class CopyChunk(Kind, code=14, doing="copying a part of", is_note=False):
    """The bytes from ``start`` to ``end``, the chunk number ``part``. With a ``stride`` only the first ``run`` bytes of
    each so many, where ``part`` is the number of the first run. ``in_turn``: the next chunk follows it."""

    file: OpenFile
    start: int
    end: int
    part: int
    stride: int
    run_bytes: int
    in_turn: bool

    def about(self) -> tuple[Place, bytes]:
        return self.file.item.names[0]

    def mended(self, task: Task, gone: Gone) -> Iterator[Task]:
        is_lost = gone.has(self.file.item.place) or gone.has_chunk(self.file.temporary)
        return iter(()) if is_lost else iter((task,))

    def stretches(self) -> list[tuple[int, int]]:
        """Where each of its runs begins and ends."""
        stride, run = self.stride or self.end - self.start, self.run_bytes or self.end - self.start
        return [(at, min(at + run, self.end)) for at in range(self.start, self.end, stride)]

    def run(self, rank: Rank, result: Result) -> Steps:
        told: Plain | None = None
        roots: list[bytes] = []
        try:
            roots = yield from _copy(self, rank)
            rank.succeeded()
        except Problem as problem:
            rank.failed(problem)
            told = problem.plain
        step = self.stride // self.run_bytes if self.stride else 1
        runs, here = len(self.stretches()), rank.hosts.here
        result.spawn(ChunkDone(self.file.temporary, told, self.part, step, runs, b"".join(roots), here))
        size = self.file.version.size
        if self.in_turn and self.end < size:  # also after a problem: each is awaited, and fails quickly
            end = min(2 * self.end - self.start, size)
            result.spawn(self._replace(start=self.end, end=end, part=self.part + 1), end - self.end)


def _copy(task: CopyChunk, rank: Rank) -> Generator[None, None, list[bytes]]:
    """Returns each run's content root, if digests are wanted."""
    file = task.file
    place = file.item.place
    roots = []
    with rank.reading(place, file.item.name) as reading:
        check_unchanged(reading, file.version)
        holes = has_holes(status_of(reading, on_source=True))
        writing = -1
        if not (file.cloned and rank.digests):
            writing = reopen(rank.open_target(place), rank.written_as(file), file.made, file.version.size)
        try:
            for start, end in task.stretches():
                hasher = rank.hasher()
                if writing < 0 and hasher is not None:
                    steps = digest_contents(reading, start, end, hasher, holes=holes)
                else:
                    devices = rank.devices(place)
                    steps = rank.mover.copy(reading, writing, start, end, devices, holes=holes, digest=hasher)
                with closing(steps):  # what is done beside ends before the files are closed
                    for moved in steps:
                        rank.counters[counts.MOVED] += moved
                        yield
                if hasher is not None:
                    roots.append(hasher.root())
            check_unchanged(reading, file.version)
        except BaseException:
            if writing >= 0:
                abandon(writing)
            raise
        if writing >= 0:
            close_written(writing, sync=rank.syncs_items(place))
    return roots


class FileInChunks(NamedTuple):
    """What the owner of a split file knows of its chunks, or of their runs: the content root of each, and the host that
    has written it."""

    opened: FileOpened
    roots: list[bytes]
    writers: bytearray


class ChunkLedger(Ledger[bytes, FileInChunks, ChunkDone]):
    """The split files that a rank owns, by their temporary names."""

    def noted(self, awaited: Awaited[FileInChunks], note: ChunkDone) -> None:
        parts = awaited.opened
        file = parts.opened.file
        if note.problem is not None and awaited.problem is None:
            awaited.problem = Problem.from_plain(note.problem)
            if file.over:
                awaited.problem = incomplete(awaited.problem)
            discard(self._rank, file)  # so that chunks still to come end quickly
        roots = split_digests(note.roots, len(note.roots) // note.runs) if note.roots else []
        for run in range(note.runs):
            parts.writers[note.part + run * note.step] = note.writer
        for run, root in enumerate(roots):
            parts.roots[note.part + run * note.step] = root

    def ended(self, awaited: Awaited[FileInChunks], result: Result) -> None:
        rank, parts = self._rank, awaited.opened
        file = parts.opened.file
        if awaited.problem is None:
            digest = rank.hashing.chunks(file.version.size, parts.roots) if rank.digests else b""
            finish = FinishFile(file, digest, parts.opened.chunk, bytes(parts.writers))
            result.spawn(finish, owner=rank.number)  # here, so that an early stop finishes or removes it
        else:
            opened_failed(rank, result, file, awaited.problem)


def discard(rank: Rank, file: OpenFile) -> None:
    """Removes the temporary file, if its directory is still there. (What is written over is nobody's to remove.)"""
    if file.over:
        return
    with suppress(Problem):  # the directory itself is gone or was replaced, which fails its items on its own
        remove(rank.open_target(file.item.place), file.temporary)


def discard_all(rank: Rank, since: int = 1) -> None:
    """Removes what an early stop leaves behind, if the run ``since``, or a later one, has made it."""
    awaited = rank.own(ChunkLedger).awaited
    for temporary, file in awaited.items():
        if made_by(temporary)[0] >= since:
            discard(rank, file.opened.opened.file)
    awaited.clear()
