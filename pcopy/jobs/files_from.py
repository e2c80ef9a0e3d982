"""The list of ``--files-from``: read once, sorted by directory, and stored in the job directory.

Each entry of the stored list is a path below SRC, terminated by a NUL. The entries below a directory follow that
directory immediately. So a list of any length is processed with few directories in memory, and a resumed job knows
where in the list it has to continue.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import closing
from typing import BinaryIO

from pcopy.checkpoint.layout import PATH_LIST_FILE
from pcopy.errors import RESOURCE_EXCEPTIONS, RequestRefused, TemporaryFileFailed, resource_error_text
from pcopy.fsio.syncer import sync_file_if_supported
from pcopy.jobs.suggestions import suggestion_for_missing_path, wrong_base_directory_message
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.job import Root
from pcopy.text import printable_path
from pcopy.walk.saved_listing import PathListReader, absolute_path, strip_carriage_return

_SORT_MEMORY = 64 << 20
"""Bytes of memory in which a list is sorted; a longer one is sorted with temporary files."""
_NUL = b"\0"


def sorted_path_list(
    file: bytes,
    root: Root,
    open_spool: Callable[[], BinaryIO],
    *,
    nul: bool,
    top: str = "SRC",
    empty_text: str = "nothing to copy",
    omit_below_listed: bool = False,
) -> BinaryIO:
    """Read the user's list of paths; return its paths, sorted and each only once, as an open file without a name.

    Args:
        file: path of the list: a listing that pwalk has saved (JSON lines), or paths that end with a newline.
        root: source and target of the job; the source directory must contain all paths.
        open_spool: opens a temporary file.
        nul: True if the paths in the list end with a NUL instead of a newline.
        top: what messages call the source directory.
        empty_text: end of the message for an empty list.
        omit_below_listed: True to leave out entries below a listed directory, because the job copies a listed directory
            with its contents.

    Raise ``RequestRefused`` with file and line if the list is invalid, and ``TemporaryFileFailed`` if a temporary file
    cannot be written.
    """
    sorter = ExternalSorter(open_spool, _SORT_MEMORY)
    with (
        closing(sorter),
        PathListReader(file, "--files-from", nul=nul, advice_for=suggestion_for_missing_path) as listing,
    ):
        try:
            number_of_paths = 0
            for number, line, _ in listing:
                path = line if nul or listing.is_saved else strip_carriage_return(line, root.source)
                if not path:
                    continue
                if (
                    not number_of_paths
                    and not listing.is_saved
                    and (reason := wrong_base_directory_message(path, root.source))
                ):
                    raise listing.error_at_line(number, reason)
                try:
                    key = _path_sort_key(path, root, listing.directory, top)
                except ValueError as error:
                    raise listing.error_at_line(number, f"{printable_path(path)} {error}") from None
                sorter.add(key, b"")
                number_of_paths += 1
            if not number_of_paths:
                raise RequestRefused(f"{listing.name}: lists nothing, so there is {empty_text}")
            return _write_unique_paths(sorter, open_spool(), root.source if omit_below_listed else b"")
        except TemporaryFileFailed:
            raise
        except RESOURCE_EXCEPTIONS as error:
            raise RequestRefused(f"{listing.name}: {resource_error_text(error)}") from None


def _path_sort_key(line: bytes, root: Root, directory: bytes | None, top: str) -> bytes:
    """Return the key by which a listed path is sorted: its components below the source directory of ``root``, separated
    by NUL.

    NUL sorts before all other bytes; so the entries below a directory follow it immediately.

    Args:
        line: the path as it is listed.
        directory: the directory to which paths of a saved listing are relative; None for a plain list, whose paths are
            relative to the source directory.
        top: what messages call the source directory.

    Raise ``ValueError`` with the end of a message if the path does not lie in the source directory.
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


def _write_unique_paths(sorter: ExternalSorter, written: BinaryIO, source: bytes) -> BinaryIO:
    """Write the sorted paths of ``sorter`` to the file ``written``, each path once, and return the file.

    ``source``: the source directory, if entries below a listed directory are to be left out; empty to write all
    entries.
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
        raise RequestRefused(
            f"{printable_path(path)}: the list of files to copy is missing; discard the job, and start a new one"
        )
    return path
