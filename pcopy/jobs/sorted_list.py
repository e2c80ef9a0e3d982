"""The user's list of paths (``--from``), sorted by directory, as a file that tasks read.

In the sorted list each path occurs once, relative to the root of the job, and is terminated by a NUL. The paths below a
directory follow that directory immediately. So a list of any length is processed with few directories in memory, and a
resumed job knows where in the list it has to continue.

A program that copies has its root before it reads the list: the base directory. The root of a program that changes or
removes items is the deepest directory that contains all listed paths; no component of its path is a symbolic link. For
these programs the list also contains what a saved listing of pwalk says about the items, namely inode, size and time:
a record of fixed size follows each path (``pcopy.tasks.listed.hand_out.LISTED_RECORD``). It combines the data of all
lines about that item, so that an item that has been replaced since is recognised.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain, takewhile
from typing import BinaryIO

from pcopy.checkpoint.layout import PATH_LIST_FILE
from pcopy.errors import RESOURCE_EXCEPTIONS, RequestRefused, TemporaryFileFailed, path_refused, resource_error_text
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.syncer import sync_file_if_supported
from pcopy.jobs.suggestions import suggestion_for_missing_path
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.job import Root
from pcopy.tasks.listed.hand_out import (
    ENDS_WITH_SLASH,
    HAS_DEVICE,
    HAS_INODE,
    HAS_MTIME,
    HAS_SIZE,
    IS_CONTRADICTORY,
    LISTED_RECORD,
)
from pcopy.text import printable_path
from pcopy.walk.path_list import BaseDirectory, PathListReader, RecordedStatus

_SORT_MEMORY = 64 << 20
"""Bytes of memory in which a list is sorted; a longer one is sorted with temporary files."""
_NUL = b"\0"
_MAX_RECORDED_TIME = 2**63 - 1
"""Limit of times in a record, in seconds since 1970, and negated the limit of times before 1970.

