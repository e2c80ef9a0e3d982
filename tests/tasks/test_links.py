"""Hard links whose first name cannot be copied, keeps changing, or exists in the target already."""

from __future__ import annotations

import os
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from pcopy.engine.task import NewTask, Task
from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ListNamesResult
from pcopy.fsio.backend.columns import BatchOutcomeColumns, OutcomeCode, pack_names
from pcopy.fsio.backend.interface import FileOperationBackend
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.source import FileContentVersion
from pcopy.signature.items import FILE
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.job import Options
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import (
    REPAIR_ATTEMPT,
    ContentInfo,
    Item,
    ItemCopy,
    Place,
    inode_bucket_number,
    pack_numbers,
)
from pcopy.tasks.directories import scan_dir
from pcopy.tasks.files.split_file import SplitFile
from pcopy.tasks.links import link_group, link_groups
from pcopy.tasks.links.group_links import GatherHardLinks, HardLinkNamesNote, InodeCopiedNote
from pcopy.tasks.links.link_group import CopyHardLinkGroup
from pcopy.tasks.links.make_links import CreateHardLinks
from pcopy.tasks.runner import TaskRunner
from pcopy.walk import listing
from tests.tasks.one_rank import consistent, copy, outcome, root_of, surroundings

NAMES = ("a", "b", "c")


@pytest.fixture
def source(area: Path) -> Path:
    """One inode with three names."""
    path = area / "source"
    path.mkdir()
    (path / "a").write_bytes(b"the content")
    for name in NAMES[1:]:
        os.link(path / "a", path / name)
    return path


@pytest.fixture
def target(area: Path) -> Path:
    path = area / "target"
    path.mkdir()
    return path


class Once:
    """A hook that calls ``action`` before the first task of a kind."""

    def __init__(self, kind: type[Any], action: Any) -> None:
        self._kind, self._action = kind, action
        self.value: Any = None

    def __call__(self, value: Any) -> None:
        if self.value is None and isinstance(value, self._kind):
            self.value = value
            self._action(value)


def names_of_one_inode(directory: Path) -> list[set[str]]:
    groups: dict[int, set[str]] = {}
    for path in directory.iterdir():
        groups.setdefault(path.lstat().st_ino, set()).add(path.name)
    return sorted(groups.values(), key=sorted)


def test_more_link_notes_than_fit_into_one_backlog_frame(area: Path, target: Path) -> None:
    """One note per directory, all in one bucket. Frames are written as primitives."""
    directories = [area / "source" / str(number) for number in range(300)]
    for directory in directories:
        directory.mkdir(parents=True)
    (directories[0] / "name").write_bytes(b"the content")
    for directory in directories[1:]:
        os.link(directories[0] / "name", directory / "name")
    totals = consistent(copied := copy(root_of(area / "source", target)))
    assert copied.failures == []
    assert (totals.files, totals.hardlinks) == (1, 299)
    assert len({path.lstat().st_ino for path in target.glob("*/name")}) == 1


