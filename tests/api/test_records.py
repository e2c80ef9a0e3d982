"""Results are frozen dataclasses: the module ``dataclasses`` is the oracle."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import pcopy
from pcopy.api import records, results
from tests.api.conftest import PROGRESS


@dataclasses.dataclass(frozen=True, kw_only=True)
class RealBase:
    other: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    first: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Real(RealBase):
    second: str | None = None


@dataclasses.dataclass(frozen=True)
class RealItem:
    path: bytes
    properties: tuple[str, ...] = ()


@records.dataclass(frozen=True, kw_only=True)
class OwnBase:
    other: Mapping[str, Any] = records.field(default_factory=dict)
    first: int


@records.dataclass(frozen=True, kw_only=True)
class Own(OwnBase):
    second: str | None = None


@records.dataclass(frozen=True)
class OwnItem:
    path: bytes
    properties: tuple[str, ...] = ()


PAIRS = pytest.mark.parametrize(("real", "own"), [(RealBase, OwnBase), (Real, Own), (RealItem, OwnItem)])
ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((), {"first": 1}),
    ((), {"first": 1, "second": "x", "other": {"key": 2}}),
    ((), {"first": 1, "third": 3}),
    ((1,), {}),
    ((b"path",), {}),
    ((b"path", ("mode",)), {}),
    ((b"path", ("mode",), 3), {}),
    ((b"path",), {"properties": ("owner",)}),
    ((b"path",), {"path": b"again"}),
    ((), {"properties": ()}),
]


def outcome(cls: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the values of the new object and its properties, or the type of the exception."""
    try:
        made = cls(*positional, **named)
    except Exception as error:
        return type(error)
    try:
        hashed: Any = hash(made)
    except TypeError as error:
        hashed = type(error)
    same = made == cls(*positional, **named), made == positional, made != cls(*positional, **named)
    return dataclasses.asdict(made), repr(made).partition("(")[2], vars(made), hashed, same


@PAIRS
@pytest.mark.parametrize(("positional", "named"), ARGUMENTS)
def test_objects_are_as_those_of_dataclasses(
    real: Any, own: Any, positional: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert outcome(own, positional, named) == outcome(real, positional, named)


@PAIRS
def test_classes_are_as_those_of_dataclasses(real: Any, own: Any) -> None:
    assert inspect.signature(own) == inspect.signature(real)
    assert own.__match_args__ == real.__match_args__
    described = [
        [(field.name, field.type, field.default, field.default_factory, field.kw_only) for field in fields]
        for fields in map(dataclasses.fields, (own, real))
    ]
    assert described[0] == described[1]
    assert own.__dataclass_params__.frozen
    assert dataclasses.is_dataclass(own)


@pytest.mark.parametrize("cls", [RealItem, OwnItem])
def test_objects_are_frozen(cls: Any) -> None:
    item = cls(b"path")
    with pytest.raises(dataclasses.FrozenInstanceError):
        item.path = b"other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del item.path
    assert item == copy.deepcopy(item) == pickle.loads(pickle.dumps(item)) == cls(b"path")
    assert dataclasses.replace(item, path=b"other") == cls(b"other")
    match item:
        case RealItem(path, properties) | OwnItem(path, properties):
            assert (path, properties) == (b"path", ())


def test_defaults_are_not_shared() -> None:
    assert Own(first=1).other is not Own(first=1).other


def test_dataclass_may_be_based_on_a_result() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(results.JsonObject):
        mine: int = 5

    assert Mine(other={"a": 1}) == Mine(other={"a": 1}, mine=5)
    assert [field.name for field in dataclasses.fields(Mine)] == ["other", "mine"]


def test_all_results_are_dataclasses() -> None:
    names = [name for name in vars(pcopy)["__all__"] if name.endswith(("Result", "Item", "Notice", "Progress", "Job"))]
    for name in [*names, "Difference"]:
        cls = getattr(pcopy, name)
        if name != "RunningJob":
            fields = [field.name for field in dataclasses.fields(cls)]
            assert fields == list(dict.fromkeys(key for base in cls.__mro__[::-1] for key in _annotated(base)))


def _annotated(cls: type) -> list[str]:
    return list(inspect.get_annotations(cls))


def lines_in_a_file(monkeypatch: pytest.MonkeyPatch) -> results.JsonLines[Any]:
    monkeypatch.setattr(results, "_MOST_LINES_IN_MEMORY", 2)
    lines: results.JsonLines[Any] = results.JsonLines(dict)
    for number in range(500):
        lines.append(b'{"number": %d}\n' % number)
    return lines


def test_other_objects_of_the_same_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    others = lines_in_a_file(monkeypatch).parsed(lambda values: values["number"])
    found: list[int] = []
    portion, place = others.portion((0, 0))
    while portion:
        found += portion
        portion, place = others.portion(place)
    assert found == list(others) == list(range(500))
    assert (place, len(others)) == (others.end(), 500)


def test_lines_need_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_in_a_file(monkeypatch)

    def refuse(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", refuse)
    both = zip(lines, lines, strict=True)
    assert [one["number"] for one, other in both if one == other] == list(range(500))


def test_line_of_an_unfinished_job_is_not_changed() -> None:
    line = {"directory": "/a", "directory_b64": "L2E=", "job": "name", "state": "stopped", "new": 1}
    line["progress"] = {**PROGRESS, "elapsed": 1}
    values = dict(line)
    job = pcopy.UnfinishedJob.from_line(values)
    assert values == line
    assert (job.directory, job.other) == (b"/a", {"new": 1})
    assert job.progress is not None
    assert job.progress.elapsed == 1


def test_representation_has_the_fields_with_a_value() -> None:
    values: dict[str, Any] = {
        "files": 1,
        "directories": 0,
        "bytes": 2,
        "failed": 0,
        "seconds": 0.5,
        "ranks": 1,
        "exit_status": 0,
    }
    values |= {"filters": [], "symlinks": 0, "special": 0, "excluded": 0, "found": 1, "removed": 1, "not_empty": 0}
    removed = pcopy.RemoveResult(**values, dry_run=False)
    assert repr(removed) == (
        "RemoveResult(files=1, directories=0, bytes=2, failed=0, seconds=0.5, ranks=1, exit_status=0, filters=[], "
        "symlinks=0, special=0, excluded=0, found=1, removed=1, not_empty=0, dry_run=False)"
    )
    assert repr(dataclasses.replace(removed, other={"new": 1})).startswith("RemoveResult(other={'new': 1}, files=1")
    job = pcopy.UnfinishedJob(job="a", directory=b"b", state=None)
    assert repr(job).startswith("UnfinishedJob(job='a', directory=b'b', message='', begun=0.0")


def test_result_of_a_comparison_is_neither_true_nor_false(area: Path) -> None:
    (area / "file").write_bytes(b"contents")
    result = pcopy.compare(area / "file", area / "file")
    assert result.same is True
    with pytest.raises(TypeError, match=r"^a CompareResult is neither true nor false; use \.same$"):
        bool(result)


@pytest.mark.parametrize("name", vars(pcopy)["__all__"])
def test_classes_have_the_module_from_which_they_are_imported(name: str) -> None:
    each = getattr(pcopy, name)
    if isinstance(each, type) and name != "RunningJob":
        assert (each.__module__, each.__qualname__) == ("pcopy", name)
        assert pickle.loads(pickle.dumps(each)) is each
