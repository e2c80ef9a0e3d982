"""WriteMembers writes the members of one piece; the contents of large files it leaves to ``WriteChunk``.

Headers were laid out for the files as they were found. If one has changed since, as many bytes are written as its
header says: what is missing is zeros, and the item has failed. So the archive stays well-formed whatever happens.
"""

from __future__ import annotations

import marshal
import os
import stat
from collections.abc import Sequence

from pcopy.archive.headers import end_of_plain, header_of, plain_pax, stored_size
from pcopy.archive.member import DIRECTORY, FILE, LINK, Member, filled_up
from pcopy.engine.ticket import Stepwise
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.batches import Members
from pcopy.fsio.kernel.columns import Code, pack_names
from pcopy.fsio.kernel.interface import SMALL_FILE, waited
from pcopy.fsio.problem import Problem, changed
from pcopy.fsio.source import FLAGS, Version, open_source, status_of
from pcopy.signature.items import FILE as FILE_TYPE
from pcopy.signature.items import special_digest, symlink_digest, type_of
from pcopy.tasks.archive.archive_file import ArchiveFile
from pcopy.tasks.archive.described import Described, described_in, size_in
from pcopy.tasks.archive.frames import FRAME_BYTES, Frames
from pcopy.tasks.archive.made import PieceRecords, digest_of
from pcopy.tasks.archive.plain_files import PlainFiles, is_of_plain, plain_in
from pcopy.tasks.archive.write_chunks import begin_chunks, done
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK, Action
from pcopy.tasks.base.hashing import NO_VERSION
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import NOWHERE, Known, Place

BUFFER = 1 << 20
"""Bytes that are gathered for one write."""
_NONE = Identity(-1, -1)
_QUICK = FLAGS | os.O_NOATIME


class WriteMembers(Kind, code=138, doing="writing members", is_note=False):
    """Those of one piece, which begins at ``offset`` of the archive; ``values`` are of records of ``Described``. In a
    compressed archive the piece is the frame ``number`` (else -1), and a large file that frame and those after it."""

    offset: int
    size: int
    values: bytes
    number: int

    def about(self) -> tuple[Place, bytes]:
        first = marshal.loads(self.values)[0]
        described = plain_in(first).described(0) if is_of_plain(first) else described_in(first)
        return place_of(described), described.name

    def run(self, rank: Rank, result: Result) -> Steps:
        writer = PieceWriter(rank, result)
        try:
            values = marshal.loads(self.values)
            if self.number < 0:
                made = rank.own(PieceRecords)
                piece = made.key(self.offset, digest_of(values)) if made.is_kept else b""
                digests = made.find(piece, b"", writer.digest_bytes(values)) if made.goes_on else None
                if digests is None:
                    yield from self._write(rank, result, writer, values, piece)
                    if made.is_kept and not writer.has_failed:
                        made.add(piece, b"", b"".join(writer.digests))
                else:
                    self._take(rank, result, writer, values, piece, digests)
            elif len(values) == 1 and self.size > FRAME_BYTES:
                described = described_in(values[0])
                begin_chunks(rank, result, described, values[0], self.offset, number=self.number)
            else:
                members = list[bytes | bytearray]()
                for value in values:
                    if is_of_plain(value):
                        members.append((yield from writer.plain(plain_in(value))))
                    else:
                        members += writer.member(described_in(value))
                    yield None
                data = b"".join(members)
                self._check(rank, len(data))
                rank.own(Frames).hand_over(self.number, data, result)
        except Problem as problem:
            rank.stop(f"the archive cannot be written: {problem.operation}: {problem.strerror}")
            return
        writer.end()

    def _take(
        self, rank: Rank, result: Result, writer: PieceWriter, values: list[bytes], piece: bytes, digests: bytes
    ) -> None:
        """The piece is there: an interrupted run has written it."""
        at, rest = self.offset, memoryview(digests)
        unit = rank.hashing.algorithm.size if rank.digests else 0
        for value in values:
            if is_of_plain(value):
                files = plain_in(value)
                writer.plain_are_there(files, [bytes(rest[unit * row : unit * (row + 1)]) for row in range(len(files))])
                at, rest = at + files.size, rest[unit * len(files) :]
                continue
            described = described_in(value)
            member = described.member
            if is_large(member):
                begin_chunks(rank, result, described, value, at + len(header_of(member)), piece=piece)
            elif member.kind == FILE and member.size:
                writer.archived(described, bytes(rest[:unit]))
                rest = rest[unit:]
            else:
                writer.other(described)
            at += size_in(value)

    def _write(self, rank: Rank, result: Result, writer: PieceWriter, values: list[bytes], piece: bytes) -> Steps:
        archive, goes_on = rank.own(ArchiveFile), rank.own(PieceRecords).goes_on
        gathered: list[bytes] = []
        start = at = self.offset
        for value in values:
            if is_of_plain(value):
                files = yield from writer.plain(plain_in(value))
                if gathered:
                    archive.write(b"".join(gathered), start)
                archive.write(files, at)
                gathered, at = [], at + len(files)
                start = at
                continue
            described = described_in(value)
            member = described.member
            if is_large(member):
                header = header_of(member)
                at += len(header)
                begin_chunks(rank, result, described, value, at, piece=piece)
                archive.write(b"".join((*gathered, header)), start)
                gathered = []
                stored = stored_size(member)
                start = at = at + filled_up(stored)
                if goes_on and filled_up(stored) > stored:
                    archive.write(bytes(filled_up(stored) - stored), at - filled_up(stored) + stored)
                continue
            for part in writer.member(described):
                gathered.append(part)
                at += len(part)
            if at - start >= BUFFER:
                archive.write(b"".join(gathered), start)
                gathered, start = [], at
                yield None
        archive.write(b"".join(gathered), start)
        self._check(rank, at - self.offset)

    def _check(self, rank: Rank, size: int) -> None:
        if size != self.size:
            rank.stop(f"a piece of the archive has {size:,} bytes, and {self.size:,} were laid out")


