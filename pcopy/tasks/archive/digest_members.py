"""Digests of the members of an archive, for ``ptar -t --signature``. All ranks read and digest members; rank 0 collects
the digests.

Each member becomes a record (key and value) whose key is its offset in the archive. So does each damaged place. Rank 0
sorts the records and reports the members in the order of the archive.
"""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any

from pcopy.archive.member import FILE, HARD_LINK_MEMBER, ArchiveMember, Extents
from pcopy.archive.reader import ArchiveDamage, FoundMember, ReadFunction
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.problem import PackedProblem, Problem
from pcopy.fsio.throttle import throttled_steps
from pcopy.signature.items import FILE as FILE_TYPE
from pcopy.signature.sorting import ExternalSorter, SortRecord
from pcopy.tasks.archive.member_digests import READ_SIZE, ItemAfterExtraction, MemberDigester
from pcopy.tasks.archive.open_archive import OpenedArchive, ReadAheadBuffer
from pcopy.tasks.archive.read_headers import read_span_headers, spawn_span_tasks
from pcopy.tasks.archive.wanted_names import WantedNamesOnRank
from pcopy.tasks.base import counts
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.ledger import CompletionLedger, ObjectAwaitingParts
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult

if TYPE_CHECKING:
    from pcopy.fsio.backend.native_tar import SimpleTarMembers


class DigestedMember(NamedTuple):
    """A member of the archive, and the item that its extraction would create, with the digest of this item.

    ``item`` is None for a hard link, and if the member could not be read; ``problem`` is then the text of the error.
    """

    found: FoundMember
    item: ItemAfterExtraction | None
    problem: str = ""

    @property
    def record_for_sorting(self) -> SortRecord:
        """The record to be sorted: its key is the offset of the member in the archive."""
        found, item = self.found, None if self.item is None else (*self.item,)
        member: tuple[Any, ...] = tuple(found.member._replace(xattrs=(), extents=None))
        return _archive_offset_key(found.offset), marshal.dumps(
            (found.offset, member, (*found[2:],), item, self.problem)
        )


def _archive_offset_key(at: int) -> bytes:
    """Return the key of a record for the offset ``at`` of the archive. Keys sort like offsets."""
    return b"%016x" % at


def unpack_digested_member(value: bytes) -> DigestedMember | ArchiveDamage:
    """Return the digested member, or the damaged place of the archive, that the value of a record holds."""
    fields = marshal.loads(value)
    if len(fields) == len(ArchiveDamage._fields):
        return ArchiveDamage(*fields)
    offset, member, others, item, problem = fields
    whole = FoundMember(offset, ArchiveMember(*member), *others)
    return DigestedMember(whole, None if item is None else ItemAfterExtraction(*item), problem)


class FindSpansToDigest(TaskKind, code=182, doing="looking for members", is_note=False):
    """Task of rank 0: divide the archive into spans (ranges of bytes with some members each), and spawn a
    ``DigestArchiveSpan`` for each.
    """

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        yield from spawn_span_tasks(rank, result, DigestArchiveSpan)


class DigestArchiveSpan(TaskKind, code=183, doing="reading members", is_note=False):
    """Task that reads and digests the members that begin at the offset ``start`` or later, and before ``end``."""

    start: int
    end: int

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        digesting = ArchiveSpanDigester(rank, result)
        for step in read_span_headers(rank, digesting, self.start, self.end):
            yield from rank.throttle.wait_for_tokens()
            yield step
        digesting.send_records()


