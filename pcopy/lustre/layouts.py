"""Layouts of files that are copied to a Lustre file system: the layout of the source file, one that suits the size of
the file, or one that the user requests.

Setting a layout costs two more requests to the metadata server for each file. So the layout of a new file is set only
if it differs from the layout that the file would inherit. A ``LayoutRecipe`` says how a file is created: flags of
open(2), and the extended attribute that requests its layout, if one is requested.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import ItemHandle
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.layout import (
    DEFAULT_LAYOUT_RECIPE,
    LUSTRE_TYPE,
    FileStripes,
    LayoutPolicy,
    LayoutRecipe,
    TargetDirectory,
)
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.syncer import ANCHOR_STRIPE_SIZE
from pcopy.libc import type_of_file_system
from pcopy.lustre import llapi
from pcopy.lustre.blob import (
    ALL_OSTS,
    InvalidLayoutError,
    LayoutComponent,
    ParsedLayout,
    describe_layout,
    layout_without_released_flag,
    pack_layout,
    parse_layout,
)
from pcopy.lustre.default_layout import (
    DELAYED_LAYOUT_FLAG,
    LAYOUT_ATTRIBUTE,
    InheritedLayouts,
    clear_cache_if_full,
    read_layout,
)
from pcopy.lustre.layout_comparison import (
    has_fewer_stripes,
    is_layout_derived_from,
    layout_deviation,
    normalised_layout,
    stripe_count_deviation,
)
from pcopy.lustre.layout_request import (
    AUTO_STRIPE_COUNT,
    COMPOSITE_LAYOUT_LIMIT,
    INHERIT_LAYOUT,
    PRESERVE_LAYOUT,
    LayoutRequest,
    automatic_stripe_count,
    capped_stripe_count_notice,
)
from pcopy.lustre.volatile import create_volatile_file

MAX_STRIPES_IN_INODE = 160
"""Maximum number of stripes of a file if the MDTs' file system can store extended attributes only within inodes
(ldiskfs without ea_inode). A file with this number of stripes may therefore lack some OSTs.
"""


class WritingProcesses(NamedTuple):
    """The processes that write files: the number of ``hosts``, and of ``ranks`` on all hosts.

    ``is_split`` is called with the size of a file in bytes; it returns True if all ranks write parts of such a file,
    and False if one rank writes all of it.
    """

    hosts: int
    ranks: int
    is_split: Callable[[int], bool]


class LustreLayoutPolicy(LayoutPolicy):
    """Decides and sets the layouts of new files on one Lustre file system. The base class
    ``pcopy.fsio.layout.LayoutPolicy`` describes the methods that have no description here.
    """

    uses_only_default = False

    def __init__(self, request: LayoutRequest, writers: WritingProcesses, next_name: Callable[[], bytes]) -> None:
        """Create the object for one file system; nothing is read from it yet.

        Args:
            request: the user's choice of layouts (``--stripe``).
            writers: the processes that write files.
            next_name: returns a new name for a temporary file, which no other process uses.
        """
        self._request = request
        self._writers = writers
        self._next_name = next_name
        self._inherited = InheritedLayouts()
        self._lustre_devices: dict[int, bool] = {}
        """True for each device (st_dev) of the source that is a Lustre file system, False for the others."""
        self._servers: dict[int, tuple[int, ...]] = {}
        """Indices of the MDTs that store the entries of a directory, by the inode number of the directory."""
        self._pools: dict[bytes, bool | None] = {}
        """True if a pool exists, False if not, None if that is unknown; by the name of the pool."""
        self._recipes: dict[tuple[ParsedLayout, bool], LayoutRecipe] = {}
        """Cache of recipes. The key is the requested layout, and True if Lustre must assign exactly that layout."""
        self._impossible_recipes: dict[str, LayoutRecipe] = {}
        """For each reason why a layout is impossible: the recipe of the files that inherit their layout instead."""
        self._osts: int | None = None
        """Number of OSTs of the file system; None if it was not determined yet."""

    def layout_recipe_for_file(self, source: int, status: os.stat_result, target: TargetDirectory) -> LayoutRecipe:
        return self._layout_recipe_for_new_file(partial(read_layout, source), status.st_size, target)

    def layout_recipes_for_small_files(
        self,
        source: int,
        names: Sequence[bytes],
        sizes: Sequence[int],
        target: TargetDirectory,
        *,
        follow: bool = False,
    ) -> list[tuple[LayoutRecipe, list[int]]]:
        found: dict[LayoutRecipe, list[int]] = {}
        has_layouts = self._request.kind == PRESERVE_LAYOUT and self._is_on_lustre(source)
        for row, (name, size) in enumerate(zip(names, sizes, strict=True)):
            read = partial(read_layout, proc_path_of_item(source, name), follow=follow) if has_layouts else bytes
            found.setdefault(self._layout_recipe_for_new_file(read, size, target), []).append(row)
        return list(found.items())

    def set_default_layout_of_directory(self, source: ItemHandle, target: int) -> str:
        if self._request.kind != PRESERVE_LAYOUT:
            return ""
        try:
            default = self._inherited.own_default_layout_of(source)
            if not default or parse_layout(default).normalised_layout == normalised_layout(read_layout(target)):
                return ""
            wanted = parse_layout(default).normalised_layout
            if why := self._missing_pool_text(wanted, target):  # setxattr accepts any pool name, so it is checked here
                return why
            self._inherited.clear_cached_default_layouts()
            os.setxattr(target, LAYOUT_ATTRIBUTE, default)
            return layout_deviation(wanted, read_layout(target))
        except InvalidLayoutError as error:
            return str(error)
        except OSError as error:
            return error.strerror or ""

    def layout_description_of_recipe(self, recipe: LayoutRecipe, target: TargetDirectory) -> str:
        try:
            inherited = self._inherited.inherited_layout_in(target)
        except Problem:  # for example, the file system is too full to create a file that inherits the layout
            return "the default layout of the directory"
        if recipe.attribute is None:
            return describe_layout(inherited)
        requested = parse_layout(recipe.attribute[1])
        component, default = requested.single_component, inherited.single_component
        if component is not None and default is not None:  # properties that are not requested are inherited
            requested = ParsedLayout(
                (
                    component._replace(
                        stripe_size=component.stripe_size or default.stripe_size, pool=component.pool or default.pool
                    ),
                )
            )
        return describe_layout(requested.normalised_layout)

    def layout_description_of_file(self, descriptor: int, recipe: LayoutRecipe, target: TargetDirectory) -> str:
        try:
            blob = read_layout(descriptor)
            striping = parse_layout(blob)
        except (InvalidLayoutError, OSError):
            return "unknown"
        if recipe.attribute and not recipe.deviation(blob):
            return self.layout_description_of_recipe(recipe, target)
        candidates = [parse_layout(recipe.attribute[1]).normalised_layout] if recipe.attribute else []
        with suppress(Problem):  # the file system may be too full to find out the inherited layout
            for candidate in (*candidates, self._inherited.inherited_layout_in(target)):
                if is_layout_derived_from(striping, candidate, partial(self._max_stripes_in, target)):
                    return describe_layout(candidate)
        return describe_layout(striping.normalised_layout)

    def lacks_layout(self, directory: int, name: bytes) -> bool:
        with errors_as_problem("getstripe"):
            return not read_layout(proc_path_of_item(directory, name), follow=False)

    def stripes_of_file(self, descriptor: int) -> FileStripes:
        try:
            striping = parse_layout(read_layout(descriptor))
        except (InvalidLayoutError, OSError):
            return FileStripes()
        component = striping.single_component
        if component is None or not component.stripe_size or len(component.osts) < 2:
            return FileStripes(striping.largest_stripe_size)
        return FileStripes(striping.largest_stripe_size, component.stripe_size, component.osts)

    def group_lock(
        self, descriptor: int, group: int, *, is_required: bool
    ) -> Generator[None, None, AbstractContextManager[None]]:
        return llapi.acquire_group_lock(descriptor, group, is_required=is_required)

    def create_file_on_all_data_servers(self, directory: int, server: int) -> int:
        return create_file_for_mdt_sync(directory, server)

    def metadata_server_indices(self, directory: TargetDirectory) -> tuple[int, ...]:
        servers = self._servers.get(directory.inode)
        if servers is None:
            clear_cache_if_full(self._servers)
            servers = self._servers[directory.inode] = llapi.mdts_of_directory(directory.descriptor)
        return servers

    def _is_on_lustre(self, source: int) -> bool:
        """Return True if the open directory ``source`` is on Lustre. Raise ``Problem``."""
        device = status_of_open_item(source, on_source=True).st_dev
        if device not in self._lustre_devices:
            with errors_as_problem("statfs", on_source=True):
                self._lustre_devices[device] = type_of_file_system(source) == LUSTRE_TYPE
        return self._lustre_devices[device]

    def striping_of(self, file: ItemHandle) -> ParsedLayout | None:
        """Return the layout of ``file`` (a path or descriptor), or None if the file has none yet.

        Raise ``Problem`` if the layout cannot be read, or is of an unknown type.
        """
        with errors_as_problem("getstripe", on_source=True):
            blob = read_layout(file, follow=False)
        try:
            return parse_layout(blob) if blob else None
        except InvalidLayoutError as error:
            raise Problem("getstripe", errno.EINVAL, on_source=True, text=str(error)) from None

    def layout_recipe_for_required_change(
        self, striping: ParsedLayout | None, size: int, target: TargetDirectory
    ) -> LayoutRecipe | None:
        """Return how a file with the layout that the user has requested is created, if an existing file has to get that
        layout; None if the layout of the file need not be changed.

        Raise ``Problem`` if Lustre cannot change the layout.

        Args:
            striping: present layout of the file; None if it has none yet, and will inherit one.
            size: size of the file in bytes.
            target: directory of the file.
        """
        recipe = self._layout_recipe_for_new_file(bytes, size, target)
        if striping is None or self._is_layout_suitable(recipe, striping, size, target):
            return None
        wanted = parse_layout(recipe.attribute[1]) if recipe.attribute else self._inherited.inherited_layout_in(target)
        why = ""
        if striping.mirrors > 1:
            why = "it has several mirrors, and would keep one (lfs mirror split can remove the others)"
        elif wanted.bytes_on_mdt and not striping.bytes_on_mdt:
            why = "Lustre can't move data from OSTs to an MDT"
        elif wanted.bytes_on_mdt not in (0, striping.bytes_on_mdt):
            why = "Lustre can't change the number of its bytes on the MDT"
        if why:
            raise Problem("stripe", errno.ENOTSUP, on_source=True, text=f"{why}: its layout is not changed")
        return recipe

    def _is_layout_suitable(
        self, recipe: LayoutRecipe, striping: ParsedLayout, size: int, target: TargetDirectory
    ) -> bool:
        """Return True if the present layout ``striping`` of a file is what the user has requested, so that it need not
        be changed. Raise ``Problem``.

        Args:
            recipe: how a new file of the same size is created, so that it gets the requested layout.
            striping: the present layout.
            size: size of the file in bytes.
            target: directory of the file.
        """
        kind = self._request.kind
        if kind == AUTO_STRIPE_COUNT and striping.is_composite and size < COMPOSITE_LAYOUT_LIMIT:
            return True
        if recipe.attribute is not None:
            return not recipe.deviation(pack_layout(striping))
        inherited = self._inherited.inherited_layout_in(target)
        if kind == INHERIT_LAYOUT or inherited.single_component is None:
            return is_layout_derived_from(striping, inherited, partial(self._max_stripes_in, target))
        stripe_size = 0 if kind == AUTO_STRIPE_COUNT else self._request.requested_layout_component.stripe_size
        return not stripe_count_deviation(
            LayoutComponent(inherited.single_component.stripes, stripe_size), pack_layout(striping), exactly=True
        )

    def _layout_recipe_for_new_file(
        self, read: Callable[[], bytes], size: int, target: TargetDirectory
    ) -> LayoutRecipe:
        """Return how a new file of ``size`` bytes is created in the directory ``target``, so that it gets the layout
        that the user has requested. Raise ``Problem``.

        ``read`` is a function that returns the layout attribute of the file's source, empty if it has none. It is
        called only if the layout of the source is to be preserved.
        """
        kind = self._request.kind
        if kind == INHERIT_LAYOUT:
            return DEFAULT_LAYOUT_RECIPE
        if kind == PRESERVE_LAYOUT:
            try:
                blob = read()
            except OSError as error:
                return self._layout_recipe_with_inherited_layout(
                    f"the source's layout cannot be read: {error.strerror}"
                )
            return self._layout_recipe_like_source(blob, target)
        if kind == AUTO_STRIPE_COUNT:
            return self._layout_recipe_by_file_size(size, target)
        return self._layout_recipe_by_stripe_count(self._request.requested_layout_component, target)

    def _layout_recipe_like_source(self, blob: bytes, target: TargetDirectory) -> LayoutRecipe:
        """Return how a file is created in the directory ``target``, so that it gets the layout of its source. ``blob``
        is the attribute value of the source; empty: the source has no layout, and the file inherits one. Raise
        ``Problem``.
        """
        if not blob:
            return DEFAULT_LAYOUT_RECIPE
        try:
            wanted = parse_layout(blob).normalised_layout
        except InvalidLayoutError as error:
            return self._layout_recipe_with_inherited_layout(str(error))
        inherited = self._inherited.inherited_layout_in(target)
        if wanted == inherited:
            return DEFAULT_LAYOUT_RECIPE
        asked = wanted.layout_without_inherited_pool if inherited.pools else wanted
        recipe = self._recipes.get((asked, True))
        if recipe is None:
            if why := self._missing_pool_text(wanted, target.descriptor):
                return self._layout_recipe_with_inherited_layout(why)
            value = layout_without_released_flag(blob) if asked == wanted else pack_layout(asked)
            clear_cache_if_full(self._recipes)
            recipe = self._recipes[asked, True] = LayoutRecipe(
                DELAYED_LAYOUT_FLAG,
                (LAYOUT_ATTRIBUTE, value),
                partial(layout_deviation, wanted),
                is_acceptable=partial(has_fewer_stripes, wanted),
            )
        return recipe

    def _layout_recipe_with_inherited_layout(self, why: str) -> LayoutRecipe:
        """Return the recipe of a file that inherits its layout because it cannot get the wanted one. ``why`` is the
        reason, for a message.
        """
        clear_cache_if_full(self._impossible_recipes)
        return self._impossible_recipes.setdefault(why, LayoutRecipe(fallback_reason=why))

    def _layout_recipe_by_file_size(self, size: int, target: TargetDirectory) -> LayoutRecipe:
        """Return how a file of ``size`` bytes is created in the directory ``target``, so that it gets the layout that
        ``--stripe auto`` chooses. Raise ``Problem``.
        """
        if self._inherited.inherited_layout_in(target).is_composite and size < COMPOSITE_LAYOUT_LIMIT:
            return DEFAULT_LAYOUT_RECIPE
        return self._layout_recipe_by_stripe_count(
            LayoutComponent(self.suitable_stripe_count(size, target.descriptor)), target
        )

    def suitable_stripe_count(self, size: int, target: int) -> int:
        """Return the number of stripes that ``--stripe auto`` chooses for a file of ``size`` bytes. ``target`` is a
        descriptor of a directory on its file system.
        """
        writers = self._writers
        hosts, ranks = (writers.hosts, writers.ranks) if writers.is_split(size) else (1, 1)
        return automatic_stripe_count(size, hosts, ranks, self.count_osts(target), self._request.table)

    def _layout_recipe_by_stripe_count(self, wanted: LayoutComponent, target: TargetDirectory) -> LayoutRecipe:
        """Return how a file is created in the directory ``target``, so that it gets the number of stripes and the
        stripe size of ``wanted``. Raise ``Problem``.

        The number is limited to the number of OSTs of the file system, or of the pool in the directory's default
        layout.
        """
        inherited = self._inherited.inherited_layout_in(target)
        osts = self._inherited.max_stripes(target) if inherited.pools else self.count_osts(target.descriptor)
        if wanted.stripes == ALL_OSTS or (osts and wanted.stripes > osts):
            wanted = wanted._replace(stripes=osts or wanted.stripes)
        component = inherited.single_component
        if (
            component is not None
            and component.stripes == wanted.stripes
            and wanted.stripe_size in (0, component.stripe_size)
        ):
            return DEFAULT_LAYOUT_RECIPE
        striping = ParsedLayout((wanted,))
        exactly = osts > 0
        recipe = self._recipes.get((striping, exactly))
        if recipe is None:
            deviation = partial(stripe_count_deviation, wanted, exactly=exactly)
            clear_cache_if_full(self._recipes)
            recipe = self._recipes[striping, exactly] = LayoutRecipe(
                DELAYED_LAYOUT_FLAG,
                (LAYOUT_ATTRIBUTE, pack_layout(striping)),
                deviation,
                is_acceptable=partial(has_fewer_stripes, striping.normalised_layout),
            )
        return recipe

    def _max_stripes_in(self, target: TargetDirectory, pool: bytes) -> int:
        """Return the largest number of stripes of a file in the directory ``target``: the number of OSTs in ``pool``,
        or of the file system if ``pool`` is empty; 0 if it is unknown.

        Raise ``Problem``.
        """
        return self._inherited.max_stripes(target, pool) if pool else self.count_osts(target.descriptor)

    def count_osts(self, target: int) -> int:
        """Return the number of OSTs of the file system; 0 if it is unknown. ``target`` is a descriptor of a directory
        on it.
        """
        if self._osts is None:
            self._osts = llapi.count_osts(target)
        return self._osts

    def _missing_pool_text(self, wanted: ParsedLayout, target: int) -> str:
        """Return, for a message, that a pool of the layout ``wanted`` does not exist; empty if all pools exist, or if
        that cannot be determined. ``target`` is a descriptor of a directory on the file system.
        """
        for pool in sorted(wanted.pools):
            has_pool = self._pools.get(pool)
            if has_pool is None:  # not asked yet, or it could not be determined
                clear_cache_if_full(self._pools)
                has_pool = self._pools[pool] = llapi.has_ost_pool(target, self._next_name(), pool)
            if has_pool is False:
                return f"there is no pool {pool.decode('ascii', 'backslashreplace')}"
        return ""


def stripe_count_notice(stripe: str, directory: bytes) -> str:
    """Return a notice if ``stripe``, the value of ``--stripe``, requests more stripes than the file system of the
    directory with the path ``directory`` has OSTs; otherwise, or if the directory cannot be opened, an empty text.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return capped_stripe_count_notice(stripe, llapi.count_osts(descriptor))
    finally:
        os.close(descriptor)


