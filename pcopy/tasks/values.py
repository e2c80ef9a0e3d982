"""The tasks as values: small, frozen, made of primitives, with one codec for wire and checkpoint.

``ScanDir`` reads a directory; ``ScanNames`` stats a part of a large one (or what is tried again); ``CopyFiles`` and
``CopyNodes`` copy what it found in batches. ``SplitFile`` turns a large file into ``CopyChunk``s, each of which ends in
a ``ChunkDone`` note to the file's owner, the rank that got ``FileOpened``; the last note spawns ``FinishFile``.
``LinkNote`` tells the owner of an inode the names of it, ``GroupLinks`` gathers them, ``LinkGroup`` copies one and
links the others to it. ``FinishDir`` gives a directory its metadata, ``SealDirs`` those that come last.
"""

from __future__ import annotations

import pickle
from array import array
from typing import Any, NamedTuple

from pcopy.engine.messages import load_primitives
from pcopy.errors import InvariantBroken
from pcopy.fsio.attributes import Attributes
from pcopy.fsio.mounts import Identity
from pcopy.fsio.source import Version


class Place(NamedTuple):
    """A directory of a root, on both sides: its path below the root and the (mount code, inode)s that it must have.

    ``fresh``: this job made the target directory. ``inherits``: what is made in it inherits an ACL.
    """

    root: int
    path: bytes
    source_id: Identity
    target_id: Identity
    fresh: bool
    inherits: bool


class ScanDir(NamedTuple):
    """Makes the directory ``path`` and finds what is in it. ``parent`` is the directory around it, None at a root."""

    root: int
    path: bytes
    source_id: Identity
    parent: Place | None


class ScanNames(NamedTuple):
    """Stats ``names`` (joined by slashes) of a directory; ``attempt`` counts from 0."""

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


class SplitFile(NamedTuple):
    """A large regular file; ``links`` are further names that become hard links to it."""

    place: Place
    name: bytes
    mount: int
    inode: int
    size: int
    attempt: int
    links: tuple[tuple[Place, bytes], ...] = ()


class OpenFile(NamedTuple):
    """A split file under way: its version when it was opened, and the temporary file that is being filled."""

    split: SplitFile
    version: Version
    temporary: bytes
    temporary_inode: int


class FileOpened(NamedTuple):
    """Tells the owner of a file how many chunks to wait for."""

    file: OpenFile
    chunks: int


class CopyChunk(NamedTuple):
    """The bytes from ``start`` to ``end`` of a file; ``owner`` is the rank that waits for the note."""

    file: OpenFile
    start: int
    end: int
    owner: int


class ChunkDone(NamedTuple):
    """A chunk is copied, or met a problem: (operation, errno, text, on the source, changed)."""

    temporary: bytes
    problem: tuple[str, int, str, bool, bool] | None


class FinishFile(NamedTuple):
    """All chunks are there: metadata, and the final name."""

    file: OpenFile


class LinkNote(NamedTuple):
    """Names in one directory of inodes with several links; ``attempt`` as in ``ScanNames``."""

    place: Place
    names: bytes
    mounts: bytes
    inodes: bytes
    sizes: bytes
    attempt: int


class GroupLinks(NamedTuple):
    """Gathers the notes of one bucket into groups."""

    bucket: int


class LinkGroup(NamedTuple):
    """Names of one inode, of which the first that can be is copied and the others are linked to it."""

    mount: int
    inode: int
    size: int
    names: tuple[tuple[Place, bytes], ...]
    attempt: int


class MakeLinks(NamedTuple):
    """Links ``names`` to the first name's copy, which is the inode ``made``."""

    group: LinkGroup
    made: int


class FinishDir(NamedTuple):
    """Gives a directory its metadata; ``counted`` if it counts as copied then (it doesn't once it has failed)."""

    place: Place
    attributes: Attributes
    counted: bool


class SealDir(NamedTuple):
    """A directory that comes last, because its owner can't enter it afterwards."""

    finish: FinishDir


class SealDirs(NamedTuple):
    """Finishes what was told by ``SealDir``, deepest first."""


class SyncFiles(NamedTuple):
    """Brings a file system to stable storage; ``device`` -1 stands for those of the roots."""

    device: int


class ReportFailures(NamedTuple):
    """Tells rank 0 of failures: (path, operation, errno, message) each."""

    failures: tuple[tuple[bytes, str, int, str], ...]
    notices: tuple[str, ...]


_TYPES: tuple[type[Any], ...] = (
    ScanDir, ScanNames, CopyFiles, CopyNodes, SplitFile, FileOpened, CopyChunk, ChunkDone, FinishFile, LinkNote,
    GroupLinks, LinkGroup, MakeLinks, FinishDir, SealDir, SealDirs, SyncFiles, ReportFailures,
)  # fmt: skip
_NESTED: tuple[type[Any], ...] = (Place, Attributes, Version, OpenFile)
_CODES = {kind: code for code, kind in enumerate((*_TYPES, *_NESTED))}
_KINDS = (*_TYPES, *_NESTED)


def _plain(value: Any) -> Any:
    """Named tuples as plain ones that begin with their code; other tuples begin with -1."""
    if isinstance(value, tuple):
        return (_CODES.get(type(value), -1), *(_plain(field) if isinstance(field, tuple) else field for field in value))
    return value


def _named(value: Any) -> Any:
    if isinstance(value, tuple):
        fields = [_named(field) if isinstance(field, tuple) else field for field in value[1:]]
        return tuple(fields) if value[0] < 0 else _KINDS[value[0]](*fields)
    return value


def encode(task: tuple[Any, ...]) -> bytes:
    """The packed form of a task."""
    return pickle.dumps(_plain(task), 5)


def decode(payload: bytes) -> Any:
    """The task whose packed form is ``payload``; raises ``InvariantBroken`` for anything else."""
    try:
        task = _named(load_primitives(payload))
    except Exception as error:
        raise InvariantBroken(f"a task that is none of pcopy's: {error}") from error
    if not isinstance(task, _TYPES):
        raise InvariantBroken(f"a task that is none of pcopy's: {task!r}")
    return task


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
