"""The signature (one digest of a whole tree) of the contents of an archive. One process computes it while it lists the
members.

The signature is that of the tree that unpacking would create:
- If several members have the same name, only the last one counts.
- A hard link has the contents that the name of its target has at the position of the link in the archive. If no member
  before the link has that name, the first one after the link counts.
- Directories that contain members but have no member of their own are included.
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
from pcopy.archive.member import safe_member_path
from pcopy.archive.reader import FoundMember
from pcopy.signature import items
from pcopy.signature.algorithms import DigestAlgorithm
from pcopy.signature.manifest import tree_order_key
from pcopy.signature.signature_file import DatasetSignature
from pcopy.signature.sorting import ExternalSorter, SortRecord
from pcopy.tasks.archive.member_digests import ItemAfterExtraction
from pcopy.tasks.archive.names import ARCHIVE_END
from pcopy.tasks.sign.children import DatasetCounts
from pcopy.text import printable_path
from pcopy.tools.archive_tree import RemainingMember

_PATH_END = b"\0"
_SPECIAL_FILES_KEY = b""
"""Key in the counts of items for special files (FIFOs, sockets and devices), which are counted together."""
_key_of_record = itemgetter(0)
_KEY_SUFFIX_BYTES = 2 + 16
"""Number of bytes after the path in the key by which members are sorted (``_member_sort_key``): two zero bytes, and the
offset of the member in the archive as 16 hexadecimal digits.
"""
_LAST_MEMBER_SUFFIX = b"%016x" % ARCHIVE_END
"""The offset in the sort key of a hard link to the last member of a name, as 16 hexadecimal digits.

