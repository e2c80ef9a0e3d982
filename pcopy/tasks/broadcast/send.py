"""Tasks that send files as a stream of pieces, from rank 0 along a tree of hosts. On each host, its first rank takes
part.

Rank 0 reads a piece when all hosts to which it sends can accept one more. Each host writes a piece and forwards it
while the next one arrives. After it has forwarded a piece, it acknowledges the piece to the host that sent it. So at
most ``MAX_PIECES_UNDER_WAY`` pieces are under way between two hosts, and a slow host slows the stream down instead of
filling memory.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from pcopy import libc
from pcopy.fsio.attributes import ItemMetadata, has_default_acl, read_item_metadata
from pcopy.fsio.backend.interface import TicketCancelled
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.contents import data_extents, may_have_holes
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem, errors_as_problem, source_changed_problem
from pcopy.fsio.source import FileContentVersion, open_item_to_read, status_of_open_item
from pcopy.signature.algorithms import DEFAULT_ALGORITHM, Hasher, digest_algorithm_named
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import BroadcastOptions
from pcopy.tasks.base.kind import TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.storing import wait_until_file_is_stored
from pcopy.tasks.broadcast.directory import HostDirectory, problem_naming_host
from pcopy.text import printable_path

PIECE_BYTES = 1 << 20
"""Bytes of file contents in one piece. Small files share a piece."""

MAX_PARTS_IN_PIECE = 256
"""Maximum number of parts in a piece. A piece with several hundred small files has so many."""

KEPT_MEMORY_BYTES = 64 << 20
"""Bytes of freed memory that a rank does not return to the system, because it soon needs them again for pieces."""

MAX_PIECES_UNDER_WAY = 16
"""Maximum number of pieces that a host may have sent to the next one without an acknowledgement. They cover the time
until an acknowledgement arrives.
"""

MAX_CHAIN_LENGTH = 32
"""Number of hosts up to which the tree is a chain.

