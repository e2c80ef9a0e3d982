"""WriteMembers writes the members of pieces; the contents of large files it leaves to ``WriteChunk``.

Headers were laid out for the files as they were found. If one has changed since, as many bytes are written as its
header says: what is missing is zeros, and the item has failed. So the archive stays well-formed whatever happens.
"""

from __future__ import annotations

import marshal
import os
import stat
from collections.abc import Iterator, Sequence

from pcopy.archive.headers import end_of_plain, header_of, plain_pax, stored_size
from pcopy.archive.member import DIRECTORY, FILE, LINK, Member, filled_up
from pcopy.engine.ticket import Stepwise
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.columns import Code, pack_names
from pcopy.fsio.kernel.directory_batches import Members
from pcopy.fsio.kernel.interface import SMALL_FILE, waited
from pcopy.fsio.problem import Problem, changed
from pcopy.fsio.source import FLAGS, Version, open_source, status_of
from pcopy.signature.items import FILE as FILE_TYPE
from pcopy.signature.items import special_digest, symlink_digest, type_of
from pcopy.tasks.archive.archive_file import ArchiveFile
from pcopy.tasks.archive.described import Described, described_in
from pcopy.tasks.archive.frames import FRAME_BYTES, Frames
from pcopy.tasks.archive.plain_files import PlainFiles, is_of_plain, plain_in
from pcopy.tasks.archive.write_chunks import begin_chunks, done
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK, Action
from pcopy.tasks.base.hashing import NO_VERSION
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import NOWHERE, Known, Place

Packed = tuple[int, int, list[bytes]]
"""A piece: where it begins, its size, and values of records."""
_DIRECTORIES = 8
"""That are worked with at once, at most; a task keeps more of them open (``pcopy.fsio.directories.HELD``)."""
BUFFER = 1 << 20
"""Bytes that are gathered for one write."""
_NONE = Identity(-1, -1)
_QUICK = FLAGS | os.O_NOATIME


class WriteMembers(Kind, code=138, doing="writing members", is_note=False):
    """Those of some pieces, packed: where each begins in the archive, its size, and values of records, of ``Described``
    or ``PlainFiles``. In a compressed archive one piece is the frame ``number`` (else -1), and a large file that frame
    and those after it."""

    pieces: bytes
    number: int

    def about(self) -> tuple[Place, bytes]:
        first = marshal.loads(self.pieces)[0][2][0]
        described = plain_in(first).described(0) if is_of_plain(first) else described_in(first)
        return place_of(described), described.name

    def run(self, rank: Rank, result: Result) -> Steps:
        writer = PieceWriter(rank, result)
        try:
            pieces: list[tuple[int, int, list[bytes]]] = marshal.loads(self.pieces)
            offset, size, values = pieces[0]
            if self.number >= 0 and len(values) == 1 and size > FRAME_BYTES and not is_of_plain(values[0]):
                begin_chunks(rank, result, described_in(values[0]), values[0], offset, number=self.number)
            else:
                plain = yield from writer.plain(
                    [value for _, _, some in pieces for value in some if is_of_plain(value)]
                )
                if self.number < 0:
                    for piece in pieces:
                        yield from self._write(rank, result, writer, piece, plain)
                else:
                    yield from self._compress(rank, result, writer, pieces[0], plain)
        except Problem as problem:
            rank.stop(f"the archive cannot be written: {problem.operation}: {problem.strerror}")
            return
        writer.end()

    def _compress(
        self, rank: Rank, result: Result, writer: PieceWriter, piece: Packed, plain: Iterator[memoryview]
    ) -> Steps:
        members = list[bytes | memoryview]()
        for value in piece[2]:
            members += [next(plain)] if is_of_plain(value) else writer.member(described_in(value))
            yield None
        data = b"".join(members)
        _check(rank, piece, len(data))
        rank.own(Frames).hand_over(self.number, data, result)

    def _write(
        self, rank: Rank, result: Result, writer: PieceWriter, piece: Packed, plain: Iterator[memoryview]
    ) -> Steps:
        archive = rank.own(ArchiveFile)
        gathered: list[bytes | memoryview] = []
        start = at = piece[0]
        for value in piece[2]:
            if is_of_plain(value):
                parts: Sequence[bytes | memoryview] = [next(plain)]
            else:
                described = described_in(value)
                member = described.member
                if member.kind == FILE and (stored_size(member) > SMALL_FILE or member.extents is not None):
                    header = header_of(member)
                    at += len(header)
                    begin_chunks(rank, result, described, value, at)
                    archive.write_all([*gathered, header], start)
                    gathered = []
                    start = at = at + filled_up(stored_size(member))
                    continue
                parts = writer.member(described)
            gathered += parts
            at += sum(map(len, parts))
            if at - start >= BUFFER:
                archive.write_all(gathered, start)
                gathered, start = [], at
                yield None
        archive.write_all(gathered, start)
        _check(rank, piece, at - piece[0])


