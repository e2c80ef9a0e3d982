"""Batches for tar archives whose members lie in many directories: one describes subtrees as members, one reads members,
one unpacks them. Only the C backend has them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import MEMBER_ROW_FORMAT, BatchResult, FileOperationBatch
from pcopy.fsio.backend.columns import (
    GROUP_COLUMN,
    LINKS_COLUMN,
    MODE_COLUMN,
    MTIME_COLUMN,
    OWNER_COLUMN,
    ItemStatusColumns,
)
from pcopy.fsio.backend.walk_batches import WalkBatch, WalkResult


class ConsecutiveTreeMembers(NamedTuple):
    """Members that follow each other in the archive. The first one may be a directory or a file.

    Fields:
        size: their bytes in the archive.
        names: their paths, relative to the parent directory of the batch, each followed by a zero byte. Those of
            directories end with a slash.
        rows: their status and bytes in the archive, each in the format of ``MEMBER_ROW_FORMAT``.
    """

    size: int
    names: bytes
    rows: bytes


class DescribeMembersResult(WalkResult):
    """The result of ``DescribeMembersBatch``.

    ``counts.other_items`` is the number of all names in the directories that were entered, ``counts.directories`` that
    of these directories, and ``counts.bytes`` the size of the files. ``packed_pieces`` has the structure ``pk_piece``
    of backend.h for each piece. ``names`` and ``rows`` are those of all pieces.
    """

    packed_pieces: bytes = b""
    names: bytes = b""
    rows: bytes = b""

    def pieces(self) -> Iterator[ConsecutiveTreeMembers]:
        """Iterate over the pieces, in the order of the archive."""
        wide, narrow = array("Q", self.packed_pieces), array("I", self.packed_pieces)
        sizes, starts, firsts, unit = wide[0::3], wide[1::3], narrow[4::6], MEMBER_ROW_FORMAT.size
        ends = zip((*starts[1:], len(self.names)), (*firsts[1:], len(self.rows) // unit), strict=True)
        for size, start, first, (end, last) in zip(sizes, starts, firsts, ends, strict=bool(sizes)):
            yield ConsecutiveTreeMembers(size, self.names[start:end], self.rows[first * unit : last * unit])


class DescribeMembersBatch(WalkBatch[DescribeMembersResult]):
    """Describe directories, and everything in them and below, as members of a tar archive, in the order of the archive.

    A directory is described if it and all files in it are simple, and contain no other items than simple files and
    directories. Other directories remain, with the letter ``m``. Those that were not begun when the time was over have
    the letter ``d``; they follow all others of the same parent. Rows that were not begun have the code ``CANCELLED``.

    Members are divided into pieces. Nothing that remains belongs between the members of a piece.

    Fields:
        path_prefix: what stands before the name of an item of the parent directory in the archive.
        owners: the owners (uid, gid) that a simple item may have.
        max_file_bytes: size in bytes of the largest simple file.
        reads_all: True if this process may read all files. Otherwise files whose mode does not show that it may are not
            simple.
        is_apart: True if other directories of the same parent may belong between the rows. Otherwise the names are
            those of consecutive directories in the order of the archive.
        members_per_piece, bytes_per_piece: numbers of members, and bytes in the archive, at which a piece is full.
    """

    row_kind = "members of subtrees"

    path_prefix: bytes
    owners: Sequence[tuple[int, int]]
    max_file_bytes: int
    reads_all: bool
    is_apart: bool
    members_per_piece: int
    bytes_per_piece: int


class ReadTarMembersResult(BatchResult):
    """The result of ``ReadTarMembersBatch``. ``member_codes``: the code of each member, ``DONE`` or ``SLOW_PATH``."""

    member_codes: bytearray


class ReadTarMembersBatch(FileOperationBatch[ReadTarMembersResult]):
    """Read simple files, and make headers of simple directories, as members of a tar archive. A row has consecutive
    members below one directory.

    Header and contents of each member are written to ``buffer``, one after the other. A file that cannot be read, has
    changed, or needs a header of another kind gets ``SLOW_PATH``: the caller reads it; the contents of its part of
    ``buffer`` are undefined then.

    Fields:
        runs: for each row the descriptor of the directory, the number of members, the prefix of their names in the
            archive, their names (paths below the directory, each followed by a zero byte), and their status and bytes
            in the archive, each in the format of ``MEMBER_ROW_FORMAT``.
        buffer: the memory for the members, filled with zeros.
        owner_fields: by (uid, gid), the last part of a tar header, from its type field on, and the sum of the bytes of
            that part, for the checksum.
        pax_header: the header block that precedes a pax record with an mtime.
    """

    row_kind = "members of subtrees"

    runs: Sequence[tuple[int, int, bytes, bytes, bytes]]
    buffer: bytearray
    owner_fields: dict[tuple[int, int], tuple[bytes, int]]
    pax_header: bytes

    @property
    def directory(self) -> int:
        return self.runs[0][0]

    @property
    def names(self) -> bytes:
        """The name that a report of a slow operation shows for each row: that of the file, if the row has only one."""
        return b"/".join([b"." if number > 1 or b"/" in names else names[:-1] for _, number, _, names, _ in self.runs])

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return tuple({directory for directory, *_ in self.runs})

    def __len__(self) -> int:
        return len(self.runs)


IS_MEMBER, IS_LEAF = 1, 2
"""Flags of a directory of an ``UnpackDirectoriesBatch``: a member describes it; nothing but the files of the batch is
created in it, so that it may get its metadata at once.
"""
UNPACKED_DIRECTORY_COLUMNS = MODE_COLUMN | OWNER_COLUMN | GROUP_COLUMN | LINKS_COLUMN | MTIME_COLUMN
"""Columns of the directories of an ``UnpackDirectoriesBatch``."""


class UnpackDirectoriesResult(BatchResult):
    """The result of ``UnpackDirectoriesBatch``.

    ``directory_codes`` has the code of each directory: ``DONE`` if it has its metadata, ``DECIDE_AGAIN`` if the caller
    has to finish it. ``file_codes`` has that of each file: ``DONE``, or ``LACKS_METADATA`` if it was created with
    another owner, which this process may not change. The code of items that are left to the caller is 0.

    ``unprepared`` has one number for each directory. If it is not 0, the directory is left to the caller, and so many
    bytes of its path lead to a new directory that no member describes, and that has not got the mode of a new one: it
    could not be opened, for example.
    """

    directory_codes: bytes = b""
    file_codes: bytes = b""
    unprepared: Sequence[int] = ()


class UnpackDirectoriesBatch(FileOperationBatch[UnpackDirectoriesResult]):
    """Create directories, and small files in them from contents and metadata in memory. Missing directories above them
    are created, too. The batch has one row.

    Fields:
        directory: descriptor of the directory from which the paths lead.
        device: its st_dev; directories with another one are left to the caller.
        packed_paths: paths of the directories, each followed by a zero byte. Best is an order in which a directory is
            followed by those below it.
        flags: ``IS_MEMBER`` and ``IS_LEAF`` of each directory.
        directories: columns with mode, owner, group and mtime of the directories, and in ``links`` the number of files
            in each (``UNPACKED_DIRECTORY_COLUMNS``).
        packed_names: names of the files, directory by directory, each followed by a zero byte.
        files: columns with mode, owner, group, mtime and size of the files (``CREATION_COLUMNS``).
        contents: the contents of all files.
        offsets: the offset in ``contents`` at which each file begins.
        deadline: time (``time.monotonic``) after which no further directory is begun.
    """

    row_kind = "members of subtrees"

    directory: int
    device: int
    packed_paths: bytes
    flags: bytes
    directories: ItemStatusColumns
    packed_names: bytes
    files: ItemStatusColumns
    contents: bytes
    offsets: array[int]
    deadline: float

    @property
    def names(self) -> bytes:
        """The name that a report of a slow operation shows: the first one on the path of the first directory."""
        return self.packed_paths.partition(b"\0")[0].partition(b"/")[0]

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return (self.directory,)

    def __len__(self) -> int:
        return 1
