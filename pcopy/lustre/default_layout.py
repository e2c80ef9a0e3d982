"""Finds the layout that new files inherit from a directory.

The default layout that a directory shows does not determine it completely. So, once for each default layout, a file
without a name is created in a directory with that default, and the layout that Lustre gives it is read.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from pcopy.fsio.attributes import ItemHandle
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.layout import TargetDirectory
from pcopy.fsio.preserve import CAP_SYS_ADMIN, has_capability
from pcopy.fsio.problem import errors_as_problem
from pcopy.lustre.blob import ALL_OSTS, LayoutComponent, ParsedLayout, pack_layout
from pcopy.lustre.layout_comparison import normalised_layout
from pcopy.lustre.volatile import create_volatile_file

LAYOUT_ATTRIBUTE = "lustre.lov"
"""Extended attribute with the layout of a file, or the default layout of a directory."""
OWN_DEFAULT_ATTRIBUTE = "trusted.lov"
"""Extended attribute of a directory that has a default layout of its own. Only root can read it.

``LAYOUT_ATTRIBUTE`` of a directory without its own default is the default of the file system.
"""

DELAYED_LAYOUT_FLAG = 0o20400
"""Flag of open(2) that creates a file without a layout (O_LOV_DELAY_CREATE), so that the layout can
be set afterwards.
"""

_NO_LAYOUT_ERRNOS = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL)
"""Errors of getxattr(2) for an item without a layout."""

MAX_CACHE_ENTRIES = 1024
"""Maximum number of entries of a cache, which is cleared when it is full: each directory may have its own default
layout.
"""


class InheritedLayouts:
    """Finds and caches the layouts that files inherit in the directories of one Lustre file system."""

    def __init__(self) -> None:
        self._layouts: dict[bytes, ParsedLayout] = {}
        """Layout that a new file gets, by the default layout (attribute value) of its directory."""
        self._max_stripes: dict[tuple[bytes, bytes], int] = {}
        """Number of stripes of a file that requests one on each OST, by default layout of the directory and pool."""
        self._defaults: dict[int, bytes] = {}
        """Default layout (attribute value) of a directory, by its inode number."""
        self._top_defaults: dict[int, bytes] = {}
        """Default layout (attribute value) of the topmost directory of a source file system, by its st_dev."""

    def inherited_layout_in(self, target: TargetDirectory) -> ParsedLayout:
        """Return the layout that new files inherit in the directory ``target``, in the form in which layouts are
        compared (``ParsedLayout.normalised_layout``). Raise ``Problem``, for example if no file can be created there.
        """
        default = self._default_layout_of(target)
        inherited = self._layouts.get(default)
        if inherited is None:
            with closing_descriptor(create_volatile_file(target.descriptor)) as made, errors_as_problem("getstripe"):
                inherited = normalised_layout(read_layout(made))
            clear_cache_if_full(self._layouts)
            self._layouts[default] = inherited
        return inherited

    def max_stripes(self, target: TargetDirectory, pool: bytes = b"") -> int:
        """Return the number of stripes that a file in the directory ``target`` gets if one on each OST is requested for
        it; 0 if that cannot be determined.

        The OSTs are those of ``pool``; if ``pool`` is empty, those that the directory's default layout allows. Raise
        ``Problem``.
        """
        key = self._default_layout_of(target), pool
        most = self._max_stripes.get(key)
        if most is None:
            with closing_descriptor(create_volatile_file(target.descriptor, DELAYED_LAYOUT_FLAG)) as made:
                try:
                    os.setxattr(
                        made, LAYOUT_ATTRIBUTE, pack_layout(ParsedLayout((LayoutComponent(ALL_OSTS, pool=pool),)))
                    )
                    component = normalised_layout(read_layout(made)).single_component
                except OSError:
                    component = None
            clear_cache_if_full(self._max_stripes)
            most = self._max_stripes[key] = (
                component.stripes if component is not None and component.stripes != ALL_OSTS else 0
            )
        return most

    def clear_cached_default_layouts(self) -> None:
        """Clear the cache of the directories' default layouts. Must be called when a directory gets another one."""
        self._defaults.clear()

    def _default_layout_of(self, target: TargetDirectory) -> bytes:
        """Return the default layout of the directory ``target``, the value of its extended attribute. It is cached.
        Raise ``Problem``.
        """
        default = self._defaults.get(target.inode)
        if default is None:
            clear_cache_if_full(self._defaults)
            with errors_as_problem("getstripe"):
                default = self._defaults[target.inode] = read_layout(target.descriptor)
        return default

    def own_default_layout_of(self, source: ItemHandle) -> bytes:
        """Return the default layout of the directory ``source``, the value of its extended attribute; empty if the
        directory has none of its own, so that the default of the file system applies. Raise ``OSError``.
        """
        default = read_layout(source)
        # Root can read the directory's own attribute. Others can only compare with the default of the file system.
        if default and has_capability(CAP_SYS_ADMIN):
            try:
                os.getxattr(source, OWN_DEFAULT_ATTRIBUTE)
                return default
            except OSError as error:
                if error.errno == errno.ENODATA:
                    return b""
        return b"" if default == self._default_layout_of_file_system(source) else default

    def _default_layout_of_file_system(self, source: ItemHandle) -> bytes:
        """Return the default layout of the file system of the directory ``source``: the value of the extended attribute
        of its topmost directory, or of the topmost one in the part of it that is mounted. Raise ``OSError``.
        """
        path = source if isinstance(source, bytes) else b"/proc/self/fd/%d" % source
        device = os.stat(path).st_dev
        if device not in self._top_defaults:
            self._top_defaults[device] = read_layout(_topmost_directory(path))
        return self._top_defaults[device]


def read_layout(item: ItemHandle, *, follow: bool = True) -> bytes:
    """Return the value of the layout attribute of an item; empty if the item has none. Raise ``OSError``.

    If ``follow`` is True and the item is given by a path that is a symbolic link, the link is followed.
    """
    try:
        return os.getxattr(item, LAYOUT_ATTRIBUTE, follow_symlinks=follow or isinstance(item, int))
    except OSError as error:
        if error.errno in _NO_LAYOUT_ERRNOS:
            return b""
        raise


def clear_cache_if_full(known: dict[Any, Any]) -> None:
    """Clear ``known``, a cache, if it has ``MAX_CACHE_ENTRIES`` entries, so that it does not grow without limit."""
    if len(known) >= MAX_CACHE_ENTRIES:
        known.clear()


def _topmost_directory(path: bytes) -> bytes:
    """Return the path of the topmost directory above ``path`` on the same file system. Raise ``OSError``."""
    status = os.stat(path)
    while True:
        above = os.path.join(path, b"..")
        around = os.stat(above)
        if around.st_dev != status.st_dev or around.st_ino == status.st_ino:
            return path
        path, status = above, around