@pytest.mark.parametrize("is_existing", [False, True])
@pytest.mark.parametrize("has_plenty", [False, True])
def test_slow_task_leaves_inodes_to_idle_ranks(
    is_existing: bool, has_plenty: bool, area: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a task is over at once. Then each inode, or the links to each copy, become a task."""
    monkeypatch.setattr(link_groups, "MAX_TASK_SECONDS", -1)
    for side in (area / "source", *([target] if is_existing else [])):
        (side / "one").mkdir(parents=True)
        (side / "two").mkdir()
    for number in range(30):
        (area / "source" / "one" / f"{number}").write_bytes(b"the content %d" % number)
        os.link(area / "source" / "one" / f"{number}", area / "source" / "two" / f"{number}")
    totals = consistent(copied := copy(root_of(area / "source", target), ranks=2, has_plenty=has_plenty))
    assert copied.failures == []
    assert (totals.files, totals.hardlinks) == (30, 30)
    for number in range(30):
        assert (target / "one" / f"{number}").samefile(target / "two" / f"{number}")
        assert (target / "one" / f"{number}").read_bytes() == b"the content %d" % number
    buckets = Counter(inode_bucket_number(path.stat().st_ino) for path in (area / "source" / "one").iterdir())
    tasks = copied.kinds.count("CopyHardLinkGroups") + copied.kinds.count("CopyHardLinkGroup")
    assert tasks == (30 if is_existing and not has_plenty else len(buckets))
    # A task of one inode alone, such as the last one of a bucket, creates the link itself.
    alone = len(buckets) if is_existing else [*buckets.values()].count(1)
    assert copied.kinds.count("CreateHardLinks") == (0 if has_plenty else 30 - alone)


def test_inode_that_changes_once_keeps_its_names_linked(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = touch_while_reading(monkeypatch, source / "a", times=1)
    totals = consistent(copied := copy(root_of(source, target)))
    assert touched() == 1
    assert copied.failures == []
    assert names_of_one_inode(target) == [set(NAMES)]
    assert (totals.files, totals.hardlinks, totals.found_bytes) == (1, 2, 11)


def test_an_inode_that_never_stops_changing_fails(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch_while_reading(monkeypatch, source / "a", times=10**6)
    totals = consistent(copied := copy(root_of(source, target), limit=200))
    assert (totals.failed, totals.changed) == (3, 3)
    assert len(copied.failures) == 3
    assert list(target.iterdir()) == []


def test_last_name_of_a_changing_inode_fails_after_some_attempts(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other names are outside the tree, so that it forms its own group each time it is found."""
    for name in NAMES[1:]:
        (source / name).rename(source.parent / name)
    touch_while_reading(monkeypatch, source / "a", times=10**6)
    totals = consistent(copy(root_of(source, target), limit=200))
    assert (totals.failed, totals.changed, totals.found_bytes) == (1, 1, 11)


def touch_while_reading(monkeypatch: pytest.MonkeyPatch, path: Path, times: int) -> Any:
    """Change the times of the file whenever its attributes are read: after its contents are read and before the
    check.
    """
    done = 0
    real = os.listxattr

    def listxattr(handle: Any) -> list[str]:
        nonlocal done
        if done < times and isinstance(handle, int) and os.fstat(handle).st_ino == path.stat().st_ino:
            done += 1
            os.utime(path, ns=(done, done))
        return real(handle)

    monkeypatch.setattr(os, "listxattr", listxattr)
    return lambda: done


def test_next_name_is_copied_if_the_first_vanished(source: Path, target: Path) -> None:
    hook = Once(CopyHardLinkGroup, lambda group: (source / os.fsdecode(group.item.names[0][1])).unlink())
    totals = consistent(copy(root_of(source, target), before=hook))
    assert (totals.files, totals.hardlinks, totals.failed, totals.vanished) == (1, 1, 1, 1)
    assert [len(group) for group in names_of_one_inode(target)] == [2]


def test_first_name_that_became_another_file_is_copied_separately(source: Path, target: Path) -> None:
    def replace(group: CopyHardLinkGroup) -> None:
        path = source / os.fsdecode(group.item.names[0][1])
        path.unlink()
        path.write_bytes(b"another")

    hook = Once(CopyHardLinkGroup, replace)
    totals = consistent(copy(root_of(source, target), before=hook))
    first = os.fsdecode(hook.value.item.names[0][1])
    assert (totals.files, totals.hardlinks, totals.failed) == (2, 1, 0)
    assert names_of_one_inode(target) == sorted([{first}, set(NAMES) - {first}], key=sorted)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        name: b"another" if name == first else b"the content" for name in NAMES
    }


