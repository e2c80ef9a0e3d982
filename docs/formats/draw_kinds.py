"""Draws the table of kinds of tasks from the code: ``python docs/formats/draw_kinds.py > docs/formats/kinds.md``."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pcopy.tasks
import pcopy.tools
from pcopy.checkpoint.layout import VERSION
from pcopy.tasks.base.codec import PARTS
from pcopy.tasks.base.kind import FORMAT, KINDS, Kind

_INTRODUCTION = f"""\
# Kinds of tasks

What a task is packed as, in messages between ranks and in [the checkpoint](checkpoint.md) of a job. Drawn from the
code by `docs/formats/draw_kinds.py`; a test holds this page current.

A task is a pickle (protocol 5) of a tuple: the code of its kind, and its fields in their order. A field is an integer,
a byte string, text, a boolean, None, or a tuple of these. A tuple within begins with the code of the part that it is,
or with -1 if it is none. The reader (`pcopy/tasks/base/codec.py`) refuses a pickle that names a class or a function, an
unknown code, and a kind with more or fewer fields.

A code is never given to another kind or part, also when its own has gone. Kinds have codes below 200, parts from 200.

| version | of what | where it stands |
|---|---|---|
| {FORMAT} | what tasks are packed as | `FORMAT` in `pcopy/tasks/base/kind.py` |
| {VERSION} | all files of a job | `VERSION` in `pcopy/checkpoint/layout.py` |

`FORMAT` rises whenever a kind, a part, or a field of one comes, goes or changes. The file `job` tells it. A job with
another one, or with a task whose code or fields this program does not know, is not gone on with: pcopy ends with status
2, names both versions, and says what to do. Ranks tell each other theirs before anything else; two different ones are
refused with status 2, too.
"""

_KINDS = """
## Kinds

A *note* ends at once and only tells one rank something: a job that stops still runs it.

| code | kind | note | what it does | fields |
|---|---|---|---|---|
"""

_PARTS = """
## Parts

`Plain`, `ReadId` and `FailedName` are tuples without a code: a problem (`pcopy/fsio/problem.py`), a file that is read
in chunks (run, rank, number), and a name with the problem that it met.

| code | part | what it is | fields |
|---|---|---|---|
"""


def load() -> None:
    """All modules in which there may be kinds."""
    for package in (pcopy.tasks, pcopy.tools):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)


def _fields(value: type[Any]) -> str:
    names = value.fields if issubclass(value, Kind) else value._fields
    said = {name: hint for base in value.__mro__ for name, hint in getattr(base, "__annotations__", {}).items()}
    hints = ((name, getattr(said[name], "__forward_arg__", said[name])) for name in names)
    return ", ".join(f"`{name}`: {hint}" for name, hint in hints).replace("|", "or") or "none"


def _about(value: type[Any]) -> str:
    """The first paragraph of its docstring."""
    text = inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0]
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def page() -> str:
    """The whole page."""
    load()
    parts = [_INTRODUCTION, _KINDS]
    for code, kind in sorted(KINDS.items()):
        note = "yes" if kind.is_note else ""
        parts.append(f"| {code} | `{kind.__name__}` | {note} | {_about(kind)} | {_fields(kind)} |\n")
    parts.append(_PARTS)
    for code, part in sorted(PARTS.items()):
        parts.append(f"| {code} | `{part.__name__}` | {_about(part)} | {_fields(part)} |\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