class ArchiveSpanDigester:
    """Digests the members of one span of the archive (a range of bytes with some members), and sends the digests to
    rank 0.

    It is a ``pcopy.tasks.archive.read_headers.SpanMemberConsumer``: the code that reads the headers passes each member
    to it.
    """

    takes_simple = False
    items_per_slice = 1  # to read the contents of one member takes long enough

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        self._rank, self._result = rank, result
        self._digests = make_member_digester(rank, ReadAheadBuffer(rank.shared_instance(OpenedArchive).read).read)
        self._wanted, self._selected = rank.shared_instance(WantedNamesOnRank), rank.shared_instance(JobFilter)
        self._records: list[SortRecord] = []

    def handle_simple_members(self, found: SimpleTarMembers) -> None:
        """Raise ``NotImplementedError``. The reader of the headers calls this only if ``takes_simple`` is true, which
        it is not.
        """
        raise NotImplementedError

    def handle_archive_damage(self, damage: ArchiveDamage) -> None:
        """Count a damaged place of the archive as failed, and add it to the records for rank 0, which reports it."""
        self._result.count(counts.FOUND)
        self._result.count(counts.FAILED)
        self._records.append((_archive_offset_key(damage.offset), marshal.dumps(tuple(damage))))

    def handle_member(self, found: FoundMember) -> bool:
        """Digest the member ``found``, or spawn tasks that digest it in parts if it is large.

        Return False: the C backend is not to look for simple members after it, since each member must be digested here.
        """
        member, result, excluded = found.member, self._result, self._wanted.excluded_count
        if not self._wanted.is_wanted_and_selected(member, self._selected):
            result.count(counts.EXCLUDED, self._wanted.excluded_count - excluded)
            return False
        result.count(counts.FOUND)
        result.count(counts.FOUND_BYTES, member.size)
        if member.kind == FILE and found.stored > READ_SIZE:
            spawn_digest_parts(self._rank, result, found)
            return False
        item, problem = None, ""
        try:
            item = None if member.kind == HARD_LINK_MEMBER else self._digests.item_with_digest(found)
        except Problem as met:
            problem = f"{met.operation}: {met.strerror}"
        self._rank.throttle.bytes.take_tokens(
            found.stored
        )  # ``DigestArchiveSpan`` waits for the throttle before the next member
        self._rank.counters[counts.MOVED] += found.stored
        self._records.append(_count_digested(result, DigestedMember(found, item, problem)))
        return False

    def send_records(self) -> None:
        """Send the digests of the span to rank 0."""
        self._wanted.send_found_names(self._result)
        if self._records:
            self._result.spawn_task(DigestedMembersNote(marshal.dumps(self._records)), owner=0)


def _count_digested(result: TaskResult, digested: DigestedMember) -> SortRecord:
    """Count the member ``digested`` as read, or as failed if it could not be read. Return its record, which is sent to
    rank 0.
    """
    size = digested.found.member.size
    if digested.problem:
        result.count(counts.FAILED)
        result.count(counts.FAILED_BYTES, size)
    else:
        result.count(counts.FILES)
        result.count(counts.BYTES, size)
    return digested.record_for_sorting


def make_member_digester(rank: Rank, read: ReadFunction) -> MemberDigester:
    """Return an object that computes the digests of members; it reads the archive with ``read``."""
    return MemberDigester(read, rank.job_item_hasher.algorithm, rank.job_item_hasher.block_size)


def spawn_digest_parts(rank: Rank, result: TaskResult, found: FoundMember) -> None:
    """Spawn tasks by which any ranks digest a large member in parts (a sparse file as one part). This rank waits until
    all parts are digested.
    """
    member = found.member
    chunk = (
        rank.chunk_size_of_file(member.size)
        if member.extents is None and rank.is_processed_in_chunks(member.size)
        else member.size
    )
    starts = range(0, member.size, chunk)
    rank.shared_instance(MembersBeingDigested).open(
        found.offset, MemberBeingDigested(found, [b""] * len(starts)), len(starts), result
    )
    for part, start in enumerate(starts):
        size = min(chunk, member.size - start)
        task = DigestMemberPart(
            found.offset, part, found.data + start, size, _pack_extents(member.extents), rank.number
        )
        result.spawn_task(task, size)


