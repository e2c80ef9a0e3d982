"""Generate the table of task kinds from the code: ``python docs/formats/draw_kinds.py > docs/formats/kinds.md``."""

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
from pcopy.checkpoint.layout import JOB_FORMAT_VERSION
from pcopy.tasks.base.codec import FIELD_VALUE_TYPES
from pcopy.tasks.base.kind import KIND_BY_CODE, TASK_FORMAT, TaskKind

_INTRODUCTION = f"""\
# Kinds of tasks

The encoding of tasks in messages between ranks and in [the checkpoint](checkpoint.md) of a job. Generated from the
code by `docs/formats/draw_kinds.py`; a test checks that this page is up to date.

A task is a pickle (protocol 5) of a tuple: the code of its kind, and its fields in order. A field is an integer, a
byte string, text, a boolean, None, or a tuple of these. A nested tuple begins with the code of its part (a type of
value), or with -1 if it is an ordinary tuple. The reader (`pcopy/tasks/base/codec.py`) refuses a pickle that names a
class or a function, an unknown code, and a kind with more or fewer fields.

The code of a removed kind or part is never reused. Kinds have codes below 200, parts from 200.

| version | of | defined by |
|---|---|---|
| {TASK_FORMAT} | the encoding of tasks | `FORMAT` in `pcopy/tasks/base/kind.py` |
| {JOB_FORMAT_VERSION} | all files of a job | `VERSION` in `pcopy/checkpoint/layout.py` |

`FORMAT` is increased whenever a kind, a part, or a field of one is added, removed or changed. The file `job` records
it. A job with another version, or with a task whose code or fields are unknown, cannot be resumed: pcopy ends with
status 2, names both versions, and says what to do. Ranks exchange their versions before anything else; if they differ,
the job is refused with status 2, too.
"""

_KINDS = """
## Kinds

A *note* only passes information to one rank and does not wait for anything: a job that is stopping still runs it.

| code | kind | note | what it does | fields |
|---|---|---|---|---|
"""

_PARTS = """
## Parts

`PackedProblem`, `ChunkedReadId` and `FailedName` are tuples without a code: a problem (`pcopy/fsio/problem.py`), a file
that is read in chunks (run, rank, number), and a name with the problem that occurred.

| code | part | what it is | fields |
|---|---|---|---|
"""


def import_kinds() -> None:
    """Import all modules that may define kinds."""
    for package in (pcopy.tasks, pcopy.tools):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)


def _fields_text(value: type[Any]) -> str:
    """Return the fields of a kind or a part, with their types."""
    names = value.fields if issubclass(value, TaskKind) else value._fields
    annotations = {name: hint for base in value.__mro__ for name, hint in getattr(base, "__annotations__", {}).items()}
    hints = ((name, getattr(annotations[name], "__forward_arg__", annotations[name])) for name in names)
    return ", ".join(f"`{name}`: {hint}" for name, hint in hints).replace("|", "or") or "none"


def _summary_of(value: type[Any]) -> str:
    """Return the first paragraph of the docstring of a kind or a part."""
    text = inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0]
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def page() -> str:
    """Return the text of the page."""
    import_kinds()
    parts = [_INTRODUCTION, _KINDS]
    for code, kind in sorted(KIND_BY_CODE.items()):
        note = "yes" if kind.is_note else ""
        parts.append(f"| {code} | `{kind.__name__}` | {note} | {_summary_of(kind)} | {_fields_text(kind)} |\n")
    parts.append(_PARTS)
    for code, part in sorted(FIELD_VALUE_TYPES.items()):
        parts.append(f"| {code} | `{part.__name__}` | {_summary_of(part)} | {_fields_text(part)} |\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
