"""The layouts of what is copied to a Lustre file system: as the source's, by size, or as the user says.

A layout of its own costs a file two requests to its metadata server more. So a file gets one only where what it would
inherit is another.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial

from pcopy.fsio.attributes import Handle
from pcopy.fsio.close import let_go
from pcopy.fsio.layout import LUSTRE, PLAIN, Layout, Recipe, Stripes, Target
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.fsio.syncer import STRIPE
from pcopy.libc import type_of_file_system
from pcopy.lustre import llapi
from pcopy.lustre.blob import ALL, BadLayout, Component, Striping, describe, parse, without_released, write
from pcopy.lustre.comparing import amiss, comes_from, has_fewer, miscounted, normal_of
from pcopy.lustre.inherited import ATTRIBUTE, DELAYED, Inherited, make_room, read_layout
from pcopy.lustre.volatile import create_volatile
from pcopy.lustre.wish import AUTO, COMPOSITE_SERVES, INHERIT, PRESERVE, Wish, capped, stripes_for
from pcopy.named import NamedTuple

MOST_OF_A_FILE = 160
"""Stripes of a file, where the MDTs' file system keeps attributes in inodes only: no file lies on more OSTs there."""


class Writers(NamedTuple):
    """Who writes: so many ``hosts``, with so many ``ranks`` in all. All of them write to one file if ``splits`` says so
    of its size."""

    hosts: int
    ranks: int
    splits: Callable[[int], bool]


