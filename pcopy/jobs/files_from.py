"""The list of ``--files-from``: read once, sorted into the order of a walk, and stored in the job directory.

Each entry is a path below SRC, terminated by a NUL. The entries below a directory follow it immediately. So a list of
any length is processed with few directories in memory, and a resumed job knows its position in the list.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import closing
from typing import BinaryIO

from pcopy.checkpoint.layout import PATH_LIST_FILE
from pcopy.errors import RESOURCE_EXCEPTIONS, RequestRefused, SpillFailed, resource_error_text
from pcopy.fsio.syncer import sync_if_supported
from pcopy.jobs.suggestions import reason_starts_elsewhere, suggestion_for
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.job import Root
from pcopy.text import printable_path
from pcopy.walk.saved_listing import PathListReader, absolute_path, strip_carriage_return

_SORT_MEMORY = 64 << 20
"""Bytes of memory in which a list is sorted; a longer one is sorted with temporary files."""
_NUL = b"\0"


def sorted_list(
    file: bytes,
    root: Root,
    open_spool: Callable[[], BinaryIO],
    *,
    nul: bool,
    top: str = "SRC",
    empty_text: str = "nothing to copy",
    omit_below_listed: bool = False,
) -> BinaryIO:
    """Return the sorted paths of the user's list as an open file without a name.

    Args:
        file: path of the list: a saved listing (JSON lines), or paths that end with a newline.
        root: the root whose source directory contains all paths.
        open_spool: opens a temporary file.
        nul: the paths end with a NUL instead.
        top: name of the root's directory in messages.
        empty_text: end of the message for an empty list.
        omit_below_listed: directories are copied with their contents, so entries below a listed directory are left out.

    Raise ``RequestRefused`` with file and line if the list is invalid, and ``SpillFailed`` if a temporary file cannot
    be written.
    """
    sorter = ExternalSorter(open_spool, _SORT_MEMORY)
    with closing(sorter), PathListReader(file, "--files-from", nul=nul, advice_for=suggestion_for) as listing:
        try:
            number_of_paths = 0
            for number, line, _ in listing:
                path = line if nul or listing.is_saved else strip_carriage_return(line, root.source)
                if not path:
                    continue
                if (
                    not number_of_paths
                    and not listing.is_saved
                    and (reason := reason_starts_elsewhere(path, root.source))
                ):
                    raise listing.error_at_line(number, reason)
                try:
                    key = _sort_key(path, root, listing.directory, top)
                except ValueError as error:
                    raise listing.error_at_line(number, f"{printable_path(path)} {error}") from None
                sorter.add(key, b"")
                number_of_paths += 1
            if not number_of_paths:
                raise RequestRefused(f"{listing.name}: lists nothing, so there is {empty_text}")
            return _write_unique(sorter, open_spool(), root.source if omit_below_listed else b"")
        except SpillFailed:
            raise
        except RESOURCE_EXCEPTIONS as error:
            raise RequestRefused(f"{listing.name}: {resource_error_text(error)}") from None


def _sort_key(line: bytes, root: Root, directory: bytes | None, top: str) -> bytes:
    """Return the sort key of a listed path: its names below the root, separated by NUL.

    Paths of a saved listing start in ``directory``; for other lists it is None. Raise ``ValueError`` if the path does
    not lie in the root.
    """
    path = line if directory is None else absolute_path(directory, line)
    if path.startswith(b"/"):
        for candidate in (root.source_shown, root.source):
            top_path = candidate if directory is None else absolute_path(os.getcwdb(), candidate)
            if top_path.startswith(b"/") and (path + b"/").startswith(top_path.rstrip(b"/") + b"/"):
                path = path[len(top_path.rstrip(b"/")) :]
                break
        else:
            raise ValueError(f"does not lie in {printable_path(root.source_shown)}; list paths below {top}")
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise ValueError(f"leads upwards; list paths below {top}, without ..")
    return _NUL.join(parts)


def _write_unique(sorter: ExternalSorter, written: BinaryIO, source: bytes) -> BinaryIO:
    """Write each path once to ``written``, and return that file.

    ``source``: the root's directory if entries below a listed directory are left out; empty if they are kept.
    """
    last, is_directory = None, None
    for key, _ in sorter.sorted():
        if key == last:
            continue
        if source and last is not None and key.startswith(last and last + _NUL):
            if is_directory is None:
                is_directory = is_real_directory(os.path.join(source, last.replace(_NUL, b"/")))
            if is_directory:
                continue
        written.write(key.replace(_NUL, b"/") + _NUL)
        last, is_directory = key, None
    written.flush()
    written.fileno()  # moves the contents from memory to a file, which other processes can open
    return written


def is_real_directory(path: bytes) -> bool:
    """True if ``path`` is a directory, and no symbolic link to one; False if it cannot be examined.

    Entries below a symbolic link are not copied with the link.
    """
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def descriptor_path(listed: BinaryIO) -> bytes:
    """Return a path by which this process, and processes that it forks, can open the list again."""
    return b"/proc/self/fd/%d" % listed.fileno()


def copy_into_job_directory(listed: BinaryIO, directory: int, *, durable: bool) -> None:
    """Copy the list into an open job directory; raise ``OSError`` if that fails."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(PATH_LIST_FILE, flags, 0o600, dir_fd=directory), "wb", buffering=0) as copy:
        # With an explicit offset sendfile leaves the file position alone, which the processes share.
        offset = 0
        while sent := os.sendfile(copy.fileno(), listed.fileno(), offset, 1 << 30):
            offset += sent
        if durable:
            sync_if_supported(copy.fileno())


def path_in_job_directory(directory: bytes) -> bytes:
    """Return the path of the list in the directory of a resumed job; raise ``RequestRefused`` if it is missing."""
    path = os.path.join(directory, PATH_LIST_FILE)
    if not os.path.isfile(path):
        raise RequestRefused(
            f"{printable_path(path)}: the list of files to copy is missing; discard the job, and start a new one"
        )
    return path
