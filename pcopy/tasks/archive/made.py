"""What is made of an archive, on record, so that ``ptar -c --resume`` goes on with it after whatever has ended a job.

A record names pieces, and parts of large files, that are on storage; of a compressed archive also where. The key of a
piece is a digest of where it begins, before anything is compressed, and of all that its members are described by: who
has laid out the same piece at the same place need not write it again, unless a file has changed without another time of
its inode. A frame counts only behind others that do (``Frames.follow``). Each rank writes a file of records. A run that
goes on gathers them in one, without the pieces that it has laid out in another way, before it writes anything: so no
record outlives what it tells of. All of them name the inode of the archive, with its mark.
"""

from __future__ import annotations

import errno
import marshal
import os
import time
from _blake2 import blake2b
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO

from pcopy import __version__
from pcopy.checkpoint.framing import frames, write_frame
from pcopy.errors import Refused
from pcopy.fsio.close import let_go, names_in
from pcopy.fsio.durable import boot_id, replacing, sync_directory
from pcopy.fsio.identity import mark_of
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.fsio.syncer import sync_written, unsyncable
from pcopy.fsio.temporary import NEW, PREFIX
from pcopy.tasks.archive.archive_file import FULL, ArchiveFile, stop
from pcopy.tasks.archive.compression import compressor
from pcopy.tasks.archive.plain_files import PlainFiles, alone, joined
from pcopy.tasks.base.rank import Rank

Record = tuple[bytes, bytes, bytes, tuple[int, ...]]
"""The key of a piece; which part of it (empty: headers and small files); the digests of what that holds. If it is a
frame of a compressed archive: where that begins, its bytes, and those of its contents."""

_RESERVE = 256 << 10
"""Bytes that are reserved for records of a rank, so that a full file system takes them: those of a minute are fewer."""
AT_ONCE = 1024
"""Records that are written at once where a run goes on."""


def digest_of(runs: Iterable[bytes | PlainFiles]) -> bytes:
    """Of a piece that holds plain files and what these values describe, however these are put together: that depends
    on who has scanned a directory, and when."""
    digest, together = blake2b(digest_size=16), list[PlainFiles]()
    for run in runs:
        files = alone(run) if isinstance(run, bytes) else run
        if together and (files is None or (files.root, files.path) != (together[0].root, together[0].path)):
            digest.update(joined(together).told)
            together = []
        if files is not None:
            together.append(files)
        elif isinstance(run, bytes):
            digest.update(run)
    if together:
        digest.update(joined(together).told)
    return digest.digest()


