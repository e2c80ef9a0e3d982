"""VerifyItems and VerifyLinks: copies are read back from storage and compared with what they were meant to be.

Everything that was copied is expected: what is gone or can't be read has failed, as what differs has. The source is
looked at once more, since a copy of what has changed meanwhile is no copy any longer. What is not as it should be
counts as failed, or with ``--repair``, the first time, is copied again.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Generator
from typing import NamedTuple

from pcopy.engine.driver import Slices
from pcopy.fsio.close import close_read, let_go
from pcopy.fsio.contents import bypass_cache, digest_contents, drop_pages, has_holes
from pcopy.fsio.kernel import SMALL_FILE
from pcopy.fsio.nodes import open_node
from pcopy.fsio.problem import Problem, changed
from pcopy.fsio.source import Version, is_version, open_to_read, source_status, status_of
from pcopy.signature.items import DIRECTORY, FILE
from pcopy.tasks import counts
from pcopy.tasks.context import CALL_COST, FILES_PER_SLICE, Context
from pcopy.tasks.fail_dir import directory_failed
from pcopy.tasks.finish_again import finish_again, is_there
from pcopy.tasks.hashing import kind_of, split_digests, unpack_versions
from pcopy.tasks.phases import Phase
from pcopy.tasks.read_items import node_known
from pcopy.tasks.read_values import Contents, SplitRead, VerifyItems, VerifyLinks
from pcopy.tasks.result import Result, Tried
from pcopy.tasks.values import (
    COPIED_BEFORE,
    FinishDir,
    Known,
    LinkGroup,
    Place,
    ScanNames,
    unpack_names,
    unpack_numbers,
)


class _Expected(NamedTuple):
    """The columns of a task, unpacked."""

    names: list[bytes]
    kinds: bytes
    counters: bytes
    sizes: array[int]
    versions: list[tuple[int, ...]]
    digests: list[bytes]

    def known(self, index: int) -> Known:
        version = Version(*self.versions[index])
        return Known(self.kinds[index : index + 1], self.sizes[index], self.digests[index], version)


def verify_items(task: VerifyItems, context: Context, result: Result) -> Slices:
    """Small files go through the kernel; other items, and those that want care, one by one after them.

    Large files become tasks of their own.
    """
    place = task.place
    expected = _Expected(
        unpack_names(task.names),
        task.kinds,
        task.counters,
        unpack_numbers(task.sizes),
        unpack_versions(task.versions),
        split_digests(task.digests, context.hashing.algorithm.size),
    )
    careful = yield from _verify_small_files(context, result, place, expected)
    for index in careful:
        name, known, counter = expected.names[index], expected.known(index), task.counters[index]
        if known.kind == FILE and context.splits(known.size):
            contents = Contents(place, name, known, False, 0, counter, 0, bytes((task.writer,)))
            result.spawn_elsewhere(SplitRead(contents), known.size, task.writer)
            continue
        try:
            yield from _compare(context, place, name, known)
            check_source(context, place, name, known)
        except Problem as problem:
            not_verified(context, result, place, name, known, counter, problem)
        else:
            verified(result, 1, known.size, place)
        yield
    return result.outcome()


def _verify_small_files(
    context: Context, result: Result, place: Place, expected: _Expected
) -> Generator[None, None, list[int]]:
    """Which items want care: all but small files, what can't be read just so, and copies of what has changed."""
    try:
        source, target = context.open_source(place), context.open_target(place)
    except Problem:
        return list(range(len(expected.names)))
    follow = context.options.dereference
    plain = [
        index
        for index, (code, size) in enumerate(zip(expected.kinds, expected.sizes, strict=True))
        if code == FILE[0] and size <= SMALL_FILE and not context.options.direct
    ]
    careful = sorted(set(range(len(expected.names))).difference(plain))
    names = [context.new_name(place, expected.names[index]) for index in plain]
    reads = context.kernel.read_files(target, names, copies=True)
    for done, (index, read) in enumerate(zip(plain, reads, strict=True)):
        if isinstance(read, int):
            careful.append(index)
            continue
        status, digest = read
        if status.st_size != expected.sizes[index] or digest != expected.digests[index]:
            problem = _unlike_contents(status.st_size, expected.sizes[index])
            counter = expected.counters[index]
            not_verified(context, result, place, expected.names[index], expected.known(index), counter, problem)
        elif is_version(source, expected.names[index], expected.versions[index], follow=follow):
            verified(result, 1, status.st_size, place)
        else:  # it is read once more, and counts then
            careful.append(index)
            continue
        context.counters[counts.VERIFIED_BYTES] += status.st_size
        if not done % FILES_PER_SLICE:
            yield
    return careful


