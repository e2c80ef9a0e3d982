"""Tasks of all kinds with independent items can be divided between items, and the portions do the same work."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pcopy.engine.task import ANY_RANK, Task
from pcopy.fsio.backend.columns import VERSION_COLUMNS, ItemStatusColumns
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import FileContentVersion
from pcopy.tasks.archive.archive_directories import ArchiveDirectories
from pcopy.tasks.base import dividing
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.dividing import (
    DEFAULT_ITEM_SECONDS,
    MIN_DIVISIBLE_COST,
    MIN_PORTION_SECONDS,
    MIN_PORTION_SECONDS_IF_ALL_BUSY,
    ItemDurations,
    portion_slices,
)
from pcopy.tasks.base.job import CopyOptions, Options
from pcopy.tasks.base.kind import KIND_BY_CODE, DivisibleTask, TaskKind
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.sibling_directories import call_deadline
from pcopy.tasks.base.values import ContentInfo, Item, ItemCopy, Place
from pcopy.tasks.change.change_tree import ChangeMetadataInDirectories, ChangeMetadataOfItems
from pcopy.tasks.compare.compare_pairs import ComparePairs
from pcopy.tasks.compare.compare_trees import CompareDirs, CompareNamedItems
from pcopy.tasks.compare.contents import CompareSmallFiles
from pcopy.tasks.directories.scan_dir import ScanDir, ScanNames, ScanSortedNames
from pcopy.tasks.files.copy_files import CopyFiles
from pcopy.tasks.files.copy_nodes import CopySpecialFiles
from pcopy.tasks.files.name_items import RenameCopies
from pcopy.tasks.links.link_groups import CopyHardLinkGroups
from pcopy.tasks.links.make_links import CreateHardLinks
from pcopy.tasks.recode.recode_files import RecodeFiles
from pcopy.tasks.runner import TaskRunner
from pcopy.tasks.stripe.examine_directories import ExamineDirectories
from pcopy.tasks.stripe.examine_layouts import ExamineLayouts
from pcopy.tasks.verify.read_items import ReadItems
from pcopy.tasks.verify.verify_items import VerifyItems
from pcopy.tasks.walk.walk_dirs import WalkDirectories, WalkNamesOfLargeDirectory
from tests.tasks.one_rank import root_of, surroundings

PLACE = Place(0, b"d", ItemIdentity(1, 2), ItemIdentity(3, 4), True, False)
WIDTHS = {
    "inodes": 8, "kinds": 1, "counters": 1, "sizes": 8, "digests": 16, "durations": 8, "bits": 1, "others": 8,
}  # fmt: skip
"""Bytes per item in each packed column, as the formats of the kinds define them."""


def column(width: int, items: int) -> bytes:
    """A column with a different value for each item."""
    return b"".join(number.to_bytes(width, "little") for number in range(items))


def names(items: int, prefix: str = "n") -> bytes:
    return b"/".join(f"{prefix}{number}".encode() for number in range(items))


def made(kind: type[DivisibleTask], items: int) -> DivisibleTask:
    """A task of the kind, in which the items differ in each column."""
    values: dict[str, Any] = {
        "place": PLACE,
        "names": names(items),
        "attempt": 1,
        "counter": -1,
        "writer": 7,
        "skips_first_side": True,
        "are_directories": True,
        "is_changed": False,
        "is_apart": True,
        "are_simple": False,
        "is_compared": False,
    }
    values |= {field: column(width, items) for field, width in WIDTHS.items()}
    values["temporaries"] = names(items, "t")
    values["marks"] = tuple(b"m%d" % number for number in range(items))
    rows = ItemStatusColumns(items, VERSION_COLUMNS)
    for field in ("inode", "size", "mtime", "ctime"):
        getattr(rows, field)[:] = type(rows.inode)(getattr(rows, field).typecode, range(10, 10 + items))
    values["rows"] = values["versions"] = rows.status_columns_as_bytes()
    return kind(**{field: values[field] for field in kind.fields})


def items_of(task: DivisibleTask) -> list[tuple[object, ...]]:
    """The values of each item, extracted without the code that divides tasks."""
    number = task.names.count(b"/") + 1
    columns: list[list[object]] = [[*task.names.split(b"/")]]
    for field, width in WIDTHS.items():
        if field in task.fields:
            packed = getattr(task, field)
            assert len(packed) == width * number
            columns.append([packed[at : at + width] for at in range(0, len(packed), width)])
    if isinstance(task, RenameCopies):
        columns += [[*task.temporaries.split(b"/")], [*task.marks]]
    if "versions" in task.fields:
        times = struct.unpack(f"{4 * number}q", task.versions)  # type: ignore[attr-defined]
        columns.append([*zip(*(times[at : at + number] for at in range(0, 4 * number, number)), strict=True)])
    if isinstance(task, CopyFiles):
        columns.append([*task.source_status_columns().content_versions()])
    return [*zip(*columns, strict=True)]


DIVISIBLE = [
    *(
        ScanNames,
        ScanSortedNames,
        CopyFiles,
        CopySpecialFiles,
        ReadItems,
        VerifyItems,
        RenameCopies,
        ExamineLayouts,
        WalkDirectories,
        WalkNamesOfLargeDirectory,
    ),
    *(
        ChangeMetadataOfItems,
        ChangeMetadataInDirectories,
        CompareSmallFiles,
        CompareDirs,
        ComparePairs,
        CompareNamedItems,
        RecodeFiles,
        ExamineDirectories,
        ArchiveDirectories,
    ),
]


def test_kinds_of_divisible_tasks() -> None:
    assert {kind for kind in KIND_BY_CODE.values() if issubclass(kind, DivisibleTask)} == set(DIVISIBLE)


@pytest.mark.parametrize("kind", DIVISIBLE)
@pytest.mark.parametrize(("items", "portions"), [(1, 1), (2, 2), (7, 3), (256, 16)])
def test_portions_contain_all_items_of_the_task(kind: type[DivisibleTask], items: int, portions: int) -> None:
    task = made(kind, items)
    assert task.item_count == items
    divided = task.divide(portions)
    assert len(divided) == portions
    assert [item for portion in divided for item in items_of(portion)] == items_of(task)
    assert max(each.item_count for each in divided) - min(each.item_count for each in divided) <= 1
    for portion in divided:
        assert type(portion) is kind
        same = set(kind.fields) - {"names", "rows", "temporaries", "marks", "versions", *WIDTHS}
        assert all(getattr(portion, field) == getattr(task, field) for field in same)


def item_with_names(number: int, names: int) -> Item:
    """An inode whose names alternate between two directories."""
    other = PLACE._replace(path=b"e")
    found = tuple(((PLACE, other)[at % 2], b"n%d-%d" % (number, at)) for at in range(names))
    return Item(1, number, 10 * number, found, 0)


@pytest.mark.parametrize(("items", "portions"), [(1, 1), (2, 2), (7, 3), (40, 16)])
def test_inodes_with_several_names_are_divided(items: int, portions: int) -> None:
    whole = [item_with_names(number, 2 + number % 3) for number in range(items)]
    divided = CopyHardLinkGroups.from_items(whole).divide(portions)
    assert len(divided) == portions
    assert [item for portion in divided for item in portion.unpacked_items()] == whole
    assert sum(portion.item_count for portion in divided) == items


@pytest.mark.parametrize("is_finished", [False, True])
def test_names_of_an_inode_are_divided(is_finished: bool) -> None:
    item, contents = item_with_names(5, 12), ContentInfo(b"f", 50, b"", FileContentVersion(5, 50, 1, 2))
    task = CreateHardLinks(item, ItemCopy(ItemIdentity(3, 9), contents, 0, b""), is_finished)
    assert task.item_count == 11
    divided = task.divide(3)
    assert [name for portion in divided for name in portion.item.names[1:]] == [*item.names[1:]]
    assert [portion.item.names[0] for portion in divided] == [item.names[0]] * 3
    assert [portion.is_first_name_finished for portion in divided] == [is_finished, True, True]
    failed = ((PLACE, b"n5-0", Problem("chmod", 1).problem_as_tuple),)
    assert task._replace(item=item._replace(failed_names=failed)).item_count == 0


def test_names_that_may_exceed_the_link_limit_are_not_divided() -> None:
    """Each of the tasks would make a second copy when it meets the limit."""
    contents = ContentInfo(b"f", 50, b"", FileContentVersion(5, 50, 1, 2))
    copy = ItemCopy(ItemIdentity(3, 9), contents, 0, b"")
    few, many = (CreateHardLinks(item_with_names(5, names), copy, False) for names in (1000, 1001))
    assert (few.item_count, few.estimated_operations) == (999, 1998)
    assert (many.item_count, many.estimated_operations) == (0, 2000)


def test_empty_columns_stay_empty_in_portions() -> None:
    task = made(RenameCopies, 6)._replace(digests=b"")
    assert [getattr(each, "digests", None) for each in task.divide(3)] == [b""] * 3


# The conditions for a division.


def test_quick_task_is_not_divided() -> None:
    paces = ItemDurations()
    assert paces.task_portion_count(1, 256, 4, hungry=True) == min(
        dividing.MAX_PORTIONS, int(256 * DEFAULT_ITEM_SECONDS / MIN_PORTION_SECONDS)
    )
    paces.record_duration(1, 256, 0.010)
    assert paces.task_portion_count(1, 256, 4, hungry=True) == 0
    assert paces.is_too_quick_to_divide(1, 256)
    assert paces.task_portion_count(2, 256, 4, hungry=True) > 1


def test_portions_take_long_enough_and_have_enough_items() -> None:
    paces = ItemDurations()
    paces.record_duration(1, 100, 100 * MIN_PORTION_SECONDS)
    assert paces.task_portion_count(1, 12, 4, hungry=True) == 3
    assert paces.task_portion_count(1, 12, 1, hungry=True) == 12
    assert paces.task_portion_count(1, 12, 1, hungry=False) == int(
        12 * MIN_PORTION_SECONDS / MIN_PORTION_SECONDS_IF_ALL_BUSY
    )
    assert paces.task_portion_count(1, 10_000, 4, hungry=True) == dividing.MAX_PORTIONS


def test_old_measurements_are_forgotten() -> None:
    paces = ItemDurations()
    paces.record_duration(1, 100, 100.0)
    for _ in range(100):
        paces.record_duration(1, 100, 0.001)
    assert paces.is_too_quick_to_divide(1, 256)


@pytest.mark.parametrize(("items", "portions"), [(1, 1), (7, 3), (100, 32)])
def test_portion_slices_cover_all_items(items: int, portions: int) -> None:
    rows = [*range(items)]
    assert [row for at in portion_slices(items, portions) for row in rows[at]] == rows
    assert all(rows[at] for at in portion_slices(items, portions))


def task_of(value: TaskKind, cost: int, expands: bool = False) -> Task:
    return Task((1, 0, 5), 0, encode_task(value), cost, expands, ANY_RANK)


def test_costs_of_portions_add_up_to_that_of_the_task(tmp_path: Path) -> None:
    with surroundings([root_of(tmp_path, tmp_path)], Options(), ranks=2) as (rank, _):
        runner = TaskRunner(rank)
        for expands in (False, True):
            portions = runner.divide(task_of(made(CopyFiles, 100), 64 * MIN_DIVISIBLE_COST + 3, expands), True)
            assert len(portions) > 2
            assert sum(each.cost for each in portions) == 64 * MIN_DIVISIBLE_COST + 3
            assert {(each.phase, each.may_find_work, each.owner) for each in portions} == {(0, expands, ANY_RANK)}
            assert b"/".join(decode_task(each.payload).names for each in portions) == names(100)


def test_cheap_or_indivisible_task_is_not_divided(tmp_path: Path) -> None:
    with surroundings([root_of(tmp_path, tmp_path)], Options(), ranks=2) as (rank, _):
        runner = TaskRunner(rank)
        assert runner.divide(task_of(made(CopyFiles, 100), MIN_DIVISIBLE_COST - 1), True) == []
        assert runner.divide(task_of(ScanDir(0, b"d", ItemIdentity(1, 2), None), 64 * MIN_DIVISIBLE_COST), True) == []


def test_single_rank_divides_nothing(tmp_path: Path) -> None:
    with surroundings([root_of(tmp_path, tmp_path)], Options(), ranks=1) as (rank, _):
        assert TaskRunner(rank).divide(task_of(made(CopyFiles, 100), 64 * MIN_DIVISIBLE_COST), True) == []


@pytest.mark.parametrize("existing", ["replace", "skip", "changed"])
def test_copy_with_all_tasks_divided_is_the_same(tmp_path: Path, existing: str) -> None:
    """Each task of a whole copy is divided into single items before it runs."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    expected = {}
    for number in range(90):
        expected[f"f{number}"] = random.Random(number).randbytes(number)
        (source / f"f{number}").write_bytes(expected[f"f{number}"])
    for number in range(9):
        (source / f"l{number}").symlink_to(f"f{number}")
    options = Options(preserve=PreservedMetadataKinds(), sync=False)
    with surroundings([root_of(source, target)], options, program=CopyOptions(existing)) as (rank, reported):
        runner, phase = TaskRunner(rank), 0
        waiting = [task_of(ScanDir(0, b"", rank.sources[0].identity_of_directory(b""), None), 0, True)]
        ran = []
        while waiting:
            phase = min(each.phase for each in waiting)
            task = next(each for each in waiting if each.phase == phase)
            waiting.remove(task)
            value = decode_task(task.payload)
            if value.item_count > 1:
                waiting += [task._replace(payload=encode_task(each)) for each in value.divide(value.item_count)]
                continue
            ran.append(type(value))
            steps = runner(task)
            try:
                while True:
                    next(steps)
            except StopIteration as end:
                spawned = list(end.value.spawned)
            waiting += [Task((1, 0, 6), *spawn) for spawn in spawned]
        assert reported.failed == []
    assert ran.count(CopyFiles) == 90
    assert ran.count(CopySpecialFiles) == 9
    copied = {each.name: each.read_bytes() for each in target.iterdir() if not each.is_symlink()}
    assert copied == expected
    assert {each.name: str(each.readlink()) for each in target.iterdir() if each.is_symlink()} == {
        f"l{number}": f"f{number}" for number in range(9)
    }


@pytest.mark.parametrize(
    ("age", "size", "copies_files", "have_work", "seconds"),
    [
        (0.0, 2, False, False, 0.001),  # the first call of a rank
        (0.0, 2, False, True, 0.001),
        (0.016, 2, False, True, 0.002),  # an eighth of the time since the rank has begun
        (0.016, 2, True, True, 0.05),
        (0.016, 2, True, False, 0.005),
        (0.016, 1, False, True, 0.05),  # no other rank waits for directories
        (9.0, 2, False, False, 0.005),
        (9.0, 2, False, True, 0.05),
    ],
)
def test_first_calls_are_short_so_that_other_ranks_get_directories(
    monkeypatch: pytest.MonkeyPatch, age: float, size: int, copies_files: bool, have_work: bool, seconds: float
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + age)
    rank = SimpleNamespace(
        backend=SimpleNamespace(runs_in_poll=True), began=1000.0, size=size, all_ranks_have_work=lambda: have_work
    )
    deadline = call_deadline(cast(Rank, rank), copies_files=copies_files)
    assert deadline - (1000.0 + age) == pytest.approx(seconds, abs=1e-9)