It is larger than any offset in the archive, so that such a link follows all members of that name.
"""


class ArchiveMembersNotATreeError(ValueError):
    """Error: the members of the archive do not form a tree, so it has no signature. For example, a path is below a
    file.
    """


class ArchiveSignatureBuilder:
    """Computes the signature of an archive from its members.

    First ``add_member`` is called for each member, then ``add_hard_link`` for each hard link, and at last
    ``signature_of_archive``.
    """

    def __init__(self, algorithm: DigestAlgorithm, block_size: int, open_spool: Callable[[], BinaryIO]) -> None:
        self._algorithm, self._block_size = algorithm, block_size
        self._items, self._links, self._resolved_links = (ExternalSorter(open_spool) for _ in range(3))
        self._top: bytes | None = None
        """Path of the item that the signature describes: the first member if all others are below it, otherwise "", the
        directory that contains all. None before the first member.
        """

    def add_member(self, found: FoundMember, item: ItemAfterExtraction | None) -> None:
        """Add the next member, in the order of the archive.

        Args:
            found: the member; the caller has checked that its name stays inside the target.
            item: type, size and digest of the item that the member becomes; None for a hard link.
        """
        path = safe_member_path(found.member.name)
        if item is not None:
            self._items.add(_member_sort_key(path, found.data), marshal.dumps(tuple(item)))
        if self._top is None:
            self._top = path
        elif self._top and path != self._top and not path.startswith(self._top + b"/"):
            self._top = b""

    def add_hard_link(self, each: RemainingMember) -> None:
        """Add a hard link that no later member replaces. To be called only after all members were added by ``add``.

        ``each`` is the member, with the name and the offset of the member whose contents it gets.
        """
        self._links.add(
            _member_sort_key(*(each.link_target or (safe_member_path(each.item.member.link), ARCHIVE_END))),
            marshal.dumps(each.path),
        )

    def signature_of_archive(self, source: str) -> DatasetSignature:
        """Return the signature, after all members and links were added.

        Raise ``ArchiveMembersNotATreeError`` if the members do not form a tree, and ``OSError`` if temporary files
        cannot be read or written.

        Args:
            source: name of the archive, which the signature file mentions.
        """
        if self._top is None:
            raise ArchiveMembersNotATreeError("the archive is empty")
        self._resolve_hard_links()
        tree = _TreeDigestBuilder(self._algorithm, self._top)
        records = heapq.merge(self._items.sorted(), self._resolved_links.sorted(), key=_key_of_record)
        for key, same in groupby(records, _path_part_of_key):
            tree.add_item(key.replace(b"\0", b"/"), max(ItemAfterExtraction.unpack(value) for _, value in same))
        digest, tally = tree.compute_remaining_digests()
        return DatasetSignature(
            self._algorithm.name, self._block_size, digest.hex(), *tally,
            source=source,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            generator=f"pcopy {__version__}",
        )  # fmt: skip

    def _resolve_hard_links(self) -> None:
        """Determine for each hard link the type, size and digest of the item to which it leads, and add it like other
        items.

        Raise ``ArchiveMembersNotATreeError`` if the target does not exist or is a directory.
        """
        marked = heapq.merge(
            _records_with_sorter_number(self._items, 0),
            _records_with_sorter_number(self._links, 1),
            key=itemgetter(0, 1),
        )
        name, target_item = b"", ItemAfterExtraction(0, items.DIRECTORY, 0, b"")
        for key, is_link, value in marked:
            if not is_link:
                name, target_item = key[:-_KEY_SUFFIX_BYTES], ItemAfterExtraction.unpack(value)
                continue
            path = marshal.loads(value)
            is_there = key[:-_KEY_SUFFIX_BYTES] == name and key[-16:] in (
                _LAST_MEMBER_SUFFIX,
                b"%016x" % target_item.at,
            )
            if not is_there or target_item.kind == items.DIRECTORY:
                target = printable_path(key[:-_KEY_SUFFIX_BYTES].replace(_PATH_END, b"/"))
                raise ArchiveMembersNotATreeError(
                    f"{printable_path(path)}: is a hard link to a name that is not a file in the archive: {target}"
                )
            self._resolved_links.add(
                _member_sort_key(path, ARCHIVE_END), marshal.dumps(tuple(target_item._replace(at=ARCHIVE_END)))
            )

    def close(self) -> None:
        """Release the temporary files."""
        for sorter in (self._items, self._links, self._resolved_links):
            sorter.close()


def _member_sort_key(path: bytes, at: int) -> bytes:
    """Return the sort key of a member. Keys sort by ``path`` in the order of a walk (a directory, then its contents),
    and members of the same path by ``at``, the offset in the archive.
    """
    return b"%b\0\0%016x" % (tree_order_key(path), at)


def _path_part_of_key(record: SortRecord) -> bytes:
    """Return the part of a sort key that stands for the path and is the same for all members of this path.

    The key, the first part of ``record``, ends with the offset of the member in the archive.
    """
    return record[0][:-_KEY_SUFFIX_BYTES]


def _records_with_sorter_number(sorter: ExternalSorter, mark: int) -> Iterator[tuple[bytes, int, bytes]]:
    """Return an iterator over all records of ``sorter``, sorted by key, as (key, ``mark``, value).

    The number ``mark`` distinguishes the records of several sorters after they are merged.
    """
    return ((key, mark, value) for key, value in sorter.sorted())


class _TreeDigestBuilder:
    """Computes the digest of a tree from its items, which are added in the order of a walk. The digest of a directory
    is computed when an item outside of it follows.
    """

    def __init__(self, algorithm: DigestAlgorithm, top: bytes) -> None:
        self._algorithm, self._top = algorithm, top
        self._open_directories: list[tuple[bytes, items.DirectoryHasher]] = []
        self._counts = dict.fromkeys((items.FILE, items.DIRECTORY, items.SYMLINK, _SPECIAL_FILES_KEY), 0)
        self._bytes = 0
        self._last_non_directory = b""
        """Path of the item that was added last, if it is not a directory; else "". No item may be below it."""
        self._top_digest = b""
        """Digest of the item at the top; empty before it is known."""

    def add_item(self, path: bytes, item: ItemAfterExtraction) -> None:
        """Add the next item. Raise ``ArchiveMembersNotATreeError`` if it is below an item that is not a directory."""
        if self._last_non_directory and path.startswith(self._last_non_directory + b"/"):
            raise ArchiveMembersNotATreeError(
                f"{printable_path(self._last_non_directory)}: is not a directory, but a member is below it: "
                f"{printable_path(path)}"
            )
        is_directory = item.kind == items.DIRECTORY
        self._last_non_directory = b"" if is_directory else path
        self._update_open_directories(path if is_directory else path.rpartition(b"/")[0], is_top=path == self._top)
        if is_directory:
            return
        self._bytes += item.size
        self._counts[item.kind if item.kind in self._counts else _SPECIAL_FILES_KEY] += 1
        self._add_to_parent(item.kind, path, item.digest)

    def _add_to_parent(self, kind: bytes, path: bytes, digest: bytes) -> None:
        if path == self._top:
            self._top_digest = digest
        else:
            self._open_directories[-1][1].add_child(kind, path.rpartition(b"/")[2], digest)

    def _update_open_directories(self, path: bytes, *, is_top: bool) -> None:
        """Prepare to add the item ``path``: close the open directories that do not contain it, and open the directories
        above it.

        An open directory is one whose items are being added; when it is closed, its digest is computed. Afterwards
        ``path`` is the innermost open directory.

        Args:
            is_top: True if the item to be added is the one at the top. If it is not a directory, nothing is opened.
        """
        while (
            self._open_directories
            and self._open_directories[-1][0] != path
            and not (path + b"/").startswith(_path_prefix_below(self._open_directories[-1][0]))
        ):
            self._finish_directory_digest()
        if self._open_directories and self._open_directories[-1][0] == path:
            return
        if not self._open_directories:
            if is_top and path != self._top:  # The item at the top is not a directory.
                return
            self._open_directory(self._top)
        while (innermost := self._open_directories[-1][0]) != path:
            rest = path[len(_path_prefix_below(innermost)) :]
            self._open_directory(_path_prefix_below(innermost) + rest.partition(b"/")[0])

    def _open_directory(self, path: bytes) -> None:
        self._open_directories.append((path, items.DirectoryHasher(self._algorithm)))
        self._counts[items.DIRECTORY] += 1

    def _finish_directory_digest(self) -> None:
        path, hasher = self._open_directories.pop()
        self._add_to_parent(items.DIRECTORY, path, hasher.digest())

    def compute_remaining_digests(self) -> tuple[bytes, DatasetCounts]:
        """Compute the digests of the directories that are still open, after the last item was added.

        Return the digest of the item at the top, and the numbers of files, directories, symbolic links, special files
        and bytes.
        """
        while self._open_directories:
            self._finish_directory_digest()
        files, directories, symlinks, special = self._counts.values()
        return self._top_digest, DatasetCounts(files, directories, symlinks, special, self._bytes)


def _path_prefix_below(directory: bytes) -> bytes:
    """Return the beginning of all paths below ``directory``: the directory and a slash; "" for the directory "" at the
    top.
    """
    return directory + b"/" if directory else b""