def is_large(member: Member) -> bool:
    """Are its contents left to ``WriteChunk``?"""
    return member.kind == FILE and (stored_size(member) > SMALL_FILE or member.extents is not None)


class PieceWriter:
    """Reads small files, and counts what is done. ``digests`` are those of the files that were read."""

    def __init__(self, rank: Rank, result: Result) -> None:
        self._rank = rank
        self._result = result
        self._each = result.items.is_wanted or rank.signs
        self._place = Place(-1, b"", _NONE, NOWHERE, False, False)
        self._directory = -1
        self._files = self._bytes = self._links = self._moved = 0
        self.digests: list[bytes] = []
        self.has_failed = False

    def digest_bytes(self, values: list[bytes]) -> int:
        """How many bytes ``digests`` would have after these members."""
        if not self._rank.digests:
            return 0
        small = sum(len(plain_in(value)) for value in values if is_of_plain(value))
        for value in values:
            if not is_of_plain(value):
                member = described_in(value).member
                small += member.kind == FILE and member.size > 0 and not is_large(member)
        return small * self._rank.hashing.algorithm.size

    def end(self) -> None:
        if not self._each:
            self._result.count(counts.FILES, self._files)
            self._result.count(counts.BYTES, self._bytes)
            self._result.count(counts.HARDLINKS, self._links)
        self._rank.counters[counts.MOVED] += self._moved

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
            self.has_failed = True
        else:
            self._moved += size
            digest = self._digest(described, data) if self._rank.digests else b""
            self.digests.append(digest)
            self.archived(described, digest)
        return data.ljust(filled_up(stored), b"\0")

    def archived(self, described: Described, digest: bytes) -> None:
        """A small file is there."""
        self._bytes += described.member.size
        if self._each:
            self._done(described, digest)
        else:
            self._files += 1

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

    def plain(self, files: PlainFiles) -> Stepwise[bytearray]:
        """All of them, filled up. What can't be read just so is looked at by itself."""
        rows, room, offsets = files.rows, bytearray(files.size), files.offsets
        done = yield from self._taken(files, room)
        digests = [b""] * len(files)
        if self._each:
            for row in done:
                size, end = rows.size[row], offsets[row + 1]
                start = end - filled_up(size)
                if self._rank.digests:
                    digests[row] = self._rank.hashing.whole(bytes(room[start : start + size]))
                self._done(files.described(row), digests[row])
        self._files += len(done)
        read = sum(rows.size) if len(done) == len(files) else sum(rows.size[row] for row in done)
        self._bytes += read
        self._moved += read
        before = self.digests
        for row in {*range(len(files))}.difference(done) if len(done) < len(files) else ():
            self.digests = []
            room[offsets[row] : offsets[row + 1]] = b"".join(self.member(files.described(row)))
            if self._rank.digests:
                digests[row] = self.digests[0] if self.digests else self._rank.hashing.whole(b"")
        self.digests = before + digests
        return room

    def plain_are_there(self, files: PlainFiles, digests: Sequence[bytes]) -> None:
        """An interrupted run has written them."""
        if self._each:
            for row, digest in enumerate(digests):
                self.archived(files.described(row), digest)
            return
        self._files += len(files)
        self._bytes += sum(files.rows.size)

    def _taken(self, files: PlainFiles, room: bytearray) -> Stepwise[Sequence[int]]:
        """Which rows the kernel has put there."""
        kernel = self._rank.kernel
        if self._rank.throttle.is_on:
            yield from self._rank.throttle.spend(sum(files.rows.size))
        try:
            self._enter(files.described(0))
        except Problem:
            return ()  # each of them tells of it
        if not kernel.enters:
            return ()
        ends = {ids: end_of_plain(*names) for ids, names in files.owners.items()}
        names = pack_names(files.names)
        batch = Members(self._directory, names, files.rows, room, files.offsets, files.prefix, ends, plain_pax())
        judged = yield from waited(kernel, kernel.submit(batch))
        return judged.verdicts.rows(Code.DONE)

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
