"""What the user wants of a walk, in a form that can be sent to all ranks: strings, numbers and tuples only."""

from __future__ import annotations

from pcopy.fast_named_tuple import NamedTuple
from pcopy.walk.expression import ExpressionTree


class WalkRequest(NamedTuple):
    """What the user wants of a walk: the tests that items must fulfil, and what is reported of the items that fulfil
    them.

    The fields ``tree`` to ``same_device`` have the tests and options of find on the command line: the tree of tests,
    whether it prints items itself (``-print``), the depths at which items are tested, and ``-xdev``. The others are:

    - ``forms``: names of the formats (``pcopy.walk.output_formats``) in which the ranks write items as text.
    - ``fields``: the fields of each item in these formats.
    - ``columns``: True if ranks send items with their status to rank 0, which sorts them or writes them as Parquet.
    - ``sort_mask``: bit of the column by which rank 0 sorts; 0: none.
    - ``sums``: True if the ranks add up the items for ``--summary``.
    - ``list_file``: path of a list of paths that is read instead of trees; empty: trees are walked.
    - ``nul_separated``: True if the paths in a plain list end with a NUL byte.
    - ``directory``: the user's working directory.
    - ``base``: the directory in which all listed paths must lie; empty: they can be anywhere.
    - ``now``: time from which ages are counted, in nanoseconds since 1970.
    """

    tree: ExpressionTree = ("true",)
    prints: bool = False
    least_depth: int = 0
    most_depth: int = -1
    same_device: bool = False
    forms: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    columns: bool = False
    sort_mask: int = 0
    sums: bool = False
    list_file: bytes = b""
    nul_separated: bool = False
    directory: bytes = b""
    base: bytes = b""
    now: int = 0
