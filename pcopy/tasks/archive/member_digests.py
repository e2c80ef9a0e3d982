"""Digests of the members of an archive. They equal the digests of the items that the members would be extracted as."""

from __future__ import annotations

import marshal
from collections.abc import Iterator

from pcopy.archive.member import FILE, SYMLINK, Extents
from pcopy.archive.reader import FoundMember, ReadFunction
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.problem import Problem
from pcopy.signature import items
from pcopy.signature.algorithms import DigestAlgorithm
from pcopy.signature.tree import ContentHasher, content_root_digest

READ_SIZE = 1 << 20
"""Bytes of the archive that are read with one call."""


class ItemAfterExtraction(NamedTuple):
    """The item that the extraction of a member would create. A later member of the same name replaces it.

    Fields:
      at: the offset of its contents in the archive.
      kind: its type byte, as in a manifest.
      size: its size in bytes.
      digest: its digest.
    """

    at: int
    kind: bytes
    size: int
    digest: bytes

    @classmethod
    def unpack(cls, packed: bytes) -> ItemAfterExtraction:
        """Return the item in ``packed``, which ``marshal`` has made of its fields."""
        return cls(*marshal.loads(packed))


class MemberDigester:
    """Computes the digests of members. To read contents, it calls ``read(offset, size)``, which returns bytes of the
    archive.
    """

    def __init__(self, read: ReadFunction, algorithm: DigestAlgorithm, block_size: int) -> None:
        self._read, self._algorithm, self._block_size = read, algorithm, block_size

    def item_with_digest(self, found: FoundMember) -> ItemAfterExtraction:
        """Return the item, with its digest, that the extraction of the member ``found`` would create. ``found`` is no
        hard link.

        Raise ``Problem`` if its contents cannot be read.
        """
        member, algorithm = found.member, self._algorithm
        kind, digest = items.type_byte(member.st_mode), b""
        if member.kind == FILE:
            digest = items.file_digest(algorithm, member.size, self._content_root_digest(found))
        elif member.kind == SYMLINK:
            digest = items.symlink_digest(algorithm, member.link)
        elif kind != items.DIRECTORY:
            digest = items.special_file_digest(algorithm, member.st_mode, member.device)
        return ItemAfterExtraction(found.data, kind, member.size if member.kind == FILE else 0, digest)

    def _content_root_digest(self, found: FoundMember) -> bytes:
        """Return the content root of a file: the root of the tree of the digests of its blocks. Raise ``Problem`` if
        the contents cannot be read.
        """
        member, at = found.member, found.data
        if member.extents is None and member.size <= min(READ_SIZE, self._block_size):
            return content_root_digest(self._algorithm, self._block_size, self._read_exactly(at, member.size))
        hasher = ContentHasher(self._algorithm, self._block_size)
        for _ in self.hash_contents(hasher, at, member.size, member.extents):
            pass
        return hasher.root()

    def hash_contents(self, hasher: ContentHasher, at: int, size: int, extents: Extents | None) -> Iterator[int]:
        """Feed ``size`` bytes of contents to ``hasher``; yield the number of bytes that each step has read.

        Args:
            at: the offset of the contents in the archive.
            size: bytes of the contents, holes included.
            extents: the ranges outside of holes, or None if there are no holes.

        Raise ``Problem`` if the contents cannot be read.
        """
        position = 0
        for offset, length in ((0, size),) if extents is None else extents:
            hasher.add_zero_bytes(offset - position)
            position = offset + length
            end = at + length
            while at < end:
                data = self._read_exactly(at, min(end - at, READ_SIZE))
                hasher.update(data)
                at += len(data)
                yield len(data)
        hasher.add_zero_bytes(size - position)

    def _read_exactly(self, at: int, size: int) -> bytes:
        """Return exactly ``size`` bytes from the offset ``at`` of the archive. Raise ``Problem`` if there are fewer."""
        data = self._read(at, size)
        while len(data) < size and (more := self._read(at + len(data), size - len(data))):
            data += more
        if len(data) < size:
            raise Problem("read", 0, on_source=True, text="the archive ends in the middle of this member")
        return data
