"""The list of ``--files-from``: read once, brought into the order of a walk, and kept with the job.

Each path is one below SRC, ended by a NUL; what lies in a directory comes right after it. So a list of any length is
gone through with a few directories in mind, and a job that goes on knows where in the list it was.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pcopy.checkpoint.layout import FILES_FROM
from pcopy.errors import HINDRANCES, Refused, hindrance
from pcopy.jobs.meant import meant
from pcopy.named import NamedTuple
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.job import Root
from pcopy.text import shown

STANDARD_INPUT = b"-"

_BUDGET = 64 << 20
"""Bytes of memory in which a list is sorted; a longer one goes through temporary files."""
_BLOCK = 1 << 20
"""Bytes that are read at once."""
_LONGEST = 1 << 20
"""Bytes of a path at most: what is longer is no list of paths."""
_END = b"\0"


class _Line(NamedTuple):
    number: int
    text: bytes


def sorted_list(file: bytes, root: Root, open_spool: Callable[[], BinaryIO], *, nul: bool) -> BinaryIO:
    """What the user's ``file`` lists, in an open file without a name; raises ``Refused``, naming file and line.

    Paths end with a newline, or with a NUL if ``nul``.
    """
    name = "standard input" if file == STANDARD_INPUT else shown(file)
    sorter = ExternalSorter(open_spool, _BUDGET)
    try:
        with _opened(file) as source:
            listed = 0
            for number, line in _lines(source, _END if nul else b"\n"):
                path = line if nul else _without_return(line, root)
                if path:
                    _add(sorter, path, root, f"--files-from {name}: line {number}")
                    listed += 1
        if not listed:
            raise Refused(f"--files-from {name}: lists nothing, so there is nothing to copy")
        return _written(sorter, open_spool())
    except ValueError as error:
        raise Refused(f"--files-from {name}: {error}") from None
    except HINDRANCES as error:
        raise Refused(f"--files-from {name}: {hindrance(error)}") from None
    finally:
        sorter.close()


def _opened(file: bytes) -> BinaryIO:
    if file == STANDARD_INPUT:
        return open(0, "rb", closefd=False)
    if not os.path.lexists(file):
        raise Refused(f"--files-from {shown(file)}: does not exist; {meant(file) or 'check the name'}")
    if stat.S_ISDIR(os.stat(file).st_mode):
        raise Refused(f"--files-from {shown(file)}: is a directory; name a file that lists paths, or - to read them")
    return open(file, "rb")


def _lines(source: BinaryIO, end: bytes) -> Iterator[_Line]:
    """Those that are not empty, numbered from 1."""
    number, rest = 0, b""
    while block := source.read(_BLOCK):
        *whole, rest = (rest + block).split(end)
        for line in whole:
            number += 1
            if line:
                yield _Line(number, line)
        if len(rest) > _LONGEST:
            raise ValueError(f"line {number + 1}: is longer than any path; -0 says that paths end with a NUL")
    if rest:
        yield _Line(number + 1, rest)


def _without_return(line: bytes, root: Root) -> bytes:
    """What editors of Windows put at the end of each line belongs to a name only if there is one that ends so."""
    if not line.endswith(b"\r") or os.path.lexists(os.path.join(root.source, line)):
        return line
    return line[:-1]


def _add(sorter: ExternalSorter, line: bytes, root: Root, where: str) -> None:
    path = line
    if line.startswith(b"/"):
        for top in (root.source_shown.rstrip(b"/"), root.source):
            if top.startswith(b"/") and (line + b"/").startswith(top + b"/"):
                path = line[len(top) :]
                break
        else:
            raise Refused(f"{where}: {shown(line)} does not lie in {shown(root.source_shown)}; list paths below SRC")
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise Refused(f"{where}: {shown(line)} leads upwards; list paths below SRC, without ..")
    if b"\0" in path:
        raise Refused(f"{where}: {shown(line[:200])} holds a NUL; write -0 if paths end with one")
    sorter.add(_END.join(parts), b"")


def _written(sorter: ExternalSorter, written: BinaryIO) -> BinaryIO:
    """Each path once."""
    last = None
    for key, _ in sorter.sorted():
        if key != last:
            written.write(key.replace(_END, b"/") + _END)
            last = key
    written.flush()
    return written


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
            os.fsync(kept.fileno())


def kept_in(directory: bytes) -> bytes:
    """The path of the list of a job that goes on; raises ``Refused`` if that is not there."""
    path = os.path.join(directory, FILES_FROM)
    if not os.path.isfile(path):
        raise Refused(f"{shown(path)}: the list of the files to be copied is gone; discard the job, and begin anew")
    return path
