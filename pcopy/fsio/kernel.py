"""The interface of the inner loops: many small files of one directory, copied to new names in another, or read.

They do the plain case only, so that an implementation in C stays small: a regular file without holes, of moderate
size, to a name that is free. For everything else they say ``CARE`` and leave the target as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from pcopy.fsio.attributes import Applied
from pcopy.fsio.problem import Problem

SMALL_FILE = 4 << 20
"""The largest file, in bytes, that is read whole into memory and written in one go."""

CARE = -1
"""The verdict on a file that is not a plain case: it has holes, has grown large, or its target's name is taken."""

Copied = tuple[os.stat_result, int, bytes]
"""A source file's status when it was copied, how many bytes it held (in /proc more than its size says), and its digest,
empty where none is wanted."""

Read = tuple[os.stat_result, bytes]
"""A file's status when it was read, and the digest of what it held."""

Verdict = Copied | int | Problem
"""The file was ``Copied``, wants ``CARE``, or what went wrong (nothing is left under the name, unless it is a
``MetadataProblem``)."""


class Kernel(Protocol):
    """Copies small files, and reads them; one per process."""

    def copy_new_files(
        self,
        source: int,
        target: int,
        names: Sequence[bytes],
        inodes: Sequence[int],
        device: int,
        *,
        inherits: bool,
        target_names: Sequence[bytes] | None = None,
        made: Callable[[int], None] | None = None,
    ) -> Iterator[Verdict]:
        """One verdict for each of ``names`` in ``source`` (a directory's descriptor), as soon as it is known.

        ``inodes`` and ``device`` are those that the files had when they were found; another one is a ``Problem``
        marked as changed. ``inherits``: files made in ``target`` inherit an ACL, which must go. ``made`` is handed
        a descriptor of each new file that is whole, just before its verdict.
        """

    def read_files(self, directory: int, names: Sequence[bytes], *, copies: bool = False) -> Iterator[Read | int]:
        """The status and the digest of each of ``names`` as soon as they are known, or ``CARE``.

        Sources did not change while they were read. Of ``copies``, what the page cache holds is given up first.
        """

    def drain(self) -> list[tuple[bytes, Applied]]:
        """The names whose metadata was excused or is worth a notice since the last call, and what became of it."""