A time outside of the limits is replaced by the limit. No file has such a time, so the item will not match its record.
"""
_RECORD_WITHOUT_DATA = LISTED_RECORD.pack(0, 0, 0, 0, 0, 0, 0)
"""The record of an item about which the list says nothing but the path."""


class SortedPathList(NamedTuple):
    """The sorted list of ``--from``.

    Fields:
    - ``root``: the root of the job; its source and target are the deepest directory that contains all paths.
    - ``file``: the list, an open file without a name.
    - ``record_size``: bytes of the record that follows each path; 0 if no records follow.
    - ``item_count``: number of paths.
    """

    root: Root
    file: BinaryIO
    record_size: int
    item_count: int


def existing_base_directory(path: bytes) -> BaseDirectory:
    """Return the base directory that the user gave as ``path``; raise ``RequestRefused`` if it is no directory."""
    base = BaseDirectory(path, os.path.realpath(path))
    if os.path.isdir(base.real):
        return base
    exists = os.path.lexists(path)
    why = "is not a directory" if exists else "does not exist"
    raise path_refused(
        path,
        f"{why}; name the directory that contains all paths in the list of --from",
        code=errno.ENOTDIR if exists else errno.ENOENT,
    )


def sorted_paths_to_copy(
    file: bytes, root: Root, open_spool: Callable[[], BinaryIO], *, nul: bool, omit_below_listed: bool = False
) -> BinaryIO:
    """Read the user's list of paths below the source of ``root``; return the sorted list, an open file without a name.

    Args:
        file: path of the list.
        open_spool: opens a temporary file.
        nul: True if the paths in a plain list end with a NUL instead of a newline.
        omit_below_listed: True to leave out entries below a listed directory, because the job copies a listed directory
            with its contents.

    Raise ``RequestRefused`` with file and line if the list is invalid or empty, and ``TemporaryFileFailed`` if a
    temporary file cannot be written.
    """
    base = BaseDirectory(root.source_shown, root.source)
    listing = PathListReader(file, nul=nul, base=base, advice_for=suggestion_for_missing_path)
    with _sorter_of_list(listing, open_spool) as sorter:
        is_empty = True
        for item in listing.existing_items():
            sorter.add(_NUL.join(listing.names_below_top(item)), b"")
            is_empty = False
        if is_empty:
            raise listing.empty_list_error()
        written = open_spool()
        _write_unique_paths(sorter, written, listing.top, 0, with_records=False, omit_below_listed=omit_below_listed)
        return written


def sorted_paths_to_modify(
    file: bytes,
    open_spool: Callable[[], BinaryIO],
    *,
    nul: bool,
    base: BaseDirectory | None,
    check: Callable[[bytes], str],
    omit_below_listed: bool = False,
) -> SortedPathList | None:
    """Read the user's list of paths, and return it sorted; None if it is empty.

    Args:
        file, open_spool, nul, omit_below_listed: as above.
        base: the directory in which all paths must be; None: anywhere.
        check: returns the reason why the given absolute path may not be processed, or an empty text.

    Raise ``RequestRefused`` with file and line if the list is invalid, and ``TemporaryFileFailed`` if a temporary file
    cannot be written.
    """
    listing = PathListReader(file, nul=nul, base=base, modifies=True, advice_for=suggestion_for_missing_path)
    with _sorter_of_list(listing, open_spool) as sorter:
        common: bytes | None = None
        is_absolute, has_records = False, listing.is_saved
        for item in listing.existing_items():
            is_absolute = is_absolute or item.path.startswith(b"/")
            names = listing.names_below_top(item)
            if reason := check(os.path.join(listing.top, *names)):
                raise listing.error_about_path(item, reason)
            above = b"".join(name + _NUL for name in names[:-1])
            common = above if common is None else _common_leading_names(common, above)
            record = _packed_record_of_list_line(item.recorded, has_slash=item.path.endswith((b"/", b"/.")))
            has_records = has_records or bool(record)
            sorter.add(_NUL.join(names), record)
        if common is None:
            return None
        identity, directory = _deepest_directory(
            os.path.join(listing.top, common[:-1].replace(_NUL, b"/")), listing.name
        )
        written = open_spool()
        skipped = len(os.path.join(directory, b"")) - len(os.path.join(listing.top, b""))
        if skipped < 0:
            raise path_refused(listing.top, "was removed meanwhile", option=f"{listing.name}:")
        item_count = _write_unique_paths(
            sorter, written, listing.top, skipped, with_records=has_records, omit_below_listed=omit_below_listed
        )
    shown = _displayed_root_path(directory, is_absolute)
    root = Root(directory, directory, b"", b"", shown, shown, identity, identity)
    return SortedPathList(root, written, LISTED_RECORD.size if has_records else 0, item_count)


@contextmanager
def _sorter_of_list(listing: PathListReader, open_spool: Callable[[], BinaryIO]) -> Iterator[ExternalSorter]:
    """Context manager: return a sorter for the paths in ``listing``, and close both at the end.

    An error of memory or of a read raises ``RequestRefused``.
    """
    sorter = ExternalSorter(open_spool, _SORT_MEMORY)
    with closing(sorter), listing:
        try:
            yield sorter
        except TemporaryFileFailed:
            raise
        except RESOURCE_EXCEPTIONS as error:
            raise RequestRefused(f"{listing.name}: {resource_error_text(error)}") from None


def _common_leading_names(one: bytes, other: bytes) -> bytes:
    """Return the names with which both ``one`` and ``other`` begin. These are sequences of names, each terminated by a
    NUL.
    """
    if other.startswith(one):
        return one
    names = zip(one.split(_NUL), other.split(_NUL), strict=False)
    return b"".join(name + _NUL for name, _ in takewhile(lambda both: both[0] == both[1] != b"", names))


def _packed_record_of_list_line(recorded: RecordedStatus | None, *, has_slash: bool) -> bytes:
    """Return what one line of a list says about its item, as a packed record (``LISTED_RECORD``).

    Unknown fields are 0, and the first field has a bit for each known one. The record of a line that says nothing but a
    path without a slash is empty.

    Args:
        recorded: what the line says of the item; None if it contains only a path.
        has_slash: True if the path ends with a slash.
    """
    bits = ENDS_WITH_SLASH if has_slash else 0
    if recorded is None:
        return LISTED_RECORD.pack(bits, 0, 0, 0, 0, 0, 0) if bits else b""
    size, mtime = (None, None) if recorded.type == stat.S_IFDIR else (recorded.size, recorded.mtime_ns)
    fields = (recorded.inode, HAS_INODE), (recorded.device, HAS_DEVICE), (size, HAS_SIZE), (mtime, HAS_MTIME)
    bits += sum(bit for value, bit in fields if value is not None)
    seconds, nanoseconds = divmod(mtime or 0, 10**9)
    seconds = min(max(seconds, -_MAX_RECORDED_TIME), _MAX_RECORDED_TIME)
    return LISTED_RECORD.pack(
        bits, recorded.type, recorded.inode or 0, recorded.device or 0, size or 0, seconds, nanoseconds
    )


def _combined_record(one: bytes, other: bytes) -> bytes:
    """Return a record that contains all that the records ``one`` and ``other`` of the same item say.

    If both know a property and its values differ, the flag ``IS_CONTRADICTORY`` is set.
    """
    if one == other:
        return one
    (bits, *first), (further, *second) = (
        LISTED_RECORD.unpack(one or _RECORD_WITHOUT_DATA),
        LISTED_RECORD.unpack(other or _RECORD_WITHOUT_DATA),
    )
    known_twice = bits & further
    bits |= further
    for bit, mine, theirs in zip(
        (0, HAS_INODE, HAS_DEVICE, HAS_SIZE, HAS_MTIME, HAS_MTIME), first, second, strict=True
    ):
        if mine != theirs and (known_twice & bit if bit else mine and theirs):
            bits |= IS_CONTRADICTORY
    return LISTED_RECORD.pack(bits, *(mine or theirs for mine, theirs in zip(first, second, strict=True)))


def _write_unique_paths(
    sorter: ExternalSorter, written: BinaryIO, top: bytes, skipped: int, *, with_records: bool, omit_below_listed: bool
) -> int:
    """Write each path once, with the combined record of all its lines; return the number of paths.

    Args:
        sorter: the paths below ``top`` (their components separated by NUL), and a record for each, empty if nothing is
            known.
        written: the file to write to.
        top: the directory below which the paths are.
        skipped: number of bytes to remove from the beginning of each path, which make it relative to the root.
        with_records: True to write a record after each path.
        omit_below_listed: True to leave out paths below a listed directory; they follow it in the order of ``sorter``.
    """
    last: bytes | None = None
    last_record, number = b"", 0
    is_directory: bool | None = None
    for key, record in chain(sorter.sorted(), ((None, b""),)):
        if key == last:
            last_record = _combined_record(last_record, record)
            continue
        if omit_below_listed and last is not None and key is not None and key.startswith(last and last + _NUL):
            if is_directory is None:
                is_directory = is_real_directory(os.path.join(top, last.replace(_NUL, b"/")))
            if is_directory:
                continue
        if last is not None:
            path = last[skipped:].replace(_NUL, b"/") + _NUL
            written.write(path + (last_record or _RECORD_WITHOUT_DATA) if with_records else path)
            number += 1
        last, last_record, is_directory = key, record, None
    written.flush()
    written.fileno()  # moves the contents from memory to a file, which other processes can open
    return number


def _deepest_directory(path: bytes, name: str) -> tuple[tuple[int, int], bytes]:
    """Return (device, inode) and path of the deepest existing directory that is ``path`` or lies above it.

    ``name`` is the list's name in messages. Raise ``RequestRefused`` if a component of the path is a symbolic link, or
    cannot be opened.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor, reached = os.open(b"/", flags | os.O_DIRECTORY), b""
    try:
        for part in filter(None, path.split(b"/")):
            try:
                below = os.open(part, flags, dir_fd=descriptor)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    break
                raise path_refused(reached + b"/" + part, error.strerror, option=f"{name}:") from None
            mode = os.fstat(below).st_mode
            if not stat.S_ISDIR(mode):
                close_ignoring_errors(below)
                if stat.S_ISLNK(mode):
                    link = printable_path(reached + b"/" + part)
                    raise RequestRefused(
                        f"{name}: all paths lead through {link}, a symbolic link; list what it leads to"
                    )
                break
            close_ignoring_errors(descriptor)
            descriptor, reached = below, reached + b"/" + part
        status = os.fstat(descriptor)
        return (status.st_dev, status.st_ino), reached or b"/"
    finally:
        close_ignoring_errors(descriptor)


