"""Open directories below one root.

A directory is reached by walking down from the root's descriptor one name at a time, never following a symbolic link,
so that no look-up leaves the tree whatever lies in it or is swapped into it, and so that the joined path may be longer
than PATH_MAX. Descriptors are kept and given back in the order of their last use.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict

from pcopy.fsio.mounts import Identity, Mounts
from pcopy.fsio.problem import Problem

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

CAPACITY = 128
"""Descriptors kept per root and side."""

KEPT_OF_ONE_WALK = 32
"""Directories on the way that one walk leaves open, so that a deep path doesn't drive out all others."""


class Directories:
    """Directories below ``base`` (a descriptor), named by paths relative to it; ``b""`` is ``base`` itself."""

    def __init__(self, base: int, code: int, *, on_source: bool, capacity: int = CAPACITY) -> None:
        self._base = base
        self.mounts = Mounts(code, os.fstat(base).st_dev)
        self._on_source = on_source
        self._capacity = capacity
        self._open: OrderedDict[bytes, tuple[int, int, int]] = OrderedDict()  # descriptor, mount code, inode

    def open(self, path: bytes, identity: Identity | None = None) -> int:
        """A descriptor of ``path``, which stays ours and open for a while.

        Raises ``Problem`` if it is no directory, or not the one with ``identity``.
        """
        entry = self._open.get(path)
        if entry is None:
            entry = self._walk(path)
        else:
            self._open.move_to_end(path)
        if identity is not None and entry[1:] != identity:
            self.forget(path)
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text="the directory was replaced meanwhile")
        return entry[0]

    def _walk(self, path: bytes) -> tuple[int, int, int]:
        known = path
        while known and known not in self._open:
            known = known.rpartition(b"/")[0]
        rest = path[len(known) :].strip(b"/").split(b"/") if path else []
        if known:
            self._open.move_to_end(known)
        at, code = self._open[known][:2] if known else (self._base, self.mounts.base)
        kept = known
        passing = -1
        entry = (at, 0, 0)
        if not rest:
            return self._keep(path, os.dup(at), code, os.fstat(at).st_ino)
        for index, name in enumerate(rest):
            try:
                entered = self._enter(at, name)
            except OSError as error:
                raise Problem.of("open", error, on_source=self._on_source) from error
            finally:
                if passing >= 0:
                    os.close(passing)
                    passing = -1
            kept = kept + b"/" + name if kept else name
            status = os.fstat(entered)
            code = self.mounts.code(kept, status.st_dev, code)
            if len(rest) - index <= KEPT_OF_ONE_WALK:
                entry = self._keep(kept, entered, code, status.st_ino)
            else:
                passing = entered
            at = entered
        return entry

    def _enter(self, at: int, name: bytes) -> int:
        extra = os.O_NOATIME if self._on_source else 0
        try:
            return os.open(name, _FLAGS | extra, dir_fd=at)
        except PermissionError as error:
            if error.errno == errno.EPERM and extra:  # O_NOATIME is for owners
                return os.open(name, _FLAGS, dir_fd=at)
            # A directory that may be searched and not read still leads on to those below it.
            return os.open(name, _FLAGS | os.O_PATH, dir_fd=at)

    def _keep(self, path: bytes, descriptor: int, code: int, inode: int) -> tuple[int, int, int]:
        entry = (descriptor, code, inode)
        self._open[path] = entry
        while len(self._open) > self._capacity:
            os.close(self._open.popitem(last=False)[1][0])
        return entry

    def identity(self, path: bytes) -> Identity:
        """Mount code and inode of a directory; raises ``Problem``."""
        self.open(path)
        return self._open[path][1:]

    def forget(self, path: bytes) -> None:
        """Closes ``path`` if it is open."""
        entry = self._open.pop(path, None)
        if entry is not None:
            os.close(entry[0])

    def close(self) -> None:
        """Closes all but the base."""
        while self._open:
            os.close(self._open.popitem()[1][0])
