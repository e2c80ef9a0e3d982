"""Digests of the members of an archive, for ``ptar -t --signature``: all ranks read and digest members, rank 0 collects
them.

Each member becomes a record whose key is its offset in the archive; so does each damaged place. Rank 0 sorts the
records and reports the members in the order of the archive.
"""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any

from pcopy.archive.member import FILE, LINK, Extents, Member
from pcopy.archive.reader import Damage, FoundMember, Read
from pcopy.fsio.problem import Plain, Problem
from pcopy.fsio.throttle import throttled
from pcopy.named import NamedTuple
from pcopy.signature.items import FILE as FILE_TYPE
from pcopy.signature.sorting import ExternalSorter, KeyValue
from pcopy.tasks.archive.member_digests import PIECE, ItemInArchive, MemberDigests
from pcopy.tasks.archive.opened import Ahead, OpenArchive
from pcopy.tasks.archive.read_headers import find_spans, read_span
from pcopy.tasks.archive.wanted_names import WantedOfRank
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Kind, Note, Steps
from pcopy.tasks.base.ledger import Awaited, Ledger
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.selected import Selected

if TYPE_CHECKING:
    from pcopy.fsio.kernel.native_tar import PlainMembers


class DigestedMember(NamedTuple):
    """A member, and the item that it would be extracted as.

    ``item`` is None for a hard link, and if ``problem``, the text of an error, is not empty.
    """

    found: FoundMember
    item: ItemInArchive | None
    problem: str = ""

    @property
    def record(self) -> KeyValue:
        """The record to be sorted: its key is the offset of the member in the archive."""
        found, item = self.found, None if self.item is None else (*self.item,)
        member: tuple[Any, ...] = tuple(found.member._replace(xattrs=(), extents=None))
        return _key(found.offset), marshal.dumps((found.offset, member, (*found[2:],), item, self.problem))


def _key(at: int) -> bytes:
    """Return the key of the record for the offset ``at`` of the archive."""
    return b"%016x" % at


def unpacked(value: bytes) -> DigestedMember | Damage:
    """Return the digested member, or the damage, that the value of a record holds."""
    fields = marshal.loads(value)
    if len(fields) == len(Damage._fields):
        return Damage(*fields)
    offset, member, others, item, problem = fields
    whole = FoundMember(offset, Member(*member), *others)
    return DigestedMember(whole, None if item is None else ItemInArchive(*item), problem)


class FindMembers(Kind, code=182, doing="looking for members", is_note=False):
    """Task of rank 0: divide an archive whose members are to be digested into spans, and spawn a ``DigestSpan`` for
    each.

    It is to ``DigestSpan`` what ``ReadHeaders`` is to ``ReadSpan``.
    """

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        yield from find_spans(rank, result, DigestSpan)


class DigestSpan(Kind, code=183, doing="reading members", is_note=False):
    """Task that reads and digests the members that begin at the offset ``start`` or later, and before ``end``."""

    start: int
    end: int

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        digesting = SpanDigests(rank, result)
        for step in read_span(rank, digesting, self.start, self.end):
            yield from rank.throttle.naps()
            yield step
        digesting.end()


class SpanDigests:
    """Consumer of the members of a span, which it digests.

    It implements ``pcopy.tasks.archive.read_headers.Sorter``.
    """

    takes_plain = False
    items_per_slice = 1  # reading the contents of one member takes long enough for a slice

    def __init__(self, rank: Rank, result: Result) -> None:
        self._rank, self._result = rank, result
        self._digests = digests_of(rank, Ahead(rank.own(OpenArchive).read).read)
        self._wanted, self._selected = rank.own(WantedOfRank), rank.own(Selected)
        self._records: list[KeyValue] = []

    def take_plain(self, found: PlainMembers) -> None:
        """Raise ``NotImplementedError``: ``takes_plain`` is false, so this is never called."""
        raise NotImplementedError

    def damaged(self, damage: Damage) -> None:
        """Count a damaged place as failed, and record it."""
        self._result.count(counts.FOUND)
        self._result.count(counts.FAILED)
        self._records.append((_key(damage.offset), marshal.dumps(tuple(damage))))

    def take(self, found: FoundMember) -> bool:
        """Digest the member ``found``, or spawn the tasks that digest it in parts. Return False, as ``Sorter``
        requires."""
        member, result, excluded = found.member, self._result, self._wanted.excluded
        if not self._wanted.selects(member, self._selected):
            result.count(counts.EXCLUDED, self._wanted.excluded - excluded)
            return False
        result.count(counts.FOUND)
        result.count(counts.FOUND_BYTES, member.size)
        if member.kind == FILE and found.stored > PIECE:
            begin_parts(self._rank, result, found)
            return False
        item, problem = None, ""
        try:
            item = None if member.kind == LINK else self._digests.item(found)
        except Problem as met:
            problem = f"{met.operation}: {met.strerror}"
        self._rank.throttle.bytes.take(found.stored)  # the throttle waits for it before the next member
        self._rank.counters[counts.MOVED] += found.stored
        self._records.append(_digested(result, DigestedMember(found, item, problem)))
        return False

    def end(self) -> None:
        """Send the records of the span to rank 0."""
        self._wanted.tell(self._result)
        if self._records:
            self._result.spawn(DigestedNote(marshal.dumps(self._records)), owner=0)


