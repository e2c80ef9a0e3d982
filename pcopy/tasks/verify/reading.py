"""Reads items for their digests, in the source or in the target; compares a copy with what was copied; and records the
results.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ReadSmallFilesBatch, ReadSmallFilesResult
from pcopy.fsio.backend.interface import await_ticket
from pcopy.fsio.close import close_after_read, closing_descriptor
from pcopy.fsio.contents import (
    digest_contents,
    digest_file_to_end,
    digest_pieces,
    drop_cached_pages,
    enable_direct_io,
    may_have_holes,
    pieces_of_pseudo_file,
)
from pcopy.fsio.nodes import open_o_path_descriptor, restore_access_time
from pcopy.fsio.problem import Problem, errors_as_problem, source_changed_problem
from pcopy.fsio.source import (
    FileContentVersion,
    check_file_is_unchanged,
    open_item_to_read,
    open_source_file_to_read,
    status_of_open_item,
)
from pcopy.fsio.throttle import throttled_steps
from pcopy.signature.items import DIRECTORY, FILE
from pcopy.signature.tree import ContentHasher
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.attempts import fail_or_retry
from pcopy.tasks.base.hashing import JobItemHasher, item_type_byte
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import NamesToExamine, RetryMode, TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, REPAIR_ATTEMPT, ContentInfo, FileToRead, Item, Place
from pcopy.tasks.directories.finish_dir import (
    FinishDir,
    is_target_present,
    report_failed_directory,
    spawn_finish_dir_task_once,
)

_BYTES_COUNTER_BY_ITEM_COUNTER = {counts.FILES: counts.BYTES, counts.SKIPPED: counts.SKIPPED_BYTES}
"""For a counter of items, the counter of their sizes in bytes (both as indices of the counters). Other counters of
items have none.
"""


def execute_read_batch(rank: Rank, batch: ReadSmallFilesBatch, counter: int) -> TicketGenerator[ReadSmallFilesResult]:
    """Let the backend read the files of ``batch``, and return the result. While it runs, the bytes read so far are
    added to the counter with the index ``counter``, and charged to the rate limit.
    """
    ticket = rank.backend.submit_batch(batch)
    verdicts, counted = ticket.result.verdicts, 0

    def count() -> None:
        nonlocal counted
        rank.counters[counter] += verdicts.moved - counted
        rank.throttle.bytes.take_tokens(verdicts.moved - counted)
        counted = verdicts.moved

    read = yield from await_ticket(rank.backend, ticket, count)
    yield from rank.throttle.wait_for_tokens()
    return read


def content_info_of_special_file(
    hashing: JobItemHasher, node: int, status: os.stat_result, *, on_source: bool
) -> ContentInfo:
    """Return type, size (0), digest and version of a symbolic link, FIFO, device or socket. Raise ``Problem`` on
    failure.

    Args:
        node: descriptor of the item, opened with O_PATH.
        status: status of the item.
        on_source: True if the item is in the source, False if it is in the target.
    """
    link = b""
    if stat.S_ISLNK(status.st_mode):
        with errors_as_problem("readlink", on_source=on_source):
            link = os.readlink(b"", dir_fd=node)
        if not on_source:
            restore_access_time(node, status)
    return ContentInfo(
        item_type_byte(status), 0, hashing.digest_of_special_file(status, link), FileContentVersion.from_status(status)
    )


def hash_file_range(rank: Rank, contents: FileToRead, start: int, end: int) -> Generator[None, None, ContentHasher]:
    """Read the bytes from ``start`` to ``end`` of the regular file that ``contents`` describes, and return the hasher
    that has received them.

    Raise ``Problem`` on failure. Raise it also if the file in the source has changed since the version in ``contents``,
    or if the file in the target is not a regular file of the expected size.
    """
    place, name, known, on_source, *_ = contents
    if on_source:
        reading = open_source_file_to_read(
            rank.open_source_directory(place), name, follow=rank.copy_options.dereference
        )
    else:
        directory, copy = rank.open_target_directory(place), rank.target_name(place, name)
        with errors_as_problem("open"):
            reading = open_item_to_read(directory, copy)
    try:
        status = status_of_open_item(reading, on_source=on_source)
        if on_source:
            check_file_is_unchanged(reading, known.version)
        elif not stat.S_ISREG(status.st_mode):
            raise mismatch_problem("it is no longer a regular file")
        elif status.st_size != known.size:
            raise content_mismatch_problem(status.st_size, known.size)
        return (yield from hash_open_file_range(rank, reading, status, start, end, on_source=on_source))
    finally:
        close_after_read(reading)


def hash_open_file_range(
    rank: Rank, reading: int, status: os.stat_result, start: int, end: int, *, on_source: bool
) -> Generator[None, None, ContentHasher]:
    """Read the bytes from ``start`` to ``end`` of the open file ``reading``, which had this ``status``, and return the
    hasher that has received them. Raise ``Problem`` on failure, or if a source file changes meanwhile.

    If ``on_source`` is False, the file is a copy, which is read from storage, as far as the system allows to bypass the
    page cache. A source file is read to its end if its size is 0, or if it is generated when it is read (/proc): then
    its size says nothing.
    """
    options, hasher = rank.options, rank.job_item_hasher.new_hasher()
    if not on_source:
        drop_cached_pages(reading, start, end - start)
    steps: Iterator[int]
    if on_source and rank.mover.generated_file_systems.is_on_pseudo_file_system(reading, status.st_dev):
        steps = digest_pieces(pieces_of_pseudo_file(reading, status.st_size), hasher)
    elif on_source and not status.st_size:
        steps = digest_file_to_end(reading, hasher)
    else:
        direct = options.direct and not (on_source and rank.job.copies) and enable_direct_io(reading)
        holes = may_have_holes(status)
        steps = digest_contents(reading, start, end, hasher, may_have_holes=holes, on_source=on_source, direct=direct)
    for read in throttled_steps(steps, rank.throttle):
        rank.counters[counts.MOVED if on_source else counts.VERIFIED_BYTES] += read
        yield
    if on_source:
        check_file_is_unchanged(reading, FileContentVersion.from_status(status))
    if options.drop_cache:
        drop_cached_pages(reading, start, end - start)
    return hasher


def verify_copy(rank: Rank, copy: FileToRead) -> Generator[None, None, None]:
    """Read a copy in the target, and raise ``Problem`` unless it equals what was copied and its source has not changed
    since then. ``copy`` describes the copy and what it must contain.
    """
    place, name, known = copy.place, copy.name, copy.known
    if known.kind == DIRECTORY:
        rank.open_target_directory(place)
    elif known.kind == FILE:
        hasher = yield from hash_file_range(rank, copy, 0, known.size)
        if rank.job_item_hasher.digest_of_file(hasher) != known.digest:
            raise content_mismatch_problem(known.size, known.size)
    else:
        with closing_descriptor(
            open_o_path_descriptor(rank.open_target_directory(place), rank.target_name(place, name), on_source=False)
        ) as node:
            status = status_of_open_item(node)
            if item_type_byte(status) != known.kind:
                raise mismatch_problem("its type differs from the copied item")
            found = content_info_of_special_file(rank.job_item_hasher, node, status, on_source=False)
        if found.digest != known.digest:
            raise mismatch_problem("it differs from the copied item")
    check_source_unchanged(rank, copy)


def content_mismatch_problem(size: int, expected: int) -> Problem:
    """Return the ``Problem`` of a copy that has ``size`` bytes instead of ``expected``, or the right size and other
    contents.
    """
    return mismatch_problem(
        "its contents differ from the source" if size == expected else f"it has {size} bytes, not {expected}"
    )


def mismatch_problem(text: str) -> Problem:
    """Return the ``Problem`` of a copy that is not what was copied; ``text`` says why."""
    return Problem("verify", 0, text=text)


def check_source_unchanged(rank: Rank, copy: FileToRead) -> None:
    """Raise ``Problem`` if the source of ``copy`` has another version (inode, size, mtime, ctime) than when it was
    copied. For a directory nothing is checked.
    """
    if copy.known.kind == DIRECTORY:
        return
    status = rank.source_item_status(copy.place, copy.name)
    if FileContentVersion.from_status(status) != copy.known.version:
        raise source_changed_problem("verify", "the source has changed since it was copied")


def record_digest(rank: Rank, result: TaskResult, place: Place, name: bytes, known: ContentInfo, counter: int) -> None:
    """Record the digest of an item that was read; ``known`` contains it, with type, size and version. If ``counter`` is
    -1, count the item: as skipped in a job that copies, by its type in ``pverify``. Otherwise it was counted before, in
    the counter with this index.
    """
    if counter < 0:
        counter = count_read_items(rank, result, place, known.kind, 1, known.size)
        if rank.job.copies:
            result.item_recorder.record_item_outcome(ItemAction.SKIP, place, name, known.kind, known.size)
    result.collect_digest(place, name, known, counter, verify=are_copies_read_back(rank, place))


def count_read_items(rank: Rank, result: TaskResult, place: Place, kind: bytes, items: int, size: int) -> int:
    """Count ``items`` items with the type byte ``kind`` that were read; together they have ``size`` bytes. Return the
    index of the counter: SKIPPED in a copy, else that of the type.
    """
    counter = counts.SKIPPED if rank.job.copies else counts.copied_counter(kind)
    result.count(counter, items, place)
    result.count(counts.SKIPPED_BYTES if rank.job.copies else counts.BYTES, size, place)
    return counter


def are_copies_read_back(rank: Rank, place: Place) -> bool:
    """Return True if items that are read in the source directory of ``place`` exist as kept items in the target, and
    must be read there, too. This is so with ``--verify`` and ``--existing changed``.
    """
    return rank.verifies_kept_items and place.target_id != NO_DIRECTORY_IDENTITY


def report_read_failure(
    result: TaskResult, place: Place, name: bytes, problem: Problem, attempt: int, counter: int, size: int = 0
) -> None:
    """Report that an item could not be read for its digest. If it was counted already (``counter`` is not -1), take
    that count back and count it as failed. Otherwise it is tried again, or counted as failed.

    Args:
        attempt: number of the attempt that failed, from 0.
        counter: index of the counter in which the item was counted; -1 if it was not counted yet.
        size: size in bytes.
    """
    if counter < 0:
        fail_or_retry(result, place, name, problem, attempt, size)
    else:
        result.count(counter, -1, place)
        result.count_item_as_failed(place, name, problem, size, may_exist=True)


def count_verified_copy(result: TaskResult, copy: FileToRead) -> None:
    """Count the copy as verified, once for each of its names (hard links)."""
    for number, (place, _) in enumerate(copy.names):
        result.count(counts.VERIFIED, 1, place)
        result.count(counts.CONFIRMED_BYTES, 0 if number else copy.known.size, place)


def report_or_repair_copy(rank: Rank, result: TaskResult, copy: FileToRead, problem: Problem) -> None:
    """Handle a copy that differs from what was copied (``problem``): count and report it as failed; or, with
    ``--repair``, have it copied again once.

    All names of one inode are copied again together: a name that was copied separately would not be a hard link.
    """
    known, counter, group = copy.known, copy.counter, copy.linked_item
    if known.kind == DIRECTORY:
        result.count(counts.REFUTED, 1, copy.place)
        report_failed_directory(result, copy.place, problem, FinishDir(copy.place, None, True, -1, is_again=True))
        return
    is_first = result.phase < Phase.REPAIR
    repairs = rank.copy_options.repair and is_first and (group is not None or is_target_present(rank, copy.place))
    attempt = 1 if counter == counts.SKIPPED else REPAIR_ATTEMPT
    retry: Item | NamesToExamine | RetryMode = NamesToExamine(copy.place, copy.name, attempt)
    if group is not None:
        retry = group._replace(attempt=REPAIR_ATTEMPT)
    for number, (place, name) in enumerate(copy.names):
        result.count(counts.REFUTED, 1, place)
        result.count(counts.HARDLINKS if number else counter, -1, place)
        if not number and counter in _BYTES_COUNTER_BY_ITEM_COUNTER:
            result.count(_BYTES_COUNTER_BY_ITEM_COUNTER[counter], -known.size, place)
        if not repairs:
            result.count_item_as_failed(place, name, problem, known.size, retry=retry, retry_phase=Phase.REPAIR)
            retry = RetryMode.BY_OTHER_TASK
    if not repairs:
        return
    # The user is warned even if the repair succeeds, because storage that loses data needs attention.
    text = f"{problem.operation}: {problem.strerror or os.strerror(problem.errno or 0)}; it is copied again"
    result.warn_about_item(copy.place, copy.name, text, on_source=problem.on_source)
    if isinstance(retry, Item):
        result.spawn_copy_task(retry, phase=Phase.REPAIR)
    else:
        result.examine_names_again(copy.place, copy.name, attempt, phase=Phase.REPAIR)
    for place in {place for place, _ in copy.names}:
        spawn_finish_dir_task_once(rank, result, place, result.phase)
