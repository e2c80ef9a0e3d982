"""Extraction of a large member in parts, by all ranks in parallel, into a temporary file in the directory of its name.

The rank that has created the file waits for all parts (``PartUnpacked``), then applies the metadata and renames the
file. So the final name never shows an incomplete file.

A sparse member is extracted by one task. So is any member of an uncompressed archive if both sides are local file
systems: several writers of one file would only wait for its lock there (``pcopy.fsio.ways``).
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
    """Return True if ``member`` is to be extracted in parts into the open ``directory``. Raise ``Problem``
    on an error."""
    if rank.options.sequential or member.kind != FILE or member.extents is not None or not rank.splits(member.size):
        return False
    archive = rank.own(OpenArchive).plain_descriptor
    sides = (archive, directory) if archive >= 0 else ()
    return not sides or not all(rank.mover.ways.of(status_of(side).st_dev, side).is_local for side in sides)


def begin_parts(rank: Rank, result: Result, directory: int, each: ToUnpack) -> None:
    """Create the temporary file, and spawn the tasks that extract the parts. Raise ``Problem`` if that fails."""
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
    """Task that extracts the bytes from ``start`` to ``end`` of a large file.

    Fields:
      path, name: directory and name of the file below the target.
      temporary: the name of the temporary file.
      made: the identity of the temporary file.
      size: the bytes of the whole file.
      data: the offset in the archive at which the contents of the file begin.
      start, end: the range of the part in the file.
      teller: the rank that has created the temporary file, and waits for the parts.
      shown: mode and owner that the server shows for the temporary file, if they differ from those that it was given.
    """

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
        failure: Plain | None = None
        try:
            yield from self._unpack(rank)
        except Problem as problem:
            failure = problem.plain
        result.spawn(PartUnpacked(self.temporary, failure), owner=self.teller)

    def _unpack(self, rank: Rank) -> Steps:
        """Write the part into the temporary file. Raise ``Problem`` if that fails."""
        writing = reopen(rank.targets[0].open(self.path), self.temporary, self.made, self.size, self.shown)
        try:
            length = self.end - self.start
            steps = copied(rank.own(OpenArchive), writing, self.data + self.start, self.start, length)
            for moved in throttled(steps, rank.throttle):
                rank.counters[counts.MOVED] += moved
                yield None
            if (
                rank.options.sync and rank.hosts.number > 1
            ):  # another host cannot sync what is in the page cache of this one
                yield from data_stored(rank, writing)
        except BaseException:
            abandon(writing)
            raise
        close_written(writing)


class PartUnpacked(Note, code=181, doing="recording a part of a file"):
    """Note to the rank that waits for the parts of the file ``temporary``: one part is written, or has failed."""

    temporary: bytes
    problem: Plain | None

    may_be_dropped = True

    def run(self, rank: Rank, result: Result) -> Steps | None:
        return rank.own(UnpackedFiles).take(self.temporary, self, result)


class UnpackedFile(NamedTuple):
    """A large member (``told``) that is being extracted into the file ``temporary``, whose identity is ``made``.

    ``shown`` are mode and owner that the server shows for that file, if they differ from those that it was given.
    """

    told: ToUnpack
    temporary: bytes
    made: Identity
    shown: tuple[int, ...]


class UnpackedFiles(Ledger[bytes, UnpackedFile, PartUnpacked]):
    """The large files whose parts this rank waits for, by their temporary names."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self._unnamed: dict[bytes, UnpackedFile] = {}
        """Files whose parts are complete, and which are synced before they get their names."""

    def noted(self, awaited: Awaited[UnpackedFile], note: PartUnpacked) -> None:
        """Store the error of a part, and remove the temporary file."""
        if note.problem is not None and awaited.problem is None:
            awaited.problem = Problem.from_plain(note.problem)
            self._remove(awaited.opened)  # so that the remaining parts fail at once

    def ended(self, awaited: Awaited[UnpackedFile], result: Result) -> Steps:
        """Finish a file after its last part, or report it as failed."""
        file, member = awaited.opened, awaited.opened.told
        self._unnamed[file.temporary] = file
        try:
            if awaited.problem is not None:
                raise awaited.problem
            yield from self._finish(file, result)
        except Problem as problem:
            result.fail(place_of(member.path), member.name, problem, member.member.size, retry=Tried.NEVER)
        del self._unnamed[file.temporary]

    def _finish(self, file: UnpackedFile, result: Result) -> Steps:
        """Apply the metadata of a complete file, and give it its final name. Raise ``Problem`` if that fails."""
        rank, member = self._rank, file.told
        directory = rank.targets[0].open(member.path)
        status = status_of(directory)
        inherits = bool(member.path) and may_inherit_acl(directory, status.st_uid)
        rank.learn_times(directory, status.st_dev, result.notices)
        extracting = Extracting(rank, result, directory, member.path, inherits=inherits)
        with NewFile.again(directory, file.temporary, file.made) as new:
            new.reopen(member.member.size, file.shown)
            yield from stored(rank, new)
            present = look(directory, member.name)
            rank.own(OpenArchive).spare(present)
            applied = extracting.dress(new, member.member)
            new.commit(member.name, present, store=rank.options.sync)
        extracting.tell(member, applied, new.shortcoming)

    def _remove(self, file: UnpackedFile) -> None:
        """Remove the temporary file of a member."""
        with suppress(Problem):  # its directory was removed or replaced
            remove(self._rank.targets[0].open(file.told.path), file.temporary)

    def discard(self) -> None:
        """Remove all temporary files, because the job ends before they are complete."""
        for file in (*(awaited.opened for awaited in self.awaited.values()), *self._unnamed.values()):
            self._remove(file)
        self.awaited.clear()
        self._unnamed.clear()
