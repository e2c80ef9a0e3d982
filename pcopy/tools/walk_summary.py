"""The summary of a walk, as text for people and as values for ``--json``."""

from __future__ import annotations

import grp
import pwd
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pcopy.text import shown
from pcopy.units import show_size
from pcopy.walk.forms import TYPES
from pcopy.walk.sums import AGES, OTHERS, TOP, WalkSums

_BAR = 40
"""Number of characters of the longest bar of a histogram."""

CALLED = {
    "set_id": "files with a set-user-ID or set-group-ID bit",
    "world_writable": "items that all users may write to (directories without a sticky bit)",
    "future": "items modified in the future",
    "control_characters": "names with control characters",
    "not_utf8": "names that are not UTF-8",
    "sparse": "files with holes",
    "hard_linked": "names of files with several hard links",
}
"""Names for people of the kinds of unusual items."""
_AGES = (
    "in the future",
    *("less than a day", "1 to 7 days", "7 to 30 days", "30 to 90 days", "90 to 180 days", "180 days to a year"),
    *("1 to 2 years", "2 to 5 years", "5 years and more"),
)
"""Names of the age classes, for people."""
assert len(_AGES) == len(AGES) + 2


def summary_lines(sums: WalkSums) -> Iterator[str]:
    """Yield the lines for people."""
    for kind in filter(sums.types.__getitem__, TYPES.values()):
        yield f"{sums.types[kind]:>14,}  {kind}"
    yield f"{show_size(sums.size):>14}  in regular files, {show_size(sums.allocated)} allocated for all items"
    yield from _histogram("files by size", sums.sizes, _below, sums.size_bytes)
    yield from _histogram("files by age (modified)", sums.ages["mtime"], _AGES.__getitem__, sums.ages["mtime_bytes"])
    yield from _histogram("files by age (read)", sums.ages["atime"], _AGES.__getitem__)
    yield from _histogram("items by depth", sums.depths, str)
    yield from _histogram("directories by entries", sums.entries, _fewer)
    yield from _top("largest files", ((show_size(size), path) for size, path in sums.largest_files))
    yield from _top("directories with the most entries", ((f"{n:,}", path) for n, path in sums.largest_directories))
    yield from _trees(sums)
    yield from _owners("users", sums, _user)
    yield from _owners("groups", sums, _group)
    unusual = [f"{sums.unusual[key]:>14,}  {text}" for key, text in CALLED.items() if sums.unusual[key]]
    if unusual:
        yield ""
        yield "unusual:"
        yield from unusual
    if sums.holes:
        yield f"{show_size(sums.holes):>14}  in holes"


def summary_of(sums: WalkSums) -> dict[str, object]:
    """Return the values for ``--json``."""
    return {
        "types": {kind: sums.types[kind] for kind in TYPES.values() if sums.types[kind]},
        "bytes": sums.size,
        "allocated": sums.allocated,
        "sizes": [
            {"below": 1 << power, "files": number, "bytes": sums.size_bytes[power]}
            for power, number in sorted(sums.sizes.items())
        ],
        "modified": _ages(sums.ages["mtime"], sums.ages["mtime_bytes"]),
        "read": _ages(sums.ages["atime"]),
        "depths": [{"depth": depth, "items": number} for depth, number in sorted(sums.depths.items())],
        "entries": [{"below": 1 << power, "directories": number} for power, number in sorted(sums.entries.items())],
        "largest_files": [{"path": shown(path), "bytes": size} for size, path in sums.largest_files],
        "largest_directories": [{"path": shown(path), "entries": n} for n, path in sums.largest_directories],
        "largest_trees": [
            {"path": shown(path), "items": items, "bytes": size, "allocated": allocated}
            for path, items, size, allocated in sums.trees.largest(TOP)
        ],
        "trees_folded": sums.trees.is_folded,
        "users": _owner_values(sums, "users", _user),
        "groups": _owner_values(sums, "groups", _group),
        "unusual": {key: sums.unusual[key] for key in CALLED},
        "hole_bytes": sums.holes,
    }


