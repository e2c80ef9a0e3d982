"""The signature of what an archive holds, as one process finds it while it lists the members.

It is that of the tree which would be unpacked: of several members of one name the last one counts, a hard link has the
contents that its target has where the link stands (or later, if it stands before it), and directories that no member
describes are included.
"""

from __future__ import annotations

import heapq
import marshal
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import BinaryIO

from pcopy import __version__
from pcopy.archive.member import safe_path
from pcopy.archive.reader import FoundMember
from pcopy.signature import items
from pcopy.signature.algorithms import Algorithm
from pcopy.signature.manifest import order_key
from pcopy.signature.signature_file import Signature
from pcopy.signature.sorting import ExternalSorter, KeyValue
from pcopy.tasks.archive.member_digests import ItemInArchive
from pcopy.tasks.archive.names import END
from pcopy.tasks.sign.children import Tally
from pcopy.text import shown
from pcopy.tools.archive_tree import LastMember

_END = b"\0"
_SPECIAL = b""
"""Stands for the types that are counted together."""
_key = itemgetter(0)
_PLACE = 2 + 16
"""Bytes at the end of a key: two zeros, and the place of a member in the archive."""
_LAST = b"%016x" % END


class Contradiction(ValueError):
    """What the archive holds is no tree."""


class ArchiveSignature:
    def __init__(self, algorithm: Algorithm, block_size: int, open_spool: Callable[[], BinaryIO]) -> None:
        self._algorithm, self._block_size = algorithm, block_size
        self._found, self._links, self._linked = (ExternalSorter(open_spool) for _ in range(3))
        self._top: bytes | None = None
        """The first member, as long as all others lie below it."""

    def take(self, found: FoundMember, item: ItemInArchive | None) -> None:
        """Take the next member, and what it becomes, unless it is a hard link."""
        path = safe_path(found.member.name)
        if item is not None:
            self._found.add(_key_of(path, found.data), marshal.dumps(tuple(item)))
        if self._top is None:
            self._top = path
        elif self._top and path != self._top and not path.startswith(self._top + b"/"):
            self._top = b""

    def take_link(self, each: LastMember) -> None:
        """Take a hard link that no later member takes the place of. Links come once all members were taken."""
        self._links.add(_key_of(*(each.copied or (safe_path(each.item.member.link), END))), marshal.dumps(each.path))

    def signature(self, source: str) -> Signature:
        """Once all members were taken. Raises ``Contradiction``, ``OSError`` from what waits in spools."""
        if self._top is None:
            raise Contradiction("the archive holds nothing")
        self._follow_links()
        tree = _Tree(self._algorithm, self._top)
        records = heapq.merge(self._found.sorted(), self._linked.sorted(), key=_key)
        for key, same in groupby(records, _target):
            tree.take(key.replace(b"\0", b"/"), max(ItemInArchive.unpacked(value) for _, value in same))
        digest, tally = tree.end()
        return Signature(
            self._algorithm.name, self._block_size, digest.hex(), *tally,
            source=source,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            generator=f"pcopy {__version__}",
        )  # fmt: skip

    def _follow_links(self) -> None:
        """Make each link an item of its own. Raises ``Contradiction``."""
        marked = heapq.merge(_marked(self._found, 0), _marked(self._links, 1), key=itemgetter(0, 1))
        name, meant = b"", ItemInArchive(0, items.DIRECTORY, 0, b"")
        for key, is_link, value in marked:
            if not is_link:
                name, meant = key[:-_PLACE], ItemInArchive.unpacked(value)
                continue
            path = marshal.loads(value)
            is_there = key[:-_PLACE] == name and key[-16:] in (_LAST, b"%016x" % meant.at)
            if not is_there or meant.kind == items.DIRECTORY:
                its = shown(key[:-_PLACE].replace(_END, b"/"))
                raise Contradiction(f"{shown(path)}: is a hard link, and no file of that name is there: {its}")
            self._linked.add(_key_of(path, END), marshal.dumps(tuple(meant._replace(at=END))))

    def close(self) -> None:
        for sorter in (self._found, self._links, self._linked):
            sorter.close()


def _key_of(path: bytes, at: int) -> bytes:
    return b"%b\0\0%016x" % (order_key(path), at)


def _target(record: KeyValue) -> bytes:
    return record[0][:-_PLACE]


def _marked(sorter: ExternalSorter, mark: int) -> Iterator[tuple[bytes, int, bytes]]:
    return ((key, mark, value) for key, value in sorter.sorted())


class _Tree:
    """Takes items in the order of a walk; digests of directories are made as they are left."""

    def __init__(self, algorithm: Algorithm, top: bytes) -> None:
        self._algorithm, self._top = algorithm, top
        self._open: list[tuple[bytes, items.DirectoryHasher]] = []
        self._counts = dict.fromkeys((items.FILE, items.DIRECTORY, items.SYMLINK, _SPECIAL), 0)
        self._bytes = 0
        self._last = b""
        """The last one, if it is no directory."""
        self._whole = b""
        """The digest of the top."""

    def take(self, path: bytes, item: ItemInArchive) -> None:
        """Raises ``Contradiction``."""
        if self._last and path.startswith(self._last + b"/"):
            raise Contradiction(f"{shown(self._last)}: is no directory, and something lies in it: {shown(path)}")
        is_directory = item.kind == items.DIRECTORY
        self._last = b"" if is_directory else path
        self._enter(path if is_directory else path.rpartition(b"/")[0], is_top=path == self._top)
        if is_directory:
            return
        self._bytes += item.size
        self._counts[item.kind if item.kind in self._counts else _SPECIAL] += 1
        self._add(item.kind, path, item.digest)

    def _add(self, kind: bytes, path: bytes, digest: bytes) -> None:
        if path == self._top:
            self._whole = digest
        else:
            self._open[-1][1].add(kind, path.rpartition(b"/")[2], digest)

    def _enter(self, path: bytes, *, is_top: bool) -> None:
        """Leaves directories until ``path`` lies in the last one, and enters those that lead there."""
        while self._open and self._open[-1][0] != path and not (path + b"/").startswith(_within(self._open[-1][0])):
            self._leave()
        if self._open and self._open[-1][0] == path:
            return
        if not self._open:
            if is_top and path != self._top:  # the top is no directory
                return
            self._begin(self._top)
        while (here := self._open[-1][0]) != path:
            rest = path[len(_within(here)) :]
            self._begin(_within(here) + rest.partition(b"/")[0])

    def _begin(self, path: bytes) -> None:
        self._open.append((path, items.DirectoryHasher(self._algorithm)))
        self._counts[items.DIRECTORY] += 1

    def _leave(self) -> None:
        path, hasher = self._open.pop()
        self._add(items.DIRECTORY, path, hasher.digest())

    def end(self) -> tuple[bytes, Tally]:
        while self._open:
            self._leave()
        files, directories, symlinks, special = self._counts.values()
        return self._whole, Tally(files, directories, symlinks, special, self._bytes)


def _within(directory: bytes) -> bytes:
    return directory + b"/" if directory else b""
