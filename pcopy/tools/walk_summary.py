"""The summary of a walk, as text for people and as values for ``--json``."""

from __future__ import annotations

import grp
import pwd
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pcopy.text import printable_path
from pcopy.units import format_size
from pcopy.walk.output_formats import TYPE_WORDS
from pcopy.walk.sums import AGE_CLASS_LIMITS, LARGEST_SHOWN, OTHER_OWNERS_ID, WalkSums

_BAR_LENGTH = 40
"""Number of characters of the longest bar of a histogram."""

NAMES_OF_UNUSUAL_ITEMS = {
    "set_id": "files with a set-user-ID or set-group-ID bit",
    "world_writable": "items that all users may write to (directories without a sticky bit)",
    "future": "items modified in the future",
    "control_characters": "names with control characters",
    "not_utf8": "names that are not UTF-8",
    "sparse": "files with holes",
    "hard_linked": "names of files with several hard links",
}
"""What the summary calls each kind of unusual items. The keys are those of ``pcopy.walk.sums.UNUSUAL_ITEM_KINDS``."""
_NAMES_OF_AGE_CLASSES = (
    "in the future",
    *("less than a day", "1 to 7 days", "7 to 30 days", "30 to 90 days", "90 to 180 days", "180 days to a year"),
    *("1 to 2 years", "2 to 5 years", "5 years and more"),
)
"""What the summary calls each class of ages, in the order of ``pcopy.walk.sums.AGE_CLASS_LIMITS``."""
assert len(_NAMES_OF_AGE_CLASSES) == len(AGE_CLASS_LIMITS) + 2


def walk_summary_lines(sums: WalkSums) -> Iterator[str]:
    """Yield the lines of the summary for people: numbers by type, histograms, largest items, owners, unusual items."""
    for kind in filter(sums.types.__getitem__, TYPE_WORDS.values()):
        yield f"{sums.types[kind]:>14,}  {kind}"
    yield f"{format_size(sums.size):>14}  in regular files, {format_size(sums.allocated)} allocated for all items"
    yield from _labelled_histogram("files by size", sums.sizes, _size_class_label, sums.size_bytes)
    yield from _labelled_histogram(
        "files by age (modified)", sums.ages["mtime"], _NAMES_OF_AGE_CLASSES.__getitem__, sums.ages["mtime_bytes"]
    )
    yield from _labelled_histogram("files by age (read)", sums.ages["atime"], _NAMES_OF_AGE_CLASSES.__getitem__)
    yield from _labelled_histogram("items by depth", sums.depths, str)
    yield from _labelled_histogram("directories by entries", sums.entries, _entry_count_class_label)
    yield from _largest_items_lines("largest files", ((format_size(size), path) for size, path in sums.largest_files))
    yield from _largest_items_lines(
        "directories with the most entries", ((f"{n:,}", path) for n, path in sums.largest_directories)
    )
    yield from _largest_trees_lines(sums)
    yield from _owner_lines("users", sums, _user_name)
    yield from _owner_lines("groups", sums, _group_name)
    unusual = [f"{sums.unusual[key]:>14,}  {text}" for key, text in NAMES_OF_UNUSUAL_ITEMS.items() if sums.unusual[key]]
    if unusual:
        yield ""
        yield "unusual:"
        yield from unusual
    if sums.holes:
        yield f"{format_size(sums.holes):>14}  in holes"


def walk_summary_json(sums: WalkSums) -> dict[str, object]:
    """Return the summary as values for ``--json``: lists of objects, and sizes in bytes."""
    return {
        "types": {kind: sums.types[kind] for kind in TYPE_WORDS.values() if sums.types[kind]},
        "bytes": sums.size,
        "allocated": sums.allocated,
        "sizes": [
            {"below": 1 << power, "files": number, "bytes": sums.size_bytes[power]}
            for power, number in sorted(sums.sizes.items())
        ],
        "modified": _ages_json(sums.ages["mtime"], sums.ages["mtime_bytes"]),
        "read": _ages_json(sums.ages["atime"]),
        "depths": [{"depth": depth, "items": number} for depth, number in sorted(sums.depths.items())],
        "entries": [{"below": 1 << power, "directories": number} for power, number in sorted(sums.entries.items())],
        "largest_files": [{"path": printable_path(path), "bytes": size} for size, path in sums.largest_files],
        "largest_directories": [{"path": printable_path(path), "entries": n} for n, path in sums.largest_directories],
        "largest_trees": [
            {"path": printable_path(path), "items": items, "bytes": size, "allocated": allocated}
            for path, items, size, allocated in sums.trees.largest_trees(LARGEST_SHOWN)
        ],
        "trees_folded": sums.trees.has_merged_trees,
        "users": _owners_json(sums, "users", _user_name),
        "groups": _owners_json(sums, "groups", _group_name),
        "unusual": {key: sums.unusual[key] for key in NAMES_OF_UNUSUAL_ITEMS},
        "hole_bytes": sums.holes,
    }


