"""The digests of what an archive holds: of each member as the item that it would be unpacked to."""

from __future__ import annotations

import marshal
from collections.abc import Iterator

from pcopy.archive.member import FILE, SYMLINK, Extents
from pcopy.archive.reader import FoundMember, Read
from pcopy.fsio.problem import Problem
from pcopy.named import NamedTuple
from pcopy.signature import items
from pcopy.signature.algorithms import Algorithm
from pcopy.signature.tree import ContentHasher, content_root

PIECE = 1 << 20
"""Bytes that are read at once."""


class ItemInArchive(NamedTuple):
    """What has a name from the place ``at`` of the archive on: its type byte, size and digest."""

    at: int
    kind: bytes
    size: int
    digest: bytes

    @classmethod
    def unpacked(cls, packed: bytes) -> ItemInArchive:
        return cls(*marshal.loads(packed))


class MemberDigests:
    def __init__(self, read: Read, algorithm: Algorithm, block_size: int) -> None:
        self._read, self._algorithm, self._block_size = read, algorithm, block_size

    def item(self, found: FoundMember) -> ItemInArchive:
        """Of a member that is no hard link. Raises ``Problem`` if its contents cannot be read."""
        member, algorithm = found.member, self._algorithm
        kind, digest = items.type_of(member.st_mode), b""
        if member.kind == FILE:
            digest = items.file_digest(algorithm, member.size, self._content_root(found))
        elif member.kind == SYMLINK:
            digest = items.symlink_digest(algorithm, member.link)
        elif kind != items.DIRECTORY:
            digest = items.special_digest(algorithm, member.st_mode, member.device)
        return ItemInArchive(found.data, kind, member.size if member.kind == FILE else 0, digest)

    def _content_root(self, found: FoundMember) -> bytes:
        member, at = found.member, found.data
        if member.extents is None and member.size <= min(PIECE, self._block_size):
            return content_root(self._algorithm, self._block_size, self._piece(at, member.size))
        hasher = ContentHasher(self._algorithm, self._block_size)
        for _ in self.pass_through(hasher, at, member.size, member.extents):
            pass
        return hasher.root()

    def pass_through(self, hasher: ContentHasher, at: int, size: int, extents: Extents | None) -> Iterator[int]:
        """Contents of ``size`` bytes that stand ``at`` a place of the archive go through ``hasher``; yields the bytes
        that each step has read, raises ``Problem``."""
        position = 0
        for offset, length in ((0, size),) if extents is None else extents:
            hasher.zeros(offset - position)
            position = offset + length
            end = at + length
            while at < end:
                data = self._piece(at, min(end - at, PIECE))
                hasher.update(data)
                at += len(data)
                yield len(data)
        hasher.zeros(size - position)

    def _piece(self, at: int, size: int) -> bytes:
        data = self._read(at, size)
        while len(data) < size and (more := self._read(at + len(data), size - len(data))):
            data += more
        if len(data) < size:
            raise Problem("read", 0, on_source=True, text="the archive ends here, in the middle of its contents")
        return data