class LustreLayout(Layout):
    """Of one file system; see ``pcopy.fsio.layout.Layout``."""

    is_plain = False

    def __init__(self, wish: Wish, writers: Writers, next_name: Callable[[], bytes]) -> None:
        """``next_name`` gives names that nobody else uses."""
        self._wish = wish
        self._writers = writers
        self._next_name = next_name
        self._inherited = Inherited()
        self._sources: dict[int, bool] = {}
        """By device: is it Lustre?"""
        self._servers: dict[int, tuple[int, ...]] = {}
        """By inode of a directory."""
        self._pools: dict[bytes, bool | None] = {}
        self._recipes: dict[tuple[Striping, bool], Recipe] = {}
        """By what they ask for, and whether Lustre must give just that."""
        self._refused: dict[str, Recipe] = {}
        self._osts: int | None = None

    def of_file(self, source: int, status: os.stat_result, target: Target) -> Recipe:
        return self._recipe(partial(read_layout, source), status.st_size, target)

    def of_small_files(
        self, source: int, names: Sequence[bytes], sizes: Sequence[int], target: Target, *, follow: bool = False
    ) -> list[tuple[Recipe, list[int]]]:
        found: dict[Recipe, list[int]] = {}
        has_layouts = self._wish.kind == PRESERVE and self._is_on_lustre(source)
        for row, (name, size) in enumerate(zip(names, sizes, strict=True)):
            read = partial(read_layout, path_of(source, name), follow=follow) if has_layouts else bytes
            found.setdefault(self._recipe(read, size, target), []).append(row)
        return list(found.items())

    def directory_made(self, source: Handle, target: int) -> str:
        if self._wish.kind != PRESERVE:
            return ""
        try:
            default = self._inherited.own_default(source)
            if not default or parse(default).normal == normal_of(read_layout(target)):
                return ""
            wanted = parse(default).normal
            if why := self._no_pool(wanted, target):  # any name would be taken
                return why
            self._inherited.forget_defaults()
            os.setxattr(target, ATTRIBUTE, default)
            return amiss(wanted, read_layout(target))
        except BadLayout as error:
            return str(error)
        except OSError as error:
            return error.strerror or ""

    def text_of(self, recipe: Recipe, target: Target) -> str:
        try:
            inherited = self._inherited.by(target)
        except Problem:  # there is no room to find out, for instance
            return "what the directory gives"
        if recipe.attribute is None:
            return describe(inherited)
        asked = parse(recipe.attribute[1])
        one, default = asked.plain, inherited.plain
        if one is not None and default is not None:  # what is not asked for is as the default says
            asked = Striping((one._replace(size=one.size or default.size, pool=one.pool or default.pool),))
        return describe(asked.normal)

    def text_of_file(self, descriptor: int, recipe: Recipe, target: Target) -> str:
        try:
            blob = read_layout(descriptor)
            striping = parse(blob)
        except (BadLayout, OSError):
            return "unknown"
        if recipe.attribute and not recipe.amiss(blob):
            return self.text_of(recipe, target)
        own = [parse(recipe.attribute[1]).normal] if recipe.attribute else []
        with suppress(Problem):  # there may be no room to find out
            for asked in (*own, self._inherited.by(target)):
                if comes_from(striping, asked, partial(self._most_in, target)):
                    return describe(asked)
        return describe(striping.normal)

    def lacks(self, directory: int, name: bytes) -> bool:
        with failing("getstripe"):
            return not read_layout(path_of(directory, name), follow=False)

    def stripes_of(self, descriptor: int) -> Stripes:
        try:
            striping = parse(read_layout(descriptor))
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

    def servers_of(self, directory: Target) -> tuple[int, ...]:
        servers = self._servers.get(directory.inode)
        if servers is None:
            make_room(self._servers)
            servers = self._servers[directory.inode] = llapi.servers_of(directory.descriptor)
        return servers

    def _is_on_lustre(self, source: int) -> bool:
        """Is an open directory? Raises ``Problem``."""
        device = status_of(source, on_source=True).st_dev
        if device not in self._sources:
            with failing("statfs", on_source=True):
                self._sources[device] = type_of_file_system(source) == LUSTRE
        return self._sources[device]

    def striping_of(self, file: Handle) -> Striping | None:
        """The layout of a file, None if it has none yet; raises ``Problem``, also for one that is not known here."""
        with failing("getstripe", on_source=True):
            blob = read_layout(file, follow=False)
        try:
            return parse(blob) if blob else None
        except BadLayout as error:
            raise Problem("getstripe", errno.EINVAL, on_source=True, text=str(error)) from None

    def change_of(self, striping: Striping | None, size: int, target: Target) -> Recipe | None:
        """By which recipe a file of ``size`` bytes gets another layout than ``striping``; None if that is what is
        wanted. One without any will inherit it. Raises ``Problem``, also where Lustre can't do that."""
        recipe = self._recipe(bytes, size, target)
        if striping is None or self._fits(recipe, striping, size, target):
            return None
        wanted = parse(recipe.attribute[1]) if recipe.attribute else self._inherited.by(target)
        why = ""
        if striping.mirrors > 1:
            why = "it has several mirrors, and would keep one (lfs mirror split can take them away)"
        elif wanted.on_mdt and not striping.on_mdt:
            why = "Lustre can't move what lies on OSTs to an MDT"
        elif wanted.on_mdt not in (0, striping.on_mdt):
            why = "Lustre can't change how much of it lies on its MDT"
        if why:
            raise Problem("stripe", errno.ENOTSUP, on_source=True, text=f"{why}: it stays as it is")
        return recipe

    def _fits(self, recipe: Recipe, striping: Striping, size: int, target: Target) -> bool:
        """Has a file of ``size`` bytes the layout of ``recipe``? Raises ``Problem``."""
        kind = self._wish.kind
        if kind == AUTO and striping.is_composite and size < COMPOSITE_SERVES:
            return True
        if recipe.attribute is not None:
            return not recipe.amiss(write(striping))
        inherited = self._inherited.by(target)
        if kind == INHERIT or inherited.plain is None:
            return comes_from(striping, inherited, partial(self._most_in, target))
        stripe_size = 0 if kind == AUTO else self._wish.component.size
        return not miscounted(Component(inherited.plain.stripes, stripe_size), write(striping), exactly=True)

    def _recipe(self, read: Callable[[], bytes], size: int, target: Target) -> Recipe:
        """For a file of ``size`` bytes, of which ``read`` gives the source's layout. Raises ``Problem``."""
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

    def _as_source(self, blob: bytes, target: Target) -> Recipe:
        if not blob:
            return PLAIN
        try:
            wanted = parse(blob).normal
        except BadLayout as error:
            return self._impossible(str(error))
        inherited = self._inherited.by(target)
        if wanted == inherited:
            return PLAIN
        asked = wanted.in_no_pool if inherited.pools else wanted
        recipe = self._recipes.get((asked, True))
        if recipe is None:
            if why := self._no_pool(wanted, target.descriptor):
                return self._impossible(why)
            value = without_released(blob) if asked == wanted else write(asked)
            make_room(self._recipes)
            recipe = self._recipes[asked, True] = Recipe(
                DELAYED, (ATTRIBUTE, value), partial(amiss, wanted), serves=partial(has_fewer, wanted)
            )
        return recipe

    def _impossible(self, why: str) -> Recipe:
        make_room(self._refused)
        return self._refused.setdefault(why, Recipe(impossible=why))

    def _by_size(self, size: int, target: Target) -> Recipe:
        if self._inherited.by(target).is_composite and size < COMPOSITE_SERVES:
            return PLAIN
        return self._counted(Component(self.stripes_that_suit(size, target.descriptor)), target)

    def stripes_that_suit(self, size: int, target: int) -> int:
        """By the size, on the file system of the directory ``target``."""
        writers = self._writers
        hosts, ranks = (writers.hosts, writers.ranks) if writers.splits(size) else (1, 1)
        return stripes_for(size, hosts, ranks, self.count_osts(target), self._wish.table)

    def _counted(self, wanted: Component, target: Target) -> Recipe:
        """So many stripes, or as many as there are OSTs, or as many as the pool has that the directory gives."""
        inherited = self._inherited.by(target)
        osts = self._inherited.most_stripes(target) if inherited.pools else self.count_osts(target.descriptor)
        if wanted.stripes == ALL or (osts and wanted.stripes > osts):
            wanted = wanted._replace(stripes=osts or wanted.stripes)
        one = inherited.plain
        if one is not None and one.stripes == wanted.stripes and wanted.size in (0, one.size):
            return PLAIN
        striping = Striping((wanted,))
        exactly = osts > 0
        recipe = self._recipes.get((striping, exactly))
        if recipe is None:
            amiss = partial(miscounted, wanted, exactly=exactly)
            make_room(self._recipes)
            recipe = self._recipes[striping, exactly] = Recipe(
                DELAYED, (ATTRIBUTE, write(striping)), amiss, serves=partial(has_fewer, striping.normal)
            )
        return recipe

    def _most_in(self, target: Target, pool: bytes) -> int:
        """How many OSTs a pool has, or the file system without one; 0 if that is not told. Raises ``Problem``."""
        return self._inherited.most_stripes(target, pool) if pool else self.count_osts(target.descriptor)

    def count_osts(self, target: int) -> int:
        """Of the file system; 0 if that is not told."""
        if self._osts is None:
            self._osts = llapi.count_osts(target)
        return self._osts

    def _no_pool(self, wanted: Striping, target: int) -> str:
        """Which pool does not exist; empty if all do, or nobody can tell."""
        for pool in sorted(wanted.pools):
            has_pool = self._pools.get(pool)
            if has_pool is None:  # unknown yet, or nobody could tell
                make_room(self._pools)
                has_pool = self._pools[pool] = llapi.has_pool(target, self._next_name(), pool)
            if has_pool is False:
                return f"there is no pool {pool.decode('ascii', 'backslashreplace')}"
        return ""


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