def _check(rank: Rank, piece: Packed, size: int) -> None:
    if size != piece[1]:
        rank.stop(f"a piece of the archive has {size:,} bytes, and {piece[1]:,} were laid out")


class PieceWriter:
    """Reads small files, and counts what is done."""

    def __init__(self, rank: Rank, result: Result) -> None:
        self._rank = rank
        self._result = result
        self._each = result.items.is_wanted or rank.signs
        self._place = Place(-1, b"", _NONE, NOWHERE, False, False)
        self._directory = -1
        self._files = self._bytes = self._links = 0

    def end(self) -> None:
        if not self._each:
            self._result.count(counts.FILES, self._files)
            self._result.count(counts.BYTES, self._bytes)
            self._result.count(counts.HARDLINKS, self._links)
        self._rank.counters[counts.MOVED] += self._bytes

    def member(self, described: Described) -> list[bytes]:
        """Its header, and its contents, if it has some."""
        header = header_of(described.member)
        if described.member.kind == FILE and described.member.size:
            return [header, self.small_file(described)]
        self.other(described)
        return [header]

    def small_file(self, described: Described) -> bytes:
        """Its contents, filled up; if it has changed, or can't be read, it has failed."""
        size, stored = described.member.size, stored_size(described.member)
        try:
            data = self._read(described)
        except Problem as problem:
            place = self._at(described)
            self._result.fail(place, described.name, problem, size, retry=Tried.NEVER)
            data = bytes(stored)
        else:
            self._bytes += size
            if self._each:
                self._done(described, self._digest(described, data) if self._rank.digests else b"")
            else:
                self._files += 1
        return data.ljust(filled_up(stored), b"\0")

    def _digest(self, described: Described, data: bytes) -> bytes:
        member, hashing = described.member, self._rank.hashing
        if member.extents is None:
            return hashing.whole(data)
        hasher, at, position = hashing.hasher(), 0, 0
        for start, length in member.extents:
            hasher.zeros(start - position)
            hasher.update(data[at : at + length])
            at, position = at + length, start + length
        hasher.zeros(member.size - position)
        return hashing.file(hasher)

    def _read(self, described: Described) -> bytes:
        """Raises ``Problem``, also if it is not what was found."""
        size, name = described.member.size, described.name
        self._enter(described)
        try:
            descriptor = os.open(name, _QUICK, dir_fd=self._directory)
        except OSError:
            descriptor = open_source(self._directory, name)
        try:
            if described.member.extents is None:
                data = os.read(descriptor, size)
                while len(data) < size and (more := os.read(descriptor, size - len(data))):
                    data += more
            else:
                size = stored_size(described.member)
                data = b"".join(os.pread(descriptor, length, at) for at, length in described.member.extents)
            if Version.of(status_of(descriptor, on_source=True)) != described.version or len(data) < size:
                raise changed("read", "the file changed while it was archived")
        except OSError as error:
            raise Problem.of("read", error, on_source=True) from error
        finally:
            os.close(descriptor)
        return data

    def _enter(self, described: Described) -> None:
        """Its directory is open from now on; raises ``Problem``."""
        if (described.root, described.path) != self._place.directory or self._directory < 0:
            self._directory = -1
            self._directory = self._rank.sources[described.root].open(described.path)
            self._place = place_of(described)

    def plain(self, values: Sequence[bytes]) -> Stepwise[Iterator[memoryview]]:
        """The members of each of the ``values``. What can't be read just so is looked at by itself."""
        all_files = [plain_in(value) for value in values]
        made: list[memoryview] = []
        for start in range(0, len(all_files), _DIRECTORIES):
            some = all_files[start : start + _DIRECTORIES]
            whole = bytearray(sum(files.offsets[-1] for files in some))
            done = yield from self._taken(some, whole)
            room, at, row = memoryview(whole), 0, 0
            for files in some:
                part = room[at : (at := at + files.offsets[-1])]
                self._settle(files, part, done[row : (row := row + len(files))])
                made.append(part)
        return iter(made)

    def _settle(self, files: PlainFiles, room: memoryview, codes: bytes | bytearray) -> None:
        """Counts what is there, and adds what is not."""
        sizes, offsets = files.sizes, files.offsets
        if self._each or codes.count(Code.DONE) < len(files):
            for row, code in enumerate(codes):
                if code != Code.DONE:
                    room[offsets[row] : offsets[row + 1]] = b"".join(self.member(files.described(row)))
                elif self._each:
                    start = offsets[row + 1] - filled_up(sizes[row])
                    data = room[start : start + sizes[row]]
                    digest = self._rank.hashing.whole(bytes(data)) if self._rank.digests else b""
                    self._done(files.described(row), digest)
                else:
                    self._files += 1
                if code == Code.DONE:
                    self._bytes += sizes[row]
            return
        self._files += len(files)
        self._bytes += sum(sizes)

    def _taken(self, some: Sequence[PlainFiles], room: bytearray) -> Stepwise[bytes | bytearray]:
        """What became of each row: ``DONE`` if the kernel has put it there."""
        kernel = self._rank.kernel
        if self._rank.throttle.is_on:
            yield from self._rank.throttle.spend(sum(sum(files.sizes) for files in some))
        undone = bytes(sum(map(len, some)))
        if not kernel.enters:
            return undone
        try:
            places = [(self._rank.sources[files.root].open(files.path), len(files), files.prefix) for files in some]
        except Problem:
            return undone  # each of them tells of it
        owners = {ids: end_of_plain(*names) for files in some for ids, names in files.owners.items()}
        names = b"/".join([pack_names(files.names) for files in some])
        batch = Members(names, b"".join([files.rows for files in some]), places, room, owners, plain_pax())
        judged = yield from waited(kernel, kernel.submit(batch))
        return judged.verdicts.codes

    def _at(self, described: Described) -> Place:
        if (described.root, described.path) != self._place.directory:
            return place_of(described)
        return self._place

    def other(self, described: Described) -> None:
        """An item without contents. Directories count when they are scanned."""
        member = described.member
        if member.kind == DIRECTORY:
            return
        if member.kind == LINK:
            if self._each:
                self._result.items.did(Action.COPY, self._at(described), described.name, HARD_LINK)
                self._result.count(counts.HARDLINKS)
            else:
                self._links += 1
            return
        if member.kind == FILE:
            if self._each:
                self._done(described, self._rank.hashing.whole(b"") if self._rank.digests else b"")
            else:
                self._files += 1
            return
        digest = digest_of_node(self._rank, member) if self._rank.digests else b""
        self._done(described, digest)

    def _done(self, described: Described, digest: bytes) -> None:
        member = described.member
        kind = FILE_TYPE if member.kind == FILE else type_of(member.st_mode)
        done(self._result, self._at(described), described, Known(kind, member.size, digest, NO_VERSION))


def digest_of_node(rank: Rank, member: Member) -> bytes:
    algorithm = rank.hashing.algorithm
    if stat.S_ISLNK(member.st_mode):
        return symlink_digest(algorithm, member.link)
    return special_digest(algorithm, member.st_mode, member.device)


def place_of(described: Described) -> Place:
    return Place(described.root, described.path, _NONE, NOWHERE, False, False)
