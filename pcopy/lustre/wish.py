"""What the user wants of the layouts of new files (``--stripe``), and how many stripes suit a size."""

from __future__ import annotations

from pcopy.lustre.blob import ALL, Component
from pcopy.named import NamedTuple

PRESERVE, AUTO, INHERIT, COUNTED = "preserve", "auto", "inherit", "counted"
"""As the source's; by size; as the directory says; so many stripes."""

MOST_STRIPES = 2000
"""Of one file, in Lustre."""
SMALLEST_STRIPE = 64 << 10
LARGEST_STRIPE = 1 << 32
"""Bytes; a stripe size is a multiple of the smallest, and below the largest."""

BYTES_PER_STRIPE = 8 * 10**9
"""A file that one host writes gets a stripe for each so many bytes, and one that more hosts write so many times more.

Paul Kolano's rule: a host writes to so many servers at once, and reads half as fast from them.
"""

COMPOSITE_SERVES = 512 << 30
"""Bytes: below this size a composite layout that a directory gives by default suits a file, since it grows with it."""

Table = tuple[tuple[int, int], ...]
"""From so many bytes on so many stripes, in ascending order."""


class Wish(NamedTuple):
    """``stripes`` (``ALL``: on all OSTs) of ``size`` bytes (0: as the file system chooses) are of ``COUNTED``; a
    ``table`` is of ``AUTO``, and replaces the rule."""

    kind: str = PRESERVE
    stripes: int = 0
    size: int = 0
    table: Table = ()

    @property
    def component(self) -> Component:
        return Component(self.stripes, self.size)


def stripes_for(size: int, hosts: int, ranks: int, osts: int, table: Table = ()) -> int:
    """How many stripes a file of ``size`` bytes gets that so many ``hosts``, with so many ``ranks`` in all, write to a
    file system with so many ``osts`` (0: unknown)."""
    wanted = -(-size * hosts // BYTES_PER_STRIPE)
    most = ranks
    if table:
        wanted = next((count for least, count in reversed(table) if size >= least), 1)
        most = wanted if wanted != ALL else osts or 1
        wanted = most
    return max(1, min(wanted, most, osts or most, MOST_STRIPES))


def capped(stripe: str, osts: int) -> str:
    """What to say of ``--stripe`` where that asks for more stripes than there are OSTs; nothing as a rule."""
    wanted = parse_wish(stripe or PRESERVE).stripes
    if not 0 < osts < wanted < ALL:
        return ""
    return f"--stripe {stripe}: there are {osts} OSTs, so files get {osts} stripes"


def wish_of(stripe: str, table: str) -> Wish:
    """What two options say (``pcopy.tasks.base.job.Options``)."""
    return parse_wish(stripe or PRESERVE)._replace(table=parse_table(table) if table else ())


def parse_wish(text: str) -> Wish:
    """``preserve``, ``auto``, ``inherit``, or ``COUNT[:SIZE]`` with -1 for all OSTs. Raises ``ValueError``."""
    if text in (PRESERVE, AUTO, INHERIT):
        return Wish(text)
    count, colon, size = text.partition(":")
    like = "not preserve, auto, inherit, or COUNT[:SIZE] like 8 or 8:4M (COUNT -1: all OSTs)"
    return Wish(COUNTED, _count(count, like), _size(size) if colon else 0)


def parse_table(text: str) -> Table:
    """``COUNT[,SIZE=COUNT…]``, for instance ``1,1G=8,10G=24,100G=72``: from each size on so many stripes. Raises
    ``ValueError``."""
    from pcopy.units import parse_size

    rows = []
    for number, part in enumerate(text.split(",")):
        least, equals, count = part.partition("=")
        if not equals and number:
            raise ValueError(f"{part!r} is not SIZE=COUNT, as in 1,1G=8,10G=24")
        rows.append(
            (parse_size(least) if equals else 0, _count(count if equals else least, "a table is like 1,1G=8,10G=24"))
        )
    if rows != sorted(rows) or len({least for least, _ in rows}) < len(rows):
        raise ValueError("the sizes must rise, as in 1,1G=8,10G=24")
    return tuple(rows)


def _count(text: str, like: str) -> int:
    if text in ("-1", "all"):
        return ALL
    if not (text.isascii() and text.isdigit()):
        raise ValueError(like)
    if len(text) > len(str(MOST_STRIPES)) or not 1 <= int(text) <= MOST_STRIPES:
        raise ValueError(f"a file has 1 to {MOST_STRIPES} stripes, or -1 for all OSTs")
    return int(text)


def _size(text: str) -> int:
    from pcopy.units import parse_size

    size = parse_size(text)
    if not size or size % SMALLEST_STRIPE or size >= LARGEST_STRIPE:
        raise ValueError("the stripe size must be a multiple of 64K, below 4G")
    return size
