"""A large member is unpacked in parts, by all ranks at once, into a temporary file beside its name.

The rank that has made the file waits for all parts (``PartUnpacked``), and then gives it its metadata and its name. So
nothing has that name before it is whole. One task unpacks a sparse member, and any of a plain archive where both sides
are local file systems: several writers of a file would only wait for its lock there (``pcopy.fsio.ways``).
"""

from __future__ import annotations

from contextlib import suppress

from pcopy.archive.member import FILE, Member
from pcopy.fsio.attributes import may_inherit_acl
from pcopy.fsio.close import abandon, close_written
from pcopy.fsio.identity import Identity
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Plain, Problem
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import remove, reopen
from pcopy.fsio.throttle import throttled
from pcopy.named import NamedTuple
from pcopy.tasks.archive.extracting import Extracting, copied
from pcopy.tasks.archive.opened import OpenArchive
from pcopy.tasks.archive.to_unpack import ToUnpack, place_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Kind, Note, Steps
from pcopy.tasks.base.ledger import Awaited, Ledger
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.storing import data_stored, stored
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.existing import look


def in_parts(rank: Rank, directory: int, member: Member) -> bool:
    """Is the member worth it, in the open ``directory``? Raises ``Problem``."""
    if rank.options.sequential or member.kind != FILE or member.extents is not None or not rank.splits(member.size):
        return False
    archive = rank.own(OpenArchive).plain_descriptor
    sides = (archive, directory) if archive >= 0 else ()
    return not sides or not all(rank.mover.ways.of(status_of(side).st_dev, side).is_local for side in sides)


def begin_parts(rank: Rank, result: Result, directory: int, each: ToUnpack) -> None:
    """Makes the file, empty, and leaves its parts to whoever has time. Raises ``Problem``."""
    temporary, size = rank.temporary_names.next(), each.member.size
    rank.own(OpenArchive).spare(look(directory, each.name))
    with NewFile.at(directory, temporary) as new:
        shown = new.open_to_others(inherits=True)
        made = new.identity(0)
        new.extend(size)
        new.keep()
    chunk = rank.chunk(size)
    rank.own(UnpackedFiles).open(temporary, UnpackedFile(each, temporary, made, shown), -(-size // chunk), result)
    for start in range(0, size, chunk):
        end = min(start + chunk, size)
        part = UnpackPart(each.path, each.name, temporary, made, size, each.data, start, end, rank.number, shown)
        result.spawn(part, end - start)


class UnpackPart(Kind, code=180, doing="unpacking a part of", is_note=False):
    """The bytes from ``start`` to ``end`` of a file of ``size``, which is to be called ``name`` in the directory
    ``path``: those contents stand at ``data`` of the archive. The rank ``teller`` has ``made`` it as ``temporary``;
    ``shown`` as in ``OpenFile``."""

    path: bytes
    name: bytes
    temporary: bytes
    made: Identity
    size: int
    data: int
    start: int
    end: int
    teller: int
    shown: tuple[int, ...]

    def about(self) -> tuple[Place, bytes]:
        return place_of(self.path), self.name

    def run(self, rank: Rank, result: Result) -> Steps:
        told: Plain | None = None
        try:
            yield from self._unpack(rank)
        except Problem as problem:
            told = problem.plain
        result.spawn(PartUnpacked(self.temporary, told), owner=self.teller)

    def _unpack(self, rank: Rank) -> Steps:
        """Raises ``Problem``."""
        writing = reopen(rank.targets[0].open(self.path), self.temporary, self.made, self.size, self.shown)
        try:
            length = self.end - self.start
            steps = copied(rank.own(OpenArchive), writing, self.data + self.start, self.start, length)
            for moved in throttled(steps, rank.throttle):
                rank.counters[counts.MOVED] += moved
                yield None
            if rank.options.sync and rank.hosts.number > 1:  # no other host can store what this one has in its cache
                yield from data_stored(rank, writing)
        except BaseException:
            abandon(writing)
            raise
        close_written(writing)


class PartUnpacked(Note, code=181, doing="noting a part of a file"):
    """A part of the file ``temporary`` is there, or has met a problem."""

    temporary: bytes
    problem: Plain | None

    may_be_dropped = True

    def run(self, rank: Rank, result: Result) -> Steps | None:
        return rank.own(UnpackedFiles).take(self.temporary, self, result)


class UnpackedFile(NamedTuple):
    """A member whose parts are unpacked, into the file that was ``made`` as ``temporary``."""

    told: ToUnpack
    temporary: bytes
    made: Identity
    shown: tuple[int, ...]


class UnpackedFiles(Ledger[bytes, UnpackedFile, PartUnpacked]):
    """Those that this rank has made, by their temporary names."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self._unnamed: dict[bytes, UnpackedFile] = {}
        """Those that are whole, and wait for storage."""

    def noted(self, awaited: Awaited[UnpackedFile], note: PartUnpacked) -> None:
        if note.problem is not None and awaited.problem is None:
            awaited.problem = Problem.from_plain(note.problem)
            self._remove(awaited.opened)  # so that parts still to come end quickly

    def ended(self, awaited: Awaited[UnpackedFile], result: Result) -> Steps:
        file, told = awaited.opened, awaited.opened.told
        self._unnamed[file.temporary] = file
        try:
            if awaited.problem is not None:
                raise awaited.problem
            yield from self._finish(file, result)
        except Problem as problem:
            result.fail(place_of(told.path), told.name, problem, told.member.size, retry=Tried.NEVER)
        del self._unnamed[file.temporary]

    def _finish(self, file: UnpackedFile, result: Result) -> Steps:
        """It is whole. Raises ``Problem``."""
        rank, told = self._rank, file.told
        directory = rank.targets[0].open(told.path)
        status = status_of(directory)
        inherits = bool(told.path) and may_inherit_acl(directory, status.st_uid)
        rank.learn_times(directory, status.st_dev, result.notices)
        extracting = Extracting(rank, result, directory, told.path, inherits=inherits)
        with NewFile.again(directory, file.temporary, file.made) as new:
            new.reopen(told.member.size, file.shown)
            yield from stored(rank, new)
            present = look(directory, told.name)
            rank.own(OpenArchive).spare(present)
            applied = extracting.dress(new, told.member)
            new.commit(told.name, present, store=rank.options.sync)
        extracting.tell(told, applied, new.shortcoming)

    def _remove(self, file: UnpackedFile) -> None:
        with suppress(Problem):  # its directory is gone, or another one
            remove(self._rank.targets[0].open(file.told.path), file.temporary)

    def discard(self) -> None:
        """The job ends before they are whole."""
        for file in (*(awaited.opened for awaited in self.awaited.values()), *self._unnamed.values()):
            self._remove(file)
        self.awaited.clear()
        self._unnamed.clear()
