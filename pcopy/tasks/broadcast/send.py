"""Tasks that send files as a stream of pieces, from rank 0 along a tree of the hosts' first ranks.

Rank 0 reads a piece when all hosts to which it sends can accept one more. Each host writes a piece and forwards it
while the next one arrives. It acknowledges pieces that it has forwarded to the host from which they came. So at most
``WINDOW`` pieces are under way between two hosts, and a slow host slows the stream down instead of filling memory.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from pcopy import libc
from pcopy.fsio.attributes import Attributes, has_default_acl, read_attributes
from pcopy.fsio.close import let_go
from pcopy.fsio.contents import data_extents, has_holes
from pcopy.fsio.kernel.interface import Cancelled
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem, changed, failing
from pcopy.fsio.source import Version, open_to_read, status_of
from pcopy.signature.algorithms import DEFAULT_ALGORITHM, Hasher, algorithm
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Kind, Note, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.storing import stored
from pcopy.tasks.broadcast.directory import HostDirectory, on_host
from pcopy.text import shown

PIECE = 1 << 20
"""Bytes of contents in one piece; small files are packed together."""

MOST_PARTS = 256
"""Maximum number of parts in a piece, as for some hundred small files."""

KEPT = 64 << 20
"""Bytes of freed memory that a rank does not return to the system, since packing and unpacking pieces needs
it again.
"""

WINDOW = 16
"""Maximum number of pieces under way from one host to the next: enough to cover the time until an acknowledgement
arrives.
"""

CHAIN = 32
"""Maximum number of hosts that form a chain.

In a chain each host sends once, so that a large file takes no longer than to a single host. With more hosts, the delay
until the last host matters more: then each host sends to two.
"""

PAGE = 4096
"""Size in bytes of the smallest hole that is kept."""
_ZEROS = bytes(PAGE)

BEGIN, HOLLOW, DATA, END, CUT = range(5)
"""Types of parts: a file begins (HOLLOW: one with holes), contents (DATA), the file is complete (END), the file cannot
be read (CUT).
"""

Part = tuple[int, bytes, int, Attributes | None]
"""Type of a part: its type; bytes (name, contents or digest); a number (size or offset); with END the metadata of the
file.
"""


class Outgoing:
    """The files on rank 0 that are sent, read in their order and divided into parts."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.paths: tuple[bytes, ...] = ()
        self._parts: Iterator[Part] | None = None
        self._result: Result | None = None
        self._descriptor = -1
        self.in_place: set[bytes] = set()
        """Names of files that are in the target directory of this host already, since the source is that very file."""

    def piece(self, result: Result) -> tuple[tuple[Part, ...], bool]:
        """Return the next parts, and True if they are the last ones."""
        if self._parts is None:
            self._parts = self._all()
        self._result = result
        parts: list[Part] = []
        size = 0
        for part in self._parts:
            parts.append(part)
            if part[0] == DATA:
                size += len(part[1])
                self._rank.throttle.bytes.take(len(part[1]))  # The task waits for this before the next piece.
            if size >= self._piece or len(parts) >= MOST_PARTS:
                return tuple(parts), False
        return tuple(parts), True

    def _all(self) -> Iterator[Part]:
        """Yield the parts of all files. A file that cannot be read is reported and ends with a CUT part."""
        directory = self._rank.own(HostDirectory).descriptor
        for path in self.paths:
            name = os.path.basename(path)
            has_begun = False
            try:
                with failing("open", on_source=True):
                    self._descriptor = open_to_read(None, path, follow=True)
                status = status_of(self._descriptor, on_source=True)
                if not stat.S_ISREG(status.st_mode):
                    raise changed("open", "it is no regular file any more")
                has_begun = True
                if is_called(name, directory, status):
                    self.in_place.add(name)
                yield HOLLOW if has_holes(status) else BEGIN, name, status.st_size, None
                yield from self._contents(status)
            except Problem as problem:
                if not has_begun:
                    yield BEGIN, name, 0, None
                assert self._result is not None
                self._result.report(path, problem)
                yield CUT, b"", int(problem.changed), None
            finally:
                self.close()

    def _contents(self, status: os.stat_result) -> Iterator[Part]:
        """Yield the DATA parts and the END part of the open file.

        Raise ``Problem`` if the file cannot be read, or has changed since it was opened.
        """
        size, digest = status.st_size, SentDigest()
        for start, end in data_extents(self._descriptor, 0, size) if has_holes(status) else ((0, size),):
            at = start
            while at < end:
                with failing("read", on_source=True):
                    data = os.pread(self._descriptor, min(self._piece, end - at), at)
                if not data:
                    raise changed("read", "the file became shorter while it was read")
                digest.update(data, at)
                yield DATA, data, at, None
                at += len(data)
        attributes = read_attributes(self._descriptor, status, self._rank.options.preserve)
        if Version.of(status_of(self._descriptor, on_source=True)) != Version.of(status):
            raise changed("read", "the file changed while it was read")
        yield END, digest.value(), size, attributes

    @property
    def _piece(self) -> int:
        """Maximum number of bytes of contents in a piece; smaller if the bandwidth is limited."""
        return self._rank.throttle.piece(PIECE)

    def close(self) -> None:
        """Close the file that is being read. May be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            let_go(descriptor)


class SentDigest:
    """Digest of the data of one file as it is sent. Holes are not sent; the offset of the data after a hole is digested
    instead.
    """

    def __init__(self) -> None:
        self._hasher: Hasher = algorithm(DEFAULT_ALGORITHM).new()
        self._at = 0

    def update(self, data: bytes, at: int) -> None:
        if at != self._at:
            self._hasher.update(b"%d" % at)
        self._hasher.update(data)
        self._at = at + len(data)

    def value(self) -> bytes:
        return self._hasher.digest()


class Send(Kind, code=162, doing="reading files and sending them", is_note=False):
    """Reads a piece and sends it, then spawns itself for the next one. ``paths`` are given the first time only."""

    paths: tuple[bytes, ...]

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        stream, source = rank.own(Stream), rank.own(Outgoing)
        if self.paths:
            source.paths = self.paths
        while stream.is_full:
            credit = Credit(stream)
            yield credit
            if credit.is_cancelled:
                raise Cancelled
        parts, is_last = source.piece(result)
        if parts:
            yield from stream.take(parts, result)
        if not is_last:
            result.spawn(Send(()), owner=0)


class Piece(Note, code=163, doing="writing files and forwarding them"):
    """Delivers parts of the stream, in their order, to a host."""

    parts: tuple[tuple[int, bytes, int, Attributes | None], ...]

    may_be_dropped = True

    def run(self, rank: Rank, result: Result) -> Steps:
        return rank.own(Stream).take(self.parts, result)


class Passed(Note, code=164, doing="acknowledging pieces of the stream"):
    """Reports that the rank ``child`` has forwarded ``number`` more pieces."""

    child: int
    number: int

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(Stream).passed(self.child, self.number, result)


class Credit:
    """A ticket (``pcopy.engine.ticket.Ticket``) that is done when one more piece may be sent."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        return self.is_cancelled or not self._stream.is_full

    def cancel(self) -> None:
        self.is_cancelled = True


