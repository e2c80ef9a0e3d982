"""Search for members in an archive: rank 0 divides the archive into spans (ranges that begin with a member), and all
ranks read the headers in these.

A *simple* member is a regular file whose headers state only name, mode, owner, mtime and size. The C backend finds
simple members; ``pcopy.archive.reader`` reads the others.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from pcopy.archive.incomplete import MORE_INCOMPLETE_TEXT
from pcopy.archive.index import INDEX_SUFFIX, ArchiveIndex
from pcopy.archive.member_search import member_offsets_by_quick_search
from pcopy.archive.reader import ArchiveDamage, FoundMember, read_archive_members
from pcopy.archive.records import NUMBER_LIMIT
from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.choose import backend_name
from pcopy.fsio.problem import Problem
from pcopy.tasks.archive.archive_file import stop_job_on_archive_error
from pcopy.tasks.archive.found_members import ITEMS_PER_SLICE, MemberRecordDistributor
from pcopy.tasks.archive.open_archive import OpenedArchive, owner_id
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.text import printable_path

if TYPE_CHECKING:
    from pcopy.fsio.backend.native_tar import SimpleTarMembers, TarHeaderParser

MIN_SPAN_MEMBERS = 256
"""Number of members at which a span is long enough for a task, provided that it has ``MIN_SPAN_BYTES``."""
MIN_SPAN_BYTES = 1 << 20
"""Bytes at which a span of ``MIN_SPAN_MEMBERS`` members is long enough for a task. With fewer members it is long enough
at four times as many.
"""
MAX_INDEXED_SPANS = 1 << 16
"""If an index has at most so many offsets, each of them begins a span; otherwise short spans are joined. ``ptar -c``
writes at most one offset for each MiB.
"""
ARCHIVE_END = 1 << 62
"""End of a span that extends to the end of the archive: greater than any offset."""
_HEADERS_ONLY_GAP = 64 << 10
"""Distance between two members, in bytes, from which on only headers are read, and not everything between them."""


class FindSpansToRead(TaskKind, code=142, doing="looking for members", is_note=False):
    """Task of rank 0: divide the archive into spans, by its index or by its headers, and spawn a ``ReadArchiveSpan``
    for each.
    """

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        _report_trailer_problems(rank, result)
        yield from spawn_span_tasks(rank, result, ReadArchiveSpan)


def _report_trailer_problems(rank: Rank, result: TaskResult) -> None:
    """Report as a failure if the list of incomplete files at the end of the archive is damaged, or does not contain all
    of them.
    """
    archive, problem = rank.shared_instance(OpenedArchive), None
    try:
        if archive.incomplete_file_names.has_more:
            problem = Problem("extract", 0, text=MORE_INCOMPLETE_TEXT)
    except Problem as met:
        problem = met
    if problem is not None:
        result.count(counts.FOUND)
        result.count(counts.FAILED)
        result.report_failure(rank.program_options(ArchiveOptions).archive_file, problem)


def spawn_span_tasks(rank: Rank, result: TaskResult, task_of: Callable[[int, int], TaskKind]) -> TaskSteps:
    """Divide the whole archive into spans (ranges that begin with a member), and spawn a task for each.
    ``task_of(start, end)`` returns the task for the span between these offsets.
    """
    archive = rank.shared_instance(OpenedArchive)
    index = None
    try:
        index = archive.contents_of_archive.read_index()
    except ValueError as error:
        path = printable_path(rank.program_options(ArchiveOptions).archive_file + INDEX_SUFFIX)
        result.notices.append(f"{path}: is not used: {error}; all headers are read instead: remove that file")
    except Problem as problem:
        stop_job_on_archive_error(rank, "read", problem)
        return
    if index is not None:
        yield from _spawn_indexed_spans(index, result, task_of)
        return
    start, number = 0, 0
    try:
        for offset in member_offsets_by_quick_search(archive.read, in_c=rank.shared_instance(SimpleMemberFinder).in_c):
            number += 1
            # At a global header, an old sparse file or damage only one reader can continue, so the rest is one span.
            if offset is None:
                break
            if offset - start >= (MIN_SPAN_BYTES if number >= MIN_SPAN_MEMBERS else 4 * MIN_SPAN_BYTES):
                result.spawn_task(task_of(start, offset), offset - start)
                start, number = offset, 0
            if not number % ITEMS_PER_SLICE:
                yield None
    except Problem:  # the task that reads the last span meets the same error, and reports it
        pass
    result.spawn_task(task_of(start, ARCHIVE_END), MIN_SPAN_BYTES)


def _spawn_indexed_spans(known: ArchiveIndex, result: TaskResult, task_of: Callable[[int, int], TaskKind]) -> TaskSteps:
    """Spawn a task for each span (range that begins with a member) between the offsets in the index ``known``. If it
    has more than ``MAX_INDEXED_SPANS`` offsets, short spans are joined. ``task_of(start, end)`` returns the task for a
    span.
    """
    start, least = 0, MIN_SPAN_BYTES if len(known.offsets) > MAX_INDEXED_SPANS else 1
    for number, point in enumerate(chain(known.offsets, [known.end])):
        if point - start >= (1 if point == known.end else least):
            result.spawn_task(task_of(start, point), point - start)
            start = point
        if not number % ITEMS_PER_SLICE:
            yield None
    result.spawn_task(task_of(known.end, ARCHIVE_END), CALL_COST)


class ReadArchiveSpan(TaskKind, code=143, doing="reading headers", is_note=False):
    """Task that reads the headers of the members that begin at the offset ``start`` or later, and before ``end``."""

    start: int
    end: int

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        sorting = MemberRecordDistributor(rank, result)
        yield from read_span_headers(rank, sorting, self.start, self.end)
        sorting.send_records()


class SpanMemberConsumer(Protocol):
    """Protocol of an object that receives the members of a span (a range of the archive) from the code that reads their
    headers.

    ``handle_member`` receives one member, ``handle_simple_members`` simple members that the C backend has found, and
    ``handle_archive_damage`` a damaged place of the archive.
    """

    takes_simple: bool
    """True if this object can receive simple members (``handle_simple_members``) that the C backend finds; otherwise
    each member is passed to ``handle_member``.
    """
    items_per_slice: int
    """Number of members after which a task yields to other work."""

    def handle_simple_members(self, found: SimpleTarMembers) -> None: ...

    def handle_archive_damage(self, damage: ArchiveDamage) -> None: ...

    def handle_member(self, found: FoundMember) -> bool:
        """Receive one member. Return True if it is a simple one (a regular file whose headers state only name, mode,
        owner, mtime and size), so that the C backend may find the next ones.
        """


def read_span_headers(rank: Rank, consumer: SpanMemberConsumer, start: int, end: int) -> TaskSteps:
    """Read the headers of the members that begin at ``start`` or later, and before ``end``, and pass the members to
    ``consumer``. An error of reading is passed on as a damaged place.
    """
    last = None if end == ARCHIVE_END else end
    span = ArchiveSpanReader(rank, consumer, start, last)
    try:
        yield from span.read()
        if last is not None and span.at not in (last, -1):
            text = f"members from byte {start:,} on end at byte {span.at:,}, not where the index says: remove the index"
            consumer.handle_archive_damage(ArchiveDamage(start, b"", text))
        if last is not None and span.global_records:  # ptar writes no index with offsets behind a global header
            text = (
                "there is a global header here; with an index it is not applied to all later members: remove the index"
            )
            consumer.handle_archive_damage(ArchiveDamage(start, b"", text))
    except Problem as problem:
        rest = "what follows" if last is None else f"what follows up to byte {last:,}"
        consumer.handle_archive_damage(ArchiveDamage(span.at, b"", f"{problem.strerror}; {rest} is not read"))


class ArchiveSpanReader:
    """Reads the headers of the members in one span (a range of the archive), and passes the members to a
    ``SpanMemberConsumer``.

    The C backend, if it is available, finds simple members that stand one behind the other. ``pcopy.archive.reader``
    reads the members in between, up to the next simple one.
    """

    def __init__(self, rank: Rank, consumer: SpanMemberConsumer, start: int, end: int | None) -> None:
        self._archive, self._consumer = rank.shared_instance(OpenedArchive), consumer
        self._end, self._last = end, ARCHIVE_END if end is None else end
        self._headers = rank.shared_instance(SimpleMemberFinder).in_c if consumer.takes_simple else None
        self._window, self._opened = b"", start
        self._most_extents = rank.program_options(ArchiveOptions).sparse_limit or NUMBER_LIMIT
        self._is_dense = end is not None and end - start <= 2 * MIN_SPAN_BYTES
        self.at = start
        """The offset at which the next member begins; -1 after damage."""
        self.global_records: dict[bytes, bytes] = {}
        """The records of the global pax headers in the span."""

    def read(self) -> TaskSteps:
        """Read the span. Raise ``Problem`` if the archive cannot be read."""
        may_be_simple = self._headers is not None
        if not may_be_simple:
            yield from self._read_members_in_python(until_simple=False)
        while may_be_simple and self.at < self._last:
            yield from self._find_simple_members()
            may_be_simple = self.at < self._last and (yield from self._read_members_in_python(until_simple=True))

    def _find_simple_members(self) -> TaskSteps:
        """Let the C backend find simple members (regular files whose headers state only name, mode, owner, mtime and
        size), up to one that is not simple or to the end of the span.
        """
        headers = self._headers
        assert headers is not None
        if not self._opened <= self.at < self._opened + len(self._window):
            self._fill_read_buffer()
        while True:
            found = headers.parse_members(self._window, self._opened, self.at, self._last)
            self._consumer.handle_simple_members(found)
            self.at = found.next_offset
            if not found.needs_more_data or found.next_offset == self._opened or found.next_offset >= self._last:
                return
            self._fill_read_buffer()
            yield None

    def _fill_read_buffer(self) -> None:
        """Read some bytes of the archive from ``at`` on into memory: many if members are close together,
        otherwise few.
        """
        window_end = self._opened + len(self._window)
        is_near = self._is_dense if not self._window else self.at - window_end < _HEADERS_ONLY_GAP
        self._window = self._archive.read(
            self.at, min(MIN_SPAN_BYTES if is_near else _HEADERS_ONLY_GAP, self._last - self.at)
        )
        self._opened = self.at

    def _read_members_in_python(self, *, until_simple: bool) -> TicketGenerator[bool]:
        """Read members with ``pcopy.archive.reader``. Return True if the C backend may find the next ones.

        With ``until_simple``, stop after a simple member, unless there was damage or a global header.
        """
        has_damage = False
        found = read_archive_members(
            self._read_bytes, owner_id, self.at, self._end, self.global_records, self._most_extents
        )
        for number, each in enumerate(found):
            if isinstance(each, ArchiveDamage):
                self._consumer.handle_archive_damage(each)
                self.at, has_damage = -1, True
            else:
                self.at = each.next
                if self._consumer.handle_member(each) and until_simple and not has_damage and not self.global_records:
                    return True
            if number % self._consumer.items_per_slice == self._consumer.items_per_slice - 1:
                yield None
        return False

    def _read_bytes(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of the archive from ``offset`` on. If the part of the archive that was read last
        contains them, nothing is read.
        """
        at = offset - self._opened
        if 0 <= at <= len(self._window) - size:
            return self._window[at : at + size]
        return self._archive.read(offset, size)


class SimpleMemberFinder:
    """The C functions that find simple members (regular files whose headers state only name, mode, owner, mtime and
    size). ``in_c`` is None if the C backend is not available. One object per rank.
    """

    def __init__(self, rank: Rank) -> None:
        self.in_c: TarHeaderParser | None = None
        if backend_name() == "c":
            from pcopy.fsio.backend.native_tar import TarHeaderParser

            self.in_c = TarHeaderParser(None if rank.program_options(ArchiveOptions).numeric_owner else owner_id)
