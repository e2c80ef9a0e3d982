"""The user's choice of layouts for new files (``--stripe``), and the number of stripes that suits a file's size."""

from __future__ import annotations

from pcopy.fast_named_tuple import NamedTuple
from pcopy.lustre.blob import ALL_OSTS, Component

PRESERVE, AUTO, INHERIT, EXPLICIT_COUNT = "preserve", "auto", "inherit", "counted"
"""Kinds of choice: as the source's layout, by size, as the directory's default, and an explicit number of stripes."""

MAX_STRIPES = 2000
"""Maximum number of stripes of a file in Lustre."""
MIN_STRIPE_SIZE = 64 << 10
MAX_STRIPE_SIZE = 1 << 32
"""Limits of the stripe size in bytes: it is a multiple of the smallest, and less than the largest."""

BYTES_PER_STRIPE = 8 * 10**9
"""Bytes of a file for each of its stripes if one host writes it. With N hosts it gets N times as many stripes.

This is Paul Kolano's rule: one host writes to that many servers in parallel, and reads from them half as fast.
"""

COMPOSITE_LAYOUT_LIMIT = 512 << 30
"""File size in bytes below which a composite default layout of the directory is kept: its stripes grow with the
file.
"""

StripeTable = tuple[tuple[int, int], ...]
"""Pairs of file size and number of stripes, in ascending order: from that size in bytes on, a file gets that many
stripes.
"""


class StripeRequest(NamedTuple):
    """The user's choice of layouts for new files (``--stripe`` and ``--stripe-table``).

    Fields:
        kind: one of ``PRESERVE``, ``AUTO``, ``INHERIT``, ``EXPLICIT_COUNT``.
        stripes: number of stripes for ``EXPLICIT_COUNT``; ``ALL_OSTS`` for one on each OST.
        size: bytes of each stripe for ``EXPLICIT_COUNT``; 0 if the file system chooses.
        table: for ``AUTO``, replaces the built-in rule.
    """

    kind: str = PRESERVE
    stripes: int = 0
    size: int = 0
    table: StripeTable = ()

    @property
    def component(self) -> Component:
        """The layout component that ``EXPLICIT_COUNT`` requests."""
        return Component(self.stripes, self.size)


def stripe_count_for(size: int, hosts: int, ranks: int, osts: int, table: StripeTable = ()) -> int:
    """Return the number of stripes for a file.

    Args:
        size: size of the file in bytes.
        hosts: number of hosts that write it.
        ranks: number of ranks that write it, on all hosts.
        osts: number of OSTs of the file system; 0 if it is unknown.
        table: the user's table, which replaces the rule of ``BYTES_PER_STRIPE``.
    """
    wanted = -(-size * hosts // BYTES_PER_STRIPE)
    limit = ranks
    if table:
        wanted = next((count for least, count in reversed(table) if size >= least), 1)
        limit = wanted if wanted != ALL_OSTS else osts or 1
        wanted = limit
    return max(1, min(wanted, limit, osts or limit, MAX_STRIPES))


def capped_count_notice(stripe: str, osts: int) -> str:
    """Return a notice if the option ``--stripe`` requests more stripes than there are OSTs; otherwise an empty text."""
    wanted = parse_stripe(stripe or PRESERVE).stripes
    if not 0 < osts < wanted < ALL_OSTS:
        return ""
    return f"--stripe {stripe}: there are {osts} OSTs, so files get {osts} stripes"


def parse_stripe_options(stripe: str, table: str) -> StripeRequest:
    """Return the choice in the texts of the two options (``pcopy.tasks.base.job.Options``). Raise ``ValueError``."""
    return parse_stripe(stripe or PRESERVE)._replace(table=parse_stripe_table(table) if table else ())


def parse_stripe(text: str) -> StripeRequest:
    """Parse ``preserve``, ``auto``, ``inherit``, or ``COUNT[:SIZE]`` with -1 for all OSTs. Raise ``ValueError``."""
    if text in (PRESERVE, AUTO, INHERIT):
        return StripeRequest(text)
    count, colon, size = text.partition(":")
    example = "not preserve, auto, inherit, or COUNT[:SIZE] like 8 or 8:4M (COUNT -1: all OSTs)"
    return StripeRequest(EXPLICIT_COUNT, _parse_count(count, example), _parse_stripe_size(size) if colon else 0)


def parse_stripe_table(text: str) -> StripeTable:
    """Parse ``COUNT[,SIZE=COUNT…]``: from each file size on, that many stripes. Raise ``ValueError``.

    An example is ``1,1G=8,10G=24,100G=72``.
    """
    from pcopy.units import parse_size

    rows = []
    for number, part in enumerate(text.split(",")):
        least, equals, count = part.partition("=")
        if not equals and number:
            raise ValueError(f"{part!r} is not SIZE=COUNT, as in 1,1G=8,10G=24")
        rows.append(
            (
                parse_size(least) if equals else 0,
                _parse_count(count if equals else least, "a table is like 1,1G=8,10G=24"),
            )
        )
    if rows != sorted(rows) or len({least for least, _ in rows}) < len(rows):
        raise ValueError("the sizes must rise, as in 1,1G=8,10G=24")
    return tuple(rows)


def _parse_count(text: str, example: str) -> int:
    """Return a number of stripes. Raise ``ValueError``, with the text ``example`` if it is not a number."""
    if text in ("-1", "all"):
        return ALL_OSTS
    if not (text.isascii() and text.isdigit()):
        raise ValueError(example)
    if len(text) > len(str(MAX_STRIPES)) or not 1 <= int(text) <= MAX_STRIPES:
        raise ValueError(f"a file has 1 to {MAX_STRIPES} stripes, or -1 for all OSTs")
    return int(text)


def _parse_stripe_size(text: str) -> int:
    """Return a stripe size in bytes. Raise ``ValueError``."""
    from pcopy.units import parse_size

    size = parse_size(text)
    if not size or size % MIN_STRIPE_SIZE or size >= MAX_STRIPE_SIZE:
        raise ValueError("the stripe size must be a multiple of 64K, below 4G")
    return size
