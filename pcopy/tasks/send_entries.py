"""StoredEntries, SendEntries and EntriesNote: what ranks know of entries comes to the owners of their directories.

Part by part, each as a task of its own, so that a rank which sends takes what it is sent in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from pcopy.engine.driver import Slices
from pcopy.tasks.codec import decode
from pcopy.tasks.context import Context
from pcopy.tasks.hashing import split_digests
from pcopy.tasks.result import Result
from pcopy.tasks.sign_values import DeepestNote, Entries, EntriesNote, SendEntries, StoredEntries
from pcopy.tasks.signing import Row, owner_of
from pcopy.tasks.values import unpack_names, unpack_numbers


def stored_entries(task: StoredEntries, context: Context, result: Result) -> Slices:
    """They join what this rank has to send."""
    if not context.sign.entries.count:
        result.spawn(SendEntries(), owner=context.rank)
    context.sign.keep(task.entries)
    return result.outcome()
    yield


def send_entries(task: SendEntries, context: Context, result: Result) -> Slices:
    """One frame of the rank's store."""
    shares: dict[int, list[Entries]] = {}
    for packed in context.sign.entries.take_frame():
        note: EntriesNote = decode(packed.payload)
        for entries in note.parts:
            shares.setdefault(owner_of(entries.path, context.size), []).append(entries)
    for owner, parts in shares.items():
        result.spawn(EntriesNote(tuple(parts)), owner=owner)
    if context.sign.entries.count:
        result.spawn(SendEntries(), owner=context.rank)
    else:
        result.spawn(DeepestNote(context.sign.deepest), owner=0)
    return result.outcome()
    yield


def entries_note(task: EntriesNote, context: Context, result: Result) -> Slices:
    """Keeps them, sorted."""
    signing, size = context.sign.signing, context.hashing.algorithm.size
    for entries in task.parts:
        signing.add(entries.side, entries.path, _rows(entries, size))
        yield
    return result.outcome()


def _rows(entries: Entries, digest_size: int) -> Iterator[tuple[bytes, Row]]:
    columns = (unpack_names(entries.names), entries.kinds, unpack_numbers(entries.sizes))
    for name, code, size, digest in zip(*columns, split_digests(entries.digests, digest_size), strict=True):
        yield name, Row(bytes((code,)), entries.round, size, digest)


def deepest_note(task: DeepestNote, context: Context, result: Result) -> Slices:
    """At rank 0: the levels begin at the deepest of all."""
    context.sign.deepest = max(context.sign.deepest, task.depth)
    return result.outcome()
    yield
