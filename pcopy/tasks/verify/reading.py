"""Reading of items for their digests, on either side; comparison of a copy with what was copied; and the results."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.close import close_read, held_open
from pcopy.fsio.contents import (
    bypass_cache,
    digest_contents,
    digest_pieces,
    digest_to_end,
    drop_pages,
    generated_pieces,
    has_holes,
)
from pcopy.fsio.kernel.batches import Read, ReadBack
from pcopy.fsio.kernel.interface import waited
from pcopy.fsio.nodes import keep_access_time, open_node
from pcopy.fsio.problem import Problem, changed, failing
from pcopy.fsio.source import Version, check_unchanged, open_source, open_to_read, status_of
from pcopy.fsio.throttle import throttled
from pcopy.signature.items import DIRECTORY, FILE
from pcopy.signature.tree import ContentHasher
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.attempts import failed_or_retried
from pcopy.tasks.base.hashing import Hashing, kind_of
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Names, Result, Tried
from pcopy.tasks.base.values import COPIED_BEFORE, NOWHERE, Contents, Item, Known, Place
from pcopy.tasks.directories.finish_dir import FinishDir, directory_failed, finish_again, is_there

_SIZES = {counts.FILES: counts.BYTES, counts.SKIPPED: counts.SKIPPED_BYTES}
"""Maps the counter of an item to the counter of its size."""


def read_rows(rank: Rank, batch: Read, counter: int) -> Stepwise[ReadBack]:
    """Run a batch that reads files and return its result; add the bytes to ``counter`` while they are read."""
    ticket = rank.kernel.submit(batch)
    verdicts, counted = ticket.result.verdicts, 0

    def count() -> None:
        nonlocal counted
        rank.counters[counter] += verdicts.moved - counted
        rank.throttle.bytes.take(verdicts.moved - counted)
        counted = verdicts.moved

    read = yield from waited(rank.kernel, ticket, count)
    yield from rank.throttle.naps()
    return read


def node_known(hashing: Hashing, node: int, status: os.stat_result, *, on_source: bool) -> Known:
    """Return type, size, digest and version of a symbolic link, FIFO, device or socket that is open with O_PATH; raise
    ``Problem``.

    Args:
        node: descriptor of the item.
        status: status of the item.
    """
    link = b""
    if stat.S_ISLNK(status.st_mode):
        with failing("readlink", on_source=on_source):
            link = os.readlink(b"", dir_fd=node)
        if not on_source:
            keep_access_time(node, status)
    return Known(kind_of(status), 0, hashing.node(status, link), Version.of(status))


def digested(rank: Rank, contents: Contents, start: int, end: int) -> Generator[None, None, ContentHasher]:
    """Read the bytes from ``start`` to ``end`` of a regular file, and return the hasher that has digested them.

    Raise ``Problem`` if a source file no longer has the known version, or a copy does not have the known size.
    """
    place, name, known, on_source, *_ = contents
    if on_source:
        reading = open_source(rank.open_source(place), name, follow=rank.options.dereference)
    else:
        directory, copy = rank.open_target(place), rank.new_name(place, name)
        with failing("open"):
            reading = open_to_read(directory, copy)
    try:
        status = status_of(reading, on_source=on_source)
        if on_source:
            check_unchanged(reading, known.version)
        elif not stat.S_ISREG(status.st_mode):
            raise unlike("it is no longer a regular file")
        elif status.st_size != known.size:
            raise unlike_contents(status.st_size, known.size)
        return (yield from digested_part(rank, reading, status, start, end, on_source=on_source))
    finally:
        close_read(reading)


def digested_part(
    rank: Rank, reading: int, status: os.stat_result, start: int, end: int, *, on_source: bool
) -> Generator[None, None, ContentHasher]:
    """As ``digested``, for a file that is open and had this ``status``. A source file must not have changed by the end.

    A copy is read from storage, as far as the system allows to bypass the page cache. For a source file a size of 0 is
    not trusted, nor any size of a file that is generated as it is read: such a file is read to its end.
    """
    options, hasher = rank.options, rank.hashing.hasher()
    if not on_source:
        drop_pages(reading, start, end - start)
    steps: Iterator[int]
    if on_source and rank.mover.generated.is_on(reading, status.st_dev):
        steps = digest_pieces(generated_pieces(reading, status.st_size), hasher)
    elif on_source and not status.st_size:
        steps = digest_to_end(reading, hasher)
    else:
        direct = options.direct and not (on_source and rank.job.copies) and bypass_cache(reading)
        holes = has_holes(status)
        steps = digest_contents(reading, start, end, hasher, holes=holes, on_source=on_source, direct=direct)
    for read in throttled(steps, rank.throttle):
        rank.counters[counts.MOVED if on_source else counts.VERIFIED_BYTES] += read
        yield
    if on_source:
        check_unchanged(reading, Version.of(status))
    if options.drop_cache:
        drop_pages(reading, start, end - start)
    return hasher


def compare(rank: Rank, copy: Contents) -> Generator[None, None, None]:
    """Raise ``Problem`` unless the copy equals what was copied and its source has not changed since."""
    place, name, known = copy.place, copy.name, copy.known
    if known.kind == DIRECTORY:
        rank.open_target(place)
    elif known.kind == FILE:
        hasher = yield from digested(rank, copy, 0, known.size)
        if rank.hashing.file(hasher) != known.digest:
            raise unlike_contents(known.size, known.size)
    else:
        with held_open(open_node(rank.open_target(place), rank.new_name(place, name), on_source=False)) as node:
            status = status_of(node)
            if kind_of(status) != known.kind:
                raise unlike("its type differs from the copied item")
            found = node_known(rank.hashing, node, status, on_source=False)
        if found.digest != known.digest:
            raise unlike("it differs from the copied item")
    check_source(rank, copy)


def unlike_contents(size: int, expected: int) -> Problem:
    """Return a ``Problem``: the copy has another size, or other contents of the same size."""
    return unlike("its contents differ from the source" if size == expected else f"it has {size} bytes, not {expected}")


def unlike(text: str) -> Problem:
    """Return a ``Problem``: the copy is not what was copied."""
    return Problem("verify", 0, text=text)


def check_source(rank: Rank, copy: Contents) -> None:
    """Raise ``Problem`` if the source has changed since it was copied. The version of a directory is not checked."""
    if copy.known.kind == DIRECTORY:
        return
    status = rank.source_status(copy.place, copy.name)
    if Version.of(status) != copy.known.version:
        raise changed("verify", "the source has changed since it was copied")


def was_read(rank: Rank, result: Result, place: Place, name: bytes, known: Known, counter: int) -> None:
    """Record the digest of an item; count it (as skipped in a copy) unless it is counted already."""
    if counter < 0:
        counter = count_read(rank, result, place, known.kind, 1, known.size)
        if rank.job.copies:
            result.items.did(Action.SKIP, place, name, known.kind, known.size)
    result.digested(place, name, known, counter, verify=verifies(rank, place))


def count_read(rank: Rank, result: Result, place: Place, kind: bytes, items: int, size: int) -> int:
    """Count items of one type that were read, with ``size`` bytes together; return the counter used."""
    counter = counts.SKIPPED if rank.job.copies else counts.of_kind(kind)
    result.count(counter, items, place)
    result.count(counts.SKIPPED_BYTES if rank.job.copies else counts.BYTES, size, place)
    return counter


def verifies(rank: Rank, place: Place) -> bool:
    """Return True if items read in this source directory are also read back from the target."""
    return rank.verifies_skipped and place.target_id != NOWHERE


def read_failed(
    result: Result, place: Place, name: bytes, problem: Problem, attempt: int, counter: int, size: int = 0
) -> None:
    """Report that the item's digest could not be computed. An item that is counted already is moved
    to the failed ones.
    """
    if counter < 0:
        failed_or_retried(result, place, name, problem, attempt, size)
    else:
        result.count(counter, -1, place)
        result.fail(place, name, problem, size, touched=True)


def verified(result: Result, copy: Contents) -> None:
    """Count the copy as verified, under all of its names."""
    for number, (place, _) in enumerate(copy.names):
        result.count(counts.VERIFIED, 1, place)
        result.count(counts.CONFIRMED_BYTES, 0 if number else copy.known.size, place)


def not_verified(rank: Rank, result: Result, copy: Contents, problem: Problem) -> None:
    """Report that the copy did not verify, or have it copied again (``--repair``).

    Names of one inode are copied again together: a name that was copied separately would not be a link.
    """
    known, counter, group = copy.known, copy.counter, copy.group
    if known.kind == DIRECTORY:
        result.count(counts.REFUTED, 1, copy.place)
        directory_failed(result, copy.place, problem, FinishDir(copy.place, None, True, -1, again=True))
        return
    is_first = result.phase < Phase.REPAIR
    repairs = rank.options.repair and is_first and (group is not None or is_there(rank, copy.place))
    attempt = 1 if counter == counts.SKIPPED else COPIED_BEFORE
    retry: Item | Names | Tried = Names(copy.place, copy.name, attempt)
    if group is not None:
        retry = group._replace(attempt=COPIED_BEFORE)
    for number, (place, name) in enumerate(copy.names):
        result.count(counts.REFUTED, 1, place)
        result.count(counts.HARDLINKS if number else counter, -1, place)
        if not number and counter in _SIZES:
            result.count(_SIZES[counter], -known.size, place)
        if not repairs:
            result.fail(place, name, problem, known.size, retry=retry, retry_in=Phase.REPAIR)
            retry = Tried.WITH_ANOTHER
    if not repairs:
        return
    # The user is warned even if the repair succeeds, because storage that loses data needs attention.
    text = f"{problem.operation}: {problem.strerror or os.strerror(problem.errno or 0)}; it is copied again"
    result.warn(copy.place, copy.name, text, on_source=problem.on_source)
    if isinstance(retry, Item):
        result.copy(retry, phase=Phase.REPAIR)
    else:
        result.look_again(copy.place, copy.name, attempt, phase=Phase.REPAIR)
    for place in {place for place, _ in copy.names}:
        finish_again(rank, result, place, result.phase)