def _ages_json(files: Counter[int], sizes: Counter[int] | None = None) -> list[dict[str, object]]:
    """Return the classes of ages for ``--json``, with limits in days.

    Args:
        files: number of files in each class.
        sizes: bytes of these files; None if they are not shown.
    """
    found: list[dict[str, object]] = []
    for age, number in sorted(files.items()):
        end = AGE_CLASS_LIMITS[age - 1] if 0 < age <= len(AGE_CLASS_LIMITS) else None
        row: dict[str, object] = {
            "from_days": None if age == 0 else (0, *AGE_CLASS_LIMITS)[age - 1],
            "to_days": end if age else 0,
        }
        found.append({**row, "files": number, **({} if sizes is None else {"bytes": sizes[age]})})
    return found


def _size_class_label(power: int) -> str:
    """Return the label of a class of sizes; ``power`` is the exponent of its upper limit (a power of two)."""
    return "empty" if power == 0 else f"below {format_size(1 << power)}"


def _entry_count_class_label(power: int) -> str:
    """Return the label of a class of numbers of entries; ``power`` is the exponent of its upper limit (a power of
    two).
    """
    return "empty" if power == 0 else f"below {1 << power:,}"


def _labelled_histogram(
    title: str, numbers: Mapping[int, int], label_of: Callable[[int], str], sizes: Mapping[int, int] | None = None
) -> Iterator[str]:
    """Yield the lines of a histogram, whose classes are given by keys.

    Args:
        title: its title.
        numbers: number of items in each class, by the key of the class.
        label_of: returns the label for a key.
        sizes: bytes of the items in each class; None if they are not shown.
    """
    return histogram_lines(
        title, [(label_of(key), number, sizes[key] if sizes else None) for key, number in sorted(numbers.items())]
    )


def histogram_lines(title: str, rows: Sequence[tuple[str, int, int | None]]) -> Iterator[str]:
    """Yield the lines of a histogram: an empty line, the title, and a line for each row with its number, its size, its
    name and a bar.

    Yield nothing if there are no rows.

    Args:
        rows: (name, number of items, their size in bytes; None if it is not shown).
    """
    if not rows:
        return
    yield ""
    yield f"{title}:"
    largest = max(number for _, number, _ in rows) or 1
    for name, number, size in rows:
        bytes_text = "" if size is None else f"  {format_size(size):>9}"
        yield f"{number:>14,}{bytes_text}  {name:<20} {'#' * max(1, round(_BAR_LENGTH * number / largest))}"


def _largest_items_lines(title: str, rows: Iterable[tuple[str, bytes]]) -> Iterator[str]:
    """Yield the lines of a table of the largest files or directories; ``rows`` are (number as text, path)."""
    lines = [f"{number:>14}  {printable_path(path)}" for number, path in rows]
    if lines:
        yield ""
        yield f"{title}:"
        yield from lines


def _largest_trees_lines(sums: WalkSums) -> Iterator[str]:
    """Yield the lines of the table of the largest trees."""
    trees = sums.trees.largest_trees(LARGEST_SHOWN)
    if not trees:
        return
    yield ""
    yield f"{'largest trees:':<14}  {'bytes':>9}  {'allocated':>9}"
    for path, items, size, allocated in trees:
        yield f"{items:>14,}  {format_size(size):>9}  {format_size(allocated):>9}  {printable_path(path)}"
    if sums.trees.has_merged_trees:
        yield "(too many directories: some trees are not listed here, but counted in the trees that contain them)"


def _owner_lines(title: str, sums: WalkSums, name_of: Callable[[int], str]) -> Iterator[str]:
    """Yield the lines of the table of users or groups; ``name_of`` returns the name for an id."""
    if not sums.owners[title]:
        return
    yield ""
    yield f"{title + ':':<14}  {'bytes':>9}  {'allocated':>9}"
    for number, (items, size, allocated) in _owners_by_size(sums, title):
        yield f"{items:>14,}  {format_size(size):>9}  {format_size(allocated):>9}  {name_of(number)}"


def _owners_by_size(sums: WalkSums, table: str) -> list[tuple[int, list[int]]]:
    """Return (id, [items, bytes, allocated bytes]) for each user or group (``table`` is "users" or "groups"), those
    with the most allocated bytes first.
    """
    return sorted(sums.owners[table].items(), key=lambda each: (-each[1][2], -each[1][0], each[0]))


def _owners_json(sums: WalkSums, table: str, name_of: Callable[[int], str]) -> list[dict[str, object]]:
    """Return the users or groups (``table``) as objects for ``--json``; ``name_of`` returns the name for an id."""
    return [
        {"id": number, "name": name_of(number), "items": items, "bytes": size, "allocated": allocated}
        for number, (items, size, allocated) in _owners_by_size(sums, table)
    ]


def _user_name(number: int) -> str:
    """Return the name of the user with this id; the id itself if it has no name."""
    return _name_or_number(number, lambda: pwd.getpwuid(number).pw_name)


def _group_name(number: int) -> str:
    """Return the name of the group with this id; the id itself if it has no name."""
    return _name_or_number(number, lambda: grp.getgrgid(number).gr_name)


def _name_or_number(number: int, name: Callable[[], str]) -> str:
    """Return the name of a user or group: what the function ``name`` returns.

    If it raises ``KeyError``, the id has no name, and the result is the id ``number``. For the row that collects
    further owners it is "others".
    """
    if number == OTHER_OWNERS_ID:
        return "others"
    try:
        return printable_path(name().encode(errors="surrogateescape"))
    except (KeyError, OverflowError):
        return str(number)
