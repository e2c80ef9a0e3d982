"""The tasks that read for digests, as values: of the source what is not copied, of the destination what was.

``ReadItems`` reads items of a source directory, ``VerifyItems`` and ``VerifyLinks`` read copies back and compare.
``SplitRead`` turns a large file into ``ReadChunk``s, each of which ends in a ``ChunkRead`` note to the file's owner,
the rank that got ``ReadOpened``.
"""

from __future__ import annotations

from typing import NamedTuple

from pcopy.fsio.problem import Plain
from pcopy.tasks.values import Known, LinkGroup, Place

ReadId = tuple[int, int, int]
"""A file that is read in chunks: the run and the rank that it belongs to, and a number."""


class ReadItems(NamedTuple):
    """Items of a source directory, of the types ``kinds`` (a byte each).

    ``counter`` is where they have been counted, -1 if they are to be.
    """

    place: Place
    names: bytes
    kinds: bytes
    inodes: bytes
    attempt: int
    counter: int


class VerifyItems(NamedTuple):
    """Items of a target directory (the name ``b""``: the directory itself).

    One byte of ``kinds`` and of ``counters`` (where each has been counted), 8 of ``sizes``, 32 of ``versions`` and one
    digest of ``digests`` for each of ``names``. ``writer`` is the host that wrote them.
    """

    place: Place
    names: bytes
    kinds: bytes
    counters: bytes
    sizes: bytes
    versions: bytes
    digests: bytes
    writer: int


class VerifyLinks(NamedTuple):
    """The names of ``group`` are the inode ``made``, which holds what is ``known`` of the first of them.

    ``counter`` is where the first of them has been counted; ``chunk`` and ``writers`` as in ``Contents``.
    """

    group: LinkGroup
    made: int
    known: Known
    counter: int
    chunk: int
    writers: bytes


class Contents(NamedTuple):
    """A large file to read. ``known.digest`` is empty on the source's side, and what is expected on the target's.

    ``chunk`` is the size of its parts in bytes (0: to be chosen), of which the hosts ``writers`` (a byte each; one for
    all, or one a part) wrote the copy. ``counter`` as in ``ReadItems``. A copy with further names stands for the
    ``group`` of all of them.
    """

    place: Place
    name: bytes
    known: Known
    on_source: bool
    attempt: int
    counter: int
    chunk: int
    writers: bytes
    group: LinkGroup | None = None


class SplitRead(NamedTuple):
    """A large file whose turn to be read has come."""

    contents: Contents


class ReadOpened(NamedTuple):
    """Tells the owner of a file that is read how many chunks to wait for."""

    number: ReadId
    contents: Contents
    chunks: int


class ReadChunk(NamedTuple):
    """The bytes from ``start`` to ``end``, the chunk number ``part``; ``owner`` waits for the note."""

    contents: Contents
    start: int
    end: int
    number: ReadId
    part: int
    owner: int


class ChunkRead(NamedTuple):
    """A chunk's content root, or the problem met."""

    number: ReadId
    part: int
    root: bytes
    problem: Plain | None
