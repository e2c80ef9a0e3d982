"""Records of what was written to an archive, so that ``ptar -c --resume`` can continue after any interruption.

A piece consists of consecutive members that one task writes. A record says that a piece, or a part of a large file, is
on stable storage; for a compressed archive it also says where. The key of a piece is a digest of its offset before
compression and of the descriptions of all its members. A resumed run that has the same piece at the same offset need
not write it again. (A file that has changed, but has the same ctime, would not be noticed.) A frame of a compressed
archive is only used if all frames before it are used, too (``ArchiveFrameWriter.adopt_written_frames``).

Each rank writes one file of records. Before a resumed run writes anything to the archive, it merges these files into
one, without the records of pieces that it does not have itself. Otherwise a record could remain although its bytes are
overwritten. Each block of records in such a file contains the inode number of the archive and its mark (file handle or
time of birth), so that records of another archive are not used. It also contains the compression of the archive.
"""

from __future__ import annotations

import errno
import marshal
import os
import time
from _blake2 import blake2b
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO

from pcopy import __version__
from pcopy.checkpoint.framing import read_record_frames, write_record_frame
from pcopy.errors import RequestRefused
from pcopy.fsio.backend.batches import MEMBER_ROW_FORMAT
from pcopy.fsio.close import close_ignoring_errors, names_in_directory
from pcopy.fsio.durable import boot_id, replacing_file, sync_directory
from pcopy.fsio.identity import identity_mark_of
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.syncer import sync_file_if_supported, unsyncable_devices
from pcopy.fsio.temporary import CREATE_FLAGS, TEMPORARY_NAME_PREFIX
from pcopy.tasks.archive.archive_file import NO_SPACE_ERRNOS, ArchiveFile, stop_job_on_archive_error
from pcopy.tasks.archive.compression import compressor_version
from pcopy.tasks.archive.simple_files import SimpleFiles, as_simple_member
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.rank import Rank

PieceRecord = tuple[bytes, bytes, bytes, tuple[int, ...]]
"""A record of something that was written. Its fields:

- the key of the piece (members that one task writes);
- the part of the piece: empty for headers and small files, otherwise offsets that identify a part of a large file;
- the digests of the contents of its files, one behind the other;
- for a frame of a compressed archive: its offset, its bytes, and the bytes of its contents; empty otherwise.
"""

_RESERVED_BYTES = 256 << 10
"""Bytes on disk that each rank reserves, so that it can write its last records to a full file system. The records of
one minute take less.
"""
RECORDS_PER_FRAME = 1024
"""Number of records in each block of the merged file of records."""


def digest_of_descriptions(runs: Iterable[bytes | SimpleFiles]) -> bytes:
    """Return a digest of the descriptions of all members of a piece, which are in the order of the archive. It shows
    whether a resumed run has the same members in it.

    It does not depend on how simple members are divided into records. That differs between runs, because it depends on
    which rank has scanned which part of a directory or of a tree.
    """
    digest, together = blake2b(digest_size=16), list[SimpleFiles]()
    for run in runs:
        simple = as_simple_member(run) if isinstance(run, bytes) else run
        if simple is not None:
            together.append(simple)
        elif isinstance(run, bytes):
            _add_simple_members(digest, together)
            digest.update(run)
            together = []
    _add_simple_members(digest, together)
    return digest.digest()


