"""The type of an entry of the tables."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.edits import Edit


class Rule(NamedTuple):
    """A rule of the engine, and the edit of ``pcopy/engine/<file>`` that drops it; one of ``tests`` must fail then.

    Args:
        function: qualified name of the function in which the rule stands (``tests.support.edits``).
        operation: the expression or statements of the rule, which occur there once.
        replacement: takes their place.
        tests: node ids below ``tests/``.
    """

    name: str
    file: str
    function: str
    operation: str
    replacement: str
    tests: tuple[str, ...]

    @property
    def edit(self) -> Edit:
        return Edit(f"engine/{self.file}", self.function, self.operation, self.replacement)
