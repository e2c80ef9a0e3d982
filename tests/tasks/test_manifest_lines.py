"""The manifest from many ranks: its lines are in tree order, in whatever order they arrive, and ranks send only on
request.

The reference is ``tests/support/reference_signature.py``.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pcopy.engine.driver import TaskOutcome
from pcopy.engine.task import Task
from pcopy.errors import RequestRefused
from pcopy.fsio.backend.columns import unpack_names
from pcopy.signature.algorithms import digest_algorithm_named
from pcopy.signature.items import ROOT_PATH
from pcopy.signature.manifest import ManifestEntry, ManifestWriter, pack_manifest_entry
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.distribution import rank_digesting_directory
from pcopy.tasks.base.item_columns import split_digests
from pcopy.tasks.base.job import Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import unpack_numbers
from pcopy.tasks.runner import TaskRunner
from pcopy.tasks.sign import manifest_lines
from pcopy.tasks.sign.children import DatasetCounts
from pcopy.tasks.sign.digest_level import SignatureEntriesNote, UnsentSignatureEntries
from pcopy.tasks.sign.manifest_lines import ReadManifest, SendManifestLines, WriteManifest
from pcopy.tasks.sign.signing import ManifestLine, ManifestMerger, SignatureState
from tests.support import reference_signature as reference
from tests.support.trees import random_tree
from tests.tasks.one_rank import root_of, surroundings

BLOCK = 1 << 16
XXH3 = digest_algorithm_named("xxh3-128")


class Written(NamedTuple):
    """The entries and the manifest of a tree, computed by the reference."""

    entries: dict[bytes, tuple[bytes, bytes, int]]
    manifest: bytes

    @property
    def root(self) -> ManifestEntry:
        kind, digest, size = self.entries[b"."]
        return ManifestEntry(kind, digest, size, ROOT_PATH)

    def lines(self) -> list[ManifestLine]:
        """All lines except that of the root, as ranks store them."""
        return [pack_manifest_entry(ManifestEntry(kind, digest, size, path)) for path, (kind, digest,
        size) in self.entries.items()
                if path != b"."]  # fmt: skip


@pytest.fixture(scope="session")
def written(session_scratch: Path) -> Written:
    with tempfile.TemporaryDirectory(dir=session_scratch) as place:
        tree = os.path.join(place, "tree")
        random_tree(tree, 3, files=60, directories=15, largest=1 << 18)
        path = os.fsencode(tree)
        return Written(reference.entries(path, BLOCK), reference.manifest(path, BLOCK))


def distributed(lines: Sequence[ManifestLine], ranks: int, random: Random) -> list[list[ManifestLine]]:
    """Distribute the lines randomly over the ranks. The lines of each rank are sorted."""
    hands: list[list[ManifestLine]] = [[] for _ in range(ranks)]
    for line in lines:
        random.choice(hands).append(line)
    return [sorted(hand) for hand in hands]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ranks=st.integers(1, 7), part=st.integers(1, 40), seed=st.integers(0, 999))
def test_lines_may_arrive_in_any_order(area: Path, written: Written, ranks: int, part: int, seed: int) -> None:
    random = Random(seed)
    waiting = [iter(hand) for hand in distributed(written.lines(), ranks, random)]
    path = area / "manifest"
    writer = ManifestWriter(path, XXH3, BLOCK)
    writer.__enter__()
    writer.write(written.root)
    merging = ManifestMerger(writer, ranks)
    asked = merging.take_ranks_to_ask()
    assert asked == list(range(ranks)), "at first everybody"
    ended: set[int] = set()
    while not merging.is_done:
        rank = asked.pop(random.randrange(len(asked)))
        rows = tuple(islice(waiting[rank], part))
        if last := len(rows) < part:
            ended.add(rank)
        merging.add_lines(rank, rows, last)
        for _ in merging.write_available_lines():
            pass
        wanted = merging.take_ranks_to_ask()
        assert not set(wanted) & set(asked), "nobody is asked again before it has answered"
        assert not set(wanted) & ended, "nobody is asked after its last part"
        assert merging.take_ranks_to_ask() == []
        asked += wanted
    assert not asked
    assert ended == set(range(ranks))
    merging.complete_manifest_file()
    assert path.read_bytes() == written.manifest


def test_only_one_part_per_rank_is_held_in_memory(area: Path, written: Written) -> None:
    """A rank is asked for more lines only when its part is used up."""
    lines = sorted(written.lines())
    with ManifestWriter(area / "manifest", XXH3, BLOCK) as writer:
        writer.write(written.root)
        merging = ManifestMerger(writer, 2)
        assert merging.take_ranks_to_ask() == [0, 1]
        merging.add_lines(0, tuple(lines[:4]), False)
        assert list(merging.write_available_lines()) == [], "the other rank's may be less"
        assert merging.take_ranks_to_ask() == []
        merging.add_lines(1, tuple(lines[4:8]), False)
        assert len(list(merging.write_available_lines())) == 4
        assert merging.take_ranks_to_ask() == [0]
        merging.add_lines(0, (), True)
        assert len(list(merging.write_available_lines())) == 4
        assert merging.take_ranks_to_ask() == [1]
        assert not merging.is_done
        merging.add_lines(1, (), True)
        assert merging.is_done


class Cluster:
    """All ranks of a job that computes a signature, without the transport of messages between them."""

    def __init__(self, contexts: Sequence[Rank], random: Random) -> None:
        self.contexts = contexts
        self.asked: list[int] = []
        self._random = random
        self._notes: list[tuple[int, Any]] = []

    def begin(self) -> None:
        self._run(0, WriteManifest())
        while self._notes:
            rank, note = self._notes.pop(self._random.randrange(len(self._notes)))
            if isinstance(note, SendManifestLines):
                self.asked.append(rank)
            self._run(rank, note)

    def _run(self, rank: int, note: Any) -> None:
        for spawn in run(self.contexts[rank], Phase.LEVEL, note).spawned:
            assert spawn.owner >= 0, "all of these are for one rank"
            self._notes.append((spawn.owner, decode_task(spawn.payload)))


def run(context: Rank, phase: Phase, value: Any) -> TaskOutcome:
    slices = TaskRunner(context)(Task((1, context.number, 1), phase, encode_task(value), 0))
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: TaskOutcome = end.value
            return found


@pytest.fixture
def cluster(area: Path, written: Written) -> Iterator[Cluster]:
    """Three ranks with their shares of the lines."""
    (area / "source").mkdir()
    (area / "target").mkdir()
    root = root_of(area / "source", area / "target")
    options = Options(hash="xxh3-128", block_size=BLOCK, manifest=os.fsencode(area / "manifest"))
    with ExitStack() as stack:
        contexts = [stack.enter_context(surroundings([root], options, 3, rank))[0] for rank in range(3)]
        for path, (kind, digest, size) in written.entries.items():
            if path != b".":
                lines = (
                    contexts[rank_digesting_directory(path.rpartition(b"/")[0], 3)]
                    .shared_instance(SignatureState)
                    .digester.manifest_lines
                )
                assert lines is not None
                lines.add(*pack_manifest_entry(ManifestEntry(kind, digest, size, path)))
        contexts[0].shared_instance(SignatureState).signatures[0] = (written.root.digest, DatasetCounts(directories=1))
        yield Cluster(contexts, Random(1))


@pytest.mark.parametrize("part", [1, 3, 1000])
def test_lines_of_all_ranks_are_merged_into_one_manifest(
    area: Path, cluster: Cluster, written: Written, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_lines, "LINES_PER_MESSAGE", part)
    cluster.begin()
    assert (area / "manifest").read_bytes() == written.manifest
    assert (
        cluster.contexts[0].shared_instance(SignatureState).manifest_error is None
        and cluster.contexts[0].shared_instance(SignatureState).merge is None
    )
    owners = Counter(rank_digesting_directory(path.rpartition(b"/")[0], 3) for path in written.entries if path != b".")
    assert Counter(cluster.asked) == {rank: owners[rank] // part + 1 for rank in range(3)}, "nobody is asked twice"


def test_a_dataset_of_one_item_has_one_line(area: Path, cluster: Cluster) -> None:
    for context in cluster.contexts:
        lines = context.shared_instance(SignatureState).digester.manifest_lines
        assert lines is not None
        lines.close()
    entry = ManifestEntry(b"f", reference.of_file(b"x", BLOCK), 1, ROOT_PATH)
    lines = cluster.contexts[1].shared_instance(SignatureState).digester.manifest_lines
    assert lines is not None
    lines.add(*pack_manifest_entry(entry))
    cluster.contexts[0].shared_instance(SignatureState).signatures[0] = (entry.digest, DatasetCounts(files=1, bytes=1))
    cluster.begin()
    (area / "source" / "x").write_bytes(b"x")
    assert (area / "manifest").read_bytes() == reference.manifest(os.fsencode(area / "source" / "x"), BLOCK)


def test_failure_to_open_the_manifest_is_reported(area: Path, cluster: Cluster) -> None:
    (area / "manifest").mkdir()
    cluster.begin()
    assert isinstance(cluster.contexts[0].shared_instance(SignatureState).manifest_error, OSError | RequestRefused)
    assert cluster.asked == []


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_failed_sync_keeps_the_old_manifest(
    area: Path, cluster: Cluster, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (area / "manifest").write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    cluster.begin()
    assert isinstance(cluster.contexts[0].shared_instance(SignatureState).manifest_error, OSError)
    assert cluster.contexts[0].shared_instance(SignatureState).merge is None
    assert (area / "manifest").read_text() == "old"
    assert sorted(os.listdir(area)) == ["manifest", "source", "target"]


@pytest.mark.parametrize("lines", [-1, 0, 10])
def test_failed_write_keeps_the_old_manifest(
    area: Path, cluster: Cluster, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_lines, "LINES_PER_MESSAGE", 3)
    (area / "manifest").write_text("old")
    write, written = ManifestWriter.write, 0

    def full(writer: ManifestWriter, entry: ManifestEntry) -> None:
        nonlocal written
        written += 1
        if written > lines + 1:
            raise OSError(28, "No space left on device")
        write(writer, entry)

    monkeypatch.setattr(ManifestWriter, "write", full)
    cluster.begin()
    assert isinstance(cluster.contexts[0].shared_instance(SignatureState).manifest_error, OSError)
    assert written == lines + 2, "it is not tried again"
    assert (area / "manifest").read_text() == "old"
    assert sorted(os.listdir(area)) == ["manifest", "source", "target"]


def test_early_end_of_the_job_keeps_the_old_manifest(area: Path, cluster: Cluster) -> None:
    (area / "manifest").write_text("old")
    context = cluster.contexts[0]
    run(context, Phase.LEVEL, WriteManifest())
    assert len(os.listdir(area)) == 4, "a temporary file"
    context.shared_instance(SignatureState).close()
    assert sorted(os.listdir(area)) == ["manifest", "source", "target"]
    assert (area / "manifest").read_text() == "old"


@pytest.fixture
def reading(area: Path, written: Written) -> Iterator[Rank]:
    """A rank that compares with the manifest."""
    (area / "old").write_bytes(written.manifest)
    (area / "source").mkdir()
    root = root_of(area / "source", area / "source")
    options = Options(hash="xxh3-128", block_size=BLOCK)
    with surroundings([root], options, against=os.fsencode(area / "old")) as (context, _):
        yield context


@pytest.mark.parametrize("part", [1, 7, 1000])
def test_manifest_is_read_as_the_second_side(
    reading: Rank, written: Written, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_lines, "LINES_PER_MESSAGE", part)
    run(reading, Phase.COPY, ReadManifest())
    found: dict[bytes, tuple[bytes, bytes, int]] = {}
    while reading.shared_instance(UnsentSignatureEntries).waiting.count:
        for packed in reading.shared_instance(UnsentSignatureEntries).waiting.pop_frame():
            note: SignatureEntriesNote = decode_task(packed.payload)
            for entries in note.parts:
                assert (entries.side, entries.round) == (1, 0)
                columns = (unpack_names(entries.names), entries.kinds, unpack_numbers(entries.sizes))
                for name, kind, size, digest in zip(*columns, split_digests(entries.digests, 16), strict=True):
                    assert bool(name) == (bytes((kind,)) != b"d")
                    path = b"/".join(part for part in (entries.path, name) if part) or b"."
                    assert path not in found
                    found[path] = (bytes((kind,)), digest, size)
    assert found == written.entries
    assert reading.stop_reason is None


@pytest.mark.parametrize("damage", [b"#pcopy-manifest 2 ", b"#pcopy-manifest 1 md5 ", b""])
def test_a_damaged_manifest_stops_the_job(area: Path, reading: Rank, written: Written, damage: bytes) -> None:
    if damage:
        (area / "old").write_bytes(damage + written.manifest[len(damage) :])
    else:
        (area / "old").write_bytes(written.manifest[:-20])
    run(reading, Phase.COPY, ReadManifest())
    assert reading.stop_reason is not None and f"{area}/old" in reading.stop_reason.text
