"""The list of ``--from``, for programs that change or remove existing items: read once, and sorted by directory.

The root of such a job is the deepest directory that contains all listed paths; no component of its path is a symbolic
link. In the sorted list each path, relative to the root, occurs once and is terminated by a NUL. A listing that pwalk
has saved also contains inode, size and time of items. Then a record of fixed size follows each path
(``pcopy.tasks.listed.hand_out.LISTED_RECORD``). It combines the data of all lines about that item, so that an item that
has been replaced since is recognised.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import closing
from itertools import chain, takewhile
from typing import BinaryIO

from pcopy.errors import RESOURCE_EXCEPTIONS, RequestRefused, TemporaryFileFailed, resource_error_text
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import close_ignoring_errors
from pcopy.jobs.files_from import is_real_directory
from pcopy.jobs.suggestions import suggestion_for_missing_path, wrong_base_directory_message
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
from pcopy.walk.saved_listing import PathListReader, RecordedStatus, absolute_path, strip_carriage_return

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


def read_sorted_path_list(
    file: bytes,
    open_spool: Callable[[], BinaryIO],
    *,
    nul: bool,
    within: bytes | None,
    check: Callable[[bytes], str],
    omit_below_listed: bool = False,
) -> SortedPathList | None:
    """Read the user's list of paths, and return it sorted; None if it is empty.

    Args:
        file: path of the list: a listing that pwalk has saved (JSON lines), or plain paths.
        open_spool: opens a temporary file.
        nul: True if plain paths end with a NUL instead of a newline.
        within: the directory in which all paths must lie, and to which plain paths are relative. None: plain paths are
            relative to the working directory.
        check: returns the reason why the given absolute path may not be processed, or an empty text.
        omit_below_listed: True to leave out entries below a listed directory, because the program processes a listed
            directory with its contents.

    Raise ``RequestRefused`` with file and line if the list is invalid, and ``TemporaryFileFailed`` if a temporary file
    cannot be written.
    """
    sorter = ExternalSorter(open_spool, _SORT_MEMORY)
    with closing(sorter), PathListReader(file, "--from", nul=nul, advice_for=suggestion_for_missing_path) as listing:
        start = listing.directory or (os.getcwdb() if within is None else within)
        common: bytes | None = None
        is_absolute, has_records = False, listing.is_saved
        try:
            for number, listed_path, recorded in listing:
                line = (
                    listed_path
                    if recorded is not None or nul
                    else _checked_list_line(listed_path, start, listing, number)
                )
                if not line:
                    continue
                is_absolute = is_absolute or line.startswith(b"/")
                path = absolute_path(start, line)
                if (
                    common is None
                    and recorded is None
                    and within
                    and (reason := wrong_base_directory_message(line, within))
                ):
                    raise listing.error_at_line(number, reason)
                parts = [part for part in path.split(b"/") if part not in (b"", b".")]
                reason = _reason_path_may_not_be_listed(parts, within) or check(b"/" + b"/".join(parts))
                if reason:
                    raise listing.error_at_line(number, f"{printable_path(line)} {reason}")
                above = b"".join(part + _NUL for part in parts[:-1])
                common = above if common is None else _common_leading_names(common, above)
                has_slash = line.endswith((b"/", b"/."))
                record = (
                    _packed_record_of_list_line(recorded, has_slash=has_slash)
                    if has_slash or recorded is not None
                    else b""
                )
                has_records = has_records or bool(record)
                sorter.add(_NUL.join(parts), record)
            if common is None:
                return None
            identity, base = _deepest_directory(b"/" + common[:-1].replace(_NUL, b"/"), listing.name)
            written = open_spool()
            skipped = len(base.strip(b"/") + b"/") if base != b"/" else 0
            listed = _write_unique_paths(
                sorter, written, skipped, with_records=has_records, omit_below_listed=omit_below_listed
            )
        except TemporaryFileFailed:
            raise
        except RESOURCE_EXCEPTIONS as error:
            raise RequestRefused(f"{listing.name}: {resource_error_text(error)}") from None
        called = _displayed_root_path(base, is_absolute)
        root = Root(base, base, b"", b"", called, called, identity, identity)
        return SortedPathList(root, written, LISTED_RECORD.size if has_records else 0, listed)


def _checked_list_line(line: bytes, start: bytes, listing: PathListReader, number: int) -> bytes:
    """Return ``line``, a line of a plain list; empty if it contains nothing but a carriage return.

    Raise ``RequestRefused`` if the line ends with a carriage return, and an item exists only under the name without it.
    The list may have line ends of Windows; or it means an item with a carriage return in its name, which was removed
    since the list was written. So it is not certain that the existing item is meant.

    Args:
        start: the directory to which the line is relative.
        listing, number: the list and the number of the line, for the message.
    """
    shorter = strip_carriage_return(line, start)
    if shorter and shorter != line and os.path.lexists(os.path.join(start, shorter)):
        advice = "if lines end as those of Windows do, remove the carriage returns: tr -d '\\r'; else list with -0"
        raise listing.error_at_line(
            number, f"{printable_path(line)} does not exist, {printable_path(shorter)} does: {advice}"
        )
    return line if shorter else shorter


def _reason_path_may_not_be_listed(parts: list[bytes], within: bytes | None) -> str:
    """Return the end of a message that says why an absolute path may not be listed; empty if it may be listed.

    Args:
        parts: the components of the path.
        within: the directory in which the path must lie; None: anywhere.
    """
    if not parts:
        return "is the root directory; list what is in it"
    if b".." in parts:
        return "leads upwards; list paths without .."
    if within is not None and not (b"/" + b"/".join(parts)).startswith(within.rstrip(b"/") + b"/"):
        return f"does not lie in {printable_path(within)}"
    return ""


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

    Unknown fields are 0, and the first field has a bit for each known one.

    Args:
        recorded: what the line says of the item; None if it contains only a path.
        has_slash: True if the path ends with a slash.
    """
    bits = ENDS_WITH_SLASH if has_slash else 0
    if recorded is None:
        return LISTED_RECORD.pack(bits, 0, 0, 0, 0, 0, 0)
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
    sorter: ExternalSorter, written: BinaryIO, skipped: int, *, with_records: bool, omit_below_listed: bool
) -> int:
    """Write each path once, with the combined record of all its lines; return the number of paths.

    Args:
        sorter: the paths (their components separated by NUL), and a record for each, empty if nothing is known.
        written: the file to write to.
        skipped: number of bytes to remove from the beginning of each path, which make it relative to the root.
        with_records: True to write a record after each path.
        omit_below_listed: True to leave out paths below a listed directory; they follow it in the order of ``sorter``.
    """
    last, last_record, number = b"", b"", 0  # No path is empty: an empty ``last`` means that none came before.
    is_directory: bool | None = None
    for key, record in chain(sorter.sorted(), ((b"", b""),)):
        if key == last:
            last_record = _combined_record(last_record, record)
            continue
        if omit_below_listed and last and key.startswith(last + _NUL):
            if is_directory is None:
                is_directory = is_real_directory(b"/" + last.replace(_NUL, b"/"))
            if is_directory:
                continue
        is_directory = None
        if last:
            written.write(
                last[skipped:].replace(_NUL, b"/")
                + _NUL
                + ((last_record or _RECORD_WITHOUT_DATA) if with_records else b"")
            )
            number += 1
        last, last_record = key, record
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
                raise RequestRefused(f"{name}: {printable_path(reached + b'/' + part)}: {error.strerror}") from None
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
    here = os.getcwdb()
    if is_absolute or not (base + b"/").startswith(here.rstrip(b"/") + b"/"):
        return base
    return base[len(here) :].lstrip(b"/") or b"."