class PieceRecords:
    """Of one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._archive = rank.own(ArchiveFile)
        self._directory = rank.descriptors[0].target
        options = rank.options
        self.is_kept = options.sync
        """Is it recorded what is made?"""
        what = __version__.encode(), (options.hash or "").encode(), options.block_size
        self._what = b"%b %b %d%b" % (*what, compressor(options.compress_as))
        self._stem = b"%b%b-1-" % (PREFIX, rank.job.name.encode())
        self._kept = self._stem + b"0.kept"
        self._name = self._stem + b"%d.made" % rank.number
        self._due = rank.began + options.archive_interval
        self._new: list[Record] = []
        self._file: BinaryIO | None = None
        self._room, self._is_reserved = -1, False
        self._found: dict[tuple[bytes, bytes], bytes] | None = None

    def key(self, offset: int, digest: bytes) -> bytes:
        """Of a piece that begins at ``offset``, by the digest of what is in it (``digest_of``)."""
        return blake2b(b"%b %d %b" % (self._what, offset, digest), digest_size=16).digest()

    @property
    def goes_on(self) -> bool:
        """Is anything there that an earlier run has written?"""
        return self._rank.options.resumes and bool(self._of_earlier_runs)

    @property
    def _of_earlier_runs(self) -> dict[tuple[bytes, bytes], bytes]:
        if self._found is None:
            self._found = {}
            for piece, part, digests, _ in self._records(self._kept):
                self._found[piece, part] = digests
        return self._found

    def find(self, piece: bytes, part: bytes, size: int) -> bytes | None:
        """The digests, ``size`` bytes, of a part that is there; None if it has to be written."""
        digests = self._of_earlier_runs.get((piece, part)) if self._rank.options.resumes else None
        return digests if digests is not None and len(digests) == size else None

    def add(self, piece: bytes, part: bytes, digests: bytes, where: tuple[int, ...] = ()) -> None:
        """The archive holds this part now; now and then what was added is recorded. Raises ``Problem``."""
        if not self._is_reserved:
            self._is_reserved = True
            self._reserve()
        self._new.append((piece, part, digests, where))
        if time.monotonic() >= self._due:
            self.record()
            self._due = time.monotonic() + self._rank.options.archive_interval

    def record(self) -> None:
        """What was added is brought to storage, and recorded there. Raises ``Problem``."""
        new, self._new = self._new, []
        if not new:
            return
        self._archive.sync()
        try:
            is_first = self._file is None
            try:
                self._write(new)
            except OSError as error:
                if error.errno not in FULL or not self._release():
                    raise
                self._write(new)
        except OSError as error:
            self._new = new
            raise _unrecorded(error) from error
        if is_first:
            sync_directory(self._directory)

    def _write(self, records: list[Record]) -> None:
        """Write a frame to this rank's file, and bring it to storage; raises ``OSError``, and nothing counts then."""
        if self._file is None:
            with suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=self._directory)
            self._file = os.fdopen(open_patiently(self._name, NEW, 0o600, dir_fd=self._directory), "wb", buffering=0)
        end = self._file.tell()
        try:
            write_frame(self._file, marshal.dumps((self._as_recorded(), records)))
            sync_written(self._file.fileno())
        except OSError:
            self._file.seek(end)
            self._file.truncate()
            raise

    def _reserve(self) -> None:
        """Reserve room for records by a file without a name. Without it a full file system may take none."""
        with suppress(OSError):
            self._room = open_patiently(b".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=self._directory)
            os.posix_fallocate(self._room, 0, _RESERVE)

    def _release(self) -> bool:
        """Give back what was reserved; return False if nothing is reserved."""
        room, self._room = self._room, -1
        if room >= 0:
            let_go(room)
        return room >= 0

    def forget(self) -> None:
        """All is written: no record is needed any more."""
        self._new = []

    def is_anything(self) -> bool:
        """Return True if any rank has recorded something. Raises ``Problem``."""
        return any(next(self._records(name), None) for name in self._names())

    def remove_useless(self) -> None:
        """Remove the file of this rank if nothing is recorded in it, or the archive was removed. Raises ``OSError``."""
        if self._file is None or not os.fstat(self._file.fileno()).st_nlink:
            return
        if not (self._file.tell() and os.fstat(self._archive.descriptor).st_nlink):
            os.unlink(self._name, dir_fd=self._directory)

    def begin(self, pieces: Iterable[bytes], fitting: Callable[[list[Record]], list[Record]] = list) -> tuple[int, int]:
        """On rank 0, before anything is written to an archive that an earlier run has left: what is recorded of
        ``pieces``, and is ``fitting``, is all that counts from now on. Returns of how many something is there, and how
        many they are. Raises ``Problem``."""
        self._archive.sync()  # what an earlier run has written; and it shows whether the archive can be synced
        records, names = defaultdict[bytes, list[Record]](list), self._names()
        for name in names:
            for record in self._records(name):
                records[record[0]].append(record)
        kept, number, there = list[Record](), 0, 0
        for piece in pieces:
            number += 1
            found = fitting(records.pop(piece, []))
            kept += found
            there += bool(found)
        try:
            temporary = self._kept + b".new"
            self.remove([temporary])
            with replacing(self._directory, self._kept, temporary) as stream:
                for at in range(0, len(kept), AT_ONCE):
                    write_frame(stream, marshal.dumps((self._as_recorded(), kept[at : at + AT_ONCE])))
        except OSError as error:
            raise _unrecorded(error) from error
        self.remove(name for name in names if name != self._kept)
        self._found = {(piece, part): digests for piece, part, digests, _ in kept}
        if not kept:
            self._archive.end_at(0)
        return there, number

    def remove(self, names: Iterable[bytes] | None = None) -> None:
        """Files of records; all by default. Raises ``Problem``."""
        names, is_removed = self._names() if names is None else names, False
        for name in names:
            with failing("unlink"), suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._directory)
                is_removed = True
        if is_removed:
            sync_directory(self._directory)

    def remove_all(self) -> None:
        """As ``remove``, once the archive is whole, also where the directory cannot be listed: then those files that
        this run may have made. Raises ``Problem``."""
        try:
            self.remove()
        except Problem as problem:
            if problem.operation != "readdir":
                raise
            self.remove([self._kept, *(b"%b%d.made" % (self._stem, number) for number in range(self._rank.size))])

    def _names(self) -> list[bytes]:
        with failing("readdir"):
            names = names_in(self._directory)
            return sorted(name for name in names if name.startswith(self._stem) and not name.endswith(b".archive"))

    def _records(self, name: bytes) -> Iterator[Record]:
        """Up to one that is damaged; none, if they are of another archive, or somebody else's."""
        accepted = self._identity, (*self._identity, boot_id())
        with suppress(Refused, ValueError, EOFError, TypeError):
            for frame in frames(b"/proc/self/fd/%d/%b" % (self._directory, name)):
                told, records = marshal.loads(frame.payload)
                if told not in accepted:
                    return
                yield from records

    @property
    def _identity(self) -> tuple[int, bytes]:
        """Of the archive that is made."""
        descriptor = self._archive.descriptor
        return status_of(descriptor).st_ino, mark_of(descriptor, made=True)

    def _as_recorded(self) -> tuple[int, bytes] | tuple[int, bytes, str]:
        """Return the identity as records state it; they do not outlast a reboot if the archive cannot be synced."""
        is_durable = status_of(self._archive.descriptor).st_dev not in unsyncable
        return self._identity if is_durable else (*self._identity, boot_id())

    def close(self) -> None:
        self._release()
        if self._file is not None:
            self._file.close()
            self._file = None


def _unrecorded(error: OSError) -> Problem:
    return Problem("write", error.errno or errno.EIO, text=f"what is made cannot be recorded: {error.strerror}")


def stop_writing(rank: Rank, problem: Problem) -> None:
    """End the job, since the archive cannot be written. If that is full, what it holds is recorded first."""
    if problem.errno in FULL:
        with suppress(Problem):  # then what is not recorded is made anew
            rank.own(PieceRecords).record()
    stop(rank, "written", problem)
