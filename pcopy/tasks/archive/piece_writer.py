"""Reading of small files, which become members of pieces of an archive.

Simple files (``pcopy.tasks.archive.plain_files``) are read in batches by the backend, others one by one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from pcopy.archive.headers import end_of_plain, header_of, plain_pax, stored_size
from pcopy.archive.member import DIRECTORY, FILE, LINK, Member, filled_up
from pcopy.engine.ticket import Stepwise
from pcopy.fsio.contents import generated_contents
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.columns import Code, pack_names
from pcopy.fsio.kernel.directory_batches import Members
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, changed
from pcopy.fsio.source import FLAGS, open_source
from pcopy.named import NamedTuple
from pcopy.signature.items import FILE as FILE_TYPE
from pcopy.signature.items import special_digest, symlink_digest, type_of
from pcopy.tasks.archive.described import Described, check_described, described_in
from pcopy.tasks.archive.plain_files import PlainFiles
from pcopy.tasks.archive.write_chunks import done, incomplete, lacks_metadata
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK, Action
from pcopy.tasks.base.hashing import NO_VERSION
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import NOWHERE, Known, Place

_DIRECTORIES = 8
"""Largest number of directories in one batch. It is below the number of directories that a task keeps open
(``pcopy.fsio.directories.HELD``)."""
_NONE = Identity(-1, -1)
_QUICK = FLAGS | os.O_NOATIME


class PlacedPiece(NamedTuple):
    """A piece of the archive, which begins at ``offset`` and has ``size`` bytes.

    ``runs`` are its members in order: ``PlainFiles``, or for other members the values of records.
    """

    offset: int
    size: int
    runs: list[bytes | PlainFiles]

    def check(self, rank: Rank, size: int) -> None:
        """Stop the job if the piece was made of ``size`` bytes, and not of those that were laid out."""
        if size != self.size:
            rank.stop(f"internal error: a piece of the archive has {size:,} bytes; {self.size:,} were expected")


class ArchivedPlain(NamedTuple):
    """Simple files as members of the archive.

    ``data`` are their headers and contents; ``digests`` those of the files if digests are computed, with None for a
    file that has failed.
    """

    data: memoryview
    digests: list[bytes | None]


class PieceWriter:
    """Reader of the files of one task, and counter of what was archived.

    Small files are read here; large ones are left to ``WriteChunk``. ``digests`` are those of the files that were read,
    with None for a file that has failed.
    """

    def __init__(self, rank: Rank, result: Result) -> None:
        self._rank = rank
        self._result = result
        self._each = result.items.is_wanted or rank.signs
        self._is_compressed = bool(rank.options.compress_as)
        self._place = Place(-1, b"", _NONE, NOWHERE, False, False)
        self._directory = -1
        self._files = self._bytes = self._links = self._moved = 0
        self.digests: list[bytes | None] = []

    def is_large(self, member: Member) -> bool:
        """Return True if the contents of ``member`` are left to ``WriteChunk``.

        In a compressed archive no member of a piece is: its frame holds all contents.
        """
        is_small = self._is_compressed or (stored_size(member) <= SMALL_FILE and member.extents is None)
        return member.kind == FILE and not is_small

    @property
    def all_digests(self) -> bytes | None:
        """The ``digests``, one behind the other; None if any file has failed."""
        return None if None in self.digests else b"".join(digest for digest in self.digests if digest)

    def digest_bytes(self, runs: Sequence[bytes | PlainFiles]) -> int:
        """Return the bytes that ``all_digests`` has after the members of ``runs``, if none fails."""
        if not self._rank.digests:
            return 0
        small = 0
        for run in runs:
            if isinstance(run, bytes):
                member = described_in(run).member
                small += member.kind == FILE and member.size > 0 and not self.is_large(member)
            else:
                small += len(run)
        return small * self._rank.hashing.algorithm.size

    def end(self) -> None:
        """Report the counts of the task."""
        if not self._each:
            self._result.count(counts.FILES, self._files)
            self._result.count(counts.BYTES, self._bytes)
            self._result.count(counts.HARDLINKS, self._links)
        self._rank.counters[counts.MOVED] += self._moved

    def member(self, described: Described) -> list[bytes]:
        """Return the header of a member, and its contents if it has any."""
        header = header_of(described.member)
        if described.member.kind == FILE and described.member.size:
            return [header, self.small_file(described)]
        self.other(described)
        return [header]

    def small_file(self, described: Described) -> bytes:
        """Return the contents of a small file, padded with zeros to a multiple of 512 bytes.

        A file that has changed or cannot be read completely is reported as failed; zeros stand for what is missing.
        """
        size, stored, data = described.member.size, stored_size(described.member), bytearray()
        try:
            self._read(described, data)
        except Problem as problem:
            incomplete(self._result, self._at(described), described, problem)
            self.digests.append(None)
        else:
            self._moved += size
            digest = self._digest(described, bytes(data)) if self._rank.digests else b""
            self.digests.append(digest)
            self.archived(described, digest)
        return bytes(data).ljust(filled_up(stored), b"\0")

    def archived(self, described: Described, digest: bytes) -> None:
        """Count a small file as archived."""
        if lacks_metadata(self._result, self._at(described), described):
            return
        self._bytes += described.member.size
        if self._each:
            self._done(described, digest)
        else:
            self._files += 1

    def _digest(self, described: Described, data: bytes) -> bytes:
        """Return the digest of a file with the stored ``data``, which exclude its holes."""
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

    def _read(self, described: Described, data: bytearray) -> None:
        """Append the contents of a file to ``data``, as far as they can be read.

        Raise ``Problem`` if it cannot be read, or has changed since it was described.
        """
        size, name = described.member.size, described.name
        self._enter(described)
        try:
            descriptor = open_patiently(name, _QUICK, dir_fd=self._directory)
        except OSError:
            descriptor = open_source(self._directory, name)
        try:
            extents = ((0, size),) if described.member.extents is None else described.member.extents
            size = stored_size(described.member)
            for start, length in extents:
                if not _append(descriptor, start, length, data):
                    break
            if check_described(
                self._rank, described, descriptor
            ):  # such a file may return different data for reads of another size
                os.lseek(descriptor, 0, os.SEEK_SET)
                data[:] = generated_contents(descriptor, os.fstat(descriptor).st_size)
            if len(data) != size:
                del data[size:]
                raise changed("read", "the file changed while it was archived")
        except OSError as error:
            raise Problem.of("read", error, on_source=True) from error
        finally:
            os.close(descriptor)

    def _enter(self, described: Described) -> None:
        """Open the directory of an item, unless it is open. Raise ``Problem`` if that fails."""
        if (described.root, described.path) != self._place.directory or self._directory < 0:
            self._directory = -1
            self._directory = self._rank.sources[described.root].open(described.path)
            self._place = place_of(described)

    def plain(self, pieces: Iterable[PlacedPiece]) -> Stepwise[Iterator[ArchivedPlain]]:
        """Read all simple files of ``pieces`` with the backend; return them in order.

        Files that the backend cannot read are read one by one.
        """
        all_files = [run for piece in pieces for run in piece.runs if not isinstance(run, bytes)]
        made: list[ArchivedPlain] = []
        for start in range(0, len(all_files), _DIRECTORIES):
            some = all_files[start : start + _DIRECTORIES]
            whole = bytearray(sum(files.offsets[-1] for files in some))
            done = yield from self._taken(some, whole)
            room, at, row = memoryview(whole), 0, 0
            for files in some:
                part = room[at : (at := at + files.offsets[-1])]
                digests = self._settle(files, part, done[row : (row := row + len(files))])
                made.append(ArchivedPlain(part, digests))
        return iter(made)

    def _settle(self, files: PlainFiles, room: memoryview, codes: bytes | bytearray) -> list[bytes | None]:
        """Count the simple files that the backend has put into ``room``, and put the others there; return the digests.

        ``codes`` are the results of the backend.
        """
        sizes, offsets = files.sizes, files.offsets
        if not self._each and codes.count(Code.DONE) == len(files):
            self._files += len(files)
            read = sum(sizes)
            self._bytes += read
            self._moved += read
            return []
        hashing = self._rank.hashing if self._rank.digests else None
        digests: list[bytes | None] = []
        for row, code in enumerate(codes):
            start = offsets[row + 1] - filled_up(sizes[row])
            if code != Code.DONE:
                self.digests = []
                room[offsets[row] : offsets[row + 1]] = b"".join(self.member(files.described(row)))
                digests += self.digests if sizes[row] or hashing is None else [hashing.whole(b"")]
                continue
            digest = hashing.whole(bytes(room[start : start + sizes[row]])) if hashing is not None else b""
            digests.append(digest)
            self._moved += sizes[row]
            self.archived(files.described(row), digest)
        return digests

    def plain_are_there(self, files: PlainFiles, digests: Sequence[bytes]) -> None:
        """Count simple files that an interrupted run has already written."""
        if self._each:
            for row, digest in enumerate(digests):
                self.archived(files.described(row), digest)
            return
        self._files += len(files)
        self._bytes += sum(files.sizes)

    def _taken(self, some: Sequence[PlainFiles], room: bytearray) -> Stepwise[bytes | bytearray]:
        """Let the backend put headers and contents of files into ``room``; return the result of each file (``Code``).

        Files whose result is not ``DONE`` must be read otherwise.
        """
        if self._rank.throttle.is_on:
            yield from self._rank.throttle.spend(sum(sum(files.sizes) for files in some))
        undone = bytes(sum(map(len, some)))
        if not self._rank.kernel.enters:
            return undone
        try:
            places = [(self._rank.sources[files.root].open(files.path), len(files), files.prefix) for files in some]
        except Problem:
            return undone  # the error is reported for each file when it is read
        owners = {ids: end_of_plain(*names) for files in some for ids, names in files.owners.items()}
        names = b"/".join([pack_names(files.names) for files in some])
        batch = Members(names, b"".join([files.rows for files in some]), places, room, owners, plain_pax())
        outcome = yield from self._rank.done(batch)
        return outcome.verdicts.codes

    def _at(self, described: Described) -> Place:
        """Return the ``Place`` of the directory of an item."""
        if (described.root, described.path) != self._place.directory:
            return place_of(described)
        return self._place

    def other(self, described: Described) -> None:
        """Count a member that has no contents. Directories were counted when they were scanned."""
        member = described.member
        if member.kind == DIRECTORY:
            lacks_metadata(self._result, self._at(described), described)
            return
        if member.kind == LINK:
            if self._each:
                self._result.items.did(Action.COPY, self._at(described), described.name, HARD_LINK)
                self._result.count(counts.HARDLINKS)
            else:
                self._links += 1
            return
        if lacks_metadata(self._result, self._at(described), described):
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
        """Report an item as archived."""
        member = described.member
        kind = FILE_TYPE if member.kind == FILE else type_of(member.st_mode)
        done(self._result, self._at(described), described, Known(kind, member.size, digest, NO_VERSION))


def _append(descriptor: int, start: int, length: int, data: bytearray) -> bool:
    """Append ``length`` bytes of a file to ``data``; return False if the file ends before. Raise ``OSError`` on an
    error."""
    end = start + length
    while start < end and (more := os.pread(descriptor, end - start, start)):
        data += more
        start += len(more)
    return start == end


def digest_of_node(rank: Rank, member: Member) -> bytes:
    """Return the digest of a symbolic link, FIFO or device."""
    algorithm = rank.hashing.algorithm
    if stat.S_ISLNK(member.st_mode):
        return symlink_digest(algorithm, member.link)
    return special_digest(algorithm, member.st_mode, member.device)


def place_of(described: Described) -> Place:
    """Return the ``Place`` of the directory of an item, without identities."""
    return Place(described.root, described.path, _NONE, NOWHERE, False, False)
