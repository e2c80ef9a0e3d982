"""Pieces of an archive: what one task writes, members of one directory that stand together.

Records come in the order of the archive, but for plain files, of which one record holds many: what stands between them
is put there first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from pcopy.named import NamedTuple
from pcopy.signature.sorting import KeyValue
from pcopy.tasks.archive.described import directory_in, size_in
from pcopy.tasks.archive.frames import FRAME_BYTES
from pcopy.tasks.archive.plain_files import PlainFiles, is_of_plain, joined, plain_in

PIECE_MEMBERS = 256
PIECE_BYTES = 4 << 20
"""Members and bytes with which a piece is full."""


class Stretch(NamedTuple):
    """The plain files from ``start`` up to ``end``."""

    files: PlainFiles
    start: int
    end: int


Run = bytes | Stretch
"""Members that stand together: one, by the value of its record, or plain files."""


class PieceOfArchive(NamedTuple):
    """In the archive it takes ``size`` bytes; ``key`` is that of its first member."""

    key: bytes
    size: int
    runs: list[Run]

    @property
    def values(self) -> list[bytes]:
        """Of records that hold just these members."""
        return [run if isinstance(run, bytes) else run.files.part(run.start, run.end).value for run in self.runs]


def in_order(records: Iterator[KeyValue]) -> Iterator[tuple[bytes, Run]]:
    """Records, sorted by their keys, as runs, each with the key of its first member."""
    open_files: list[tuple[PlainFiles, int]] = []
    directory = b""
    for key, value in records:
        here = directory_in(key)
        if open_files:
            before, open_files = _cut(key, open_files) if here == directory else (_rest(open_files), [])
            yield from before
        directory = here
        if is_of_plain(value):
            open_files.append((plain_in(value), 0))
        else:
            yield key, value
    yield from _rest(open_files)


def _rest(open_files: list[tuple[PlainFiles, int]]) -> Iterator[tuple[bytes, Run]]:
    return _stretch([(files, start, len(files)) for files, start in open_files])


def _cut(
    key: bytes, open_files: list[tuple[PlainFiles, int]]
) -> tuple[Iterator[tuple[bytes, Run]], list[tuple[PlainFiles, int]]]:
    """Those whose keys are smaller, and what is left of each."""
    cuts = [(files, start, files.before(key, start)) for files, start in open_files]
    return _stretch(cuts), [(files, end) for files, _, end in cuts if end < len(files)]


def _stretch(cuts: list[tuple[PlainFiles, int, int]]) -> Iterator[tuple[bytes, Run]]:
    some = [Stretch(*cut) for cut in cuts if cut[1] < cut[2]]
    if len(some) > 1:
        files = joined([files.part(start, end) for files, start, end in some])
        some = [Stretch(files, 0, len(files))]
    for each in some:
        yield each.files.key(each.start), each


def pieces(records: Iterator[KeyValue], *, across: bool) -> Iterator[PieceOfArchive]:
    """``across``: a piece may hold what is in several directories, and a large file makes one alone."""
    first, directory, members, size, runs = b"", b"", 0, 0, list[Run]()
    for key, run in in_order(records):
        start = 0 if isinstance(run, bytes) else run.start
        while True:
            is_full = members >= PIECE_MEMBERS or size >= PIECE_BYTES
            if isinstance(run, bytes):
                is_full = is_full or (across and size_in(run) > FRAME_BYTES)
            if runs and (is_full or not (across or key.startswith(directory))):
                yield PieceOfArchive(first, size, runs)
                members, size, runs = 0, 0, []
            if not runs:
                first = key if isinstance(run, bytes) else run.files.key(start)
                directory = directory_in(key) + b"\0\0"
            if isinstance(run, bytes):
                members, size = members + 1, size + size_in(run)
                runs.append(run)
                break
            files = run.files
            offsets, most = files.offsets, min(run.end, start + PIECE_MEMBERS - members)
            full = offsets[start] + PIECE_BYTES - size
            end = bisect_left(offsets, full, start + 1, most)
            members, size = members + end - start, size + offsets[end] - offsets[start]
            runs.append(Stretch(files, start, end))
            start = end
            if start == run.end:
                break
    if runs:
        yield PieceOfArchive(first, size, runs)