def create_file_for_mdt_sync(directory: int, server: int) -> int:
    """Create an anchor: a file without a name that is kept open so that one fsync(2) on it reaches the metadata target
    (MDT) with the index ``server`` and every OST that accepts new files. Return its descriptor.

    The MDT must be one of those that store the entries of the open ``directory``. Raise ``OSError``.
    """
    made = create_volatile_file(directory, DELAYED_LAYOUT_FLAG, server=server)
    try:
        os.setxattr(made, LAYOUT_ATTRIBUTE, pack_layout(ParsedLayout((LayoutComponent(ALL_OSTS, ANCHOR_STRIPE_SIZE),))))
        component = parse_layout(os.getxattr(made, LAYOUT_ATTRIBUTE)).single_component
        if (
            component is None
            or component.stripe_size != ANCHOR_STRIPE_SIZE
            or MAX_STRIPES_IN_INODE <= component.stripes < llapi.count_osts(directory)
        ):
            raise OSError(errno.EOPNOTSUPP, "no file could be created that has data on all OSTs")
        os.ftruncate(made, component.stripes * component.stripe_size)
    except InvalidLayoutError as error:
        close_ignoring_errors(made)
        raise OSError(errno.EOPNOTSUPP, str(error)) from None
    except BaseException:
        close_ignoring_errors(made)
        raise
    return made


def proc_path_of_item(directory: int, name: bytes) -> bytes:
    """Return a path below /proc/self/fd that leads to the item ``name`` in an open directory, for calls that take only
    a path.

    If the item was examined by stat(2) before, no request to a server is needed to resolve this path.
    """
    return b"/proc/self/fd/%d/%b" % (directory, name)