@pytest.mark.parametrize("kind", ["file", "symlink", "directory", "fifo"])
@pytest.mark.parametrize("taken", NAMES)
def test_hard_links_are_not_made_to_a_skipped_item(source: Path, target: Path, kind: str, taken: str) -> None:
    """With ``skip`` every existing item stays; the other names get the contents of the source, not of that item."""
    there = target / taken
    if kind == "file":
        there.write_bytes(b"something else, and longer")
    elif kind == "symlink":
        there.symlink_to("/etc/hostname")
    elif kind == "directory":
        there.mkdir()
    else:
        os.mkfifo(there)
    before = there.lstat()
    totals = consistent(copied := copy(root_of(source, target), existing="skip"))
    assert copied.failures == []
    assert (totals.skipped, totals.files, totals.hardlinks) == (1, 1, 1)
    assert (there.lstat().st_ino, there.lstat().st_mode) == (before.st_ino, before.st_mode)
    others = [target / name for name in NAMES if name != taken]
    assert {path.read_bytes() for path in others} == {b"the content"}
    assert len({path.lstat().st_ino for path in others}) == 1


def test_other_names_of_a_skipped_file_are_linked_or_copied(source: Path, target: Path) -> None:
    consistent(copy(root_of(source, target)))
    for name in NAMES[1:]:
        (target / name).unlink()
    totals = consistent(copy(root_of(source, target), existing="skip"))
    assert (totals.skipped, totals.hardlinks + totals.files) == (1, 2)
    assert {path.read_bytes() for path in target.iterdir()} == {b"the content"}


def test_unchanged_first_name_gets_the_other_links(source: Path, target: Path) -> None:
    consistent(copy(root_of(source, target)))
    kept = next(name for name in NAMES if (target / name).exists())
    for name in NAMES:
        if name != kept:
            (target / name).unlink()
    totals = consistent(copy(root_of(source, target), existing="changed"))
    assert totals.failed == 0
    assert {path.read_bytes() for path in target.iterdir()} == {b"the content"}


def test_names_beyond_the_link_limit_get_their_own_copy(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EMLINK: each inode can have only two names."""
    real = os.link

    def link(old: Any, new: Any, *, dst_dir_fd: int, follow_symlinks: bool) -> None:
        if os.stat(old).st_nlink >= 2:
            raise OSError(31, "Too many links")
        real(old, new, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)

    for number in range(4):
        os.link(source / "a", source / f"n{number}")
    monkeypatch.setattr(os, "link", link)
    totals = consistent(copy(root_of(source, target)))
    assert (totals.files, totals.hardlinks, totals.failed) == (4, 3, 0)
    assert {path.read_bytes() for path in target.iterdir()} == {b"the content"}
    assert totals.warnings == 3


def test_names_in_several_roots_become_one_inode(area: Path) -> None:
    first, second = area / "one", area / "two"
    targets = area / "target-one", area / "target-two"
    for path in (first, second, *targets):
        path.mkdir()
    (first / "name").write_bytes(b"shared")
    os.link(first / "name", second / "other")
    totals = consistent(copy(root_of(first, targets[0]), root_of(second, targets[1])))
    assert (totals.files, totals.hardlinks) == (1, 1)
    assert (targets[0] / "name").stat().st_ino == (targets[1] / "other").stat().st_ino


def test_replaced_copy_is_not_linked(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user replaces the first name by another file: the links would refer to that."""
    link = CreateHardLinks.run

    def swap(task: CreateHardLinks, rank: Rank, result: TaskResult) -> TaskSteps:
        path = target / os.fsdecode(task.item.names[0][1])
        path.unlink()
        path.write_bytes(b"planted")
        return link(task, rank, result)

    monkeypatch.setattr(CreateHardLinks, "run", swap)
    totals = consistent(copied := copy(root_of(source, target)))
    assert totals.failed == 2
    assert {failure.operation for failure in copied.failures} == {"link"}


@pytest.mark.parametrize("found", list(permutations((b"a", b"b", b"c"))), ids=lambda names: b"".join(names).decode())
@pytest.mark.parametrize(
    ("existing", "together"),
    [("newer", [{"a", "c"}, {"b"}]), ("skip", [{"a"}, {"b"}, {"c"}]), ("changed", [{"a", "b", "c"}])],
)
def test_skipped_names_do_not_depend_on_the_order_of_discovery(
    source: Path,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    existing: str,
    together: list[set[str]],
    found: tuple[bytes, ...],
) -> None:
    """The first name in path order is missing, the second is equal to the source, and the third is older."""
    copy_of(source / "a", target / "b")
    (target / "c").write_bytes(b"old")
    os.utime(target / "c", (1, 1))
    listed = ListNamesResult(BatchOutcomeColumns(1), b"/".join(found), len(found))
    listed.verdicts.codes[0] = OutcomeCode.DONE

    def begin_list(backend: FileOperationBackend, directory: int) -> TicketGenerator[listing.DirectoryListing]:
        yield None
        return listing.DirectoryListing(backend, listed)

    monkeypatch.setattr(scan_dir, "list_directory", begin_list)
    consistent(copy(root_of(source, target), existing=existing))
    assert names_of_one_inode(target) == together


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("existing", ["skip", "newer", "fail"])
def test_existing_names_of_one_inode_take_one_task(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, existing: str, is_large: bool
) -> None:
    """One task per name, each with all following names, took hours for the maximum number of names of an inode."""
    if is_large:
        monkeypatch.setattr(link_group, "MAX_SMALL_FILE_BYTES", 1)
    for number in range(50):
        os.link(source / "a", source / f"more{number}")
    for path in source.iterdir():
        copy_of(source / "a", target / path.name)
    groups: list[int] = []

    def note(value: Any) -> None:
        if isinstance(value, CopyHardLinkGroup | SplitFile):
            groups.append(len(value.item.names) if isinstance(value, CopyHardLinkGroup) else 0)

    totals = consistent(copied := copy(root_of(source, target), before=note, existing=existing))
    fails = existing == "fail"
    assert [failure.operation for failure in copied.failures] == ["create"] * (53 if fails else 0)
    assert (totals.skipped, totals.files, totals.hardlinks) == (0 if fails else 53, 0, 0)
    assert groups == [53]


def copy_of(path: Path, other: Path) -> None:
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))


