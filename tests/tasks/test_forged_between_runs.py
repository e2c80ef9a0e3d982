"""A resumed job finds items that another user has created since, with the inode numbers of recorded items."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pcopy.engine.task import Task
from pcopy.fsio.backend.columns import VERSION_COLUMNS, ItemStatusColumns
from pcopy.fsio.identity import ItemIdentity, identity_of_open_item
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.source import FileContentVersion
from pcopy.fsio.temporary import TemporaryNameGenerator
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.job import Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import ChunkedFile, ContentInfo, Item, ItemCopy, Place
from pcopy.tasks.directories.finish_dir import FinishDir
from pcopy.tasks.files.copy_files import CopyFiles
from pcopy.tasks.files.finish_file import FinishFile
from pcopy.tasks.links.link_group import CopyHardLinkGroup
from pcopy.tasks.links.make_links import CreateHardLinks
from pcopy.tasks.runner import TaskRunner
from tests.support import filesystems
from tests.support.attributes import DEFAULT_ACL, acl
from tests.support.users import NOBODY, as_user, require_root
from tests.tasks.one_rank import root_of, surroundings
from tests.tasks.test_verify_links import run

MIB = 1 << 20
OPEN_TO_ALL = acl(7, 7, 7, {NOBODY: 7})


@pytest.fixture
def places(on: filesystems.Place) -> Iterator[tuple[Path, Path]]:
    """A source, and a target directory of another user, on a file system that reuses inode numbers immediately."""
    require_root("be attacked by an ordinary user")
    there = on("ext4")
    for name in ("source", "target"):
        (there / name).mkdir()
    os.chown(there / "target", NOBODY, NOBODY)
    umask = os.umask(0o077)  # as the programs do
    yield there / "source", there / "target"
    os.umask(umask)


def resumed(context: Rank) -> None:
    context.job = context.job._replace(run=2)


def place_of(context: Rank, path: bytes = b"", *, reported: bool = True) -> Place:
    source, target = context.sources[0].identity_of_directory(path), context.targets[0].identity_of_directory(path)
    return Place(0, path, source, target if reported else target._replace(mark=b""), True, False)


def remade(path: Path, make: Callable[[Path], object], remove: Callable[[Path], object]) -> None:
    """An item of the other user with the same inode number. Other items occupy the numbers in between."""
    number = path.stat().st_ino

    def again() -> None:
        remove(path)
        for attempt in range(100):
            trial = path.with_name(f"try-{attempt}")
            make(trial)
            if trial.stat().st_ino == number:
                trial.rename(path)
                return
        raise AssertionError("the inode's number was never used again")

    as_user(again)
    assert path.stat().st_ino == number


def forged(path: Path) -> None:
    path.write_bytes(b"#!/bin/sh\n")
    os.truncate(path, MIB)


@pytest.mark.parametrize("attacked", [False, True])
def test_set_id_program_renamed_before_it_was_recorded_is_not_trusted(
    places: tuple[Path, Path], attacked: bool
) -> None:
    source, target = places
    program, copy = source / "program", target / "program"
    program.write_bytes(os.urandom(MIB))
    program.chmod(0o4755)
    status = program.stat()
    copy.write_bytes(program.read_bytes())  # complete, and the power failed before its metadata was applied
    copy.chmod(0o600)
    with surroundings([root_of(source, target)], Options(PreservedMetadataKinds())) as (context, _):
        resumed(context)
        place = place_of(context)
        with open(copy, "rb") as file:
            made = identity_of_open_item(file.fileno(), os.fstat(file.fileno()), 0, created_by_job=True)
        if attacked:
            remade(copy, forged, Path.unlink)
        item = Item(0, status.st_ino, MIB, ((place, b"program"),), 0)
        opened = ChunkedFile(
            item, FileContentVersion.from_status(status), TemporaryNameGenerator("test", 1, 0).next_name(), made
        )
        task = encode_task(FinishFile(opened, b"", MIB, b"\0"))
        outcome = run(TaskRunner(context), Task((1, 0, 1), int(Phase.COPY), task, 0))
    again = bool(outcome.spawned)
    owner, mode = copy.stat().st_uid, copy.stat().st_mode & 0o7777
    if attacked:
        assert (owner, mode & 0o6000, again) == (NOBODY, 0, True)
    else:
        assert (owner, mode, again) == (0, 0o4755, False)


@pytest.mark.parametrize("reported", [True, False], ids=["reported", "unreported"])
def test_recreated_directory_with_a_default_acl_exposes_no_file(places: tuple[Path, Path], reported: bool) -> None:
    """If identities cannot be checked, no file gets an ACL that grants access to others."""
    source, target = places
    (source / "directory").mkdir()
    private = source / "directory" / "private"
    private.write_bytes(b"secret")
    private.chmod(0o600)
    (target / "directory").mkdir(mode=0o700)
    with surroundings([root_of(source, target)], Options(PreservedMetadataKinds())) as (context, sink):
        resumed(context)
        place = place_of(context, b"directory", reported=reported)
        context.targets[0].close()

        def make(path: Path) -> None:
            path.mkdir()
            os.setxattr(path, DEFAULT_ACL, OPEN_TO_ALL)
            path.chmod(0o777)

        remade(target / "directory", make, Path.rmdir)
        task = encode_task(
            CopyFiles(
                place,
                b"private",
                ItemStatusColumns.from_statuses([private.stat()], VERSION_COLUMNS).status_columns_as_bytes(),
                0,
            )
        )
        run(TaskRunner(context), Task((1, 0, 1), int(Phase.COPY), task, 0))
    made = list((target / "directory").iterdir())
    assert len(made) == (not reported), sink.failed
    assert not any(acls_of(path) for path in made)


def test_acls_added_to_own_directory_between_runs_are_removed(places: tuple[Path, Path]) -> None:
    """For example by a restore. A record that the directory has no ACL is older than these ACLs."""
    source, target = places
    for tree in places:
        (tree / "directory").mkdir(mode=0o700)
    (source / "directory" / "file").write_bytes(b"content")
    os.setxattr(target / "directory", DEFAULT_ACL, OPEN_TO_ALL)
    status = (source / "directory" / "file").stat()
    with surroundings([root_of(source, target)], Options(PreservedMetadataKinds())) as (context, _):
        resumed(context)
        place = place_of(context, b"directory")
        tasks = (
            CopyFiles(
                place, b"file", ItemStatusColumns.from_statuses([status], VERSION_COLUMNS).status_columns_as_bytes(), 0
            ),
            FinishDir(place, None, True, -1),
        )
        for number, task in enumerate(tasks):
            run(TaskRunner(context), Task((1, 0, number), int(Phase.COPY), encode_task(task), 0))
    assert (target / "directory" / "file").read_bytes() == b"content"
    assert acls_of(target / "directory") == acls_of(target / "directory" / "file") == []


@pytest.mark.parametrize("owner", [0, NOBODY])
def test_names_are_copied_not_linked_if_identity_is_unknown(places: tuple[Path, Path], owner: int) -> None:
    """Except in a directory that no other user may write to."""
    source, target = places
    os.chown(target, owner, owner)
    for path in (source / "one", target / "one"):
        path.write_bytes(b"one")
    os.link(source / "one", source / "two")
    inode = (source / "one").stat().st_ino
    with surroundings([root_of(source, target)], Options(PreservedMetadataKinds())) as (context, _):
        place = place_of(context)
        made = ItemIdentity(place.target_id.mount_code, (target / "one").stat().st_ino)
        group = Item(0, inode, 3, ((place, b"one"), (place, b"two")), 0)
        task = CreateHardLinks(
            group, ItemCopy(made, ContentInfo(b"f", 3, b"", FileContentVersion(inode, 3, 0, 0)), 0, b"\0"), False
        )
        outcome = run(TaskRunner(context), Task((1, 0, 1), int(Phase.LINK), encode_task(task), 0))
    spawned = [decode_task(spawn.payload) for spawn in outcome.spawned]
    again = [value.item.names for value in spawned if isinstance(value, CopyHardLinkGroup)]
    assert again == ([((place, b"two"),)] if owner else [])
    assert (target / "two").exists() == (not owner)


def acls_of(path: Path) -> list[str]:
    return [name for name in os.listxattr(path) if "acl" in name]
