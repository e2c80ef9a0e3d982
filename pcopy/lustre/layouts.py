"""Layouts of files that are copied to a Lustre file system: as in the source, by size, or as the user requests.

Setting a layout costs two more requests to the metadata server for each file. So a file gets one only if it differs
from the layout that it would inherit.
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
"""Maximum number of stripes of a file if the MDTs' file system can store extended attributes only within inodes.

Then no file has data on more OSTs.
"""


class Writers(NamedTuple):
    """The processes that write: number of ``hosts``, and of ``ranks`` on all of them.

    ``splits`` returns True if all of them write parts of one file of a given size in bytes.
    """

    hosts: int
    ranks: int
    splits: Callable[[int], bool]


class LustreLayout(Layout):
    """Layouts of new files on one Lustre file system; see ``pcopy.fsio.layout.Layout``."""

    is_plain = False

    def __init__(self, wish: Wish, writers: Writers, next_name: Callable[[], bytes]) -> None:
        """Create the layouts for the user's ``wish``. ``next_name`` returns names that no other process uses."""
        self._wish = wish
        self._writers = writers
        self._next_name = next_name
        self._inherited = Inherited()
        self._sources: dict[int, bool] = {}
        """True for each device (st_dev) of the source that is a Lustre file system, False for the others."""
        self._servers: dict[int, tuple[int, ...]] = {}
        """MDTs of a directory, by its inode number."""
        self._pools: dict[bytes, bool | None] = {}
        """True if a pool exists, None if that is unknown, by its name."""
        self._recipes: dict[tuple[Striping, bool], Recipe] = {}
        """Cache of recipes. The key is the requested layout, and True if Lustre must assign exactly that layout."""
        self._refused: dict[str, Recipe] = {}
        """Recipes for layouts that are impossible, by the reason."""
        self._osts: int | None = None
        """Number of OSTs of the file system; None if it was not determined yet."""

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
            if why := self._no_pool(wanted, target):  # setxattr accepts any pool name, so it is checked here
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
        except Problem:  # for example, the file system is too full to create a file that inherits the layout
            return "the default layout of the directory"
        if recipe.attribute is None:
            return describe(inherited)
        requested = parse(recipe.attribute[1])
        component, default = requested.plain, inherited.plain
        if component is not None and default is not None:  # properties that are not requested are inherited
            requested = Striping(
                (component._replace(size=component.size or default.size, pool=component.pool or default.pool),)
            )
        return describe(requested.normal)

    def text_of_file(self, descriptor: int, recipe: Recipe, target: Target) -> str:
        try:
            blob = read_layout(descriptor)
            striping = parse(blob)
        except (BadLayout, OSError):
            return "unknown"
        if recipe.attribute and not recipe.amiss(blob):
            return self.text_of(recipe, target)
        candidates = [parse(recipe.attribute[1]).normal] if recipe.attribute else []
        with suppress(Problem):  # the file system may be too full to find out the inherited layout
            for candidate in (*candidates, self._inherited.by(target)):
                if comes_from(striping, candidate, partial(self._most_in, target)):
                    return describe(candidate)
        return describe(striping.normal)

    def lacks(self, directory: int, name: bytes) -> bool:
        with failing("getstripe"):
            return not read_layout(path_of(directory, name), follow=False)

    def stripes_of(self, descriptor: int) -> Stripes:
        try:
            striping = parse(read_layout(descriptor))
        except (BadLayout, OSError):
            return Stripes()
        component = striping.plain
        if component is None or not component.size or len(component.osts) < 2:
            return Stripes(striping.unit)
        return Stripes(striping.unit, component.size, component.osts)

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
        """Return True if the open directory ``source`` is on Lustre. Raise ``Problem``."""
        device = status_of(source, on_source=True).st_dev
        if device not in self._sources:
            with failing("statfs", on_source=True):
                self._sources[device] = type_of_file_system(source) == LUSTRE
        return self._sources[device]

    def striping_of(self, file: Handle) -> Striping | None:
        """Return the layout of a file, or None if it has none yet.

        Raise ``Problem``, also for a layout of an unknown type.
        """
        with failing("getstripe", on_source=True):
            blob = read_layout(file, follow=False)
        try:
            return parse(blob) if blob else None
        except BadLayout as error:
            raise Problem("getstripe", errno.EINVAL, on_source=True, text=str(error)) from None

    def change_of(self, striping: Striping | None, size: int, target: Target) -> Recipe | None:
        """Return the recipe of the layout that a file should get instead of ``striping``; None if it needs no other
        one.

        A file without a layout (``striping`` None) will inherit one. Raise ``Problem``, also if Lustre cannot change
        this layout.

        Args:
            striping: present layout of the file.
            size: its size in bytes.
            target: its directory.
        """
        recipe = self._recipe(bytes, size, target)
        if striping is None or self._fits(recipe, striping, size, target):
            return None
        wanted = parse(recipe.attribute[1]) if recipe.attribute else self._inherited.by(target)
        why = ""
        if striping.mirrors > 1:
            why = "it has several mirrors, and would keep one (lfs mirror split can remove the others)"
        elif wanted.on_mdt and not striping.on_mdt:
            why = "Lustre can't move data from OSTs to an MDT"
        elif wanted.on_mdt not in (0, striping.on_mdt):
            why = "Lustre can't change the number of its bytes on the MDT"
        if why:
            raise Problem("stripe", errno.ENOTSUP, on_source=True, text=f"{why}: its layout is not changed")
        return recipe

    def _fits(self, recipe: Recipe, striping: Striping, size: int, target: Target) -> bool:
        """Return True if ``striping`` suits a file of ``size`` bytes for which ``recipe`` was chosen.

        Raise ``Problem``.
        """
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
        """Return the recipe for a new file of ``size`` bytes; ``read`` returns the layout of its source.

        Raise ``Problem``.
        """
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
        """Return the recipe for a file that gets the layout ``blob`` of its source. Raise ``Problem``."""
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
        """Return the recipe of a file that inherits its layout, for the reason ``why``."""
        make_room(self._refused)
        return self._refused.setdefault(why, Recipe(impossible=why))

    def _by_size(self, size: int, target: Target) -> Recipe:
        """Return the recipe for a file of ``size`` bytes with ``--stripe auto``. Raise ``Problem``."""
        if self._inherited.by(target).is_composite and size < COMPOSITE_SERVES:
            return PLAIN
        return self._counted(Component(self.stripes_that_suit(size, target.descriptor)), target)

    def stripes_that_suit(self, size: int, target: int) -> int:
        """Return the number of stripes that suits a file of ``size`` bytes on the file system of the directory
        ``target``.
        """
        writers = self._writers
        hosts, ranks = (writers.hosts, writers.ranks) if writers.splits(size) else (1, 1)
        return stripes_for(size, hosts, ranks, self.count_osts(target), self._wish.table)

    def _counted(self, wanted: Component, target: Target) -> Recipe:
        """Return the recipe for a file with the ``wanted`` number of stripes. Raise ``Problem``.

        The number is limited to the OSTs of the file system, or to those of the pool in the directory's default layout.
        """
        inherited = self._inherited.by(target)
        osts = self._inherited.most_stripes(target) if inherited.pools else self.count_osts(target.descriptor)
        if wanted.stripes == ALL or (osts and wanted.stripes > osts):
            wanted = wanted._replace(stripes=osts or wanted.stripes)
        component = inherited.plain
        if component is not None and component.stripes == wanted.stripes and wanted.size in (0, component.size):
            return PLAIN
        striping = Striping((wanted,))
        exactly = osts > 0
        recipe = self._recipes.get((striping, exactly))
        if recipe is None:
            deviation = partial(miscounted, wanted, exactly=exactly)
            make_room(self._recipes)
            recipe = self._recipes[striping, exactly] = Recipe(
                DELAYED, (ATTRIBUTE, write(striping)), deviation, serves=partial(has_fewer, striping.normal)
            )
        return recipe

    def _most_in(self, target: Target, pool: bytes) -> int:
        """Return the number of OSTs in a pool, or of the file system if ``pool`` is empty; 0 if unknown.

        Raise ``Problem``.
        """
        return self._inherited.most_stripes(target, pool) if pool else self.count_osts(target.descriptor)

    def count_osts(self, target: int) -> int:
        """Return the number of OSTs of the file system; 0 if it is unknown."""
        if self._osts is None:
            self._osts = llapi.count_osts(target)
        return self._osts

    def _no_pool(self, wanted: Striping, target: int) -> str:
        """Return a message about a pool of ``wanted`` that does not exist; empty if all exist, or if that cannot be
        determined.
        """
        for pool in sorted(wanted.pools):
            has_pool = self._pools.get(pool)
            if has_pool is None:  # not asked yet, or it could not be determined
                make_room(self._pools)
                has_pool = self._pools[pool] = llapi.has_pool(target, self._next_name(), pool)
            if has_pool is False:
                return f"there is no pool {pool.decode('ascii', 'backslashreplace')}"
        return ""


