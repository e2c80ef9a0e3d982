"""Pieces of an archive: consecutive members of one directory, which one task writes.

Records are sorted in the order of the archive. But a record of simple files (``pcopy.tasks.archive.plain_files``) holds
many members, and other members can belong between these. Such records are split first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from pcopy.named import NamedTuple
from pcopy.signature.sorting import KeyValue
from pcopy.tasks.archive.described import directory_in, size_in
from pcopy.tasks.archive.frames import FRAME_BYTES
from pcopy.tasks.archive.plain_files import PlainFiles, is_of_plain, joined, number_in, plain_in

PIECE_MEMBERS = 256
"""Number of members with which a piece is full."""
PIECE_BYTES = 4 << 20
"""Bytes with which a piece is full."""


class Stretch(NamedTuple):
    """The simple files of ``files`` from row ``start`` up to row ``end``."""

    files: PlainFiles
    start: int
    end: int


Run = bytes | Stretch
"""Consecutive members: those of the value of one record, or simple files."""


class PieceOfArchive(NamedTuple):
    """A piece of the archive.

    Fields:
      key: the key of its first member.
      members: the number of its members.
      size: its bytes in the archive, before compression.
      runs: its members.
    """

    key: bytes
    members: int
    size: int
    runs: list[Run]

    @property
    def values(self) -> list[bytes]:
        """Values of records that hold exactly these members."""
        return [run if isinstance(run, bytes) else run.files.part(run.start, run.end).value for run in self.runs]


_Open = list[tuple[PlainFiles, int]]
"""Records of simple files of one directory that are being split; each with the first row that was not yielded yet."""


def in_order(records: Iterator[KeyValue]) -> Iterator[tuple[bytes, Run]]:
    """Yield sorted records as runs in the order of the archive, each with the key of its first member."""
    waiting: KeyValue | None = (
        None  # a record of simple files; it need not be split if no other member follows in its directory
    )
    cut: _Open = []
    directory = b""
    for key, value in records:
        here = directory_in(key)
        if waiting is not None:
            if here == directory:
                cut = [(plain_in(waiting[1]), 0)]
            else:
                yield waiting
            waiting = None
        if cut:
            before, cut = _before(key, cut) if here == directory else (_rest(cut), [])
            yield from before
        directory = here
        if not is_of_plain(value):
            yield key, value
        elif cut:
            cut.append((plain_in(value), 0))
        else:
            waiting = key, value
    if waiting is not None:
        yield waiting
    yield from _rest(cut)


def _rest(cut: _Open) -> Iterator[tuple[bytes, Run]]:
    """Return the runs of all rows that were not yielded yet."""
    return _stretches([(files, start, len(files)) for files, start in cut])


def _before(key: bytes, cut: _Open) -> tuple[Iterator[tuple[bytes, Run]], _Open]:
    """Return the runs of all rows with keys below ``key``, and what remains of each record."""
    cuts = [(files, start, files.before(key, start)) for files, start in cut]
    return _stretches(cuts), [(files, end) for files, _, end in cuts if end < len(files)]


def _stretches(cuts: list[tuple[PlainFiles, int, int]]) -> Iterator[tuple[bytes, Run]]:
    """Yield runs of simple files with the keys of their first members; several parts are merged into one."""
    some = [Stretch(*cut) for cut in cuts if cut[1] < cut[2]]
    if len(some) > 1:
        files = joined([files.part(start, end) for files, start, end in some])
        some = [Stretch(files, 0, len(files))]
    for each in some:
        yield each.files.key(each.start), each


def pieces(records: Iterator[KeyValue], *, across: bool) -> Iterator[PieceOfArchive]:
    """Yield the pieces that consist of the members of ``records``.

    Args:
      across: True for a compressed archive: a piece may contain members of several directories, and each large file is
          a piece of its own.
    """
    first, directory, members, size, runs = b"", b"", 0, 0, list[Run]()
    for start_key, whole in in_order(records):
        key, run = start_key, _opened_if_large(whole, members, size)
        while True:
            is_full = members >= PIECE_MEMBERS or size >= PIECE_BYTES or (across and _is_large_file(run))
            if runs and (is_full or not (across or key.startswith(directory))):
                yield PieceOfArchive(first, members, size, runs)
                members, size, runs = 0, 0, []
            if not runs:
                first, directory = key, directory_in(key) + b"\0\0"
            fits, rest = _fitting(run, members, size)
            members, size = members + fits[1], size + fits[2]
            runs.append(fits[0])
            if rest is None:
                break
            run, key = rest, rest.files.key(rest.start)
    if runs:
        yield PieceOfArchive(first, members, size, runs)


def _opened_if_large(run: Run, members: int, size: int) -> Run:
    """Return a record of simple files unpacked, if these may not all fit into the piece that has ``members`` and
    ``size``.

    Return other runs as they are.
    """
    if not isinstance(run, bytes) or not is_of_plain(run):
        return run
    number = number_in(run)
    if members + number <= PIECE_MEMBERS and size + size_in(run) <= PIECE_BYTES:
        return run
    return Stretch(plain_in(run), 0, number)


def _is_large_file(run: Run) -> bool:
    """Return True if ``run`` is a single member that takes more than one frame."""
    return isinstance(run, bytes) and not is_of_plain(run) and size_in(run) > FRAME_BYTES


def _fitting(run: Run, members: int, size: int) -> tuple[tuple[Run, int, int], Stretch | None]:
    """Split a run at the end of a piece that has ``members`` and ``size`` already.

    Return the part that fits, its number of members and its bytes; then the rest, which is None if all of the run fits.
    """
    if isinstance(run, bytes):
        return (run, number_in(run), size_in(run)), None
    files, start, last = run
    offsets, most = files.offsets, min(last, start + PIECE_MEMBERS - members)
    end = bisect_left(offsets, offsets[start] + PIECE_BYTES - size, start + 1, most)
    rest = Stretch(files, end, last) if end < last else None
    return (Stretch(files, start, end), end - start, offsets[end] - offsets[start]), rest
