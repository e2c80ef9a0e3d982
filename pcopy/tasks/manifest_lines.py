"""The manifest's tasks: rank 0 merges all ranks' sorted lines into the file, and keeps one part of each in memory.

It asks a rank for its next part when it has used up the last one; nobody sends unasked. ``ReadManifest`` is the way
back: what a manifest lists becomes the second side of a comparison.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import islice

from pcopy.engine.driver import Slices
from pcopy.errors import Refused
from pcopy.signature.items import DIRECTORY
from pcopy.signature.manifest import ROOT, Entry, ManifestReader, ManifestWriter
from pcopy.signature.records import unpack
from pcopy.tasks.context import Context
from pcopy.tasks.result import Result
from pcopy.tasks.sign_values import Entries, LinesNote, ReadManifest, SendLines, WriteManifest
from pcopy.tasks.values import pack_names, pack_numbers

LINES_AT_ONCE = 4096
LINES_PER_SLICE = 64

Line = tuple[bytes, bytes]


class Merging:
    """The parts that rank 0 has of all ``ranks``, on their way into the file."""

    def __init__(self, writer: ManifestWriter, ranks: int) -> None:
        self._writer = writer
        self._parts: list[deque[Line]] = [deque() for _ in range(ranks)]
        self._ended = [False] * ranks
        self._heads: list[tuple[Line, int]] = []
        self._missing = set(range(ranks))
        self._asked: set[int] = set()

    def take(self, rank: int, rows: tuple[Line, ...], last: bool) -> None:
        """The part that was asked of ``rank``."""
        self._parts[rank].extend(rows)
        self._ended[rank] = last
        self._missing.discard(rank)
        self._asked.discard(rank)
        self._next_of(rank)

    def _next_of(self, rank: int) -> None:
        if self._parts[rank]:
            heapq.heappush(self._heads, (self._parts[rank].popleft(), rank))
        elif not self._ended[rank]:
            self._missing.add(rank)

    def write(self) -> Iterator[None]:
        """Writes the lines that are the next of all, until a rank must be asked for more."""
        while self._heads and not self._missing:
            line, rank = heapq.heappop(self._heads)
            self._next_of(rank)
            self._writer.write(unpack(*line))
            yield

    def to_ask(self) -> list[int]:
        """The ranks whose next part is wanted and has not been asked for."""
        ranks = sorted(self._missing - self._asked)
        self._asked.update(ranks)
        return ranks

    @property
    def is_done(self) -> bool:
        """Is every line written?"""
        return not self._heads and not self._missing

    def finish(self) -> None:
        """Gives the file its name."""
        self._writer.__exit__(None, None, None)

    def abandon(self) -> None:
        """Leaves the old file, if there was one."""
        error = InterruptedError()
        self._writer.__exit__(type(error), error, None)


def write_manifest(task: WriteManifest, context: Context, result: Result) -> Slices:
    """At rank 0: begins, with the root's line."""
    hashing, sign, options = context.hashing, context.sign, context.options
    writer = ManifestWriter(options.manifest, hashing.algorithm, hashing.block_size, options.umask, context.job.writer)
    try:
        writer.__enter__()
    except (OSError, Refused) as error:
        sign.unwritten = error
        return result.outcome()
    sign.merging = Merging(writer, context.size)
    digest, tally = sign.signatures[0]
    try:
        if tally.directories:
            writer.write(Entry(DIRECTORY, digest, 0, ROOT))
    except OSError as error:
        _give_up(context, error)
        return result.outcome()
    for rank in sign.merging.to_ask():
        result.spawn(SendLines(), owner=rank)
    return result.outcome()
    yield


def send_lines(task: SendLines, context: Context, result: Result) -> Slices:
    """This rank's next lines."""
    sign = context.sign
    if sign.sorted_lines is None:
        assert sign.signing.lines is not None
        sign.sorted_lines = sign.signing.lines.sorted()
    rows = tuple(islice(sign.sorted_lines, LINES_AT_ONCE))
    result.spawn(LinesNote(context.rank, rows, len(rows) < LINES_AT_ONCE), owner=0)
    return result.outcome()
    yield


def lines_note(task: LinesNote, context: Context, result: Result) -> Slices:
    """At rank 0: writes what can be written now, and asks for more."""
    merging = context.sign.merging
    if merging is None:  # the file can't be written
        return result.outcome()
    merging.take(task.rank, task.rows, task.last)
    try:
        for number, _ in enumerate(merging.write()):
            if not number % LINES_PER_SLICE:
                yield
        if merging.is_done:
            merging.finish()
            context.sign.merging = None
    except (OSError, Refused) as error:
        _give_up(context, error)
        return result.outcome()
    for rank in merging.to_ask():
        result.spawn(SendLines(), owner=rank)
    return result.outcome()


def _give_up(context: Context, error: Exception) -> None:
    """The manifest can't be written; the old one stays."""
    merging, context.sign.merging = context.sign.merging, None
    context.sign.unwritten = error
    if merging is not None:
        merging.abandon()


def read_manifest(task: ReadManifest, context: Context, result: Result) -> Slices:
    """At rank 0: each entry of the file, in batches of one directory. A damaged file stops the job."""
    batch: list[Entry] = []
    try:
        for entry in ManifestReader(context.sign.against):
            batch.append(entry)
            if len(batch) >= LINES_AT_ONCE:
                _keep_by_directory(context, batch)
                batch.clear()
                yield
    except Refused as refusal:
        context.stop(str(refusal))
    _keep_by_directory(context, batch)
    return result.outcome()


def _keep_by_directory(context: Context, batch: list[Entry]) -> None:
    directories: dict[bytes, list[Entry]] = {}
    for entry in batch:
        if entry.kind == DIRECTORY:
            _keep(context, b"" if entry.path == ROOT else entry.path, [entry._replace(path=b"")])
        else:
            directory, _, name = entry.path.rpartition(b"/")
            directories.setdefault(directory, []).append(entry._replace(path=name))
    for path, entries in directories.items():
        _keep(context, path, entries)


def _keep(context: Context, path: bytes, entries: list[Entry]) -> None:
    context.sign.keep(
        Entries(
            1,
            path,
            pack_names([entry.path for entry in entries]),
            b"".join(entry.kind for entry in entries),
            pack_numbers([entry.size for entry in entries]),
            b"".join(entry.digest for entry in entries),
            0,
        )
    )
