"""The members of an archive are found and digested by all ranks, and come to rank 0, which tells them in their order.

Each becomes a record whose key is its place in the archive, as what is damaged does.
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
    """A member, and the item that it becomes: None for a hard link, and if there is a ``problem``, which is told."""

    found: FoundMember
    item: ItemInArchive | None
    problem: str = ""

    @property
    def record(self) -> KeyValue:
        found, item = self.found, None if self.item is None else (*self.item,)
        member: tuple[Any, ...] = tuple(found.member._replace(xattrs=(), extents=None))
        return _key(found.offset), marshal.dumps((found.offset, member, (*found[2:],), item, self.problem))


def _key(at: int) -> bytes:
    return b"%016x" % at


def unpacked(value: bytes) -> DigestedMember | Damage:
    """What a record holds."""
    told = marshal.loads(value)
    if len(told) == len(Damage._fields):
        return Damage(*told)
    offset, member, others, item, problem = told
    whole = FoundMember(offset, Member(*member), *others)
    return DigestedMember(whole, None if item is None else ItemInArchive(*item), problem)


class FindMembers(Kind, code=182, doing="looking for members", is_note=False):
    """As ``ReadHeaders``, of an archive whose members are digested."""

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        yield from find_spans(rank, result, DigestSpan)


class DigestSpan(Kind, code=183, doing="reading members", is_note=False):
    """The members that begin from ``start`` on and before ``end``."""

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
    """Fills ``pcopy.tasks.archive.read_headers.Sorter``: takes the members of a span."""

    takes_plain = False
    items_per_slice = 1  # each has contents, too

    def __init__(self, rank: Rank, result: Result) -> None:
        self._rank, self._result = rank, result
        self._digests = digests_of(rank, Ahead(rank.own(OpenArchive).read).read)
        self._wanted, self._selected = rank.own(WantedOfRank), rank.own(Selected)
        self._records: list[KeyValue] = []

    def take_plain(self, found: PlainMembers) -> None:
        raise NotImplementedError

    def damaged(self, damage: Damage) -> None:
        self._result.count(counts.FOUND)
        self._result.count(counts.FAILED)
        self._records.append((_key(damage.offset), marshal.dumps(tuple(damage))))

    def take(self, found: FoundMember) -> bool:
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
        self._rank.throttle.bytes.take(found.stored)  # to be paid before the next one
        self._rank.counters[counts.MOVED] += found.stored
        self._records.append(_digested(result, DigestedMember(found, item, problem)))
        return False

    def end(self) -> None:
        self._wanted.tell(self._result)
        if self._records:
            self._result.spawn(DigestedNote(marshal.dumps(self._records)), owner=0)


def _digested(result: Result, digested: DigestedMember) -> KeyValue:
    """Counts it, as read or as failed; returns its record."""
    size = digested.found.member.size
    if digested.problem:
        result.count(counts.FAILED)
        result.count(counts.FAILED_BYTES, size)
    else:
        result.count(counts.FILES)
        result.count(counts.BYTES, size)
    return digested.record


def digests_of(rank: Rank, read: Read) -> MemberDigests:
    return MemberDigests(read, rank.hashing.algorithm, rank.hashing.block_size)


def begin_parts(rank: Rank, result: Result, found: FoundMember) -> None:
    """The contents of a large file are digested by whoever has time; those of a sparse one by one rank."""
    member = found.member
    chunk = rank.chunk(member.size) if member.extents is None and rank.splits(member.size) else member.size
    starts = range(0, member.size, chunk)
    rank.own(LargeMembers).open(found.offset, LargeMember(found, [b""] * len(starts)), len(starts), result)
    for part, start in enumerate(starts):
        size = min(chunk, member.size - start)
        task = DigestPart(found.offset, part, found.data + start, size, _packed(member.extents), rank.number)
        result.spawn(task, size)


def _packed(extents: Extents | None) -> bytes:
    return marshal.dumps(None if extents is None else extents.packed)


class DigestPart(Kind, code=184, doing="reading a part of a member", is_note=False):
    """A part of the member at ``at``: ``size`` bytes, which stand at ``data`` of the archive, but for the holes that
    ``extents``, packed, tell of. The rank ``teller`` has begun it."""

    at: int
    part: int
    data: int
    size: int
    extents: bytes
    teller: int

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        hasher, told, root = rank.hashing.hasher(), None, b""
        packed = marshal.loads(self.extents)
        extents = None if packed is None else Extents.unpacked(packed)
        digests = digests_of(rank, rank.own(OpenArchive).read_all)
        try:
            for moved in throttled(digests.pass_through(hasher, self.data, self.size, extents), rank.throttle):
                rank.counters[counts.MOVED] += moved
                yield None
            root = hasher.root()
        except Problem as problem:
            told = problem.plain
        result.spawn(PartDigested(self.at, self.part, told, root), owner=self.teller)


class LargeMember(NamedTuple):
    """One whose parts are being digested, and the content roots of those that are."""

    found: FoundMember
    roots: list[bytes]


class PartDigested(Note, code=185, doing="noting a part of a member"):
    """Of the member at ``at``."""

    at: int
    part: int
    problem: Plain | None
    root: bytes

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(LargeMembers).take(self.at, self, result)


class LargeMembers(Ledger[int, LargeMember, PartDigested]):
    """Those that this rank has begun, by their places."""

    def noted(self, awaited: Awaited[LargeMember], note: PartDigested) -> None:
        awaited.opened.roots[note.part] = note.root
        if note.problem is not None and awaited.problem is None:
            awaited.problem = Problem.from_plain(note.problem)

    def ended(self, awaited: Awaited[LargeMember], result: Result) -> None:
        rank, (found, roots) = self._rank, awaited.opened
        size, item, problem = found.member.size, None, ""
        if awaited.problem is not None:
            problem = f"{awaited.problem.operation}: {awaited.problem.strerror}"
        else:
            item = ItemInArchive(found.data, FILE_TYPE, size, rank.hashing.chunks(size, roots))
        record = _digested(result, DigestedMember(found, item, problem))
        result.spawn(DigestedNote(marshal.dumps([record])), owner=0)


class DigestedNote(Note, code=186, doing="noting members"):
    """Records for rank 0, packed."""

    records: bytes

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(DigestedMembers).records.extend(marshal.loads(self.records))


class DigestedMembers:
    """On rank 0: records of all members."""

    def __init__(self, rank: Rank) -> None:
        self.records = ExternalSorter(rank.open_spool)

    def close(self) -> None:
        self.records.close()
