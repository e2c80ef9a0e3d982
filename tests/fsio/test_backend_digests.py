"""Digests that a backend computes while it copies and reads, compared with the definition of the signature.

The C backend computes them with libraries of the system. If one is missing, C leaves the contents in memory and Python
computes the digests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import blake3
import pytest
import xxhash

from pcopy.fsio.backend.batches import (
    CopyPlan,
    CopySmallFilesBatch,
    CopySmallFilesResult,
    ReadSmallFilesBatch,
    ReadSmallFilesResult,
)
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES, BackendSettings, FileOperationBackend
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.tasks.base.hashing import JobItemHasher
from tests.fsio.backend_bench import BACKENDS, Bench, done, found
from tests.support import native, reference_signature

KIB = 1 << 10
PIECE = 256 * KIB
"""Bytes that the C backend reads in one call."""
BLOCKS = [64 * KIB, 128 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB]

ORACLES: dict[str, Callable[[bytes], bytes]] = {
    "xxh3-128": xxhash.xxh3_128_digest,
    "blake3": lambda data: blake3.blake3(data).digest(),
}


def sizes(block: int) -> list[int]:
    """Sizes on both sides of one block, of one piece, and of numbers of blocks that are powers of two."""
    edges = {0, 1, block, 2 * block, 3 * block, 5 * block, PIECE, 2 * PIECE, MAX_SMALL_FILE_BYTES}
    around = {edge + by for edge in edges for by in (-1, 0, 1)}
    return sorted(size for size in around if 0 <= size <= MAX_SMALL_FILE_BYTES)


@pytest.fixture(params=["python", "c", "c-threads", "c-without-library"])
def make(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[BackendSettings], FileOperationBackend]:
    name = str(request.param).removesuffix("-without-library")
    if name != request.param:
        native.require()
        from pcopy.fsio.backend import native as in_c

        class WithoutLibrary:
            def __getattr__(self, name: str) -> Any:
                return (lambda _: 0) if name == "pk_find_digest" else getattr(library, name)

        library = in_c._lib
        monkeypatch.setattr(in_c, "_lib", WithoutLibrary())
    return BACKENDS[name]


@pytest.mark.in_turn(12)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("algorithm", ORACLES)
def test_digests_match_the_definition(
    make: Callable[[BackendSettings], FileOperationBackend], algorithm: str, block: int, area: Path
) -> None:
    (area / "source").mkdir()
    (area / "target").mkdir()
    random, contents = Random(block), {}
    for size in sizes(block):
        contents[f"{size}"] = random.randbytes(size)
        (area / "source" / f"{size}").write_bytes(contents[f"{size}"])
    oracle = partial(reference_signature.of_file, block_size=block, digest=ORACLES[algorithm])
    expected = [oracle(content) for content in contents.values()]
    names, number = pack_names(map(os.fsencode, contents)), len(contents)
    backend = make(
        BackendSettings(
            PreservedMetadataKinds(), 0o022, False, JobItemHasher(algorithm, block).digest_of_data, algorithm, block
        )
    )
    source, target = (os.open(area / name, os.O_RDONLY) for name in ("source", "target"))
    try:
        rows = found(area / "source", list(contents))
        copied: CopySmallFilesResult = done(
            backend, CopySmallFilesBatch(source, names, target, bytes([CopyPlan.NEW]) * number, rows)
        )
        read: ReadSmallFilesResult = done(backend, ReadSmallFilesBatch(target, names, True))
        assert list(copied.verdicts.codes) == list(read.verdicts.codes) == [OutcomeCode.DONE] * number
    finally:
        backend.close()
        os.close(source)
        os.close(target)
    assert [copied.digests[row] for row in range(number)] == expected
    assert [read.digests[row] for row in range(number)] == expected


def test_the_library_of_the_default_algorithm_is_used() -> None:
    """bin/install-debian-packages installs it. Without it the digest would silently take three times as long."""
    native.require()
    from pcopy.fsio.backend.native import _lib

    if not os.path.exists("/usr/lib/x86_64-linux-gnu/libxxhash.so.0"):
        pytest.skip("there is no libxxhash0 here")
    assert _lib.pk_find_digest(b"xxh3-128") == 1
    assert _lib.pk_find_digest(b"sha-1") == 0


def test_digests_are_recomputed_after_memory_ran_out(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that C defers need memory, too. If the library is missing, the contents are still in memory at that
    point.
    """
    native.require()
    from pcopy.fsio.backend import native_batches

    class OutOfMemory:
        def __init__(self, *_: object) -> None:
            monkeypatch.undo()
            raise MemoryError

    (area / "target").mkdir()
    (area / "file").write_bytes(b"content")
    rows = found(area, ["file", "file"])
    backend = BACKENDS["c"](
        BackendSettings(PreservedMetadataKinds(), 0o022, False, JobItemHasher("xxh3-128", BLOCKS[0]).digest_of_data)
    )
    source, target = (os.open(path, os.O_RDONLY) for path in (area, area / "target"))
    try:
        ticket = backend.submit_batch(
            CopySmallFilesBatch(source, b"file/absent", target, bytes([CopyPlan.NEW]) * 2, rows)
        )
        monkeypatch.setattr(native_batches, "CopySmallFilesBatchProcessor", OutOfMemory)
        with pytest.raises(MemoryError):
            backend.poll()
        while not ticket.is_done:
            backend.poll()
    finally:
        backend.close()
        os.close(source)
        os.close(target)
    assert list(ticket.result.verdicts.codes) == [OutcomeCode.DONE, OutcomeCode.SOURCE_CHANGED]
    assert ticket.result.digests[0] == reference_signature.of_file(b"content", BLOCKS[0], ORACLES["xxh3-128"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_file_has_its_own_digest(backend: str, on: Any) -> None:
    """A row that is not copied does not shift the digests of the others."""
    new = Bench(BACKENDS[backend], CopyPlan.NEW, on("ext4"))
    names = [f"{number}" for number in range(5)]
    for number, name in enumerate(names):
        new.add(name, b"x" * number)
    (new.target / "2").touch()
    reported = new.copy(
        *names, new_names=[b"a", b"b", b"2", b"d", b"e"], digest=lambda data: reference_signature.of_file(data, 1 << 16)
    )
    assert reported == [0, 1, OutcomeCode.DECIDE_AGAIN, 3, 4]
