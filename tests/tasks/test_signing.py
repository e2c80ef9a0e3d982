"""The computation of the sign phase: a dataset has one digest, for any number of ranks and any order of entries.

The reference is ``tests/support/reference_signature.py``, which reads the same tree by itself.
"""

from __future__ import annotations

import io
import os
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pcopy.signature.algorithms import digest_algorithm_named
from pcopy.signature.manifest import unpack_manifest_entry
from pcopy.tasks.base.codec import decode_task
from pcopy.tasks.base.distribution import DEEPEST_SEPARATE_LEVEL, directory_depth, rank_digesting_directory
from pcopy.tasks.base.job import Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.runner import make_task_outcome
from pcopy.tasks.sign import signing
from pcopy.tasks.sign.children import DatasetCounts, DirectoryChildBundle, bundles_from_records
from pcopy.tasks.sign.signing import DigestResult, DirectoryDigester
from tests.support import reference_signature as reference
from tests.tasks.one_rank import root_of, surroundings

BLOCK = 1 << 16
STALE = bytes(range(16))
"""A digest that no item has."""

Listing = dict[bytes, tuple[bytes, bytes, int]]
"""Type byte, digest and size by path, as the reference returns them."""

Tree = bytes | str | None | dict[bytes, Any]
"""Contents of a file, target of a link, a FIFO, or the children of a directory."""

NAMES = st.one_of(
    st.sampled_from([b"a", b"a\x01", b"a.", b"a b", b"ab", b"a\xff", b"\x01", b"\xff", b"\n", b"..."]),
    st.binary(min_size=1, max_size=4).filter(lambda name: not {0, 47} & set(name) and name not in (b".", b"..")),
)
LEAVES: st.SearchStrategy[Tree] = st.one_of(
    st.binary(max_size=3), st.integers(BLOCK, BLOCK + 1).map(bytes), st.sampled_from(["a", "../a"]), st.none()
)
TREES = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=4),
    lambda below: st.dictionaries(NAMES, st.one_of(LEAVES, below), max_size=4),
    max_leaves=12,
)
DEEP: dict[bytes, Any] = {b"a": {b"a": {b"a": {b"a": {}}, b"b": b"x"}}, b"a\x01": {b"a": b"y"}, b"a.": {}}
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Spools:
    """Opens files in memory, and counts those that are still open."""

    def __init__(self) -> None:
        self.opened: list[io.BytesIO] = []

    def __call__(self) -> BinaryIO:
        self.opened.append(io.BytesIO())
        return self.opened[-1]


