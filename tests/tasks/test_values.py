"""The codec of tasks: what was packed comes back, and nothing else gets in."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pcopy.errors import InvariantBroken
from pcopy.fsio.attributes import Attributes
from pcopy.fsio.source import Version
from pcopy.tasks import codec, read_values, sign_values, values
from pcopy.tasks.codec import decode, encode
from pcopy.tasks.runner import _RUNNERS
from pcopy.tasks.values import pack_names, pack_numbers, unpack_names, unpack_numbers

LONG_BINPUT = ord(pickle.LONG_BINPUT)
"""Makes the unpickler take up to 32 GiB for a table, whatever follows."""

NUMBER = st.integers(-(2**63), 2**64 - 1)
BYTES = st.binary(max_size=40)
NAME = st.binary(min_size=1, max_size=40).filter(lambda name: b"/" not in name)
IDENTITY = st.tuples(NUMBER, NUMBER)
PLACE = st.builds(values.Place, NUMBER, BYTES, IDENTITY, IDENTITY, st.booleans(), st.booleans())
LINKS = st.lists(st.tuples(PLACE, NAME), max_size=3).map(tuple)
TEXT = st.text(st.characters(), max_size=20)  # with lone surrogates, as in names that are no UTF-8
XATTRS = st.lists(st.tuples(TEXT, BYTES), max_size=3).map(tuple)
ATTRIBUTES = st.builds(Attributes, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, XATTRS)
VERSION = st.builds(Version, NUMBER, NUMBER, NUMBER, NUMBER)
SPLIT = st.builds(values.SplitFile, PLACE, NAME, NUMBER, NUMBER, NUMBER, NUMBER, LINKS)
OVER = st.lists(NUMBER, max_size=3).map(tuple)
FILE = st.builds(values.OpenFile, SPLIT, VERSION, BYTES, NUMBER, OVER, st.booleans())
GROUP = st.builds(values.LinkGroup, NUMBER, NUMBER, NUMBER, LINKS, NUMBER)
FINISH = st.builds(values.FinishDir, PLACE, st.none() | ATTRIBUTES, st.booleans(), NUMBER, st.booleans())
KNOWN = st.builds(values.Known, BYTES, NUMBER, BYTES, VERSION)
MAKING = st.builds(values.MakeLinks, GROUP, NUMBER, KNOWN, NUMBER, BYTES, st.booleans())
UNNAMED = st.builds(values.Unnamed, BYTES, NUMBER, BYTES)
CONTENTS = st.builds(
    read_values.Contents, PLACE, NAME, KNOWN, st.booleans(), NUMBER, NUMBER, NUMBER, BYTES, st.none() | GROUP
)
ENTRIES = st.builds(sign_values.Entries, NUMBER, BYTES, BYTES, BYTES, BYTES, BYTES, NUMBER)
PROBLEM = st.none() | st.tuples(TEXT, NUMBER, TEXT, st.booleans(), st.booleans())


def rows(*columns: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.tuples(*columns), max_size=3).map(tuple)


TASKS: dict[type[Any], st.SearchStrategy[Any]] = {
    values.ScanDir: st.builds(values.ScanDir, NUMBER, BYTES, IDENTITY, st.none() | PLACE),
    values.ScanNames: st.builds(values.ScanNames, PLACE, BYTES, NUMBER),
    values.CopyFiles: st.builds(values.CopyFiles, PLACE, BYTES, BYTES, BYTES, NUMBER),
    values.CopyNodes: st.builds(values.CopyNodes, PLACE, BYTES, BYTES, NUMBER),
    values.SplitFile: SPLIT,
    values.FileOpened: st.builds(values.FileOpened, FILE, NUMBER, NUMBER),
    values.CopyChunk: st.builds(values.CopyChunk, FILE, NUMBER, NUMBER, NUMBER, NUMBER),
    values.ChunkDone: st.builds(values.ChunkDone, BYTES, PROBLEM, NUMBER, BYTES, NUMBER),
    values.FinishFile: st.builds(values.FinishFile, FILE, BYTES, NUMBER, BYTES),
    values.Unmark: st.builds(values.Unmark, PLACE, BYTES, BYTES),
    values.LinkNote: st.builds(values.LinkNote, PLACE, BYTES, BYTES, BYTES, BYTES, NUMBER),
    values.GroupLinks: st.builds(values.GroupLinks, NUMBER),
    values.LinkGroup: GROUP,
    values.MakeLinks: MAKING,
    values.InodeCopied: st.builds(values.InodeCopied, MAKING, NUMBER),
    values.FinishDir: FINISH,
    values.SealDir: st.builds(values.SealDir, FINISH),
    values.SealDirs: st.builds(values.SealDirs),
    values.FailDir: st.builds(values.FailDir, PLACE, PROBLEM, st.none() | FINISH),
    values.SyncFiles: st.builds(values.SyncFiles, st.none() | PLACE),
    values.NameItems: st.builds(
        values.NameItems, PLACE, *[BYTES] * 3, st.lists(BYTES, max_size=3).map(tuple), *[BYTES] * 4, NUMBER, NUMBER
    ),
    values.NameGroup: st.builds(values.NameGroup, SPLIT, UNNAMED, KNOWN, NUMBER, BYTES, PROBLEM),
    values.CopyAnew: st.builds(values.CopyAnew, GROUP, NUMBER, BYTES, st.tuples(NUMBER, NUMBER)),
    values.ReportFailures: st.builds(
        values.ReportFailures,
        st.lists(st.tuples(BYTES, TEXT, NUMBER, TEXT), max_size=3).map(tuple),
        st.lists(TEXT, max_size=3).map(tuple),
        st.lists(st.builds(values.Retry, BYTES, NUMBER, rows(NUMBER, NUMBER), st.booleans()), max_size=3).map(tuple),
    ),
    read_values.ReadItems: st.builds(read_values.ReadItems, PLACE, BYTES, BYTES, BYTES, NUMBER, NUMBER),
    read_values.VerifyItems: st.builds(
        read_values.VerifyItems, PLACE, BYTES, BYTES, BYTES, BYTES, BYTES, BYTES, NUMBER
    ),
    read_values.VerifyLinks: st.builds(read_values.VerifyLinks, GROUP, NUMBER, KNOWN, NUMBER, NUMBER, BYTES),
    read_values.SplitRead: st.builds(read_values.SplitRead, CONTENTS),
    read_values.ReadOpened: st.builds(read_values.ReadOpened, NUMBER, CONTENTS, NUMBER),
    read_values.ReadChunk: st.builds(read_values.ReadChunk, CONTENTS, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER),
    read_values.ChunkRead: st.builds(read_values.ChunkRead, NUMBER, NUMBER, BYTES, PROBLEM),
    sign_values.StoredEntries: st.builds(sign_values.StoredEntries, ENTRIES),
    sign_values.SendEntries: st.builds(sign_values.SendEntries),
    sign_values.EntriesNote: st.builds(sign_values.EntriesNote, st.lists(ENTRIES, max_size=3).map(tuple)),
    sign_values.DeepestNote: st.builds(sign_values.DeepestNote, NUMBER),
    sign_values.DigestLevel: st.builds(sign_values.DigestLevel, NUMBER),
    sign_values.DirectoriesNote: st.builds(sign_values.DirectoriesNote, rows(NUMBER, BYTES, BYTES)),
    sign_values.SignatureNote: st.builds(sign_values.SignatureNote, NUMBER, BYTES, st.tuples(*[NUMBER] * 5)),
    sign_values.DifferencesNote: st.builds(sign_values.DifferencesNote, rows(TEXT, BYTES)),
    sign_values.SendLines: st.builds(sign_values.SendLines),
    sign_values.LinesNote: st.builds(sign_values.LinesNote, NUMBER, rows(BYTES, BYTES), st.booleans()),
    sign_values.WriteManifest: st.builds(sign_values.WriteManifest),
    sign_values.ReadManifest: st.builds(sign_values.ReadManifest),
}


def test_every_kind_of_task_is_tried() -> None:
    assert set(TASKS) == set(_RUNNERS) == set(codec._TYPES)


def test_all_that_is_in_a_task_is_known_to_the_codec() -> None:
    """Another named tuple would come back as a plain one."""
    defined = {
        kind
        for module in (values, read_values, sign_values)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, tuple)
    }
    assert defined == {*codec._TYPES, *codec._NESTED}


def types(value: Any) -> Any:
    """The shape: equal named tuples may be of different types."""
    return (type(value), [types(field) for field in value]) if isinstance(value, tuple) else type(value)


@settings(deadline=None)
@given(st.one_of(*TASKS.values()))
def test_round_trip(task: Any) -> None:
    packed = encode(task)
    assert decode(packed) == task
    assert types(decode(packed)) == types(task)
    assert encode(decode(packed)) == packed


class Evil:
    """Runs code when an ordinary unpickler reads it."""

    def __reduce__(self) -> Any:
        return print, ("this must not be printed",)


@pytest.mark.parametrize("value", [Evil(), (0, Evil()), {"a": Evil()}, ValueError, print, values.GroupLinks(1)])
def test_refuses_globals(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvariantBroken):
        decode(pickle.dumps(value))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "value",
    [
        (),
        (99, 1),
        (10,),
        (10, 1, 2),
        ("a",),
        7,
        None,
        [],
        (-1, 1),
        (len(codec._TYPES), 1, b"", (-1, 1), (-1, 1), True, True),
    ],
)
def test_refuses_primitives_that_are_no_task(value: Any) -> None:
    with pytest.raises(InvariantBroken):
        decode(pickle.dumps(value))


@given(st.binary(max_size=200).filter(lambda garbage: LONG_BINPUT not in garbage))
def test_garbage_is_told_as_such(garbage: bytes) -> None:
    with pytest.raises(InvariantBroken):
        decode(garbage)


@settings(deadline=None)
@given(st.one_of(*TASKS.values()), st.data())
def test_a_damaged_task_is_refused_or_is_another_task(task: Any, data: st.DataObject) -> None:
    packed = bytearray(encode(task))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    assume(packed[at] != LONG_BINPUT)
    try:
        found = decode(bytes(packed))
    except InvariantBroken:
        return
    assert type(found) in TASKS


@given(st.lists(NAME, min_size=1))
def test_names(names: list[bytes]) -> None:
    assert unpack_names(pack_names(names)) == names


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_numbers(numbers: list[int]) -> None:
    assert list(unpack_numbers(pack_numbers(numbers))) == numbers
