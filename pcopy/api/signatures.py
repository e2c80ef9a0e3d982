"""The signatures of the functions, with the types of the stub, and their documentation. Loaded when ``inspect`` or
``help`` asks for them.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pcopy.api.keywords import KEYWORDS

TYPES: Mapping[str, str] = {
    "flag": "bool",
    "integer": "int",
    "integer auto": 'int | Literal["auto"]',
    "size": "int | str",
    "seconds": "float | timedelta",
    "time": "float | timedelta | date | str",
    "text": "str | int",
    "list": "str | Sequence[str]",
    "texts": "str | bytes | Sequence[str | bytes]",
    "path": "StrOrBytesPath",
    "paths": "Paths",
    "listing": "Paths",
}
"""The type of each kind of values (``arguments.py``) but choices."""
_STUB = Path(__file__).parents[1] / "__init__.pyi"
LAUNCHER_TYPE = "Sequence[str | bytes]"
PROGRESS_TYPE = "Callable[[Progress], object]"


def type_of(kind: str) -> str:
    """Return the type of a kind's values, as in the stub."""
    words = kind.split()
    if "choice" in words:
        literal = ", ".join(f'"{word}"' for word in words[words.index("choice") + 1 :])
        return f"{'bool | ' if words[0] == 'flag' else ''}Literal[{literal}]"
    return TYPES[kind]


def option_types(function: str, result: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the options of a function, with their types. ``result`` is the class that it returns."""
    for name, kinds in KEYWORDS.items():
        if function in kinds:
            yield name, type_of(kinds[function])
    yield "launcher", LAUNCHER_TYPE
    if result:
        yield "progress", PROGRESS_TYPE


def signature_of(operands: Callable[..., Any], result: str) -> inspect.Signature:
    """Return the parameters and options of a function. Their annotations are texts, as those of the parameters are.

    ``operands`` has the name and the parameters of the function, and ``result`` is the class that it returns; empty: it
    yields entries.
    """
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=f"{text} | None")
        for name, text in option_types(operands.__name__, result)
    ]
    parameters = inspect.signature(operands).parameters.values()
    return inspect.Signature([*parameters, *options], return_annotation=result or "Walk")


@cache
def _docs_of_stub() -> Mapping[str, str]:
    """Return the documentation of each function in the stub; nothing if it is not installed."""
    try:
        tree = ast.parse(_STUB.read_text(encoding="utf-8"))
    except OSError:
        return {}
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}


def docs_of(function: str) -> str:
    """Return what the stub says about a function and its options; empty if the stub is not installed."""
    return _docs_of_stub().get(function, "")