class Stream:
    """The work of one host in the tree: write what arrives, and forward it. All hosts have looked for probe files when
    it is created.
    """

    def __init__(self, rank: Rank) -> None:
        place = rank.leaders.index(rank.number)
        parent_place, child_places = place_in_tree(place, len(rank.leaders))
        if len(rank.leaders) > 1:
            libc.keep_freed_memory(KEPT)
        rank.own(HostDirectory).unshow()
        self._rank = rank
        self._writing = Writing(rank)
        self._parent = rank.leaders[parent_place] if place else -1
        self._under_way = {rank.leaders[each]: 0 for each in child_places}
        """Number of pieces under way to each rank to which this one sends."""
        self._waiting: deque[tuple[Part, ...]] = deque()
        """Pieces that were written and not forwarded yet."""
        self._untold = 0
        """Number of forwarded pieces that were not acknowledged yet."""

    @property
    def is_full(self) -> bool:
        """True if one of the hosts to which this one sends cannot accept another piece."""
        return any(number >= WINDOW for number in self._under_way.values())

    def take(self, parts: tuple[Part, ...], result: Result) -> Steps:
        """Write the parts and forward them."""
        for part in parts:
            yield from self._writing.take(part, result)
        self._waiting.append(parts)
        self._pass_on(result)

    def passed(self, child: int, number: int, result: Result) -> None:
        """Record that ``child`` has forwarded pieces, and send it more."""
        self._under_way[child] -= number
        self._pass_on(result)

    def _pass_on(self, result: Result) -> None:
        """Forward pieces while all receivers can accept them, and acknowledge forwarded pieces, several at a time."""
        while self._waiting and not self.is_full:
            parts = self._waiting.popleft()
            for child in self._under_way:
                result.spawn(Piece(parts), owner=child)
                self._under_way[child] += 1
            self._untold += 1
        if self._parent >= 0 and self._untold >= WINDOW // 4:
            result.spawn(Passed(self._rank.number, self._untold), owner=self._parent)
            self._untold = 0

    def close(self) -> None:
        """Remove an incomplete file. May be called again."""
        self._writing.abandon()


