"""Digests of members, computed as for the items that they would be extracted as."""

from __future__ import annotations

import marshal
from collections.abc import Iterator

from pcopy.archive.member import FILE, SYMLINK, Extents
from pcopy.archive.reader import FoundMember, ReadFunction
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.problem import Problem
from pcopy.signature import items
from pcopy.signature.algorithms import Algorithm
from pcopy.signature.tree import ContentHasher, content_root

READ_SIZE = 1 << 20
"""Bytes that are read in one call."""


class ItemInArchive(NamedTuple):
    """The item that has a name from the offset ``at`` of the archive on: type byte, size and digest.

    A later member of the same name replaces it.
    """

    at: int
    kind: bytes
    size: int
    digest: bytes

    @classmethod
    def unpack(cls, packed: bytes) -> ItemInArchive:
        """Return the item of which ``packed`` was made with ``marshal``."""
        return cls(*marshal.loads(packed))


class MemberDigester:
    """Calculator of the digests of members, whose contents it reads with ``read``."""

    def __init__(self, read: ReadFunction, algorithm: Algorithm, block_size: int) -> None:
        self._read, self._algorithm, self._block_size = read, algorithm, block_size

    def digested_item(self, found: FoundMember) -> ItemInArchive:
        """Return the item that the member ``found``, which is no hard link, would be extracted as.

        Raise ``Problem`` if its contents cannot be read.
        """
        member, algorithm = found.member, self._algorithm
        kind, digest = items.type_byte(member.st_mode), b""
        if member.kind == FILE:
            digest = items.file_digest(algorithm, member.size, self._content_root(found))
        elif member.kind == SYMLINK:
            digest = items.symlink_digest(algorithm, member.link)
        elif kind != items.DIRECTORY:
            digest = items.special_digest(algorithm, member.st_mode, member.device)
        return ItemInArchive(found.data, kind, member.size if member.kind == FILE else 0, digest)

    def _content_root(self, found: FoundMember) -> bytes:
        """Return the content root of a file: the root of the digests of its blocks. Raise ``Problem`` if it cannot be
        read."""
        member, at = found.member, found.data
        if member.extents is None and member.size <= min(READ_SIZE, self._block_size):
            return content_root(self._algorithm, self._block_size, self._read_exactly(at, member.size))
        hasher = ContentHasher(self._algorithm, self._block_size)
        for _ in self.feed_hasher(hasher, at, member.size, member.extents):
            pass
        return hasher.root()

    def feed_hasher(self, hasher: ContentHasher, at: int, size: int, extents: Extents | None) -> Iterator[int]:
        """Feed ``size`` bytes of contents, holes included, to ``hasher``; yield the bytes that each step has read.

        The data stand at the offset ``at`` of the archive. Raise ``Problem`` if they cannot be read.
        """
        position = 0
        for offset, length in ((0, size),) if extents is None else extents:
            hasher.zeros(offset - position)
            position = offset + length
            end = at + length
            while at < end:
                data = self._read_exactly(at, min(end - at, READ_SIZE))
                hasher.update(data)
                at += len(data)
                yield len(data)
        hasher.zeros(size - position)

    def _read_exactly(self, at: int, size: int) -> bytes:
        """Return exactly ``size`` bytes from the offset ``at`` of the archive. Raise ``Problem`` if there are fewer."""
        data = self._read(at, size)
        while len(data) < size and (more := self._read(at + len(data), size - len(data))):
            data += more
        if len(data) < size:
            raise Problem("read", 0, on_source=True, text="the archive ends here, in the middle of its contents")
        return data