@pytest.fixture(autouse=True, params=["in memory", "spilled"])
def budgets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with everything in memory and each directory in one part, once with the smallest limits."""
    if request.param == "spilled":
        monkeypatch.setattr(signing, "SORT_MEMORY_BYTES", 500)
        monkeypatch.setattr(signing, "MAX_ENTRIES_IN_MEMORY", 2)


def grow(path: bytes, tree: Tree) -> None:
    if isinstance(tree, dict):
        os.mkdir(path)
        for name, below in tree.items():
            grow(path + b"/" + name, below)
    elif isinstance(tree, bytes):
        Path(os.fsdecode(path)).write_bytes(tree)
    elif tree is None:
        os.mkfifo(path)
    else:
        os.symlink(tree, path)


@pytest.fixture
def listed(area: Path) -> Any:
    """A function that creates a tree on disk and returns the entries that the reference finds in it."""

    def make(tree: Tree) -> Listing:
        with tempfile.TemporaryDirectory(dir=area) as place:
            grow(os.fsencode(place) + b"/it", tree)
            return reference.entries(os.fsencode(place) + b"/it", BLOCK)

    return make


class Row(NamedTuple):
    """The properties of an item."""

    kind: bytes
    round: int
    size: int
    digest: bytes


def bundle_of(
    side: int, entries: Sequence[tuple[bytes, Row]], tallies: Sequence[DatasetCounts] = ()
) -> DirectoryChildBundle:
    """A bundle of items of one round and directory, with their names."""
    names, rows = zip(*entries, strict=True)
    (round_,) = {row.round for row in rows}
    kinds, digests = b"".join(row.kind for row in rows), b"".join(row.digest for row in rows)
    numbers = array("Q", [number for tally in tallies for number in tally]).tobytes()
    return DirectoryChildBundle(
        side, round_, b"/".join(names), kinds, array("Q", [row.size for row in rows]).tobytes(), digests, numbers
    )


class Found(NamedTuple):
    """An entry as a rank reports it."""

    side: int
    path: bytes
    name: bytes
    row: Row


def found(listing: Listing, side: int = 0) -> list[Found]:
    """All entries, without the digests of directories, which have to be computed."""
    rows = []
    for path, (kind, digest, size) in listing.items():
        if kind == b"d":
            row = Row(kind, 0, 0, bytes(16))
            rows.append(Found(side, b"" if path == b"." else path, b"", row))
        else:
            directory, _, name = path.rpartition(b"/")
            rows.append(Found(side, directory, name, Row(kind, 0, size, digest)))
    return rows


class Signed(NamedTuple):
    """The result: digest and counts of each directory by (side, path), the differences, and the sorted lines of all
    ranks.
    """

    directories: dict[tuple[int, bytes], tuple[bytes, DatasetCounts]]
    differences: list[tuple[str, bytes]]
    lines: list[tuple[bytes, bytes]]

    def listing(self) -> Listing:
        """The listing in the form of the reference, from the lines and the root of the first side."""
        entries = [unpack_manifest_entry(*line) for line in self.lines]
        below = {entry.path: (entry.kind, entry.digest, entry.size) for entry in entries}
        assert len(below) == len(entries), "each entry has one line"
        digest, tally = self.directories[0, b""]
        return {b".": (b"d", digest, 0), **below} if tally.directories else below


def sign(rows: Sequence[Found], ranks: int, *, compares: bool = False, lines: bool = True) -> Signed:
    """Compute the signature with ``ranks``, each of which owns its share of the directories."""
    spools = Spools()
    shares = [
        DirectoryDigester(digest_algorithm_named("xxh3-128"), spools, manifest_lines=lines, compares=compares)
        for _ in range(ranks)
    ]
    together: list[Found] = []  # entries found by one task
    for number, entry in enumerate(rows):
        together.append(entry)
        following = rows[number + 1] if number + 1 < len(rows) else None
        if following is None or (*following[:2], following.row.round) != (*entry[:2], entry.row.round):
            bundle = bundle_of(entry.side, [(each.name, each.row) for each in together])
            shares[rank_digesting_directory(entry.path, ranks)].add(entry.path, bundle)
            together = []
    signed = Signed({}, [], [])
    for depth in reversed(range(max(directory_depth(row.path) for row in rows) + 1)):
        for share in shares:
            for part in share.digest_directories_of_depth(depth):
                assert len(part.differences) <= signing.MAX_ENTRIES_IN_MEMORY
                _rise(part, shares, depth, signed)
    for share in shares:
        if share.manifest_lines is not None:
            mine = list(share.manifest_lines.sorted())
            assert mine == sorted(mine)
            signed.lines.extend(mine)
        share.close()
    assert all(spool.closed for spool in spools.opened)
    signed.lines.sort()
    return signed


def _rise(part: DigestResult, shares: Sequence[DirectoryDigester], depth: int, signed: Signed) -> None:
    signed.differences.extend(part.differences)
    for side, path, digest, tally in part.directories:
        assert (side, path) not in signed.directories, "each is digested once"
        assert directory_depth(path) == depth
        signed.directories[side, path] = (digest, tally)
        if depth:
            around, _, name = path.rpartition(b"/")
            risen = bundle_of(side, [(name, Row(b"d", 0, 0, digest))], [tally])
            shares[rank_digesting_directory(around, len(shares))].add_directories(around, risen)


def counted(listing: Listing) -> DatasetCounts:
    kinds = [kind for kind, _, _ in listing.values()]
    return DatasetCounts(
        kinds.count(b"f"),
        kinds.count(b"d"),
        kinds.count(b"l"),
        kinds.count(b"p"),
        sum(size for _, _, size in listing.values()),
    )


def below(listing: Listing, path: bytes) -> Listing:
    """The part of the listing below a directory, including the directory itself."""
    if path == b".":
        return listing
    return {one: entry for one, entry in listing.items() if one == path or one.startswith(path + b"/")}


@MANY
@given(tree=TREES, ranks=st.sampled_from([1, 2, 3, 7]), seed=st.integers(0, 99))
@example(tree=DEEP, ranks=3, seed=0)
@example(tree={}, ranks=2, seed=0)
@example(tree={b"%d" % number: b"" for number in range(9)}, ranks=1, seed=0)
def test_all_digests_and_counts_match_the_reference(listed: Any, tree: Tree, ranks: int, seed: int) -> None:
    listing = listed(tree)
    rows = found(listing)
    Random(seed).shuffle(rows)
    signed = sign(rows, ranks)
    directories = {path: entry for path, entry in listing.items() if entry[0] == b"d"}
    assert {(0, b"" if path == b"." else path) for path in directories} == signed.directories.keys()
    for path, (_, digest, _) in directories.items():
        got = signed.directories[0, b"" if path == b"." else path]
        assert got == (digest, counted(below(listing, path))), path
    assert signed.listing() == listing
    assert [unpack_manifest_entry(*line).path for line in signed.lines] == [path for path in listing if path != b"."], (
        "in tree order"
    )


@pytest.mark.parametrize("leaf", [b"", b"content", "target", None])
def test_a_dataset_of_one_item(listed: Any, leaf: Tree) -> None:
    listing = listed(leaf)
    signed = sign(found(listing), 3)
    assert signed.directories == {(0, b""): (listing[b"."][1], counted(listing))}
    assert signed.listing() == listing


def test_without_a_manifest_no_lines_are_kept(listed: Any) -> None:
    assert sign(found(listed(DEEP)), 2, lines=False).lines == []


@MANY
@given(tree=TREES, ranks=st.integers(1, 3), seed=st.integers(0, 99))
@example(tree={b"a": b"x", b"b": {b"a": b"y"}}, ranks=1, seed=0)
def test_entry_of_the_latest_round_counts(listed: Any, tree: Tree, ranks: int, seed: int) -> None:
    """In any order: rounds are compared by their number, not by the order of arrival."""
    listing = listed(tree)
    rows = found(listing)
    random = Random(seed)
    for entry in list(rows):
        if entry.name and random.random() < 0.7:
            rows.remove(entry)
            row = entry.row
            stale = random.choice([row._replace(digest=STALE), Row(b"l", 0, 0, STALE)])
            rows += [entry._replace(row=stale), entry._replace(row=row._replace(round=1))]
    rows += [entry for entry in rows if not entry.name]  # a directory that was found twice counts once
    random.shuffle(rows)
    signed = sign(rows, ranks)
    assert signed.directories[0, b""] == (listing[b"."][1], counted(listing))
    assert signed.listing() == listing


def test_each_run_has_later_rounds_than_those_before(area: Path) -> None:
    (area / "source").mkdir()
    (area / "target").mkdir()
    options = Options(hash="xxh3-128", signature=b"sig", sync=False)
    rounds = []
    with surroundings([root_of(area / "source", area / "target")], options) as (context, _):
        identities = context.sources[0].identity_of_directory(b""), context.targets[0].identity_of_directory(b"")
        for run in (1, 2, 127, 128, 129, 130, 100_000):
            context.job = context.job._replace(run=run)
            for phase in (Phase.COPY, Phase.REPAIR):
                result = TaskResult(context, phase, (run, 0, 1))
                result.collect_directory_entry(Place(0, b"", *identities, False, False))
                (spawned,) = make_task_outcome(result, context).spawned
                rounds.append(decode_task(spawned.payload).entries.round)
    assert rounds == sorted(set(rounds))


def expected_differences(one: Listing, other: Listing) -> list[tuple[str, bytes]]:
    reported = []
    for path in one.keys() | other.keys():
        if path not in other:
            reported.append(("missing", path))
        elif path not in one:
            reported.append(("extra", path))
        elif one[path][0] != other[path][0] or (one[path][0] != b"d" and one[path][1] != other[path][1]):
            reported.append(("changed", path))
    return sorted(reported)


@MANY
@given(first=TREES, second=TREES, common=TREES, ranks=st.sampled_from([1, 2, 5]), seed=st.integers(0, 99))
@example(first=DEEP, second={}, common={}, ranks=2, seed=0)
@example(first={b"a": b"x"}, second={b"a": {b"a": b"x"}}, common={}, ranks=2, seed=0)
@example(first={}, second={}, common=DEEP, ranks=2, seed=0)
@example(first={b"a": {b"a": b"x"}}, second={b"a": {b"a": b"y"}}, common={}, ranks=1, seed=0)
def test_two_sides_are_kept_separate(
    listed: Any, first: dict[bytes, Any], second: dict[bytes, Any], common: dict[bytes, Any], ranks: int, seed: int
) -> None:
    one, other = listed({**common, **first}), listed({**common, **second})
    rows = [*found(one, 0), *found(other, 1)]
    Random(seed).shuffle(rows)
    signed = sign(rows, ranks, compares=True, lines=False)
    for side, listing in enumerate((one, other)):
        assert signed.directories[side, b""] == (listing[b"."][1], counted(listing))
    assert sorted(signed.differences) == expected_differences(one, other)


@pytest.mark.parametrize(
    ("first", "second"), [(b"x", b"x"), (b"x", b"y"), (b"x", "x"), (None, b""), (b"x", {}), ({b"a": b"x"}, None)]
)
def test_single_items_are_compared_like_directories(listed: Any, first: Tree, second: Tree) -> None:
    one, other = listed(first), listed(second)
    signed = sign([*found(one, 0), *found(other, 1)], 2, compares=True, lines=False)
    assert [signed.directories[side, b""][0] for side in (0, 1)] == [one[b"."][1], other[b"."][1]]
    assert sorted(signed.differences) == expected_differences(one, other)


def test_every_rank_owns_a_fair_share_of_directories() -> None:
    """The share is the same for both sides, otherwise nothing could be compared."""
    paths = [b"%d/%d" % (one, other) for one in range(30) for other in range(30)]
    for ranks in (1, 2, 5, 64):
        shares = [rank_digesting_directory(path, ranks) for path in paths]
        assert min(shares.count(rank) for rank in range(ranks)) > 900 / ranks / 4
    assert rank_digesting_directory(b"", 1) == 0


def test_directories_below_a_separate_level_have_the_rank_of_their_ancestor() -> None:
    """So the levels of a deep chain need no phases of their own."""
    names = [b"%d" % number for number in range(100)]
    shares = [rank_digesting_directory(b"/".join(names[:depth]), 1 << 32) for depth in range(100)]
    assert len({*shares[: DEEPEST_SEPARATE_LEVEL + 1]}) == DEEPEST_SEPARATE_LEVEL + 1
    assert {*shares[DEEPEST_SEPARATE_LEVEL:]} == {shares[DEEPEST_SEPARATE_LEVEL]}
    sibling = b"/".join([*names[: DEEPEST_SEPARATE_LEVEL - 1], b"x"])
    assert rank_digesting_directory(sibling, 1 << 32) != shares[DEEPEST_SEPARATE_LEVEL]


@pytest.mark.parametrize("depth", [0, 2])
def test_one_rank_digests_a_level_with_everything_below_it(listed: Any, depth: int) -> None:
    """The results name only the directories of the level itself; those below become children on the same rank."""
    below: Tree = {b"file": b"x"}
    for number in range(7):
        below = {b"in": below, b"other": {b"f%d" % number: b"y"}, b"z": b"z"}
    listing = listed(below)
    digester = DirectoryDigester(digest_algorithm_named("xxh3-128"), Spools(), manifest_lines=True)
    for entry in found(listing):
        digester.add(entry.path, bundle_of(0, [(entry.name, entry.row)]))
    parts = list(digester.digest_directories_from_depth(depth))
    digests = {path or b".": digest for part in parts for _, path, digest, _ in part.directories}
    expected = {
        path: digest
        for path, (kind, digest, _) in listing.items()
        if kind == b"d" and (directory_depth(path) if path != b"." else 0) == depth
    }
    assert digests == expected
    assert digester.manifest_lines is not None
    lines = {
        entry.path: entry.digest for entry in (unpack_manifest_entry(*x) for x in digester.manifest_lines.sorted())
    }
    expected_lines = {path: digest for path, (_, digest, _) in listing.items() if directory_depth(path) > depth}
    assert lines == {path: digest for path, digest in expected_lines.items() if path != b"."}
    digester.close()


def test_directory_depth_counts_path_components() -> None:
    assert [directory_depth(path) for path in (b"", b"a", b"a/b", b"a/b/c")] == [0, 1, 2, 3]


BUNDLES = st.lists(
    st.tuples(
        st.sets(NAMES, min_size=1, max_size=4).map(sorted), st.integers(0, 1), st.integers(0, 2), st.integers(0, 255)
    ),
    min_size=1,
    max_size=5,
)


@given(BUNDLES, st.integers(1, 4), st.booleans())
def test_bundles_survive_conversion_to_rows(given: list[Any], names: int, tallied: bool) -> None:
    """All rows of one name are returned together, those of one round in their original order."""
    parts = []
    for at, side, round_, byte in given:
        rows = [Row(b"d" if tallied else b"f", round_, byte, bytes((byte,)) * 16)] * len(at)
        tallies = [DatasetCounts(files=byte, directories=1)] * len(at) if tallied else ()
        part = bundle_of(side, list(zip(at, rows, strict=True)), tallies)
        assert DirectoryChildBundle.bundle_from_bytes(part.bundle_as_bytes()) == part
        parts.append(part)
    records = sorted((row for part in parts for row in part.sortable_records()), key=lambda record: record[0])
    batches = list(bundles_from_records(iter(records), names))
    reported = [[name for part in batch for name in part.names.split(b"/")] for batch in batches]
    assert sorted({name for at, *_ in given for name in at}) == [name for each in reported for name in sorted({*each})]
    assert all(len({*each}) <= names for each in reported)

    def rows_of(all_parts: Sequence[DirectoryChildBundle]) -> dict[tuple[int, int, bytes], list[tuple[bytes, bytes]]]:
        found: dict[tuple[int, int, bytes], list[tuple[bytes, bytes]]] = {}
        for part in all_parts:
            for row, name in enumerate(part.names.split(b"/")):
                rest = part.sizes[8 * row : 8 * row + 8] + part.digests[16 * row : 16 * row + 16]
                found.setdefault((part.side, part.round, name), []).append(
                    (rest, part.tallies[40 * row : 40 * row + 40])
                )
        return found

    assert rows_of([part for batch in batches for part in batch]) == rows_of(parts)
