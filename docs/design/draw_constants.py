"""Draws the table of constants from the code: ``python docs/design/draw_constants.py > docs/design/constants.md``."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

_INTRODUCTION = """\
# Constants

All numbers that have a name, and why they are what they are. Drawn from the code by `docs/design/draw_constants.py`; a
test holds this page current, and wants a reason for each: the docstring or the comment beside it.
"""

_GROUPS = ("Limits", "Pace")
"""Classes whose fields are such numbers, so that tests can shrink them."""


class Constant(NamedTuple):
    """A number by its name, as it is written in ``module``."""

    module: str
    name: str
    value: str
    reason: str


def constants() -> Iterator[Constant]:
    """All of them, by module."""
    for path in sorted((ROOT / "pcopy").rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        groups = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name in _GROUPS]
        for body in (tree.body, *groups):
            yield from _of(str(path.relative_to(ROOT)), body, text.splitlines(), everything=body is not tree.body)


def _of(module: str, body: list[ast.stmt], lines: list[str], *, everything: bool) -> Iterator[Constant]:
    """A docstring holds for the lines right above it, too, if these have no reason of their own."""
    waiting: list[Constant] = []
    end = 0
    for node in body:
        if _is_text(node):
            reason = " ".join(ast.literal_eval(ast.unparse(node)).split())
            yield from (constant._replace(reason=constant.reason or reason) for constant in waiting)
            waiting = []
            continue
        if node.lineno > end + 1:
            yield from waiting
            waiting = []
        end = node.end_lineno or node.lineno
        name = _name(node)
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) and name else None
        if value is not None and (everything or (name.isupper() and _is_number(value))):
            comment = lines[end - 1].partition("  # ")[2]
            waiting.append(Constant(module, name, _source(value, lines), comment))
        else:
            yield from waiting
            waiting = []
    yield from waiting


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _name(node: ast.stmt) -> str:
    """What a statement assigns to, if that is one name."""
    if isinstance(node, ast.Assign):
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    else:
        return ""
    return target.id if isinstance(target, ast.Name) else ""


def _is_number(node: ast.expr) -> bool:
    """Is it a number, or computed from numbers and other constants?"""
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    return isinstance(node, ast.Name) and node.id.isupper()


def _source(node: ast.expr, lines: list[str]) -> str:
    """As it is written, since 4 << 20 says more than 4194304."""
    return lines[node.lineno - 1][node.col_offset : node.end_col_offset]


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    folder = ""
    for constant in sorted(constants(), key=lambda constant: constant.module.count("/") > 1):
        inside = constant.module.removeprefix("pcopy/")
        here = inside.partition("/")[0] if "/" in inside else "beside the folders"
        if here != folder:
            folder = here
            parts.append(f"\n## {folder}\n\n| constant | value | where | reason |\n|---|---|---|---|\n")
        reason = constant.reason.replace("``", "`").replace("|", "\\|")
        parts.append(f"| `{constant.name}` | `{constant.value}` | `{constant.module}` | {reason} |\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
