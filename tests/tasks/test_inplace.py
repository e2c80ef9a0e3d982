"""Files written in place, with changes before a chunk, before the end, and at an early stop."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pcopy.engine.task import Task
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.job import CopyOptions, Options
from pcopy.tasks.base.values import Item, Place
from pcopy.tasks.files.chunk_ledger import ChunkLedger, LargeFileOpenedNote, remove_all_temporary_files
from pcopy.tasks.files.copy_chunk import CopyChunk
from pcopy.tasks.files.finish_file import FinishFile
from pcopy.tasks.files.split_file import SplitFile
from pcopy.tasks.runner import TaskRunner
from tests.support.users import NOBODY, require_root
from tests.tasks.one_rank import consistent, copy, once, root_of, surroundings

SIZE = 12 << 20
BLOCK = 4 << 20
OVER: dict[str, Any] = {"ranks": 4, "chunk_size": BLOCK, "block_size": BLOCK, "inplace": True}
THEN = 1_600_000_000 * 10**9


@pytest.fixture
def places(area: Path) -> tuple[Path, Path]:
    """A source with one large file, and a target in which it exists already."""
    source, target = area / "source", area / "target"
    source.mkdir()
    target.mkdir()
    (source / "large").write_bytes(os.urandom(SIZE))
    (source / "large").chmod(0o644)
    (target / "large").write_bytes(b"old")
    os.utime(target / "large", ns=(THEN, THEN))
    return source, target


def at_each(kind: type[Any], action: Any) -> Any:
    def before(value: Any) -> None:
        if isinstance(value, kind):
            action()

    return before


@pytest.mark.parametrize("ranks", [1, 4])
def test_file_named_last_without_mark_gets_no_unmark_task(places: tuple[Path, Path], ranks: int) -> None:
    source, target = places
    (target / "large").unlink()
    copied = copy(root_of(source, target), existing="skip", ranks=ranks, chunk_size=BLOCK, block_size=BLOCK)
    assert consistent(copied).files == 1
    assert "Unmark" not in copied.kinds


@pytest.mark.parametrize("kind", [CopyChunk, FinishFile])
def test_file_written_in_place_is_private_until_finished(places: tuple[Path, Path], kind: type[Any]) -> None:
    source, target = places
    modes: set[int] = set()
    (target / "large").chmod(0o666)
    look = at_each(kind, lambda: modes.add(stat.S_IMODE((target / "large").stat().st_mode)))
    totals = consistent(copy(root_of(source, target), before=look, **OVER))
    assert (totals.files, modes) == (1, {0o600})
    assert stat.S_IMODE((target / "large").stat().st_mode) == 0o644
    assert os.listdir(target) == ["large"]


@pytest.mark.parametrize("kind", [CopyChunk, FinishFile])
def test_owner_and_mode_that_are_not_preserved_are_restored(places: tuple[Path, Path], kind: type[Any]) -> None:
    """During the copy only the job's user may access the file; the mark records its previous owner and mode."""
    require_root("give files away")
    source, target = places
    os.chown(target / "large", NOBODY, 1)
    (target / "large").chmod(0o6751)
    found: set[tuple[int, int, int]] = set()

    def look(value: Any) -> None:
        if isinstance(value, kind):
            status = (target / "large").stat()
            found.add((status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)))

    preserve = PreservedMetadataKinds(mode=False, ownership=False)
    totals = consistent(copy(root_of(source, target), before=look, preserve=preserve, **OVER))
    assert (totals.files, found) == (1, {(0, 0, 0o600)})
    assert ((target / "large").stat().st_uid, (target / "large").stat().st_gid) == (NOBODY, 1)
    assert stat.S_IMODE((target / "large").stat().st_mode) == 0o6751
    assert (target / "large").read_bytes() == (source / "large").read_bytes()


@pytest.mark.parametrize("kind", [CopyChunk, FinishFile])
def test_changed_source_is_copied_in_place_again(places: tuple[Path, Path], kind: type[Any]) -> None:
    source, target = places
    inode = (target / "large").stat().st_ino
    totals = consistent(
        copy(root_of(source, target), before=once(kind, lambda: (source / "large").write_bytes(b"new")), **OVER)
    )
    assert (totals.files, totals.failed) == (1, 0)
    assert (target / "large").read_bytes() == b"new"
    assert (target / "large").stat().st_ino == inode


@pytest.mark.parametrize("kind", [CopyChunk, FinishFile])
def test_constantly_changing_source_leaves_target_incomplete(places: tuple[Path, Path], kind: type[Any]) -> None:
    source, target = places
    copied = copy(root_of(source, target), before=at_each(kind, lambda: os.utime(source / "large")), **OVER)
    totals = consistent(copied)
    assert (totals.files, totals.failed, totals.changed) == (0, 1, 1)
    assert copied.failures[0].message.endswith("; the file in the destination is incomplete")
    status = (target / "large").stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_mtime_ns > THEN


@pytest.mark.parametrize("kind", [CopyChunk, FinishFile])
@pytest.mark.parametrize("how", ["another file", "another link", "a symbolic link"])
def test_item_swapped_for_the_target_is_not_written(
    places: tuple[Path, Path], area: Path, kind: type[Any], how: str
) -> None:
    """In a directory of an attacker the name may be given to another item."""
    source, target = places
    precious = area / "precious"
    precious.write_bytes(b"precious")

    def swap() -> None:
        if how == "another link":
            os.link(target / "large", area / "second-name")
            return
        (target / "large").rename(area / "away")
        if how == "another file":
            precious.rename(target / "large")
        else:
            (target / "large").symlink_to(precious)

    totals = consistent(copied := copy(root_of(source, target), before=once(kind, swap), **OVER))
    assert totals.failed == 1, copied.failures
    if how == "another file":
        assert (target / "large").read_bytes() == b"precious"
    elif how == "a symbolic link":
        assert precious.read_bytes() == b"precious"


def test_early_stop_keeps_the_file_written_in_place(places: tuple[Path, Path]) -> None:
    """The unfinished file is not removed: it belongs to the user."""
    source, target = places
    options, program = Options(sync=False, block_size=BLOCK), CopyOptions(chunk_size=BLOCK, inplace=True)
    with surroundings([root_of(source, target)], options, ranks=4, program=program) as (context, _):
        here = context.sources[0].identity_of_directory(b""), context.targets[0].identity_of_directory(b"")
        status = (source / "large").stat()
        place = Place(0, b"", *here, False, False)
        task = SplitFile(Item(here[0][0], status.st_ino, SIZE, ((place, b"large"),), 0))
        run = TaskRunner(context)
        steps = run(Task((0, 0, 1), 0, encode_task(task), 0))
        with pytest.raises(StopIteration) as end:
            while True:
                next(steps)
        for spawn in end.value.value.spawned:
            if isinstance(decode_task(spawn.payload), LargeFileOpenedNote):
                list(run(Task((0, 0, 2), 0, spawn.payload, 0)))
        assert len(context.shared_instance(ChunkLedger).awaited) == 1
        remove_all_temporary_files(context)
    assert os.listdir(target) == ["large"]
    assert stat.S_IMODE((target / "large").stat().st_mode) == 0o600
