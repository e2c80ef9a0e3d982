"""ReadItems: items of the source that are not copied, but whose digests are wanted.

Those are what a signature describes though the copy skipped it, and everything that ``pverify`` reads.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator

from pcopy.engine.driver import Slices
from pcopy.fsio.close import close_read, let_go
from pcopy.fsio.contents import bypass_cache, digest_contents, digest_to_end, drop_pages, has_holes
from pcopy.fsio.half_written import is_marked, refuse_marked
from pcopy.fsio.nodes import keep_access_time, open_node
from pcopy.fsio.problem import Problem, changed
from pcopy.fsio.source import Version, check_found, check_unchanged, open_source, status_of
from pcopy.signature.items import FILE
from pcopy.tasks import counts
from pcopy.tasks.context import FILES_PER_SLICE, Context
from pcopy.tasks.hashing import SOCKET, Hashing, kind_of
from pcopy.tasks.read_values import Contents, ReadItems, SplitRead
from pcopy.tasks.result import Result
from pcopy.tasks.retry import failed_or_retried
from pcopy.tasks.values import NOWHERE, Known, Place, pack_numbers, unpack_names, unpack_numbers


def read_items(task: ReadItems, context: Context, result: Result) -> Slices:
    """One after the other."""
    names, inodes = unpack_names(task.names), unpack_numbers(task.inodes)
    try:
        source = context.open_source(task.place)
    except Problem as problem:
        for name in names:
            _failed(context, result, task, name, problem)
        return result.outcome()
    careful = yield from _read_small_files(context, result, task, source, names)
    for index in careful:
        name, inode, kind = names[index], inodes[index], task.kinds[index : index + 1]
        try:
            if kind == FILE:
                known = yield from _read_file(context, result, task, source, name, inode)
            else:
                known = _read_node(context, source, name, inode, kind)
        except Problem as problem:
            _failed(context, result, task, name, problem)
        else:
            if known is not None:
                was_read(context, result, task.place, name, known, task.counter)
        yield
    return result.outcome()


def _read_small_files(
    context: Context, result: Result, task: ReadItems, source: int, names: list[bytes]
) -> Generator[None, None, list[int]]:
    """Which items want care: all but small files, and what can't be read just so."""
    if context.options.direct or context.options.drop_cache:
        return list(range(len(names)))
    inodes = unpack_numbers(task.inodes)
    careful = [index for index, code in enumerate(task.kinds) if code != FILE[0]]
    plain = [index for index, code in enumerate(task.kinds) if code == FILE[0]]
    if context.options.signs:  # a signature must not vouch for what is half written
        marked = {index for index in plain if is_marked(source, names[index])}
        careful, plain = [*careful, *marked], [index for index in plain if index not in marked]
    reads = context.kernel.read_files(source, [names[index] for index in plain])
    for done, (index, read) in enumerate(zip(plain, reads, strict=True)):
        if isinstance(read, int) or read[0].st_ino != inodes[index]:
            careful.append(index)
            continue
        status, digest = read
        context.counters[counts.MOVED] += status.st_size
        known = Known(FILE, status.st_size, digest, Version.of(status))
        was_read(context, result, task.place, names[index], known, task.counter)
        if not done % FILES_PER_SLICE:
            yield
    return careful


def _failed(context: Context, result: Result, task: ReadItems, name: bytes, problem: Problem) -> None:
    read_failed(context, result, task.place, name, problem, task.attempt, task.counter)


def read_failed(
    context: Context,
    result: Result,
    place: Place,
    name: bytes,
    problem: Problem,
    attempt: int,
    counter: int,
    size: int = 0,
) -> None:
    """The item's digest can't be had; one that counts already counts as failed now."""
    if counter < 0:
        failed_or_retried(result, place, name, problem, attempt, size)
    else:
        result.count(counter, -1, place)
        result.fail(place, name, problem, size, touched=True)


def was_read(context: Context, result: Result, place: Place, name: bytes, known: Known, counter: int) -> None:
    """The item's digest is known now; in a copy that counts as skipped, where it doesn't count already."""
    if counter < 0:
        counter = counts.SKIPPED if context.job.copies else counts.of_kind(known.kind)
        result.count(counter, 1, place)
        result.count(counts.SKIPPED_BYTES if context.job.copies else counts.BYTES, known.size, place)
    result.digested(place, name, known, counter, verify=context.verifies_skipped and place.target_id != NOWHERE)


def _read_file(
    context: Context, result: Result, task: ReadItems, source: int, name: bytes, inode: int
) -> Generator[None, None, Known | None]:
    """None for a large one, which is read in parts by tasks of their own."""
    hashing = context.hashing
    reading = open_source(source, name, follow=context.options.dereference)
    try:
        status = status_of(reading, on_source=True)
        check_found(status, None, inode)
        if context.options.signs:
            refuse_marked(reading)
        version = Version.of(status)
        if context.splits(status.st_size):
            known = Known(FILE, status.st_size, b"", version)
            contents = Contents(task.place, name, known, True, task.attempt, task.counter, 0, b"")
            result.spawn(SplitRead(contents), status.st_size)
            return None
        hasher = hashing.hasher()
        steps = (
            digest_contents(
                reading, 0, status.st_size, hasher, holes=has_holes(status), direct=reads_directly(context, reading)
            )
            if status.st_size
            else digest_to_end(reading, hasher)
        )
        for moved in steps:
            context.counters[counts.MOVED] += moved
            yield
        check_unchanged(reading, version)
        if context.options.drop_cache:
            drop_pages(reading)
        return Known(FILE, hasher.size, hashing.file(hasher), version)
    finally:
        close_read(reading)


def reads_directly(context: Context, reading: int) -> bool:
    """Makes a source that is proved, not copied, be read past the page cache if that is wanted; tells whether it is."""
    return context.options.direct and not context.job.copies and bypass_cache(reading)


def _read_node(context: Context, source: int, name: bytes, inode: int, kind: bytes) -> Known:
    held = open_node(source, name, on_source=True, follow=context.options.dereference)
    try:
        status = status_of(held, on_source=True)
        if status.st_ino != inode or kind_of(status) != kind:
            raise changed("open", "another item has taken its name")
        return node_known(context.hashing, held, status, on_source=True)
    finally:
        let_go(held)


def node_known(hashing: Hashing, held: int, status: os.stat_result, *, on_source: bool) -> Known:
    """What is known of a symbolic link, FIFO, device or socket that is ``held`` with O_PATH; raises ``Problem``."""
    link = b""
    if stat.S_ISLNK(status.st_mode):
        try:
            link = os.readlink(b"", dir_fd=held)
        except OSError as error:
            raise Problem.of("readlink", error, on_source=on_source) from error
        if not on_source:
            keep_access_time(held, status)
    return Known(kind_of(status), 0, hashing.node(status, link), Version.of(status))


def skipped(context: Context, result: Result, place: Place, name: bytes, known: Known) -> None:
    """An item that is there and stays: it counts as skipped, once it has been read for a digest that is wanted."""
    if known.kind != SOCKET and (context.signs or context.verifies_skipped):
        read_too(result, place, name, known)
    else:
        result.count(counts.SKIPPED, 1, place)
        result.count(counts.SKIPPED_BYTES, known.size, place)


def read_too(result: Result, place: Place, name: bytes, known: Known, counter: int = -1) -> None:
    """Spawns the reading of an item that is not copied; ``counter`` is where it has been counted."""
    task = ReadItems(place, name, known.kind, pack_numbers([known.version.inode]), 0, counter)
    result.spawn(task, known.size)
