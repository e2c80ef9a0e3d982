"""Small immutable values that fields of tasks contain, and functions that pack columns of numbers into bytes.

All values consist of primitives, so that they can be sent to other ranks and stored.
"""

from __future__ import annotations

from array import array

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import PackedProblem
from pcopy.fsio.source import FileContentVersion

NO_DIRECTORY_IDENTITY = ItemIdentity(-1, -1)
"""Identity (mount code -1, inode -1) that stands for no directory. It is the ``target_id`` of a directory that is only
read, and the ``source_id`` of a directory whose source was not opened yet.
"""


UNCREATED_TARGET_IDENTITY = ItemIdentity(-2, -2)
"""Identity that stands for a target directory which a dry run does not create but a real run would. A dry run treats
such a directory as empty.
"""


class Place(NamedTuple):
    """A directory of the job on both sides, source and target: its path, and the identities that the two directories
    must have when they are opened again. (An identity is file system, inode number, and file handle or time of birth:
    ``pcopy.fsio.identity``.)

    Fields:
        root: index in ``Job.roots``; a root is one SRC with its target.
        path: path below the root; empty for the root directory itself.
        source_id, target_id: identities of the source directory and of the target directory. If another directory has
            the path now, opening it fails.
        is_new: True if this job created the target directory.
        inherits_acl: True if new items in the target directory inherit ACLs, which must be removed from copies.
        first_run: number and start time (nanoseconds, ``Job.resumed``) of the first run of the job that may have
            created items in the target directory; (0, 0) if that is the job's first run.
        is_unchanged: True if the target directory existed before this job, and had all metadata then that it shall have
            at the end. It counts as skipped, whatever the job writes into it. Each task about the directory knows it by
            this field, also in a resumed job.
    """

    root: int
    path: bytes
    source_id: ItemIdentity
    target_id: ItemIdentity
    is_new: bool
    inherits_acl: bool
    first_run: tuple[int, int] = (0, 0)
    is_unchanged: bool = False

    @property
    def key(self) -> tuple[int, bytes]:
        """Index of the root and path below it. They are equal for two values that describe the same directory, whatever
        the other fields say.
        """
        return self.root, self.path

    def path_of(self, name: bytes) -> bytes:
        """Return the path below the root of an item in the directory. ``name`` may be a path, and may be empty."""
        return self.path + b"/" + name if self.path and name else self.path or name


def directory_counts_label(place: Place) -> bytes:
    """Return the label of the directory ``place`` in the records of a job. Counts of the directory and of the items in
    it are recorded under this label. If the directory has vanished when the job is resumed, they are subtracted again.
    """
    return b"%d/%b" % (place.root, place.path)


FailedName = tuple[Place, bytes, PackedProblem]
"""A name (hard link) of an inode that could not be copied: its directory, the name, and the error."""


class Item(NamedTuple):
    """An item (a file of any type except a directory) as a scan of the source found it, with all names (hard links) of
    its inode that are known.

    Fields:
        mount: number of its file system, the same on all hosts (``pcopy.fsio.mounts``).
        inode: inode number.
        size: size in bytes; 0 for anything but a regular file.
        names: (directory, name) of each hard link, sorted. The first one that can be copied is copied, and the others
            are created as hard links to the copy.
        attempt: number of earlier attempts to copy the item in this run, from 0.
        failed_names: names that already failed. They are reported together with the others, once the outcome of those
            is known: a resumed job creates them as links to the copy that the others got.
    """

    mount: int
    inode: int
    size: int
    names: tuple[tuple[Place, bytes], ...]
    attempt: int
    failed_names: tuple[FailedName, ...] = ()

    @property
    def place(self) -> Place:
        """Directory of the first name of the item."""
        return self.names[0][0]

    @property
    def name(self) -> bytes:
        """The first name of the item."""
        return self.names[0][1]

    @property
    def links(self) -> tuple[tuple[Place, bytes], ...]:
        """(directory, name) of all names of the item but the first."""
        return self.names[1:]


REPAIR_ATTEMPT = 2
"""Value of ``attempt`` for an item that is copied again (``--repair``), because its copy differed from its source when
it was verified.

Warnings about the item's metadata were counted when it was first copied, and are not counted again.
"""


class ContentInfo(NamedTuple):
    """Type, size, digest and version of an item's contents.

    Fields:
        kind: type byte: b"f" for a regular file; the others are in ``pcopy.signature.items``.
        size: size in bytes.
        digest: digest of the contents; empty if the job computes none, or it is not known yet.
        version: inode number, size, mtime and ctime that the source had when it was read.
    """

    kind: bytes
    size: int
    digest: bytes
    version: FileContentVersion