def _pack_extents(extents: Extents | None) -> bytes:
    """Return the ``extents`` of a sparse file (the ranges that hold data) as bytes. None, for a file that is not
    sparse, is packed, too.
    """
    return marshal.dumps(None if extents is None else extents.as_bytes)


class DigestMemberPart(TaskKind, code=184, doing="reading a part of a member", is_note=False):
    """Task that digests one part of a large member.

    Fields:
      at: the offset in the archive at which the headers of the member begin; it identifies the member.
      part: the number of the part.
      data: the offset in the archive at which the contents of the part begin.
      size: the bytes of the part, holes included.
      extents: the extents of a sparse file, packed.
      coordinator: the rank that waits for all parts of the member.
    """

    at: int
    part: int
    data: int
    size: int
    extents: bytes
    coordinator: int

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        hasher, failure, root = rank.job_item_hasher.new_hasher(), None, b""
        packed = marshal.loads(self.extents)
        extents = None if packed is None else Extents.from_bytes(packed)
        digests = make_member_digester(rank, rank.shared_instance(OpenedArchive).read_exactly)
        try:
            for moved in throttled_steps(digests.hash_contents(hasher, self.data, self.size, extents), rank.throttle):
                rank.counters[counts.MOVED] += moved
                yield None
            root = hasher.root()
        except Problem as problem:
            failure = problem.problem_as_tuple
        result.spawn_task(PartDigestedNote(self.at, self.part, failure, root), owner=self.coordinator)


class MemberBeingDigested(NamedTuple):
    """A member that is digested in parts. ``roots`` are the content roots (digests of the contents) of its parts; empty
    for a part that is not done.
    """

    found: FoundMember
    roots: list[bytes]


class PartDigestedNote(TaskWithoutDirectory, code=185, doing="recording a part of a member"):
    """Message to the rank that waits for the parts of the member at the offset ``at``: the part number ``part`` is
    digested (``root`` is the digest of its contents), or could not be read (``problem``).
    """

    at: int
    part: int
    problem: PackedProblem | None
    root: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(MembersBeingDigested).count_part(self.at, self, result)


class MembersBeingDigested(CompletionLedger[int, MemberBeingDigested, PartDigestedNote]):
    """The members that this rank has divided into parts, by their offsets in the archive."""

    def record_part_result(self, awaited: ObjectAwaitingParts[MemberBeingDigested], note: PartDigestedNote) -> None:
        """Record the result of one part, which ``note`` contains, for the member ``awaited``: its digest, and its error
        if no other part has failed before.
        """
        awaited.opened.roots[note.part] = note.root
        if note.problem is not None and awaited.problem is None:
            awaited.problem = Problem.from_packed_tuple(note.problem)

    def complete_awaited_object(self, awaited: ObjectAwaitingParts[MemberBeingDigested], result: TaskResult) -> None:
        """After the last part of the member ``awaited``: compute its digest from those of its parts, and send its
        record to rank 0.
        """
        rank, (found, roots) = self._rank, awaited.opened
        size, item, problem = found.member.size, None, ""
        if awaited.problem is not None:
            problem = f"{awaited.problem.operation}: {awaited.problem.strerror}"
        else:
            item = ItemAfterExtraction(found.data, FILE_TYPE, size, rank.job_item_hasher.digest_of_chunks(size, roots))
        record = _count_digested(result, DigestedMember(found, item, problem))
        result.spawn_task(DigestedMembersNote(marshal.dumps([record])), owner=0)


class DigestedMembersNote(TaskWithoutDirectory, code=186, doing="recording members"):
    """Message to rank 0, which reports the results: packed records of digested members and damaged places."""

    records: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(DigestedMembers).records.extend(marshal.loads(self.records))


class DigestedMembers:
    """On rank 0: the records of all members and damaged places, sorted by offset."""

    def __init__(self, rank: Rank) -> None:
        self.records = ExternalSorter(rank.open_spool)

    def close(self) -> None:
        """Close the sorter and its temporary file."""
        self.records.close()
