"""The owner of one destination directory plants files there. They must get no names in directories of other users."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.new_file import NewFile, NewLinkOrSpecialFile
from pcopy.fsio.nodes import LinkOrSpecialFile
from pcopy.tasks.files.name_items import RenameLinkedCopy
from tests.support.files import age_directories
from tests.support.users import NOBODY, require_root
from tests.tasks.one_rank import consistent, copy, root_of
from tests.tasks.test_links import Once

SECOND = 10**9


@pytest.fixture
def trees(area: Path) -> tuple[Path, Path]:
    """One file with a name in ``his`` and one in ``ours``, and the directories of a destination."""
    source, target = area / "source", area / "target"
    for tree in source, target:
        for name in ("his", "ours"):
            (tree / name).mkdir(parents=True)
    (source / "his" / "file").write_bytes(b"the content")
    os.link(source / "his" / "file", source / "ours" / "file")
    return source, target


@pytest.mark.parametrize("existing", ["skip", "newer"])
def test_no_temporary_file_is_moved_to_another_directory(trees: tuple[Path, Path], existing: str) -> None:
    source, target = trees

    def plant(task: RenameLinkedCopy) -> None:
        home = target / os.fsdecode(task.item.place.path)
        (home / "part").write_bytes(b"planted")
        (home / "part").rename(home / os.fsdecode(task.unnamed_copy.temporary))
        (home / "file").write_bytes(b"a name that is taken")

    once = Once(RenameLinkedCopy, plant)
    consistent(copy(root_of(source, target), before=once, existing=existing))
    home = os.fsdecode(once.value.item.place.path)
    other = "ours" if home == "his" else "his"
    assert (target / home / "file").read_bytes() == b"a name that is taken"
    assert (target / other / "file").read_bytes() == b"the content"


@pytest.mark.parametrize("options", [{"existing": "changed"}, {"existing": "changed", "checksum": True}])
@pytest.mark.parametrize("planted", ["owner", "mode", "nothing"])
def test_kept_file_writable_by_others_gets_no_hard_links(
    trees: tuple[Path, Path], planted: str, options: dict[str, Any]
) -> None:
    require_root("give files away")
    source, target = trees
    kept = target / "his" / "file"
    kept.write_bytes(b"the content")
    os.utime(kept, ns=(SECOND, (source / "his" / "file").stat().st_mtime_ns))
    if planted == "owner":
        os.chown(kept, NOBODY, NOBODY)
    elif planted == "mode":
        kept.chmod(0o666)
    inode = kept.stat().st_ino
    age_directories(target)
    totals = consistent(copy(root_of(source, target), **options))
    is_mended = planted != "nothing" and "checksum" not in options
    assert totals.skipped == (not is_mended), "where its owner or mode is to be another, it is copied anew"
    assert (target / "ours" / "file").read_bytes() == b"the content"
    assert ((target / "ours" / "file").stat().st_ino == inode) == (planted == "nothing")
    assert kept.samefile(target / "ours" / "file") == (planted == "nothing" or is_mended)


def test_fifo_is_identified_by_the_created_inode(trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not identified by the item that has its name a moment later."""
    source, target = trees
    for name in ("his", "ours"):
        (source / name / "file").unlink()
    os.mkfifo(source / "his" / "file", 0o600)
    os.link(source / "his" / "file", source / "ours" / "file")
    real = NewLinkOrSpecialFile.create_link_or_special_file
    swaps: list[Callable[[], None]] = []

    def noted(directory: int, name: bytes, node: LinkOrSpecialFile, *, is_temporary: bool) -> NewLinkOrSpecialFile:
        def swap() -> None:
            os.unlink(name, dir_fd=directory)
            os.mkfifo(name, 0o666, dir_fd=directory)

        swaps.append(swap)
        return real(directory, name, node, is_temporary=is_temporary)

    def keep_and_swap(new: NewLinkOrSpecialFile) -> None:
        NewFile.close_without_removing(new)
        if len(swaps) == 1:
            swaps[0]()

    monkeypatch.setattr(NewLinkOrSpecialFile, "create_link_or_special_file", noted)
    monkeypatch.setattr(NewLinkOrSpecialFile, "close_without_removing", keep_and_swap)
    copied = copy(root_of(source, target), existing="skip")
    inodes = {path.stat().st_ino: path for path in target.glob("*/file")}
    assert len(inodes) == len(list(target.glob("*/file")))  # the planted item stays where it is and has one name
    assert copied.totals.failed <= 1
