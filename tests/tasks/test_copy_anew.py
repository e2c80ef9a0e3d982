"""An item of any type that the job has named and must create again is removed, unless it was modified since."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pcopy.engine.task import Task
from pcopy.fsio.identity import identity_mark_of
from pcopy.fsio.nodes import open_o_path_descriptor
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import CopyOptions, Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.values import Item, Place, UnnamedCopy
from pcopy.tasks.links.copy_anew import ReplaceIncompleteCopy
from pcopy.tasks.runner import TaskRunner
from tests.tasks.one_rank import root_of, surroundings
from tests.tasks.test_verify_links import run

MAKE: dict[str, tuple[Callable[[Path], object], int]] = {
    "file": (lambda path: path.write_bytes(b"contents"), 8),
    "symlink": (lambda path: path.symlink_to("somewhere"), 0),
    "fifo": (os.mkfifo, 0),
}
"""How the item is created, and the size that tasks record: only a file has one."""


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("touched", [False, True])
def test_named_item_is_removed_unless_it_was_modified(area: Path, kind: str, touched: bool) -> None:
    for name in ("source", "target"):
        (area / name).mkdir()
    copy = area / "target/name"
    make, size = MAKE[kind]
    make(copy)
    roots, program = [root_of(area / "source", area / "target")], CopyOptions("skip")
    with surroundings(roots, Options(PreservedMetadataKinds()), program=program) as (context, _):
        place = Place(
            0,
            b"",
            context.sources[0].identity_of_directory(b""),
            context.targets[0].identity_of_directory(b""),
            False,
            False,
        )
        held = open_o_path_descriptor(context.open_target_directory(place), b"name", on_source=False)
        item = UnnamedCopy(b"name", copy.lstat().st_ino, identity_mark_of(held, created_by_job=True))
        os.close(held)
        known = size, copy.lstat().st_mtime_ns
        if touched:
            os.utime(copy, follow_symlinks=False)
        group = Item(0, 1, size, ((place, b"name"),), 1)
        task = ReplaceIncompleteCopy(group, item.inode, item.mark, known, has_metadata=True)
        outcome = run(TaskRunner(context), Task((1, 0, 1), int(Phase.COPY), encode_task(task), 0))
    assert os.path.lexists(copy) == touched
    assert len(tuple(outcome.spawned)) == 1  # its name is examined again
