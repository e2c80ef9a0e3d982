"""The digest by which a resumed run recognizes pieces: it does not depend on the grouping of files, but on any
difference.
"""

from __future__ import annotations

import stat
from collections.abc import Callable

import pytest

from pcopy.fsio.backend.batches import MEMBER_ROW_FORMAT
from pcopy.tasks.archive.simple_files import OwnerNames, SimpleFiles
from pcopy.tasks.archive.written_records import digest_of_descriptions

NAMES = [b"f%02d" % number for number in range(20)]
OWNERS: OwnerNames = {(0, 0): (b"root", b"root"), (7, 8): (b"lp", b"mail"), (9, 8): (b"news", b"mail")}


def files(*, path: bytes = b"d", uid: int = 7, mtime: int = 10**18, owners: OwnerNames = OWNERS) -> SimpleFiles:
    """Files that belong to root, except the last one."""
    rows = []
    for at in range(20):
        ids, whole = (uid, 8) if at == 19 else (0, 0), 1024 if at else 512
        rows.append(MEMBER_ROW_FORMAT.pack(100 + at, 10 * at, 3, mtime, 2 * 10**18, stat.S_IFREG | 0o640, *ids, whole))
    return SimpleFiles(0, path, b"tree/" + path + b"/", NAMES, b"".join(rows), owners)


def one(whole: SimpleFiles) -> list[bytes | SimpleFiles]:
    return [whole]


def several(whole: SimpleFiles) -> list[bytes | SimpleFiles]:
    """The parts if several ranks had scanned the directory; no file of the first part has the second owner."""
    owners = {(0, 0): OWNERS[0, 0]}
    first = SimpleFiles(0, whole.path, whole.prefix, whole.names[:9], whole.rows[: 9 * MEMBER_ROW_FORMAT.size], owners)
    return [first, whole.rows_in_range(9, 11), whole.rows_in_range(11, 20)]


def taken_apart(whole: SimpleFiles) -> list[bytes | SimpleFiles]:
    return [whole.file_description_in_row(row).record_for_sorting[1] for row in range(20)]


def partly(whole: SimpleFiles) -> list[bytes | SimpleFiles]:
    return [whole.rows_in_range(0, 5), *taken_apart(whole)[5:15], whole.rows_in_range(15, 20)]


@pytest.mark.parametrize("way", [several, taken_apart, partly])
def test_description_digest_does_not_depend_on_grouping(
    way: Callable[[SimpleFiles], list[bytes | SimpleFiles]],
) -> None:
    assert digest_of_descriptions(way(files())) == digest_of_descriptions(one(files()))


@pytest.mark.parametrize(
    "other",
    [
        files(path=b"e"),
        files(uid=9),
        files(mtime=10**18 + 10**9),
        files(owners={**OWNERS, (7, 8): (b"lp", b"post")}),
        files().rows_in_range(0, 19),
    ],
)
@pytest.mark.parametrize("way", [one, several, taken_apart])
def test_description_digest_changes_with_any_difference(
    way: Callable[[SimpleFiles], list[bytes | SimpleFiles]], other: SimpleFiles
) -> None:
    if len(other) == 20:
        assert digest_of_descriptions(way(other)) != digest_of_descriptions(one(files()))
    assert digest_of_descriptions(one(other)) != digest_of_descriptions(way(files()))


def test_unused_owner_does_not_change_the_digest() -> None:
    assert digest_of_descriptions([files(owners={**OWNERS, (1, 1): (b"bin", b"bin")})]) == digest_of_descriptions(
        [files()]
    )


def test_directory_boundary_changes_the_digest() -> None:
    some, others = files().rows_in_range(0, 10), files(path=b"e").rows_in_range(10, 20)
    assert digest_of_descriptions([some, others]) != digest_of_descriptions([files()])


def test_digest_does_not_depend_on_grouping_before_another_directory() -> None:
    behind = files(path=b"e")
    assert digest_of_descriptions([*several(files()), behind]) == digest_of_descriptions([files(), behind])
