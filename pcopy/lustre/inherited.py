"""The layout that new files inherit from a directory. Lustre itself is asked, once for each default layout.

To find out, a file without a name is created in a directory with that default, and its layout is read.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from pcopy.fsio.attributes import Handle
from pcopy.fsio.close import held_open
from pcopy.fsio.layout import Target
from pcopy.fsio.preserve import CAP_SYS_ADMIN, capable
from pcopy.fsio.problem import failing
from pcopy.lustre.blob import ALL, Component, Striping, write
from pcopy.lustre.comparing import normal_of
from pcopy.lustre.volatile import create_volatile

ATTRIBUTE = "lustre.lov"
"""Extended attribute with the layout of a file, or the default layout of a directory."""
OWN_DEFAULT = "trusted.lov"
"""Extended attribute of a directory that has a default layout of its own. Only root can read it.

``ATTRIBUTE`` of a directory without its own default is the default of the file system.
"""

DELAYED = 0o20400
"""Flag of open(2) for a new file that gets no layout yet (O_LOV_DELAY_CREATE)."""

_NO_LAYOUT = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL)
"""Errors of getxattr(2) for an item without a layout."""

MOST_KNOWN = 1024
"""Maximum number of cached layouts or directories: each directory may have a default of its own."""


class Inherited:
    """Cache of the layouts that files inherit in the directories of one file system."""

    def __init__(self) -> None:
        self._by_default: dict[bytes, Striping] = {}
        """Layout that a file gets, by the default layout of its directory."""
        self._most: dict[tuple[bytes, bytes], int] = {}
        """Number of stripes of a file that requests all, by default layout and pool."""
        self._defaults: dict[int, bytes] = {}
        """Default layout of a directory, by its inode number."""
        self._tops: dict[int, bytes] = {}
        """Default layout of the topmost directory of a source file system, by its device."""

    def by(self, target: Target) -> Striping:
        """Return the layout that files inherit in the directory ``target``. Raise ``Problem``."""
        default = self._default(target)
        inherited = self._by_default.get(default)
        if inherited is None:
            with held_open(create_volatile(target.descriptor)) as made, failing("getstripe"):
                inherited = normal_of(read_layout(made))
            make_room(self._by_default)
            self._by_default[default] = inherited
        return inherited

    def most_stripes(self, target: Target, pool: bytes = b"") -> int:
        """Return the number of stripes of a file in the directory ``target`` that requests all; 0 if Lustre does not
        say.

        The file is in the ``pool``, or (empty) where the directory's default layout puts it. Raise ``Problem``.
        """
        key = self._default(target), pool
        most = self._most.get(key)
        if most is None:
            with held_open(create_volatile(target.descriptor, DELAYED)) as made:
                try:
                    os.setxattr(made, ATTRIBUTE, write(Striping((Component(ALL, pool=pool),))))
                    component = normal_of(read_layout(made)).plain
                except OSError:
                    component = None
            make_room(self._most)
            most = self._most[key] = component.stripes if component is not None and component.stripes != ALL else 0
        return most

    def forget_defaults(self) -> None:
        """Clear the cache of default layouts, because a directory has got another one."""
        self._defaults.clear()

    def _default(self, target: Target) -> bytes:
        """Return the default layout of the directory ``target``. Raise ``Problem``."""
        default = self._defaults.get(target.inode)
        if default is None:
            make_room(self._defaults)
            with failing("getstripe"):
                default = self._defaults[target.inode] = read_layout(target.descriptor)
        return default

    def own_default(self, source: Handle) -> bytes:
        """Return the default layout of a directory; empty if it has none of its own. Raise ``OSError``."""
        default = read_layout(source)
        # Root can read the directory's own attribute. Others can only compare with the default of the file system.
        if default and capable(CAP_SYS_ADMIN):
            try:
                os.getxattr(source, OWN_DEFAULT)
                return default
            except OSError as error:
                if error.errno == errno.ENODATA:
                    return b""
        return b"" if default == self._top_default(source) else default

    def _top_default(self, source: Handle) -> bytes:
        """Return the default layout of the topmost directory of the file system, or of the part of it that is
        mounted.
        """
        path = source if isinstance(source, bytes) else b"/proc/self/fd/%d" % source
        device = os.stat(path).st_dev
        if device not in self._tops:
            self._tops[device] = read_layout(_top_of(path))
        return self._tops[device]


def read_layout(item: Handle, *, follow: bool = True) -> bytes:
    """Return the layout attribute of an item; empty if it has none. Raise ``OSError``.

    With ``follow`` a path that is a symbolic link is followed.
    """
    try:
        return os.getxattr(item, ATTRIBUTE, follow_symlinks=follow or isinstance(item, int))
    except OSError as error:
        if error.errno in _NO_LAYOUT:
            return b""
        raise


def make_room(known: dict[Any, Any]) -> None:
    """Clear the cache ``known`` if it is full, so that it does not grow without limit."""
    if len(known) >= MOST_KNOWN:
        known.clear()


def _top_of(path: bytes) -> bytes:
    """Return the path of the topmost directory above ``path`` on the same file system. Raise ``OSError``."""
    status = os.stat(path)
    while True:
        above = os.path.join(path, b"..")
        around = os.stat(above)
        if around.st_dev != status.st_dev or around.st_ino == status.st_ino:
            return path
        path, status = above, around
