"""The layouts of what is copied to a Lustre file system: as the source's, by size, or as the user says.

A layout of its own costs a file two requests to its metadata server more. So a file gets one only where what it would
inherit is another. What files inherit in a directory Lustre itself says: the first time, a file without
a name is made there and looked at; after that, in all directories with the same default.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

from pcopy.fsio.attributes import Handle
from pcopy.fsio.close import held_open, let_go
from pcopy.fsio.layout import LUSTRE, PLAIN, Layout, Recipe, Stripes
from pcopy.fsio.preserve import CAP_SYS_ADMIN, capable
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.fsio.syncer import STRIPE
from pcopy.libc import type_of_file_system
from pcopy.lustre import llapi
from pcopy.lustre.blob import ALL, BadLayout, Component, Striping, describe, parse, without_released, write
from pcopy.lustre.comparing import amiss, comes_from, miscounted, normal_of
from pcopy.lustre.volatile import create_volatile
from pcopy.lustre.wish import AUTO, COMPOSITE_SERVES, INHERIT, PRESERVE, Wish, capped, stripes_for
from pcopy.named import NamedTuple

ATTRIBUTE = "lustre.lov"
OWN_DEFAULT = "trusted.lov"
"""A directory's, and for root only: ``ATTRIBUTE`` of one without a default is that of the file system."""

DELAYED = 0o20400
"""O_LOV_DELAY_CREATE: a file that is opened with it has no layout yet."""

_NO_LAYOUT = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL)
"""What getxattr(2) says of an item that has none."""

MOST_KNOWN = 1024
"""Layouts, and directories, of which something is remembered: each may have its own."""


MOST_OF_A_FILE = 160
"""Stripes of a file, where the MDTs' file system keeps attributes in inodes only: on more OSTs no file lies there."""


class Writers(NamedTuple):
    """Who writes: so many ``hosts``, with so many ``ranks`` in all. All of them write to one file if ``splits`` says so
    of its size."""

    hosts: int
    ranks: int
    splits: Callable[[int], bool]


class _Target(NamedTuple):
    """An open directory, and what gives the layout that files in it inherit: at most one question for all of a batch.
    Raises ``Problem``."""

    directory: int
    inherited: Callable[[], Striping]