def verify_links(task: VerifyLinks, context: Context, result: Result) -> Slices:
    """All names must be the one inode; its contents are read once, those of large files by tasks of their own."""
    place, name = task.group.names[0]
    known = task.known
    try:
        first = _copy_status(context, place, name)
        for other in task.group.names:
            status = _copy_status(context, *other)
            if (status.st_dev, status.st_ino) != (first.st_dev, task.made):
                raise unlike("it is no hard link to the others of its group any more")
            yield
        if known.kind == FILE and (task.chunk or context.splits(known.size)):
            contents = Contents(place, name, known, False, 0, task.counter, task.chunk, task.writers, task.group)
            result.spawn_elsewhere(SplitRead(contents), known.size, task.writers[0])
            return result.outcome()
        yield from _compare(context, place, name, known)
        check_source(context, place, name, known)
    except Problem as problem:
        links_not_verified(context, result, task.group, known, task.counter, problem)
    else:
        links_verified(result, task.group, known.size)
    return result.outcome()


def links_not_verified(
    context: Context, result: Result, group: LinkGroup, known: Known, counter: int, problem: Problem
) -> None:
    """As ``not_verified``, for the names of one inode, of which the first has been counted by ``counter``.

    They are copied again as a whole: one name that came alone would be no link any more.
    """
    size = known.size
    again = group._replace(attempt=COPIED_BEFORE)
    for number, (place, name) in enumerate(group.names):
        result.count(counts.REFUTED, 1, place)
        result.count(counts.HARDLINKS if number else counter, -1, place)
        if not number and counter == counts.FILES:
            result.count(counts.BYTES, -size, place)
        if not context.repairs(result.phase):
            result.fail(
                place, name, problem, size, retry=Tried.WITH_ANOTHER if number else again, retry_in=Phase.REPAIR
            )
    if context.repairs(result.phase):
        names = group.names
        _tell_repair(result, *names[0], problem)
        result.spawn(again, size + len(names) * CALL_COST, phase=Phase.REPAIR)
        for place in {place for place, _ in names}:
            finish_again(context, result, place, result.phase)


def _copy_status(context: Context, place: Place, name: bytes) -> os.stat_result:
    try:
        return os.stat(context.new_name(place, name), dir_fd=context.open_target(place), follow_symlinks=False)
    except OSError as error:
        raise Problem.of("stat", error) from error


def open_copy(context: Context, place: Place, name: bytes, *, direct: bool) -> int:
    """A descriptor for reading a regular file of the destination; raises ``Problem``. Its access time stays."""
    directory, copy = context.open_target(place), context.new_name(place, name)
    try:
        descriptor = open_to_read(directory, copy)
    except OSError as error:
        raise Problem.of("open", error) from error
    try:
        if not stat.S_ISREG(status_of(descriptor).st_mode):
            raise unlike("it is no regular file any more")
    except Problem:
        let_go(descriptor)
        raise
    if direct:
        bypass_cache(descriptor)
    return descriptor