@pytest.mark.parametrize("copied_first", [True, False])
@pytest.mark.parametrize(("found", "made_by"), [((b"a", b"b"), CopyHardLinkGroup), ((b"b", b"c"), CreateHardLinks)])
def test_repaired_name_is_not_linked_to_the_unverified_copy(
    source: Path, target: Path, found: tuple[bytes, bytes], made_by: type[Any], copied_first: bool
) -> None:
    """A job resumed in the phase REPAIR processes two kinds of notes again: copied inodes, and names that were found.

    Some names have to be repaired; others were found late and become links.
    """
    (target / "a").write_bytes(b"THE CONTENT")
    there, inode = (target / "a").stat(), (source / "a").stat().st_ino
    with surroundings([root_of(source, target)], Options(preserve=PreservedMetadataKinds(), sync=False)) as (rank, _):
        place = Place(
            0, b"", rank.sources[0].identity_of_directory(b""), rank.targets[0].identity_of_directory(b""), False, False
        )
        known = ContentInfo(FILE, 11, b"", FileContentVersion(inode, 11, 0, 0))
        item = Item(place.source_id.mount_code, inode, 11, ((place, b"a"),), 0)
        made = ItemCopy(ItemIdentity(place.target_id.mount_code, there.st_ino), known, 0, b"\0")
        mounts, inodes, sizes = (pack_numbers([number] * 2) for number in (item.mount, inode, 11))
        names = HardLinkNamesNote(
            place, pack_names(found), mounts, inodes, sizes, REPAIR_ATTEMPT, inode_bucket_number(inode)
        )
        notes = [(InodeCopiedNote(item, made), Phase.REPAIR), (names, Phase.REPAIR)]
        queue = [NewTask(int(phase), encode_task(note), 0) for note, phase in (notes if copied_first else notes[::-1])]
        run, kinds = TaskRunner(rank), []
        while queue:
            spawn = queue.pop(0)
            kinds.append(type(decode_task(spawn.payload)))
            if kinds[-1] in (HardLinkNamesNote, InodeCopiedNote, GatherHardLinks):
                queue += outcome(run, Task((0, 0, len(kinds)), spawn.phase, spawn.payload, 0)).spawned
        assert {CopyHardLinkGroup, CreateHardLinks} & {*kinds} == {made_by}
