"""What a walk is asked for, as it travels to all ranks: primitives only."""

from __future__ import annotations

from pcopy.named import NamedTuple
from pcopy.walk.expression import Tree


class WalkWish(NamedTuple):
    """The expression (``pcopy.walk.expression``), and what is told of what fulfils it.

    ``forms`` are those of ``pcopy.walk.forms`` in which ranks write what they find, with ``fields``; with ``columns``
    they send columns instead, which rank 0 sorts (by columns of ``sort_mask``) or writes. ``sums``: they sum it up.
    ``listed`` is a list that is read instead of trees (``pcopy.walk.saved_listing``); ``directory``: from where;
    ``base``: in which directory all has to lie.
    """

    tree: Tree = ("true",)
    prints: bool = False
    least_depth: int = 0
    most_depth: int = -1
    same_device: bool = False
    forms: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    columns: bool = False
    sort_mask: int = 0
    sums: bool = False
    listed: bytes = b""
    listed_nul: bool = False
    directory: bytes = b""
    base: bytes = b""
    now: int = 0
