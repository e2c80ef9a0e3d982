"""Changes of owners and modes of existing items, in every backend."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.batches import UNCHANGED_VALUE, SetMetadataBatch, SetUniformMetadataBatch
from pcopy.fsio.backend.columns import (
    GROUP_COLUMN,
    INODE_COLUMN,
    MODE_COLUMN,
    OWNER_COLUMN,
    ItemStatusColumns,
    OutcomeCode,
)
from tests.fsio.backend_bench import BACKENDS
from tests.fsio.test_backend_items import Items, codes, packed
from tests.support.users import NOBODY, as_user, require_root


@pytest.fixture(params=BACKENDS)
def items(request: pytest.FixtureRequest, on: Any) -> Items:
    return Items(BACKENDS[request.param], on("tmpfs"))


def wanted(
    rows: int, mode: int = UNCHANGED_VALUE, uid: int = UNCHANGED_VALUE, gid: int = UNCHANGED_VALUE
) -> ItemStatusColumns:
    made = ItemStatusColumns(rows, MODE_COLUMN | OWNER_COLUMN | GROUP_COLUMN)
    made.mode, made.uid, made.gid = (array("I", [each]) * rows for each in (mode, uid, gid))
    return made


def owner(path: Path) -> tuple[int, int]:
    return path.lstat().st_uid, path.lstat().st_gid


def test_modes_and_owners_are_set(items: Items) -> None:
    require_root("give files away")
    names = ["file", "directory", "fifo"]
    rows = items.rows(names)
    reported = items.do(lambda directory: SetMetadataBatch(directory, packed(names), rows, wanted(3, 0o2750, 7, 8)))
    assert codes(reported) == [OutcomeCode.DONE] * 3
    for name in names:
        assert stat.S_IMODE((items.place / name).stat().st_mode) == 0o2750
        assert owner(items.place / name) == (7, 8)


def test_owner_of_a_link_is_set_on_the_link_itself(items: Items) -> None:
    require_root("give files away")
    before = items.outside.stat()
    reported = items.do(lambda directory: SetMetadataBatch(directory, b"link", items.rows(["link"]), wanted(1, uid=7)))
    assert codes(reported) == [OutcomeCode.DONE] and owner(items.place / "link") == (7, 0)
    reported = items.do(
        lambda directory: SetMetadataBatch(directory, b"link", items.rows(["link"]), wanted(1, mode=0o777))
    )
    assert reported.verdicts.problem(0).errno == errno.EOPNOTSUPP
    assert items.outside.stat() == before


@pytest.mark.parametrize("kind", ["another file", "symlink", "directory"])
def test_replaced_item_is_not_changed(items: Items, kind: str) -> None:
    path, rows = items.place / "file", items.rows(["file", "fifo"])
    path.rename(items.place / "aside")
    make: dict[str, Callable[[], object]] = {
        "another file": lambda: path.write_bytes(b"another"),
        "symlink": lambda: path.symlink_to(items.outside),
        "directory": path.mkdir,
    }
    make[kind]()
    before = path.lstat(), items.outside.lstat()
    reported = items.do(lambda directory: SetMetadataBatch(directory, b"file/fifo", rows, wanted(2, 0o604)))
    assert codes(reported) == [OutcomeCode.DECIDE_AGAIN, OutcomeCode.DONE]
    plain = items.do(
        lambda directory: SetUniformMetadataBatch(
            directory, b"file/fifo", rows.columns_of_selected_rows([0, 1]), modes(0o640)
        )
    )
    assert codes(plain) == [OutcomeCode.DECIDE_AGAIN, OutcomeCode.DONE]
    assert (path.lstat(), items.outside.lstat()) == before
    assert stat.S_IMODE((items.place / "fifo").stat().st_mode) == 0o640


def modes(mode: int) -> array[int]:
    return array("H", [mode]) * 4096


def inodes(items: Items, names: list[str]) -> ItemStatusColumns:
    return ItemStatusColumns.from_statuses([(items.place / name).lstat() for name in names], INODE_COLUMN)


def test_uniform_metadata_is_set_on_simple_items(items: Items) -> None:
    require_root("give files away")
    names = ["a\nb\udcff", "directory", "fifo", "file", "link"]
    (items.place / "file").chmod(0o4755)
    (items.place / "fifo").chmod(0o2710)
    (items.place / "a\nb\udcff").chmod(0o2644)
    table = array("H", [bits | 0o4 for bits in range(4096)])
    batch = lambda directory: SetUniformMetadataBatch(directory, packed(names), inodes(items, names), table, 7, 0)  # noqa: E731
    reported = items.do(batch)
    assert codes(reported) == [
        OutcomeCode.DONE,
        OutcomeCode.DECIDE_AGAIN,
        OutcomeCode.DONE,
        OutcomeCode.DONE,
        OutcomeCode.DONE,
    ]
    assert [oct(stat.S_IMODE(mode)) for mode in reported.observed.mode] == [
        "0o2644",
        "0o0",
        "0o2710",
        "0o4755",
        "0o777",
    ]
    assert list(reported.observed.size) == [0, 0, 0, 7, 0]
    expected = {"a\nb\udcff": 0o2644, "fifo": 0o714, "file": 0o755, "link": 0o777}
    assert {name: stat.S_IMODE((items.place / name).lstat().st_mode) for name in expected} == expected
    assert {owner(items.place / name) for name in expected} == {(7, 0)}
    assert owner(items.place / "directory") == owner(items.outside) == (0, 0)
    changed = {name: (items.place / name).lstat().st_ctime_ns for name in names}
    assert codes(items.do(batch)) == [
        OutcomeCode.SKIPPED,
        OutcomeCode.DECIDE_AGAIN,
        OutcomeCode.SKIPPED,
        OutcomeCode.SKIPPED,
        OutcomeCode.SKIPPED,
    ]
    assert {name: (items.place / name).lstat().st_ctime_ns for name in names} == changed


def test_operations_without_permission_fail(items: Items) -> None:
    require_root("be somebody else")
    os.chmod(items.place, 0o777)
    (items.place / "mine").touch()
    os.chown(items.place / "mine", NOBODY, 100)

    def change() -> None:
        names = ["file", "gone", "mine"]
        rows = ItemStatusColumns(3, 0)
        reported = items.do(lambda directory: SetUniformMetadataBatch(directory, packed(names), rows, modes(0o600)))
        assert codes(reported) == [OutcomeCode.FAILED, OutcomeCode.FAILED, OutcomeCode.DONE]
        problems = [(reported.verdicts.problem(row).operation, reported.verdicts.problem(row).errno) for row in (0, 1)]
        assert problems in (
            [("chmod", errno.EPERM), ("open", errno.ENOENT)],
            [("chmod", errno.EPERM), ("stat", errno.ENOENT)],
        )
        reported = items.do(
            lambda directory: SetUniformMetadataBatch(directory, b"mine", ItemStatusColumns(1, 0), modes(0o2710))
        )
        assert "members of the group" in (reported.verdicts.problem(0).strerror or "")

    as_user(change)
    assert stat.S_IMODE((items.place / "file").stat().st_mode) == 0o644


def test_acls(items: Items) -> None:
    require_root("name users")
    subprocess.run(["setfacl", "-m", "u:7:rw,d:u:7:rx", items.place / "full"], check=True)
    access, default = (os.getxattr(items.place / "full", f"system.posix_acl_{each}") for each in ("access", "default"))
    names = ["directory", "file"]
    rows = items.rows(names)
    reported = items.do(
        lambda directory: SetMetadataBatch(directory, packed(names), rows, wanted(2), (access, default))
    )
    assert codes(reported) == [OutcomeCode.DONE] * 2
    asked = [
        subprocess.run(["getfacl", "-cp", items.place / name], check=True, capture_output=True).stdout
        for name in ("full", "directory", "file")
    ]
    assert asked[0] == asked[1]
    assert asked[2] == b"\n".join(line for line in asked[0].split(b"\n") if not line.startswith(b"default"))
    reported = items.do(
        lambda directory: SetMetadataBatch(directory, b"directory", items.rows(["directory"]), wanted(1), (access, b""))
    )
    assert os.listxattr(items.place / "directory") == ["system.posix_acl_access"]
