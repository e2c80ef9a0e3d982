"""The list of ``--files-from``: read once, brought into the order of a walk, and kept with the job.

Each path is one below SRC, ended by a NUL; what lies in a directory comes right after it. So a list of any length is
gone through with a few directories in mind, and a job that goes on knows where in the list it was.
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
"""Bytes of memory in which a list is sorted; a longer one goes through temporary files."""
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
    """What the user's ``file`` lists, in an open file without a name; raises ``Refused``, naming file and line.

    It is a saved listing, or paths that end with a newline, or with a NUL if ``nul``. ``top`` is what users call the
    root's directory, ``nothing`` what an empty list leaves. ``whole``: what lies below a listed directory is left out.
    Raises ``NotPutAside`` for spools.
    """
    sorter = ExternalSorter(open_spool, _BUDGET)
    with closing(sorter), SavedListing(file, "--files-from", nul=nul, meant=meant) as listing:
        try:
            listed = 0
            for number, line, _ in listing:
                path = line if nul or listing.is_saved else without_return(line, root.source)
                if not path:
                    continue
                if not listed and not listing.is_saved and (why := starts_elsewhere(path, root.source)):
                    raise listing.refused(number, why)
                try:
                    key = _below(path, root, listing.directory, top)
                except ValueError as error:
                    raise listing.refused(number, f"{shown(path)} {error}") from None
                sorter.add(key, b"")
                listed += 1
            if not listed:
                raise Refused(f"{listing.name}: lists nothing, so there is {nothing}")
            return _written(sorter, open_spool(), root.source if whole else b"")
        except NotPutAside:
            raise
        except HINDRANCES as error:
            raise Refused(f"{listing.name}: {hindrance(error)}") from None


def _below(line: bytes, root: Root, directory: bytes | None, top: str) -> bytes:
    """The key of a listed path: the names that lead from the root to it. In a saved listing it starts in ``directory``.

    Raises ``ValueError`` if it does not lie in the root.
    """
    path = line if directory is None else from_root(directory, line)
    if path.startswith(b"/"):
        for each in (root.source_shown, root.source):
            whole = each if directory is None else from_root(os.getcwdb(), each)
            if whole.startswith(b"/") and (path + b"/").startswith(whole.rstrip(b"/") + b"/"):
                path = path[len(whole.rstrip(b"/")) :]
                break
        else:
            raise ValueError(f"does not lie in {shown(root.source_shown)}; list paths below {top}")
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise ValueError(f"leads upwards; list paths below {top}, without ..")
    return _END.join(parts)


def _written(sorter: ExternalSorter, written: BinaryIO, source: bytes) -> BinaryIO:
    """Each path once; of what lies in the directory ``source``, if one is named, nothing below a listed directory."""
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
    written.fileno()  # it becomes a file
    return written


def is_real_directory(path: bytes) -> bool:
    """And no symbolic link to one: what is listed below a link is not taken with it."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def path_of(listed: BinaryIO) -> bytes:
    """Under which this process, and those that it forks, can open the list once more."""
    return b"/proc/self/fd/%d" % listed.fileno()


def keep(listed: BinaryIO, directory: int, *, durable: bool) -> None:
    """Puts the list into a job's open directory; raises ``OSError``."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(FILES_FROM, flags, 0o600, dir_fd=directory), "wb", buffering=0) as kept:
        offset = 0
        while sent := os.sendfile(kept.fileno(), listed.fileno(), offset, 1 << 30):
            offset += sent
        if durable:
            sync_written(kept.fileno())


def kept_in(directory: bytes) -> bytes:
    """The path of the list of a job that goes on; raises ``Refused`` if that is not there."""
    path = os.path.join(directory, FILES_FROM)
    if not os.path.isfile(path):
        raise Refused(f"{shown(path)}: the list of the files to be copied is gone; discard the job, and begin anew")
    return path
