"""What files inherit in the directories of a file system: Lustre itself is asked, once for each default.

A file without a name is made in a directory with that default, and looked at.
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
OWN_DEFAULT = "trusted.lov"
"""A directory's, and for root only: ``ATTRIBUTE`` of one without a default is that of the file system."""

DELAYED = 0o20400
"""O_LOV_DELAY_CREATE: a file that is opened with it has no layout yet."""

_NO_LAYOUT = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL)
"""What getxattr(2) says of an item that has none."""

MOST_KNOWN = 1024
"""Layouts, and directories, of which something is remembered: each may have its own."""


class Inherited:
    """Of the directories of one file system."""

    def __init__(self) -> None:
        self._by_default: dict[bytes, Striping] = {}
        """What a file gets in a directory with this default."""
        self._most: dict[tuple[bytes, bytes], int] = {}
        """By default and pool: stripes of a file that asks for all."""
        self._defaults: dict[int, bytes] = {}
        """By inode of a directory."""
        self._tops: dict[int, bytes] = {}
        """By device of a source: what its topmost directory says."""

    def by(self, target: Target) -> Striping:
        """What files get there; raises ``Problem``."""
        default = self._default(target)
        inherited = self._by_default.get(default)
        if inherited is None:
            with held_open(create_volatile(target.descriptor)) as made, failing("getstripe"):
                inherited = normal_of(read_layout(made))
            make_room(self._by_default)
            self._by_default[default] = inherited
        return inherited

    def most_stripes(self, target: Target, pool: bytes = b"") -> int:
        """How many stripes a file gets there that asks for all: in the ``pool``, or where the default says; 0 if Lustre
        does not tell. Raises ``Problem``."""
        key = self._default(target), pool
        most = self._most.get(key)
        if most is None:
            with held_open(create_volatile(target.descriptor, DELAYED)) as made:
                try:
                    os.setxattr(made, ATTRIBUTE, write(Striping((Component(ALL, pool=pool),))))
                    one = normal_of(read_layout(made)).plain
                except OSError:
                    one = None
            make_room(self._most)
            most = self._most[key] = one.stripes if one is not None and one.stripes != ALL else 0
        return most

    def forget_defaults(self) -> None:
        """A directory has got another one."""
        self._defaults.clear()

    def _default(self, target: Target) -> bytes:
        default = self._defaults.get(target.inode)
        if default is None:
            make_room(self._defaults)
            with failing("getstripe"):
                default = self._defaults[target.inode] = read_layout(target.descriptor)
        return default

    def own_default(self, source: Handle) -> bytes:
        """The default of a directory, empty if it has none of its own; raises ``OSError``."""
        default = read_layout(source)
        if default and capable(CAP_SYS_ADMIN):
            try:
                os.getxattr(source, OWN_DEFAULT)
                return default
            except OSError as error:
                if error.errno == errno.ENODATA:
                    return b""
        return b"" if default == self._top_default(source) else default

    def _top_default(self, source: Handle) -> bytes:
        """What the topmost directory of the file system says, or of the part of it that is mounted."""
        path = source if isinstance(source, bytes) else b"/proc/self/fd/%d" % source
        device = os.stat(path).st_dev
        if device not in self._tops:
            self._tops[device] = read_layout(_top_of(path))
        return self._tops[device]


def read_layout(item: Handle, *, follow: bool = True) -> bytes:
    """Its attribute; empty if it has none. ``follow`` a path that is a symbolic link. Raises ``OSError``."""
    try:
        return os.getxattr(item, ATTRIBUTE, follow_symlinks=follow or isinstance(item, int))
    except OSError as error:
        if error.errno in _NO_LAYOUT:
            return b""
        raise


def make_room(known: dict[Any, Any]) -> None:
    """For one more: in the end what is known may be any number of things."""
    if len(known) >= MOST_KNOWN:
        known.clear()


def _top_of(path: bytes) -> bytes:
    """The last directory above another on its file system; raises ``OSError``."""
    status = os.stat(path)
    while True:
        above = os.path.join(path, b"..")
        around = os.stat(above)
        if around.st_dev != status.st_dev or around.st_ino == status.st_ino:
            return path
        path, status = above, around
