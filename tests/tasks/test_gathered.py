"""Items gathered in columns are returned row by row, also with times before 1677 and after 2262."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from pcopy.fsio.backend.columns import EARLIEST_TIME, LATEST_TIME, VERSION_COLUMNS, ItemStatusColumns
from pcopy.fsio.source import FileContentVersion
from pcopy.tasks.base.item_columns import ItemColumns, split_digests, unpack_content_infos
from pcopy.tasks.base.values import ContentInfo, unpack_numbers

NUMBER = st.integers(0, 2**64 - 1)
NEAR = st.integers(EARLIEST_TIME + 1, LATEST_TIME - 1)
TIME = st.one_of(
    NEAR, st.sampled_from([EARLIEST_TIME - 1, EARLIEST_TIME, LATEST_TIME, LATEST_TIME + 1, -(10**20), 10**20])
)
KINDS = st.sampled_from([b"f", b"d", b"l", b"s"])


def items(
    time: st.SearchStrategy[int], kinds: st.SearchStrategy[bytes]
) -> st.SearchStrategy[list[tuple[bytes, ContentInfo]]]:
    known = st.builds(
        ContentInfo,
        kinds,
        NUMBER,
        st.binary(min_size=16, max_size=16),
        st.builds(FileContentVersion, NUMBER, NUMBER, time, time),
    )
    name = st.binary(max_size=4).filter(lambda name: b"/" not in name)
    return st.lists(st.tuples(name, known), max_size=5)


ONE_BY_ONE = st.tuples(st.just("one by one"), items(TIME, KINDS))
BATCH = st.tuples(st.sampled_from(["all", "chosen"]), items(NEAR, st.just(b"f")))


def batch_of(rows: list[tuple[bytes, ContentInfo]]) -> tuple[ItemStatusColumns, array[int], bytearray]:
    """Return the names and rows as a backend would report them."""
    versions = ItemStatusColumns(len(rows), VERSION_COLUMNS)
    for row, (_, known) in enumerate(rows):
        version = known.version
        versions.inode[row], versions.size[row] = version.inode, version.size
        versions.mtime[row], versions.ctime[row] = version.mtime, version.ctime
    digests = bytearray().join(known.digest for _, known in rows)
    return versions, array("Q", [known.size for _, known in rows]), digests


@given(st.lists(st.one_of(ONE_BY_ONE, BATCH), max_size=4), st.booleans())
def test_item_columns_survive_packing(given: list[tuple[str, list[tuple[bytes, ContentInfo]]]], in_two: bool) -> None:
    gathered, more, expected = ItemColumns(), ItemColumns(), []
    for counter, (how, rows) in enumerate(given):
        into = more if in_two and counter else gathered
        if how == "one by one":
            for name, known in rows:
                into.add_item(name, known, counter)
        else:
            names = [name for name, _ in rows]
            batch = batch_of(rows)
            if how == "all":
                into.add_rows(b"/".join(names), *batch, counter)
            else:
                into.add_selected_rows(range(0, len(names), 2), names, *batch, counter)
        expected += [(name, known, counter) for name, known in (rows[::2] if how == "chosen" else rows)]
    gathered.extend(more)
    assert len(gathered) == len(expected) and bool(gathered) == bool(expected)
    if not expected:
        return
    kinds, sizes, versions, digests = gathered.packed_columns
    unpacked = unpack_content_infos(kinds, unpack_numbers(sizes), versions, split_digests(digests, 16))
    assert [*zip(gathered.packed_names.split(b"/"), unpacked, gathered.counters, strict=True)] == expected
    assert gathered.total_size == sum(known.size for _, known, _ in expected)


def test_versions_are_packed_like_those_of_a_backend() -> None:
    """The packed versions of a batch that was read back are compared directly."""
    rows = [
        (b"a", ContentInfo(b"f", 1, bytes(16), FileContentVersion(2, 1, 3, 4))),
        (b"b", ContentInfo(b"f", 5, bytes(16), FileContentVersion(6, 5, 7, -8))),
    ]
    gathered = ItemColumns()
    for name, known in rows:
        gathered.add_item(name, known)
    assert gathered.packed_columns[2] == batch_of(rows)[0].status_columns_as_bytes()