In a chain each host sends to one other, so that a large file takes about as long as to a single host. With more hosts,
the delay until data reach the last host matters more; then each host sends to two.
"""

PAGE_BYTES = 4096
"""Size in bytes of the smallest hole that a copy gets."""
_ZERO_PAGE = bytes(PAGE_BYTES)

BEGIN, BEGIN_SPARSE, DATA, END, UNREADABLE = range(5)
"""Types of parts: a file begins; a file with holes begins; contents; the file is complete; the file cannot be read to
its end.
"""

StreamPart = tuple[int, bytes, int, ItemMetadata | None]
"""Type: a part of the stream of files. The values are: its type; bytes (BEGIN: name, DATA: contents, END: digest); a
number (size or offset in bytes; with UNREADABLE: 1 if the file has changed); with END the metadata of the file.
"""


class FilesToSend:
    """On rank 0: the files that are sent. They are read one after the other, and divided into parts."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.paths: tuple[bytes, ...] = ()
        self._parts: Iterator[StreamPart] | None = None
        self._result: TaskResult | None = None
        self._descriptor = -1
        self.existing_names: set[bytes] = set()
        """Names of those files that need not be written on this host, because the source is the file in the target
        directory itself.
        """

    def next_piece(self, result: TaskResult) -> tuple[tuple[StreamPart, ...], bool]:
        """Return the parts that form the next piece of the stream, and True if it is the last piece."""
        if self._parts is None:
            self._parts = self._parts_of_files()
        self._result = result
        parts: list[StreamPart] = []
        size = 0
        for part in self._parts:
            parts.append(part)
            if part[0] == DATA:
                size += len(part[1])
                self._rank.throttle.bytes.take_tokens(
                    len(part[1])
                )  # The task waits for the throttle before the next piece.
            if size >= self._piece_bytes or len(parts) >= MAX_PARTS_IN_PIECE:
                return tuple(parts), False
        return tuple(parts), True

    def _parts_of_files(self) -> Iterator[StreamPart]:
        """Generator: yield the parts of all files. If a file cannot be read, report that, and end its parts with an
        UNREADABLE part.
        """
        directory = self._rank.shared_instance(HostDirectory).descriptor
        for path in self.paths:
            name = os.path.basename(path)
            has_begun = False
            try:
                with errors_as_problem("open", on_source=True):
                    self._descriptor = open_item_to_read(None, path, follow=True)
                status = status_of_open_item(self._descriptor, on_source=True)
                if not stat.S_ISREG(status.st_mode):
                    raise source_changed_problem("open", "it is not a regular file any more")
                has_begun = True
                if is_same_file(name, directory, status):
                    self.existing_names.add(name)
                yield BEGIN_SPARSE if may_have_holes(status) else BEGIN, name, status.st_size, None
                yield from self._parts_of_contents(status)
            except Problem as problem:
                if not has_begun:
                    yield BEGIN, name, 0, None
                assert self._result is not None
                self._result.report_failure(path, problem)
                yield UNREADABLE, b"", int(problem.changed), None
            finally:
                self.close()

    def _parts_of_contents(self, status: os.stat_result) -> Iterator[StreamPart]:
        """Generator: yield the contents of the file that is open, as DATA parts of the stream, and then the END part
        with its digest and metadata. ``status`` is its status when it was opened.

        Raise ``Problem`` if the file cannot be read, or has changed since it was opened.
        """
        size, digest = status.st_size, SentDataDigest()
        for start, end in data_extents(self._descriptor, 0, size) if may_have_holes(status) else ((0, size),):
            at = start
            while at < end:
                with errors_as_problem("read", on_source=True):
                    data = os.pread(self._descriptor, min(self._piece_bytes, end - at), at)
                if not data:
                    raise source_changed_problem("read", "the file became shorter while it was read")
                digest.update(data, at)
                yield DATA, data, at, None
                at += len(data)
        attributes = read_item_metadata(self._descriptor, status, self._rank.options.preserve)
        if FileContentVersion.from_status(
            status_of_open_item(self._descriptor, on_source=True)
        ) != FileContentVersion.from_status(status):
            raise source_changed_problem("read", "the file changed while it was read")
        yield END, digest.digest(), size, attributes

    @property
    def _piece_bytes(self) -> int:
        """Maximum number of bytes of file contents in a piece: ``PIECE_BYTES``, or fewer if the bandwidth is
        limited.
        """
        return self._rank.throttle.bytes_to_copy_next(PIECE_BYTES)

    def close(self) -> None:
        """Close the file that is being read. May be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close_ignoring_errors(descriptor)


class SentDataDigest:
    """Digest of the contents of one file, by which receivers verify what they have written. Holes are not sent;
    instead, the offset of the data after a hole is part of the digest.
    """

    def __init__(self) -> None:
        self._hasher: Hasher = digest_algorithm_named(DEFAULT_ALGORITHM).new_hasher()
        self._at = 0

    def update(self, data: bytes, at: int) -> None:
        """Add ``data``, which stand at the offset ``at`` of the file, to the digest."""
        if at != self._at:
            self._hasher.update(b"%d" % at)
        self._hasher.update(data)
        self._at = at + len(data)

    def digest(self) -> bytes:
        """Return the digest of the data that were added."""
        return self._hasher.digest()


class SendFiles(TaskKind, code=162, doing="reading files and sending them", is_note=False):
    """Task of rank 0 that reads one piece and sends it, then spawns a new task for the next one. ``paths`` are the
    files to send; only the first of these tasks has them.
    """

    paths: tuple[bytes, ...]

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        stream, source = rank.shared_instance(HostStreamRelay), rank.shared_instance(FilesToSend)
        if self.paths:
            source.paths = self.paths
        while stream.is_full:
            credit = SendCreditTicket(stream)
            yield credit
            if credit.is_cancelled:
                raise TicketCancelled
        parts, is_last = source.next_piece(result)
        if parts:
            yield from stream.process_stream_parts(parts, result)
        if not is_last:
            result.spawn_task(SendFiles(()), owner=0)


class StreamPiece(TaskWithoutDirectory, code=163, doing="writing files and forwarding them"):
    """Message with the next piece of the stream to the next host: its ``parts`` in their order."""

    parts: tuple[tuple[int, bytes, int, ItemMetadata | None], ...]

    is_dropped_on_stop = True

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        return rank.shared_instance(HostStreamRelay).process_stream_parts(self.parts, result)


class PiecesForwardedNote(TaskWithoutDirectory, code=164, doing="acknowledging pieces of the stream"):
    """Message that acknowledges pieces of the stream: the rank ``child``, to which the receiver of the message sends,
    has forwarded ``number`` more pieces.
    """

    child: int
    number: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(HostStreamRelay).record_forwarded_pieces(self.child, self.number, result)


class SendCreditTicket:
    """Ticket (an object on which a task can wait) that is done when one more piece may be sent."""

    def __init__(self, stream: HostStreamRelay) -> None:
        self._stream = stream
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        return self.is_cancelled or not self._stream.is_full

    def cancel(self) -> None:
        self.is_cancelled = True


class HostStreamRelay:
    """What one host does in the tree of hosts: it writes the pieces that arrive, and forwards them to the next hosts.

    The object is created only after all hosts have looked for the probe files, so it removes the one of this host.
    """

    def __init__(self, rank: Rank) -> None:
        place = rank.first_ranks.index(rank.number)
        parent_place, child_places = tree_neighbours(place, len(rank.first_ranks))
        if len(rank.first_ranks) > 1:
            libc.retain_freed_memory(KEPT_MEMORY_BYTES)
        rank.shared_instance(HostDirectory).remove_probe()
        self._rank = rank
        self._writing = ReceivedFileWriter(rank)
        self._parent = rank.first_ranks[parent_place] if place else -1
        self._pieces_under_way = {rank.first_ranks[each]: 0 for each in child_places}
        """For each rank to which this one sends: number of pieces that it has not acknowledged yet."""
        self._pieces_to_forward: deque[tuple[StreamPart, ...]] = deque()
        """Pieces that were written on this host and not forwarded yet."""
        self._unacknowledged = 0
        """Number of pieces that were forwarded and not yet acknowledged to the sender."""

    @property
    def is_full(self) -> bool:
        """True if any of the hosts to which this one sends cannot accept another piece."""
        return any(number >= MAX_PIECES_UNDER_WAY for number in self._pieces_under_way.values())

    def process_stream_parts(self, parts: tuple[StreamPart, ...], result: TaskResult) -> TaskSteps:
        """Write the parts of a piece, and forward the piece."""
        for part in parts:
            yield from self._writing.process_stream_part(part, result)
        self._pieces_to_forward.append(parts)
        self._forward_pieces(result)

    def record_forwarded_pieces(self, child: int, number: int, result: TaskResult) -> None:
        """Record that the rank ``child`` has acknowledged ``number`` pieces, and send it more."""
        self._pieces_under_way[child] -= number
        self._forward_pieces(result)

    def _forward_pieces(self, result: TaskResult) -> None:
        """Forward pieces while all receivers can accept them. Acknowledge forwarded pieces to the sender, several at a
        time.
        """
        while self._pieces_to_forward and not self.is_full:
            parts = self._pieces_to_forward.popleft()
            for child in self._pieces_under_way:
                result.spawn_task(StreamPiece(parts), owner=child)
                self._pieces_under_way[child] += 1
            self._unacknowledged += 1
        if self._parent >= 0 and self._unacknowledged >= MAX_PIECES_UNDER_WAY // 4:
            result.spawn_task(PiecesForwardedNote(self._rank.number, self._unacknowledged), owner=self._parent)
            self._unacknowledged = 0

    def close(self) -> None:
        """Remove the incomplete file if there is one. May be called again."""
        self._writing.abandon_incomplete_file()


class ReceivedFileWriter:
    """Writes the files of the stream on this host, one after the other."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._target = rank.shared_instance(HostDirectory)
        self._new: NewFile | None = None
        self._digest = SentDataDigest()
        self._name = b""
        self._size = 0
        self._is_sparse = self._is_source_itself = False
        """``_is_sparse``: the file has holes. ``_is_source_itself``: the target is the file that is sent, so that
        nothing is written.
        """

    def process_stream_part(self, part: StreamPart, result: TaskResult) -> TaskSteps:
        """Process one part of the stream. After an error, only the present file fails."""
        if not self._target.is_writer:
            return
        part_type, data, number, attributes = part
        try:
            if part_type in (BEGIN, BEGIN_SPARSE):
                self._create_file(data, number, result, is_hollow=part_type == BEGIN_SPARSE)
            elif part_type == DATA:
                self._write_data(data, number)
            elif part_type == END and attributes is not None:
                yield from self._complete_received_file(data, number, attributes, result)
            elif part_type == UNREADABLE and (self._new is not None or self._is_source_itself):
                self.abandon_incomplete_file()
                result.count(counts.FAILED)
                result.count(counts.FAILED_BYTES, self._size)
                result.count(counts.CHANGED, number)
        except OSError as error:
            self._fail_file(Problem.from_error("write", error), result)

    def _create_file(self, name: bytes, size: int, result: TaskResult, *, is_hollow: bool) -> None:
        """Begin the file ``name`` of ``size`` bytes: create a temporary file for it. ``is_hollow`` is True if it has
        holes. Raise ``Problem`` if that fails.
        """
        rank, target = self._rank, self._target
        self._name, self._size, self._is_sparse, self._is_source_itself = name, size, is_hollow, False
        result.count(counts.FOUND)
        result.count(counts.FOUND_BYTES, size)
        if target.problem is not None:
            raise target.problem
        if rank.number == 0 and name in rank.shared_instance(FilesToSend).existing_names:
            self._is_source_itself = True
            return
        self._new = NewFile.create_temporary_file(target.descriptor, rank.temporary_names.next_name())
        self._digest = SentDataDigest()

    def _write_data(self, data: bytes, at: int) -> None:
        """Write ``data`` at the offset ``at`` of the file. If the file has holes, pages of zeros are not written."""
        if self._new is None:
            return
        self._digest.update(data, at)
        with errors_as_problem("write"):
            for start, end in nonzero_ranges(data) if self._is_sparse else ((0, len(data)),):
                written = start
                while written < end:
                    written += os.pwrite(self._new.descriptor, memoryview(data)[written:end], at + written)
        self._rank.counters[counts.MOVED] += len(data)

    def _complete_received_file(
        self, digest: bytes, size: int, attributes: ItemMetadata, result: TaskResult
    ) -> TaskSteps:
        """Compare the digest of the data with ``digest``, which the sender has computed, apply the metadata, and rename
        the file to its final name. Raise ``Problem`` if any of that fails.
        """
        if self._is_source_itself:
            result.count(counts.SKIPPED)
            result.count(counts.SKIPPED_BYTES, size)
            return
        new = self._new
        if new is None:  # The file has failed before, and was counted then.
            return
        if self._digest.digest() != digest:
            raise Problem("read", 0, text="what has arrived is not what was read: its digest differs")
        options, fsync = self._rank.options, self._rank.program_options(BroadcastOptions).fsync
        if self._is_sparse:
            new.extend_to_size(size)
            if not fsync:
                yield from wait_until_file_is_stored(self._rank, new)
        inherits = has_default_acl(self._target.descriptor)
        self._rank.detect_times_set_on_close(self._target.descriptor, new.status.st_dev, result.notices)
        applied = new.apply_metadata(attributes, options.preserve, options.umask, inherits_acl=inherits)
        new.commit(self._name, sync=fsync, store=options.sync)
        self._new = None
        if new.metadata_problem is not None:
            raise new.metadata_problem
        result.count(counts.EXCUSED, applied.excused)
        path = os.path.join(self._target.path, self._name)
        result.notices.extend(f"{printable_path(path)}: {notice}, on {self._target.host}" for notice in applied.notices)
        result.report_unsupported_features(path, applied.unsupported)
        result.count(counts.FILES)
        result.count(counts.BYTES, size)

    def _fail_file(self, problem: Problem, result: TaskResult) -> None:
        """Count and report the present file as failed. The stream continues with the next file."""
        self.abandon_incomplete_file()
        result.count(counts.FAILED)
        result.count(counts.FAILED_BYTES, self._size)
        result.report_failure(
            os.path.join(self._target.path, self._name), problem_naming_host(problem, self._target.host)
        )

    def abandon_incomplete_file(self) -> None:
        """Remove the incomplete file if there is one."""
        new, self._new = self._new, None
        if new is not None:
            with suppress(OSError):
                new.__exit__(None, None, None)