class LustreLayout(Layout):
    """Of one file system; see ``pcopy.fsio.layout.Layout``."""

    is_plain = False

    def __init__(self, wish: Wish, writers: Writers, next_name: Callable[[], bytes]) -> None:
        """``next_name`` gives names that nobody else uses."""
        self._wish = wish
        self._writers = writers
        self._next_name = next_name
        self._inherited: dict[bytes, Striping] = {}
        """By the default of a directory: what a file in it gets."""
        self._defaults: dict[int, bytes] = {}
        """By inode of a directory."""
        self._sources: dict[int, bool] = {}
        """By device: is it Lustre?"""
        self._servers: dict[int, tuple[int, ...]] = {}
        """By inode of a directory."""
        self._pools: dict[bytes, bool | None] = {}
        self._recipes: dict[Striping, Recipe] = {}
        self._refused: dict[str, Recipe] = {}
        self._osts: int | None = None
        self._tops: dict[int, bytes] = {}
        """By device of a source: what its topmost directory says."""

    def of_file(self, source: int, status: os.stat_result, target: int) -> Recipe:
        return self._recipe(partial(_read, source), status.st_size, self._at(target))

    def of_small_files(
        self, source: int, names: Sequence[bytes], sizes: Sequence[int], target: int, *, follow: bool = False
    ) -> list[tuple[Recipe, list[int]]]:
        found: dict[Recipe, list[int]] = {}
        has_layouts = self._wish.kind == PRESERVE and self._is_on_lustre(source)
        around = self._at(target)
        for row, (name, size) in enumerate(zip(names, sizes, strict=True)):
            read = partial(_read, path_of(source, name), follow=follow) if has_layouts else bytes
            found.setdefault(self._recipe(read, size, around), []).append(row)
        return list(found.items())

    def directory_made(self, source: Handle, target: int) -> str:
        if self._wish.kind != PRESERVE:
            return ""
        try:
            default = self._own_default(source)
            if not default or parse(default).normal == normal_of(_read(target)):
                return ""
            wanted = parse(default).normal
            if why := self._no_pool(wanted, target):  # any name would be taken
                return why
            self._defaults.clear()
            os.setxattr(target, ATTRIBUTE, default)
            return amiss(wanted, _read(target))
        except BadLayout as error:
            return str(error)
        except OSError as error:
            return error.strerror or ""

    def text_of(self, recipe: Recipe, target: int) -> str:
        try:
            wanted = parse(recipe.attribute[1]).normal if recipe.attribute else self._inherited_in(target)
        except Problem:  # there is no room to find out, for instance
            return "what the directory gives"
        return describe(wanted)

    def stripes_of(self, descriptor: int) -> Stripes:
        try:
            striping = parse(_read(descriptor))
        except (BadLayout, OSError):
            return Stripes()
        one = striping.plain
        if one is None or not one.size or len(one.osts) < 2:
            return Stripes(striping.unit)
        return Stripes(striping.unit, one.size, one.osts)

    def shared(
        self, descriptor: int, group: int, *, insists: bool
    ) -> Generator[None, None, AbstractContextManager[None]]:
        return llapi.group_lock(descriptor, group, insists=insists)

    def anchor(self, directory: int, server: int) -> int:
        return make_anchor(directory, server)

    def servers_of(self, directory: int, inode: int) -> tuple[int, ...]:
        servers = self._servers.get(inode)
        if servers is None:
            _make_room(self._servers)
            servers = self._servers[inode] = llapi.servers_of(directory)
        return servers

    def _is_on_lustre(self, source: int) -> bool:
        """Is an open directory?"""
        device = os.fstat(source).st_dev
        if device not in self._sources:
            self._sources[device] = type_of_file_system(source) == LUSTRE
        return self._sources[device]

    def striping_of(self, file: Handle) -> Striping | None:
        """The layout of a file, None if it has none yet; raises ``Problem``, also for one that is not known here."""
        with failing("getstripe", on_source=True):
            blob = _read(file, follow=False)
        try:
            return parse(blob) if blob else None
        except BadLayout as error:
            raise Problem("getstripe", errno.EINVAL, on_source=True, text=str(error)) from None

    def change_of(self, striping: Striping | None, size: int, target: int) -> Recipe | None:
        """By which recipe a file of ``size`` bytes, in the directory ``target``, gets another layout than ``striping``;
        None if that is what is wanted. One without any will inherit it. Raises ``Problem``, also where Lustre can't do
        that."""
        around = self._at(target)
        recipe = self._recipe(bytes, size, around)
        if striping is None or self._fits(recipe, striping, size, around):
            return None
        wanted = parse(recipe.attribute[1]) if recipe.attribute else around.inherited()
        why = ""
        if striping.mirrors > 1:
            why = "it has several mirrors, and would keep one (lfs mirror split can take them away)"
        elif wanted.on_mdt not in (0, striping.on_mdt):
            why = "Lustre can't move what lies on OSTs to an MDT"
        if why:
            raise Problem("stripe", errno.ENOTSUP, on_source=True, text=f"{why}: it stays as it is")
        return recipe

    def _fits(self, recipe: Recipe, striping: Striping, size: int, target: _Target) -> bool:
        """Has a file of ``size`` bytes, in the directory ``target``, the layout of ``recipe``? Raises ``Problem``."""
        kind = self._wish.kind
        if kind == AUTO and striping.is_composite and size < COMPOSITE_SERVES:
            return True
        if recipe.attribute is not None:
            return not recipe.amiss(write(striping))
        inherited = target.inherited()
        if kind == INHERIT or inherited.plain is None:
            return comes_from(striping, inherited, self.count_osts(target.directory))
        stripe_size = 0 if kind == AUTO else self._wish.component.size
        return not miscounted(Component(inherited.plain.stripes, stripe_size), write(striping), exactly=True)

    def _at(self, target: int) -> _Target:
        return _Target(target, cache(partial(self._inherited_in, target)))

    def _recipe(self, read: Callable[[], bytes], size: int, target: _Target) -> Recipe:
        """For a file of ``size`` bytes, in the directory ``target``, of which ``read`` gives the source's layout."""
        kind = self._wish.kind
        if kind == INHERIT:
            return PLAIN
        if kind == PRESERVE:
            try:
                blob = read()
            except OSError as error:
                return self._impossible(f"the source's layout cannot be read: {error.strerror}")
            return self._as_source(blob, target)
        if kind == AUTO:
            return self._by_size(size, target)
        return self._counted(self._wish.component, target)

    def _as_source(self, blob: bytes, target: _Target) -> Recipe:
        if not blob:
            return PLAIN
        try:
            wanted = parse(blob).normal
        except BadLayout as error:
            return self._impossible(str(error))
        inherited = target.inherited()
        if wanted == inherited:
            return PLAIN
        asked = wanted.in_no_pool if inherited.pools else wanted
        recipe = self._recipes.get(asked)
        if recipe is None:
            if why := self._no_pool(wanted, target.directory):
                return self._impossible(why)
            value = without_released(blob) if asked == wanted else write(asked)
            _make_room(self._recipes)
            recipe = self._recipes[asked] = Recipe(DELAYED, (ATTRIBUTE, value), partial(amiss, wanted))
        return recipe

    def _impossible(self, why: str) -> Recipe:
        _make_room(self._refused)
        return self._refused.setdefault(why, Recipe(impossible=why))

    def _by_size(self, size: int, target: _Target) -> Recipe:
        if target.inherited().is_composite and size < COMPOSITE_SERVES:
            return PLAIN
        return self._counted(Component(self.stripes_that_suit(size, target.directory)), target)

    def stripes_that_suit(self, size: int, target: int) -> int:
        """By the size, on the file system of the directory ``target``."""
        writers = self._writers
        hosts, ranks = (writers.hosts, writers.ranks) if writers.splits(size) else (1, 1)
        return stripes_for(size, hosts, ranks, self.count_osts(target), self._wish.table)

    def _counted(self, wanted: Component, target: _Target) -> Recipe:
        """So many stripes, or as many as there are OSTs."""
        osts = self.count_osts(target.directory)
        if wanted.stripes == ALL or (osts and wanted.stripes > osts):
            wanted = wanted._replace(stripes=osts or wanted.stripes)
        inherited = target.inherited().plain
        if inherited is not None and inherited.stripes == wanted.stripes and wanted.size in (0, inherited.size):
            return PLAIN
        striping = Striping((wanted,))
        recipe = self._recipes.get(striping)
        if recipe is None:
            amiss = partial(miscounted, wanted, exactly=bool(osts))
            _make_room(self._recipes)
            recipe = self._recipes[striping] = Recipe(DELAYED, (ATTRIBUTE, write(striping)), amiss)
        return recipe

    def count_osts(self, target: int) -> int:
        """Of the file system; 0 if that is not told."""
        if self._osts is None:
            self._osts = llapi.count_osts(target)
        return self._osts

    def _inherited_in(self, target: int) -> Striping:
        """What files get in the open directory; raises ``Problem``."""
        inode = status_of(target).st_ino
        default = self._defaults.get(inode)
        if default is None:
            _make_room(self._defaults)
            with failing("getstripe"):
                default = self._defaults[inode] = _read(target)
        inherited = self._inherited.get(default)
        if inherited is None:
            _make_room(self._inherited)
            with held_open(create_volatile(target)) as made, failing("getstripe"):
                inherited = self._inherited[default] = normal_of(_read(made))
        return inherited

    def _own_default(self, source: Handle) -> bytes:
        """The default of a directory, empty if it has none of its own."""
        default = _read(source)
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
            self._tops[device] = _read(_top_of(path))
        return self._tops[device]

    def _no_pool(self, wanted: Striping, target: int) -> str:
        """Which pool does not exist; empty if all do, or nobody can tell."""
        for pool in sorted(wanted.pools):
            has_pool = self._pools.get(pool)
            if has_pool is None:  # unknown yet, or nobody could tell
                _make_room(self._pools)
                has_pool = self._pools[pool] = llapi.has_pool(target, self._next_name(), pool)
            if has_pool is False:
                return f"there is no pool {pool.decode('ascii', 'backslashreplace')}"
        return ""


