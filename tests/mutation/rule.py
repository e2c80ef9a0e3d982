"""What an entry of the tables says."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """``old`` occurs once in ``pcopy/engine/<file>``; with ``new`` in its place one of ``tests`` fails.

    Tests are node ids below ``tests/``.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
