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

from pcopy.checkpoint.layout import FILES_FROM
from pcopy.errors import HINDRANCES, NotPutAside, Refused, hindrance
from pcopy.fsio.syncer import sync_written
from pcopy.jobs.meant import meant, starts_elsewhere
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.job import Root
from pcopy.text import shown
from pcopy.walk.saved_listing import SavedListing, from_root, without_return

_BUDGET = 64 << 20
"""Bytes of memory in which a list is sorted; a longer one is sorted with temporary files."""
_END = b"\0"


def sorted_list(
    file: bytes,
    root: Root,
    open_spool: Callable[[], BinaryIO],
    *,
    nul: bool,
    top: str = "SRC",
    nothing: str = "nothing to copy",
    whole: bool = False,
) -> BinaryIO:
    """Return the sorted paths of the user's list as an open file without a name.

    Args:
        file: path of the list: a saved listing (JSON lines), or paths that end with a newline.
        root: the root whose source directory contains all paths.
        open_spool: opens a temporary file.
        nul: the paths end with a NUL instead.
        top: name of the root's directory in messages.
        nothing: end of the message for an empty list.
        whole: directories are copied with their contents, so entries below a listed directory are left out.

    Raise ``Refused`` with file and line if the list is invalid, and ``NotPutAside`` if a temporary file cannot be
    written.
    """
    sorter = ExternalSorter(open_spool, _BUDGET)
    with closing(sorter), SavedListing(file, "--files-from", nul=nul, meant=meant) as listing:
        try:
            number_of_paths = 0
            for number, line, _ in listing:
                path = line if nul or listing.is_saved else without_return(line, root.source)
                if not path:
                    continue
                if not number_of_paths and not listing.is_saved and (reason := starts_elsewhere(path, root.source)):
                    raise listing.refused(number, reason)
                try:
                    key = _below(path, root, listing.directory, top)
                except ValueError as error:
                    raise listing.refused(number, f"{shown(path)} {error}") from None
                sorter.add(key, b"")
                number_of_paths += 1
            if not number_of_paths:
                raise Refused(f"{listing.name}: lists nothing, so there is {nothing}")
            return _written(sorter, open_spool(), root.source if whole else b"")
        except NotPutAside:
            raise
        except HINDRANCES as error:
            raise Refused(f"{listing.name}: {hindrance(error)}") from None


def _below(line: bytes, root: Root, directory: bytes | None, top: str) -> bytes:
    """Return the sort key of a listed path: its names below the root, separated by NUL.

    Paths of a saved listing start in ``directory``; for other lists it is None. Raise ``ValueError`` if the path does
    not lie in the root.
    """
    path = line if directory is None else from_root(directory, line)
    if path.startswith(b"/"):
        for candidate in (root.source_shown, root.source):
            top_path = candidate if directory is None else from_root(os.getcwdb(), candidate)
            if top_path.startswith(b"/") and (path + b"/").startswith(top_path.rstrip(b"/") + b"/"):
                path = path[len(top_path.rstrip(b"/")) :]
                break
        else:
            raise ValueError(f"does not lie in {shown(root.source_shown)}; list paths below {top}")
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise ValueError(f"leads upwards; list paths below {top}, without ..")
    return _END.join(parts)


def _written(sorter: ExternalSorter, written: BinaryIO, source: bytes) -> BinaryIO:
    """Write each path once to ``written``, and return that file.

    ``source``: the root's directory if entries below a listed directory are left out; empty if they are kept.
    """
    last, is_directory = None, None
    for key, _ in sorter.sorted():
        if key == last:
            continue
        if source and last is not None and key.startswith(last and last + _END):
            if is_directory is None:
                is_directory = is_real_directory(os.path.join(source, last.replace(_END, b"/")))
            if is_directory:
                continue
        written.write(key.replace(_END, b"/") + _END)
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


def path_of(listed: BinaryIO) -> bytes:
    """Return a path by which this process, and processes that it forks, can open the list again."""
    return b"/proc/self/fd/%d" % listed.fileno()


def keep(listed: BinaryIO, directory: int, *, durable: bool) -> None:
    """Copy the list into an open job directory; raise ``OSError`` if that fails."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(FILES_FROM, flags, 0o600, dir_fd=directory), "wb", buffering=0) as copy:
        # With an explicit offset sendfile leaves the file position alone, which the processes share.
        offset = 0
        while sent := os.sendfile(copy.fileno(), listed.fileno(), offset, 1 << 30):
            offset += sent
        if durable:
            sync_written(copy.fileno())


def kept_in(directory: bytes) -> bytes:
    """Return the path of the list in the directory of a resumed job; raise ``Refused`` if it is missing."""
    path = os.path.join(directory, FILES_FROM)
    if not os.path.isfile(path):
        raise Refused(f"{shown(path)}: the list of files to copy is missing; discard the job, and start a new one")
    return path