def _displayed_root_path(base: bytes, is_absolute: bool) -> bytes:
    """Return the path of the root as messages show it.

    It is relative if the root ``base`` lies in the working directory and no listed path is absolute (``is_absolute`` is
    False).
    """
    if is_absolute or not (base + b"/").startswith((here := os.getcwdb()).rstrip(b"/") + b"/"):
        return base
    return base[len(here) :].lstrip(b"/") or b"."


def is_real_directory(path: bytes) -> bool:
    """True if ``path`` is a directory, not a symbolic link to one; False if lstat fails.

    The difference matters for a listed path: a directory is copied with its contents, but a symbolic link is copied as
    a link.
    """
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def proc_path_of_descriptor(listed: BinaryIO) -> bytes:
    """Return a path through which this process, and the processes that it forks, can open the list ``listed`` a second
    time.

    The list has no name in a directory, so the path leads through /proc.
    """
    return b"/proc/self/fd/%d" % listed.fileno()


def copy_path_list_into_job_directory(listed: BinaryIO, directory: int, *, durable: bool) -> None:
    """Copy the list ``listed`` into the open job directory ``directory``, so that a later run of the job has it.

    ``durable``: True to return only after the copy is on stable storage. Raise ``OSError`` if that fails.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(PATH_LIST_FILE, flags, 0o600, dir_fd=directory), "wb", buffering=0) as stored:
        # The offset is explicit, so that sendfile does not move the file position: forked ranks share that position.
        offset = 0
        while sent := os.sendfile(stored.fileno(), listed.fileno(), offset, 1 << 30):
            offset += sent
        if durable:
            sync_file_if_supported(stored.fileno())


def path_list_file_in_job_directory(directory: bytes) -> bytes:
    """Return the path of the list in the directory of a resumed job; raise ``RequestRefused`` if it is missing."""
    path = os.path.join(directory, PATH_LIST_FILE)
    if not os.path.isfile(path):
        raise path_refused(path, "the list of files to copy is missing; discard the job, and start a new one")
    return path