def _add_simple_members(digest: blake2b, together: Sequence[SimpleFiles]) -> None:
    """Add the properties of consecutive simple members to a digest. The device number is left out, because it can
    change when the host is rebooted.
    """
    if not together:
        return
    rows = array("Q", b"".join([members.rows for members in together]))
    rows[2 :: MEMBER_ROW_FORMAT.size // 8] = array("Q", bytes(8 * (len(rows) // (MEMBER_ROW_FORMAT.size // 8))))
    owners = {ids: names for members in together for ids, names in members.used_owners.items()}
    names = b"".join([members.full_names for members in together])
    digest.update(marshal.dumps((names, rows.tobytes(), sorted(owners.items())), 2))


def recorded_compression(paths: Iterable[bytes]) -> str | None:
    """Return the compression with which an interrupted run has begun an archive (empty: none); None if no record says
    so. ``paths`` are the files that the run has left, with its files of records among them.
    """
    for path in paths:
        with suppress(RequestRefused, ValueError, EOFError, TypeError, OSError):
            for frame in read_record_frames(path):
                _, method, _ = marshal.loads(frame.payload)
                return str(method)
    return None


class PieceRecords:
    """The records of what one rank has written to the archive, and the records of an interrupted run that this run
    uses.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._archive = rank.shared_instance(ArchiveFile)
        self._directory = rank.descriptors[0].target
        options, archive_options = rank.options, rank.program_options(ArchiveOptions)
        self.is_enabled = options.sync
        """True if records are written: only if the job syncs (``--no-sync`` is not given)."""
        settings = __version__.encode(), (options.hash or "").encode(), options.block_size
        self._settings = b"%b %b %d%b" % (*settings, compressor_version(archive_options.compress_as))
        self._stem = b"%b%b-1-" % (TEMPORARY_NAME_PREFIX, rank.job.name.encode())
        self._merged_name = self._stem + b"0.kept"
        self._name = self._stem + b"%d.made" % rank.number
        self._due = rank.began + archive_options.archive_interval
        self._new: list[PieceRecord] = []
        self._file: BinaryIO | None = None
        self._reserved, self._is_reserved = -1, False
        self._found: dict[tuple[bytes, bytes], bytes] | None = None

    def piece_key(self, offset: int, digest: bytes) -> bytes:
        """Return the key by which records identify the piece that begins at ``offset``. ``digest`` is a digest of the
        descriptions of its members.
        """
        return blake2b(b"%b %d %b" % (self._settings, offset, digest), digest_size=16).digest()

    @property
    def has_earlier_records(self) -> bool:
        """True if there are records of an interrupted run, and the job resumes that run."""
        return self._rank.program_options(ArchiveOptions).resumes and bool(self._earlier_digests)

    @property
    def _earlier_digests(self) -> dict[tuple[bytes, bytes], bytes]:
        """The digests that an interrupted run has recorded, by the key of the piece and the part."""
        if self._found is None:
            self._found = {}
            for piece, part, digests, _ in self._records_in_file(self._merged_name):
                self._found[piece, part] = digests
        return self._found

    def digests_of_written_part(self, piece: bytes, part: bytes, size: int) -> bytes | None:
        """Return the digests of a part that an interrupted run has written; None if the part must be written.

        Args:
            piece: the key of the piece (members that one task writes).
            part: empty for the headers and small files of the piece, otherwise offsets that identify a part of a large
                file.
            size: the number of bytes that the digests must have.
        """
        digests = (
            self._earlier_digests.get((piece, part)) if self._rank.program_options(ArchiveOptions).resumes else None
        )
        return digests if digests is not None and len(digests) == size else None

    def add_record(self, piece: bytes, part: bytes, digests: bytes, where: tuple[int, ...] = ()) -> None:
        """Add a record of a part that the archive contains now.

        Every ``archive_interval`` seconds the new records are stored. Raise ``Problem`` if that fails.

        Args:
            piece: the key of the piece (members that one task writes).
            part: empty for the headers and small files of the piece, otherwise offsets that identify a part of a large
                file.
            digests: the digests of the contents of its files, one behind the other.
            where: for a frame of a compressed archive: its offset, its bytes, and the bytes of its contents.
        """
        if not self._is_reserved:
            self._is_reserved = True
            self._reserve_space()
        self._new.append((piece, part, digests, where))
        if time.monotonic() >= self._due:
            self.store_records()
            self._due = time.monotonic() + self._rank.program_options(ArchiveOptions).archive_interval

    def store_records(self) -> None:
        """Sync the archive, then store the new records. Raise ``Problem`` if that fails."""
        new, self._new = self._new, []
        if not new:
            return
        self._archive.sync()
        try:
            is_first = self._file is None
            try:
                self._append_frame(new)
            except OSError as error:
                # The file system is full: release the reserved space, which makes room for the records.
                if error.errno not in NO_SPACE_ERRNOS or not self._release_reserved_space():
                    raise
                self._append_frame(new)
        except OSError as error:
            self._new = new
            raise _problem_of_storing_records(error) from error
        if is_first:
            sync_directory(self._directory)

    def _append_frame(self, records: list[PieceRecord]) -> None:
        """Append a block of records to this rank's file, and sync the file.

        Raise ``OSError`` if that fails; nothing of the block remains in the file then.
        """
        if self._file is None:
            with suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=self._directory)
            self._file = os.fdopen(
                open_with_retries(self._name, CREATE_FLAGS, 0o600, dir_fd=self._directory), "wb", buffering=0
            )
        end = self._file.tell()
        try:
            write_record_frame(self._file, self._packed_frame(records))
            sync_file_if_supported(self._file.fileno())
        except OSError:
            self._file.seek(end)
            self._file.truncate()
            raise

    def _packed_frame(self, records: list[PieceRecord]) -> bytes:
        """Return the contents of a block with ``records``."""
        compression = self._rank.program_options(ArchiveOptions).compress_as
        return marshal.dumps((self._identity_in_records(), compression, records))

    def _reserve_space(self) -> None:
        """Reserve space for records with a file that has no name (O_TMPFILE).

        Errors are ignored: the last records may then not fit on a full file system.
        """
        with suppress(OSError):
            self._reserved = open_with_retries(
                b".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=self._directory
            )
            os.posix_fallocate(self._reserved, 0, _RESERVED_BYTES)

    def _release_reserved_space(self) -> bool:
        """Free the disk space that was reserved for the last records. Return False if none was reserved."""
        room, self._reserved = self._reserved, -1
        if room >= 0:
            close_ignoring_errors(room)
        return room >= 0

    def discard_new_records(self) -> None:
        """Forget the records that are not stored yet. This is called when the archive is complete, so that they are
        useless.
        """
        self._new = []

    def has_any_record(self) -> bool:
        """Return True if any rank has stored a record of what it has written. Raise ``Problem`` if the directory of
        these files cannot be read.
        """
        return any(next(self._records_in_file(name), None) for name in self._record_file_names())

    def remove_useless_record_file(self) -> None:
        """Remove this rank's file of records if it is empty, or if the archive was removed. Raise ``OSError`` if that
        fails.
        """
        if self._file is None or not os.fstat(self._file.fileno()).st_nlink:
            return
        if not (self._file.tell() and os.fstat(self._archive.descriptor).st_nlink):
            os.unlink(self._name, dir_fd=self._directory)

    def adopt_earlier_records(
        self, pieces: Iterable[bytes], fitting: Callable[[list[PieceRecord]], list[PieceRecord]] = list
    ) -> tuple[int, int]:
        """On rank 0: take over the records of an interrupted run, before anything is written to the archive.

        Records of pieces that this run does not have are dropped. The others are stored in one file, and all other
        files of records are removed. Return the number of pieces that have records, and the number of all pieces. Raise
        ``Problem`` if that fails.

        Args:
            pieces: the keys of the pieces of this run, in the order of the archive.
            fitting: function that gets the records of one piece, and returns those that can be used.
        """
        self._archive.sync()  # stores what the earlier run has written, and shows whether the archive can be synced
        records, names = defaultdict[bytes, list[PieceRecord]](list), self._record_file_names()
        for name in names:
            for record in self._records_in_file(name):
                records[record[0]].append(record)
        usable, number, with_records = list[PieceRecord](), 0, 0
        for piece in pieces:
            number += 1
            found = fitting(records.pop(piece, []))
            usable += found
            with_records += bool(found)
        try:
            temporary = self._merged_name + b".new"
            self.remove_record_files([temporary])
            with replacing_file(self._directory, self._merged_name, temporary) as stream:
                for at in range(0, len(usable), RECORDS_PER_FRAME):
                    write_record_frame(stream, self._packed_frame(usable[at : at + RECORDS_PER_FRAME]))
        except OSError as error:
            raise _problem_of_storing_records(error) from error
        self.remove_record_files(name for name in names if name != self._merged_name)
        self._found = {(piece, part): digests for piece, part, digests, _ in usable}
        if not usable:
            self._archive.truncate_or_extend(0)
        return with_records, number

    def remove_record_files(self, names: Iterable[bytes] | None = None) -> None:
        """Remove the record files ``names``; by default, all record files. Raise ``Problem`` if that fails."""
        names, is_removed = self._record_file_names() if names is None else names, False
        for name in names:
            with errors_as_problem("unlink"), suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._directory)
                is_removed = True
        if is_removed:
            sync_directory(self._directory)

    def remove_all_files(self) -> None:
        """Remove all files of records, once the archive is complete.

        If the directory cannot be listed, the files that this run may have created are removed. Raise ``Problem`` if
        that fails.
        """
        try:
            self.remove_record_files()
        except Problem as problem:
            if problem.operation != "readdir":
                raise
            self.remove_record_files(
                [self._merged_name, *(b"%b%d.made" % (self._stem, number) for number in range(self._rank.size))]
            )

    def _record_file_names(self) -> list[bytes]:
        """Return the names of the files of records of all ranks. Raise ``Problem`` if the directory cannot be
        listed.
        """
        with errors_as_problem("readdir"):
            names = names_in_directory(self._directory)
            return sorted(name for name in names if name.startswith(self._stem) and not name.endswith(b".archive"))

    def _records_in_file(self, name: bytes) -> Iterator[PieceRecord]:
        """Yield the records in the file ``name``, up to the first damaged block.

        Yield none if they belong to another archive or another user.
        """
        accepted = self._archive_identity, (*self._archive_identity, boot_id())
        with suppress(RequestRefused, ValueError, EOFError, TypeError):
            for frame in read_record_frames(b"/proc/self/fd/%d/%b" % (self._directory, name)):
                identity, _, records = marshal.loads(frame.payload)
                if identity not in accepted:
                    return
                yield from records

    @property
    def _archive_identity(self) -> tuple[int, bytes]:
        """The inode number of the archive, and its mark (file handle or time of birth), which a later file with the
        same inode number does not have.
        """
        descriptor = self._archive.descriptor
        return status_of_open_item(descriptor).st_ino, identity_mark_of(descriptor, created_by_job=True)

    def _identity_in_records(self) -> tuple[int, bytes] | tuple[int, bytes, str]:
        """Return what identifies the archive in the files of records: its inode number, and its mark (file handle or
        time of birth).

        If the archive cannot be synced, the boot id of the host is added: after a reboot such records are not used,
        because the bytes may be lost.
        """
        is_durable = status_of_open_item(self._archive.descriptor).st_dev not in unsyncable_devices
        return self._archive_identity if is_durable else (*self._archive_identity, boot_id())

    def close(self) -> None:
        """Release the reserved space, and close this rank's file of records."""
        self._release_reserved_space()
        if self._file is not None:
            self._file.close()
            self._file = None


def _problem_of_storing_records(error: OSError) -> Problem:
    """Return the ``Problem`` to report if records could not be stored."""
    return Problem("write", error.errno or errno.EIO, text=f"the progress cannot be recorded: {error.strerror}")


def stop_after_write_failure(rank: Rank, problem: Problem) -> None:
    """Stop the job, because the archive cannot be written (``problem``).

    If the file system is full, store the new records first, so that a resumed job need not write these parts again.
    """
    if problem.errno in NO_SPACE_ERRNOS:
        with suppress(Problem):  # a resumed run writes again what is not recorded
            rank.shared_instance(PieceRecords).store_records()
    stop_job_on_archive_error(rank, "written", problem)
