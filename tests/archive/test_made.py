"""By what a run that goes on knows pieces again: however their files were put together, and not if anything differs."""

from __future__ import annotations

import stat
from collections.abc import Callable

import pytest

from pcopy.fsio.kernel.directory_batches import MEMBER
from pcopy.tasks.archive.made import digest_of
from pcopy.tasks.archive.plain_files import Owners, PlainFiles

NAMES = [b"f%02d" % number for number in range(20)]
OWNERS: Owners = {(0, 0): (b"root", b"root"), (7, 8): (b"lp", b"mail"), (9, 8): (b"news", b"mail")}


def files(*, path: bytes = b"d", uid: int = 7, mtime: int = 10**18, owners: Owners = OWNERS) -> PlainFiles:
    """Of root, but for the last one."""
    rows = []
    for at in range(20):
        ids, whole = (uid, 8) if at == 19 else (0, 0), 1024 if at else 512
        rows.append(MEMBER.pack(100 + at, 10 * at, 3, mtime, 2 * 10**18, stat.S_IFREG | 0o640, *ids, whole))
    return PlainFiles(0, path, b"tree/" + path + b"/", NAMES, b"".join(rows), owners)


def one(whole: PlainFiles) -> list[bytes | PlainFiles]:
    return [whole]


def several(whole: PlainFiles) -> list[bytes | PlainFiles]:
    """As if several ranks had scanned the directory; none of the first part has the second owner."""
    owners = {(0, 0): OWNERS[0, 0]}
    first = PlainFiles(0, whole.path, whole.prefix, whole.names[:9], whole.rows[: 9 * MEMBER.size], owners)
    return [first, whole.part(9, 11), whole.part(11, 20)]


def taken_apart(whole: PlainFiles) -> list[bytes | PlainFiles]:
    return [whole.described(row).record[1] for row in range(20)]


def partly(whole: PlainFiles) -> list[bytes | PlainFiles]:
    return [whole.part(0, 5), *taken_apart(whole)[5:15], whole.part(15, 20)]


@pytest.mark.parametrize("way", [several, taken_apart, partly])
def test_it_does_not_matter_how_files_were_put_together(
    way: Callable[[PlainFiles], list[bytes | PlainFiles]],
) -> None:
    assert digest_of(way(files())) == digest_of(one(files()))


@pytest.mark.parametrize(
    "other",
    [
        files(path=b"e"),
        files(uid=9),
        files(mtime=10**18 + 10**9),
        files(owners={**OWNERS, (7, 8): (b"lp", b"post")}),
        files().part(0, 19),
    ],
)
@pytest.mark.parametrize("way", [one, several, taken_apart])
def test_what_differs_does(way: Callable[[PlainFiles], list[bytes | PlainFiles]], other: PlainFiles) -> None:
    if len(other) == 20:
        assert digest_of(way(other)) != digest_of(one(files()))
    assert digest_of(one(other)) != digest_of(way(files()))


def test_an_owner_that_no_file_has_does_not_matter() -> None:
    assert digest_of([files(owners={**OWNERS, (1, 1): (b"bin", b"bin")})]) == digest_of([files()])


def test_where_one_directory_ends_matters() -> None:
    some, others = files().part(0, 10), files(path=b"e").part(10, 20)
    assert digest_of([some, others]) != digest_of([files()])


def test_nor_does_it_if_another_directory_follows() -> None:
    behind = files(path=b"e")
    assert digest_of([*several(files()), behind]) == digest_of([files(), behind])