def _make_room(known: dict[Any, Any]) -> None:
    """For one more: what is known may be any number of things in the end."""
    if len(known) >= MOST_KNOWN:
        known.clear()


def told_of_count(stripe: str, directory: bytes) -> str:
    """``capped`` for the file system of a directory; nothing where that can't be opened."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return capped(stripe, llapi.count_osts(descriptor))
    finally:
        os.close(descriptor)


def make_anchor(directory: int, server: int) -> int:
    """A file without a name that an MDT keeps, and that lies on all OSTs which take new files. Raises ``OSError``.

    ``server`` is that MDT: one of ``servers_of`` the directory.
    """
    made = create_volatile(directory, DELAYED, server=server)
    try:
        os.setxattr(made, ATTRIBUTE, write(Striping((Component(ALL, STRIPE),))))
        one = parse(os.getxattr(made, ATTRIBUTE)).plain
        if one is None or one.size != STRIPE or MOST_OF_A_FILE <= one.stripes < llapi.count_osts(directory):
            raise OSError(errno.EOPNOTSUPP, "no file can be made that lies on all OSTs")
        os.ftruncate(made, one.stripes * one.size)
    except BadLayout as error:
        let_go(made)
        raise OSError(errno.EOPNOTSUPP, str(error)) from None
    except BaseException:
        let_go(made)
        raise
    return made


def path_of(directory: int, name: bytes) -> bytes:
    """By which the layout of what is in an open directory is asked for: no request for it goes to a server, where it
    was statted before."""
    return b"/proc/self/fd/%d/%b" % (directory, name)


def _read(item: Handle, *, follow: bool = True) -> bytes:
    """Its layout; empty if it has none. ``follow`` a path that is a symbolic link. Raises ``OSError``."""
    try:
        return os.getxattr(item, ATTRIBUTE, follow_symlinks=follow or isinstance(item, int))
    except OSError as error:
        if error.errno in _NO_LAYOUT:
            return b""
        raise


def _top_of(path: bytes) -> bytes:
    """The last directory above another on its file system; raises ``OSError``."""
    status = os.stat(path)
    while True:
        above = os.path.join(path, b"..")
        around = os.stat(above)
        if around.st_dev != status.st_dev or around.st_ino == status.st_ino:
            return path
        path, status = above, around