def tree_neighbours(place: int, hosts: int) -> tuple[int, range]:
    """Return where a host is in the tree: the position of the host that sends to it (-1 for the first host), and the
    positions of those to which it sends.

    Args:
        place: position of a host in the list of all.
        hosts: number of all hosts.
    """
    fan_out = 1 if hosts <= MAX_CHAIN_LENGTH else 2
    parent = (place - 1) // fan_out if place else -1
    return parent, range(place * fan_out + 1, min(hosts, (place + 1) * fan_out + 1))


def is_same_file(name: bytes, directory: int, status: os.stat_result) -> bool:
    """Return True if ``name`` in the open ``directory`` (-1: there is none) is the file that has this ``status``."""
    if directory < 0:
        return False
    with suppress(OSError):
        return os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), status)
    return False


def nonzero_ranges(data: bytes) -> Iterator[tuple[int, int]]:
    """Generator: yield start and end of each range of ``data`` that contains other bytes than zeros, in whole pages.
    ``data`` begins at a page boundary.
    """
    start = -1
    for at in range(0, len(data), PAGE_BYTES):
        page = data[at : at + PAGE_BYTES]
        is_zero = page == _ZERO_PAGE[: len(page)]
        if is_zero and start >= 0:
            yield start, at
            start = -1
        elif not is_zero and start < 0:
            start = at
    if start >= 0:
        yield start, len(data)