def _compare(context: Context, place: Place, name: bytes, known: Known) -> Generator[None, None, None]:
    """Raises ``Problem`` unless the copy is what is ``known``."""
    if known.kind == DIRECTORY:
        context.open_target(place)
    elif known.kind == FILE:
        yield from _compare_file(context, place, name, known)
    else:
        held = open_node(context.open_target(place), context.new_name(place, name), on_source=False)
        try:
            status = status_of(held)
            if kind_of(status) != known.kind:
                raise unlike("it is of another type than what was copied")
            found = node_known(context.hashing, held, status, on_source=False)
        finally:
            let_go(held)
        if found.digest != known.digest:
            raise unlike("it is not what was copied")


def _compare_file(context: Context, place: Place, name: bytes, known: Known) -> Generator[None, None, None]:
    direct = context.options.direct
    reading = open_copy(context, place, name, direct=direct)
    try:
        status = status_of(reading)
        if status.st_size != known.size:
            raise _unlike_contents(status.st_size, known.size)
        drop_pages(reading)
        hasher = context.hashing.hasher()
        for read in digest_contents(
            reading, 0, known.size, hasher, holes=has_holes(status), on_source=False, direct=direct
        ):
            context.counters[counts.VERIFIED_BYTES] += read
            yield
        if context.hashing.file(hasher) != known.digest:
            raise _unlike_contents(known.size, known.size)
    finally:
        close_read(reading)


def _unlike_contents(size: int, expected: int) -> Problem:
    """Another number of bytes, or others."""
    return unlike(
        "its contents differ from what was copied" if size == expected else f"it has {size} bytes, not {expected}"
    )


def check_source(context: Context, place: Place, name: bytes, known: Known) -> None:
    """Raises ``Problem`` if the source is no longer what was copied."""
    if known.kind == DIRECTORY:
        return
    source = context.open_source(place)
    status = source_status(source, name, follow=context.options.dereference)
    if Version.of(status) != known.version:
        raise changed("verify", "the source has changed since it was copied")


def unlike(text: str) -> Problem:
    """The copy is not what it was meant to be."""
    return Problem("verify", 0, text=text)


def verified(result: Result, items: int, size: int, place: Place) -> None:
    """So many more items of a directory, with ``size`` bytes together, are proved."""
    result.count(counts.VERIFIED, items, place)
    result.count(counts.CONFIRMED_BYTES, size, place)


def links_verified(result: Result, group: LinkGroup, size: int) -> None:
    """As ``verified`` for all names of one inode."""
    for number, (place, _) in enumerate(group.names):
        verified(result, 1, 0 if number else size, place)


def not_verified(
    context: Context, result: Result, place: Place, name: bytes, known: Known, counter: int, problem: Problem
) -> None:
    """The item, which has been counted by ``counter``, has failed, or is copied again."""
    result.count(counts.REFUTED, 1, place)
    if known.kind == DIRECTORY:
        directory_failed(context, result, place, problem, FinishDir(place, None, True, -1, again=True))
        return
    result.count(counter, -1, place)
    if counter == counts.FILES:
        result.count(counts.BYTES, -known.size, place)
    elif counter == counts.SKIPPED:
        result.count(counts.SKIPPED_BYTES, -known.size, place)
    again = ScanNames(place, name, 1 if counter == counts.SKIPPED else COPIED_BEFORE)
    if not context.repairs(result.phase) or not is_there(context, place):
        result.fail(place, name, problem, known.size, retry=again, retry_in=Phase.REPAIR)
        return
    _tell_repair(result, place, name, problem)
    cost = known.size if known.size > SMALL_FILE else CALL_COST
    result.spawn(again, cost, phase=Phase.REPAIR, expands=True)
    finish_again(context, result, place, result.phase)


def _tell_repair(result: Result, place: Place, name: bytes, problem: Problem) -> None:
    """Storage that loses what was written is news to its owner, even where that was mended."""
    reason = problem.strerror or os.strerror(problem.errno or 0)
    result.warn(place, name, f"{problem.operation}: {reason}; it is copied again", on_source=problem.on_source)
