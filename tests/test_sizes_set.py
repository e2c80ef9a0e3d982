"""Code that sets the size of a file other than by a write: only ``NewFile.extend_to_size``, and the rows of a table.

A file whose size is set before its contents are durable may keep the size after a loss of power and have no data. Only
``NewFile`` prevents such a file from getting its final name before. So each other call has a reason here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pcopy"

SETTERS = frozenset(
    ("set_file_size", "ftruncate", "truncate", "fallocate", "posix_fallocate", "ftruncate64", "fallocate64")
)

_NAMES = re.compile("|".join(sorted(SETTERS)))

KEEPS_SIZE = "it allocates room beyond the size, which stays"
SHRINKS = "it makes the file empty, or shorter"
OF_THE_JOB = "a file of the job itself, which is emptied or cut after its last whole record"

ALLOWED = {
    "fsio/new_file.py NewFile.extend_to_size": "commit brings the contents to stable storage before the rename",
    "fsio/data.py set_file_size": "the call itself; its callers are in this table",
    "fsio/memory_copy.py UserSpaceFileCopier._preallocate": KEEPS_SIZE,
    "libc.py fallocate": KEEPS_SIZE,
    "libc.py punch_hole": "it takes data away; the size stays",
    "fsio/in_place.py open_file_for_overwrite": SHRINKS,
    "fsio/sequential.py _try_writing_test_file": "a file that is removed at once",
    "tasks/recode/finish_recoded.py _finish_file": f"{SHRINKS}: to what was written of the room it had",
    "tasks/archive/archive_file.py ArchiveFile.truncate_or_extend": "all ranks sync the archive before its rename",
    "lustre/restripe.py _copy_and_verify": "fsync follows, and the contents are read back before layouts are exchanged",
    "lustre/layouts.py create_file_for_mdt_sync": "a file that never has a name",
    "jobs/lock.py take_lock": OF_THE_JOB,
    "tasks/archive/written_records.py PieceRecords._reserve_space": "an unnamed file whose contents nobody reads",
    "tasks/archive/written_records.py PieceRecords._append_frame": "removes a frame that was written in part",
    "jobs/deletion_count.py _counters_in_file": OF_THE_JOB,
    "checkpoint/framing.py RecordFileWriter.append": OF_THE_JOB,
    "jobs/spool_file.py SpoolFile": "a spool that no later run reads",
    "engine/backlog.py SpoolFileBacklog._load_frame": "a spool that no later run reads",
    "report/lines_file.py JsonLinesFile.truncate_file": "the list that --errors or --log names is emptied",
}  # fmt: skip
"""Functions that set the size of a file, or pass a setter on, and why no file can lack its data because of that."""


def setters(tree: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.AST]]:
    """Yield each use of a setter, even without a call, with the qualified name of the function that contains it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from setters(node, (*inside, node.name))
            continue
        if _setter_of(node) in SETTERS:
            yield ".".join(inside), node
        yield from setters(node, inside)


def _setter_of(node: ast.AST) -> object:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):  # libc and getattr
        called = node.func
        if isinstance(called, ast.Name) and called.id in ("_call_c_function", "getattr"):
            return next(
                (arg.value for arg in node.args if isinstance(arg, ast.Constant) and arg.value in SETTERS), None
            )
    return None


@pytest.fixture(scope="module")
def found() -> set[str]:
    return {
        f"{path.relative_to(PACKAGE)} {function}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if _NAMES.search(path.read_text())
        for function, _ in setters(ast.parse(path.read_bytes()))
    }


def test_only_functions_of_the_table_set_sizes(found: set[str]) -> None:
    assert found - ALLOWED.keys() == set(), "use NewFile.extend_to_size, or add the function with its reason"


def test_table_of_size_setters_has_no_stale_row(found: set[str]) -> None:
    assert ALLOWED.keys() - found == set()


def test_setters_are_found_in_any_form() -> None:
    text = """
class File:
    def call(self): os.ftruncate(self.fd, 5)
    def hand_on(self): return partial(set_file_size, self.fd)
    def by_name(self): _call_c_function("posix_fallocate", self.fd, 0, 5)
    def other(self): self.rows.extend([5])
"""
    assert [name for name, _ in setters(ast.parse(text))] == ["File.call", "File.hand_on", "File.by_name"]


def test_fallocate_always_keeps_the_size() -> None:
    calls = [
        node
        for node in ast.walk(ast.parse((PACKAGE / "libc.py").read_bytes()))
        if isinstance(node, ast.Call) and _setter_of(node) == "fallocate"
    ]
    assert len(calls) == 2
    assert all("_KEEP_SIZE" in ast.unparse(call.args[2]) for call in calls)


def test_no_source_in_c_sets_a_size() -> None:
    sources = sorted(PACKAGE.rglob("*.[ch]"))
    assert sources
    names = re.compile(rf"\b({'|'.join(sorted(SETTERS))}|O_TRUNC|SYS_\w*(?:truncate|fallocate)\w*)\b")
    uses = [
        (path.name, use)
        for path in sources
        for use in names.findall(re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S))
    ]
    assert uses == []
