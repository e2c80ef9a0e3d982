"""Edits apply to one place in one function, and fail where they have none or several."""

from __future__ import annotations

import ast

import pytest

from tests.support.edits import Edit, Stale, edited

SOURCE = """
LIMIT = 0o600

class Queue:
    size: int

    def put(self, item):
        # Full queues refuse.
        if self.size == LIMIT or (
            item is None
        ):
            raise ValueError(item)
        self.size += 1
        self.items.append(item)

    def get(self):
        self.size -= 1
        return self.items.pop()

def put(queue):
    queue.put(1)
    queue.put(1)
"""


@pytest.mark.parametrize(
    ("function", "operation", "replacement", "line"),
    [
        ("", "LIMIT = 384", "LIMIT = 1", "LIMIT = 1"),
        ("Queue", "size: int", "size: int = 0", "    size: int = 0"),
        ("Queue.put", "self.size == LIMIT or item is None", "item is None", "        if item is None:"),
        ("Queue.put", "self.size += 1\nself.items.append(item)", "self.add()", "        self.add()"),
        ("Queue.get", "self.size -= 1", "", "        pass"),
        ("Queue.get", "self.items.pop()", "None", "        return None"),
        ("Queue.get", "", "self.put(None)", "        self.put(None)"),
    ],
    ids=["constant", "field", "expression over two lines", "statements", "removed", "expression", "end of function"],
)
def test_edit_applies_to_its_function_only(function: str, operation: str, replacement: str, line: str) -> None:
    before = ast.unparse(ast.parse(SOURCE)).splitlines()
    after = edited(SOURCE, Edit("file", function, operation, replacement)).splitlines()
    assert [each for each in after if each not in before] == [line]


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        ("Queue.remove", "self.size -= 1"),
        ("Queue.get", "self.size += 1"),
        ("Queue", "self.items"),
        ("put", "queue.put(1)"),
        ("Stack", "size: int"),
    ],
    ids=["no such function", "not there", "twice in a class", "twice in a function", "no such class"],
)
def test_edit_without_exactly_one_place_fails(function: str, operation: str) -> None:
    with pytest.raises(Stale):
        edited(SOURCE, Edit("file", function, operation, "None"))


@pytest.mark.parametrize("replacement", ["missing_name", "None if missing_name else item"])
def test_replacement_with_a_name_that_does_not_exist_fails(replacement: str) -> None:
    with pytest.raises(Stale, match="uses names that do not exist: missing_name"):
        edited(SOURCE, Edit("file", "Queue.get", "self.items.pop()", replacement))