class Writing:
    """The file that is being written on this host."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._target = rank.own(HostDirectory)
        self._new: NewFile | None = None
        self._digest = SentDigest()
        self._name = b""
        self._size = 0
        self._is_hollow = self._stays = False
        """True if the file is the source itself, which is skipped."""
        """True if the file has holes."""

    def take(self, part: Part, result: Result) -> Steps:
        """Process one part. An error fails the current file only."""
        if not self._target.is_written:
            return
        part_type, data, number, attributes = part
        try:
            if part_type in (BEGIN, HOLLOW):
                self._begin(data, number, result, is_hollow=part_type == HOLLOW)
            elif part_type == DATA:
                self._write(data, number)
            elif part_type == END and attributes is not None:
                yield from self._end(data, number, attributes, result)
            elif part_type == CUT and (self._new is not None or self._stays):
                self.abandon()
                result.count(counts.FAILED)
                result.count(counts.FAILED_BYTES, self._size)
                result.count(counts.CHANGED, number)
        except OSError as error:
            self._fail(Problem.of("write", error), result)

    def _begin(self, name: bytes, size: int, result: Result, *, is_hollow: bool) -> None:
        """Create a temporary file. Raise ``Problem`` if that fails."""
        rank, target = self._rank, self._target
        self._name, self._size, self._is_hollow, self._stays = name, size, is_hollow, False
        result.count(counts.FOUND)
        result.count(counts.FOUND_BYTES, size)
        if target.problem is not None:
            raise target.problem
        if rank.number == 0 and name in rank.own(Outgoing).in_place:
            self._stays = True
            return
        self._new = NewFile.beside(target.descriptor, rank.temporary_names.next())
        self._digest = SentDigest()

    def _write(self, data: bytes, at: int) -> None:
        """Write the data at the offset ``at``, without pages of zeros if the file has holes."""
        if self._new is None:
            return
        self._digest.update(data, at)
        with failing("write"):
            for start, end in filled(data) if self._is_hollow else ((0, len(data)),):
                written = start
                while written < end:
                    written += os.pwrite(self._new.descriptor, memoryview(data)[written:end], at + written)
        self._rank.counters[counts.MOVED] += len(data)

    def _end(self, digest: bytes, size: int, attributes: Attributes, result: Result) -> Steps:
        """Compare the digest, apply the metadata, and rename the file to its final name. Raise ``Problem`` if one
        fails.
        """
        if self._stays:
            result.count(counts.SKIPPED)
            result.count(counts.SKIPPED_BYTES, size)
            return
        new = self._new
        if new is None:  # It has failed before, and was counted.
            return
        if self._digest.value() != digest:
            raise Problem("read", 0, text="what has arrived is not what was read: its digest differs")
        options = self._rank.options
        if self._is_hollow:
            new.extend(size)
            if not options.fsync:
                yield from stored(self._rank, new)
        inherits = has_default_acl(self._target.descriptor)
        self._rank.learn_times(self._target.descriptor, new.status.st_dev, result.notices)
        applied = new.dress(attributes, options.preserve, options.umask, inherits=inherits)
        new.commit(self._name, sync=options.fsync, store=options.sync)
        self._new = None
        if new.shortcoming is not None:
            raise new.shortcoming
        result.count(counts.EXCUSED, applied.excused)
        path = os.path.join(self._target.path, self._name)
        result.notices.extend(f"{shown(path)}: {notice}, on {self._target.host}" for notice in applied.notices)
        result.unsupported(path, applied.unknown)
        result.count(counts.FILES)
        result.count(counts.BYTES, size)

    def _fail(self, problem: Problem, result: Result) -> None:
        """Count and report the current file as failed, and continue with the next one."""
        self.abandon()
        result.count(counts.FAILED)
        result.count(counts.FAILED_BYTES, self._size)
        result.report(os.path.join(self._target.path, self._name), on_host(problem, self._target.host))

    def abandon(self) -> None:
        """Remove the incomplete file."""
        new, self._new = self._new, None
        if new is not None:
            with suppress(OSError):
                new.__exit__(None, None, None)


def place_in_tree(place: int, hosts: int) -> tuple[int, range]:
    """Return the position of the host that sends to the host at ``place`` (-1 for the first one), and the positions of
    those to which it sends.
    """
    fan_out = 1 if hosts <= CHAIN else 2
    parent = (place - 1) // fan_out if place else -1
    return parent, range(place * fan_out + 1, min(hosts, (place + 1) * fan_out + 1))


def is_called(name: bytes, directory: int, status: os.stat_result) -> bool:
    """True if ``name`` in an open directory (-1: none) is the same file as that with this status."""
    if directory < 0:
        return False
    with suppress(OSError):
        return os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), status)
    return False


def filled(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the ranges of ``data`` whose pages are not all zeros. ``data`` begins at a page
    boundary.
    """
    start = -1
    for at in range(0, len(data), PAGE):
        page = data[at : at + PAGE]
        is_zero = page == _ZEROS[: len(page)]
        if is_zero and start >= 0:
            yield start, at
            start = -1
        elif not is_zero and start < 0:
            start = at
    if start >= 0:
        yield start, len(data)