def _ages(files: Counter[int], sizes: Counter[int] | None = None) -> list[dict[str, object]]:
    """Return the classes of ages for ``--json``."""
    found: list[dict[str, object]] = []
    for age, number in sorted(files.items()):
        end = AGES[age - 1] if 0 < age <= len(AGES) else None
        row: dict[str, object] = {"from_days": None if age == 0 else (0, *AGES)[age - 1], "to_days": end if age else 0}
        found.append({**row, "files": number, **({} if sizes is None else {"bytes": sizes[age]})})
    return found


def _below(power: int) -> str:
    """Return the label of a class of sizes, by the exponent of its upper limit (a power of two)."""
    return "empty" if power == 0 else f"below {show_size(1 << power)}"


def _fewer(power: int) -> str:
    """Return the label of a class of numbers of entries, by the exponent of its upper limit (a power of two)."""
    return "empty" if power == 0 else f"below {1 << power:,}"


def _histogram(
    title: str, numbers: Mapping[int, int], called: Callable[[int], str], sizes: Mapping[int, int] | None = None
) -> Iterator[str]:
    """Yield the lines of a histogram whose rows are labelled by ``called``."""
    return histogram(
        title, [(called(key), number, sizes[key] if sizes else None) for key, number in sorted(numbers.items())]
    )


def histogram(title: str, rows: Sequence[tuple[str, int, int | None]]) -> Iterator[str]:
    """Yield a title and a line for each row with its number, its bytes if not None, its name, and a bar. Rows are
    (name, number, bytes).
    """
    if not rows:
        return
    yield ""
    yield f"{title}:"
    largest = max(number for _, number, _ in rows) or 1
    for name, number, size in rows:
        bytes_text = "" if size is None else f"  {show_size(size):>9}"
        yield f"{number:>14,}{bytes_text}  {name:<20} {'#' * max(1, round(_BAR * number / largest))}"


def _top(title: str, rows: Iterable[tuple[str, bytes]]) -> Iterator[str]:
    """Yield the lines of a table of the largest files or directories."""
    lines = [f"{number:>14}  {shown(path)}" for number, path in rows]
    if lines:
        yield ""
        yield f"{title}:"
        yield from lines


def _trees(sums: WalkSums) -> Iterator[str]:
    """Yield the lines of the table of the largest trees."""
    trees = sums.trees.largest(TOP)
    if not trees:
        return
    yield ""
    yield f"{'largest trees:':<14}  {'bytes':>9}  {'allocated':>9}"
    for path, items, size, allocated in trees:
        yield f"{items:>14,}  {show_size(size):>9}  {show_size(allocated):>9}  {shown(path)}"
    if sums.trees.is_folded:
        yield "(too many directories: some trees are not listed here, but counted in the trees that contain them)"


def _owners(title: str, sums: WalkSums, called: Callable[[int], str]) -> Iterator[str]:
    """Yield the lines of the table of users or groups."""
    if not sums.owners[title]:
        return
    yield ""
    yield f"{title + ':':<14}  {'bytes':>9}  {'allocated':>9}"
    for number, (items, size, allocated) in _largest_first(sums, title):
        yield f"{items:>14,}  {show_size(size):>9}  {show_size(allocated):>9}  {called(number)}"


def _largest_first(sums: WalkSums, table: str) -> list[tuple[int, list[int]]]:
    """Return the rows of users or groups, those with the most allocated bytes first."""
    return sorted(sums.owners[table].items(), key=lambda each: (-each[1][2], -each[1][0], each[0]))


def _owner_values(sums: WalkSums, table: str, called: Callable[[int], str]) -> list[dict[str, object]]:
    """Return the rows of users or groups for ``--json``."""
    return [
        {"id": number, "name": called(number), "items": items, "bytes": size, "allocated": allocated}
        for number, (items, size, allocated) in _largest_first(sums, table)
    ]


def _user(number: int) -> str:
    """Return the name of a user."""
    return _named(number, lambda: pwd.getpwuid(number).pw_name)


def _group(number: int) -> str:
    """Return the name of a group."""
    return _named(number, lambda: grp.getgrgid(number).gr_name)


def _named(number: int, name: Callable[[], str]) -> str:
    """Return the result of ``name``, or the number itself if it has no name."""
    if number == OTHERS:
        return "others"
    try:
        return shown(name().encode(errors="surrogateescape"))
    except (KeyError, OverflowError):
        return str(number)
