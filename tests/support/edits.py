"""Edits of pcopy's source code, for tests that remove a rule.

An edit names a function and an operation in it. It does not depend on line numbers, comments and line breaks. An edit
whose function or operation no longer exists is an error, and so is a replacement with a name that does not exist.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class Stale(Exception):
    """The function of an edit does not exist, does not have its operation exactly once, or gets a name that does not
    exist.
    """


class Edit(NamedTuple):
    """In ``pcopy/<file>``, the ``operation`` of ``function`` becomes ``replacement``.

    Args:
        function: qualified name of a function or a class (``MessageOutbox.send``); empty for the module.
        operation: an expression, or successive statements. It occurs once in the function; an empty one stands for the
            end of the function.
        replacement: an expression in place of one, or statements in place of statements; empty to remove them.
    """

    file: str
    function: str
    operation: str
    replacement: str


def edited(source: str, edit: Edit) -> str:
    """Return ``source`` with the edit, without its comments. Raise ``Stale`` if the edit does not fit."""
    tree = ast.parse(source)
    function = _function(tree, edit)
    operation, replacement = ast.parse(edit.operation).body, ast.parse(edit.replacement).body
    old, new = _expression(operation), _expression(replacement)
    content: Sequence[ast.AST]
    if not operation:
        places, content = [_Place(function, "body", len(function.body), 0)], replacement
    elif old and new:
        places, content = list(_expressions(function, old)), [new]
    else:
        places, content = list(_statements(function, operation)), replacement or [ast.Pass()]
    if len(places) != 1:
        raise Stale(f"{edit.file}: {edit.function or 'the module'} has {len(places)} times: {edit.operation}")
    places[0].put(content)
    if unknown := _undefined_names(tree) - _undefined_names(ast.parse(source)):
        raise Stale(f"{edit.file}: {edit.replacement!r} uses names that do not exist: {', '.join(sorted(unknown))}")
    return ast.unparse(ast.fix_missing_locations(tree))


def _undefined_names(tree: ast.AST) -> set[str]:
    """Return the names that the module uses and does not bind anywhere. A replacement with such a name would only
    raise ``NameError``, which shows nothing about the rule.
    """
    used, bound = set[str](), set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            bound.add(node.name)
    return used - bound


def edit_file(package: Path, edit: Edit) -> None:
    """Apply the edit to its file below ``package``. Raise ``Stale`` if it does not fit."""
    path = package / edit.file
    path.write_text(edited(path.read_text(), edit))


class _Place(NamedTuple):
    """A field of a node; of a field that is a list, ``number`` elements from ``first`` on."""

    node: ast.AST
    field: str
    first: int = -1
    number: int = 1

    def put(self, content: Sequence[ast.AST]) -> None:
        if self.first < 0:
            setattr(self.node, self.field, content[0])
        else:
            getattr(self.node, self.field)[self.first : self.first + self.number] = content


def _expression(statements: list[ast.stmt]) -> ast.expr | None:
    """Return the expression that ``statements`` consist of, or None if they are anything else."""
    if len(statements) == 1 and isinstance(statements[0], ast.Expr):
        return statements[0].value
    return None


def _function(tree: ast.Module, edit: Edit) -> ast.Module | ast.FunctionDef | ast.ClassDef:
    """Return the function or class of the edit, or the module; raise ``Stale``."""
    found: ast.Module | ast.FunctionDef | ast.ClassDef = tree
    for name in filter(None, edit.function.split(".")):
        inside = [each for each in _definitions(found) if each.name == name]
        if len(inside) != 1:
            raise Stale(f"{edit.file} has {len(inside)} times: {edit.function}")
        found = inside[0]
    return found


def _definitions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yield the functions and classes that are defined in ``node``, but not those inside them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            yield child
        else:
            yield from _definitions(child)


def _fields(function: ast.AST) -> Iterator[tuple[ast.AST, str, object]]:
    return ((node, field, value) for node in ast.walk(function) for field, value in ast.iter_fields(node))


def _statements(function: ast.AST, wanted: list[ast.stmt]) -> Iterator[_Place]:
    """Yield the places where these statements follow each other."""
    texts = [ast.dump(each) for each in wanted]
    for node, field, value in _fields(function):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            dumped = [ast.dump(each) for each in value]
            for first in range(len(value) - len(texts) + 1):
                if dumped[first : first + len(texts)] == texts:
                    yield _Place(node, field, first, len(texts))


def _expressions(function: ast.AST, wanted: ast.expr) -> Iterator[_Place]:
    """Yield the places of this expression."""
    text = ast.dump(wanted)
    for node, field, value in _fields(function):
        if isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, ast.expr) and ast.dump(each) == text:
                    yield _Place(node, field, index)
        elif isinstance(value, ast.expr) and ast.dump(value) == text:
            yield _Place(node, field)
