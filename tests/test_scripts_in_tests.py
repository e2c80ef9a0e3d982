"""Scripts in strings, which programs and tests give to other interpreters: the names of pcopy that they use exist.

An assignment such as ``module.LIMIT = 4`` to a name that was renamed raises nothing, and the test would no longer test
anything. A helper process whose script fails is replaced by something slower, without a message.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("pcopy", "tests", "bench", "docs", "completions", "examples")
IMPORT = re.compile(r"from (pcopy[\w.]*) import \(?([\w, ]+)|import (pcopy[\w.]*)(?: as (\w+))?")
NEEDED_ELSEWHERE = "pcopy.engine.transports.mpi"
"""A module that cannot be imported without MPI."""


def scripts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string that imports from pcopy, with ``X`` for what is formatted in."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values)
        else:
            continue
        if IMPORT.search(text):
            yield node.lineno, text


def attribute_or_module(module: str, name: str) -> Any:
    """Return what ``from module import name`` gives. Raise ``ImportError`` if there is nothing."""
    found = getattr(import_module(module), name, None)
    return import_module(f"{module}.{name}") if found is None else found


def imports(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the module, the name (empty: the module itself) and the name in the script of all that it imports."""
    for module, names, whole, alias in IMPORT.findall(text):
        if whole:
            yield whole, "", alias or whole
        for each in filter(None, (name.strip() for name in names.split(","))):
            name, _, other = each.partition(" as ")
            yield module, name, other or name


def missing_names(text: str) -> Iterator[str]:
    """Yield the names of pcopy that the script uses and that do not exist."""
    for module, name, called in imports(text):
        if "X" in (*module.split("."), name) or module == NEEDED_ELSEWHERE:
            continue
        try:
            value = attribute_or_module(module, name) if name else import_module(module)
        except ImportError:
            yield f"{module}.{name}"
            continue
        if isinstance(value, ModuleType):
            used = re.findall(rf"(?<![\w.]){re.escape(called)}\.(\w+)", text)
            yield from (f"{called}.{each}" for each in used if each != "X" and not hasattr(value, each))


def test_names_in_scripts_exist() -> None:
    files = sorted({file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")} - {Path(__file__)})
    found = [(file, *script) for file in files for script in scripts(file)]
    assert len(found) > 50
    assert ROOT / "pcopy" / "fsio" / "syncer.py" in {file for file, _, _ in found}
    assert [
        f"{file.relative_to(ROOT)}:{line}: {name}" for file, line, text in found for name in missing_names(text)
    ] == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("from pcopy.errors import RequestRefused", []),
        ("from pcopy.errors import Refused, RequestRefused", ["pcopy.errors.Refused"]),
        ("from pcopy import units; units.format_size(1)", []),
        ("from pcopy import units\nunits.LARGEST = 4", ["units.LARGEST"]),
        ("import pcopy.units as short; short.nothing()", ["short.nothing"]),
    ],
)
def test_missing_names_are_found(text: str, missing: list[str]) -> None:
    assert list(missing_names(text)) == missing
