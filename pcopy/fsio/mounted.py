"""What has to be mounted below a root, as all hosts have seen it when the job began.

Without that a host that lacks a mount, or a run after it was unmounted, would take the directory below for what is to
be copied, or write into it; and nothing would fail. So whatever opens a directory, on either side, asks here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from pcopy.fsio.close import let_go
from pcopy.fsio.mount_roots import LEFT_OUT, MountRoot, root_of
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of


class Mounted:
    """``roots``: by the paths below the base, of directories and of files."""

    def __init__(self, roots: Mapping[bytes, MountRoot], *, on_source: bool) -> None:
        self._roots = roots
        self._on_source = on_source
        self._found: dict[bytes, tuple[int, int]] = {}
        self._names: dict[bytes, set[bytes]] = {}
        for path in roots:
            directory, _, name = path.rpartition(b"/")
            self._names.setdefault(directory, set()).add(name)

    def __contains__(self, path: bytes) -> bool:
        return path in self._roots

    def names_in(self, directory: bytes) -> set[bytes]:
        """Those names in ``directory`` at which something has to be mounted."""
        return self._names.get(directory, set())

    def check(self, path: bytes, descriptor: int, status: os.stat_result, around: int | None) -> None:
        """Raises ``Problem`` if something else, or nothing, is mounted at ``path``, which is open.

        ``around``: the st_dev of the directory that it lies in, as far as that is known.
        """
        wanted = self._roots.get(path)
        if wanted is None or self._found.get(path) == (status.st_dev, status.st_ino):
            return
        try:
            found = root_of(descriptor)
        except OSError as error:
            raise Problem.of("statfs", error, on_source=self._on_source) from error
        if status.st_dev == around if wanted == LEFT_OUT else not found.is_same(wanted):
            text = f"what was mounted here when the job began is not: that was {wanted}, this is {found}"
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text=text)
        self._found[path] = status.st_dev, status.st_ino

    def check_file(self, path: bytes, directory: int, name: bytes) -> None:
        """As ``check``, for the file ``name`` in a directory (a descriptor)."""
        try:
            held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except OSError as error:
            raise Problem.of("open", error, on_source=self._on_source) from error
        try:
            self.check(path, held, self._status(held), self._status(directory).st_dev)
        finally:
            let_go(held)

    def _status(self, descriptor: int) -> os.stat_result:
        return status_of(descriptor, on_source=self._on_source)
