"""Evaluation of an expression of find's tests (the tree from ``pcopy.walk.expression``) for many items of a directory.

For speed there is no object for each item. An item is a row number; each field of the status is a column, an array with
one value per row. A test takes row numbers and returns those whose items fulfil the test, in the same order. So a test
after an *and* is evaluated only for the remaining rows, as find does.

A test is *cheap* if the names and types from the listing of the directory are enough for it. All other tests need the
status, and thus a stat(2) of each item that remains.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from pcopy.fsio.backend.columns import (
    ALL_COLUMNS,
    GROUP_COLUMN,
    MODE_COLUMN,
    OWNER_COLUMN,
    SIZE_COLUMN,
    TIME_COLUMNS,
    ItemStatusColumns,
)
from pcopy.fsio.retries import open_with_retries
from pcopy.walk.expression import ExpressionTree
from pcopy.walk.globbing import shell_pattern_matcher

DIRECTORY, UNKNOWN = ord("d"), ord("?")

_COLUMN_BITS = {name: bit for name, _, bit, _ in ALL_COLUMNS}
_COLUMNS_OF_TEST = {
    "perm": MODE_COLUMN,
    "empty": SIZE_COLUMN,
    "nouser": OWNER_COLUMN,
    "nogroup": GROUP_COLUMN,
    "xattr": 0,
}
_CHEAP_TESTS = {"name", "path", "type", "true", "false", "prune", "print"}
_ACTION_NAMES = {"prune", "print"}

_UNBOUNDED = 1 << 96
"""A number that is greater than any value of a field of the status; it stands for a missing bound. The largest values
are times: 64 bits of seconds, in nanoseconds.
"""

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class DirectoryItems:
    """Some items of one directory, to be tested and reported. An item is identified by its row, its position in
    ``names``.

    Fields:

    - ``directory``: open descriptor of the directory; if it is negative, the names are paths from the working
      directory.
    - ``above``: the common beginning of the paths of all items, as they are reported; it is empty or ends with a slash.
    - ``names``, ``kinds``: name, and letter of the type (``pcopy.walk.output_formats.TYPE_WORDS``), of each item.
    - ``rows``: columns with the status of the items; None if they were not statted.
    - ``pruned``: rows of directories that are not entered (``-prune``).
    - ``printed``: rows of the items to report by ``-print``; an item occurs once for each ``-print`` that it reaches.
    - ``unstatted``: rows of items that have vanished or could not be statted.
    """

    __slots__ = ("above", "directory", "kinds", "names", "printed", "pruned", "rows", "unstatted")

    def __init__(
        self, directory: int, above: bytes, names: Sequence[bytes], kinds: bytes, rows: ItemStatusColumns | None = None
    ) -> None:
        self.directory = directory
        self.above = above
        self.names = names
        self.kinds = kinds
        self.rows = rows
        self.pruned: set[int] = set()
        self.printed: list[int] = []
        self.unstatted: set[int] = set()

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def columns(self) -> ItemStatusColumns:
        """The status of the items, as columns (arrays with one value per item). The items must have been statted."""
        assert self.rows is not None
        return self.rows

    def items_in_rows(self, rows: Sequence[int], seen: ItemStatusColumns | None = None) -> DirectoryItems:
        """Return some of these items as a new object: those with the row numbers ``rows``, in this order.

        Args:
            rows: row numbers.
            seen: columns with the status of these items, one value for each of ``rows``; None: those of ``self``.
        """
        names, kinds = self.names, self.kinds
        columns = seen if seen is not None else None if self.rows is None else self.rows.columns_of_selected_rows(rows)
        return DirectoryItems(
            self.directory,
            self.above,
            list(map(names.__getitem__, rows)),
            bytes(map(kinds.__getitem__, rows)),
            columns,
        )


CompiledItemTest = Callable[[DirectoryItems, Sequence[int]], Sequence[int]]
"""A compiled test of find: a function that takes items and row numbers, and returns the rows whose items fulfil the
test, in the same order.
"""


def needed_status_columns(tree: ExpressionTree) -> int:
    """Return which fields of the status (stat(2)) the tests in ``tree`` read, as bits of columns
    (``pcopy.fsio.backend.columns``).
    """
    if tree[0] == "between":
        return _COLUMN_BITS[tree[1]]
    if tree[0] in ("and", "or", "not"):
        mask = 0
        for each in tree[1:]:
            mask |= needed_status_columns(each)
        return mask
    return _COLUMNS_OF_TEST.get(tree[0], 0)


def needs_no_stat(tree: ExpressionTree) -> bool:
    """Return True if the tests in ``tree`` need only the names and types of items, so that no stat(2) is necessary."""
    return all(map(needs_no_stat, tree[1:])) if tree[0] in ("and", "or", "not") else tree[0] in _CHEAP_TESTS


def contains_test(tree: ExpressionTree, test: str) -> bool:
    """Return True if the tree of tests contains one with the name ``test``, such as ``xattr``."""
    return any(contains_test(each, test) for each in tree[1:]) if tree[0] in ("and", "or", "not") else tree[0] == test


def _has_actions(tree: ExpressionTree) -> bool:
    """Return True if the tree of tests contains an action (``-prune``, ``-print``)."""
    return any(map(_has_actions, tree[1:])) if tree[0] in ("and", "or", "not") else tree[0] in _ACTION_NAMES


def split_by_stat_cost(tree: ExpressionTree) -> tuple[ExpressionTree, ExpressionTree]:
    """Split a tree of tests into two trees; an item fulfils ``tree`` if it fulfils both. The first one needs no stat(2)
    and is evaluated first, so that fewer items are statted for the second one.

    The order of tests is changed only if no action (``-prune``, ``-print``) would notice.
    """
    cheap: list[ExpressionTree] = []
    expensive: list[ExpressionTree] = []
    acts = _has_actions(tree)
    for each in _conjuncts(tree):
        (cheap if needs_no_stat(each) and not (acts and expensive) else expensive).append(each)
    return _conjunction_of(cheap), _conjunction_of(expensive)


def types_if_only_types_tested(tree: ExpressionTree) -> bytes | None:
    """If ``tree`` tests nothing but the type of items, return the letters of the types that fulfil it, or b"" if any
    type does. Otherwise return None.
    """
    letters: set[int] | None = None
    for each in _conjuncts(tree):
        if each[0] == "type":
            letters = {*each[1]} if letters is None else letters.intersection(each[1])
        elif each not in (("true",), ("print",)):
            return None
    if letters is None:
        return b""
    return bytes(sorted(letters)) or None


def _conjuncts(tree: ExpressionTree) -> Iterable[ExpressionTree]:
    """Yield the parts of the tree of tests that are connected by *and* at its top: an item must fulfil each of them."""
    if tree[0] == "and":
        yield from _conjuncts(tree[1])
        yield from _conjuncts(tree[2])
    else:
        yield tree


def _conjunction_of(trees: list[ExpressionTree]) -> ExpressionTree:
    """Return one tree of tests that an item fulfils if it fulfils each of ``trees``."""
    trees = [tree for tree in trees if tree != ("true",)]
    if not trees:
        return ("true",)
    whole = trees[0]
    for tree in trees[1:]:
        whole = ("and", whole, tree)
    return whole


def compile_item_test(tree: ExpressionTree) -> CompiledItemTest:
    """Return a function that evaluates the tree of tests for many items at once."""
    name, *operands = tree
    return _TEST_MAKERS[name](*operands)


def _make_and_test(left: ExpressionTree, right: ExpressionTree) -> CompiledItemTest:
    first, second = compile_item_test(left), compile_item_test(right)

    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        left = first(items, rows)
        return second(items, left) if left else left

    return test


def _make_or_test(left: ExpressionTree, right: ExpressionTree) -> CompiledItemTest:
    """Return a test for items that fulfil at least one of two trees of tests. The right one is evaluated only for items
    that do not fulfil the left one.
    """
    first, second = compile_item_test(left), compile_item_test(right)

    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        found = first(items, rows)
        if len(found) == len(rows):
            return found
        known = set(found)
        others = second(items, [row for row in rows if row not in known])
        if not others:
            return found
        known.update(others)
        return [row for row in rows if row in known]

    return test


def _make_not_test(operand: ExpressionTree) -> CompiledItemTest:
    """Return a test for items that do not fulfil the tree of tests ``operand``."""
    inner = compile_item_test(operand)

    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        found = inner(items, rows)
        if not found:
            return rows
        known = set(found)
        return [row for row in rows if row not in known]

    return test


def _make_always_true_test() -> CompiledItemTest:
    return lambda items, rows: rows


def _make_always_false_test() -> CompiledItemTest:
    return lambda items, rows: ()


def _make_name_test(pattern: bytes, folds: bool) -> CompiledItemTest:
    match = shell_pattern_matcher(pattern, ignores_case=folds)

    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        names = items.names
        return [row for row in rows if match(_basename(names[row]))]

    return test


def _basename(name: bytes) -> bytes:
    """Return the last component of ``name``. Only a PATH of the command line, which counts as an item, may end with a
    slash.
    """
    return name[name.rfind(b"/") + 1 :] or os.path.basename(name.rstrip(b"/")) or b"/"


def _make_path_test(pattern: bytes, folds: bool) -> CompiledItemTest:
    match = shell_pattern_matcher(pattern, ignores_case=folds)

    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        above, names = items.above, items.names
        return [row for row in rows if match(above + names[row])]

    return test


def _make_type_test(letters: bytes) -> CompiledItemTest:
    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        kinds = items.kinds
        if len(rows) == len(kinds) and not kinds.strip(letters):
            return rows
        return [row for row in rows if kinds[row] in letters]

    return test


def _make_range_test(column: str, least: int | None, most: int | None) -> CompiledItemTest:
    """Return a test for items whose status has a value from ``least`` to ``most`` (None: no bound) in the field
    ``column``.
    """
    low = -_UNBOUNDED if least is None else least
    high = _UNBOUNDED if most is None else most

    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        values = (
            items.columns.exact_times_in_column(column) if column in TIME_COLUMNS else getattr(items.columns, column)
        )
        if len(rows) < len(values):
            return [row for row in rows if low <= values[row] <= high]
        return [row for row, value in enumerate(values) if low <= value <= high]

    return test


def _make_permission_test(how: str, of_files: int, of_directories: int) -> CompiledItemTest:
    """Return a test of permission bits, for find's ``-perm``.

    Args:
        how: ``=``: the mode equals the bits; ``-``: all bits are set in it; ``/``: any bit is set.
        of_files: the bits for items other than directories.
        of_directories: the bits for directories.
    """

    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        modes, kinds = items.columns.mode, items.kinds
        found = []
        for row in rows:
            bits = of_directories if kinds[row] == DIRECTORY else of_files
            mode = modes[row] & 0o7777
            if mode == bits if how == "=" else mode & bits == bits if how == "-" else mode & bits or not bits:
                found.append(row)
        return found

    return test


def _make_emptiness_test() -> CompiledItemTest:
    """Return a test for empty files and directories."""

    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        sizes, kinds = items.columns.size, items.kinds
        return [
            row
            for row in rows
            if (kinds[row] == ord("f") and not sizes[row])
            or (kinds[row] == DIRECTORY and _is_empty_directory(items.directory, items.names[row]))
        ]

    return test


def _is_empty_directory(directory: int, name: bytes) -> bool:
    """Return True if the directory ``name`` is empty. Return False if it cannot be listed: the error is reported when
    the walk enters it.
    """
    with suppress(OSError):
        opened = open_with_retries(name, _DIRECTORY_FLAGS, dir_fd=directory)
        try:
            with os.scandir(opened) as entries:
                return next(entries, None) is None
        finally:
            os.close(opened)
    return False


def _make_xattr_test(name: bytes) -> CompiledItemTest:
    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        return [row for row in rows if _has_attribute(items.directory, items.names[row], name)]

    return test


def _has_attribute(directory: int, item: bytes, name: bytes) -> bool:
    """Return True if the item has this extended attribute; False if that cannot be determined."""
    with suppress(OSError):
        path = item if directory < 0 or item.startswith(b"/") else b"/proc/self/fd/%d/%b" % (directory, item)
        os.getxattr(path, name, follow_symlinks=False)
        return True
    return False


def _make_nameless_id_test(column: str, look_up: Callable[[int], object]) -> CompiledItemTest:
    """Return a test for items whose owner or group has no name (find's ``-nouser`` and ``-nogroup``).

    Args:
        column: ``uid`` or ``gid``.
        look_up: raises ``KeyError`` for an id without a name.
    """
    known: dict[int, bool] = {}

    def is_unknown(number: int) -> bool:
        if number not in known:
            try:
                look_up(number)
                known[number] = False
            except KeyError:
                known[number] = True
        return known[number]

    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        values = getattr(items.columns, column)
        return [row for row in rows if is_unknown(values[row])]

    return test


def _make_prune_action() -> CompiledItemTest:
    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        items.pruned.update(rows)
        return rows

    return test


def _make_print_action() -> CompiledItemTest:
    def test(items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        items.printed.extend(rows)
        return rows

    return test


_TEST_MAKERS: dict[str, Callable[..., CompiledItemTest]] = {
    "and": _make_and_test,
    "or": _make_or_test,
    "not": _make_not_test,
    "true": _make_always_true_test,
    "false": _make_always_false_test,
    "name": _make_name_test,
    "path": _make_path_test,
    "type": _make_type_test,
    "between": _make_range_test,
    "perm": _make_permission_test,
    "empty": _make_emptiness_test,
    "xattr": _make_xattr_test,
    "nouser": lambda: _make_nameless_id_test("uid", pwd.getpwuid),
    "nogroup": lambda: _make_nameless_id_test("gid", grp.getgrgid),
    "prune": _make_prune_action,
    "print": _make_print_action,
}
