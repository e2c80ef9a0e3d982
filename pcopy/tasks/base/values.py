"""Small immutable values that tasks are made of, and functions that pack columns of them into bytes.

All values consist of primitives, so that they can be sent to other ranks and stored.
"""

from __future__ import annotations

from array import array

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.identity import Identity
from pcopy.fsio.problem import PackedProblem
from pcopy.fsio.source import FileVersion

NO_DIRECTORY = Identity(-1, -1)
"""Identity that stands for a missing directory: the target of a directory that is only read, or the source of a
directory that was not opened yet.
"""


NOT_CREATED = Identity(-2, -2)
"""Identity of a target directory that a dry run would create. Such a directory is treated as empty."""


class Place(NamedTuple):
    """A directory of a root on both sides: its path below the root, and the identities that it must have.

    Fields:
        root: number of the root.
        path: path below the root, empty for the root itself.
        source_id, target_id: expected identities of the source directory and of the target directory.
        is_new: True if this job created the target directory.
        inherits_acl: True if items that are created in the target directory inherit an ACL.
        first_run: the first run that may have created items in the target directory, and the time at which that run
            started (``Job.resumed``); (0, 0) for the first run of the job.
    """

    root: int
    path: bytes
    source_id: Identity
    target_id: Identity
    is_new: bool
    inherits_acl: bool
    first_run: tuple[int, int] = (0, 0)

    @property
    def key(self) -> tuple[int, bytes]:
        """The root's number and the path, which identify the directory regardless of the other fields."""
        return self.root, self.path


def counts_label(place: Place) -> bytes:
    """Return the label under which the counts of a directory and of the items in it are recorded."""
    return b"%d/%b" % (place.root, place.path)


FailedName = tuple[Place, bytes, PackedProblem]
"""A name of an inode that could not be copied: its directory, the name, and the error."""


class Item(NamedTuple):
    """An item of the source as a scan found it, with all of its names.

    Fields:
        mount: code of the mount on which it lies.
        inode: inode number.
        size: size in bytes; 0 for anything but a regular file.
        names: directory and name of each hard link, sorted. One of them is copied first, the others are linked to the
            copy.
        attempt: number of earlier attempts, from 0.
        failed_names: names that failed already. They are reported only when the outcome of the other names is known,
            because a resumed job links them to those.
    """

    mount: int
    inode: int
    size: int
    names: tuple[tuple[Place, bytes], ...]
    attempt: int
    failed_names: tuple[FailedName, ...] = ()

    @property
    def place(self) -> Place:
        """Directory of the first name."""
        return self.names[0][0]

    @property
    def name(self) -> bytes:
        """The first name."""
        return self.names[0][1]

    @property
    def links(self) -> tuple[tuple[Place, bytes], ...]:
        """All names but the first."""
        return self.names[1:]


REPAIR_ATTEMPT = 2
"""Number of the attempt at an item that was copied before and differed from its source when it was verified.

Metadata that could not be set was counted in the earlier attempt and is not counted again.
"""


class ContentInfo(NamedTuple):
    """Type, size, digest and version of an item's contents.

    Fields:
        kind: type byte (``pcopy.signature.items``).
        size: size in bytes.
        digest: digest of the contents; empty if no digest is wanted or none is known yet.
        version: version of the source when it was read.
    """

    kind: bytes
    size: int
    digest: bytes
    version: FileVersion


class ChunkedFile(NamedTuple):
    """A large file that is being copied in chunks into one temporary file.

    Fields:
        item: the file in the source.
        version: version of the source when it was opened.
        temporary: name of the temporary file. With ``overwritten_owner`` there is no such file, and the name only
            identifies the copy in messages between ranks.
        identity: identity of the file that is written to.
        overwritten_owner: mode, owner and group that an existing file had before it was opened to be overwritten
            (``--inplace``); empty for a new file.
        is_cloned: True if the contents were cloned by a reflink, so that no chunk has to be written.
        server_status: mode and owner that the file server reports for the file while it is written, if they differ from
            those that were set; else empty.
    """

    item: Item
    version: FileVersion
    temporary: bytes
    identity: Identity
    overwritten_owner: tuple[int, ...] = ()
    is_cloned: bool = False
    server_status: tuple[int, ...] = ()


class ItemCopy(NamedTuple):
    """The copy of an item: the identity of its inode, and its contents.

    Fields:
        identity: identity of the inode that was created.
        known: type, size, digest and version of the contents.
        chunk: size in bytes of the parts in which it was written; 0 if it was written as a whole.
        writers: number of the host that wrote each part, one byte each.
    """

    identity: Identity
    known: ContentInfo
    chunk: int
    writers: bytes


class FileToRead(NamedTuple):
    """A large file that is read to compute or to verify its digest.

    Fields:
        known: type, size, version and digest. On the source's side the digest is empty; on the target's side it is the
            expected digest.
        on_source: True if the file of the source is read, False if the copy is.
        counter: counter in which the file was counted already; -1 if it is still to be counted.
        chunk: size in bytes of the parts in which it is read; 0 if the task chooses the size.
        writers: number of the host that wrote each part of the copy, one byte each; a single byte stands for all parts.
        linked_item: the item with all of its names, if the copy has several; else None.
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
        """Directory and name of each hard link of the file."""
        return ((self.place, self.name),) if self.linked_item is None else self.linked_item.names


class Entries(NamedTuple):
    """Entries of one directory of a dataset, in packed columns, for a signature.

    Fields:
        side: number of the dataset: 0, or 1 for the second of two datasets that are compared.
        path: path of the directory.
        names: names joined by slashes. The empty name stands for the directory itself.
        kinds: one type byte for each name.
        sizes: 8 bytes for each name.
        digests: one digest for each name.
        round: number of the attempt. Of several entries with one name the one with the highest ``round`` is valid.
    """

    side: int
    path: bytes
    names: bytes
    kinds: bytes
    sizes: bytes
    digests: bytes
    round: int


class UnnamedCopy(NamedTuple):
    """A complete copy that still has its temporary name. ``inode`` and ``mark``
    (``pcopy.fsio.identity``) identify it.
    """

    temporary: bytes
    inode: int
    mark: bytes


class Retry(NamedTuple):
    """The action of a resumed job for one recorded failure: it subtracts counts and runs a task.

    Fields:
        task: the packed task; empty if there is none.
        phase: the first phase in which the task may run.
        counts_to_subtract: pairs of counter and number that are subtracted from the counts.
        is_untouched: True if this job certainly created nothing of the items that the task copies.
        place: the directory under which the item was counted.
    """

    task: bytes = b""
    phase: int = 0
    counts_to_subtract: tuple[tuple[int, int], ...] = ()
    is_untouched: bool = False
    place: Place | None = None


def bucket_of(inode: int) -> int:
    """Return the number of the bucket, from 0 to 63, to which an inode with several names belongs.

    All names of an inode are sent to the rank that owns its bucket. The number of buckets does not depend on the number
    of ranks, which may change when a job is resumed. Files that were created together usually have adjacent inode
    numbers and share a bucket, so that few notes are needed for one directory.
    """
    return (inode >> 8) % 64


def pack_numbers(numbers: list[int]) -> bytes:
    """Return unsigned 64-bit integers as one byte string, in this machine's byte order."""
    return array("Q", numbers).tobytes()


def unpack_numbers(numbers: bytes) -> array[int]:
    """Return the integers that ``pack_numbers`` packed."""
    return array("Q", numbers)
