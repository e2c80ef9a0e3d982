"""The codec of tasks: packed tasks are restored exactly, and everything else is refused."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import new_class
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import pcopy.tasks.archive.archive_directories
import pcopy.tasks.archive.digest_members
import pcopy.tasks.archive.extract_members
import pcopy.tasks.archive.name_conflicts
import pcopy.tasks.archive.packing_visitor
import pcopy.tasks.archive.piece_layout
import pcopy.tasks.archive.read_headers
import pcopy.tasks.archive.sync_archive
import pcopy.tasks.bench.measure
import pcopy.tasks.broadcast.send
import pcopy.tasks.change.change_tree
import pcopy.tasks.copying
import pcopy.tasks.listed.deepest_first
import pcopy.tasks.listed.hand_out
import pcopy.tasks.remove.remove_tree
import pcopy.tasks.runner
import pcopy.tasks.stripe.examine_directories
import pcopy.tasks.stripe.examine_layouts
import pcopy.tasks.walk.sum_up
import pcopy.tasks.walk.walk_dirs
import pcopy.tasks.walk.walk_listed  # noqa: F401 (they make kinds known)
from pcopy.errors import InvariantBroken
from pcopy.fsio.backend.columns import pack_names, unpack_names
from pcopy.tasks.base import codec
from pcopy.tasks.base.codec import LAZY_MODULES, decode_task, encode_task, import_all_task_modules
from pcopy.tasks.base.kind import KIND_BY_CODE, TASK_FORMAT, TaskKind
from pcopy.tasks.base.values import pack_numbers, unpack_numbers
from pcopy.tasks.directories.finish_dir import FinishDir
from pcopy.tasks.links.group_links import GatherHardLinks

import_all_task_modules()

ROOT = Path(__file__).resolve().parents[2]

LONG_BINPUT = ord(pickle.LONG_BINPUT)
"""An opcode that makes the unpickler allocate up to 32 GiB for a table, whatever follows."""

NAME = st.binary(min_size=1, max_size=40).filter(lambda name: b"/" not in name)
TEXT = st.text(st.characters(), max_size=20)  # with lone surrogates, as in names that are not UTF-8


FOLDERS_OF_OTHER_PROGRAMS = ("archive", "bench", "broadcast", "change", "stripe", "walk")
"""Folders with tasks that only programs other than pcopy run."""


def _built(kind: type[TaskKind]) -> st.SearchStrategy[Any]:
    """Tasks of a kind with arbitrary values that fit the types of its fields."""
    types = get_type_hints(kind)
    return st.builds(kind, *(st.from_type(types[field]) for field in kind.fields))


st.register_type_strategy(str, TEXT)
for kind in KIND_BY_CODE.values():
    if kind.__name__ in ("FinishDir", "ExtractMembers"):  # tasks that are fields of others
        st.register_type_strategy(kind, _built(kind))
st.register_type_strategy(TaskKind, _built(FinishDir))  # a task contained in another task

TASKS = {kind: _built(kind) for kind in KIND_BY_CODE.values()}


def test_codec_knows_all_types_of_task_fields() -> None:
    """An unknown named tuple would be restored as a simple tuple."""
    known = set(codec.FIELD_VALUE_TYPES.values())
    fields = [get_type_hints(kind)[name] for kind in (*TASKS, *known) for name in _fields_of(kind)]
    assert {each for field in fields for each in _named_tuples(field)} <= known


def _fields_of(kind: type[Any]) -> tuple[str, ...]:
    return kind.fields if issubclass(kind, TaskKind) else kind._fields


def _named_tuples(hint: Any) -> Iterator[type[Any]]:
    """The named tuples in the type of a field."""
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        yield hint
    for inner in get_args(hint):
        yield from _named_tuples(inner)


def types(value: Any) -> Any:
    """The types within a value: equal named tuples may have different types."""
    return (type(value), [types(field) for field in value]) if isinstance(value, tuple) else type(value)


@settings(deadline=None)
@given(st.one_of(*TASKS.values()))
def test_round_trip(task: Any) -> None:
    packed = encode_task(task)
    assert decode_task(packed) == task
    assert types(decode_task(packed)) == types(task)
    assert encode_task(decode_task(packed)) == packed


class Evil:
    """Runs code when an ordinary unpickler reads it."""

    def __reduce__(self) -> Any:
        return print, ("this must not be printed",)


@pytest.mark.parametrize("value", [Evil(), (0, Evil()), {"a": Evil()}, ValueError, print, GatherHardLinks(1)])
def test_pickled_globals_are_refused(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvariantBroken):
        decode_task(pickle.dumps(value))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "value",
    [
        (),
        (10,),
        (10, 1, 2),
        ("a",),
        7,
        None,
        [],
        (-1, 1),
        (200, 1, b"", (-1, 1), (-1, 1), True, True),
    ],
)
def test_primitives_that_are_not_a_task_are_refused(value: Any) -> None:
    with pytest.raises(InvariantBroken):
        decode_task(pickle.dumps(value))


@pytest.mark.parametrize("value", [(99, 1), (10, (250, b"")), (0,)])
def test_unknown_code_is_named_in_the_error(value: Any) -> None:
    """It is a task of another version, not a damaged task."""
    code = value[1][0] if value[0] in KIND_BY_CODE else value[0]
    with pytest.raises(InvariantBroken, match=rf"unknown code {code} in a task \(format {TASK_FORMAT} of tasks"):
        decode_task(pickle.dumps(value))


@pytest.mark.parametrize("module", ["pcopy.jobs.leftovers", "pcopy.jobs.missing_directories", "pcopy.launch.rank"])
def test_modules_that_read_tasks_know_all_kinds(module: str) -> None:
    """A kind is registered when it is loaded. These modules run in processes that may have loaded nothing else.

    Tasks of other programs are never stored: only these programs load them.
    """
    program = (
        f"import {module}\nfrom pcopy.tasks.base.codec import LAZY_MODULES\n"
        "from pcopy.tasks.base.kind import KIND_BY_CODE\n"
        "print(*sorted({*KIND_BY_CODE, *LAZY_MODULES}))\n"
    )
    reported = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    assert [int(code) for code in reported.stdout.split()] == sorted(set(written_kinds()) - codes_of_other_programs())


def test_lazily_loaded_kind_is_imported_when_decoded() -> None:
    assert LAZY_MODULES.keys() >= {50, 61}
    program = (
        "import os, pickle, sys\nfrom pcopy.tasks.base.codec import LAZY_MODULES, decode_task\n"
        "from pcopy.tasks.base.kind import KIND_BY_CODE\n"
        "for code, module in LAZY_MODULES.items():\n"
        "    child = os.fork()\n"
        "    if child:\n        assert os.waitpid(child, 0)[1] == 0\n        continue\n"
        "    assert module not in sys.modules\n"
        "    try:\n        decode_task(pickle.dumps((code, *range(99))))\n"
        "    except Exception as error:\n        message = str(error)\n"
        "    print(code, KIND_BY_CODE[code].__module__, message, flush=True)\n"
        "    os._exit(0)\n"
    )
    reported = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    lines = reported.stdout.splitlines()
    assert {int(line.split()[0]): line.split()[1] for line in lines} == LAZY_MODULES
    assert all("99 fields instead of" in line for line in lines)


def test_other_programs_register_all_kinds_they_run() -> None:
    assert len(codes_of_other_programs()) == sum(len(written_kinds(folder)) for folder in FOLDERS_OF_OTHER_PROGRAMS) > 1
    assert set(written_kinds()) == KIND_BY_CODE.keys()


def test_codes_of_kinds_are_unique() -> None:
    assert len(set(written_kinds())) == len(written_kinds())


def written_kinds(folder: str = "") -> list[int]:
    """The codes written in the files of a folder of tasks."""
    files = (ROOT / "pcopy" / "tasks" / folder).rglob("*.py")
    return sorted(
        int(code) for file in files for code in re.findall(r"^class .*, code=(\d+)[,)]", file.read_text(), re.M)
    )


def codes_of_other_programs() -> set[int]:
    """The codes of tasks that only programs other than pcopy run."""
    return {code for folder in FOLDERS_OF_OTHER_PROGRAMS for code in written_kinds(folder)}


@given(st.binary(max_size=200).filter(lambda garbage: LONG_BINPUT not in garbage))
def test_garbage_is_reported_as_garbage(garbage: bytes) -> None:
    with pytest.raises(InvariantBroken):
        decode_task(garbage)


@settings(deadline=None)
@given(st.one_of(*TASKS.values()), st.data())
def test_a_damaged_task_is_refused_or_is_another_task(task: Any, data: st.DataObject) -> None:
    packed = bytearray(encode_task(task))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    assume(packed[at] != LONG_BINPUT)
    try:
        found = decode_task(bytes(packed))
    except InvariantBroken:
        return
    assert type(found) in TASKS


@given(st.lists(NAME, min_size=1))
def test_names(names: list[bytes]) -> None:
    assert unpack_names(pack_names(names)) == names


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_numbers_survive_packing(numbers: list[int]) -> None:
    assert list(unpack_numbers(pack_numbers(numbers))) == numbers


@pytest.mark.parametrize("missing", ["doing", "is_note", "run", "subject"])
def test_incomplete_kind_is_refused(missing: str) -> None:
    said: dict[str, Any] = {"code": 197, "doing": "trying", "is_note": False}
    body: dict[str, Any] = {"run": lambda *_: None, "subject": lambda _: None}
    said.pop(missing, None)
    body.pop(missing, None)
    with pytest.raises(TypeError, match=f"does not define {missing}"):
        new_class("Incomplete", (TaskKind,), said, lambda namespace: namespace.update(body))
    assert 197 not in KIND_BY_CODE