class ChunkedFile(NamedTuple):
    """A large file that several tasks copy in chunks (parts of equal size) into one temporary file.

    Fields:
        item: the file in the source.
        version: inode number, size, mtime and ctime of the source when it was opened.
        temporary: name of the temporary file. With ``overwritten_owner`` there is no such file: the name only
            identifies the copy in messages between ranks.
        identity: identity of the file that is written to.
        overwritten_owner: mode, owner and group that an existing file had before it was opened to be overwritten
            (``--inplace``); empty if a new file is written.
        is_cloned: True if the contents were cloned by a reflink (FICLONE), so that no chunk has to be written.
        server_status: mode and owner that stat(2) shows for the temporary file, if the file server shows others than
            those that were set; else empty.
    """

    item: Item
    version: FileContentVersion
    temporary: bytes
    identity: ItemIdentity
    overwritten_owner: tuple[int, ...] = ()
    is_cloned: bool = False
    server_status: tuple[int, ...] = ()


class ItemCopy(NamedTuple):
    """The copy of an item in the target: which inode it is, and what it contains.

    Fields:
        identity: identity of the inode that was created.
        known: type, size, digest and version of the contents.
        chunk: size in bytes of the chunks in which the copy was written; 0 if one task wrote all of it.
        writers: number of the host that wrote each chunk, one byte each (``pcopy.tasks.base.distribution.Hosts``).
    """

    identity: ItemIdentity
    known: ContentInfo
    chunk: int
    writers: bytes


class FileToRead(NamedTuple):
    """A file that is read to compute its digest, or to compare its digest with the expected one. A large file is read
    in chunks.

    Fields:
        place, name: directory and name of the file.
        known: type, size, version and digest. If the source is read, the digest is empty; if the copy is read, it is
            the expected digest.
        on_source: True if the file in the source is read, False if its copy in the target is.
        attempt: number of earlier attempts in this run, from 0.
        counter: index of the counter in which the file was counted already; -1 if it is still to be counted.
        chunk: size in bytes of the chunks in which it is read; 0 if the task that divides the file chooses the size.
        writers: number of the host that wrote each chunk of the copy, one byte each; a single byte stands for all
            chunks.
        linked_item: the item with all of its names, if the copy has several hard links; else None.
    """

    place: Place
    name: bytes
    known: ContentInfo
    on_source: bool
    attempt: int
    counter: int
    chunk: int = 0
    writers: bytes = b""
    linked_item: Item | None = None

    @property
    def names(self) -> tuple[tuple[Place, bytes], ...]:
        """Directory and name of each hard link of the file; for a file with one name only that one."""
        return ((self.place, self.name),) if self.linked_item is None else self.linked_item.names


class SignatureEntries(NamedTuple):
    """Items of one directory of a dataset, as a signature lists them, in packed columns: value number i of each column
    belongs to name number i.

    Fields:
        side: number of the dataset: 0, or 1 for the second of two datasets that are compared.
        path: path of the directory.
        names: names joined by slashes. The empty name stands for the directory itself.
        kinds: one type byte for each name (``pcopy.signature.items``).
        sizes: size in bytes of each item, as 64-bit integers.
        digests: one digest for each name, joined.
        round: number of the attempt, higher for a later one. If several entries have the same name, the one with the
            highest ``round`` is valid.
    """

    side: int
    path: bytes
    names: bytes
    kinds: bytes
    sizes: bytes
    digests: bytes
    round: int


class UnnamedCopy(NamedTuple):
    """A complete copy that still has its temporary name, because it gets its final name in a later phase.

    Fields:
        temporary: the temporary name.
        inode, mark: inode number, and the file handle or time of birth that distinguishes it from a later one with the
            same number (``pcopy.fsio.identity``). A file of that name with other values is not touched.
    """

    temporary: bytes
    inode: int
    mark: bytes


class FailureRetry(NamedTuple):
    """What a resumed job does about one recorded failure: it subtracts the failure from the counts, and runs a task
    that tries again.

    Fields:
        task: the packed task; empty if nothing is tried again.
        phase: the first phase in which the task may run.
        counts_to_subtract: pairs (index of the counter, number) that are subtracted from the counts of the earlier run.
        is_untouched: True if this job has certainly created nothing in the target for the items of the task.
        place: the directory under which the failure was counted; None if it was counted under none.
    """

    task: bytes = b""
    phase: int = 0
    counts_to_subtract: tuple[tuple[int, int], ...] = ()
    is_untouched: bool = False
    place: Place | None = None


def inode_bucket_number(inode: int) -> int:
    """Return the number, from 0 to 63, of the bucket (group of inodes) to which an inode with several names belongs.

    All names of the inodes of a bucket are sent to one rank, which brings together the names of each inode. The number
    of buckets does not depend on the number of ranks, because a job may be resumed on another number of ranks. Files
    that were created together usually have adjacent inode numbers and share a bucket, so few messages are needed for
    one directory.
    """
    return (inode >> 8) % 64


def pack_numbers(numbers: list[int]) -> bytes:
    """Return unsigned 64-bit integers as bytes, 8 for each, in this machine's byte order."""
    return array("Q", numbers).tobytes()


def unpack_numbers(numbers: bytes) -> array[int]:
    """Return the unsigned 64-bit integers that the bytes ``numbers`` contain, 8 bytes each, as ``pack_numbers`` writes
    them.
    """
    return array("Q", numbers)