def told_of_count(stripe: str, directory: bytes) -> str:
    """Return the notice of ``capped`` for the file system of ``directory``; empty if the directory cannot be opened."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return capped(stripe, llapi.count_osts(descriptor))
    finally:
        os.close(descriptor)


def make_anchor(directory: int, server: int) -> int:
    """Create a file without a name on the MDT ``server``, with a stripe on every OST that accepts new files.

    Raise ``OSError``. The MDT is one of ``mdts_of`` the directory.
    """
    made = create_volatile(directory, DELAYED, server=server)
    try:
        os.setxattr(made, ATTRIBUTE, write(Striping((Component(ALL, STRIPE),))))
        component = parse(os.getxattr(made, ATTRIBUTE)).plain
        if (
            component is None
            or component.size != STRIPE
            or MOST_OF_A_FILE <= component.stripes < llapi.count_osts(directory)
        ):
            raise OSError(errno.EOPNOTSUPP, "no file can be made that lies on all OSTs")
        os.ftruncate(made, component.stripes * component.size)
    except BadLayout as error:
        let_go(made)
        raise OSError(errno.EOPNOTSUPP, str(error)) from None
    except BaseException:
        let_go(made)
        raise
    return made


def path_of(directory: int, name: bytes) -> bytes:
    """Return the path in /proc of ``name`` in an open directory, by which its layout is read.

    If the item was statted before, this path needs no other request to a server.
    """
    return b"/proc/self/fd/%d/%b" % (directory, name)