def _digested(result: Result, digested: DigestedMember) -> KeyValue:
    """Count a member as read or as failed, and return its record."""
    size = digested.found.member.size
    if digested.problem:
        result.count(counts.FAILED)
        result.count(counts.FAILED_BYTES, size)
    else:
        result.count(counts.FILES)
        result.count(counts.BYTES, size)
    return digested.record


def digests_of(rank: Rank, read: Read) -> MemberDigests:
    """Return what computes the digests of members that ``read`` reads."""
    return MemberDigests(read, rank.hashing.algorithm, rank.hashing.block_size)


def begin_parts(rank: Rank, result: Result, found: FoundMember) -> None:
    """Spawn the tasks that digest a large member in parts, on any ranks. A sparse file is digested by one task."""
    member = found.member
    chunk = rank.chunk(member.size) if member.extents is None and rank.splits(member.size) else member.size
    starts = range(0, member.size, chunk)
    rank.own(LargeMembers).open(found.offset, LargeMember(found, [b""] * len(starts)), len(starts), result)
    for part, start in enumerate(starts):
        size = min(chunk, member.size - start)
        task = DigestPart(found.offset, part, found.data + start, size, _packed(member.extents), rank.number)
        result.spawn(task, size)


def _packed(extents: Extents | None) -> bytes:
    """Return ``extents`` as bytes, also if they are None."""
    return marshal.dumps(None if extents is None else extents.packed)


class DigestPart(Kind, code=184, doing="reading a part of a member", is_note=False):
    """Task that digests a part of the member whose headers begin at ``at``.

    Fields:
      at: the offset of the member in the archive, which identifies it.
      part: the number of the part.
      data: the offset in the archive at which the contents of the part begin.
      size: the bytes of the part, holes included.
      extents: the extents of a sparse file, packed.
      teller: the rank that waits for all parts of the member.
    """

    at: int
    part: int
    data: int
    size: int
    extents: bytes
    teller: int

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        hasher, failure, root = rank.hashing.hasher(), None, b""
        packed = marshal.loads(self.extents)
        extents = None if packed is None else Extents.unpacked(packed)
        digests = digests_of(rank, rank.own(OpenArchive).read_all)
        try:
            for moved in throttled(digests.pass_through(hasher, self.data, self.size, extents), rank.throttle):
                rank.counters[counts.MOVED] += moved
                yield None
            root = hasher.root()
        except Problem as problem:
            failure = problem.plain
        result.spawn(PartDigested(self.at, self.part, failure, root), owner=self.teller)


class LargeMember(NamedTuple):
    """A member that is digested in parts, and the content roots of the parts that are done."""

    found: FoundMember
    roots: list[bytes]


class PartDigested(Note, code=185, doing="recording a part of a member"):
    """Note to the rank that waits for the parts of the member at ``at``: a part is digested, or could not be read.

    ``root`` is the content root of the part.
    """

    at: int
    part: int
    problem: Plain | None
    root: bytes

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(LargeMembers).take(self.at, self, result)


class LargeMembers(Ledger[int, LargeMember, PartDigested]):
    """The members that this rank has divided into parts, by their offsets in the archive."""

    def noted(self, awaited: Awaited[LargeMember], note: PartDigested) -> None:
        """Store the content root of a part, or its error if it is the first one."""
        awaited.opened.roots[note.part] = note.root
        if note.problem is not None and awaited.problem is None:
            awaited.problem = Problem.from_plain(note.problem)

    def ended(self, awaited: Awaited[LargeMember], result: Result) -> None:
        """Compute the digest of the member after its last part, and send its record to rank 0."""
        rank, (found, roots) = self._rank, awaited.opened
        size, item, problem = found.member.size, None, ""
        if awaited.problem is not None:
            problem = f"{awaited.problem.operation}: {awaited.problem.strerror}"
        else:
            item = ItemInArchive(found.data, FILE_TYPE, size, rank.hashing.chunks(size, roots))
        record = _digested(result, DigestedMember(found, item, problem))
        result.spawn(DigestedNote(marshal.dumps([record])), owner=0)


class DigestedNote(Note, code=186, doing="recording members"):
    """Note to rank 0 that carries records of members and damaged places, packed."""

    records: bytes

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(DigestedMembers).records.extend(marshal.loads(self.records))


class DigestedMembers:
    """The records of all members and damaged places, on rank 0."""

    def __init__(self, rank: Rank) -> None:
        self.records = ExternalSorter(rank.open_spool)

    def close(self) -> None:
        """Close the sorter and its spool."""
        self.records.close()
