"""Sums over columns, by the C backend and in Python, compared with counting one item after the other."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from pcopy.fsio.backend.columns import ItemStatusColumns
from pcopy.fsio.backend.interface import BackendSettings, FileOperationBackend
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.walk.matching import DirectoryItems
from pcopy.walk.sums import WalkSums
from tests.fsio.backend_bench import BACKENDS
from tests.support.extent import seed

NOW = 1_700_000_000 * 10**9
DAY = 86400 * 10**9
MODES = {"f": 0o100000, "d": 0o040000, "l": 0o120000, "p": 0o010000, "s": 0o140000}
AGES = [0, -1, 1, -DAY, DAY - 1, DAY, DAY + 1, 7 * DAY, 31 * DAY, 365 * DAY - 1, 730 * DAY, 1825 * DAY - 1, 1825 * DAY]
SIZES = [0, 1, 2, 4095, 4096, 4097, 1 << 40, (1 << 63) + 1]


@pytest.fixture(params=["c", "python"])
def backend(request: pytest.FixtureRequest) -> Iterator[FileOperationBackend]:
    made = BACKENDS[request.param](BackendSettings(PreservedMetadataKinds(), 0o022))
    yield made
    made.close()


def _items(random: Random, number: int, letters: str) -> DirectoryItems:
    kinds = [random.choice(letters) for _ in range(number)]
    rows = ItemStatusColumns(number, WalkSums.NEEDED_COLUMNS)
    rows.mode = array("I", [MODES[kind] | random.choice([0o644, 0o666, 0o1777, 0o4755, 0o2755]) for kind in kinds])
    rows.links = array("I", random.choices([1, 2, 3], k=number))
    rows.uid = array("I", random.choices([0, 1000], k=number) if random.random() < 0.5 else [7] * number)
    rows.gid = array("I", random.choices([0, 2**32 - 2], k=number))
    rows.atime = array("q", [NOW - age for age in random.choices(AGES, k=number)])
    rows.mtime = array("q", [NOW - age for age in random.choices(AGES, k=number)])
    rows.size = array("Q", random.choices(SIZES, k=number))
    rows.blocks = array("Q", random.choices([0, 8, 9, 1 << 40], k=number))
    return DirectoryItems(-1, b"a/", [b"n%05d" % random.randrange(10**5) for _ in kinds], "".join(kinds).encode(), rows)


def _age(moment: int) -> int:
    days = (NOW - moment) // DAY
    return 0 if moment > NOW else 1 + sum(days >= limit for limit in (1, 7, 30, 90, 180, 365, 730, 1825))


def _counted(all_items: list[DirectoryItems]) -> dict[str, Any]:
    reported: dict[str, Any] = {
        name: Counter() for name in ("sizes", "size_bytes", "mtime", "mtime_bytes", "atime", "unusual", "users", "sums")
    }
    files = []
    for items in all_items:
        rows = items.columns
        for row, kind in enumerate(items.kinds.decode()):
            mode, size, allocated = rows.mode[row], rows.size[row], 512 * rows.blocks[row]
            reported["users"][rows.uid[row]] += 1
            reported["sums"]["allocated"] += allocated
            reported["unusual"]["future"] += rows.mtime[row] > NOW
            reported["unusual"]["world_writable"] += (
                mode & 2 > 0 and kind != "l" and not (kind == "d" and mode & 0o1000)
            )
            if kind != "f":
                continue
            files.append((size, items.above + items.names[row]))
            reported["sums"]["size"] += size
            reported["sizes"][len(f"{size:b}") if size else 0] += 1
            reported["size_bytes"][len(f"{size:b}") if size else 0] += size
            reported["mtime"][_age(rows.mtime[row])] += 1
            reported["mtime_bytes"][_age(rows.mtime[row])] += size
            reported["atime"][_age(rows.atime[row])] += 1
            reported["unusual"]["set_id"] += mode & 0o6000 > 0
            reported["unusual"]["hard_linked"] += rows.links[row] > 1
            reported["unusual"]["sparse"] += allocated < size
            reported["sums"]["holes"] += max(0, size - allocated)
    return {**reported, "largest": sorted(files, key=lambda each: (-each[0], each[1]))[:20]}


@pytest.mark.parametrize("letters", ["f", "d", "fdlps", "ffffffd"])
def test_column_sums_match_counting_item_by_item(backend: FileOperationBackend, letters: str) -> None:
    random = Random(seed())
    sums, whole = WalkSums(NOW, backend), WalkSums(NOW)
    all_items = [_items(random, random.randrange(1, 40), letters) for _ in range(20)]
    for items in all_items:
        sums.add(items, 2)
    whole.merge(sums.sums_as_bytes())
    expected = _counted(all_items)
    assert +whole.sizes == +expected["sizes"]
    assert +whole.size_bytes == +expected["size_bytes"]
    assert {name: +counter for name, counter in whole.ages.items()} == {
        name: +expected[name] for name in ("mtime", "atime", "mtime_bytes")
    }
    assert +whole.unusual == +expected["unusual"]
    assert {uid: row[0] for uid, row in whole.owners["users"].items()} == expected["users"]
    assert sum(row[1] for row in whole.owners["groups"].values()) == expected["sums"]["size"]
    assert sum(row[2] for row in whole.owners["users"].values()) == expected["sums"]["allocated"]
    assert (whole.size, whole.allocated, whole.holes) == tuple(
        expected["sums"][name] for name in ("size", "allocated", "holes")
    )
    assert [size for size, _ in whole.largest_files] == [size for size, _ in expected["largest"]]


def test_column_of_another_length_is_refused() -> None:
    native_tally = pytest.importorskip("pcopy.fsio.backend.native_tally")
    items = _items(Random(1), 3, "f")
    tally = native_tally.NativeColumnSums(range(9))
    with pytest.raises(ValueError, match="does not have all rows"):
        tally.add_rows(items.columns, b"ffff")
    items.columns.size = array("Q", [1])
    with pytest.raises(ValueError, match="column size has 1 rows"):
        tally.add_rows(items.columns, b"fff")
