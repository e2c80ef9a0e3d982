"""Pieces of an archive: consecutive members of one directory, which one task writes.

Records are sorted in the order of the archive. But a record of simple files (regular files without xattrs, links and
holes; ``pcopy.tasks.archive.simple_files``) holds many members of a directory, and other members can belong between
them. Such records are split first. No other members belong between those of a record of several directories
(``pcopy.tasks.archive.tree_members``), which is a piece by itself, unless the archive is compressed: then pieces are
divided by the number and size of their members only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from pcopy.fast_named_tuple import NamedTuple
from pcopy.signature.sorting import SortRecord
from pcopy.tasks.archive.descriptions import directory_part_of_key, size_of_record_in_archive
from pcopy.tasks.archive.frames import FRAME_BYTES
from pcopy.tasks.archive.simple_files import (
    SimpleFiles,
    holds_several_members,
    holds_simple_files,
    member_count,
    merged_files,
    unpack_simple_files,
)
from pcopy.tasks.archive.tree_members import unpack_members

PIECE_MEMBERS = 256
"""Number of members at which a piece is full."""
PIECE_BYTES = 4 << 20
"""Bytes in the archive at which a piece is full."""


class SimpleFileRange(NamedTuple):
    """Some of the simple files (or ``TreeMembers``) in ``files``: those from row ``start`` up to row ``end``
    (exclusive).
    """

    files: SimpleFiles
    start: int
    end: int


ConsecutiveMembers = bytes | SimpleFileRange
"""Type: consecutive members, either those in the value of one record, or a range of simple files of one directory."""


class ArchivePiece(NamedTuple):
    """A piece of the archive: consecutive members that one task writes.

    Fields:
      key: the key of its first member, by which pieces are sorted.
      members: the number of its members.
      size: its bytes in the archive, before compression.
      runs: its members, in their order.
    """

    key: bytes
    members: int
    size: int
    runs: list[ConsecutiveMembers]

    @property
    def packed_members(self) -> list[bytes]:
        """The members as values of records, as tasks carry them."""
        return [
            run if isinstance(run, bytes) else run.files.rows_in_range(run.start, run.end).packed_value
            for run in self.runs
        ]


_PartlyConsumed = list[tuple[SimpleFiles, int]]
"""Type: records of simple files of one directory that are being divided, each with the first of its rows that was not
yielded yet.
"""


def member_runs_in_archive_order(records: Iterator[SortRecord]) -> Iterator[tuple[bytes, ConsecutiveMembers]]:
    """Generator: yield all members of the sorted ``records`` in the order of the archive, as runs (groups of
    consecutive members), each with the key of its first member.

    A record of simple files is divided where other members of the directory belong between its files.
    """
    waiting: SortRecord | None = (
        None  # a record of simple files; it need not be split if no other member follows in its directory
    )
    cut: _PartlyConsumed = []
    directory = b""
    for key, value in records:
        here = directory_part_of_key(key)
        if waiting is not None:
            if here == directory:
                cut = [(unpack_simple_files(waiting[1]), 0)]
            else:
                yield waiting
            waiting = None
        if cut:
            before, cut = _member_runs_before_key(key, cut) if here == directory else (_remaining_member_runs(cut), [])
            yield from before
        directory = here
        if not holds_simple_files(value):
            yield key, value
        elif cut:
            cut.append((unpack_simple_files(value), 0))
        else:
            waiting = key, value
    if waiting is not None:
        yield waiting
    yield from _remaining_member_runs(cut)


def _remaining_member_runs(cut: _PartlyConsumed) -> Iterator[tuple[bytes, ConsecutiveMembers]]:
    """Return an iterator over the simple files that were not yielded yet, as runs (consecutive members) with the keys
    of their first members. ``cut`` are the records that contain the files.
    """
    return _merged_member_runs([(files, start, len(files)) for files, start in cut])


def _member_runs_before_key(
    key: bytes, cut: _PartlyConsumed
) -> tuple[Iterator[tuple[bytes, ConsecutiveMembers]], _PartlyConsumed]:
    """Divide the records of simple files ``cut`` at the key ``key``. Return two things: an iterator over the files with
    smaller keys, as runs (consecutive members); what remains of each record.
    """
    cuts = [(files, start, files.first_row_not_below_key(key, start)) for files, start in cut]
    return _merged_member_runs(cuts), [(files, end) for files, _, end in cuts if end < len(files)]


def _merged_member_runs(cuts: list[tuple[SimpleFiles, int, int]]) -> Iterator[tuple[bytes, ConsecutiveMembers]]:
    """Generator: yield simple files as runs (consecutive members), each with the key of its first member. ``cuts`` says
    which rows of which records; if there are several records, their files are merged by name.
    """
    some = [SimpleFileRange(*cut) for cut in cuts if cut[1] < cut[2]]
    if len(some) > 1:
        files = merged_files([files.rows_in_range(start, end) for files, start, end in some])
        some = [SimpleFileRange(files, 0, len(files))]
    for each in some:
        yield each.files.row_sort_key(each.start), each


def archive_pieces_of_records(records: Iterator[SortRecord], *, spans_directories: bool) -> Iterator[ArchivePiece]:
    """Divide the members of sorted ``records`` into pieces, and yield these.

    Args:
        spans_directories: True for a compressed archive. A piece may contain members of several directories then, and
            each large file is a piece of its own.
    """
    first, directory, members, size, runs = b"", b"", 0, 0, list[ConsecutiveMembers]()
    for start_key, whole in member_runs_in_archive_order(records):
        key, run = start_key, _unpack_run_if_too_large(whole, members, size)
        while True:
            is_full = members >= PIECE_MEMBERS or size >= PIECE_BYTES or (spans_directories and _is_large_file(run))
            if runs and (is_full or not (spans_directories or key.startswith(directory))):
                yield ArchivePiece(first, members, size, runs)
                members, size, runs = 0, 0, []
            if not runs:
                first, directory = key, directory_part_of_key(key) + b"\0\0"
            fits, rest = _split_run_to_fit_piece(run, members, size)
            members, size = members + fits[1], size + fits[2]
            runs.append(fits[0])
            if rest is None:
                break
            run, key = rest, rest.files.row_sort_key(rest.start)
    if runs:
        yield ArchivePiece(first, members, size, runs)


def _unpack_run_if_too_large(run: ConsecutiveMembers, members: int, size: int) -> ConsecutiveMembers:
    """Return ``run`` unchanged, unless it is a packed record of several members that may not all fit into the present
    piece, which has ``members`` members and ``size`` bytes already. Then return it unpacked, so that it can be divided.
    """
    if not isinstance(run, bytes) or not holds_several_members(run):
        return run
    number = member_count(run)
    if members + number <= PIECE_MEMBERS and size + size_of_record_in_archive(run) <= PIECE_BYTES:
        return run
    files = unpack_members(run)
    assert not isinstance(files, bytes)
    return SimpleFileRange(files, 0, number)


def _is_large_file(run: ConsecutiveMembers) -> bool:
    """Return True if ``run`` is a single member that takes more than one frame of a compressed archive."""
    return isinstance(run, bytes) and not holds_several_members(run) and size_of_record_in_archive(run) > FRAME_BYTES


def _split_run_to_fit_piece(
    run: ConsecutiveMembers, members: int, size: int
) -> tuple[tuple[ConsecutiveMembers, int, int], SimpleFileRange | None]:
    """Split a run at the end of the piece that has ``members`` members and ``size`` bytes already.

    Return the part that fits, with its number of members and its bytes; then the rest, or None if all of the run fits.
    """
    if isinstance(run, bytes):
        return (run, member_count(run), size_of_record_in_archive(run)), None
    files, start, last = run
    offsets, most = files.offsets, min(last, start + PIECE_MEMBERS - members)
    end = bisect_left(offsets, offsets[start] + PIECE_BYTES - size, start + 1, most)
    rest = SimpleFileRange(files, end, last) if end < last else None
    return (SimpleFileRange(files, start, end), end - start, offsets[end] - offsets[start]), rest
