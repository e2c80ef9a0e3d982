"""Datasets on disk for tests of signatures, and their entries computed by functions of pcopy."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pcopy.signature.algorithms import DigestAlgorithm
from pcopy.signature.items import DirectoryHasher, file_digest, special_file_digest, symlink_digest, type_byte
from pcopy.signature.manifest import ManifestEntry
from pcopy.signature.tree import content_root_digest
from tests.support.signatures import generated


def inner_dataset(path: Path) -> Path:
    path.mkdir()
    (path / "b.bin").write_bytes(generated(200000))
    Path(os.fsdecode(os.fsencode(path) + b"/\xff\n name")).write_bytes(b"x")
    return path


def outer_dataset(path: Path) -> Path:
    path.mkdir()
    (path / "a.txt").write_bytes(b"hello\n")
    (path / "empty").touch()
    (path / "link").symlink_to("a.txt")
    os.mkfifo(path / "pipe")
    inner_dataset(path / "sub")
    return path


def measured(path: bytes, algorithm: DigestAlgorithm, block_size: int) -> list[ManifestEntry]:
    """The entries of the item at ``path`` in tree order, computed by functions of pcopy."""
    return list(_measured(path, b".", algorithm, block_size))


def _measured(path: bytes, inner: bytes, algorithm: DigestAlgorithm, block_size: int) -> Iterator[ManifestEntry]:
    found = os.lstat(path)
    kind, size, digest = type_byte(found.st_mode), 0, b""
    below: list[ManifestEntry] = []
    if kind == b"f":
        data, size = Path(os.fsdecode(path)).read_bytes(), found.st_size
        digest = file_digest(algorithm, size, content_root_digest(algorithm, block_size, data))
    elif kind == b"d":
        hasher = DirectoryHasher(algorithm)
        for name in sorted(os.listdir(path)):
            if stat.S_ISSOCK(os.lstat(path + b"/" + name).st_mode):
                continue
            child_path = name if inner == b"." else inner + b"/" + name
            child, *rest = _measured(path + b"/" + name, child_path, algorithm, block_size)
            hasher.add_child(child.kind, name, child.digest)
            below += [child, *rest]
        digest = hasher.digest()
    elif kind == b"l":
        digest = symlink_digest(algorithm, os.readlink(path))
    else:
        digest = special_file_digest(algorithm, found.st_mode, found.st_rdev)
    yield ManifestEntry(kind, digest, size, inner)
    yield from below
