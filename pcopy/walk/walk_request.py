"""The request of a walk, as it is sent to all ranks: primitive values only."""

from __future__ import annotations

from pcopy.fast_named_tuple import NamedTuple
from pcopy.walk.expression import Tree


class WalkRequest(NamedTuple):
    """The expression of a walk (``pcopy.walk.expression``), and what is reported of the items that fulfil it.

    Fields besides those of ``Expression``:

    - ``forms``: formats of ``pcopy.walk.output_formats`` in which ranks write items, with ``fields``.
    - ``columns``: ranks send columns instead, which rank 0 sorts (by the columns of ``sort_mask``) or writes.
    - ``sums``: ranks sum up the items.
    - ``listed``: a list that is read instead of trees (``pcopy.walk.saved_listing``); ``listed_nul``: its paths end
      with a NUL.
    - ``directory``: the user's working directory.
    - ``base``: the directory in which all listed paths must lie.
    - ``now``: time from which ages are counted, in nanoseconds since 1970.
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
