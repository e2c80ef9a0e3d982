"""The tasks of copying as values: small, frozen, made of primitives (``pcopy.tasks.codec`` packs them).

``ScanDir`` reads a directory; ``ScanNames`` stats a part of a large one (or what is tried again); ``CopyFiles`` and
``CopyNodes`` copy what it found in batches. ``SplitFile`` turns a large file into ``CopyChunk``s, each of which ends in
a ``ChunkDone`` note to the file's owner, the rank that got ``FileOpened``; the last note spawns ``FinishFile``.
``LinkNote`` tells the owner of an inode the names of it, ``GroupLinks`` gathers them, ``LinkGroup`` copies one and
links the others to it; ``InodeCopied`` tells that there may be more of them. ``FinishDir`` gives a directory its
metadata, ``SealDirs`` those that come last; ``FailDir`` tells that one has failed. Where nothing is overwritten
unasked, what is copied has a temporary name until ``NameItems`` or ``NameGroup`` gives it its own; ``CopyAnew`` removes
what an earlier run has named and could not give all of its metadata.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from pcopy.fsio.attributes import Attributes
from pcopy.fsio.identity import Identity
from pcopy.fsio.problem import Plain
from pcopy.fsio.source import Version

NOWHERE = Identity(-1, -1)
"""The target of a directory that is only read; the source of one that nobody has looked at yet."""


class Place(NamedTuple):
    """A directory of a root, on both sides: its path below the root, and the identities that it must have.

    ``fresh``: this job made the target directory. ``inherits``: what is made in it inherits an ACL. ``since``: the run
    before which nothing was made of what is copied into it, and its start (``Job.resumed``); 0 if that is the first.
    """

    root: int
    path: bytes
    source_id: Identity
    target_id: Identity
    fresh: bool
    inherits: bool
    since: tuple[int, int] = (0, 0)


def label_of(place: Place) -> bytes:
    """What is counted of items in a directory, and of itself, is counted under this label."""
    return b"%d/%b" % (place.root, place.path)


FailedName = tuple[Place, bytes, Plain]
"""A name of an inode that could not be copied, and why."""


class ScanDir(NamedTuple):
    """Makes the directory ``path`` and finds what is in it. ``parent`` is the directory around it, None at a root.

    With the ``source_id`` NOWHERE it is whatever is there when the task runs. ``since`` as in ``Place``.
    """

    root: int
    path: bytes
    source_id: Identity
    parent: Place | None
    since: tuple[int, int] = (0, 0)


COPIED_BEFORE = 2
"""The attempt at what was copied and is not as it should be: what was excused was counted then."""


class ScanNames(NamedTuple):
    """Stats ``names`` (joined by slashes) of a directory; ``attempt`` counts from 0, or is ``COPIED_BEFORE``."""

    place: Place
    names: bytes
    attempt: int


class CopyFiles(NamedTuple):
    """Small regular files of one directory; ``inodes`` and ``sizes`` are packed arrays of 64-bit integers."""

    place: Place
    names: bytes
    inodes: bytes
    sizes: bytes
    attempt: int


class CopyNodes(NamedTuple):
    """Symbolic links, FIFOs, sockets and devices of one directory."""

    place: Place
    names: bytes
    inodes: bytes
    attempt: int


class Known(NamedTuple):
    """What is known of an item's contents: its type byte, size in bytes and digest, and the source's version then.

    The digest is empty where none is wanted, or as long as none is known.
    """

    kind: bytes
    size: int
    digest: bytes
    version: Version


class SplitFile(NamedTuple):
    """A large file; ``links`` are further names that become hard links to it, ``failed`` as in ``LinkGroup``."""

    place: Place
    name: bytes
    mount: int
    inode: int
    size: int
    attempt: int
    links: tuple[tuple[Place, bytes], ...] = ()
    failed: tuple[FailedName, ...] = ()


class OpenFile(NamedTuple):
    """A split file under way: its version when it was opened, and the temporary file that is being filled.

    ``over``: mode, owner and group of the existing file that is written over instead. Then there is no temporary file:
    ``temporary`` is a name for messages between ranks only, and ``made`` is the existing file.
    """

    split: SplitFile
    version: Version
    temporary: bytes
    made: Identity
    over: tuple[int, ...] = ()
    cloned: bool = False


class FileOpened(NamedTuple):
    """Tells the owner of a file how many chunks to wait for, of ``chunk`` bytes each but for the last."""

    file: OpenFile
    chunks: int
    chunk: int


class CopyChunk(NamedTuple):
    """The bytes from ``start`` to ``end``, the chunk number ``part``; ``owner`` is the rank that waits for the note."""

    file: OpenFile
    start: int
    end: int
    part: int
    owner: int


class ChunkDone(NamedTuple):
    """A chunk is copied, or met a problem. ``root`` is its content root, if digests are wanted, ``writer`` the host."""

    temporary: bytes
    problem: Plain | None
    part: int
    root: bytes
    writer: int


class FinishFile(NamedTuple):
    """All chunks are there: metadata, and the final name.

    ``digest``, ``chunk`` and ``writers``: see ``pcopy.tasks.read_values.Contents``.
    """

    file: OpenFile
    digest: bytes
    chunk: int
    writers: bytes


class Unmark(NamedTuple):
    """Files of one directory that were written over and are whole: safe on storage they lose their marks.

    They have ``failed`` if they lack metadata.
    """

    place: Place
    names: bytes
    inodes: bytes
    failed: bool = False


class Unnamed(NamedTuple):
    """What is whole and has a temporary name; ``inode`` and ``mark`` (``pcopy.fsio.identity``) tell which it is."""

    temporary: bytes
    inode: int
    mark: bytes


class NameItems(NamedTuple):
    """Gives items of one directory their names. One column for each field of ``Unnamed`` and of ``Known``.

    ``writer`` is the host that has written them.
    """

    place: Place
    names: bytes
    temporaries: bytes
    inodes: bytes
    marks: tuple[bytes, ...]
    kinds: bytes
    sizes: bytes
    versions: bytes
    digests: bytes
    attempt: int
    writer: int


class NameGroup(NamedTuple):
    """Gives an item the first name of ``split`` that is free; the others become links to it.

    ``chunk`` and ``writers`` as in ``pcopy.tasks.read_values.Contents``. ``shortcoming``: what its metadata lacks.
    """

    split: SplitFile
    unnamed: Unnamed
    known: Known
    chunk: int
    writers: bytes
    shortcoming: Plain | None = None


class LinkNote(NamedTuple):
    """Names in one directory of inodes with several links, all of one bucket; ``attempt`` as in ``ScanNames``."""

    place: Place
    names: bytes
    mounts: bytes
    inodes: bytes
    sizes: bytes
    attempt: int
    bucket: int


class GroupLinks(NamedTuple):
    """Gathers the notes of one bucket into groups."""

    bucket: int


class LinkGroup(NamedTuple):
    """Names of one inode, of which the first that can be is copied and the others are linked to it.

    Those that have ``failed`` are told of when that is known, since a resumed job makes them links to it.
    """

    mount: int
    inode: int
    size: int
    names: tuple[tuple[Place, bytes], ...]
    attempt: int
    failed: tuple[FailedName, ...] = ()


class MakeLinks(NamedTuple):
    """Links the names of ``group`` to the first one's copy, which is ``made`` and holds what is ``known``.

    ``chunk`` and ``writers`` as in ``pcopy.tasks.read_values.Contents``. ``more``: these are further names, and the
    first name is verified with others. If any have ``failed`` already, the first of them is the first name itself,
    whose metadata could not all be set. ``copied`` is the name that counts as the copy, where that is another than the
    first: it was removed since, and may be among those to be made.
    """

    group: LinkGroup
    made: Identity
    known: Known
    chunk: int
    writers: bytes
    more: bool
    copied: tuple[Place, bytes] | None = None


class CopyAnew(NamedTuple):
    """Removes the names of ``group`` that are the item ``inode`` with that ``mark``, which an earlier run has made and
    not all of whose metadata could be set. Then the group is copied.

    ``known`` are size and mtime of what nobody has written to since (the size counts of files only). If it
    ``is_whole``, all of its metadata was set; then what was written to since is the user's, and no failure. With the
    attempt 0 the inode's size counts no more, and is counted again.
    """

    group: LinkGroup
    inode: int
    mark: bytes
    known: tuple[int, int]
    is_whole: bool = False


class InodeCopied(NamedTuple):
    """Tells the owner of an inode with several names how others are made that only a resumed job finds.

    Those may be in a directory that could not be read, or that is made anew. Any name of ``links`` may serve to make
    them; the first of them counts as the copy, even if it has gone.
    """

    links: MakeLinks
    bucket: int


class FinishDir(NamedTuple):
    """Gives a directory its metadata; ``counted`` if it counts as copied then (it doesn't once it has failed).

    ``attributes`` are the source's when it was scanned; None stands for those that it has when it is finished.
    ``entries`` is the number of names in the source, -1 where nobody asks whether the target holds more. ``again``: it
    has been finished before; with ``counted`` it has failed since. ``was`` is the target's mtime before anything was
    put into it anew, None where its mode had to be changed for that.
    """

    place: Place
    attributes: Attributes | None
    counted: bool
    entries: int
    again: bool = False
    was: int | None = None


class SealDir(NamedTuple):
    """A directory that comes last, because its owner can't enter it afterwards."""

    finish: FinishDir


class FailDir(NamedTuple):
    """Tells the rank that a directory belongs to what it has met; ``retry`` is for a job that is resumed."""

    place: Place
    problem: Plain
    retry: FinishDir | None


class SealDirs(NamedTuple):
    """Finishes what was told by ``SealDir``, deepest first."""


class SyncFiles(NamedTuple):
    """Brings a file system to stable storage: that of a target directory, or (None) those of the roots.

    A place and no st_dev, which means nothing in another run.
    """

    place: Place | None


class Retry(NamedTuple):
    """What a resumed job does about a failure: it counts ``counted`` (counters and numbers) back, and runs a task.

    The ``task`` is packed, and empty where there is none; ``phase`` is the first in which it may run. ``untouched``:
    for certain this job has made nothing yet of what the task copies. The item was counted in the directory ``place``.
    """

    task: bytes = b""
    phase: int = 0
    counted: tuple[tuple[int, int], ...] = ()
    untouched: bool = False
    place: Place | None = None


class ReportFailures(NamedTuple):
    """Tells rank 0 of failures: (path, operation, errno, message) each, with what a resumed job does about it.

    ``unknown`` are extended attributes that a file system doesn't know, each with the text of a notice, which is told
    once however many ranks meet it.
    """

    failures: tuple[tuple[bytes, str, int, str], ...]
    notices: tuple[str, ...]
    retries: tuple[Retry, ...]
    unknown: tuple[tuple[str, str], ...] = ()


def bucket_of(inode: int) -> int:
    """Inodes with several names are told apart by bucket; the number of ranks may change in a resumed job, this not."""
    return inode % 64


def pack_names(names: list[bytes]) -> bytes:
    """File names as one string; no name contains a slash."""
    return b"/".join(names)


def unpack_names(names: bytes) -> list[bytes]:
    return names.split(b"/")


def pack_numbers(numbers: list[int]) -> bytes:
    """Unsigned 64-bit integers as one string, in this machine's byte order."""
    return array("Q", numbers).tobytes()


def unpack_numbers(numbers: bytes) -> array[int]:
    return array("Q", numbers)
