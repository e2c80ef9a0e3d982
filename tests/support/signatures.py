"""Signatures and manifests as a reader without pcopy parses them, and the datasets whose signatures are published."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support import reference_signature as reference
from tests.support.command import Completed


def generated(count: int) -> bytes:
    """The function ``gen`` of the test vectors."""
    return bytes((i * i + 7 * i + (i >> 8)) & 255 for i in range(count))


def make_hello(path: Path) -> None:
    path.write_bytes(b"hello\n")


def make_numbers(path: Path) -> None:
    path.write_bytes(generated(200000))


def make_inner(path: Path) -> None:
    path.mkdir()
    make_numbers(path / "b.bin")
    Path(os.fsdecode(os.fsencode(path) + b"/\xff\n name")).write_bytes(b"x")


def make_outer(path: Path) -> None:
    path.mkdir()
    make_hello(path / "a.txt")
    (path / "empty").touch()
    (path / "link").symlink_to("a.txt")
    os.mkfifo(path / "pipe")
    make_inner(path / "sub")


class Vector(NamedTuple):
    """A published dataset with its signatures for blocks of 4 MiB and of 64 KiB."""

    make: Callable[[Path], None]
    large: str
    small: str


EMPTY_DIRECTORY = "22bbb76b211a39ba13e608bc156defed"
HELLO = "b5ecb9c9572d1977fefb3efa791cd58b"
EMPTY_FILE = "46c67f2acba1c47bfd40839973f03b8d"
VECTORS = {
    "empty-directory": Vector(Path.mkdir, EMPTY_DIRECTORY, EMPTY_DIRECTORY),
    "hello": Vector(make_hello, HELLO, HELLO),
    "empty-file": Vector(Path.touch, EMPTY_FILE, EMPTY_FILE),
    "numbers": Vector(make_numbers, "aa2f9a99b769b8f316da586c644d807f", "4cdb20af6cb0a7e6f7d63ad5c4fadf29"),
    "inner": Vector(make_inner, "5ac06bb226cd36481ee0eb3824a2af42", "a69d32af70152b3cba7cbf997fdb3662"),
    "outer": Vector(make_outer, "7f682f90fd0fffe8ab8ffad8c007c3c0", "b9441d2d38f02c9b17f0d6de961a0b91"),
}


def signature_file(path: Path) -> dict[str, str]:
    """The keys and values of a signature file; strings without their quotes."""
    pairs = (line.split(": ", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return {key: value.strip('"') for key, value in pairs}


def signed(path: Path) -> str:
    """Return the signature in a signature file."""
    return signature_file(path)["signature"]


def expected(path: str | os.PathLike[str], block_size: int = 4 << 20) -> str:
    """Return the signature of the item at ``path``, computed from the definition."""
    return reference.signature(os.fsencode(path), block_size).hex()


class Line(NamedTuple):
    """One entry of a manifest."""

    kind: bytes
    digest: bytes
    size: int
    path: bytes


def manifest_lines(path: Path) -> Iterator[Line]:
    """The entries of a manifest, their paths without escapes."""
    head, *lines, last = path.read_bytes().split(b"\n")
    assert head.startswith(b"#pcopy-manifest 1 ") and not last
    for line in lines:
        kind, digest, size, name = line.split(b" ", 3)
        yield Line(kind, bytes.fromhex(digest.decode()), int(size), _without_escapes(name))


def _without_escapes(name: bytes) -> bytes:
    named = {ord("\\"): b"\\", ord("n"): b"\n", ord("r"): b"\r"}
    plain, rest = b"", name
    while rest:
        before, backslash, rest = rest.partition(b"\\")
        plain += before
        if backslash:
            plain, rest = plain + named[rest[0]], rest[1:]
    return plain


def recomputed(path: Path) -> str:
    """Compute the signature from the entries of a manifest, without those of directories; check the digests of
    directories.
    """
    lines = list(manifest_lines(path))
    if lines[0].kind != b"d":
        return lines[0].digest.hex()
    children: dict[bytes, list[tuple[bytes, bytes]]] = {b"": []}
    found = {line.path: line for line in lines[1:]}
    for line in lines[1:]:
        if line.kind == b"d":
            children[line.path] = []
    digests: dict[bytes, bytes] = {}
    for name in sorted(found, key=lambda inner: inner.count(b"/"), reverse=True):
        line = found[name]
        digests[name] = _directory(children[name]) if line.kind == b"d" else line.digest
        assert digests[name] == line.digest, name
        around, _, own = name.rpartition(b"/")
        children[around].append((own, line.kind + reference.u32(len(own)) + own + digests[name]))
    return _directory(children[b""]).hex()


def _directory(children: list[tuple[bytes, bytes]]) -> bytes:
    return reference.xxh3_128(b"\x03" + b"".join(packed for _, packed in sorted(children)))


def reported(run: Completed) -> list[str]:
    """Return the lines that a run of pverify printed: the differences."""
    return run.stdout.decode().splitlines()
