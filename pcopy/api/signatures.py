"""The signatures of the functions, with the types of the stub. Loaded when ``inspect.signature`` asks for one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from pcopy.api.functions import Function
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
LAUNCHER_TYPE = "Sequence[str | bytes]"
PROGRESS_TYPE = "Callable[[Progress], object]"


def type_of(kind: str) -> str:
    """Return the type of a kind's values, as in the stub."""
    words = kind.split()
    if "choice" in words:
        literal = ", ".join(f'"{word}"' for word in words[words.index("choice") + 1 :])
        return f"{'bool | ' if words[0] == 'flag' else ''}Literal[{literal}]"
    return TYPES[kind]


def option_types(function: Function[Any]) -> Iterator[tuple[str, str]]:
    """Yield the names of the options of a function, with their types."""
    for name, kinds in KEYWORDS.items():
        if function.__name__ in kinds:
            yield name, type_of(kinds[function.__name__])
    yield "launcher", LAUNCHER_TYPE
    if function.result:
        yield "progress", PROGRESS_TYPE


def signature_of(function: Function[Any]) -> inspect.Signature:
    """Return the parameters and options of a function. Their annotations are texts, as those of the parameters are."""
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=f"{text} | None")
        for name, text in option_types(function)
    ]
    parameters = inspect.signature(function.operands).parameters.values()
    return inspect.Signature([*parameters, *options], return_annotation=function.result or "Walk")
