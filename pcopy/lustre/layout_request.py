"""The user's choice of layouts for new files (``--stripe``), and the number of stripes that suits a file's size."""

from __future__ import annotations

from pcopy.fast_named_tuple import NamedTuple
from pcopy.lustre.blob import ALL_OSTS, LayoutComponent

PRESERVE_LAYOUT, AUTO_STRIPE_COUNT, INHERIT_LAYOUT, EXPLICIT_STRIPE_COUNT = "preserve", "auto", "inherit", "counted"
"""Kinds of choice of a layout. ``PRESERVE_LAYOUT``: the layout of the source file. ``AUTO_STRIPE_COUNT``: a number of
stripes by the size of the file. ``INHERIT_LAYOUT``: the default layout of the target directory.
``EXPLICIT_STRIPE_COUNT``: a number of stripes that the user has given.
"""

MAX_STRIPES = 2000
"""Maximum number of stripes of a file in Lustre."""
MIN_STRIPE_SIZE = 64 << 10
"""Minimum stripe size in bytes, of which every stripe size is a multiple."""
MAX_STRIPE_SIZE = 1 << 32
"""Limit of stripe sizes, in bytes: each is less than this number."""

BYTES_PER_STRIPE = 8 * 10**9
"""With ``--stripe auto``: bytes of a file for each of its stripes, if one host writes the file. If N hosts write parts
of the file, it gets N times as many stripes.

This is Paul Kolano's rule: one host writes to that many servers in parallel, and reads from them half as fast.
"""

COMPOSITE_LAYOUT_LIMIT = 512 << 30
"""File size in bytes below which ``--stripe auto`` does not replace a composite default layout of the directory,
because the number of stripes of such a layout grows with the file.
"""

StripeTable = tuple[tuple[int, int], ...]
"""Pairs (size, count) in ascending order: a file of at least ``size`` bytes, and less than in the next pair, gets
``count`` stripes.
"""


class LayoutRequest(NamedTuple):
    """The user's choice of layouts for new files (``--stripe`` and ``--stripe-table``).

    Fields:
        kind: one of ``PRESERVE_LAYOUT``, ``AUTO_STRIPE_COUNT``, ``INHERIT_LAYOUT``, ``EXPLICIT_STRIPE_COUNT``.
        stripes: number of stripes for ``EXPLICIT_STRIPE_COUNT``; ``ALL_OSTS`` for one on each OST.
        size: stripe size in bytes for ``EXPLICIT_STRIPE_COUNT``; 0 if the file system chooses.
        table: for ``AUTO_STRIPE_COUNT``, the user's table, which replaces the rule of ``BYTES_PER_STRIPE``; empty: that
            rule.
    """

    kind: str = PRESERVE_LAYOUT
    stripes: int = 0
    size: int = 0
    table: StripeTable = ()

    @property
    def requested_layout_component(self) -> LayoutComponent:
        """For the kind ``EXPLICIT_STRIPE_COUNT``: the single component of the layout that the user requests, with the
        given number of stripes and stripe size. It has no meaning for other kinds.
        """
        return LayoutComponent(self.stripes, self.size)


def automatic_stripe_count(size: int, hosts: int, ranks: int, osts: int, table: StripeTable = ()) -> int:
    """Return the number of stripes that ``--stripe auto`` chooses for a file, at least 1.

    By the usual rule, one stripe for each ``BYTES_PER_STRIPE`` bytes and host, a file gets no more stripes than ranks
    write it; a table may request more.

    Args:
        size: size of the file in bytes.
        hosts: number of hosts that write it.
        ranks: number of ranks that write it, on all hosts.
        osts: number of OSTs of the file system; 0 if it is unknown.
        table: the user's table, which replaces the rule of ``BYTES_PER_STRIPE``; empty: none.
    """
    wanted = -(-size * hosts // BYTES_PER_STRIPE)
    limit = ranks
    if table:
        wanted = next((count for least, count in reversed(table) if size >= least), 1)
        limit = wanted if wanted != ALL_OSTS else osts or 1
        wanted = limit
    return max(1, min(wanted, limit, osts or limit, MAX_STRIPES))


def capped_stripe_count_notice(stripe: str, osts: int) -> str:
    """Return a notice if ``stripe``, the value of ``--stripe``, requests more stripes than the ``osts`` OSTs of the
    file system; otherwise an empty text. ``osts`` is 0 if their number is unknown.
    """
    wanted = parse_stripe_option(stripe or PRESERVE_LAYOUT).stripes
    if not 0 < osts < wanted < ALL_OSTS:
        return ""
    return f"--stripe {stripe}: the file system has only {osts} OSTs, so files get {osts} stripes"


def parse_stripe_options(stripe: str, table: str) -> LayoutRequest:
    """Return the user's choice of layouts. ``stripe`` and ``table`` are the values of ``--stripe`` and
    ``--stripe-table``, empty if the option was not given. Raise ``ValueError`` if a value is invalid.
    """
    return parse_stripe_option(stripe or PRESERVE_LAYOUT)._replace(table=parse_stripe_table(table) if table else ())


def parse_stripe_option(text: str) -> LayoutRequest:
    """Return the user's choice of layouts from ``text``, the value of ``--stripe``: ``preserve``, ``auto``,
    ``inherit``, or ``COUNT[:SIZE]``, where COUNT -1 means one stripe on each OST. Raise ``ValueError`` if ``text`` is
    invalid.
    """
    if text in (PRESERVE_LAYOUT, AUTO_STRIPE_COUNT, INHERIT_LAYOUT):
        return LayoutRequest(text)
    count, colon, size = text.partition(":")
    example = "not preserve, auto, inherit, or COUNT[:SIZE] such as 8 or 8:4M (COUNT -1: one stripe on each OST)"
    return LayoutRequest(
        EXPLICIT_STRIPE_COUNT, _parse_stripe_count(count, example), _parse_stripe_size(size) if colon else 0
    )


def parse_stripe_table(text: str) -> StripeTable:
    """Return the table in ``text``, the value of ``--stripe-table``. Raise ``ValueError`` if ``text`` is invalid.

    The form is ``COUNT[,SIZE=COUNT…]``: from each file size on, that many stripes. An example is
    ``1,1G=8,10G=24,100G=72``.
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
                _parse_stripe_count(
                    count if equals else least, "not a number of stripes; a table has a form such as 1,1G=8,10G=24"
                ),
            )
        )
    if rows != sorted(rows) or len({least for least, _ in rows}) < len(rows):
        raise ValueError("each file size must be larger than the one before it, as in 1,1G=8,10G=24")
    return tuple(rows)


def _parse_stripe_count(text: str, example: str) -> int:
    """Return the number of stripes in ``text``; -1 or ``all`` mean one on each OST. Raise ``ValueError`` if it is out
    of range, or if it is not a number; then the message is ``example``, which shows a correct value.
    """
    if text in ("-1", "all"):
        return ALL_OSTS
    if not (text.isascii() and text.isdigit()):
        raise ValueError(example)
    if len(text) > len(str(MAX_STRIPES)) or not 1 <= int(text) <= MAX_STRIPES:
        raise ValueError(f"a file can have 1 to {MAX_STRIPES} stripes; -1 stands for one on each OST")
    return int(text)


def _parse_stripe_size(text: str) -> int:
    """Return the stripe size in ``text``, in bytes. Raise ``ValueError`` if it is invalid."""
    from pcopy.units import parse_size

    size = parse_size(text)
    if not size or size % MIN_STRIPE_SIZE or size >= MAX_STRIPE_SIZE:
        raise ValueError("the stripe size must be a multiple of 64K, below 4G")
    return size
